"""Columns: which values of a file's records are ids and which are texts.

Step two of reading a file. What the user names counts. Else names come from `columns.toml`, and two columns
that could hold the texts are refused, unless they agree. Which of several columns names the images is
decided by their values, when the file is joined with others (`collection`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any

from capeval_core.errors import FileError, Problems, did_you_mean, file_error, setting, wrong_option
from capeval_core.inputs import names
from capeval_core.inputs.answers import texts_in
from capeval_core.inputs.files import EXTENSIONS, some_of
from capeval_core.inputs.records import KEY, LOOKED_AT, VALUE, Records
from capeval_core.options import Settings, option

_LONGEST_ID = 1_000  # characters; a longer text is not taken apart as a path
_WEAK_LEVEL = 2  # the list of names from which on a column may be anybody's text
COLUMN_OPTIONS = {
    "caption": "caption_column",
    "references": "reference_column",
    "objects": "reference_column",
}
"""The option that names the column of a role."""
_COLUMN_SETTINGS = ("id_column", "caption_column", "reference_column", "rating_column", "system_column")


@dataclass(frozen=True, kw_only=True)
class FileOptions(Settings):
    """What of the user's files is read."""

    id_column: str | None = option(
        None,
        "column or key of image ids, in the files that have it; None: of the usual names (image_id, image, "
        "file_name, id, ...) the one that names images",
    )
    caption_column: str | None = option(
        None, "column or key of captions, or a path such as response.body.choices.0; None: the usual names"
    )
    reference_column: str | None = option(
        None, "column or key of references, or several with commas; None: the usual names"
    )
    split: str | None = option(
        None, "parts of a file whose rows name theirs, e.g. test of Karpathy's JSON, or train,restval"
    )

    @property
    def splits(self) -> list[str]:
        """The parts to read; none: all."""
        names_of_splits = map(str.strip, (self.split or "").split(","))
        return list(filter(None, names_of_splits))


@dataclass
class TextFile:
    """The texts of one file, and what its records call their images.

    columns: where the texts come from. texts, owners: each text and the index of its record. lists: records
    whose texts are one list. id_column, file_column: those that were chosen when files were joined.
    label_column: the one by which results are grouped. holds_written_lists: by column, whether its cells are
    lists written as text; remembered.
    """

    records: Records
    role: str
    options: FileOptions
    columns: list[str]
    texts: list[str] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    lists: set[int] = field(default_factory=set)
    splits: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    id_column: str | None = None
    file_column: str | None = None
    label_column: str | None = None
    holds_written_lists: dict[str, bool] = field(default_factory=dict)
    _ids: dict[str, list[str | None]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file, as messages name it."""
        return self.records.path

    def ids(self, column: str) -> list[str | None]:
        """The name of its image that each record has in a column."""
        if column not in self._ids:
            self._ids[column] = [names.as_id(value_at(row, column)) for row in self.records.rows]
        return self._ids[column]

    @cached_property
    def id_columns(self) -> list[str]:
        """The columns that may name images, the best guess first."""
        if self.options.id_column is not None and has_path(self.records, self.options.id_column):
            return [self.options.id_column]
        columns = known_ids(self.records, self.columns)
        # A column of an unknown name, such as `slide`, shows by its values that it names pictures.
        columns += filter(self.names_files, self._columns_of_unknown_names())
        return columns

    @cached_property
    def unknown_ids(self) -> list[str]:
        """Columns of unknown names with another short text in each record, as ids are."""
        if self.options.id_column is not None:
            return []
        # These never join files by themselves. They are rivals: where all their values are images of the
        # folder, and other ones than the chosen column's, the user is asked.
        columns = []
        for name in self._columns_of_unknown_names():
            if self._is_another_word_each(name) and not self.names_files(name):
                columns.append(name)
        return columns

    def _columns_of_unknown_names(self) -> list[str]:
        columns = []
        for name in self.records.fields:
            is_known = name in self.columns or name in (KEY, VALUE) or names.is_name(name, "id")
            if not is_known:
                columns.append(name)
        return columns

    def _is_another_word_each(self, column: str) -> bool:
        """Whether each record has a text without blanks in a column, that no other record has."""
        words: set[str] = set()
        for row in self.records.rows:
            value = row.get(column)
            if not isinstance(value, str) or value in words or re.search(r"\s", value.strip()):
                return False
            words.add(value)
        return True

    def names_files(self, column: str) -> bool:
        """Whether most values of a column look like names of files."""
        value_count = 0
        file_count = 0
        for row in islice(self.records.rows, LOOKED_AT):
            value = value_at(row, column)
            if value is not None:
                value_count += 1
                file_count += _names_file(value)
        return 2 * file_count > value_count

    def place(self, owner: int, column: str | None = None) -> str:
        """What messages call a record, with its id."""
        place = self.records.place(owner)
        if not self.records.unit:
            return place
        for name in [column] if column else self.id_columns:
            image_id = self.ids(name)[owner]
            if image_id is not None:
                return f"{place} (id {image_id!r})"
        return place

    def part(self, owner: int, part: str) -> str:
        """What messages call a part of a record."""
        return f"{self.place(owner)}: {_in_words(part)}"

    def read_as(self) -> dict[str, Any]:
        """What was read, for results: the form, the columns, and those that were not read."""
        read = {KEY, VALUE, ""}
        for column in (self.id_column, self.file_column, self.label_column, *self.columns):
            if column:
                # Of a path such as `doc.image_id` the outermost name is the column of the file.
                read |= {column, column.partition(".")[0]}
        not_read = []
        for name in self.records.fields:
            is_split = names.is_name(name, "split") and bool(self.options.splits)
            if name not in read and not is_split and not names.is_name(name, "left_out"):
                not_read.append(name)
        return {
            "form": self.records.form,
            "id": _in_words(self.id_column or "number of the record"),
            self.role: _in_words(", ".join(self.columns)),
            "not_read": not_read,
        }

    def sentence(self) -> str:
        """What was read, in a line."""
        reading = self.read_as()
        columns = [f"id = {reading['id']}", f"{self.role} = {reading[self.role]}"]
        if self.file_column is not None and self.file_column != self.id_column:
            columns.append(f"file = {_in_words(self.file_column)}")
        if self.label_column is not None:
            columns.append(f"group = {self.label_column}")
        text = f"{self.path}: {self.records.form}: {', '.join(columns)}"
        not_read = reading["not_read"]
        if not_read:
            more = ", ..." if len(not_read) > 8 else ""
            text = f"{text}; not read: {', '.join(not_read[:8])}{more}"
        return text


def _in_words(columns: str) -> str:
    """Columns as messages name them."""
    return columns.replace(KEY, "key").replace(VALUE, "value")


def _names_file(value: object) -> bool:
    """Whether a value looks like the name of a picture or video."""
    name = names.as_id(value) if isinstance(value, (dict, list)) else value
    if not isinstance(name, str) or len(name) > _LONGEST_ID or "\n" in name:
        return False
    # Addresses count: of `https://host/42.jpg?size=1` only what is before the question mark is a name.
    extension = PurePosixPath(name.partition("?")[0]).suffix.lower()
    return extension in EXTENSIONS["image"] or extension in EXTENSIONS["video"]


def known_ids(records: Records, without: Sequence[str] = ()) -> list[str]:
    """The columns whose names are those of ids, best first; COCO's `id` is that of an annotation."""
    columns = [name for name in records.fields if names.is_name(name, "id") and name not in without]
    columns += _nested_ids(records, without)
    names_of_images = set(map(names.plain, names.listed("id", "image")))
    if not names_of_images.isdisjoint(map(names.plain, columns)):
        # Next to `image_id` a bare `id` numbers annotations, and could be equal to an image's by chance.
        numbers = names.listed("id", "number")
        columns = [name for name in columns if name not in numbers]
    columns.sort(key=lambda name: names.rank(name.rpartition(".")[2], "id"))
    return [KEY, *columns] if KEY in records.fields else columns


def _nested_ids(records: Records, without: Sequence[str]) -> list[str]:
    """Ids one level down, such as `doc.image_id` of lmms-eval's samples."""
    nested: list[str] = []
    for row in islice(records.rows, 100):
        for name, value in row.items():
            if not isinstance(value, dict) or name in without:
                continue
            # A picture of `datasets`, {"bytes", "path"}, is an id by itself (`names.as_id`).
            if "bytes" in value or "path" in value:
                continue
            for inner in value:
                path = f"{name}.{inner}"
                if names.is_name(inner, "id") and path not in nested:
                    nested.append(path)
    return nested


# ---- values by path


def value_at(record: object, path: str) -> Any:
    """The value of a record under a name, or under a path of names and numbers, or None."""
    # A name counts before a path: columns of pandas' `json_normalize` have dots in their names.
    if isinstance(record, dict) and path in record:
        return record[path]
    first, _, remainder = path.partition(".")
    if isinstance(record, list) and first.isdigit() and int(first) < len(record):
        value = record[int(first)]
        return value_at(value, remainder) if remainder else value
    if isinstance(record, dict) and first in record and remainder:
        return value_at(record[first], remainder)
    return None


def has_path(records: Records, path: str) -> bool:
    """Whether any record has a value under a name or path."""
    if path in records.fields:
        return True
    return "." in path and any(value_at(row, path) is not None for row in islice(records.rows, LOOKED_AT))


# ---- which columns hold the texts


def text_groups(records: Records, role: str, options: FileOptions, *, several: bool) -> list[list[str]]:
    """The columns of the texts: of several groups the first one that has a value counts, a group is read
    together.

    several: whether numbered columns are texts of one image, as references are. Raises FileError where no
    column is known, or two of them hold different texts.
    """
    user_column = getattr(options, COLUMN_OPTIONS[role])
    if user_column is not None:
        columns = chosen_columns(records, user_column)
        if columns:
            return [columns]
    if VALUE in records.fields:
        return [[VALUE]]
    fields = [name for name in records.fields if name != KEY]
    # References are not in the column that the user names for candidates, unless there is no other one.
    candidate_column = options.caption_column if role != "caption" else None
    if candidate_column in fields:
        fields.remove(candidate_column)
    for place, level in enumerate(names.levels(role)):
        groups = _groups_of_level(fields, level, several=several)
        if groups:
            # A title or a description may be anybody's: next to another text it is not taken for the caption.
            if role == "caption" and place >= _WEAK_LEVEL and _other_sentences(records, groups):
                raise no_text(records, role, options)
            check_agreement(records, role, groups)
            return groups
    if candidate_column is not None and has_path(records, candidate_column):
        return [[candidate_column]]
    raise no_text(records, role, options)


def _groups_of_level(fields: Sequence[str], level: Sequence[str], *, several: bool) -> list[list[str]]:
    """The columns with names of one list; numbered ones of a name together, where several are read."""
    groups: dict[str, list[str]] = {}
    numbered: dict[str, list[str]] = {}
    for name in fields:
        base = names.plain(names.base_of(name))
        if names.plain(name) in level or (base in level and not several):
            groups[name] = [name]
        elif base in level:
            # The list is shared: a group is where its first column is.
            numbered[base] = groups.setdefault(f"{base} by number", [])
            numbered[base].append(name)
    for base, group in numbered.items():
        group.sort(key=names.number_of)
        if names.number_of(group[0]) > 1:
            # One without a number is the first of those that begin with 2: `caption, caption_2, caption_3`.
            for name in list(groups):
                if names.plain(name) == base:
                    group[:0] = groups.pop(name)
    return list(groups.values())


def _other_sentences(records: Records, groups: Sequence[Sequence[str]]) -> list[str]:
    """Columns of sentences whose names say nothing, next to those of the groups."""
    columns_of_texts = set(chain.from_iterable(groups))
    # The prompt that a model was asked with is not a rival of its answer.
    questions = set(map(names.plain, names.listed("answer", "questions")))
    columns = []
    for name in records.fields:
        has_role = (
            name in columns_of_texts
            or names.plain(name) in questions
            or names.is_name(name, "references")
            or names.is_name(name, "id")
        )
        if not has_role and _holds_sentences(records, name):
            columns.append(name)
    return columns


def chosen_columns(records: Records, setting_value: str) -> list[str]:
    """The columns that the user names: one, a path, or several with commas between them."""
    # First as it is: the name of one column may hold commas.
    if has_path(records, setting_value):
        return [setting_value]
    columns = list(map(str.strip, setting_value.split(",")))
    if len(columns) > 1 and all(has_path(records, name) for name in columns):
        return columns
    return []


def check_agreement(records: Records, role: str, groups: Sequence[Sequence[str]]) -> None:
    """Refuse groups of columns that hold different texts in a record."""
    if len(groups) < 2:
        return
    for index, row in enumerate(records.rows):
        texts_of_groups: dict[str, list[str]] = {}
        for group in groups:
            texts: list[str] = []
            for name in group:
                texts += _comparable(row.get(name))
            if texts:
                texts_of_groups[",".join(group)] = texts
        first_texts = next(iter(texts_of_groups.values()), [])
        if all(texts == first_texts for texts in texts_of_groups.values()):
            continue
        listed = " and ".join(map(repr, texts_of_groups))
        role_name = "candidates" if role == "caption" else role
        problem = f"has {listed}, which differ ({records.place(index)}): which of them are the {role_name}?"
        settings = [setting(COLUMN_OPTIONS[role], name) for name in texts_of_groups]
        raise file_error(records.path, problem, f"choose {' or '.join(settings)}")


def _comparable(value: object) -> list[str]:
    """The texts of a value, as far as comparing two columns needs them."""
    # What is not a text is noted when the chosen column is read, with its record.
    try:
        texts = texts_in(value)
    except ValueError:
        return []
    return list(filter(None, map(str.strip, texts)))


def no_text(records: Records, role: str, options: FileOptions) -> FileError:
    """The error about a file none of whose columns is known to hold the texts."""
    fields = [name for name in records.fields if name not in (KEY, "")]
    sentences = []
    for name in fields:
        if _holds_sentences(records, name):
            sentences.append(name)
    ids = [name for name in known_ids(records) if name != KEY]
    texts = "captions" if role == "caption" else role
    problem = f"has {some_of(fields)[:500]}: none of these is known to hold {texts}"
    if ids:
        problem = f"{problem}; {some_of(ids)} may be the id"
    elif KEY not in records.fields and records.has_ids:
        problem = f"{problem}; none the id"
    example = sentences[0] if len(sentences) == 1 else "NAME"
    fix = f"name the column with {setting(COLUMN_OPTIONS[role], example)}"
    if not ids and KEY not in records.fields:
        fix = f"{fix}, and that of ids with {setting('id_column', 'NAME')}"
    if len(sentences) > 1:
        fix = f"{fix}; texts are in {some_of(sentences)}"
    return file_error(records.path, problem, fix)


def _holds_sentences(records: Records, column: str) -> bool:
    """Whether most values of a column are texts with blanks."""
    value_count = 0
    sentence_count = 0
    for row in islice(records.rows, 100):
        if row.get(column) is not None:
            value_count += 1
            sentence_count += " " in "".join(_comparable(row[column]))
    return 2 * sentence_count > value_count


# ---- which records count


def select_records(
    records: Records,
    counts: Counter[str],
    role: str,
    options: FileOptions,
    problems: Problems,
    *,
    one_split: bool,
) -> tuple[Records, list[str]]:
    """The records of the chosen splits, without references that are marked as none, and notes on them."""
    notes: list[str] = []
    indices: Sequence[int] = range(len(records.rows))
    split = split_column(records)
    if options.splits and split is not None:
        splits = options.splits
        indices = [index for index, row in enumerate(records.rows) if str(row.get(split)) in splits]
        if not indices:
            problem = f"holds no captions of split {some_of(options.splits)}, only of {counted(counts)}"
            problems.add(file_error(records.path, problem))
    elif len(counts) > 1 and one_split:
        # Which images are missing depends on the choice. Reading all of them would score a model on its
        # training images without a word.
        example = "test" if "test" in counts else next(iter(counts))
        fix = setting("split", example, "choose with ")
        problems.add(file_error(records.path, f"holds the splits {counted(counts)}", fix))
        indices = []
    if role != "caption":
        # VizWiz marks captions of pictures too bad to see anything, and those that its checks rejected:
        # neither describes the image.
        marks = [name for name in records.fields if names.is_name(name, "left_out")]
        for mark in marks:
            unmarked = [index for index in indices if not _is_true(records.rows[index].get(mark))]
            marked_count = len(indices) - len(unmarked)
            if marked_count:
                are = "reference is" if marked_count == 1 else "references are"
                notes.append(f"{marked_count:,} {are} left out, marked by {mark}")
                indices = unmarked
    if len(indices) == len(records.rows):
        return records, notes
    numbers = [records.numbers[index] for index in indices] if records.unit else ()
    rows = [records.rows[index] for index in indices]
    return replace(records, rows=rows, numbers=numbers), notes


def _is_true(value: object) -> bool:
    """Whether a mark is set; pandas writes 1.0 where another cell is missing."""
    return str(value).strip().lower() in ("true", "t", "yes", "y", "1", "1.0")


def split_column(records: Records) -> str | None:
    """The column that names the part of each record."""
    for name in records.fields:
        if names.is_name(name, "split"):
            return name
    return None


def splits_of(records: Records) -> Counter[str]:
    """The number of records of each part."""
    column = split_column(records)
    counts: Counter[str] = Counter()
    if column is not None:
        for row in records.rows:
            if row.get(column) is not None:
                counts[str(row[column])] += 1
    return counts


def counted(splits: Counter[str]) -> str:
    """The splits of a file with the number of their records."""
    return ", ".join(f"{name!r} ({count:,})" for name, count in splits.items())


def refuse_unused(options: FileOptions, read: Sequence[TextFile], problems: Problems) -> None:
    """Note columns and splits that the user names and none of the files has."""
    # An option that does nothing hides a misspelt name: the file would be read by the usual ones.
    paths = " or ".join(str(file.path) for file in read)
    fields: dict[str, None] = {}
    splits: Counter[str] = Counter()
    for file in read:
        fields.update(dict.fromkeys(file.records.fields))
        splits += file.splits
    # These are our names for what has none in the file.
    fields.pop(KEY, None)
    fields.pop(VALUE, None)
    columns_are = f"the columns are {some_of(fields)}" if fields else "captions there have no columns"
    for name in _COLUMN_SETTINGS:
        column = getattr(options, name, None)  # ratings and systems are options of correlate's files alone
        if column is not None and not any(chosen_columns(file.records, column) for file in read):
            problem = f"is not a column of {paths}{did_you_mean(column, fields)}"
            problems.add(wrong_option(name, column, problem, columns_are))
    splits_are = f"the splits are {counted(splits)}" if splits else "captions there have no splits"
    for split in options.splits:
        if split not in splits:
            problems.add(wrong_option("split", split, f"is not a split of {paths}", splits_are))
