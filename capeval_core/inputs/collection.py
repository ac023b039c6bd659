"""A collection: a file of candidates joined with a folder of images and with files of references.

Which column of a file names the images shows in its values: the one whose names are found on the other
side. Two columns that both do, and mean different images, are refused.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
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
)
from capeval_core.inputs import names
from capeval_core.inputs.columns import FileOptions, TextFile, has_path, refuse_unused, split_column, value_at
from capeval_core.inputs.files import some_of
from capeval_core.inputs.joining import Folder, Names, agreement, only_matches, parts_of
from capeval_core.inputs.openers import STANDARD_INPUT
from capeval_core.inputs.records import FILE_NAME, KEY, VALUE
from capeval_core.inputs.texts import read_texts

_Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Joined:
    """Rows of files, one entry per caption.

    entries: ids as the file of references writes them. read: how each file was read, by its path. notes:
    what is odd about them, and changes no number. rows: the record of each caption, for other columns.
    labels: by which results are grouped, "" where there is none; None: they are not.
    """

    ids: list[str]
    captions: list[str]
    images: Sequence[Any]
    references: list[list[str]] | None
    entries: list[str] | None = None
    read: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    labels: Sequence[str] | None = None


def read_collection(
    candidates: _Path,
    images: _Path | None,
    references: _Path | Sequence[_Path] | None = None,
    *,
    options: FileOptions | None = None,
    wide: bool = False,
    medium: str = "image",
    needs_references: bool = True,
    problems: Problems | None = None,
    absent_too: bool = False,
    group_by: str | None = None,
) -> Joined:
    """Join a file of candidates with a folder of images, or of videos, and files of references.

    references: one file, or one of each annotator, whose references are put together by id. needs_references:
    where no metric compares with them, the file only says which file an id is. wide: of pools. problems:
    where to note what is wrong with rows, left out then. group_by: column of labels, in the records of
    candidates or else of references. Raises FileError with all problems.
    """
    options = options or FileOptions()
    paths = _paths(references)
    if [os.fspath(path) for path in (candidates, *paths)].count(STANDARD_INPUT) > 1:
        raise file_error(
            "standard input", "cannot be both candidates and references", "name a file for one of them"
        )
    reader = _Collection(options, medium, Problems())
    # What is wrong with one of them is noted, so that the others are read as well.
    with noting(reader.problems):
        reader.candidates = read_texts(candidates, "caption", reader.problems, options, wide=wide)
    if images is not None:
        with noting(reader.problems):
            reader.folder = Folder(images, medium)
    for path in paths:
        with noting(reader.problems):
            reader.references.append(read_texts(path, "references", reader.problems, options))
    read = [file for file in (reader.candidates, *reader.references) if file is not None]
    if len(read) == 1 + len(paths):
        refuse_unused(options, read, reader.problems)
    is_read = len(read) == 1 + len(paths) and all(file.records.rows for file in read)
    if not is_read or (reader.folder is None) != (images is None):
        raise reader.problems.error()
    joined = reader.join(
        wide=wide, needs_references=needs_references, absent_too=absent_too, group_by=group_by
    )
    if problems is None:
        reader.problems.raise_if_any()
    else:
        problems.extend(reader.problems)
    return joined


def read_captions(path: _Path, folder: Folder | None, options: FileOptions) -> list[tuple[str, str, str]]:
    """The captions of images on which a metric is trained: id, name of its file in a folder, and text of
    each.

    They are written in the forms of references. Raises FileError with all problems.
    """
    reader = _Collection(options, "image", Problems(), folder=folder)
    file = read_texts(path, "references", reader.problems, options, one_split=True)
    refuse_unused(options, [file], reader.problems)
    reader.candidates = file
    reader.choose_ids(file, [])
    ids = reader.ids_of_candidates(file)
    reader.problems.raise_if_any()
    named = file.ids(file.file_column) if file.file_column is not None else ids
    rows = []
    for owner, text in zip(file.owners, file.texts, strict=True):
        image_id = str(ids[owner])
        rows.append((image_id, named[owner] or image_id, text))
    return rows


def _paths(references: _Path | Sequence[_Path] | None) -> list[_Path]:
    if references is None:
        return []
    return [references] if isinstance(references, (str, os.PathLike)) else list(references)


@dataclass
class _Collection:
    """The files of one collection, and what is wrong with them."""

    options: FileOptions
    medium: str
    problems: Problems
    candidates: Any = None
    folder: Folder | None = None
    references: list[TextFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def join(
        self, *, wide: bool, needs_references: bool, absent_too: bool, group_by: str | None = None
    ) -> Joined:
        candidates: TextFile = self.candidates
        links = [self.link(candidates, file) for file in self.references]
        self.choose_ids(candidates, links)
        ids = self.ids_of_candidates(candidates)
        matched = self.match_references(links, ids) if needs_references else []
        of_ids: dict[str, list[str]] = {}
        first: dict[str, str] = {}
        for link, entries in zip(links, matched, strict=False):
            for image_id, entry in entries.items():
                first.setdefault(image_id, entry)
                of_ids.setdefault(image_id, []).extend(link.texts[entry])
        paths: Mapping[str, Path | str] = {image_id: image_id for image_id in ids if image_id is not None}
        if self.folder is not None:
            paths = self.match_images(candidates, links, ids, absent_too=absent_too)
        has_references = bool(links) and needs_references
        two_names = _two_ids(candidates.path, paths, self.problems) or _two_ids(
            candidates.path, first, self.problems
        )
        rows = [
            (str(ids[owner]), text, owner)
            for owner, text in zip(candidates.owners, candidates.texts, strict=True)
            if ids[owner] is not None
        ]
        if not two_names and not self.problems:
            self.warn_of_repeats(rows, of_ids if has_references else {}, wide=wide)
            self.note_what_is_odd(links if has_references else [], matched, rows, of_ids)
        complete = [row for row in rows if row[0] in paths and (not has_references or row[0] in first)]
        read = [candidates, *self.references]
        labels = None if group_by is None else self.labels(group_by, links, ids, complete)
        return Joined(
            ids=[image_id for image_id, _, _ in complete],
            captions=[text for _, text, _ in complete],
            images=[paths[image_id] for image_id, _, _ in complete],
            references=[of_ids[image_id] for image_id, _, _ in complete] if has_references else None,
            entries=[first[image_id] for image_id, _, _ in complete] if has_references else None,
            read={str(file.path): file.read_as() for file in read},
            notes=[
                *(file.sentence() for file in read),
                *(f"{file.path}: {note}" for file in read for note in file.notes),
                *self.notes,
            ],
            rows=[candidates.records.rows[owner] for _, _, owner in complete],
            labels=labels,
        )

    def labels(
        self,
        column: str,
        links: Sequence[_Link],
        ids: Sequence[str | None],
        rows: Sequence[tuple[str, str, int]],
    ) -> list[str]:
        """The label of each row, (id, text, record), in a column of the candidates, or else of references."""
        records = self.candidates.records
        if has_path(records, column):
            self.candidates.label_column = column
            return [_label(value_at(records.rows[owner], column)) for _, _, owner in rows]
        for link in links:
            if has_path(link.references.records, column):
                link.references.label_column = column
                found = link.records(ids)
                return [_label(value_at(found.get(image_id), column)) for image_id, _, _ in rows]
        fields = [
            name for file in (records, *(link.references.records for link in links)) for name in file.fields
        ]
        known = [name for name in dict.fromkeys(fields) if name not in (KEY, VALUE)]
        listed = f"; there are {some_of(known)}" if known else ""
        raise file_error(records.path, f"has no column {column!r}{did_you_mean(column, known)}{listed}")

    # candidates and references

    def link(self, candidates: TextFile, references: TextFile) -> _Link:
        """How candidates and references name the same images: by line, or by the columns that fit best."""
        same_file = candidates.path == references.path
        if not candidates.id_columns and not references.id_columns:
            return self.link_by_line(candidates, references)
        if not references.id_columns or not candidates.id_columns:
            without = references if candidates.id_columns else candidates
            raise file_error(without.path, f"has no ids: {without.records.form}", _id_fix(without))
        link = _best_link(candidates, references, self.problems, same_file)
        references.id_column = link.column
        return link

    def link_by_line(self, candidates: TextFile, references: TextFile) -> _Link:
        """Records of two files without ids, one after the other, where both have as many."""
        lengths = len(candidates.records.rows), len(references.records.rows)
        if lengths[0] != lengths[1]:
            problem = f"has {lengths[1]:,} records without ids, {candidates.path} has {lengths[0]:,}"
            raise file_error(
                references.path, problem, "write an id beside each text, such as image_id,caption"
            )
        if self.folder is not None:
            raise file_error(candidates.path, f"has no ids: {candidates.records.form}", _id_fix(candidates))
        return _Link(candidates, references, None, None)

    def choose_ids(self, candidates: TextFile, links: Sequence[_Link]) -> None:
        """Choose the column of the candidates whose values are the ids of rows."""
        columns = candidates.id_columns
        if self.folder is not None and columns:
            best = self.file_column_of(candidates, columns)
            if best is not None:
                candidates.file_column = best
                candidates.id_column = best if not links else links[0].candidate_column
                self.shown_as_ids(candidates)
                return
        if links:
            candidates.id_column = links[0].candidate_column
        elif columns:
            candidates.id_column = fullest(candidates, columns)

    def file_column_of(self, candidates: TextFile, columns: Sequence[str]) -> str | None:
        """The column whose values name files of the folder; of annotations that name files only that one."""
        assert self.folder is not None
        finder = cache(self.folder.find)

        def find(name: str) -> tuple[str, ...]:
            return tuple(sorted(finder(name)))

        if candidates.records.names_files:
            column = best_column(candidates, [FILE_NAME], find, self.problems)
            if column is not None:
                return column
        return best_column(candidates, columns, find, self.problems)

    def shown_as_ids(self, candidates: TextFile) -> None:
        """Let the first column be the ids of rows, where its values and files are pairs."""
        file_column = str(candidates.file_column)
        known = [name for name in candidates.id_columns if name != file_column]
        for column in known[:1] if candidates.id_column == file_column else []:
            pairs = {
                (image_id, name)
                for image_id, name in zip(candidates.ids(column), candidates.ids(file_column), strict=True)
                if image_id is not None and name is not None
            }
            counts = len({image_id for image_id, _ in pairs}), len({name for _, name in pairs})
            if counts[0] == counts[1] == len(pairs) == len({*candidates.ids(file_column)} - {None}):
                candidates.id_column = column

    def ids_of_candidates(self, candidates: TextFile) -> list[str | None]:
        """The id of each record; note records without one."""
        if candidates.id_column is None:
            if candidates.id_columns or self.references:
                return [str(number) for number in range(1, len(candidates.records.rows) + 1)]
            self.problems.add(
                file_error(candidates.path, f"has no ids: {candidates.records.form}", _id_fix(candidates))
            )
            return [None] * len(candidates.records.rows)
        ids = candidates.ids(candidates.id_column)
        for owner in dict.fromkeys(candidates.owners):
            if ids[owner] is None:
                self.problems.add(_no_id(candidates, owner, candidates.id_column))
        return ids

    def match_references(self, links: Sequence[_Link], ids: Sequence[str | None]) -> list[dict[str, str]]:
        """The entry of each file of references that each id means; note ids that have none in any file."""
        meant_of_files = []
        for link in links:
            link.collect(self.problems)
            meant_of_files.append(link.matches(ids))
        matched = []
        for link, meant in zip(links, meant_of_files, strict=True):
            # An annotator may have left out images that others have described.
            gaps = [
                one for one, entries in meant.items() if not entries and any(of[one] for of in meant_of_files)
            ]
            if gaps:
                have = "has" if len(gaps) == 1 else "have"
                count = (
                    f"{len(gaps):,} of {len(meant):,} {self.medium}s {have} references in other files alone"
                )
                self.notes.append(f"{link.references.path}: {count} ({some_of(gaps)})")
            wanted = {one: entries for one, entries in meant.items() if one not in set(gaps)}
            matched.append(self.only_entries(link, wanted))
        return matched

    def only_entries(self, link: _Link, meant: Mapping[str, list[str]]) -> dict[str, str]:
        """The one entry that each id means; note ids without one, and with several."""
        part = f" in split {some_of(self.options.splits)}" if self.options.splits else ""
        lacking = f"no references{part}; it has ids like {some_of([*link.texts][:3])}"
        fix = ""
        if any("-" in image_id and " " in image_id for image_id in meant) and _are_segments(link):
            fix = (
                "segments of videos are joined where time stamps are equal; proposals are not matched by tIoU"
            )
        return only_matches(link.references.path, meant, lacking, self.problems, fix)

    # candidates and images

    def match_images(
        self, candidates: TextFile, links: Sequence[_Link], ids: Sequence[str | None], *, absent_too: bool
    ) -> dict[str, Path | str]:
        """The file of each id: by the annotations that know its name, else by the column that names files."""
        assert self.folder is not None
        folder = self.folder
        column = candidates.file_column or candidates.id_column
        own = candidates.ids(column) if column is not None else ids
        wanted = {
            image_id: name or image_id
            for image_id, name in zip(ids, own, strict=True)
            if image_id is not None
        }
        for link in links:
            annotated = link.file_names(ids)
            found = {image_id for image_id, name in annotated.items() if folder.find(name)}
            if found:
                self.refuse_other_files(candidates, wanted, annotated, found)
                wanted.update(annotated)
                link.references.file_column = link.file_column
                break
            if annotated and all(folder.find(name) for name in wanted.values()):
                such = (
                    f"none of the {len(annotated):,} file names, such as {next(iter(annotated.values()))!r}"
                )
                warn(f"{folder.path}: {such}, is there: the {self.medium}s of their ids are used")
        matched = folder.match(wanted, self.problems, absent_too=absent_too)
        for name, count in folder.other_folders(wanted, matched).items():
            ids_name = "id names" if count == 1 else "ids name"
            instead = f"and the {self.medium} in {folder.path} is taken"
            warn(f"{candidates.path}: {count:,} {ids_name} the folder {name!r}, {instead}")
        return dict(matched)

    def refuse_other_files(
        self, candidates: TextFile, wanted: Mapping[str, str], annotated: Mapping[str, str], found: set[str]
    ) -> None:
        """Refuse annotations that name another file than the candidates do."""
        assert self.folder is not None
        for image_id in found:
            named = wanted[image_id]
            if not PurePosixPath(named).suffix or named == image_id:
                continue
            files_of_candidate = self.folder.find(named)
            if files_of_candidate and files_of_candidate != self.folder.find(annotated[image_id]):
                by_references = f"{annotated[image_id]!r} by the references"
                problem = f"the id {image_id!r} has the {self.medium} {named!r}, and {by_references}"
                self.problems.add(file_error(candidates.path, problem, "correct one of them"))
                return

    # what is odd

    def warn_of_repeats(
        self, rows: Sequence[tuple[str, str, int]], references: Mapping[str, list[str]], *, wide: bool
    ) -> None:
        """Warn of captions that look like references; except of pools, of captions that repeat or differ."""
        path = self.candidates.path
        messages = []
        several = len(rows) / len(references) if references else 0
        if several >= 2 and all(len(texts) == 1 for texts in references.values()):
            messages.append(
                f"{several:.3g} captions and one reference of each image: are the two files swapped?"
            )
        copied = sum(text in references.get(image_id, ()) for image_id, text, _ in rows)
        if references and copied == len(rows):
            why = "so a score says nothing: are they the captions of people?"
            messages.append(f"every caption is one of its own references, {why}")
        elif copied:
            captions = "caption is" if copied == 1 else "captions are"
            self.notes.append(f"{path}: {copied:,} of {len(rows):,} {captions} among their own references")
        repeats = len(rows) - len({(image_id, text) for image_id, text, _ in rows})
        if repeats and not wide:
            again = "caption that its image has" if repeats == 1 else "captions that their images have"
            messages.append(f"{repeats:,} {again} already: each counts ({len(rows):,} captions)")
        differing = self.differing_rows(rows)
        if differing and not wide:
            have = "image has" if len(differing) == 1 else "images have"
            messages.append(
                f"{len(differing):,} {have} different captions in several rows (ids {some_of(differing)}), "
                "as where a run was appended to another: each counts. Write captions that belong together as "
                "a list, {image id: [captions]}"
            )
        for message in messages:
            warn(f"{path}: {message}")

    def differing_rows(self, rows: Sequence[tuple[str, str, int]]) -> list[str]:
        """The images that several records give different captions."""
        if self.candidates.records.form == "Flickr's token file":
            return []  # the numbers of their captions say that they belong together
        first: dict[str, tuple[str, int]] = {}
        differing: dict[str, None] = {}
        for image_id, text, owner in rows:
            known_text, known_owner = first.setdefault(image_id, (text, owner))
            if text != known_text and owner != known_owner:
                differing[image_id] = None
        return list(differing)

    def note_what_is_odd(
        self,
        links: Sequence[_Link],
        matched: Sequence[Mapping[str, str]],
        rows: Sequence[tuple[str, str, int]],
        references: Mapping[str, list[str]],
    ) -> None:
        """Note annotated images without captions, and references that some files lack."""
        for link, entries in zip(links, matched, strict=True):
            without = link.texts.keys() - set(entries.values())
            if without:
                have = "has" if len(without) == 1 else "have"
                count = f"{len(without):,} of {len(link.texts):,} annotated {self.medium}s"
                example = some_of(sorted(without)[:3])
                self.notes.append(
                    f"{link.references.path}: {count} {have} no caption in {self.candidates.path} ({example})"
                )


def _label(value: Any) -> str:
    """A label as a text, empty where there is none."""
    return "" if value is None else str(value)


def _id_fix(file: TextFile) -> str:
    if file.records.has_ids:
        return f"name the column of image ids with {setting('id_column', 'NAME')}"
    return 'write an id with each text, such as {"image_id": ..., "caption": ...} or image_id,caption'


def _no_id(file: TextFile, owner: int, column: str) -> FileError:
    """The error about a record without an id."""
    from capeval_core.inputs.columns import value_at

    value = value_at(file.records.rows[owner], column)
    problem = f"is {described(value, none='missing')}"
    fix = "expected a text or a whole number"
    if isinstance(value, str):
        problem = f"is {ascii(value)[:80]}, which is not UTF-8" if value else "is empty"
    if isinstance(value, list) and len(value) > 1:
        fix = "a caption is scored with one image: write a record for each"
    where = f"{file.records.place(owner)}: the id"
    return file_error(file.path, problem, fix, index=where)


def _are_segments(link: _Link) -> bool:
    return any("by segment" in file.records.form for file in (link.candidates, link.references))


# ---- which columns name the same images


@dataclass
class _Link:
    """The columns by which candidates and references are joined; None: record by record.

    texts: the references of each entry, by the best name of its records.
    """

    candidates: TextFile
    references: TextFile
    candidate_column: str | None
    column: str | None
    texts: dict[str, list[str]] = field(default_factory=dict)
    _entry_of: dict[str, list[str]] = field(default_factory=dict)
    _owner_of: dict[str, int] = field(default_factory=dict)
    _split_of: dict[str, str] = field(default_factory=dict)

    def entry(self, owner: int) -> str | None:
        """What the references call the image of a record."""
        if self.column is None:
            return str(owner + 1)
        return self.references.ids(self.entry_column)[owner]

    @cached_property
    def entry_column(self) -> str:
        """The best column that names the same images as the one by which files are joined."""
        assert self.column is not None
        joined = self.references.ids(self.column)
        for column in self.references.id_columns:
            pairs = {
                pair for pair in zip(joined, self.references.ids(column), strict=True) if None not in pair
            }
            if len(pairs) == len({name for name, _ in pairs}) == len({name for _, name in pairs}) > 0:
                return column
        return self.column

    def collect(self, problems: Problems) -> None:
        """Put together the references of each image; a list that each of its records repeats counts once."""
        lists: dict[str, list[str]] = {}
        by_record: defaultdict[int, list[str]] = defaultdict(list)
        for owner, text in zip(self.references.owners, self.references.texts, strict=True):
            by_record[owner].append(text)
        names_of_column = (
            [None] * len(self.references.records.rows)
            if self.column is None
            else self.references.ids(self.column)
        )
        repeated = bool(self.references.columns) and names.rank(
            self.references.columns[0], "references"
        ) < len(names.levels("references")[0])
        entries: dict[str | None, str] = {}
        for owner, texts in by_record.items():
            name = names_of_column[owner]
            entry = (
                entries.setdefault(name, self.entry(owner) or "") if name is not None else self.entry(owner)
            )
            if entry is None or (self.column is not None and name is None):
                problems.add(_no_id(self.references, owner, str(self.column)))
                continue
            if owner in self.references.lists and (repeated or lists.get(entry) == texts):
                if lists.setdefault(entry, texts) is not texts:
                    if lists[entry] != texts:  # each row may carry the list, which counts once
                        where = f"{self.references.place(owner)}: {self.references.columns[0]}"
                        problem = "differ from those given for this id before"
                        problems.add(file_error(self.references.path, problem, index=where))
                    continue
            elif owner in self.references.lists:
                lists[entry] = texts
            self.check_split(entry, owner)
            self.texts.setdefault(entry, []).extend(texts)
            if name is not None:
                self._owner_of.setdefault(name, owner)
            if name is not None and entry not in self._entry_of.setdefault(name, []):
                self._entry_of[name].append(entry)

    def check_split(self, entry: str, owner: int) -> None:
        """Refuse an id that lies in several parts of the file: which image is meant depends on the part."""
        file = self.references
        column = split_column(file.records)
        if column is None or len(file.splits) < 2 or file.options.splits:
            return
        split = str(file.records.rows[owner].get(column))
        first = self._split_of.setdefault(entry, split)
        if first != split:
            problem = f"has the id {entry!r} in the splits {first!r} and {split!r}"
            raise file_error(file.path, problem, setting("split", split, "choose with "))

    def matches(self, ids: Sequence[str | None]) -> dict[str, list[str]]:
        """The entries that the id of each record of the candidates can mean."""
        if self.column is None:
            return {image_id: [str(owner + 1)] for owner, image_id in enumerate(ids) if image_id is not None}
        find = cache(Names(self._entry_of).find)
        names_of_candidates = self.candidates.ids(str(self.candidate_column))
        meant: dict[str, list[str]] = {}
        for image_id, name in zip(ids, names_of_candidates, strict=True):
            if image_id is None:
                continue
            entries = meant.setdefault(image_id, [])
            for found in find(name) if name is not None else []:
                if not self.lies_elsewhere(name, self._owner_of[found]):
                    entries += [entry for entry in self._entry_of[found] if entry not in entries]
        return meant

    def records(self, ids: Sequence[str | None]) -> dict[str, Mapping[str, Any]]:
        """What the references say of the image of each id: the first of its records."""
        rows = self.references.records.rows
        if self.column is None:
            return {image_id: rows[owner] for owner, image_id in enumerate(ids) if image_id is not None}
        owners: dict[str, int] = {}
        for owner, name in enumerate(self.references.ids(self.column)):
            if name is not None:
                owners.setdefault(name, owner)
        find = cache(Names(owners).find)
        found: dict[str, Mapping[str, Any]] = {}
        for image_id, name in zip(ids, self.candidates.ids(str(self.candidate_column)), strict=True):
            entries = find(name) if name is not None else []
            if image_id is not None and len(entries) == 1:
                found[image_id] = rows[owners[entries[0]]]
        return found

    def lies_elsewhere(self, name: str | None, owner: int) -> bool:
        """Whether the references name a file in another folder than a candidate does: it is another image."""
        if name is None or self.file_column is None or ("/" not in name and "\\" not in name):
            return False
        file_name = self.references.ids(self.file_column)[owner]
        return (
            file_name is not None and agreement(parts_of(name).folders, parts_of(file_name).folders) is None
        )

    @cached_property
    def file_column(self) -> str | None:
        """The column of the references that names files."""
        known = [names.plain(name) for name in names.listed("id", "file")]
        fields = [name for name in self.references.records.fields if names.plain(name) in known]
        for name in sorted(fields, key=lambda name: known.index(names.plain(name))):
            values = [value for value in self.references.ids(name)[:100] if value is not None]
            if any(PurePosixPath(value).suffix for value in values):
                return name
        return None

    def file_names(self, ids: Sequence[str | None]) -> dict[str, str]:
        """The file that the references name for the image of each id."""
        if self.column is None or self.file_column is None:
            return {}
        files_of_name: dict[str, str] = {}
        pairs = zip(self.references.ids(self.column), self.references.ids(self.file_column), strict=True)
        for name, file_name in pairs:
            if name is not None and file_name is not None:
                files_of_name.setdefault(name, file_name)
        find = cache(Names(files_of_name).find)
        file_names: dict[str, str] = {}
        for image_id, name in zip(ids, self.candidates.ids(str(self.candidate_column)), strict=True):
            found = find(name) if name is not None else []
            if image_id is not None and len(found) == 1:
                file_names[image_id] = files_of_name[found[0]]
        return file_names


def _best_link(candidates: TextFile, references: TextFile, problems: Problems, same_file: bool) -> _Link:
    """The two columns by which most candidates find a reference; others that contradict them are refused."""
    by_column: dict[str, dict[str, int]] = {}
    for column in references.id_columns:
        first: dict[str, int] = {}
        for owner, name in enumerate(references.ids(column)):
            if name is not None:
                first.setdefault(name, owner)
        by_column[column] = first
    finders = {column: cache(Names(first).find_closely) for column, first in by_column.items()}
    link = _Link(candidates, references, None, None)
    owners = list(dict.fromkeys(candidates.owners))
    found: dict[tuple[str, str], dict[int, int]] = {}
    distances: dict[tuple[str, str], dict[int, int]] = {}
    for own_column in candidates.id_columns:
        own_names = candidates.ids(own_column)
        for column, find in finders.items():
            if same_file and column != own_column:
                continue
            records: dict[int, int] = {}
            closeness: dict[int, int] = {}
            for owner in owners:
                name = own_names[owner]
                matches, distance = find(name) if name is not None else ([], 0)
                if len(matches) == 1 and not link.lies_elsewhere(name, by_column[column][matches[0]]):
                    records[owner] = by_column[column][matches[0]]
                    closeness[owner] = distance
            found[own_column, column] = records
            distances[own_column, column] = closeness
    if not found:
        column = references.id_columns[0]
        return _Link(candidates, references, candidates.id_columns[0], column)
    best = max(found, key=lambda pair: len(found[pair]))
    for pair, records in found.items():
        if pair == best or 2 * len(records) < len(found[best]):
            continue
        if pair[0] == best[0]:
            # Of one name the closest match counts: `9.jpg` is the file, not the image that has the number 9.
            near, far = distances[best], distances[pair]
            records = {
                owner: record
                for owner, record in records.items()
                if far[owner] <= near.get(owner, far[owner])
            }
        _refuse_rival(candidates, references, best, pair, found[best], records, problems)
    return _Link(candidates, references, *best)


def _refuse_rival(
    candidates: TextFile,
    references: TextFile,
    best: tuple[str, str],
    rival: tuple[str, str],
    records_of_best: Mapping[int, int],
    records_of_rival: Mapping[int, int],
    problems: Problems,
) -> None:
    """Note two pairs of columns that join candidates with different references."""
    names_of_best = references.ids(best[1])
    for owner, record in records_of_rival.items():
        other = records_of_best.get(owner)
        if other is None or names_of_best[other] == names_of_best[record]:
            continue
        columns = dict.fromkeys((best[0], rival[0]))
        where = candidates if len(columns) > 1 else references
        columns = columns if len(columns) > 1 else dict.fromkeys((best[1], rival[1]))
        problem = (
            f"{' and '.join(map(repr, columns))} name different images ({candidates.place(owner, best[0])} "
            f"has the references of {names_of_best[other]!r} or of {names_of_best[record]!r})"
        )
        fix = f"choose {' or '.join(setting('id_column', name) for name in columns)}"
        problems.add(file_error(where.path, problem, fix))
        raise problems.error()


def best_column(
    file: TextFile, columns: Sequence[str], find: Callable[[str], tuple[str, ...]], problems: Problems
) -> str | None:
    """The column whose values name something in most records; note two that name different things."""
    owners = list(dict.fromkeys(file.owners))
    found: dict[str, dict[int, tuple[str, ...]]] = {}
    for column in columns:
        values = file.ids(column)
        entries = {owner: find(value) for owner in owners if (value := values[owner]) is not None}
        found[column] = {owner: matches for owner, matches in entries.items() if matches}
    best = max(columns, key=lambda column: len(found[column]))
    # File names say which image is meant even where some files are missing; numbers of rows do not.
    named = [column for column in columns if found[column] and file.names_files(column)]
    if named and not file.names_files(best):
        best = max(named, key=lambda column: len(found[column]))
    unknown = {}
    for column in file.unknown_ids:
        entries = {owner: find(value) for owner in owners if (value := file.ids(column)[owner]) is not None}
        if entries and all(entries.values()) and len(entries) == len(owners):
            unknown[column] = entries
    if not found[best]:
        return next(iter(unknown), None)
    for column, matches in {**found, **unknown}.items():
        if column == best or 2 * len(matches) < len(found[best]):
            continue
        differing = [
            owner for owner, entries in matches.items() if found[best].get(owner, entries) != entries
        ]
        if differing:
            first = differing[0]
            problem = (
                f"{best!r} and {column!r} name different images in {len(differing):,} rows, such as "
                f"{found[best][first][0]!r} and {matches[first][0]!r}"
            )
            settings = f"{setting('id_column', best)} or {setting('id_column', column)}"
            fix = f"choose the column of image ids with {settings}"
            problems.add(file_error(file.path, problem.replace(repr(KEY), "'key'"), fix))
            break
    return best


def fullest(file: TextFile, columns: Sequence[str]) -> str:
    """The column that has an id in most records, the first of those."""
    return max(columns, key=lambda column: sum(image_id is not None for image_id in file.ids(column)))


def _two_ids(path: Path, meant: Mapping[str, Path | str], problems: Problems) -> bool:
    """Note images, or references, that have several ids: each would get a pool and a line of its own."""
    first: dict[Path | str, str] = {}
    for image_id, thing in meant.items():
        if first.setdefault(thing, image_id) != image_id:
            problem = f"the ids {first[thing]!r} and {image_id!r} both mean {PurePosixPath(thing).name!r}"
            problems.add(file_error(path, problem, "write its id in one way"))
    return len(first) < len(meant)
