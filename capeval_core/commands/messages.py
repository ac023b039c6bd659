"""Messages of the core, which speak of arguments and indices, in the words of someone with files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from capeval_core.commands.flags import in_flags
from capeval_core.options import Settings

_PLACE = re.compile(r"\b(captions|images|references)\[(\d+)\](?:\[(\d+)\])?")
# The other captions of a broken image: its id, which is named already, stands for all of them.
_ALSO = re.compile(r" \(also (?:images\[\d+\](?:, )?)+(?: and [\d,]+ more)?\)")


@contextmanager
def in_words_of_the_user(options: type[Settings], ids: Sequence[str] = ()) -> Iterator[None]:
    """Let errors about arguments name flags; errors and warnings about `captions[3]` name that image's id."""
    show = warnings.showwarning

    def show_named(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        show(places_named(str(message), ids), category, filename, lineno, file, line)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_named
            yield
    except (ValueError, TypeError) as error:
        raise ValueError(in_flags(places_named(str(error), ids), options)) from error


def places_named(message: str, ids: Sequence[str]) -> str:
    """`captions[3]` as `caption of '42'`, or `caption 2 of '42'` if that image has several.

    >>> places_named("captions[1] is empty", ["dog", "dog", "cat"])
    "caption 2 of 'dog' is empty"
    >>> places_named("captions[0][3] is empty", ["dog", "cat"])
    "caption 4 of 'dog' is empty"
    >>> places_named("images[2]: cannot decode 'x.jpg' (truncated)", ["dog", "dog", "cat"])
    "image of 'cat': cannot decode 'x.jpg' (truncated)"
    """

    def named(found: re.Match[str]) -> str:
        kind, index = found[1], int(found[2])
        if index >= len(ids):
            return found[0]
        image_id = ids[index]
        if kind == "images":
            what = "image"
        elif kind == "references":
            what = f"reference {int(found[3]) + 1}" if found[3] else "references"
        else:
            number = ids[: index + 1].count(image_id) if ids.count(image_id) > 1 else 0
            number = int(found[3]) + 1 if found[3] else number
            what = f"caption {number}" if number else "caption"
        return f"{what} of {image_id!r}"

    return _PLACE.sub(named, _ALSO.sub("", message) if ids else message)
