"""Ratings of captions by people, from any table that `inputs.records` reads.

A record is about a caption of an image, by its id, its text, or both, maybe of one of several systems. Its
rating is a number, a list of numbers, or a column for each annotator.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from capeval_core.errors import Problems, file_error, setting, warn
from capeval_core.inputs import names
from capeval_core.inputs.columns import (
    FileOptions,
    TextFile,
    chosen_columns,
    has_path,
    refuse_unused,
    select_records,
    splits_of,
    value_at,
)
from capeval_core.inputs.files import some_of
from capeval_core.inputs.links import best_column, fullest
from capeval_core.inputs.openers import read_records
from capeval_core.inputs.records import KEY, VALUE, Record, Records
from capeval_core.inputs.samples import read_written_list
from capeval_core.inputs.texts import texts_of
from capeval_core.judgements.correlation import Doubles
from capeval_core.judgements.protocols import RatedSet
from capeval_core.options import option

_CAPTION_LEVELS = 2  # further names, such as `comment`, are rather an annotator's remarks
_ROUNDING = 0.05  # of means that are written with one decimal


@dataclass(frozen=True, kw_only=True)
class RatingOptions(FileOptions):
    """Columns of the ratings."""

    rating_column: str | None = option(
        None,
        "column or key of ratings, or several with commas, of an annotator each, whose mean counts; None: "
        "the usual names (rating, human_score, mos, score, annotator_1, ...)",
    )
    system_column: str | None = option(
        None, "column or key of the systems that wrote the captions; None: the usual names (system, model)"
    )


@dataclass
class CaptionTable:
    """A table with numbers about captions: ratings by people, or scores.

    columns: of the numbers. file: the records, and the columns that may name images. captions, references,
    systems: of each record; None where the file has none. read: what was read besides, in words.
    """

    file: TextFile
    columns: list[str]
    captions: list[str | None]
    references: list[list[str]] | None
    systems: list[str] | None
    read: list[str]

    @property
    def path(self) -> str | os.PathLike[str]:
        """The file, as messages name it."""
        return self.file.path

    @property
    def rows(self) -> list[Record]:
        """The records."""
        return self.file.records.rows

    def place(self, index: int) -> str:
        """The name of a record in messages."""
        return self.file.records.place(index)

    def ids(self, find: Callable[[str], Sequence[str]] | None = None) -> list[str | None]:
        """The image id of each record.

        find: the entries of scores, or of a folder, that an id can mean; the column is chosen by it. Raises
        FileError where there is no column of ids, or two name different images.
        """
        columns = self.file.id_columns
        if not columns:
            fields = some_of(name for name in self.file.records.fields if name != VALUE) or "no names"
            fix = f"name the column of image ids with {setting('id_column', 'NAME')}"
            raise file_error(self.path, f"has no ids ({self.file.records.form}: {fields})", fix)
        column = None
        if find is not None:
            problems = Problems()
            column = best_column(self.file, columns, lambda name: tuple(find(name)), problems)
            problems.raise_if_any()
        self.file.id_column = column or fullest(self.file, columns)
        return self.file.ids(self.file.id_column)

    def sentence(self, numbers_are: str) -> str:
        """A line about the columns that were read."""
        columns = [f"{numbers_are} = {', '.join(self.columns)}".replace(VALUE, "value"), *self.read]
        if self.file.id_column is not None:
            columns.insert(0, f"id = {self.file.id_column}".replace(KEY, "key"))
        used = {*self.file.columns, self.file.id_column, KEY, VALUE, ""}
        fields = [name for name in self.file.records.fields if name not in used]
        unread = ""
        if fields:
            unread = f"; not read: {', '.join(fields[:8])}{', ...' if len(fields) > 8 else ''}"
        return f"{self.path}: {self.file.records.form}: {', '.join(columns)}{unread}"


@dataclass
class Ratings:
    """The ratings of a file: of each record those that are finite numbers.

    by_annotator: several columns are annotators, whose mean is the rating. dropped: what was left out, by
    reason.
    """

    table: CaptionTable
    values: list[Doubles]
    by_annotator: bool
    dropped: Counter[str]

    def sentence(self) -> str:
        """A line about the columns that were read."""
        return self.table.sentence("rating, the mean of annotators," if self.by_annotator else "rating")


def read_table(
    path: str | os.PathLike[str], options: RatingOptions, columns_of: Callable[[Records], Sequence[str]]
) -> CaptionTable:
    """A table of numbers about captions, in the columns that `columns_of` chooses. Raises FileError."""
    problems = Problems()
    # A name with a comma or a dot may be a column as it is, or several, or a path into objects.
    expected: list[str] = []
    for option_name in options.describe():
        column = getattr(options, option_name) if option_name.endswith("_column") else None
        if column:
            expected += [column, *column.split(","), column.partition(".")[0]]
    records = read_records(path, "rating", problems, expected)
    splits = splits_of(records)
    records, notes = select_records(records, splits, "caption", options, problems, one_split=False)
    problems.raise_if_any()
    columns = list(columns_of(records))
    # Ratings 1 to 5 would pass for the ids of images 1 to 5, also those in a table with the mean as well.
    used = list(columns)
    for name in records.fields:
        if names.annotators_of(name) is not None and name not in used:
            used.append(name)
    read: list[str] = []
    captions: list[str | None] = [None] * len(records.rows)
    text_columns, texts = _texts(records, "caption", options, problems, used)
    for index, texts_of_record in texts.items():
        if len(texts_of_record) > 1:
            problem = f"has {len(texts_of_record)} captions"
            problems.add(records.error(index, problem, "write a record for each caption"))
        captions[index] = texts_of_record[0]
    if text_columns:
        used += text_columns
        read.append(f"caption = {', '.join(text_columns)}")
    references: list[list[str]] | None = None
    reference_columns, texts = _texts(records, "references", options, problems, used)
    if reference_columns:
        references = [texts.get(index, []) for index in range(len(records.rows))]
        used += reference_columns
        read.append(f"references = {', '.join(reference_columns)}")
    systems: list[str] | None = None
    system_column = _system_column(records, options)
    if system_column is not None:
        systems = []
        for index in range(len(records.rows)):
            systems.append(_system_of(records, index, system_column, problems))
        used.append(system_column)
        read.append(f"system = {system_column}")
    problems.raise_if_any()
    file = TextFile(records, "caption", options, used, owners=list(range(len(records.rows))))
    file.splits = splits
    file.notes = [*records.notes, *notes]
    return CaptionTable(file, columns, captions, references, systems, read)


def read_ratings(path: str | os.PathLike[str], options: RatingOptions | None = None) -> Ratings:
    """The ratings of a file.

    Raises FileError where no column is known to hold ratings, two columns hold different ones, a record is
    wrong, or the file lacks a column that the user names.
    """
    options = options or RatingOptions()
    table = read_table(path, options, lambda records: _rating_columns(records, options))
    problems = Problems()
    refuse_unused(options, [table.file], problems)
    problems.raise_if_any()
    are_named = options.rating_column is not None
    by_annotator = len(table.columns) > 1 and (are_named or _is_of_annotator(table.columns[0]))
    dropped: Counter[str] = Counter()
    values = []
    for row in table.rows:
        values.append(_values_of(row, table.columns, dropped, by_annotator=by_annotator))
    return Ratings(table, values, by_annotator, dropped)


# columns of ratings


def _rating_columns(records: Records, options: RatingOptions) -> list[str]:
    """The columns of ratings: one, those of annotators, or several that agree. Raises FileError."""
    if options.rating_column is not None:
        columns = chosen_columns(records, options.rating_column)
        if columns:
            return columns
        # The one refusal of names that a file does not have, with the names that it has.
        problems = Problems()
        refuse_unused(options, [TextFile(records, "caption", options, [])], problems)
        raise problems.error()
    if VALUE in records.fields:
        return [VALUE]
    groups = _rating_groups(records)
    if not groups:
        fields = [name for name in records.fields if name not in (KEY, "")]
        numeric = []
        for name in fields:
            if holds_numbers(records, name) and not names.is_name(name, "id"):
                numeric.append(name)
        # No guess, even where one column alone has numbers: it may as well be a metric's score.
        example = ",".join(numeric) if numeric else "NAME"
        fix = f"name the column, or the columns of annotators, with {setting('rating_column', example)}"
        raise file_error(
            records.path, f"has {some_of(fields)[:500]}: none of these is known to hold ratings", fix
        )
    _check_agreement(records, groups)
    # Those that agree are one rating, of the first that a record has.
    alone: list[str] = []
    for group in groups:
        if len(group) == 1:
            alone += group
    # A mean that the file has already is what its authors published, rather than one of ours.
    return alone or groups[0]


def _rating_groups(records: Records) -> list[list[str]]:
    """The columns that may hold the ratings; those of annotators are a group."""
    fields = [name for name in records.fields if name != KEY]
    families: dict[str, list[str]] = {}
    for name in fields:
        family = names.annotators_of(name)
        if family is not None:
            families.setdefault(family, []).append(name)
    for level in names.levels("rating"):
        groups = [[name] for name in fields if names.plain(name) in level]
        if groups:
            # One column such as `score_1` beside `rating` is no family: it may number anything.
            for columns in families.values():
                if len(columns) > 1:
                    groups.append(columns)
            return groups
    return list(families.values())


def _is_of_annotator(name: str) -> bool:
    """True for a column that holds the ratings of one annotator, by its name."""
    usual_names = set().union(*names.levels("rating"))
    return names.plain(name) not in usual_names


def _check_agreement(records: Records, groups: Sequence[Sequence[str]]) -> None:
    """Refuse columns that hold different ratings in a record."""
    if len(groups) < 2:
        return
    for index, row in enumerate(records.rows):
        means = {}
        for group in groups:
            values = _values_of(row, group, Counter(), by_annotator=len(group) > 1)
            if len(values):
                means[",".join(group)] = float(np.mean(values))
        first = next(iter(means.values()), math.nan)
        # 1e-9: 3.7 - 3.65 is above 0.05 in float64 by its last bits.
        columns: list[str] = []
        for name, mean in means.items():
            if not columns or abs(mean - first) > _ROUNDING + 1e-9:
                columns.append(name)  # the first one, and those that differ from it
        if len(columns) > 1:
            problem = (
                f"has {' and '.join(map(repr, columns))}, which differ ({records.place(index)}): "
                "which of them are the ratings?"
            )
            fix = " or ".join(setting("rating_column", name) for name in columns)
            raise file_error(records.path, problem, f"choose {fix}")


def holds_numbers(records: Records, name: str) -> bool:
    """True where most values of a column are numbers."""
    filled = 0
    numeric = 0
    for row in islice(records.rows, 100):  # a kind is plain by then, of a file of any length
        value = row.get(name)
        if value not in (None, ""):
            filled += 1
            numeric += number_of(value) is not None
    return numeric * 2 > filled


# values


def number_of(value: object) -> float | None:
    """The finite number in a value, or in a text; None where there is none."""
    if isinstance(value, bool):  # float(True) is 1.0, but a flag is not a rating
        return None
    try:
        number = float(value)  # type: ignore[arg-type]  # a TypeError says that it is none
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def numbers(values: Iterable[object], name: str, dropped: Counter[str]) -> Doubles:
    """Ratings as numbers; those that are missing or not finite are NaN, and counted."""
    ratings = []
    for value in values:
        number = number_of(value)
        if number is None:
            missing = value is None or (isinstance(value, str) and not value.strip())
            dropped[f"{name} missing" if missing else f"{name} not a number"] += 1
        ratings.append(math.nan if number is None else number)
    return np.array(ratings, dtype=np.float64)


def _values_of(row: Record, columns: Sequence[str], dropped: Counter[str], *, by_annotator: bool) -> Doubles:
    """The finite ratings of a record: of annotators their mean, else those of the first column with some."""
    if by_annotator:
        values = numbers([value_at(row, name) for name in columns], "ratings", dropped)
        finite = values[np.isfinite(values)]
        # One rating of those annotators who gave one: rows of a caption must not count by their number.
        return finite.mean(keepdims=True) if len(finite) else finite
    value = None
    for name in columns:
        value = value_at(row, name)
        if value is not None:
            break
    # In CSV a list is a text, "[4, 5, 3]".
    if isinstance(value, str) and value.strip().startswith("["):
        value = read_written_list(value) or value
    values = numbers(value if isinstance(value, list) else [value], "ratings", dropped)
    return values[np.isfinite(values)]


def _texts(
    records: Records, role: str, options: RatingOptions, problems: Problems, without: Sequence[str]
) -> tuple[list[str], dict[int, list[str]]]:
    """The columns of captions or references, and the texts of the records that have some."""
    named = options.caption_column if role == "caption" else options.reference_column
    levels = names.levels(role)[: _CAPTION_LEVELS if role == "caption" else 1]
    usual_names = set().union(*levels)
    usual_columns = []
    for name in records.fields:
        if name not in without and names.plain(names.base_of(name)) in usual_names:
            usual_columns.append(name)
    if VALUE in records.fields or not (usual_columns or (named and has_path(records, named))):
        return [], {}
    columns = chosen_columns(records, named) if named else usual_columns
    indices = []  # of the records that have a text
    numbers_of_records = []  # lines or rows of the file, by which messages name records
    rows = []
    for index, row in enumerate(records.rows):
        if not _has_value(row, columns or usual_columns):
            continue
        indices.append(index)
        # Without the columns of numbers: `score` would be a text as well where no caption is named.
        rows.append({name: value for name, value in row.items() if name not in without})
        if records.unit:
            numbers_of_records.append(records.numbers[index])
    if not rows:
        return [], {}
    part = replace(records, rows=rows, numbers=numbers_of_records)
    file = texts_of(part, role, options, problems, several=role == "references")
    texts: dict[int, list[str]] = {}
    for owner, text in zip(file.owners, file.texts, strict=True):
        texts.setdefault(indices[owner], []).append(text)
    return file.columns, texts


def _has_value(row: Record, columns: Sequence[str]) -> bool:
    for name in columns:
        value = value_at(row, name)
        if value is not None and value == value:  # Parquet has NaN for missing texts
            return True
    return False


def _system_column(records: Records, options: RatingOptions) -> str | None:
    """The column of systems; two that name them differently are refused with the flag that chooses."""
    if options.system_column is not None:
        return options.system_column if has_path(records, options.system_column) else None
    columns = [name for name in records.fields if names.is_name(name, "system")]
    for name in columns[1:]:
        pairs = set()
        of_first = set()
        of_second = set()
        for row in records.rows:
            first = str(row.get(columns[0]))
            second = str(row.get(name))
            pairs.add((first, second))
            of_first.add(first)
            of_second.add(second)
        # `model` may be another spelling of `system`: then each name of the one has one name of the other.
        if len(pairs) > min(len(of_first), len(of_second)):
            fix = f"choose {setting('system_column', columns[0])} or {setting('system_column', name)}"
            problem = f"has {columns[0]!r} and {name!r}, which name different systems"
            raise file_error(records.path, problem, fix)
    return columns[0] if columns else None


def _system_of(records: Records, index: int, column: str, problems: Problems) -> str:
    """The system of a record; one without is a problem."""
    system = names.as_id(value_at(records.rows[index], column))
    if system is None:
        problems.add(records.error(index, f"has no {column}", "name its system"))
    return str(system).strip()


def warn_of_other_images(path: str | os.PathLike[str], judged: RatedSet) -> None:
    """Warn where systems are rated on different images, whose means compare different things."""
    images: dict[str, set[str]] = {}
    for system, image in zip(judged.systems or [], judged.clusters, strict=False):
        images.setdefault(system, set()).add(image)
    rated_by_any = set(judged.clusters)
    for rated_of_system in images.values():
        if rated_of_system != rated_by_any:
            warn(
                f"{path}: systems are rated on different images, so their means compare different images, too"
            )
            return
