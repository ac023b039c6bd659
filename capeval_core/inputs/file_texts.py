"""The texts of a file by image id, and what is wrong with its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, Problems, Text, file_problem
from capeval_core.inputs.texts import is_written_list, read_written_list, valid_unicode
from capeval_core.values import described

ID_FIELDS = ("image_id", "image", "id", "filename")
CANDIDATE_FIELDS = ("caption", "captions")
REFERENCE_FIELDS = ("references", "captions", "caption")
LIST_FIELDS = ("references", "captions")


@dataclass
class Texts:
    """The texts of a file by image id, in the file's order, and the file names that it gives to ids."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    file_names: dict[str, str] = field(default_factory=dict)

    def by_id(self) -> dict[str, list[str]]:
        gathered: dict[str, list[str]] = {}
        for image_id, text in self.rows:
            gathered.setdefault(image_id, []).append(text)
        return gathered


class Gatherer:
    """Turns the rows of a file into Texts and notes what is wrong with them.

    Args:
        path: the file, which begins every message.
        fields: the names that a row's text may have, the first that is there counts.
        problems: where problems are noted.

    >>> problems = Problems()
    >>> gatherer = Gatherer(Path("c.json"), CANDIDATE_FIELDS, problems)
    >>> gatherer.row({"image_id": 42, "caption": "a dog"}, "entry 0")
    >>> gatherer.row({"image_id": 43, "text": "a cat"}, "entry 1")
    >>> gatherer.texts.rows
    [('42', 'a dog')]
    >>> problems.raise_if_any()
    Traceback (most recent call last):
    capeval_core.errors.FileError: c.json: entry 1 has no caption or captions, only 'image_id', 'text'
    """

    def __init__(self, path: Path, fields: Sequence[str], problems: Problems) -> None:
        self.path = path
        self.fields = fields
        self.problems = problems
        self.texts = Texts()
        self._lists: dict[str, list[str]] = {}

    def complain(self, row: str | None, found: Text, fix: Text = "", *, verb: str = "is") -> None:
        """Note a problem with a row, such as `line 3`, or a part of it; None: with the file."""
        self.problems.add(file_problem(self.path, found, fix, index=row, verb=verb))

    def require_columns(self, names: Sequence[str], table: str) -> None:
        """Raise FileError unless a table names ids and texts, once; `table`: what has these columns."""
        if not (set(names) & set(ID_FIELDS) and set(names) & set(self.fields)):
            found = f"{table} {', '.join(map(repr, names[:8]))}"
            fix = f"expected {' or '.join(ID_FIELDS)}, and {' or '.join(self.fields)}"
            raise FileError(file_problem(self.path, f"{found}, {fix}"))
        twice = [name for name, count in Counter(names).items() if name and count > 1]
        if twice:
            fix = "give every column a name of its own"
            raise FileError(file_problem(self.path, f"{twice[0]!r} names several columns", fix))

    def row(self, row: Any, name: str) -> None:
        """One object with an id and a text, from any kind of file; `name`: such as `line 3`."""
        if not isinstance(row, dict):
            self.complain(name, described(row), "expected an object with an id and a caption")
            return
        id_field = next((field for field in ID_FIELDS if row.get(field) is not None), None)
        text_field = self.text_field(row)
        if id_field is None or text_field is None:
            needed = " or ".join(ID_FIELDS if id_field is None else self.fields)
            fields = ", ".join(map(repr, list(row)[:8])) or "nothing"
            self.complain(name, f"no {needed}, only {fields}", verb="has")
            return
        image_id = self.image_id(row[id_field], f"{name}: {id_field}")
        if image_id is None:
            return
        name = f"{name} (id {image_id!r}): {text_field}"
        value = row[text_field]
        if isinstance(value, str) and text_field in LIST_FIELDS:
            texts = read_written_list(value)
            if texts is None and is_written_list(value, whole=False):
                found = f"{name} begins like a list but cannot be read as one ({value[:40]!r})"
                self.complain(None, found, 'write a list of strings as JSON, ["...", "..."]', verb="")
                return
            value = value if texts is None else texts
        repeats = text_field == "references"  # rows that carry their image's whole list each
        self.add(image_id, value, name, repeats)

    def text_field(self, row: Container[str]) -> str | None:
        """The name of a row's text."""
        return next((name for name in self.fields if name in row), None)

    def image_id(self, value: Any, name: str) -> str | None:
        """The id as a string, or None with the problem noted."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a column of whole numbers with gaps becomes floats in pandas
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and not valid_unicode(value):
            self.complain(name, f"{value!a}, which is not UTF-8", "rename the image, and its id here")
            return None
        if isinstance(value, str) and value:
            return value
        found = "an empty string" if value == "" else described(value)
        self.complain(name, found, "expected a string or a whole number")
        return None

    def add(self, image_id: str, value: Any, name: str, repeats: bool = False) -> None:
        """A caption or a list of them. With `repeats`, the same list may come again and counts once."""
        values = value if isinstance(value, list) else [value]
        if not values:
            self.complain(name, "an empty list")
        if isinstance(value, str) and "references" in self.fields and is_written_list(value):
            self.complain(name, f"a list written as text ({value[:40]!r})", "write it as a list")
            return
        for j, text in enumerate(values):
            if not isinstance(text, str):
                item = f"{name}[{j}]" if isinstance(value, list) else name
                self.complain(item, described(text, none="null"), "expected a string")
                return
        if repeats and isinstance(value, list) and self._lists.setdefault(image_id, value) is not value:
            if self._lists[image_id] != value:
                self.complain(None, f"{name} differ from those given for this id before", verb="")
            return
        self.texts.rows.extend((image_id, text) for text in values)
