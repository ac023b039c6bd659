"""A file of candidates joined with a folder of images and a file of references."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from capeval_core.inputs.files.gathering import CANDIDATE_FIELDS, REFERENCE_FIELDS, Texts
from capeval_core.inputs.files.reading import READERS, WIDE_READERS, read_texts
from capeval_core.inputs.folder import match_images, names_in
from capeval_core.inputs.names import Names, only_matches
from capeval_core.inputs.problems import FileError, Problems

Read = TypeVar("Read")


@dataclass(frozen=True)
class Collection:
    """Rows read from files: parallel lists, one entry per caption, fit for `metric.score`."""

    ids: list[str]
    captions: list[str]
    images: list[Path]
    references: list[list[str]] | None


def read_collection(
    candidates: str | os.PathLike[str],
    images: str | os.PathLike[str],
    references: str | os.PathLike[str] | None = None,
    *,
    wide: bool = False,
) -> Collection:
    """Join a file of candidates with a folder of images and a file of references.

    Every candidate needs an image, and references if a file of them is given; images and references that
    no candidate asks for are left out. Ids need not be written the same way in all three (see `Names`).
    Where COCO annotations give an id a `file_name`, that image is taken. If none of these files is there, as
    in a folder whose images were renamed to their ids, a warning says so and the ids are used; if only some
    are, the others are an error. `wide`: CSV may have one row per image, its candidates side by side.

    Raises FileError that lists everything that does not match.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "captions.json").write_text('{"42": "a dog"}')
    ...     Path(folder, "COCO_val2014_000000000042.jpg").touch()
    ...     found = read_collection(Path(folder, "captions.json"), folder)
    >>> found.ids, found.captions, found.images[0].name, found.references
    (['42'], ['a dog'], 'COCO_val2014_000000000042.jpg', None)
    """
    problems = Problems()
    readers = WIDE_READERS if wide else READERS
    asked = _attempted(lambda: read_texts(candidates, CANDIDATE_FIELDS, problems, readers), problems)
    names = _attempted(lambda: Names(names_in(Path(images))), problems)
    known = None
    if references is not None:
        known = _attempted(lambda: read_texts(references, REFERENCE_FIELDS, problems), problems)

    asked = asked or Texts()
    ids = list(asked.by_id())
    paths: dict[str, Path] = {}
    compared: dict[str, list[str]] = {}
    if names is not None:
        given = {**(known.file_names if known else {}), **asked.file_names}
        paths = match_images(Path(images), names, ids, problems, file_names=given)
        _refuse_two_ids(Path(candidates), paths, problems)
    if references is not None and known is not None:
        compared = _match_references(Path(references), known.by_id(), ids, problems)
    problems.raise_if_any()
    return Collection(
        ids=[image_id for image_id, _ in asked.rows],
        captions=[caption for _, caption in asked.rows],
        images=[paths[image_id] for image_id, _ in asked.rows],
        references=None if known is None else [compared[image_id] for image_id, _ in asked.rows],
    )


def _attempted(read: Callable[[], Read], problems: Problems) -> Read | None:
    """What `read` returns, or None with its complaint noted, so that the other files are read as well."""
    try:
        return read()
    except FileError as error:
        problems.add(str(error), kind=FileError)
        return None


def _refuse_two_ids(path: Path, images: dict[str, Path], problems: Problems) -> None:
    """Note images that have several ids: each id would get a pool and a line of its own."""
    first: dict[Path, str] = {}
    for image_id, image in images.items():
        if first.setdefault(image, image_id) != image_id:
            problems.add(
                f"{path}: the ids {first[image]!r} and {image_id!r} both mean {image.name!r}: write "
                "its id in one way",
                kind=FileError,
            )


def _match_references(
    path: Path, known: dict[str, list[str]], ids: list[str], problems: Problems
) -> dict[str, list[str]]:
    """The references of every id; note which are missing or ambiguous."""
    names = Names(known)
    found = only_matches(
        path, {image_id: names.find(image_id) for image_id in ids}, "no references", problems
    )
    return {image_id: known[entry] for image_id, entry in found.items()}
