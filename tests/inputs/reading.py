"""Files of captions, and folders of images, read one at a time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from capeval_core.errors import Problems
from capeval_core.inputs.file_texts import CANDIDATE_FIELDS, REFERENCE_FIELDS
from capeval_core.inputs.folder import Names, match_images, names_in
from capeval_core.inputs.text_files import read_texts


def read_candidates(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    problems = Problems()
    texts = read_texts(path, CANDIDATE_FIELDS, problems)
    problems.raise_if_any()
    return texts.rows


def read_references(path: str | os.PathLike[str]) -> dict[str, list[str]]:
    problems = Problems()
    texts = read_texts(path, REFERENCE_FIELDS, problems)
    problems.raise_if_any()
    return texts.by_id()


def find_images(folder: str | os.PathLike[str], ids: Sequence[str] = ()) -> dict[str, Path]:
    problems = Problems()
    images = match_images(Path(folder), Names(names_in(Path(folder))), ids, problems)
    problems.raise_if_any()
    return images
