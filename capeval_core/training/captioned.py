"""The captions and images that a metric is trained on: files of captions with a folder, or a dataset."""

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
from capeval_core.scores.boxes import boxes_by_id


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
            digest.update(f"{image}\0{caption}\0\0".encode())
        return digest.hexdigest()

    @property
    def numbers(self) -> list[int]:
        """Of each caption the number of its image."""
        number = {image_id: index for index, image_id in enumerate(self.ids)}
        return [number[image_id] for image_id in self.images]


@dataclass(frozen=True, kw_only=True)
class CaptionSource(FileOptions):
    """How captions and images are read, of files or of a dataset of Hugging Face."""

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
        texts = [(image_id, name, text) for image_id, name, text in rows if text.strip()]
        if len(texts) < len(rows):
            warn(f"{captions}: {len(rows) - len(texts):,} captions are empty and left out")
        ids = [image_id for image_id, _, _ in texts]
        file_names = {image_id: name for image_id, name, _ in texts}
        return images_of(ids, [text for _, _, text in texts], folder, store, file_names)

    def read_dataset(self, *kinds: str) -> CaptionedImages:
        """The `images` and `captions` of the dataset; rows of one `id_column` show one image."""
        import datasets

        name, split, problems = str(self.dataset), self.split or "train", Problems()
        path = expanded_path(name)
        try:
            loaded: Any = None
            if path.exists():
                loaded = datasets.load_from_disk(str(path))
            else:
                loaded = datasets.load_dataset(name, split=split)
        except Exception as error:  # whatever the Hub, its client or the files raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            fix = "pass the folder of `save_to_disk`, or the id of a dataset on the Hub"
            found = f"could not be loaded as a dataset ({reason})"
            raise wrong_option("dataset", name, found, fix) from None
        if isinstance(loaded, datasets.DatasetDict):
            if split not in loaded:
                raise wrong_option("split", split, f"is not in {name} ({', '.join(loaded)})", "")
            loaded = loaded[split]
        caption = self.caption_column or "caption"
        needed = {"image_column": self.image_column} if "images" in kinds else {}
        needed |= {"caption_column": caption} if "captions" in kinds else {}
        needed |= {"id_column": self.id_column} if self.id_column is not None else {}
        for flag, column in needed.items():
            if column not in (known := loaded.column_names):
                found = f"is no column of {name}{did_you_mean(column, known)} ({', '.join(known)})"
                raise wrong_option(flag, column, found, "")
        names = list(map(str, loaded[self.id_column] if self.id_column is not None else range(len(loaded))))
        rows: dict[str, int] = {}  # of each image the first
        captions, images = [], []
        for row, texts in enumerate(loaded[caption] if "captions" in kinds else [()] * len(names)):
            if "captions" not in kinds:
                rows.setdefault(names[row], row)
            for text in texts if isinstance(texts, (list, tuple)) else [texts]:
                if isinstance(text, str) and text.strip():
                    rows.setdefault(names[row], row)
                    captions.append(text)
                    images.append(names[row])
                else:
                    fix = "leave it out, or pass a column of texts"
                    problems.add(file_error(name, f"is {shown(text)}", fix, index=f"row {row}: {caption}"))
        problems.raise_if_any()
        ids, pictures = list(rows), None
        if "images" in kinds:
            if isinstance(loaded.features[self.image_column], datasets.Image):
                loaded = loaded.cast_column(self.image_column, datasets.Image(decode=False))
            pictures = loaded.select_columns([self.image_column])

        def visual(i: int) -> InputImage:
            picture = None if pictures is None else pictures[rows[ids[i]]][self.image_column]
            return InputImage.of(picture, f"image of {ids[i]!r}")

        return CaptionedImages(ids, captions, images, visual)


def images_of(
    of_caption: list[str],
    captions: list[str],
    folder: Folder | None,
    store: BoxFeatureStore | None,
    file_names: Mapping[str, str] | None = None,
) -> CaptionedImages:
    """Captions of images with these ids, and the images of a folder, or box features.

    file_names: what an image is called where its files lie, if not by its id.
    """
    ids = list(dict.fromkeys(of_caption))
    if store is not None:
        boxes = boxes_by_id(store, ids)
        return CaptionedImages(ids, captions, of_caption, lambda i: boxes[i])
    problems = Problems()
    wanted = {image_id: (file_names or {}).get(image_id, image_id) for image_id in ids}
    paths = folder.match(wanted, problems) if folder is not None else {}
    problems.raise_if_any()
    return CaptionedImages(ids, captions, of_caption, _images(ids, paths))


def _images(ids: list[str], found: Mapping[str, Any]) -> Callable[[int], Visual[Any]]:
    return lambda i: InputImage.of(found[ids[i]], f"image of {ids[i]!r}")
