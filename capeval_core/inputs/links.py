"""Links: the columns by which two files, or a file and a folder, name the same images.

The values of columns show which of them these are: those of which most are found on the other side. Two
columns that both are, and mean different images, are refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from capeval_core.errors import FileError, Problems, described, file_error, setting
from capeval_core.inputs import names
from capeval_core.inputs.columns import TextFile, split_column, value_at
from capeval_core.inputs.joining import Names, agreement, parts_of
from capeval_core.inputs.records import KEY


@dataclass
class Link:
    """The columns by which candidates and references are joined; None: record by record.

    texts: the references of each entry, an image by the best name that the references have for it.
    """

    candidates: TextFile
    references: TextFile
    candidate_column: str | None
    column: str | None
    texts: dict[str, list[str]] = field(default_factory=dict)
    _entries_of_name: dict[str, list[str]] = field(default_factory=dict)
    _owner_of_name: dict[str, int] = field(default_factory=dict)
    _split_of_entry: dict[str, str] = field(default_factory=dict)

    # the references of each image

    def collect(self, problems: Problems) -> None:
        """Put together the references of each image; a list that each of its records repeats counts once."""
        # COCO's form has a record per reference. A table of candidates and references in one file repeats the
        # whole list in each row of an image: added up, each reference would count as often.
        texts_of_records: defaultdict[int, list[str]] = defaultdict(list)
        for owner, text in zip(self.references.owners, self.references.texts, strict=True):
            texts_of_records[owner].append(text)
        lists: dict[str, list[str]] = {}
        entry_of_name: dict[str, str] = {}
        for owner, texts in texts_of_records.items():
            name = None if self.column is None else self._reference_names[owner]
            entry = self._entry(owner)
            if name is not None:
                entry = entry_of_name.setdefault(name, entry or "")
            if entry is None or (self.column is not None and name is None):
                problems.add(no_id(self.references, owner, str(self.column)))
                continue
            if owner in self.references.lists and self._is_repeated(lists, entry, owner, texts, problems):
                continue
            self._check_split(entry, owner)
            self.texts.setdefault(entry, []).extend(texts)
            if name is not None:
                self._owner_of_name.setdefault(name, owner)
                entries = self._entries_of_name.setdefault(name, [])
                if entry not in entries:
                    entries.append(entry)

    def _entry(self, owner: int) -> str | None:
        """The name that the references have for the image of a record."""
        if self.column is None:
            return str(owner + 1)
        return self.references.ids(self._entry_column)[owner]

    @cached_property
    def _entry_column(self) -> str:
        """The best column that names the same images as the one by which files are joined."""
        assert self.column is not None
        for column in self.references.id_columns:
            if are_pairs(self._reference_names, self.references.ids(column)):
                return column
        return self.column

    @property
    def _reference_names(self) -> list[str | None]:
        """The name of its image in each record of the references."""
        return self.references.ids(str(self.column))

    @property
    def _candidate_names(self) -> list[str | None]:
        """The name of its image in each record of the candidates."""
        return self.candidates.ids(str(self.candidate_column))

    def _is_repeated(
        self, lists: dict[str, list[str]], entry: str, owner: int, texts: list[str], problems: Problems
    ) -> bool:
        """Whether an image has this list of references already; note another one where rows carry lists."""
        first = lists.setdefault(entry, texts)
        if first is texts:
            return False
        if first == texts:
            return True
        if not self._rows_carry_lists:
            lists[entry] = texts
            return False
        place = f"{self.references.place(owner)}: {self.references.columns[0]}"
        problem = "differ from those given for this id before"
        problems.add(file_error(self.references.path, problem, index=place, sentence=True))
        return True

    @cached_property
    def _rows_carry_lists(self) -> bool:
        """Whether each row of an image may carry all its references, as a column of that name does."""
        columns = self.references.columns
        return bool(columns) and names.rank(columns[0], "references") < len(names.levels("references")[0])

    def _check_split(self, entry: str, owner: int) -> None:
        """Refuse an id in several parts of the file: which image is meant depends on the part."""
        file = self.references
        column = split_column(file.records)
        if column is None or len(file.splits) < 2 or file.options.splits:
            return
        split = str(file.records.rows[owner].get(column))
        first = self._split_of_entry.setdefault(entry, split)
        if first != split:
            problem = f"has the id {entry!r} in the splits {first!r} and {split!r}"
            raise file_error(file.path, problem, setting("split", split, "choose with "))

    # what ids of candidates mean

    def matches(self, ids: Sequence[str | None]) -> dict[str, list[str]]:
        """The entries that the id of each record of the candidates can mean."""
        entries_of_ids: dict[str, list[str]] = {}
        if self.column is None:
            for owner, image_id in enumerate(ids):
                if image_id is not None:
                    entries_of_ids[image_id] = [str(owner + 1)]
            return entries_of_ids
        find = cache(Names(self._entries_of_name).find)
        for image_id, name in zip(ids, self._candidate_names, strict=True):
            if image_id is None:
                continue
            entries = entries_of_ids.setdefault(image_id, [])
            for match in find(name) if name is not None else []:
                if self.is_elsewhere(name, self._owner_of_name[match]):
                    continue
                for entry in self._entries_of_name[match]:
                    if entry not in entries:
                        entries.append(entry)
        return entries_of_ids

    def records(self, ids: Sequence[str | None]) -> dict[str, Mapping[str, Any]]:
        """The first record of the references about the image of each id."""
        rows = self.references.records.rows
        records: dict[str, Mapping[str, Any]] = {}
        if self.column is None:
            for owner, image_id in enumerate(ids):
                if image_id is not None:
                    records[image_id] = rows[owner]
            return records
        owners = first_owners(self._reference_names)
        find = cache(Names(owners).find)
        for image_id, name in zip(ids, self._candidate_names, strict=True):
            matches = find(name) if name is not None else []
            if image_id is not None and len(matches) == 1:
                records[image_id] = rows[owners[matches[0]]]
        return records

    # names of files

    @cached_property
    def file_column(self) -> str | None:
        """The column of the references that names files."""
        order = list(map(names.plain, names.listed("id", "file")))
        columns = [name for name in self.references.records.fields if names.plain(name) in order]
        columns.sort(key=lambda name: order.index(names.plain(name)))
        for column in columns:
            # `image` and `video` may hold names of files or mere numbers: an extension tells.
            for value in islice(self.references.ids(column), 100):
                if value is not None and PurePosixPath(value).suffix:
                    return column
        return None

    def file_names(self, ids: Sequence[str | None]) -> dict[str, str]:
        """The file that the references name for the image of each id."""
        if self.column is None or self.file_column is None:
            return {}
        file_of_name: dict[str, str] = {}
        for name, file in zip(self._reference_names, self.references.ids(self.file_column), strict=True):
            if name is not None and file is not None:
                file_of_name.setdefault(name, file)
        find = cache(Names(file_of_name).find)
        files: dict[str, str] = {}
        for image_id, name in zip(ids, self._candidate_names, strict=True):
            matches = find(name) if name is not None else []
            # An ambiguous name is noted where the references are matched, not a second time.
            if image_id is not None and len(matches) == 1:
                files[image_id] = file_of_name[matches[0]]
        return files

    def is_elsewhere(self, name: str | None, owner: int) -> bool:
        """Whether the references name a file in another folder than a candidate does: it is another image."""
        # `train2014/42` is not `val2014/42.jpg`, though their numbers are equal. A name without a folder says
        # nothing about folders.
        if name is None or self.file_column is None or ("/" not in name and "\\" not in name):
            return False
        file = self.references.ids(self.file_column)[owner]
        return file is not None and agreement(parts_of(name).folders, parts_of(file).folders) is None


def first_owners(names_of_records: Sequence[str | None]) -> dict[str, int]:
    """The first record of each name."""
    owners: dict[str, int] = {}
    for owner, name in enumerate(names_of_records):
        if name is not None:
            owners.setdefault(name, owner)
    return owners


def are_pairs(first: Sequence[str | None], second: Sequence[str | None]) -> bool:
    """Whether each name of one column has one of another column, and the other way round."""
    pairs = set()
    first_names = set()
    second_names = set()
    for first_name, second_name in zip(first, second, strict=True):
        if first_name is not None and second_name is not None:
            pairs.add((first_name, second_name))
            first_names.add(first_name)
            second_names.add(second_name)
    # As many pairs as names on either side: a name with two partners would make one pair more.
    return len(pairs) == len(first_names) == len(second_names) > 0


def no_id(file: TextFile, owner: int, column: str) -> FileError:
    """The error about a record without an id."""
    value = value_at(file.records.rows[owner], column)
    problem = f"is {described(value, none='missing')}"
    fix = "expected a text or a whole number"
    if value == "":
        problem = "is empty"
    elif isinstance(value, str):
        problem = f"is {ascii(value)[:80]}, which is not UTF-8"
    elif isinstance(value, list) and len(value) > 1:
        fix = "a caption is scored with one image: write a record for each"
    return file_error(file.path, problem, fix, index=f"{file.records.place(owner)}: the id")


# ---- the columns of two files


class _Columns(NamedTuple):
    """A column of the candidates and one of the references."""

    candidates: str
    references: str


@dataclass
class _Fit:
    """The record of the references that each candidate finds, and how far their names are apart."""

    records: dict[int, int] = field(default_factory=dict)
    distances: dict[int, int] = field(default_factory=dict)


def best_link(candidates: TextFile, references: TextFile, problems: Problems) -> Link:
    """The two columns by which most candidates find a reference; others that contradict them are refused."""
    fits = _fits(candidates, references)
    if not fits:
        return Link(candidates, references, candidates.id_columns[0], references.id_columns[0])
    # Of equal counts the first, whose names are the better guess: columns are sorted by that.
    best = max(fits, key=lambda columns: len(fits[columns].records))
    for columns, fit in fits.items():
        # Running numbers meet some ids by chance; a column that is meant finds about as many as the best.
        if columns == best or 2 * len(fit.records) < len(fits[best].records):
            continue
        records = fit.records
        if columns.candidates == best.candidates:
            # Of one name the closest match counts: `9.jpg` is the file, not the image that has the number 9.
            records = _not_further(fit, fits[best])
        _refuse_rival(candidates, references, best, columns, fits[best].records, records, problems)
    return Link(candidates, references, best.candidates, best.references)


def _fits(candidates: TextFile, references: TextFile) -> dict[_Columns, _Fit]:
    """The records that candidates find by each two columns; of one file only by the same column."""
    link = Link(candidates, references, None, None)
    # Within one file `id` and `index` count the same rows: joined by both, each row would find another one.
    is_same_file = candidates.path == references.path
    owners_of_column = {}
    finders = {}
    for column in references.id_columns:
        owners = first_owners(references.ids(column))
        owners_of_column[column] = owners
        finders[column] = cache(Names(owners).find_closely)
    candidate_owners = list(dict.fromkeys(candidates.owners))
    fits: dict[_Columns, _Fit] = {}
    for candidate_column in candidates.id_columns:
        candidate_names = candidates.ids(candidate_column)
        for column, find in finders.items():
            if is_same_file and column != candidate_column:
                continue
            fit = fits.setdefault(_Columns(candidate_column, column), _Fit())
            for owner in candidate_owners:
                name = candidate_names[owner]
                if name is None:
                    continue
                matches, distance = find(name)
                if len(matches) == 1:
                    record = owners_of_column[column][matches[0]]
                    if not link.is_elsewhere(name, record):
                        fit.records[owner] = record
                        fit.distances[owner] = distance
    return fits


def _not_further(fit: _Fit, best: _Fit) -> dict[int, int]:
    """The records of a fit whose names are as close to the candidates' as those of the best one."""
    records = {}
    for owner, record in fit.records.items():
        distance = fit.distances[owner]
        if distance <= best.distances.get(owner, distance):
            records[owner] = record
    return records


def _refuse_rival(
    candidates: TextFile,
    references: TextFile,
    best: _Columns,
    rival: _Columns,
    records_of_best: Mapping[int, int],
    records_of_rival: Mapping[int, int],
    problems: Problems,
) -> None:
    """Refuse two pairs of columns that join candidates with different references."""
    reference_names = references.ids(best.references)
    for owner, record in records_of_rival.items():
        record_of_best = records_of_best.get(owner)
        if record_of_best is None or reference_names[record_of_best] == reference_names[record]:
            continue
        file = candidates
        columns = [best.candidates, rival.candidates]
        if best.candidates == rival.candidates:
            file = references
            columns = [best.references, rival.references]
        both = f"of {reference_names[record_of_best]!r} or of {reference_names[record]!r}"
        place = candidates.place(owner, best.candidates)
        listed = " and ".join(map(repr, columns))
        problem = f"{listed} name different images ({place} has the references {both})"
        settings = [setting("id_column", name) for name in columns]
        problems.add(file_error(file.path, problem, f"choose {' or '.join(settings)}", sentence=True))
        raise problems.error()


# ---- the column of a file and a folder


def best_column(
    file: TextFile, columns: Sequence[str], find: Callable[[str], tuple[str, ...]], problems: Problems
) -> str | None:
    """The column whose values name something in most records; note two that name different things."""
    owners = list(dict.fromkeys(file.owners))
    matches = {column: _matches(file, column, owners, find) for column in columns}
    best = max(columns, key=lambda column: len(matches[column]))
    # File names say which image is meant even where some files are missing; numbers of rows do not.
    columns_of_files = []
    for column in columns:
        if matches[column] and file.names_files(column):
            columns_of_files.append(column)
    if columns_of_files and not file.names_files(best):
        best = max(columns_of_files, key=lambda column: len(matches[column]))
    rivals = dict(matches)
    for column in file.unknown_ids:
        matches_of_column = _matches(file, column, owners, find)
        if owners and len(matches_of_column) == len(owners):
            rivals[column] = matches_of_column
    # None of the columns that may be ids names anything: one of an unknown name that always does is it.
    if not matches[best]:
        return next((column for column in rivals if column not in matches), None)
    for column, matches_of_rival in rivals.items():
        if column == best or 2 * len(matches_of_rival) < len(matches[best]):
            continue
        differing = []
        for owner, entries in matches_of_rival.items():
            if matches[best].get(owner, entries) != entries:
                differing.append(owner)
        if differing:
            examples = f"{matches[best][differing[0]][0]!r} and {matches_of_rival[differing[0]][0]!r}"
            rows = f"in {len(differing):,} rows, such as {examples}"
            problem = f"{best!r} and {column!r} name different images {rows}"
            settings = f"{setting('id_column', best)} or {setting('id_column', column)}"
            fix = f"choose the column of image ids with {settings}"
            problems.add(file_error(file.path, problem.replace(repr(KEY), "'key'"), fix, sentence=True))
            break
    return best


def _matches(
    file: TextFile, column: str, owners: Sequence[int], find: Callable[[str], tuple[str, ...]]
) -> dict[int, tuple[str, ...]]:
    """What the values of a column name, by record; without those that name nothing."""
    values = file.ids(column)
    matches: dict[int, tuple[str, ...]] = {}
    for owner in owners:
        value = values[owner]
        entries = find(value) if value is not None else ()
        if entries:
            matches[owner] = entries
    return matches


def fullest(file: TextFile, columns: Sequence[str]) -> str:
    """The column that has an id in most records, the first of those."""
    return min(columns, key=lambda column: file.ids(column).count(None))
