"""The texts that a user hands in: captions and references, checked one by one."""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from capeval_core.errors import Index, Kind, Problem, Problems, at, described, setting, warn

_STRING = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_STRINGS = rf"\s*{_STRING}(?:\s*,\s*{_STRING})*\s*,?\s*"
_LIST = re.compile(rf"\s*(?:\[{_STRINGS}\]|\({_STRINGS}\))\s*", re.DOTALL)
_BEGUN = re.compile(r"""\s*[\[(]\s*(?:["']|(?:nan|None|null)\s*[,\])])""")
_ENDED = re.compile(r"""(?:["']|\b(?:nan|None|null|[\d.]+))\s*,?\s*[\])]+\s*$""")


def is_written_list(text: str, *, whole: bool = True) -> bool:
    """Whether a text was a list of strings; without `whole` also where it was cut off."""
    return bool(_BEGUN.match(text) and (not whole or _ENDED.search(text)))


def read_written_list(text: str) -> list[Any] | None:
    """The list or tuple of strings, or the JSON list, that a text is; None if it is none."""
    # The pattern bounds what is evaluated: no nesting, nothing but strings.
    for read, fits in (
        (json.loads, text.lstrip().startswith("[")),
        (ast.literal_eval, _LIST.fullmatch(text)),
    ):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError):
            if fits:
                return list(read(text.strip()))
    return None


@dataclass(frozen=True)
class _Texts:
    """The texts of one argument; what is wrong with them is noted."""

    argument: str
    empty: str
    problems: Problems

    def wrong(self, index: Index, found: str, fix: str = "", kind: Kind = ValueError) -> None:
        self.problems.add(Problem(at(self.argument, index), f"is {found}", fix, kind))

    def rows(self, value: Any, of: str) -> list[Any] | None:
        """The rows of the argument, or None where there are none."""
        if value is None:
            self.wrong(None, "missing", f"pass a list of {of}")
            return None
        if isinstance(value, str):
            self.wrong(None, "a single string", f"pass a list, {at(self.argument)}=[...]", TypeError)
            return None
        rows = as_list(value)
        if rows is None:
            self.wrong(None, described(value), f"expected a list of {of}{how_to_list(value)}", TypeError)
        elif not rows and self.argument == "captions":
            self.wrong(None, "empty", "there is nothing to score")
        return rows

    def listed(self, row: Any, index: int, needed: str, expected: str, fix: str) -> list[str]:
        """Those texts of a row of several, or of one string, that are usable."""
        if isinstance(row, str):
            text = self.text(row, index, fix)
            return [] if text is None else [text]
        values = None if row is None else as_list(row)
        if row is None or values == []:
            self.wrong(index, "missing" if row is None else "empty", needed)
        elif values is None:
            self.wrong(index, described(row), f"expected {expected}", TypeError)
        texts = [self.text(value, (index, j), fix) for j, value in enumerate(values or [])]
        return [text for text in texts if text is not None]

    def text(self, value: Any, index: Index, fix: str) -> str | None:
        if isinstance(value, str):
            if self.empty == "error" and not value.strip():
                found = "empty (only whitespace)" if value else "empty"
                self.wrong(index, found, fix + setting("empty", "score", " or pass "))
            elif not value.isascii() and not valid_unicode(value):
                self.wrong(index, f"not valid Unicode (a lone surrogate): {value[:40]!a}")
            else:
                return str(value)  # numpy's str_ is a str, but not a plain one
        elif value is None:
            self.wrong(index, "missing", fix)
        else:
            decode = ", decode it first" if isinstance(value, (bytes, bytearray)) else ""
            self.wrong(index, described(value), f"expected a string{decode}", TypeError)
        return None


def check_captions(captions: Any, empty: str, problems: Problems) -> list[str | None] | None:
    """One entry per caption, None where it is unusable; None if there are no rows at all."""
    texts = _Texts("captions", empty, problems)
    rows = texts.rows(captions, "strings")
    return None if rows is None else [texts.text(row, i, "write a caption") for i, row in enumerate(rows)]


def check_candidates(captions: Any, empty: str, problems: Problems) -> list[list[str]] | None:
    """The candidates of each image; None if there are no rows at all."""
    texts = _Texts("captions", empty, problems)
    needed, expected = "every image needs at least one candidate", "a list of candidate captions"

    def pool(row: Any, index: int) -> list[str]:
        if not isinstance(row, str):
            return texts.listed(row, index, needed, expected, "write a caption or leave it out")
        short = row if len(row) <= 40 else row[:37] + "..."
        texts.wrong(index, "a single string", f"pass the list of its candidates, [{short!r}, ...]", TypeError)
        return []

    rows = texts.rows(captions, "lists of candidate captions")
    return None if rows is None else [pool(row, i) for i, row in enumerate(rows)]


def check_references(
    references: Any, rows: int | None, empty: str, problems: Problems
) -> list[list[str]] | None:
    """The references of each caption, of which there are so many."""
    texts = _Texts("references", empty, problems)
    needed, expected = "every caption needs at least one reference", "a list of strings or one string"

    def of_caption(row: Any, index: int) -> list[str]:
        if not isinstance(row, str) or not is_written_list(row):
            return texts.listed(row, index, needed, expected, "write the reference or leave it out")
        texts.wrong(index, "a list written as text", "pass the list, ast.literal_eval(references[...])")
        return []

    if references is None:
        fix = 'this metric compares each caption with its references, pass references=[["...", "..."], ...]'
        texts.wrong(None, "missing", fix)
        return None
    listed = texts.rows(references, "lists of strings")
    if listed is None:
        return None
    checked = [of_caption(row, i) for i, row in enumerate(listed)]
    if rows is not None and len(listed) != rows:
        fix = "give one list of references per caption"
        if listed and all(len(row) == rows for row in checked):
            fix += "; these look transposed, pass list(zip(*references))"
        problems.add(other_length("captions", rows, "references", len(listed), fix))
    return checked


def united(corpora: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """The union of corpora as multisets: a document, a text or a list of texts and visuals, counts as
    often as where it is most frequent."""
    if len(corpora) == 1:
        return corpora[0]

    def key(part: Any) -> Any:
        try:
            return part if isinstance(part, str) else (part.key,)
        except ValueError:
            return (part.name,)

    union: Counter[Any] = Counter()
    of_key: dict[Any, Any] = {}
    for documents in corpora:
        keys = [text if isinstance(text, str) else tuple(map(key, text)) for text in documents]
        of_key |= zip(keys, documents, strict=True)
        union |= Counter(keys)
    return [of_key[one] for one in union.elements()]


def corpus_texts(texts: Any) -> list[str]:
    """The texts of a corpus, given as strings or as lists of them; empty ones are welcome."""
    problems = Problems()
    checked = _Texts("texts", "score", problems)
    listed: list[str] = []
    expected = "a string or a list of strings"
    for i, row in enumerate(checked.rows(texts, "strings") or []):
        listed += checked.listed(row, i, "leave it out", expected, "leave it out")
    problems.raise_if_any()
    return listed


def other_length(argument: str, length: int, other: str, other_length: int, fix: str) -> Problem:
    """The problem of two arguments that should have as many rows."""
    return Problem("", f"len({at(argument)})={length} but len({at(other)})={other_length}", fix)


def warn_of_written_lists(captions: Sequence[str]) -> None:
    """Warn once of captions that once were lists: they are scored as they are, a captioner may write one."""
    if lists := [caption for caption in captions if is_written_list(caption)]:
        warn(
            f"{len(lists):,} of {len(captions):,} captions are lists written as text, such as "
            f"{lists[0][:40]!r}, and are scored as they are: pass one caption per row if they were lists"
        )


def valid_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8; file names that are not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# ---- sequences as rows


def as_list(value: Any) -> list[Any] | None:
    """Any sequence as a list; None for what has no order, no length, or is no sequence."""
    if isinstance(value, (str, bytes, bytearray, range, type, Mapping, Set)):
        return None
    if isinstance(value, Sequence):
        return list(value)
    to_list = getattr(value, "to_pylist", None) or getattr(value, "tolist", None)  # pyarrow; numpy, pandas
    rows = to_list() if to_list else None
    return rows if isinstance(rows, list) else None  # a numpy scalar has tolist too


def is_table(value: Any) -> bool:
    """A pandas or polars DataFrame, or a whole Dataset: its columns are not rows."""
    return hasattr(value, "columns") or hasattr(value, "column_names")


def how_to_list(value: Any) -> str:
    """The fix for what has no rows, behind the words for what is expected."""
    if isinstance(value, Mapping):
        return ", one per row in the order of the images"
    if isinstance(value, Iterator):
        return ", pass list(...) of it"
    if is_table(value):
        return ', pass one of its columns, as in dataset["image"]'
    if type(value).__module__.partition(".")[0] == "datasets":
        return ", a streamed dataset has no length, pass list(...) of it"
    return ""
