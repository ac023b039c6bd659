"""The captions and images that a metric is trained on: files of captions with a folder, or a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from capeval_core.errors import Problems, did_you_mean, file_problem, warn, wrong_option
from capeval_core.inputs.box_stores import BoxFeatureStore
from capeval_core.inputs.folder import Folder
from capeval_core.inputs.images import InputImage, InputVisual
from capeval_core.inputs.text_files import REFERENCE_FIELDS, FileOptions, Texts, read_texts, refuse_unused
from capeval_core.scores.boxes import boxes_by_id
from capeval_core.values import expanded_path, shown


@dataclass(frozen=True)
class CaptionedImages:
    """Images with their captions.

    ids: of the images, each once. captions: all of them. images: the image's id of each caption.
    visuals: opens the images, or their box features, in the order of `ids`, one at a time.
    """

    ids: list[str]
    captions: list[str]
    images: list[str]
    visuals: Callable[[], Iterator[InputVisual[Any]]]

    @property
    def fingerprint(self) -> str:
        """Digest of ids and captions."""
        digest = hashlib.blake2b(digest_size=16)
        for image, caption in zip(self.images, self.captions, strict=True):
            digest.update(f"{image}\0{caption}\0\0".encode())
        return digest.hexdigest()

    @property
    def numbers(self) -> list[int]:
        """Of each caption the number of its image."""
        number = {image_id: index for index, image_id in enumerate(self.ids)}
        return [number[image_id] for image_id in self.images]


def read_captioned(
    captions: Path,
    images: Path | None,
    store: BoxFeatureStore | None = None,
    options: FileOptions | None = None,
) -> CaptionedImages:
    """The captions of a file of references or candidates, with a folder of images or with box features.

    Raises:
        FileError: what cannot be read; ids without an image; no captions.
    """
    texts = texts_of(captions, options, images if store is None else None)
    rows = [(image_id, text) for image_id, text in texts.rows if text.strip()]
    ids, captions_ = [image_id for image_id, _ in rows], [text for _, text in rows]
    return images_of(captions, ids, captions_, images, store, texts.file_names)


def texts_of(captions: Path, options: FileOptions | None = None, images: Path | None = None) -> Texts:
    """The captions of a file, by ids of a folder's images; it warns of empty ones. Raises FileError."""
    problems, options = Problems(), options or FileOptions()
    texts = read_texts(captions, REFERENCE_FIELDS, problems, options)
    refuse_unused(options, {captions: texts}, problems)
    if images is not None:
        texts.use_id_column(captions, Folder(images).find, options, problems)
    problems.raise_if_any()
    if empty := sum(not text.strip() for _, text in texts.rows):
        warn(f"{captions}: {empty:,} captions are empty and left out")
    return texts


def images_of(
    file: Path,
    of_caption: list[str],
    captions: list[str],
    images: Path | None,
    store: BoxFeatureStore | None,
    file_names: Mapping[str, str] | None = None,
) -> CaptionedImages:
    """Captions of a file with the images of a folder, or with box features.

    of_caption: the image's id of each caption. file_names: the files that ids mean by an annotation.

    Raises:
        FileError: ids without an image. ValueError: neither folder nor features.
    """
    ids = list(dict.fromkeys(of_caption))
    if store is not None:
        boxes = boxes_by_id(store, ids)
        return CaptionedImages(ids, captions, of_caption, lambda: iter(boxes))
    if images is None:
        raise ValueError(f"{file}: a folder of images is needed, or box features that were made before")
    problems = Problems()
    paths = Folder(images).match(ids, problems, file_names)
    problems.raise_if_any()
    return CaptionedImages(
        ids,
        captions,
        of_caption,
        lambda: (InputImage.of(paths[image_id], f"image of {image_id!r}") for image_id in ids),
    )


def open_dataset(
    name: str, *, split: str, image_column: str, caption_column: str, id_column: str | None
) -> CaptionedImages:
    """Images and captions of a dataset of Hugging Face.

    Args:
        name: folder of `save_to_disk`, or Hub id.
        split: which part of it, where it has parts.
        caption_column: texts, or lists of texts.
        id_column: rows with equal values there show one image; None: every row has its own.

    Raises:
        ValueError: it could not be loaded, or has no such columns.
    """
    columns = {"image_column": image_column, "caption_column": caption_column, "id_column": id_column}
    loaded = load_rows(name, split, columns)
    ids, captions, images = captions_of_rows(loaded, name, caption_column, id_column)
    pictures = pictures_of_rows(loaded, image_column)
    return CaptionedImages(
        list(ids),
        captions,
        images,
        lambda: (InputImage.of(pictures(row), f"image of {image_id!r}") for image_id, row in ids.items()),
    )


def load_rows(name: str, split: str, columns: Mapping[str, str | None]) -> Any:
    """The rows of a dataset of Hugging Face, which has these columns, by the option that names each.

    Raises:
        ValueError: it could not be loaded, or has no such columns.
    """
    import datasets

    path = expanded_path(name)
    try:
        on_disk = path.exists()
        loaded: Any = (
            datasets.load_from_disk(str(path)) if on_disk else datasets.load_dataset(name, split=split)
        )
    except Exception as error:  # whatever the Hub, its client or the files raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        fix = "pass the folder of `save_to_disk`, or the id of a dataset on the Hub"
        found = f"a dataset ({reason})"
        raise wrong_option("dataset", name, found, fix, verb="could not be loaded as") from None
    if isinstance(loaded, datasets.DatasetDict):
        if split not in loaded:
            raise wrong_option("split", split, f"not in {name} ({', '.join(loaded)})", "")
        loaded = loaded[split]
    known = loaded.column_names
    for option, column in columns.items():
        if column is not None and column not in known:
            found = f"no column of {name}{did_you_mean(column, known)} ({', '.join(known)})"
            raise wrong_option(option, column, found, "")
    return loaded


def captions_of_rows(
    loaded: Any, name: str, caption_column: str, id_column: str | None
) -> tuple[dict[str, int], list[str], list[str]]:
    """Of a dataset's rows: the first row of each image's id, all captions, and the image's id of each.

    Raises:
        FileError: a caption that is empty or no text.
    """
    problems = Problems()
    ids: dict[str, int] = {}
    captions, images = [], []
    names = ids_of_rows(loaded, id_column)
    for row, (image_id, texts) in enumerate(zip(names, loaded[caption_column], strict=True)):
        for text in texts if isinstance(texts, (list, tuple)) else [texts]:
            if not isinstance(text, str) or not text.strip():
                fix = "leave it out" if isinstance(text, (str, NoneType)) else "pass a column of texts"
                where = f"row {row}: {caption_column}"
                problems.add(file_problem(name, shown(text), fix, index=where, verb="is"))
                continue
            ids.setdefault(image_id, row)
            captions.append(text)
            images.append(image_id)
    problems.raise_if_any()
    return ids, captions, images


def ids_of_rows(loaded: Any, id_column: str | None) -> list[str]:
    """The image's id of each row of a dataset: its value in a column, or the row's number."""
    return list(map(str, loaded[id_column] if id_column is not None else range(len(loaded))))


def pictures_of_rows(loaded: Any, image_column: str) -> Callable[[int], Any]:
    """The image of a row of a dataset, decoded when it is needed."""
    import datasets

    if isinstance(loaded.features[image_column], datasets.Image):
        loaded = loaded.cast_column(image_column, datasets.Image(decode=False))
    pictures = loaded.select_columns([image_column])
    return lambda row: pictures[row][image_column]
