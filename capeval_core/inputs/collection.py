"""Captions and references in the files that the field already uses, joined with a folder of images.

Read by extension:

    .json     {image id: caption}, {image id: [captions]}, {image id: [references]},
              COCO results [{"image_id": ..., "caption": ...}],
              COCO annotations {"images": [...], "annotations": [...]}
    .jsonl    one object a line, with image_id, image or id, and caption, captions or references;
              also .ndjson
    .csv      a header with those names; several rows for one image, or a list in a cell of captions or
              references, as JSON or as pandas writes it; for candidates to choose from also one row per
              image, its id first, then its captions under any names
    .parquet  columns with those names

Image ids are strings throughout: the number 42 of COCO is "42", and finds `COCO_val2014_000000000042.jpg`.
A new format is a reader and a line in `READERS`.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from capeval_core.errors import FileError, Problems, file_problem
from capeval_core.inputs.file_texts import CANDIDATE_FIELDS, REFERENCE_FIELDS, Gatherer, Texts
from capeval_core.inputs.folder import KINDS, Names, match_images, names_in, only_matches
from capeval_core.inputs.json_files import contents, read_json, read_json_lines
from capeval_core.inputs.tables import read_csv, read_parquet

Read = TypeVar("Read")
Reader = Callable[[bytes, Gatherer], None]
"""Hands the values of a file to the gatherer; raises FileError for a file that is something else."""

READERS: Mapping[str, Reader] = {
    ".json": read_json,
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".csv": read_csv,
    ".parquet": read_parquet,
}
WIDE_READERS: Mapping[str, Reader] = {**READERS, ".csv": partial(read_csv, wide=True)}


def read_texts(
    path: str | os.PathLike[str],
    fields: Sequence[str],
    problems: Problems,
    readers: Mapping[str, Reader] = READERS,
) -> Texts:
    """Read any of the forms; `fields` are the names that a row's text may have.

    What is wrong with single rows is noted; a file that cannot be read at all raises FileError.
    """
    path = Path(path)
    reader = readers.get(path.suffix.lower())
    if path.is_dir():
        raise FileError(file_problem(path, "is a folder, expected a file"))
    if reader is None:
        found = f"extension {path.suffix!r}" if path.suffix else "no extension"
        raise FileError(file_problem(path, f"{found}, expected one of {', '.join(readers)}"))
    data = contents(path)
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise FileError(file_problem(path, "is empty"))
    before = len(problems)
    gatherer = Gatherer(path, fields, problems)
    reader(data, gatherer)
    if not gatherer.texts.rows and len(problems) == before:
        raise FileError(file_problem(path, "holds no captions"))
    return gatherer.texts


@dataclass(frozen=True)
class Collection:
    """Rows read from files: parallel lists, one entry per caption, fit for `metric.score`.

    images: paths of images or videos; without a folder of them their ids.
    """

    ids: list[str]
    captions: list[str]
    images: Sequence[Any]
    references: list[list[str]] | None


def read_collection(
    candidates: str | os.PathLike[str],
    images: str | os.PathLike[str] | None,
    references: str | os.PathLike[str] | None = None,
    *,
    wide: bool = False,
    medium: str = "image",
) -> Collection:
    """Join a file of candidates with a folder of images, or of videos, and a file of references.

    Every candidate needs an image, and references if a file of them is given; images and references that
    no candidate has are left out. Ids need not be written the same way in all three (see `Names`).
    Where COCO annotations give an id a `file_name`, that image is taken. If none of these files is there, as
    in a folder whose images were renamed to their ids, a warning says so and the ids are used; if only some
    are, the others are an error. `images` None: there is no folder, ids alone name images. `wide`: CSV
    may have one row per image, its candidates side by side. `medium`: "image", or "video": a video is a file,
    or a folder of its frames.

    Raises FileError that lists everything that does not match.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "captions.json").write_text('{"42": "a dog"}')
    ...     Path(folder, "COCO_val2014_000000000042.jpg").touch()
    ...     joined = read_collection(Path(folder, "captions.json"), folder)
    >>> joined.ids, joined.captions, joined.images[0].name, joined.references
    (['42'], ['a dog'], 'COCO_val2014_000000000042.jpg', None)
    """
    problems = Problems()
    readers = WIDE_READERS if wide else READERS
    texts = _attempted(lambda: read_texts(candidates, CANDIDATE_FIELDS, problems, readers), problems)
    folder = None if images is None else Path(images)
    kind = KINDS[medium]
    names = None
    if folder is not None:
        names = _attempted(lambda: Names(names_in(folder, kind), kind.extensions), problems)
    reference_texts = None
    if references is not None:
        reference_texts = _attempted(lambda: read_texts(references, REFERENCE_FIELDS, problems), problems)

    texts = texts or Texts()
    ids = list(texts.by_id())
    paths: Mapping[str, Path | str] = {image_id: image_id for image_id in ids}
    references_of: dict[str, list[str]] = {}
    if folder is not None and names is not None:
        file_names = {**(reference_texts.file_names if reference_texts else {}), **texts.file_names}
        paths = matched_paths = match_images(folder, names, ids, problems, file_names=file_names, kind=kind)
        _refuse_two_ids(Path(candidates), matched_paths, problems)
    if references is not None and reference_texts is not None:
        entries = reference_texts.by_id()
        entry_names = Names(entries)
        matches = {image_id: entry_names.find(image_id) for image_id in ids}
        matched = only_matches(Path(references), matches, "no references", problems)
        references_of = {image_id: entries[entry] for image_id, entry in matched.items()}
    problems.raise_if_any()
    return Collection(
        ids=[image_id for image_id, _ in texts.rows],
        captions=[caption for _, caption in texts.rows],
        images=[paths[image_id] for image_id, _ in texts.rows],
        references=None
        if reference_texts is None
        else [references_of[image_id] for image_id, _ in texts.rows],
    )


def _attempted(read: Callable[[], Read], problems: Problems) -> Read | None:
    """What `read` returns, or None with its problems noted, so that the other files are read as well."""
    try:
        return read()
    except FileError as error:
        problems.extend(error.problems)
        return None


def _refuse_two_ids(path: Path, images: dict[str, Path], problems: Problems) -> None:
    """Note images that have several ids: each id would get a pool and a line of its own."""
    first: dict[Path, str] = {}
    for image_id, image in images.items():
        if first.setdefault(image, image_id) != image_id:
            found = f"the ids {first[image]!r} and {image_id!r} both mean {image.name!r}"
            problems.add(file_problem(path, found, "write its id in one way"))
