"""The texts that a user hands in: captions and references, checked one by one."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

from capeval_core.inputs.problems import Problems, described
from capeval_core.inputs.sequences import as_list, how_to_list

_STRING = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_STRINGS = rf"\s*{_STRING}(?:\s*,\s*{_STRING})*\s*,?\s*"
_LIST = re.compile(rf"\s*(?:\[{_STRINGS}\]|\({_STRINGS}\))\s*", re.DOTALL)
_BEGUN = re.compile(r"""\s*[\[(]\s*(?:["']|(?:nan|None|null)\s*[,\])])""")
_ENDED = re.compile(r"""(?:["']|\b(?:nan|None|null|[\d.]+))\s*,?\s*[\])]+\s*$""")


def is_written_list(text: str, *, whole: bool = True) -> bool:
    """Whether a text was a list or tuple of strings, whether or not it can still be read.

    Args:
        text: a caption, a reference or a cell.
        whole: it also has to end like one; without, a text that was cut off counts, and so do captions such
            as `["Stop"] on a sign`.

    >>> [is_written_list(text) for text in ("['a dog', nan]", "['a dog' 'a cat']", "[sic] a dog")]
    [True, True, False]
    >>> is_written_list('["Stop"] on a sign'), is_written_list('["Stop"] on a sign', whole=False)
    (False, True)
    """
    if not _BEGUN.match(text):
        return False
    return not whole or _ENDED.search(text) is not None


def read_written_list(text: str) -> list[Any] | None:
    """The list or tuple of strings, or the JSON list, that a text is; None if it is none.

    >>> read_written_list("['a dog', 'a cat']"), read_written_list('["a dog", 5]'), read_written_list("[sic]")
    (['a dog', 'a cat'], ['a dog', 5], None)
    """
    # The pattern bounds what is evaluated: no nesting, nothing but strings.
    for read, fits in (
        (json.loads, text.lstrip().startswith("[")),
        (ast.literal_eval, _LIST.fullmatch(text)),
    ):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError):
            if fits:
                return list(read(text.strip()))
    return None


def check_captions(
    captions: Any, empty: str, problems: Problems, called: str = "captions"
) -> list[str | None] | None:
    """One entry per caption, None where it is unusable; None if there are no rows at all to speak of."""
    rows = rows_of(captions, called, "strings", problems)
    if rows is None:
        return None
    if not rows:
        problems.add(f"{called} is empty: there is nothing to score")
    mend = "write a caption"
    return [text_of(row, f"{called}[{i}]", mend, empty, problems) for i, row in enumerate(rows)]


def warn_of_written_lists(captions: Sequence[str], called: str = "captions") -> None:
    """Warn once of captions that once were lists: they are scored as they are, a captioner may write one."""
    places = [i for i, caption in enumerate(captions) if is_written_list(caption)]
    if places:
        warnings.warn(
            f"{len(places):,} of {len(captions):,} {called} are lists written as text, such as "
            f"{captions[places[0]][:40]!r}, and are scored as they are: pass one caption per row if they "
            "were lists",
            stacklevel=3,
        )


def check_references(
    references: Any, captions: int | None, empty: str, problems: Problems, called: str = "captions"
) -> list[list[str]] | None:
    """Per caption its references; ragged lists and bare strings are welcome."""
    if references is None:
        problems.add(
            "references is missing: this metric compares each caption with its references, "
            'pass references=[["...", "..."], ...]'
        )
        return None
    rows = rows_of(references, "references", "lists of strings", problems)
    if rows is None:
        return None
    checked = [_references_of(row, f"references[{i}]", empty, problems) for i, row in enumerate(rows)]
    if captions is not None and len(rows) != captions:
        mend = "give one list of references per caption"
        if rows and all(len(row) == captions for row in checked):
            mend += "; these look transposed, pass list(zip(*references))"
        problems.add(f"len({called})={captions} but len(references)={len(rows)}: {mend}")
    return checked


def _references_of(row: Any, where: str, empty: str, problems: Problems) -> list[str]:
    if isinstance(row, str) and is_written_list(row):
        problems.add(f"{where} is a list written as text: pass the list, ast.literal_eval(references[...])")
        return []
    if isinstance(row, str):
        text = text_of(row, where, "write the reference", empty, problems)
        return [] if text is None else [text]
    if row is None:
        problems.add(f"{where} is empty: every caption needs at least one reference, found None")
        return []
    values = as_list(row)
    if values is None:
        problems.add(f"{where} is {described(row)}: expected a list of strings or one string", kind=TypeError)
        return []
    if not values:
        problems.add(f"{where} is empty: every caption needs at least one reference")
    texts = [
        text_of(value, f"{where}[{j}]", "write the reference or leave it out", empty, problems)
        for j, value in enumerate(values)
    ]
    return [text for text in texts if text is not None]


def rows_of(value: Any, argument: str, of: str, problems: Problems) -> list[Any] | None:
    """The rows of a text argument, or None with the complaint noted."""
    if value is None:
        problems.add(f"{argument} is missing: pass a list of {of}")
        return None
    if isinstance(value, str):
        problems.add(f"{argument} is a single string: pass a list, {argument}=[...]", kind=TypeError)
        return None
    rows = as_list(value)
    if rows is None:
        problems.add(
            f"{argument} is {described(value)}: expected a list of {of}{how_to_list(value)}", TypeError
        )
    return rows


def text_of(value: Any, where: str, mend: str, empty: str, problems: Problems) -> str | None:
    if isinstance(value, str):
        if empty == "error" and not value.strip():
            found = "empty (only whitespace)" if value else "empty"
            problems.add(f'{where} is {found}: {mend} or pass empty="score"')
        elif not value.isascii() and not valid_unicode(value):
            problems.add(f"{where} is not valid Unicode (a lone surrogate): {value[:40]!a}")
        else:
            return str(value)  # numpy's str_ is a str, but not a plain one
        return None
    if value is None:
        problems.add(f"{where} is None: {mend}")
    else:
        told = ", decode it first" if isinstance(value, (bytes, bytearray)) else ""
        problems.add(f"{where} is {described(value)}: expected a string{told}", kind=TypeError)
    return None


def valid_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; file names that are not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
