"""A collection: a file of candidates joined with a folder of images and with files of references.

Which column of a file names the images shows in its values: the one whose names are on the other side
(`links`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from capeval_core.errors import Problems, did_you_mean, file_error, noting, setting, warn
from capeval_core.inputs.columns import FileOptions, TextFile, has_path, refuse_unused, value_at
from capeval_core.inputs.files import some_of
from capeval_core.inputs.joining import Folder, only_matches
from capeval_core.inputs.links import Link, are_pairs, best_column, best_link, fullest, no_id
from capeval_core.inputs.objects import read_objects
from capeval_core.inputs.openers import STANDARD_INPUT
from capeval_core.inputs.records import FILE_NAME, KEY, VALUE
from capeval_core.inputs.texts import read_texts

_Path = str | os.PathLike[str]


class _Row(NamedTuple):
    """A caption with the id of its image and its record in the file of candidates."""

    image_id: str
    text: str
    owner: int


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
    objects: Sequence[_Path] = (),
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

    objects: files of names of objects, which are further references. references: one file, or one of each
    annotator, whose references are put together by id. needs_references: where no metric compares with them,
    the file only says which file an id is. wide: of pools. problems: where to note what is wrong with rows,
    left out then. group_by: column of labels, in the records of candidates or else of references. Raises
    FileError with all problems.
    """
    options = options or FileOptions()
    paths = [*_paths(references), *objects]
    # A stream can be read once: the second reader would find it empty.
    all_paths = [os.fspath(path) for path in (candidates, *paths)]
    if all_paths.count(STANDARD_INPUT) > 1:
        problem = "cannot be both candidates and references"
        raise file_error("standard input", problem, "name a file for one of them")
    noted = Problems()
    # What is wrong with one of them is noted, so that the others are read as well.
    candidate_file = None
    with noting(noted):
        candidate_file = read_texts(candidates, "caption", noted, options, wide=wide)
    folder = None
    if images is not None:
        with noting(noted):
            folder = Folder(images, medium)
    reference_files = []
    for path in paths:
        with noting(noted):
            if path in objects:
                reference_files.append(read_objects(path, noted, options))
            else:
                reference_files.append(read_texts(path, "references", noted, options))
    # Joining needs all of them; what it would say of an empty file is nothing that was not noted already.
    if candidate_file is None or len(reference_files) < len(paths):
        raise noted.error()
    files = [candidate_file, *reference_files]
    refuse_unused(options, files, noted)
    if (folder is None and images is not None) or not all(file.records.rows for file in files):
        raise noted.error()
    collection = _Collection(options, medium, noted, candidate_file, folder, reference_files)
    joined = collection.join(
        wide=wide, needs_references=needs_references, absent_too=absent_too, group_by=group_by
    )
    if problems is None:
        noted.raise_if_any()
    else:
        problems.extend(noted)
    return joined


def read_captions(path: _Path, folder: Folder | None, options: FileOptions) -> list[tuple[str, str, str]]:
    """The captions of images on which a metric is trained: id, name of its file in a folder, and text of
    each.

    They are written in the forms of references. Raises FileError with all problems.
    """
    problems = Problems()
    # Several captions per image are usual here, as among references; but the wrong split would train a model
    # on the images that it is tested on.
    file = read_texts(path, "references", problems, options, one_split=True)
    refuse_unused(options, [file], problems)
    collection = _Collection(options, "image", problems, file, folder)
    collection.choose_ids([])
    ids = collection.ids_of_candidates()
    problems.raise_if_any()
    file_names = file.ids(file.file_column) if file.file_column is not None else ids
    rows = []
    for owner, text in zip(file.owners, file.texts, strict=True):
        image_id = str(ids[owner])
        rows.append((image_id, file_names[owner] or image_id, text))
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
    candidates: TextFile
    folder: Folder | None = None
    references: Sequence[TextFile] = ()
    notes: list[str] = field(default_factory=list)

    def join(
        self, *, wide: bool, needs_references: bool, absent_too: bool, group_by: str | None = None
    ) -> Joined:
        """The rows that have all that they need; what others lack is noted as problems."""
        candidates = self.candidates
        links = [self.link(file) for file in self.references]
        self.choose_ids(links)
        ids = self.ids_of_candidates()
        entries_of_links = self.match_references(links, ids) if needs_references else []
        references: dict[str, list[str]] = {}
        first_entries: dict[str, str] = {}
        # Without references to read, `entries_of_links` is empty: hence not strict.
        for link, entries in zip(links, entries_of_links, strict=False):
            for image_id, entry in entries.items():
                first_entries.setdefault(image_id, entry)
                references.setdefault(image_id, []).extend(link.texts[entry])
        # Without a folder the ids stand for the images, for metrics on texts or on precomputed features.
        paths: Mapping[str, Path | str] = {image_id: image_id for image_id in ids if image_id is not None}
        if self.folder is not None:
            paths = self.match_images(self.folder, links, ids, absent_too=absent_too)
        has_two_ids = self.note_two_ids(paths) or self.note_two_ids(first_entries)
        rows = []
        for owner, text in zip(candidates.owners, candidates.texts, strict=True):
            row_id = ids[owner]
            if row_id is not None:
                rows.append(_Row(row_id, text, owner))
        # Where the input is refused anyway, remarks on its oddities would only bury the problems.
        if not has_two_ids and not self.problems:
            self.warn_of_repeats(rows, references, wide=wide)
            self.note_unused(links, entries_of_links)
        joined_rows = []
        has_references = bool(links) and needs_references
        for row in rows:
            if row.image_id not in paths or (has_references and row.image_id not in first_entries):
                continue  # noted as a problem, which the caller may survive
            joined_rows.append(row)
        files = [candidates, *self.references]
        return Joined(
            ids=[row.image_id for row in joined_rows],
            captions=[row.text for row in joined_rows],
            images=[paths[row.image_id] for row in joined_rows],
            references=[references[row.image_id] for row in joined_rows] if has_references else None,
            entries=[first_entries[row.image_id] for row in joined_rows] if has_references else None,
            labels=None if group_by is None else self.labels(group_by, links, ids, joined_rows),
            # Behind the labels, whose column counts as read.
            read={str(file.path): file.read_as() for file in files},
            notes=self.notes_on(files),
            rows=[candidates.records.rows[row.owner] for row in joined_rows],
        )

    def notes_on(self, files: Sequence[TextFile]) -> list[str]:
        """How each file was read, what is odd about each, and about them together."""
        notes = [file.sentence() for file in files]
        for file in files:
            for note in file.notes:
                notes.append(f"{file.path}: {note}")
        return [*notes, *self.notes]

    def labels(
        self, column: str, links: Sequence[Link], ids: Sequence[str | None], rows: Sequence[_Row]
    ) -> list[str]:
        """The label of each row, in a column of the candidates, or else of references."""
        records = self.candidates.records
        if has_path(records, column):
            self.candidates.label_column = column
            return [_label(value_at(records.rows[row.owner], column)) for row in rows]
        fields = dict.fromkeys(records.fields)
        for link in links:
            if has_path(link.references.records, column):
                link.references.label_column = column
                annotations = link.records(ids)
                return [_label(value_at(annotations.get(row.image_id), column)) for row in rows]
            fields.update(dict.fromkeys(link.references.records.fields))
        columns = [name for name in fields if name not in (KEY, VALUE)]
        columns_are = f"; there are {some_of(columns)}" if columns else ""
        problem = f"has no column {column!r}{did_you_mean(column, columns)}{columns_are}"
        raise file_error(records.path, problem)

    # candidates and references

    def link(self, references: TextFile) -> Link:
        """How candidates and references name the same images: by line, or by the columns that fit best."""
        candidates = self.candidates
        # Only two files without ids are read line by line. With ids on one side an order may still be meant,
        # but a sorted file would give each caption the references of another image.
        if not candidates.id_columns and not references.id_columns:
            return self.link_by_line(references)
        for file in (candidates, references):
            if not file.id_columns:
                raise file_error(file.path, f"has no ids: {file.records.form}", _id_fix(file))
        link = best_link(candidates, references, self.problems)
        references.id_column = link.column
        return link

    def link_by_line(self, references: TextFile) -> Link:
        """Records of two files without ids, one after the other, where both have as many."""
        candidates = self.candidates
        candidate_count = len(candidates.records.rows)
        reference_count = len(references.records.rows)
        if candidate_count != reference_count:
            counts = f"{reference_count:,} records without ids, {candidates.path} has {candidate_count:,}"
            fix = "write an id beside each text, such as image_id,caption"
            raise file_error(references.path, f"has {counts}", fix)
        if self.folder is not None:
            raise file_error(candidates.path, f"has no ids: {candidates.records.form}", _id_fix(candidates))
        return Link(candidates, references, None, None)

    def choose_ids(self, links: Sequence[Link]) -> None:
        """Choose the column of the candidates whose values are the ids of rows."""
        candidates = self.candidates
        columns = candidates.id_columns
        if self.folder is not None and columns:
            file_column = self.column_of_files(self.folder, columns)
            if file_column is not None:
                # The images are found by the file names, the references by the ids: these may be two columns.
                candidates.file_column = file_column
                candidates.id_column = links[0].candidate_column if links else file_column
                self.prefer_first_column(file_column)
                return
        if links:
            candidates.id_column = links[0].candidate_column
        elif columns:
            candidates.id_column = fullest(candidates, columns)

    def column_of_files(self, folder: Folder, columns: Sequence[str]) -> str | None:
        """The column whose values name files of the folder; of annotations that name files only that one."""
        finder = cache(folder.find)  # a set of 5 captions per image asks for each image 5 times

        def find(name: str) -> tuple[str, ...]:
            # Sorted, as the matches of two columns are compared.
            return tuple(sorted(finder(name)))

        if self.candidates.records.names_files:
            column = best_column(self.candidates, [FILE_NAME], find, self.problems)
            if column is not None:
                return column
        return best_column(self.candidates, columns, find, self.problems)

    def prefer_first_column(self, file_column: str) -> None:
        """Let the first column be the ids of rows, where its values and files are pairs."""
        candidates = self.candidates
        columns = [name for name in candidates.id_columns if name != file_column]
        if not columns or candidates.id_column != file_column:
            return
        first_names = candidates.ids(columns[0])
        file_names = candidates.ids(file_column)
        named_files = set()
        for name, file in zip(first_names, file_names, strict=True):
            if name is not None:
                named_files.add(file)
        # Results name images by `image_id`, as the user's tables do; but never where that would merge two
        # images, split one, or leave one without an id.
        if are_pairs(first_names, file_names) and named_files - {None} == {*file_names} - {None}:
            candidates.id_column = columns[0]

    def ids_of_candidates(self) -> list[str | None]:
        """The id of each record; note records without one."""
        candidates = self.candidates
        record_count = len(candidates.records.rows)
        if candidates.id_column is None:
            if candidates.id_columns or self.references:
                return [str(number) for number in range(1, record_count + 1)]
            problem = f"has no ids: {candidates.records.form}"
            self.problems.add(file_error(candidates.path, problem, _id_fix(candidates)))
            return [None] * record_count
        ids = candidates.ids(candidates.id_column)
        # Each record once, though it may have several captions; records without a caption need no id.
        for owner in dict.fromkeys(candidates.owners):
            if ids[owner] is None:
                self.problems.add(no_id(candidates, owner, candidates.id_column))
        return ids

    def match_references(self, links: Sequence[Link], ids: Sequence[str | None]) -> list[dict[str, str]]:
        """The entry of each file of references that each id means; note ids that have none in any file."""
        matches_of_links = []
        for link in links:
            link.collect(self.problems)
            matches_of_links.append(link.matches(ids))
        described_ids: set[str] = set()
        for matches in matches_of_links:
            for image_id, entries in matches.items():
                if entries:
                    described_ids.add(image_id)
        entries_of_links = []
        for link, matches in zip(links, matches_of_links, strict=True):
            # An annotator may have left out images that others have described.
            gaps = []
            for image_id, entries in matches.items():
                if not entries and image_id in described_ids:
                    gaps.append(image_id)
            if gaps:
                have = "has" if len(gaps) == 1 else "have"
                count = f"{len(gaps):,} of {len(matches):,} {self.medium}s {have}"
                note = f"{count} {link.references.role} in other files alone ({some_of(gaps)})"
                self.notes.append(f"{link.references.path}: {note}")
            for image_id in gaps:
                del matches[image_id]
            entries_of_links.append(self.only_entries(link, matches))
        return entries_of_links

    def only_entries(self, link: Link, matches: Mapping[str, list[str]]) -> dict[str, str]:
        """The one entry that each id means; note ids without one, and with several."""
        part = f" in split {some_of(self.options.splits)}" if self.options.splits else ""
        lacking = f"no {link.references.role}{part}; it has ids like {some_of([*link.texts][:3])}"
        fix = ""
        if _are_segments(link):
            fix = (
                "segments of videos are joined where time stamps are equal; proposals are not matched by tIoU"
            )
        return only_matches(link.references.path, matches, lacking, self.problems, fix)

    # candidates and images

    def match_images(
        self, folder: Folder, links: Sequence[Link], ids: Sequence[str | None], *, absent_too: bool
    ) -> dict[str, Path | str]:
        """The file of each id: by the annotations that know its name, else by the column that names files."""
        candidates = self.candidates
        column = candidates.file_column or candidates.id_column
        own_names = candidates.ids(column) if column is not None else ids
        file_names: dict[str, str] = {}
        for image_id, name in zip(ids, own_names, strict=True):
            if image_id is not None:
                file_names[image_id] = name or image_id
        for link in links:
            annotated = link.file_names(ids)
            present = set()
            for image_id, name in annotated.items():
                if folder.find(name):
                    present.add(image_id)
            if present:
                # Annotations know the names: an id such as 42 could mean a file by chance.
                self.refuse_other_files(folder, file_names, annotated, present)
                file_names.update(annotated)
                link.references.file_column = link.file_column
                break
            # As where the images were renamed by their ids, or those of another split were downloaded.
            if annotated and all(map(folder.find, file_names.values())):
                example = next(iter(annotated.values()))
                absent = f"none of the {len(annotated):,} file names, such as {example!r}, is there"
                warn(f"{folder.path}: {absent}: the {self.medium}s of their ids are used")
        matched = folder.match(file_names, self.problems, absent_too=absent_too)
        for name, count in folder.other_folders(file_names, matched).items():
            ids_name = "id names" if count == 1 else "ids name"
            instead = f"and the {self.medium} in {folder.path} is taken"
            warn(f"{candidates.path}: {count:,} {ids_name} the folder {name!r}, {instead}")
        return dict(matched)

    def refuse_other_files(
        self, folder: Folder, file_names: Mapping[str, str], annotated: Mapping[str, str], image_ids: set[str]
    ) -> None:
        """Note the first id of these for which annotations name another file than the candidates do."""
        for image_id, name in file_names.items():
            has_another_name = PurePosixPath(name).suffix and name != image_id
            if image_id not in image_ids or not has_another_name:
                continue
            entries = folder.find(name)
            # One is enough: where two files disagree, they do so about thousands of images.
            if entries and entries != folder.find(annotated[image_id]):
                by_references = f"{annotated[image_id]!r} by the references"
                problem = f"the id {image_id!r} has the {self.medium} {name!r}, and {by_references}"
                self.problems.add(
                    file_error(self.candidates.path, problem, "correct one of them", sentence=True)
                )
                return

    # what is odd

    def note_two_ids(self, entries: Mapping[str, Path | str]) -> bool:
        """Note images, or references, that have several ids: each would get a pool and a line of its own."""
        first_ids: dict[Path | str, str] = {}
        for image_id, entry in entries.items():
            first_id = first_ids.setdefault(entry, image_id)
            if first_id != image_id:
                problem = f"the ids {first_id!r} and {image_id!r} both mean {PurePosixPath(entry).name!r}"
                self.problems.add(
                    file_error(self.candidates.path, problem, "write its id in one way", sentence=True)
                )
        return len(first_ids) < len(entries)

    def warn_of_repeats(
        self, rows: Sequence[_Row], references: Mapping[str, list[str]], *, wide: bool
    ) -> None:
        """Warn of captions that look like references; except of pools, of captions that repeat or differ."""
        path = self.candidates.path
        if references:
            self.warn_of_copies(rows, references)
        repeat_count = len(rows) - len({(row.image_id, row.text) for row in rows})
        if repeat_count and not wide:
            again = "captions that their images have"
            if repeat_count == 1:
                again = "caption that its image has"
            warn(f"{path}: {repeat_count:,} {again} already: each counts ({len(rows):,} captions)")
        differing = self.differing_rows(rows)
        if differing and not wide:
            have = "image has" if len(differing) == 1 else "images have"
            warn(
                f"{path}: {len(differing):,} {have} different captions in several rows (ids "
                f"{some_of(differing)}), as where a run was appended to another: each counts. Write captions "
                "that belong together as a list, {image id: [captions]}"
            )

    def warn_of_copies(self, rows: Sequence[_Row], references: Mapping[str, list[str]]) -> None:
        """Warn of captions and references that may be swapped or the same; note captions that are both."""
        path = self.candidates.path
        captions_per_image = len(rows) / len(references)
        # People write several references per image, and a captioner one caption: not the other way round.
        if captions_per_image >= 2 and all(len(texts) == 1 for texts in references.values()):
            counts = f"{captions_per_image:.3g} captions and one reference of each image"
            warn(f"{path}: {counts}: are the two files swapped?")
        copy_count = sum(row.text in references.get(row.image_id, ()) for row in rows)
        if copy_count == len(rows):
            why = "so a score says nothing: are they the captions of people?"
            warn(f"{path}: every caption is one of its own references, {why}")
        elif copy_count:
            captions = "caption is" if copy_count == 1 else "captions are"
            count = f"{copy_count:,} of {len(rows):,} {captions}"
            self.notes.append(f"{path}: {count} among their own references")

    def differing_rows(self, rows: Sequence[_Row]) -> list[str]:
        """The images that several records give different captions."""
        if self.candidates.records.form == "Flickr's token file":
            return []  # the numbers of their captions say that they belong together
        first_rows: dict[str, _Row] = {}
        differing: dict[str, None] = {}
        for row in rows:
            first = first_rows.setdefault(row.image_id, row)
            # Several captions of one record are a list that somebody wrote as one.
            if row.text != first.text and row.owner != first.owner:
                differing[row.image_id] = None
        return list(differing)

    def note_unused(self, links: Sequence[Link], entries_of_links: Sequence[Mapping[str, str]]) -> None:
        """Note annotated images without captions."""
        for link, entries in zip(links, entries_of_links, strict=False):  # no entries where none are needed
            # A mean over less than the whole set cannot be compared with published ones.
            unused = link.texts.keys() - set(entries.values())
            if unused:
                have = "has" if len(unused) == 1 else "have"
                count = f"{len(unused):,} of {len(link.texts):,} annotated {self.medium}s {have}"
                example = some_of(sorted(unused)[:3])
                note = f"{count} no caption in {self.candidates.path} ({example})"
                self.notes.append(f"{link.references.path}: {note}")


def _label(value: object) -> str:
    """A label as a text, empty where there is none."""
    return "" if value is None else str(value)


def _id_fix(file: TextFile) -> str:
    if file.records.has_ids:
        return f"name the column of image ids with {setting('id_column', 'NAME')}"
    return 'write an id with each text, such as {"image_id": ..., "caption": ...} or image_id,caption'


def _are_segments(link: Link) -> bool:
    """Whether one of two files has captions of segments of videos."""
    return any("by segment" in file.records.form for file in (link.candidates, link.references))
