"""Captions and references in the files that the field already uses.

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
A new format is a reader in a module of its own and a line in `READERS`.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from capeval_core.inputs.files.csv_tables import read_csv
from capeval_core.inputs.files.gathering import CANDIDATE_FIELDS, REFERENCE_FIELDS, Gatherer, Texts
from capeval_core.inputs.files.json_forms import read_json
from capeval_core.inputs.files.json_lines import read_json_lines
from capeval_core.inputs.files.parquet_tables import read_parquet
from capeval_core.inputs.files.parsing import contents
from capeval_core.inputs.problems import FileError, Problems

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


def read_candidates(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """The captions to be scored, as (image id, caption) in the file's order; an id may come several times.

    Raises FileError with everything that is wrong with the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "captions.json"
    ...     _ = path.write_text('{"42": ["a dog", "an animal"], "43": "a cat"}')
    ...     read_candidates(path)
    [('42', 'a dog'), ('42', 'an animal'), ('43', 'a cat')]
    """
    return _read_alone(path, CANDIDATE_FIELDS).rows


def read_references(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    """The reference captions of every image id. Raises FileError with everything that is wrong.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "references.json"
    ...     _ = path.write_text('[{"id": 42, "references": ["a dog", "an animal"]}]')
    ...     read_references(path)
    {'42': ['a dog', 'an animal']}
    """
    return _read_alone(path, REFERENCE_FIELDS).by_id()


def _read_alone(path: str | os.PathLike[str], fields: Sequence[str]) -> Texts:
    problems = Problems()
    texts = read_texts(path, fields, problems)
    problems.raise_if_any()
    return texts


def read_texts(
    path: str | os.PathLike[str],
    fields: Sequence[str],
    problems: Problems,
    readers: Mapping[str, Reader] = READERS,
) -> Texts:
    """Read any of the forms; `fields` are the names under which a row's text may stand.

    What is wrong with single rows is noted; a file that cannot be read at all raises FileError.
    """
    path = Path(path)
    reader = readers.get(path.suffix.lower())
    if path.is_dir():
        raise FileError(f"{path}: is a folder, expected a file")
    if reader is None:
        found = f"extension {path.suffix!r}" if path.suffix else "no extension"
        raise FileError(f"{path}: {found}, expected one of {', '.join(readers)}")
    data = contents(path)
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        raise FileError(f"{path}: is empty")
    before = len(problems)
    gatherer = Gatherer(path, fields, problems)
    reader(data, gatherer)
    if not gatherer.texts.rows and len(problems) == before:
        raise FileError(f"{path}: holds no captions")
    return gatherer.texts
