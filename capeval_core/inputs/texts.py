"""The texts that a user hands in: captions and references, checked one by one."""

from __future__ import annotations

import ast
import contextlib
import json
import re
import warnings
from collections.abc import Sequence
from typing import Any

from capeval_core.errors import Argument, Index, Problem, Problems, Setting
from capeval_core.inputs.sequences import as_list, how_to_list
from capeval_core.values import described

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


def check_captions(captions: Any, empty: str, problems: Problems) -> list[str | None] | None:
    """One entry per caption, None where it is unusable; None if there are no rows at all."""
    rows = _rows_of(captions, "captions", "strings", problems)
    if rows is None:
        return None
    return [_text_of(row, "captions", i, "write a caption", empty, problems) for i, row in enumerate(rows)]


def warn_of_written_lists(captions: Sequence[str]) -> None:
    """Warn once of captions that once were lists: they are scored as they are, a captioner may write one."""
    lists = [caption for caption in captions if is_written_list(caption)]
    if lists:
        warnings.warn(
            f"{len(lists):,} of {len(captions):,} captions are lists written as text, such as "
            f"{lists[0][:40]!r}, and are scored as they are: pass one caption per row if they were lists",
            stacklevel=3,
        )


def check_candidates(captions: Any, empty: str, problems: Problems) -> list[list[str]] | None:
    """The candidates of each image; None if there are no rows at all."""
    rows = _rows_of(captions, "captions", "lists of candidate captions", problems)
    return None if rows is None else [_pool_of(row, i, empty, problems) for i, row in enumerate(rows)]


def _pool_of(row: Any, index: int, empty: str, problems: Problems) -> list[str]:
    if isinstance(row, str):
        short = row if len(row) <= 40 else row[:37] + "..."
        fix = f"pass the list of its candidates, [{short!r}, ...]"
        problems.add(Problem("captions", index, "a single string", fix, kind=TypeError))
        return []
    needed, expected = "every image needs at least one candidate", "a list of candidate captions"
    values = _values_of(row, "captions", index, needed, expected, problems)
    return _texts_of(values, "captions", index, "write a caption, leave it out", empty, problems)


def check_references(
    references: Any, rows: int | None, empty: str, problems: Problems, per: str = "captions"
) -> list[list[str]] | None:
    """The references of each caption; ragged lists and bare strings are welcome.

    rows: how many there should be, as many as there are in the argument `per`; None: that is not known.
    """
    if references is None:
        fix = 'this metric compares each caption with its references, pass references=[["...", "..."], ...]'
        problems.add(Problem("references", None, "missing", fix))
        return None
    listed = _rows_of(references, "references", "lists of strings", problems)
    if listed is None:
        return None
    checked = [_references_of(row, i, empty, problems) for i, row in enumerate(listed)]
    if rows is not None and len(listed) != rows:
        fix = "give one list of references per caption"
        if listed and all(len(row) == rows for row in checked):
            fix += "; these look transposed, pass list(zip(*references))"
        problems.add(other_length(per, rows, "references", len(listed), fix))
    return checked


def other_length(argument: str, length: int, other: str, other_length: int, fix: str) -> Problem:
    """The problem of two arguments that should have as many rows."""
    found = ("len(", Argument(argument), f")={length} but len(", Argument(other), f")={other_length}")
    return Problem("", None, found, fix, verb="")


def _references_of(row: Any, index: int, empty: str, problems: Problems) -> list[str]:
    if isinstance(row, str) and is_written_list(row):
        fix = "pass the list, ast.literal_eval(references[...])"
        problems.add(Problem("references", index, "a list written as text", fix))
        return []
    if isinstance(row, str):
        text = _text_of(row, "references", index, "write the reference", empty, problems)
        return [] if text is None else [text]
    needed, expected = "every caption needs at least one reference", "a list of strings or one string"
    values = _values_of(row, "references", index, needed, expected, problems)
    return _texts_of(values, "references", index, "write the reference or leave it out", empty, problems)


def _values_of(
    row: Any, argument: str, index: int, needed: str, expected: str, problems: Problems
) -> list[Any]:
    """The values of a row that should hold several texts; problems are noted."""
    values = None if row is None else as_list(row)
    if row is None or values == []:
        problems.add(Problem(argument, index, "None" if row is None else "empty", needed))
    elif values is None:
        problems.add(Problem(argument, index, described(row), f"expected {expected}", kind=TypeError))
    return values or []


def _rows_of(value: Any, argument: str, of: str, problems: Problems) -> list[Any] | None:
    """The rows of a text argument, or None with the problem noted."""
    if value is None:
        problems.add(Problem(argument, None, "missing", f"pass a list of {of}"))
        return None
    if isinstance(value, str):
        fix = ("pass a list, ", Argument(argument), "=[...]")
        problems.add(Problem(argument, None, "a single string", fix, kind=TypeError))
        return None
    rows = as_list(value)
    if rows is None:
        expected = f"expected a list of {of}{how_to_list(value)}"
        problems.add(Problem(argument, None, described(value), expected, kind=TypeError))
    elif not rows and argument == "captions":
        problems.add(Problem(argument, None, "empty", "there is nothing to score"))
    return rows


def _texts_of(
    values: list[Any], argument: str, index: int, fix: str, empty: str, problems: Problems
) -> list[str]:
    """Those of several texts of a row that are usable."""
    texts = [_text_of(value, argument, (index, j), fix, empty, problems) for j, value in enumerate(values)]
    return [text for text in texts if text is not None]


def _text_of(value: Any, argument: str, index: Index, fix: str, empty: str, problems: Problems) -> str | None:
    if isinstance(value, str):
        if empty == "error" and not value.strip():
            found = "empty (only whitespace)" if value else "empty"
            option = Setting("empty", "score", " or pass ")
            problems.add(Problem(argument, index, found, (fix, option)))
        elif not value.isascii() and not valid_unicode(value):
            found = f"not valid Unicode (a lone surrogate): {value[:40]!a}"
            problems.add(Problem(argument, index, found))
        else:
            return str(value)  # numpy's str_ is a str, but not a plain one
        return None
    if value is None:
        problems.add(Problem(argument, index, "None", fix))
    else:
        expected = "expected a string"
        expected += ", decode it first" if isinstance(value, (bytes, bytearray)) else ""
        problems.add(Problem(argument, index, described(value), expected, kind=TypeError))
    return None


def valid_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; file names that are not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
