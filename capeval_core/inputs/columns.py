"""Columns: which values of a file's records are ids and which are texts.

Step two of reading a file. What the user names counts. Else names come from `columns.toml`, and two columns
that could hold the texts are refused, unless they agree. Which of several columns names the images is
decided by their values, when the file is joined with others (`collection`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from capeval_core.errors import (
    FileError,
    Problems,
    described,
    did_you_mean,
    file_error,
    noting,
    setting,
    warn,
    wrong_option,
)
from capeval_core.inputs import names
from capeval_core.inputs.files import EXTENSIONS, some_of, valid_unicode
from capeval_core.inputs.openers import read_records
from capeval_core.inputs.records import KEY, LOOKED_AT, VALUE, Record, Records
from capeval_core.inputs.samples import is_written_list, read_written_list
from capeval_core.options import Settings, option

_LONGEST_ID = 1_000
_MISSING = {"nan", "NaN", "None", "null", "NULL", "<NA>"}
"""What `str`, pandas and databases write for a missing value."""
_OPTION = {"caption": "caption_column", "references": "reference_column"}  # by role
_CHOSEN_COLUMNS = ("id_column", "caption_column", "reference_column", "rating_column", "system_column")
_LISTS = ("references", "captions")
_SEPARATORS = ("|||", " | ", "<sep>", "[SEP]", "###")
"""What people write between several texts in one cell."""
_WEAK_LEVEL = 2  # the list of names from which on a column may be anybody's text
_TRUE = ("true", "t", "yes", "y", "1", "1.0")
_ANSWERS = tuple(names.listed("answer"))
_SPEAKERS = frozenset(names.listed("answer", "speakers"))


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
        return [name.strip() for name in (self.split or "").split(",") if name.strip()]


@dataclass
class TextFile:
    """The texts of one file, and what its records call their images.

    columns: where the texts come from. texts, owners: each text and the index of its record. lists: records
    whose texts are one list. id_column: the one that was chosen when files were joined. label_column: the one
    by which results are grouped.
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
    _ids: dict[str, list[str | None]] = field(default_factory=dict)
    _written_lists: dict[str, bool] = field(default_factory=dict)

    @property
    def path(self) -> Any:
        """The file, as messages name it."""
        return self.records.path

    def ids(self, column: str) -> list[str | None]:
        """What each record calls its image in a column."""
        if column not in self._ids:
            self._ids[column] = [names.as_id(value_at(row, column)) for row in self.records.rows]
        return self._ids[column]

    @cached_property
    def id_columns(self) -> list[str]:
        """The columns that may name images, the best guess first."""
        if self.options.id_column is not None and has_path(self.records, self.options.id_column):
            return [self.options.id_column]
        return known_ids(self.records, self.columns) + self._like_files()

    def names_files(self, column: str) -> bool:
        """Whether most values of a column look like names of files."""
        values = [value_at(row, column) for row in islice(self.records.rows, LOOKED_AT)]
        values = [value for value in values if value is not None]
        return 2 * sum(map(_names_file, values)) > len(values)

    @property
    def _unknown(self) -> list[str]:
        """Columns whose names say nothing."""
        fields = [
            name for name in self.records.fields if name not in self.columns and name not in (KEY, VALUE)
        ]
        return [name for name in fields if not names.is_name(name, "id")]

    def _like_files(self) -> list[str]:
        """Columns of unknown names that hold names of files."""
        return [name for name in self._unknown if self.names_files(name)]

    @cached_property
    def unknown_ids(self) -> list[str]:
        """Columns of unknown names with another short text in each record, as ids are."""
        if self.options.id_column is not None:
            return []
        columns = []
        for name in self._unknown:
            if names.is_rating(name):
                continue
            values = [row.get(name) for row in self.records.rows]
            texts = {
                value for value in values if isinstance(value, str) and not re.search(r"\s", value.strip())
            }
            if len(texts) == len(values) and not self.names_files(name):
                columns.append(name)
        return columns

    def place(self, owner: int, column: str | None = None) -> str:
        """What messages call a record, with its id."""
        place = self.records.place(owner)
        for name in [column] if column else self.id_columns:
            image_id = self.ids(name)[owner]
            if image_id is not None and self.records.unit:
                return f"{place} (id {image_id!r})"
        return place

    def part(self, owner: int, part: str) -> str:
        """What messages call a part of a record."""
        return f"{self.place(owner)}: {_shown(part)}"

    def read_as(self) -> dict[str, Any]:
        """What was read, for results: the form, the columns, and those that were not read."""
        columns = [self.id_column, self.file_column, self.label_column, *self.columns]
        read = {column.partition(".")[0] for column in columns if column}
        split = [name for name in self.records.fields if names.is_name(name, "split") and self.options.splits]
        marks = [name for name in self.records.fields if names.is_name(name, "left_out")]
        fields = [name for name in self.records.fields if name not in {*read, *columns, *split, *marks}]
        return {
            "form": self.records.form,
            "id": _shown(self.id_column or "number of the record"),
            self.role: _shown(", ".join(self.columns)),
            "not_read": [name for name in fields if name not in (KEY, VALUE, "")],
        }

    def sentence(self) -> str:
        """What was read, in a line."""
        reading = self.read_as()
        shown = [f"id = {reading['id']}", f"{self.role} = {reading[self.role]}"]
        if self.file_column is not None and self.file_column != self.id_column:
            shown.append(f"file = {_shown(self.file_column)}")
        if self.label_column is not None:
            shown.append(f"group = {self.label_column}")
        not_read = reading["not_read"]
        rest = (
            f"; not read: {', '.join(not_read[:8])}{', ...' if len(not_read) > 8 else ''}" if not_read else ""
        )
        return f"{self.path}: {self.records.form}: {', '.join(shown)}{rest}"


def _shown(columns: str) -> str:
    return columns.replace(KEY, "key").replace(VALUE, "value")


def _names_file(value: Any) -> bool:
    """Whether a value looks like the name of a picture, video or sound."""
    if isinstance(value, (dict, list)):
        value = names.as_id(value)
    if not isinstance(value, str) or len(value) > _LONGEST_ID or "\n" in value:
        return False
    return PurePosixPath(value.partition("?")[0]).suffix.lower() in {
        *EXTENSIONS["image"],
        *EXTENSIONS["video"],
    }


def known_ids(records: Records, without: Sequence[str] = ()) -> list[str]:
    """The columns whose names are those of ids, best first; COCO's `id` is that of an annotation."""
    columns = [name for name in records.fields if names.is_name(name, "id") and name not in without]
    columns += _nested_ids(records, without)
    of_image = [
        name for name in columns if names.plain(name) in map(names.plain, names.listed("id", "image"))
    ]
    if of_image:
        numbers = names.listed("id", "number")
        columns = [name for name in columns if name not in numbers]
    columns = sorted(columns, key=lambda name: names.rank(name.rpartition(".")[2], "id"))
    return [KEY, *columns] if KEY in records.fields else columns


def _nested_ids(records: Records, without: Sequence[str]) -> list[str]:
    """Ids one level down, such as `doc.image_id` of lmms-eval's samples."""
    nested: dict[str, None] = {}
    for row in islice(records.rows, 100):
        for name, value in row.items():
            if isinstance(value, dict) and name not in without and not {"bytes", "path"} & value.keys():
                nested.update({f"{name}.{inner}": None for inner in value if names.is_name(inner, "id")})
    return list(nested)


# ---- values by path


def value_at(record: Any, path: str) -> Any:
    """The value of a record under a name, or under a path of names and numbers, or None."""
    if isinstance(record, dict) and path in record:
        return record[path]
    first, _, rest = path.partition(".")
    if isinstance(record, list) and first.isdigit() and int(first) < len(record):
        value = record[int(first)]
    elif isinstance(record, dict) and first in record and rest:
        value = record[first]
    else:
        return None
    return value_at(value, rest) if rest else value


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
    chosen = getattr(options, _OPTION[role])
    if chosen is not None:
        columns = chosen_columns(records, chosen)
        if columns:
            return [columns]
    if VALUE in records.fields:
        return [[VALUE]]
    fields = [name for name in records.fields if name != KEY]
    caption_column = options.caption_column
    for place, level in enumerate(names.levels(role)):
        groups: dict[str, list[str]] = {}
        for name in fields:
            if role == "references" and name == caption_column and caption_column is not None:
                continue  # the user says that it is the candidate
            base = names.plain(names.base_of(name))
            if names.plain(name) in level:
                groups.setdefault(name, []).append(name)
            elif base in level:
                groups.setdefault(f"{base} by number" if several else name, []).append(name)
        if groups:
            _unite_numbered(groups)
            # A title or a description may be anybody's: next to another text it is not taken for the caption.
            if role == "caption" and place >= _WEAK_LEVEL and _other_sentences(records, groups):
                raise no_text(records, role, options)
            check_agreement(records, role, list(groups.values()))
            return list(groups.values())
    if role == "references" and caption_column is not None and has_path(records, caption_column):
        return [[caption_column]]  # one name for both files, where the references have no other texts
    raise no_text(records, role, options)


def _unite_numbered(groups: dict[str, list[str]]) -> None:
    """Sort numbered columns; one without a number is the first of those that begin with 2."""
    for key in [key for key in groups if key.endswith(" by number")]:
        group = sorted(groups[key], key=names.number_of)
        base = key.removesuffix(" by number")
        if names.number_of(group[0]) > 1:
            for name in [name for name in groups if names.plain(name) == base]:
                group = [*groups.pop(name), *group]
        groups[key] = group


def _other_sentences(records: Records, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Columns of sentences whose names say nothing, next to those of the groups."""
    taken = {name for group in groups.values() for name in group}
    asked = {names.plain(name) for name in names.listed("answer", "questions")}
    others = [name for name in records.fields if name not in taken and names.plain(name) not in asked]
    others = [
        name for name in others if not names.is_name(name, "references") and not names.is_name(name, "id")
    ]
    return [name for name in others if _holds_sentences(records, name)]


def chosen_columns(records: Records, chosen: str) -> list[str]:
    """The columns that the user names: one, a path, or several with commas between them."""
    if has_path(records, chosen):
        return [chosen]
    parts = [part.strip() for part in chosen.split(",")]
    if len(parts) > 1 and all(has_path(records, part) for part in parts):
        return parts
    return []


def check_agreement(records: Records, role: str, groups: Sequence[Sequence[str]]) -> None:
    """Refuse groups of columns that hold different texts in a record."""
    if len(groups) < 2:
        return
    for index, row in enumerate(records.rows):
        values = {}
        for group in groups:
            texts = [text for name in group for text in _comparable(row.get(name))]
            if texts:
                values[",".join(group)] = texts
        differing = [name for name, texts in values.items() if texts != next(iter(values.values()))]
        if differing:
            first = next(iter(values))
            others = [name for name in values if name != first]
            which = "candidates" if role == "caption" else "references"
            problem = (
                f"has {' and '.join(map(repr, [first, *others]))}, which differ ({records.place(index)}): "
                f"which of them are the {which}?"
            )
            fix = " or ".join(setting(_OPTION[role], name) for name in [first, *others])
            raise file_error(records.path, problem, f"choose {fix}")


def _comparable(value: Any) -> list[str]:
    """The texts of a value, as far as comparing two columns needs them."""
    try:
        return [text.strip() for text in flat_texts(value) if text.strip()]
    except ValueError:
        return []


def no_text(records: Records, role: str, options: FileOptions) -> FileError:
    """The error about a file none of whose columns is known to hold the texts."""
    fields = [name for name in records.fields if name not in (KEY, "")]
    texts = [name for name in fields if _holds_sentences(records, name)]
    ids = [name for name in known_ids(records) if name != KEY]
    which = "captions" if role == "caption" else "references"
    parts = [f"has {some_of(fields)[:500]}: none of these is known to hold {which}"]
    if ids:
        parts.append(f"{some_of(ids)} may be the id")
    elif KEY not in records.fields and records.has_ids:
        parts.append("none the id")
    example = texts[0] if len(texts) == 1 else "NAME"
    fix = f"name the column with {setting(_OPTION[role], example)}"
    if not ids and KEY not in records.fields:
        fix = f"{fix}, and that of ids with {setting('id_column', 'NAME')}"
    if len(texts) > 1:
        fix = f"{fix}; texts are in {some_of(texts)}"
    return file_error(records.path, "; ".join(parts), fix)


def _holds_sentences(records: Records, name: str) -> bool:
    """Whether most values of a column are texts with blanks."""
    values = [row[name] for row in islice(records.rows, 100) if row.get(name) is not None]
    texts = [value for value in values if any(" " in text for text in _comparable(value))]
    return bool(texts) and len(texts) * 2 > len(values)


# ---- texts of a value


def flat_texts(value: Any) -> list[str]:
    """The texts of a value: itself, those of a list, the last answer of a conversation, the text of an
    object.

    Raises ValueError, with what it is, for what is not a text.
    """
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        if _is_conversation(value):
            return flat_texts(_last_answer(value))
        if _are_parts(value):
            return [_text_of_parts(value)]
        if value and all(_are_words(inner) for inner in value):
            return [" ".join(inner) for inner in value]
        return [text for inner in value for text in flat_texts(inner)]
    if isinstance(value, dict):
        for name in _ANSWERS:
            inner = value.get(name)
            if inner is None:
                continue
            if name == "parts" and isinstance(inner, list):
                return [_text_of_parts(inner)]
            if name in ("tokens", "words") and _are_words(inner):
                return [" ".join(inner)]
            return flat_texts(inner)
    raise ValueError(described(value, none="null"))


def _is_conversation(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(turn, dict) and not _SPEAKERS.isdisjoint(turn) for turn in value)


def _last_answer(turns: list[dict[str, Any]]) -> Any:
    """The last turn of a conversation; ValueError where it is not the assistant's."""
    turn = turns[-1]
    speaker = next(turn[name] for name in turn if name in _SPEAKERS)
    if str(speaker).lower() not in names.listed("answer", "assistants"):
        raise ValueError(f"a conversation whose last turn is of {speaker!r}, not an answer")
    return {name: value for name, value in turn.items() if name not in _SPEAKERS}


def _are_parts(value: list[Any]) -> bool:
    """Whether a list holds the parts of one message, `{"type": "text", "text": ...}`."""
    return bool(value) and all(isinstance(part, dict) and "type" in part for part in value)


def _text_of_parts(parts: list[Any]) -> str:
    """The text of a message in parts, without its thoughts; ValueError where no part holds a text."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and not part.get("thought") and part.get("type") != "reasoning":
            for name in ("text", "content"):
                if part.get(name) is not None:
                    texts += flat_texts(part[name])
                    break
    if not texts:
        raise ValueError("a message without a text")
    return "".join(texts)


def _are_words(value: Any) -> bool:
    """Whether a value is a caption as a list of words."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(word, str) and is_word(word) for word in value)
    )


def is_word(text: str) -> bool:
    """Whether a text is a single word. Scripts without blanks have short ones."""
    if not text or len(text) > 30 or re.search(r"\s", text):
        return False
    return len(text) <= 4 or not re.search(r"[\u2e80-\u9fff\uac00-\ud7af\u0e00-\u0eff]", text)


# ---- reading


def read_texts(
    path: Any,
    role: str,
    problems: Problems,
    options: FileOptions | None = None,
    *,
    wide: bool = False,
    one_split: bool | None = None,
) -> TextFile:
    """The texts of a file of candidates (`caption`) or of `references`.

    wide: of pools, one row may hold all captions of an image. one_split: whether the user has to choose one
    where there are several, as of candidates. What is wrong with single records is noted as problems;
    FileError where the file cannot be read, or can be read in two ways.
    """
    options = options or FileOptions()
    noted_before = len(problems)
    chosen = (options.id_column, options.caption_column, options.reference_column)
    expected = [part for name in chosen if name for part in (name, *name.split(","), name.partition(".")[0])]
    records = read_records(path, role, problems, expected, wide=wide)
    splits = splits_of(records)
    one_split = role == "caption" if one_split is None else one_split
    selected, notes = select_records(records, splits, role, options, problems, one_split=one_split)
    if not selected.rows and len(problems) > noted_before:
        if records.fields:
            # Which column it would be is also wrong, perhaps.
            with noting(problems):
                text_groups(records, role, options, several=True)
        return TextFile(selected, role, options, [], splits=splits)
    records = selected
    if records.is_wide:
        header = records.fields
        file = TextFile(records, role, replace(options, id_column=header[0]), header[1:])
        _read_wide(file, problems)
    else:
        file = texts_of(records, role, options, problems, several=role == "references" or wide)
    file.splits = splits
    file.notes = [*records.notes, *notes, *file.notes]
    missing = [owner for owner, text in zip(file.owners, file.texts, strict=True) if text.strip() in _MISSING]
    if missing and records.is_table:
        # Tables are often written with a word for what is missing, which nobody wants to have scored.
        warn(
            f"{file.path}: {len(missing):,} of {len(file.texts):,} captions are a word for a missing value, "
            f"such as 'nan' ({file.place(missing[0])}), and are read: leave those rows out if there is none"
        )
    return file


def texts_of(
    records: Records, role: str, options: FileOptions, problems: Problems, *, several: bool
) -> TextFile:
    """The texts of records; several: whether numbered columns are read together. Raises FileError."""
    groups = text_groups(records, role, options, several=several)
    file = TextFile(records, role, options, [name for group in groups for name in group])
    _read_groups(file, groups, problems)
    return file


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
        indices = [i for i in indices if str(records.rows[i].get(split)) in options.splits]
        if not indices:
            problem = f"holds no captions of split {some_of(options.splits)}, only of {counted(counts)}"
            problems.add(file_error(records.path, problem))
    elif len(counts) > 1 and one_split:
        # Which images are missing depends on the choice.
        fix = setting("split", "test" if "test" in counts else next(iter(counts)), "choose with ")
        problems.add(file_error(records.path, f"holds the splits {counted(counts)}", fix))
        indices = []
    for mark in [name for name in records.fields if role == "references" and names.is_name(name, "left_out")]:
        marked = [i for i in indices if str(records.rows[i].get(mark)).strip().lower() in _TRUE]
        if marked:
            are = "reference is" if len(marked) == 1 else "references are"
            notes.append(f"{len(marked):,} {are} left out, marked by {mark}")
            leaving = set(marked)
            indices = [i for i in indices if i not in leaving]
    if len(indices) == len(records.rows):
        return records, notes
    numbers = [records.numbers[i] for i in indices] if records.unit else ()
    return replace(records, rows=[records.rows[i] for i in indices], numbers=numbers), notes


def split_column(records: Records) -> str | None:
    """The column that names the part of each record."""
    return next((name for name in records.fields if names.is_name(name, "split")), None)


def splits_of(records: Records) -> Counter[str]:
    """How many records each part has."""
    column = split_column(records)
    if column is None:
        return Counter()
    return Counter(str(row[column]) for row in records.rows if row.get(column) is not None)


def counted(splits: Counter[str]) -> str:
    """The splits of a file with the number of their records."""
    return ", ".join(f"{name!r} ({count:,})" for name, count in splits.items())


def _read_wide(file: TextFile, problems: Problems) -> None:
    """The captions of a table with one row per image and a column for each captioner."""
    id_column = file.records.fields[0]
    ids: set[str] = set()
    for index, row in enumerate(file.records.rows):
        image_id = str(row[id_column])
        if image_id in ids:
            problem = f"the id {image_id!r} comes twice, expected one row per image"
            problems.add(file.records.error(index, problem))
        ids.add(image_id)
        texts = [row[name] for name in file.columns if row[name].strip()]
        if not texts:
            problems.add(file_error(file.path, "has no captions", index=file.place(index, id_column)))
        for text in texts:
            with noting(problems):
                if is_written_list(text):
                    fix = 'write a list as JSON, ["...", "..."], in a column captions'
                    where = f"{file.place(index, id_column)}: its captions"
                    raise file_error(
                        file.path, f"is a list written as text ({text[:40]!r})", fix, index=where
                    )
                file.texts += _inner_texts(file, index, "its captions", text)
                file.owners.append(index)


def _read_groups(file: TextFile, groups: Sequence[Sequence[str]], problems: Problems) -> None:
    """The texts of each record, of the first group of columns that has some."""
    values: list[tuple[int, str, list[str], bool]] = []
    for index, row in enumerate(file.records.rows):
        with noting(problems):
            values.append((index, *_texts_of_record(file, index, row, groups)))
    joins = _lists_are_words(file, values)
    for index, _, texts, is_list in values:
        if is_list and joins:
            texts = [" ".join(texts)]
        if is_list:
            file.lists.add(index)
        file.texts.extend(texts)
        file.owners.extend([index] * len(texts))
    _check_joined(file)


def _check_joined(file: TextFile) -> None:
    """Refuse references with marks between several texts; note those that may be several texts."""
    if file.role != "references":
        return
    for separator in _SEPARATORS:
        joined = sum(separator in text.strip() for text in file.texts)
        if 2 * joined > len(file.texts):
            problem = f"has {separator!r} within {joined:,} of {len(file.texts):,} references"
            raise file_error(file.path, problem, 'write several references as a list, ["...", "..."]')
    several_lines = sum("\n" in text.strip() for text in file.texts)
    if several_lines:
        have = "reference has" if several_lines == 1 else "references have"
        file.notes.append(f"{several_lines:,} {have} several lines, and count as one text each")
    with_semicolon = sum("; " in text for text in file.texts)
    if 2 * with_semicolon > len(file.texts):
        file.notes.append(f"{with_semicolon:,} references hold a semicolon, and count as one text each")


def _texts_of_record(
    file: TextFile, index: int, row: Record, groups: Sequence[Sequence[str]]
) -> tuple[str, list[str], bool]:
    """The column, the texts of a record, and whether they are one list. Raises FileError."""
    column = groups[0][0]
    for group in groups:
        present = [name for name in group if value_at(row, name) is not None]
        if present and len(group) == 1:
            column = group[0]
            break
        # Of several columns some may be empty: not every image has as many captions.
        values = [value_at(row, name) for name in present]
        texts = [(name, value) for name, value in zip(present, values, strict=True) if not _is_blank(value)]
        if texts:
            listed = [text for name, value in texts for text in _texts_of_value(file, index, name, value)[0]]
            return texts[0][0], listed, True
    return (column, *_texts_of_value(file, index, column, value_at(row, column)))


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip()) or value != value


def _texts_of_value(file: TextFile, index: int, column: str, value: Any) -> tuple[list[str], bool]:
    """The texts of a value, and whether it was a list. Raises FileError."""
    is_list_column = names.plain(column.rpartition(".")[2]) in _LISTS
    may_be_list = is_list_column or column == getattr(file.options, _OPTION[file.role])
    if isinstance(value, str) and (may_be_list or file.role == "references" or is_written_list(value)):
        listed = read_written_list(value)
        if listed is not None and (may_be_list or _column_is_lists(file, column)):
            value = listed
    if isinstance(value, list) and not _is_one_text(value):
        if not value:
            raise file_error(file.path, "is an empty list", index=file.part(index, column))
        texts = []
        for number, inner in enumerate(value):
            # Within a list, a list of words is one of its texts.
            inner = [inner] if isinstance(inner, list) else inner
            texts += _inner_texts(file, index, f"{column}[{number}]", inner)
        return texts, True
    texts = _inner_texts(file, index, column, value)
    if isinstance(value, str):
        unread = may_be_list and is_written_list(value, whole=not is_list_column)
        if unread or (is_written_list(value) and (file.records.is_table or file.role == "references")):
            fix = 'write a list as JSON, ["...", "..."], in a table in a column captions'
            problem = f"is a list written as text ({value[:40]!r})"
            raise file_error(file.path, problem, fix, index=file.part(index, column))
    return texts, isinstance(value, dict) and len(texts) > 1


def _is_one_text(value: list[Any]) -> bool:
    """Whether a list is one text: a conversation, or the parts of a message."""
    return _is_conversation(value) or _are_parts(value)


def _inner_texts(file: TextFile, index: int, part: str, value: Any) -> list[str]:
    """The texts in a part of a record. Raises FileError."""
    try:
        texts = flat_texts(value)
    except ValueError as error:
        where = file.part(index, part)
        raise file_error(file.path, f"is {error}", "expected a caption", index=where) from None
    for text in texts:
        if not text.isascii() and not valid_unicode(text):
            problem = f"is not valid Unicode (a lone surrogate): {text[:40]!a}"
            raise file_error(file.path, problem, index=file.part(index, part))
    return texts


def _column_is_lists(file: TextFile, column: str) -> bool:
    """Whether every text of a column is a list of texts, as pandas writes lists."""
    if column not in file._written_lists:
        texts = [row[column] for row in file.records.rows if isinstance(row.get(column), str)]
        file._written_lists[column] = bool(texts) and all(map(_is_list_of_texts, texts))
    return file._written_lists[column]


def _is_list_of_texts(text: str) -> bool:
    listed = read_written_list(text)
    return bool(listed) and all(isinstance(inner, str) for inner in listed or [])


def _lists_are_words(file: TextFile, values: Sequence[tuple[int, str, list[str], bool]]) -> bool:
    """Whether all lists of a file are captions as lists of words; refused where that is not clear."""
    lists = [texts for _, _, texts, is_list in values if is_list]
    words = [word for texts in lists for word in texts]
    if not all(map(is_word, words)) or all(len(word) == 1 for word in words):
        return False
    longest = max(map(len, lists))
    named = all(names.plain(column) in ("tokens", "words") for _, column, _, is_list in values if is_list)
    if longest == 1:
        return False
    if longest == 2 and not named:
        problem = (
            f"holds lists of single words such as {lists[0]!r}: are they words of one caption, or captions?"
        )
        raise file_error(
            file.path, problem, "write a caption as one text, in a list where an image has several"
        )
    file.notes.append(
        f"{len(lists):,} lists of words are read as one text each, such as {' '.join(lists[0])[:60]!r}"
    )
    return True


def refuse_unused(options: FileOptions, read: Sequence[TextFile], problems: Problems) -> None:
    """Note columns and splits that the user names and none of the files has."""
    paths = " or ".join(str(file.path) for file in read)
    columns = dict.fromkeys(name for file in read for name in file.records.fields if name not in (KEY, VALUE))
    has_columns = f"the columns are {some_of(columns)}" if columns else "captions there have no columns"
    for name in _CHOSEN_COLUMNS:
        value = getattr(options, name, None)
        if value is None or any(chosen_columns(file.records, value) for file in read):
            continue
        found = f"is not a column of {paths}{did_you_mean(value, columns)}"
        problems.add(wrong_option(name, value, found, has_columns))
    splits = sum((file.splits for file in read), Counter[str]())
    has_splits = f"the splits are {counted(splits)}" if splits else "captions there have no splits"
    for value in options.splits:
        if value not in splits:
            problems.add(wrong_option("split", value, f"is not a split of {paths}", has_splits))
