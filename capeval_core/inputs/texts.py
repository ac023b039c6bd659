"""Texts: the captions or references of a file, each with the record that it is from.

A value becomes texts by its form: a list of captions, a list of words, a list written as text, an answer of
a chat model. What is wrong with single records is noted; a form that has two readings is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from capeval_core.errors import Problems, file_error, noting, valid_unicode, warn
from capeval_core.inputs import names
from capeval_core.inputs.answers import is_one_text, is_single_word, texts_in
from capeval_core.inputs.columns import (
    COLUMN_OPTIONS,
    FileOptions,
    TextFile,
    select_records,
    splits_of,
    text_groups,
    value_at,
)
from capeval_core.inputs.openers import read_records
from capeval_core.inputs.records import Record, Records, all_are
from capeval_core.inputs.samples import is_written_list, read_written_list

_MISSING = {"nan", "NaN", "None", "null", "NULL", "<NA>"}
"""What `str`, pandas and databases write for a missing value."""
_LISTS = ("references", "captions", "objects")
"""Columns whose texts may be lists written as text."""
_SEPARATORS = ("|||", " | ", "<sep>", "[SEP]", "###")
"""What people write between several texts in one cell."""


def read_texts(
    path: str | os.PathLike[str],
    role: str,
    problems: Problems,
    options: FileOptions | None = None,
    *,
    wide: bool = False,
    one_split: bool | None = None,
    joins_words: bool = True,
    prepare: Callable[[Records], Records] | None = None,
) -> TextFile:
    """The texts of a file of candidates (`caption`), of `references` or of `objects`.

    joins_words: whether a list of single words may be one caption. prepare: what changes records before
    texts are looked for in them. wide: of pools, one row may hold all
    captions of an image. one_split: whether the user has to choose one where there are several, as of
    candidates. What is wrong with single records is noted as problems; FileError where the file cannot be
    read, or can be read in two ways.
    """
    options = options or FileOptions()
    problem_count = len(problems)  # the list is shared by all files of a collection
    everything = read_records(path, role, problems, _expected(options), wide=wide)
    if prepare is not None:
        everything = prepare(everything)
    splits = splits_of(everything)
    if one_split is None:
        one_split = role == "caption"
    records, notes = select_records(everything, splits, role, options, problems, one_split=one_split)
    if not records.rows and len(problems) > problem_count:
        if everything.fields:
            # Nothing is left to read; but the columns may be wrong as well, and are those of all records.
            records.fields = everything.fields
            with noting(problems):
                text_groups(everything, role, options, several=True)
        return TextFile(records, role, options, [], splits=splits)
    if records.is_wide:
        id_column, *columns = records.fields
        file = TextFile(records, role, replace(options, id_column=id_column), columns)
        _read_wide(file, problems)
    else:
        several = role != "caption" or wide
        file = texts_of(records, role, options, problems, several=several, joins_words=joins_words)
    file.splits = splits
    file.notes = [*records.notes, *notes, *file.notes]
    _warn_of_missing(file)
    return file


def _expected(options: FileOptions) -> list[str]:
    """The names of columns that the user gives, and the first parts of paths."""
    expected = []
    for name in (options.id_column, options.caption_column, options.reference_column):
        if name:
            expected += [name, *name.split(","), name.partition(".")[0]]
    return expected


def texts_of(
    records: Records,
    role: str,
    options: FileOptions,
    problems: Problems,
    *,
    several: bool,
    joins_words: bool = True,
) -> TextFile:
    """The texts of records; several: whether numbered columns are read together. Raises FileError."""
    groups = text_groups(records, role, options, several=several)
    file = TextFile(records, role, options, list(chain.from_iterable(groups)))
    _read_groups(file, groups, problems, joins_words=joins_words)
    return file


def _warn_of_missing(file: TextFile) -> None:
    """Warn of words for a missing value in a table, which nobody wants to have scored."""
    # In JSON a missing value is null, which is refused: there "nan" was written on purpose.
    if not file.records.is_table:
        return
    missing = []
    for owner, text in zip(file.owners, file.texts, strict=True):
        if text.strip() in _MISSING:
            missing.append(owner)
    if missing:
        warn(
            f"{file.path}: {len(missing):,} of {len(file.texts):,} captions are a word for a missing value, "
            f"such as 'nan' ({file.place(missing[0])}), and are read: leave those rows out if there is none"
        )


# ---- wide tables


def _read_wide(file: TextFile, problems: Problems) -> None:
    """The captions of a table with one row per image and a column for each captioner."""
    id_column = file.records.fields[0]
    ids: set[str] = set()
    for index, row in enumerate(file.records.rows):
        image_id = str(row[id_column])
        if image_id in ids:
            problem = f"the id {image_id!r} comes twice, expected one row per image"
            problems.add(file.records.error(index, problem, sentence=True))
        ids.add(image_id)
        # A captioner may have no caption for an image; an image without any is a mistake.
        cells = [row[name] for name in file.columns if row[name].strip()]
        place = file.place(index, id_column)
        if not cells:
            problems.add(file_error(file.path, "has no captions", index=place))
        for cell in cells:
            with noting(problems):
                if is_written_list(cell):
                    problem = f"is a list written as text ({cell[:40]!r})"
                    fix = 'write a list as JSON, ["...", "..."], in a column captions'
                    raise file_error(file.path, problem, fix, index=f"{place}: its captions")
                file.texts += _checked_texts(file, index, "its captions", cell)
                file.owners.append(index)


# ---- texts by column


class _RecordTexts(NamedTuple):
    """The texts of a record: the column that they are from, and whether they are one list."""

    owner: int
    column: str
    texts: list[str]
    is_list: bool


def _read_groups(
    file: TextFile, groups: Sequence[Sequence[str]], problems: Problems, *, joins_words: bool
) -> None:
    """The texts of each record, of the first group of columns that has some."""
    # All values first: whether a list of single words is one caption or several shows in the whole file.
    texts_of_records: list[_RecordTexts] = []
    for index, row in enumerate(file.records.rows):
        with noting(problems):
            texts_of_records.append(_texts_of_record(file, index, row, groups))
    lists_are_words = joins_words and _lists_are_words(file, texts_of_records)
    for record in texts_of_records:
        texts = record.texts
        if record.is_list:
            file.lists.add(record.owner)
            if lists_are_words:
                texts = [" ".join(texts)]
        file.texts.extend(texts)
        file.owners.extend([record.owner] * len(texts))
    if file.role != "caption":
        _check_joined(file)


def _texts_of_record(
    file: TextFile, index: int, row: Record, groups: Sequence[Sequence[str]]
) -> _RecordTexts:
    """The texts of a record, of the first group of columns that has some. Raises FileError."""
    column = groups[0][0]
    for group in groups:
        values = {name: value_at(row, name) for name in group}
        if len(group) == 1:
            if values[group[0]] is not None:
                column = group[0]
                break
            continue
        # Of several columns some may be empty: not every image has as many captions.
        filled = [name for name, value in values.items() if not _is_blank(value)]
        if filled:
            texts: list[str] = []
            for name in filled:
                texts += _texts_of_value(file, index, name, values[name])[0]
            return _RecordTexts(index, filled[0], texts, is_list=True)
    texts, is_list = _texts_of_value(file, index, column, value_at(row, column))
    return _RecordTexts(index, column, texts, is_list)


def _is_blank(value: object) -> bool:
    """Whether a cell holds nothing: None, blanks, or NaN."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or value != value  # only NaN differs from itself


def _texts_of_value(file: TextFile, index: int, column: str, value: object) -> tuple[list[str], bool]:
    """The texts of a value, and whether it was a list. Raises FileError."""
    is_list_column = names.plain(column.rpartition(".")[2]) in _LISTS
    may_be_list = is_list_column or column == getattr(file.options, COLUMN_OPTIONS[file.role])
    # A caption may begin with a bracket. It is a list where its column says so, or where each cell of the
    # column is one; where neither holds, the list is refused below, never scored with its brackets.
    written = value if isinstance(value, str) else None
    if written is not None and (may_be_list or file.role != "caption" or is_written_list(written)):
        texts_written = read_written_list(written)
        if texts_written is not None and (may_be_list or _column_is_lists(file, column)):
            value = texts_written
    if isinstance(value, list) and not is_one_text(value):
        return _texts_of_list(file, index, column, value), True
    texts = _checked_texts(file, index, column, value)
    if written is not None:
        is_unread_list = may_be_list and is_written_list(written, complete=not is_list_column)
        holds_lists = file.records.is_table or file.role != "caption"
        if is_unread_list or (holds_lists and is_written_list(written)):
            problem = f"is a list written as text ({written[:40]!r})"
            fix = 'write a list as JSON, ["...", "..."], in a table in a column captions'
            raise file_error(file.path, problem, fix, index=file.part(index, column))
    return texts, isinstance(value, dict) and len(texts) > 1


def _texts_of_list(file: TextFile, index: int, column: str, parts: Sequence[object]) -> list[str]:
    """The texts of a list. Raises FileError."""
    if not parts:
        raise file_error(file.path, "is an empty list", index=file.part(index, column))
    texts: list[str] = []
    for number, part in enumerate(parts):
        # Within a list, a list of words is one of its texts.
        part = [part] if isinstance(part, list) else part
        texts += _checked_texts(file, index, f"{column}[{number}]", part)
    return texts


def _checked_texts(file: TextFile, index: int, part: str, value: object) -> list[str]:
    """The texts in a part of a record. Raises FileError."""
    try:
        texts = texts_in(value)
    except ValueError as error:
        place = file.part(index, part)
        raise file_error(file.path, f"is {error}", "expected a caption", index=place) from None
    for text in texts:
        if not text.isascii() and not valid_unicode(text):
            problem = f"is not valid Unicode (a lone surrogate): {text[:40]!a}"
            raise file_error(file.path, problem, index=file.part(index, part))
    return texts


# ---- lists


def _column_is_lists(file: TextFile, column: str) -> bool:
    """Whether every text of a column is a list of texts, as pandas writes lists."""
    if column not in file.holds_written_lists:
        cells = []
        for row in file.records.rows:
            if isinstance(row.get(column), str):
                cells.append(row[column])
        file.holds_written_lists[column] = bool(cells) and all(map(_is_list_of_texts, cells))
    return file.holds_written_lists[column]


def _is_list_of_texts(cell: str) -> bool:
    texts = read_written_list(cell)
    return bool(texts) and all_are(str, texts or [])


def _lists_are_words(file: TextFile, texts_of_records: Sequence[_RecordTexts]) -> bool:
    """Whether all lists of a file are captions as lists of words; refused where that is not clear."""
    lists: list[list[str]] = []
    columns: set[str] = set()
    for record in texts_of_records:
        if record.is_list:
            lists.append(record.texts)
            columns.add(names.plain(record.column))
    words = set(chain.from_iterable(lists))
    if not all(map(is_single_word, words)) or all(len(word) == 1 for word in words):
        return False
    longest = max(map(len, lists))
    if longest == 1:
        return False
    first = lists[0]
    is_named = columns <= {"tokens", "words"}
    # Two words may be one caption (`a dog`) or two (`dog`, `cat`), and nothing in the file tells.
    if longest == 2 and not is_named:
        problem = (
            f"holds lists of single words such as {first!r}: are they words of one caption, or captions?"
        )
        fix = "write a caption as one text, in a list where an image has several"
        raise file_error(file.path, problem, fix)
    example = repr(" ".join(first)[:60])
    file.notes.append(f"{len(lists):,} lists of words are read as one text each, such as {example}")
    return True


def _check_joined(file: TextFile) -> None:
    """Refuse references with marks between several texts; note those that may be several texts."""
    for separator in _SEPARATORS:
        joined = sum(separator in text.strip() for text in file.texts)
        # In most of them it is a mark; in a few a caption may quote a sign with a bar.
        if 2 * joined > len(file.texts):
            problem = f"has {separator!r} within {joined:,} of {len(file.texts):,} {file.role}"
            fix = f'write several {file.role} as a list, ["...", "..."]'
            raise file_error(file.path, problem, fix)
    several_lines = sum("\n" in text.strip() for text in file.texts)
    if several_lines:
        have = "reference has" if several_lines == 1 else "references have"
        file.notes.append(f"{several_lines:,} {have} several lines, and count as one text each")
    with_semicolon = sum("; " in text for text in file.texts)
    if 2 * with_semicolon > len(file.texts):
        file.notes.append(f"{with_semicolon:,} references hold a semicolon, and count as one text each")
