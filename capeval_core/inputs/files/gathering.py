"""The texts of a file, gathered value by value, and what is wrong with them, told by place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capeval_core.inputs.problems import FileError, Problems, described
from capeval_core.inputs.texts import is_written_list, read_written_list, valid_unicode

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
    """Turns the values of a file into Texts and notes what is wrong with them.

    Args:
        path: the file, which begins every complaint.
        fields: the names under which a row's text may stand, the first that is there counts.
        problems: where complaints are noted.

    >>> problems = Problems()
    >>> gatherer = Gatherer(Path("c.json"), CANDIDATE_FIELDS, problems)
    >>> gatherer.row({"image_id": 42, "caption": "a dog"}, "entry 0")
    >>> gatherer.row({"image_id": 43, "text": "a cat"}, "entry 1")
    >>> gatherer.texts.rows, problems.shown
    ([('42', 'a dog')], ["c.json: entry 1 has no caption or captions, only 'image_id', 'text'"])
    """

    def __init__(self, path: Path, fields: Sequence[str], problems: Problems) -> None:
        self.path = path
        self.fields = fields
        self.problems = problems
        self.texts = Texts()
        self._lists: dict[str, list[str]] = {}

    def complain(self, message: str) -> None:
        self.problems.add(f"{self.path}: {message}", kind=FileError)

    def require_columns(self, names: Sequence[str], told: str) -> None:
        """Raise FileError unless a table names ids and texts, once; `told` begins: `the header has`."""
        if not (set(names) & set(ID_FIELDS) and set(names) & set(self.fields)):
            raise FileError(
                f"{self.path}: {told} {', '.join(map(repr, names[:8]))}, "
                f"expected {' or '.join(ID_FIELDS)}, and {' or '.join(self.fields)}"
            )
        twice = [name for name, count in Counter(names).items() if name and count > 1]
        if twice:
            raise FileError(
                f"{self.path}: {twice[0]!r} names several columns: give every column a name of its own"
            )

    def row(self, row: Any, place: str) -> None:
        """One object with an id and a text, from JSON, JSON lines, CSV or Parquet."""
        if not isinstance(row, dict):
            self.complain(f"{place} is {described(row)}: expected an object with an id and a caption")
            return
        id_field = next((name for name in ID_FIELDS if row.get(name) is not None), None)
        text_field = self.text_field(row)
        if id_field is None or text_field is None:
            needed = " or ".join(ID_FIELDS if id_field is None else self.fields)
            found = ", ".join(map(repr, list(row)[:8])) or "nothing"
            self.complain(f"{place} has no {needed}, only {found}")
            return
        image_id = self.image_id(row[id_field], f"{place}: {id_field}")
        if image_id is None:
            return
        place = f"{place} (id {image_id!r}): {text_field}"
        value = row[text_field]
        if isinstance(value, str) and text_field in LIST_FIELDS:
            found_list = read_written_list(value)
            if found_list is None and is_written_list(value, whole=False):
                self.complain(
                    f"{place} begins like a list but cannot be read as one ({value[:40]!r}): write a list of "
                    'strings as JSON, ["...", "..."]'
                )
                return
            value = value if found_list is None else found_list
        repeats = text_field == "references"  # rows that carry their image's whole list each
        self.add(image_id, value, place, repeats)

    def text_field(self, row: Container[str]) -> str | None:
        """The name under which a row's text stands."""
        return next((name for name in self.fields if name in row), None)

    def image_id(self, value: Any, place: str) -> str | None:
        """The id as a string, or None with the complaint noted."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a column of whole numbers with gaps becomes floats in pandas
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and not valid_unicode(value):
            self.complain(f"{place} is {value!a}, which is not UTF-8: rename the image, and its id here")
            return None
        if isinstance(value, str) and value:
            return value
        found = "an empty string" if value == "" else described(value)
        self.complain(f"{place} is {found}: expected a string or a whole number")
        return None

    def add(self, image_id: str, value: Any, place: str, repeats: bool = False) -> None:
        """A caption or a list of them. With `repeats`, the same list may come again and counts once."""
        values = value if isinstance(value, list) else [value]
        if not values:
            self.complain(f"{place} is an empty list")
        if isinstance(value, str) and "references" in self.fields and is_written_list(value):
            self.complain(f"{place} is a list written as text ({value[:40]!r}): write it as a list")
            return
        for j, text in enumerate(values):
            if not isinstance(text, str):
                item = f"{place}[{j}]" if isinstance(value, list) else place
                self.complain(f"{item} is {described(text, none='null')}: expected a string")
                return
        if repeats and isinstance(value, list) and self._lists.setdefault(image_id, value) is not value:
            if self._lists[image_id] != value:
                self.complain(f"{place} differ from those given for this id before")
            return
        self.texts.rows.extend((image_id, text) for text in values)
