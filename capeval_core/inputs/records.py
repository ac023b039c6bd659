"""Records: the content of a file that holds captions, as a list of objects with named values.

Step one of reading a file. Which file becomes which records is listed in `openers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, Problems, file_error
from capeval_core.inputs import names

Record = dict[str, Any]
KEY = "(key)"
"""Field of the key that an object has in its file, as the image id of `{image id: caption}`."""
VALUE = "(value)"
"""Field of the value under that key, where it is a text or a list."""
FILE_NAME = "file_name"
LOOKED_AT = 1_000
"""Records that tell the form of a file, or what a column holds."""


def all_are(kind: type | tuple[type, ...], values: Iterable[object]) -> bool:
    """Whether all values are of a type."""
    return all(isinstance(value, kind) for value in values)


@dataclass
class Records:
    """The records of a file, in its order.

    form: what was read, in words. unit, numbers: what messages call a record, such as `line 3`; without a
    unit it is called by its key. is_table: cells are texts, so that a list in one is written as a text.
    is_wide: no name of a column is known, the first one holds ids and the others captions. has_ids: records
    name images. names_files: they are annotations, whose `file_name` is that of the image.
    """

    path: Path
    form: str
    rows: list[Record]
    unit: str = ""
    numbers: Sequence[int] = ()
    is_table: bool = False
    is_wide: bool = False
    has_ids: bool = True
    names_files: bool = False
    notes: list[str] = field(default_factory=list)

    def place(self, index: int) -> str:
        """What messages call a record."""
        if not self.unit:
            return f"id {self.rows[index].get(KEY)!r}"
        return f"{self.unit} {self.numbers[index]}"

    def error(self, index: int, problem: str, fix: str = "", *, sentence: bool = False) -> FileError:
        """The error about a record."""
        return file_error(self.path, problem, fix, index=self.place(index), sentence=sentence)

    @cached_property
    def fields(self) -> list[str]:
        """Names of all values, in the order in which they come up."""
        union: dict[str, None] = {}
        for row in self.rows:
            # Most rows have the names of the one before: looking is faster than adding.
            if not row.keys() <= union.keys():
                union.update(dict.fromkeys(row))
        return list(union)


@dataclass
class TextSource:
    """A file that is being read, with what is wanted of it: all that its readers share.

    role: `caption`, `references`, `objects` or `rating`. problems: where wrong records are noted. expected:
    columns that the user names. wide: whether a table may have a column for each captioner.
    """

    path: Path
    role: str
    problems: Problems
    expected: frozenset[str] = frozenset()
    wide: bool = False

    def error(self, problem: str, fix: str = "", *, sentence: bool = False) -> FileError:
        """The error about the whole file."""
        return file_error(self.path, problem, fix, sentence=sentence)

    def note_problem(self, place: str, problem: str, fix: str = "", *, sentence: bool = False) -> None:
        """Note what is wrong with a part of the file, such as `line 3`."""
        self.problems.add(file_error(self.path, problem, fix, index=place, sentence=sentence))

    def check_names(self, columns: Sequence[str]) -> None:
        """Refuse a table with two columns of one name."""
        for name, count in Counter(columns).items():
            # Of equal names the last one would silently count. Empty ones are margins of a spreadsheet.
            if name and count > 1:
                problem = f"has {name!r} twice"
                raise file_error(self.path, problem, "name each column once", index="the header")

    # what the names of values say

    def has_name(self, fields: Iterable[str], role: str) -> bool:
        """Whether one of these names may have a role."""
        return any(names.is_name(name, role) for name in fields)

    def has_text(self, fields: Iterable[str]) -> bool:
        """Whether one of these names may be that of a text, or of a rating where ratings are read."""
        fields = list(fields)
        if not self.expected.isdisjoint(fields):
            return True
        if self.role == "rating" and any(map(names.is_rating, fields)):
            return True
        return self.has_name(fields, "caption") or self.has_name(fields, "references")

    def names_a_column(self, fields: Mapping[str, Any]) -> bool:
        """Whether one of these names may be that of a text or of an id."""
        return self.has_text(fields) or self.has_name(fields, "id")

    def is_record(self, value: object) -> bool:
        """Whether an object names an image and has a text, by the names of its values."""
        return isinstance(value, dict) and self.has_name(value, "id") and self.has_text(value)
