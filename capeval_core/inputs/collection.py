"""Captions and references of files, joined by image id with a folder of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from capeval_core.errors import FileError, Problems, Setting, Text, file_problem, warn
from capeval_core.inputs.folder import Folder, Names, only_matches, some_of
from capeval_core.inputs.text_files import (
    CANDIDATE_FIELDS,
    REFERENCE_FIELDS,
    STANDARD_INPUT,
    FileOptions,
    Texts,
    read_texts,
    refuse_unused,
)


@dataclass(frozen=True)
class Collection:
    """Rows read from files: parallel lists, one entry per caption, fit for `metric.score`.

    images: paths of images or videos; without a folder of them their ids. entries: ids as the file of
    references writes them; None without such a file.
    """

    ids: list[str]
    captions: list[str]
    images: Sequence[Any]
    references: list[list[str]] | None
    entries: list[str] | None = None


def read_collection(
    candidates: str | os.PathLike[str],
    images: str | os.PathLike[str] | None,
    references: str | os.PathLike[str] | None = None,
    *,
    options: FileOptions | None = None,
    wide: bool = False,
    medium: str = "image",
    problems: Problems | None = None,
    absent_too: bool = False,
) -> Collection:
    """Join a file of candidates with a folder of images, or of videos, and a file of references.

    Every candidate needs an image, and references if a file of them is given; images and references that
    no candidate has are left out. Ids need not be written the same way in all three (see `Names`). Where rows
    have several columns that may be ids, that one counts which names images of the folder (without one: which
    the other file knows); two that name different images are refused, unless `options.id_column` is one.
    Where COCO annotations give an id a `file_name`, that image is taken (see `Folder.match`, also for
    `absent_too`). `images` None: there is no folder, ids alone name images. `options`: columns and splits to
    read. `wide`: a table may have one row per image, its candidates side by side. `problems`: if all files
    can be read, where problems with rows are noted, which are then left out.

    All captions of an image count, equal ones too; a warning says how many repeat, and how many images have
    different ones in several rows, as where a run was appended to another.

    Raises FileError that lists everything that does not match.
    """
    noted, problems = problems, Problems()
    options = options or FileOptions()
    if references is not None and os.fspath(candidates) == os.fspath(references) == STANDARD_INPUT:
        fix = "name a file for one of them"
        raise FileError(file_problem("standard input", "cannot be both candidates and references", fix))
    texts, folder, known = None, None, None
    with _noting(problems):
        texts = read_texts(candidates, CANDIDATE_FIELDS, problems, options, wide=wide)
    with _noting(problems):
        folder = None if images is None else Folder(Path(images), medium)
    with _noting(problems):
        if references is not None:
            column = "reference_column"
            known = read_texts(
                references, REFERENCE_FIELDS, problems, options, column=column, all_splits=True
            )
    if texts is not None and (known is not None or references is None):
        read = [(candidates, texts), (references, known)]
        refuse_unused(options, {Path(path): one for path, one in read if path and one}, problems)
    if texts is None or (folder is None and images is not None) or (known is None and references is not None):
        raise problems.error()
    file = Path(candidates)
    if folder is not None:
        texts.use_id_column(file, folder.find, options, problems)
    if known is not None and references is not None:
        find = _finder_of_candidates(texts) if folder is None else folder.find
        known.use_id_column(Path(references), find, options, problems)
    ids = list(texts.by_id())
    paths: Mapping[str, Path | str] = {image_id: image_id for image_id in ids}
    if folder is not None:
        file_names = {**(known.file_names if known else {}), **texts.file_names}
        paths = folder.match(ids, problems, file_names, absent_too=absent_too)
        _refuse_two_ids(file, paths, problems)
    matched: dict[str, str] = {}
    references_of: dict[str, list[str]] = {}
    if known is not None and references is not None:
        entries = known.by_id()
        matches = _matches(texts, known, entries, file, options, problems)
        lacking, advice = _lacking(known, entries, matches, options)
        matched = only_matches(Path(references), matches, lacking, problems, advice)
        if len({*paths.values()}) == len(paths):  # else they are refused already
            _refuse_two_ids(file, matched, problems)
        references_of = {image_id: entries[entry] for image_id, entry in matched.items()}
    if not len(problems):
        _warn_of_repeats(file, texts, references_of, wide=wide)
    if noted is None:
        problems.raise_if_any()
    else:
        noted.extend(problems)
    kept = [row for row in texts.rows if row[0] in paths and (known is None or row[0] in matched)]
    own = [image_id for image_id, _ in kept]
    return Collection(
        ids=own,
        captions=[caption for _, caption in kept],
        images=[paths[image_id] for image_id in own],
        references=None if known is None else [references_of[image_id] for image_id in own],
        entries=None if known is None else [matched[image_id] for image_id in own],
    )


@contextmanager
def _noting(problems: Problems) -> Iterator[None]:
    """Note what is wrong with a file, so that the other files are read as well."""
    try:
        yield
    except FileError as error:
        problems.extend(error.problems)


def _matches(
    texts: Texts,
    known: Texts,
    entries: Mapping[str, Any],
    file: Path,
    options: FileOptions,
    problems: Problems,
) -> dict[str, list[str]]:
    """What each id of the candidates can mean among the entries of the references."""
    find = _finder(known, entries)
    column = texts.id_column(file, find, options, problems) or ""
    matches: dict[str, list[str]] = {}
    for (image_id, _), own in zip(texts.rows, texts.entries, strict=True):
        found = matches.setdefault(image_id, [])
        found += [entry for entry in find(own.get(column, image_id)) if entry not in found]
    return matches


def _finder_of_candidates(texts: Texts) -> Callable[[str], list[str]]:
    """Finds the ids of candidates by whatever their rows call the image."""
    named: dict[str, dict[str, None]] = {}
    for (image_id, _), own in zip(texts.rows, texts.entries, strict=True):
        for name in own.values() or [image_id]:
            named.setdefault(PurePosixPath(name).name, {})[image_id] = None
    names = Names(named)
    return lambda name: [one for entry in names.find(PurePosixPath(name).name) for one in named[entry]]


def _finder(texts: Texts, entries: Mapping[str, Any]) -> Callable[[str], list[str]]:
    """Finds the entries that an image id, or its path, can mean, by their ids or the file names they have."""
    named: dict[str, list[str]] = {}
    for entry, name in texts.file_names.items():
        for written in {name, PurePosixPath(name).name} if entry in entries else ():
            named.setdefault(written, []).append(entry)
    by_id, by_name = Names(entries), Names(named)

    def find(image_id: str) -> list[str]:
        exact = [image_id] if image_id in entries else named.get(image_id)
        return exact or by_id.find(image_id) or [e for name in by_name.find(image_id) for e in named[name]]

    return lambda image_id: find(image_id) or find(PurePosixPath(image_id).name)


def _lacking(
    texts: Texts, entries: Mapping[str, Any], matches: Mapping[str, list[str]], options: FileOptions
) -> tuple[str, Text]:
    """What ids without an entry in a file of references have, and the fix."""
    left_out = Names(texts.left_out)
    elsewhere = {
        texts.left_out[entry]
        for image_id, found in matches.items()
        if not found
        for entry in left_out.find(image_id)
    }
    if elsewhere:
        kept = options.splits if any(matches.values()) else []
        of_splits = " and ".join(map(repr, sorted(elsewhere)))
        found = f"no references in split {', '.join(map(repr, options.splits))}, but in {of_splits}"
        return found, ("pass ", Setting("split", ",".join([*kept, *sorted(elsewhere)])))
    examples = f"; it has ids like {', '.join(map(repr, [*entries][:3]))}" if entries else ""
    return f"no references{examples}", ""


def _refuse_two_ids(path: Path, meant: Mapping[str, Path | str], problems: Problems) -> None:
    """Note images, or references, that have several ids: each would get a pool and a line of its own."""
    first: dict[Path | str, str] = {}
    for image_id, one in meant.items():
        if first.setdefault(one, image_id) != image_id:
            name = PurePosixPath(one).name
            found = f"the ids {first[one]!r} and {image_id!r} both mean {name!r}"
            problems.add(file_problem(path, found, "write its id in one way"))


def _warn_of_repeats(path: Path, texts: Texts, references: Mapping[str, list[str]], *, wide: bool) -> None:
    """Warn of captions that look like references; except of pools, of captions that repeat or differ."""
    several = len(texts.rows) / len(references) if references else 0
    if several >= 2 and all(len(of_image) == 1 for of_image in references.values()):
        warn(f"{path}: {several:.3g} captions and one reference of each image: are the two files swapped?")
    if references and all(caption in references[image_id] for image_id, caption in texts.rows):
        warn(
            f"{path}: every caption is one of its own references, so a score says nothing: are they the "
            "captions of people?"
        )
    repeats = 0 if wide else len(texts.rows) - len(set(texts.rows))
    if repeats:
        again = "caption that its image has" if repeats == 1 else "captions that their images have"
        warn(f"{path}: {repeats:,} {again} already: each counts ({len(texts.rows):,} captions)")
    differing = {} if wide else texts.differing()
    if differing:
        images = "image has" if len(differing) == 1 else "images have"
        warn(
            f"{path}: {len(differing):,} {images} different captions in several rows (ids "
            f"{some_of([*differing])}; {sum(differing.values()):,} captions), as where a run was appended to "
            "another: each counts. Leave out the rows that are not meant, give each run a file of its own, "
            "or write captions that belong together as a list, {image id: [captions]}"
        )
