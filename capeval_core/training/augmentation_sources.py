"""What positives are generated from: images that get captions, and captions that get images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from PIL import Image

from capeval_core.errors import FileError, Problems, file_problem, warn
from capeval_core.inputs.folder import Folder, paths_by_id
from capeval_core.inputs.sources import InRgb
from capeval_core.inputs.text_files import FileOptions, Texts
from capeval_core.inputs.visual import InputImage
from capeval_core.options import Settings, option
from capeval_core.training.captioned import (
    captions_of_rows,
    ids_of_rows,
    load_rows,
    pictures_of_rows,
    texts_of,
)
from capeval_core.training.positives import CAPTION, IMAGE, Source

Content = TypeVar("Content")


@dataclass(frozen=True)
class Sources(Generic[Content]):
    """What positives are generated from, each once, and how its content is opened.

    load: the content of source number i, an RGB image or a caption; it raises ImageError or InputTypeError.
    """

    sources: list[Source]
    load: Callable[[int], Content]

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def fingerprint(self) -> str:
        """Digest of ids and captions, in their order."""
        digest = hashlib.blake2b(digest_size=16)
        for source in self.sources:
            digest.update(json.dumps(source).encode())
        return digest.hexdigest()


def images_of_files(
    images: Path, captions: Path | None, options: FileOptions | None = None
) -> Sources[Image.Image]:
    """The images of a folder: those that a file of captions is about, by its ids, or all, by their names.

    Raises:
        FileError: what cannot be read; no images; ids without an image; two images of one name.
    """
    problems = Problems()
    if captions is None:
        paths = paths_by_id(images, problems)
    else:
        texts = _texts_of(captions, options, images)
        ids = list(dict.fromkeys(image_id for image_id, _ in texts.rows))
        found = Folder(images).match(ids, problems, texts.file_names)
        paths = {image_id: found[image_id] for image_id in ids if image_id in found}
    problems.raise_if_any()
    files = list(paths.values())
    return _image_sources(list(paths), lambda i: files[i])


def captions_of_file(captions: Path, options: FileOptions | None = None) -> Sources[str]:
    """The captions of a file of references or candidates; empty ones are left out with a warning.

    Raises:
        FileError: what cannot be read; no captions.
    """
    rows = [(image_id, text) for image_id, text in _texts_of(captions, options).rows if text.strip()]
    if not rows:
        raise FileError(file_problem(captions, "holds no captions that are not empty"))
    return _caption_sources(rows)


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(Settings):
    """A dataset of Hugging Face."""

    dataset: str | None = option(None, "a dataset's folder (`save_to_disk`) or Hub id")
    split: str = option("train", "part of it, or of a file whose rows name theirs")
    id_column: str | None = option(
        None,
        "of image ids in a file; rows of a dataset with equal values there show one image; None: each row's "
        "number is its id",
    )


@dataclass(frozen=True, kw_only=True)
class ImageDataset(DatasetOptions):
    """A dataset whose images get captions."""

    caption_column: str = option("caption", "of captions in a file")
    image_column: str = option("image", "of its images")

    def read(self, name: str) -> Sources[Image.Image]:
        """The images of the dataset of that name; errors are those of `load_rows`."""
        columns = {"image_column": self.image_column, "id_column": self.id_column}
        loaded = load_rows(name, self.split, columns)
        first: dict[str, int] = {}
        for row, image_id in enumerate(ids_of_rows(loaded, self.id_column)):
            first.setdefault(image_id, row)
        if not first:
            raise FileError(file_problem(name, f"has no rows in {self.split}"))
        pictures, rows = pictures_of_rows(loaded, self.image_column), list(first.values())
        return _image_sources(list(first), lambda i: pictures[rows[i]][self.image_column])


@dataclass(frozen=True, kw_only=True)
class CaptionDataset(DatasetOptions):
    """A dataset whose captions get images."""

    caption_column: str = option("caption", "of captions, in a file or dataset")

    def read(self, name: str) -> Sources[str]:
        """The captions of the dataset of that name; errors are those of `load_rows`."""
        columns = {"caption_column": self.caption_column, "id_column": self.id_column}
        loaded = load_rows(name, self.split, columns)
        _, captions, images = captions_of_rows(loaded, Path(name), self.caption_column, self.id_column)
        if not captions:
            raise FileError(file_problem(name, f"has no captions in {self.split}"))
        return _caption_sources(list(zip(images, captions, strict=True)))


def _image_sources(ids: list[str], value: Callable[[int], object]) -> Sources[Image.Image]:
    def load(i: int) -> Image.Image:
        image = InputImage.of(value(i), f"image of {ids[i]!r}")
        return InputImage(image.where, InRgb(image.source)).load()

    return Sources([Source(CAPTION, image_id) for image_id in ids], load)


def _caption_sources(rows: list[tuple[str, str]]) -> Sources[str]:
    """Captions with the ids of their images; a caption that an image has twice is one source."""
    sources = list(dict.fromkeys(Source(IMAGE, image_id, text) for image_id, text in rows))
    return Sources(sources, lambda i: str(sources[i].source_caption))


def _texts_of(captions: Path, options: FileOptions | None, images: Path | None = None) -> Texts:
    texts = texts_of(captions, options, images)
    if empty := sum(not text.strip() for _, text in texts.rows):
        warn(f"{captions}: {empty:,} captions are empty and left out")
    return texts
