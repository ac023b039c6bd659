"""Training data: captions and images of files, or of a dataset of Hugging Face."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from capeval_core.errors import Problems, did_you_mean, expanded_path, file_error, shown, warn, wrong_option
from capeval_core.inputs.boxes import BoxFeatureStore
from capeval_core.inputs.collection import read_captions
from capeval_core.inputs.columns import FileOptions
from capeval_core.inputs.images import InputImage, Visual
from capeval_core.inputs.joining import Folder, paths_by_id
from capeval_core.options import option
from capeval_core.scores.box_metrics import boxes_by_id


@dataclass(frozen=True)
class CaptionedImages:
    """Images with their captions."""

    ids: list[str]
    captions: list[str]
    images: list[str]
    visual: Callable[[int], Visual[Any]]

    @property
    def fingerprint(self) -> str:
        """Digest of ids and captions."""
        digest = hashlib.blake2b(digest_size=16)
        for image, caption in zip(self.images, self.captions, strict=True):
            digest.update(f"{image}\0{caption}\0\0".encode())  # texts of files hold no zero
        return digest.hexdigest()

    @property
    def numbers(self) -> list[int]:
        """The number of each caption's image."""
        number = {image_id: index for index, image_id in enumerate(self.ids)}
        return [number[image_id] for image_id in self.images]


@dataclass(frozen=True, kw_only=True)
class CaptionSource(FileOptions):
    """Options for reading captions and images of files, or a dataset of Hugging Face."""

    without: ClassVar[tuple[str, ...]] = ("reference_column",)

    dataset: str | None = option(
        None, "instead of files: a dataset's folder (`save_to_disk`) or Hub id; --split is train by default"
    )
    image_column: str = option("image", "column of a dataset's images")

    def read(
        self, captions: Path | None, images: Path | None, store: BoxFeatureStore | None = None
    ) -> CaptionedImages:
        """Captions of a file, with a folder of images or box features; without a file all of the folder."""
        problems = Problems()
        if captions is None:
            paths = paths_by_id(images, problems) if images is not None else {}
            problems.raise_if_any()
            return CaptionedImages(list(paths), [], [], _images(list(paths), paths))
        folder = Folder(images) if images is not None and store is None else None
        rows = read_captions(captions, folder, self)
        ids = []
        texts = []
        file_names = {}
        for image_id, name, text in rows:
            if text.strip():
                ids.append(image_id)
                texts.append(text)
                file_names[image_id] = name
        # A warning here, where scoring has an error: of a caption to train on nobody waits for a score.
        if len(texts) < len(rows):
            warn(f"{captions}: {len(rows) - len(texts):,} captions are empty and left out")
        return images_of(ids, texts, folder, store, file_names)

    def read_dataset(self, *kinds: str) -> CaptionedImages:
        """The `images` and `captions` of the dataset; rows of one `id_column` show one image."""
        import datasets

        name = str(self.dataset)
        loaded = self._load_dataset(name)
        caption_column = self.caption_column or "caption"
        columns = {}
        if "images" in kinds:
            columns["image_column"] = self.image_column
        if "captions" in kinds:
            columns["caption_column"] = caption_column
        if self.id_column is not None:
            columns["id_column"] = self.id_column
        for option_name, column in columns.items():
            names = loaded.column_names
            if column not in names:
                problem = f"is not a column of {name}{did_you_mean(column, names)} ({', '.join(names)})"
                raise wrong_option(option_name, column, problem, "")
        row_ids = range(len(loaded)) if self.id_column is None else loaded[self.id_column]
        image_ids = list(map(str, row_ids))
        first_rows: dict[str, int] = {}  # of each image
        captions = []
        images = []
        problems = Problems()
        if "captions" not in kinds:
            for row, image_id in enumerate(image_ids):
                first_rows.setdefault(image_id, row)
        else:
            # A row holds one caption, or a list of those of its image, as Flickr30k's does.
            for row, texts in enumerate(loaded[caption_column]):
                for text in texts if isinstance(texts, (list, tuple)) else [texts]:
                    if isinstance(text, str) and text.strip():
                        first_rows.setdefault(image_ids[row], row)
                        captions.append(text)
                        images.append(image_ids[row])
                    else:
                        index = f"row {row}: {caption_column}"
                        fix = "leave it out, or pass a column of texts"
                        problems.add(file_error(name, f"is {shown(text)}", fix, index=index))
        problems.raise_if_any()
        ids = list(first_rows)
        pictures = None
        if "images" in kinds:
            # Undecoded, so that an image is decoded when a training reads it.
            if isinstance(loaded.features[self.image_column], datasets.Image):
                loaded = loaded.cast_column(self.image_column, datasets.Image(decode=False))
            pictures = loaded.select_columns([self.image_column])

        def visual(i: int) -> InputImage:
            picture = None
            if pictures is not None:
                picture = pictures[first_rows[ids[i]]][self.image_column]
            return InputImage.of(picture, f"image of {ids[i]!r}")

        return CaptionedImages(ids, captions, images, visual)

    def _load_dataset(self, name: str) -> Any:
        """The split of a dataset in a folder or on the Hub."""
        import datasets

        split = self.split or "train"
        path = expanded_path(name)
        try:
            loaded: Any = None
            if path.exists():
                loaded = datasets.load_from_disk(str(path))
            else:
                loaded = datasets.load_dataset(name, split=split)
        except Exception as error:  # the Hub, its client and damaged files can raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            problem = f"could not be loaded as a dataset ({reason})"
            fix = "pass the folder of `save_to_disk`, or the id of a dataset on the Hub"
            raise wrong_option("dataset", name, problem, fix) from None
        if isinstance(loaded, datasets.DatasetDict):
            if split not in loaded:
                raise wrong_option("split", split, f"is not in {name} ({', '.join(loaded)})", "")
            loaded = loaded[split]
        return loaded


def images_of(
    image_of_caption: list[str],
    captions: list[str],
    folder: Folder | None,
    store: BoxFeatureStore | None,
    file_names: Mapping[str, str] | None = None,
) -> CaptionedImages:
    """Captions of images with these ids, and the images of a folder, or box features.

    file_names: the file's name of an image, by its id, if the file is not called by the id.
    """
    ids = list(dict.fromkeys(image_of_caption))
    if store is not None:
        boxes = boxes_by_id(store, ids)
        return CaptionedImages(ids, captions, image_of_caption, lambda i: boxes[i])
    problems = Problems()
    paths: Mapping[str, Any] = {}
    if folder is not None:
        names = dict(zip(ids, ids, strict=True))
        names.update(file_names or {})
        paths = folder.match(names, problems)
    problems.raise_if_any()
    return CaptionedImages(ids, captions, image_of_caption, _images(ids, paths))


def _images(ids: list[str], paths: Mapping[str, Any]) -> Callable[[int], Visual[Any]]:
    """The image of each number, unread."""
    return lambda i: InputImage.of(paths[ids[i]], f"image of {ids[i]!r}")
