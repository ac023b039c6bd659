"""Positive augmentation: captions generated from images and images generated from captions.

Sarto et al., "Positive-Augmented Contrastive Learning for Image and Video Captioning Evaluation", CVPR 2023,
https://arxiv.org/abs/2303.12112, section 4.1: captions by BLIP (ViT-L, tuned on COCO), images by Stable
Diffusion at 512x512 with its safety checker. What the paper leaves open are the defaults of their releases:
beams and lengths of BLIP's captions, steps and guidance of Stable Diffusion.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from PIL import Image
from tqdm import tqdm

from capeval_core.errors import FileError, Problems, ProblemsError, file_problem, wrong_option
from capeval_core.inputs.folder import Folder, paths_by_id
from capeval_core.inputs.images import InputImage, in_rgb
from capeval_core.inputs.text_files import FileOptions, Texts
from capeval_core.limits import LIMITS
from capeval_core.models.batching import BatchSize
from capeval_core.models.device import resolve_device
from capeval_core.options import Settings, option
from capeval_core.training.captioned import (
    captions_of_rows,
    ids_of_rows,
    load_rows,
    pictures_of_rows,
    texts_of,
)
from capeval_core.training.generators import BLIP, STABLE_DIFFUSION, Dropped, FoundModel, Generator
from capeval_core.training.positives import CAPTION, IMAGE, MADE_WITH, Positive, PositiveShards, Shard, Source

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
        return _image_sources(list(first), lambda i: pictures(rows[i]))


@dataclass(frozen=True, kw_only=True)
class CaptionDataset(DatasetOptions):
    """A dataset whose captions get images."""

    caption_column: str = option("caption", "of captions, in a file or dataset")

    def read(self, name: str) -> Sources[str]:
        """The captions of the dataset of that name; errors are those of `load_rows`."""
        columns = {"caption_column": self.caption_column, "id_column": self.id_column}
        loaded = load_rows(name, self.split, columns)
        _, captions, images = captions_of_rows(loaded, name, self.caption_column, self.id_column)
        if not captions:
            raise FileError(file_problem(name, f"has no captions in {self.split}"))
        return _caption_sources(list(zip(images, captions, strict=True)))


def _image_sources(ids: list[str], value: Callable[[int], object]) -> Sources[Image.Image]:
    def load(i: int) -> Image.Image:
        image = InputImage.of(value(i), f"image of {ids[i]!r}")
        return in_rgb(image).load()

    return Sources([Source(CAPTION, image_id) for image_id in ids], load)


def _caption_sources(rows: list[tuple[str, str]]) -> Sources[str]:
    """Captions with the ids of their images; a caption that an image has twice is one source."""
    sources = list(dict.fromkeys(Source(IMAGE, image_id, text) for image_id, text in rows))
    return Sources(sources, lambda i: str(sources[i].source_caption))


def _texts_of(captions: Path, options: FileOptions | None, images: Path | None = None) -> Texts:
    return texts_of(captions, options, images)


@dataclass(frozen=True, kw_only=True)
class Augmentation(Settings):
    """How positives are generated."""

    kind: ClassVar[Literal["caption", "image"]]
    libraries: ClassVar[tuple[str, ...]]
    """Packages whose versions are recorded."""
    batch: ClassVar[int]
    """Sources per forward pass, where the user does not say."""

    model: str | PathLike[str] = option("", "Hub repository id, or folder, with safetensors")
    revision: str | None = option(
        None, "commit, branch or tag of the model on the Hub; None: the newest commit, which is recorded"
    )
    seed: int = option(42, "seed of every draw, together with the id and text of its source", minimum=0)
    device: str | None = option(None, "torch device, e.g. `cpu`, `cuda:1`; None: CUDA where there is a GPU")
    dtype: Literal["float32", "bfloat16", "float16"] = option("float32", "numeric type of the model")
    batch_size: int | None = option(
        None,
        "sources per forward pass; None: 16 images or 4 captions, or as many as fit into memory",
        minimum=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve_device(self.device)
        if not str(self.model):
            raise wrong_option("model", "", "missing", "pass a Hub repository id or a folder")

    def free(self) -> set[str]:
        """Settings that positives do not depend on, but for rounding."""
        return {"model", "revision", "device", "batch_size"}

    def stamp(self, found: FoundModel, sources: Sources[Any]) -> dict[str, object]:
        """What positives depend on, beside what is recorded only."""
        settings = {name: value for name, value in vars(self).items() if name not in self.free()}
        given = {"weights": found.digest, "sources": f"{len(sources)} {sources.fingerprint}"}
        software = {name: version(name) for name in (*self.libraries, "torch")}
        return {**given, **settings, MADE_WITH: {"model": found.name, **software}}


@dataclass(frozen=True, kw_only=True)
class CaptionAugmentation(Augmentation):
    """How captions are generated, by default as BLIP's release does it on COCO."""

    kind: ClassVar = CAPTION
    libraries: ClassVar = ("transformers",)
    batch: ClassVar = 16

    model: str | PathLike[str] = option(
        BLIP, "BLIP captioner: Hub repository id, or folder, with safetensors"
    )
    decoding: Literal["beam", "nucleus"] = option(
        "beam", "how a caption is decoded: the best of a `beam` search, or drawn from the `nucleus`"
    )
    beams: int = option(3, "beams of the search", minimum=1)
    top_p: float = option(0.9, "probability of the nucleus", minimum=0)
    prompt: str = option("a picture of", "text that the model goes on with; it is no part of the caption")
    min_length: int = option(5, "tokens at least, with those of the prompt", minimum=1)
    max_length: int = option(20, "tokens at most, with those of the prompt", minimum=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = Problems()
        if not 0 < self.top_p <= 1:
            expected = "expected more than 0 and at most 1"
            problems.extend(wrong_option("top_p", self.top_p, "", expected, verb="").problems)
        if self.min_length > self.max_length:
            found = f"more than the {self.max_length} of max_length"
            problems.extend(wrong_option("min_length", self.min_length, found, "pass less").problems)
        problems.raise_if_any()

    def free(self) -> set[str]:
        return {*super().free(), "top_p" if self.decoding == "beam" else "beams"}


@dataclass(frozen=True, kw_only=True)
class ImageAugmentation(Augmentation):
    """How images are generated, by default as Stable Diffusion's release does it."""

    kind: ClassVar = IMAGE
    libraries: ClassVar = ("diffusers", "transformers")
    batch: ClassVar = 4

    model: str | PathLike[str] = option(
        STABLE_DIFFUSION,
        "text-to-image pipeline of diffusers: Hub repository id, or folder, with safetensors",
    )
    steps: int = option(50, "denoising steps", minimum=1)
    guidance: float = option(7.5, "scale of classifier-free guidance", minimum=0)
    image_size: int = option(512, "width and height of the images in pixels", minimum=8)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % 8:
            raise wrong_option("image_size", self.image_size, "no multiple of 8", "pass one, e.g. 512")


@dataclass
class Counts:
    """What became of the sources of a run.

    made: positives that it generated. found: those that were there. dropped: reasons why what was generated
    is not kept, in this run or before, and how often. failed: why sources could not be read. truncated:
    captions of which the model read a part, in this run.
    """

    made: int = 0
    found: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    truncated: int = 0


def seed_of(seed: int, source: Source) -> int:
    """The seed of a source, of 63 bits: another one for every source, whatever is generated before it.

    >>> seed_of(42, Source("image", "17", "a dog")) == seed_of(42, Source("image", "17", "a cat"))
    False
    """
    texts = [str(seed), source.kind, source.id, source.source_caption or ""]
    content = "".join(f"{len(text)} {text}" for text in texts).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


def numbers_of_part(count: int, part: tuple[int, int]) -> range:
    """Shards that are the part's: number I of N takes every N-th one.

    >>> list(numbers_of_part(5, (1, 2))), list(numbers_of_part(5, (2, 2)))
    ([0, 2, 4], [1, 3])
    """
    return range(part[0] - 1, count, part[1])


class AugmentationRun:
    """Generates what is missing of the positives of one kind in a folder.

    Args:
        settings: how.
        sources: of what.
        open_generator: opens the model; it is called when the first source needs it.
        shards: where to.
        part: which of how many processes this one is, from (1, 1): each makes shards of its own.
    """

    def __init__(
        self,
        settings: Augmentation,
        sources: Sources[Content],
        open_generator: Callable[[], Generator[Content]],
        shards: PositiveShards,
        part: tuple[int, int] = (1, 1),
    ) -> None:
        self.settings, self.sources, self.shards, self.part = settings, sources, shards, part
        self.counts = Counts()
        self._open = open_generator
        self._opened: tuple[Generator[Any], BatchSize] | None = None

    def run(self) -> Counts:
        """Generate; the counts.

        Raises:
            OSError: the folder cannot be written; shards that are written stay.
            ValueError: the model could not be opened.
        """
        stretches = list(self._stretches())
        total = sum(len(stretch) for _, stretch in stretches)
        unit = "image" if self.settings.kind == CAPTION else "caption"
        with tqdm(total=total, desc=f"{self.settings.kind}s", unit=unit, disable=None) as bar:
            for number, stretch in stretches:
                self._complete(number, stretch, bar)
        if self._opened is not None:
            self.counts.truncated = self._opened[0].truncated
        return self.counts

    def _stretches(self) -> Iterator[tuple[int, range]]:
        """The shards of this part: number and positions of the sources."""
        size, total = LIMITS.augmented[self.settings.kind], len(self.sources)
        for number in numbers_of_part(-(-total // size), self.part):
            yield number, range(number * size, min((number + 1) * size, total))

    def _complete(self, number: int, stretch: range, bar: Any) -> None:
        """Make what is missing of a shard, and write it; what an error interrupts is written too."""
        shard = self.shards.read(number, self.sources.sources[stretch.start : stretch.stop])
        missing = set(shard.missing(len(stretch)))
        self.counts.found += len(shard.made)
        self.counts.dropped.update(shard.dropped.values())
        bar.update(len(stretch) - len(missing))
        unwritten, written_at = False, time.monotonic()
        try:
            for batch in self._batches(stretch, missing):
                made = len(shard.made) + len(shard.dropped)
                self._make(batch, stretch, shard)
                bar.update(len(batch))
                unwritten = unwritten or len(shard.made) + len(shard.dropped) > made
                if unwritten and time.monotonic() - written_at > LIMITS.training_seconds:
                    unwritten = False  # where this fails, once is enough
                    self.shards.write(number, shard)
                    written_at = time.monotonic()
        finally:
            if unwritten:
                self.shards.write(number, shard)

    def _batches(self, stretch: range, missing: set[int]) -> Iterator[list[int]]:
        """Positions that are missing, of fixed pieces, so that a run that goes on makes the same batches."""
        size = self.settings.batch_size or self.settings.batch
        for start in range(0, len(stretch), size):
            batch = [i for i in range(start, min(start + size, len(stretch))) if i in missing]
            if batch:
                yield batch

    def _make(self, batch: list[int], stretch: range, shard: Shard) -> None:
        contents: list[tuple[int, Any]] = []
        for i in batch:
            try:
                contents.append((i, self.sources.load(stretch[i])))
            except ProblemsError as error:
                self.counts.failed.append(str(error))
        if not contents:
            return
        if self._opened is None:
            size = self.settings.batch_size
            batch_size = BatchSize(size or self.settings.batch, automatic=size is None)
            self._opened = self._open(), batch_size
        generator, batch_size = self._opened

        def forward(part: list[tuple[int, Any]]) -> list[Any]:
            seeds = [seed_of(self.settings.seed, self.sources.sources[stretch[i]]) for i, _ in part]
            return generator.generate([content for _, content in part], seeds)

        for piece, outputs in batch_size.run(contents, forward):
            for (i, _), output in zip(contents[piece], outputs, strict=True):
                if isinstance(output, Dropped):
                    shard.dropped[i] = str(output)
                    self.counts.dropped[str(output)] += 1
                else:
                    source = self.sources.sources[stretch[i]]
                    shard.made[i] = _positive(source, output)
                    self.counts.made += 1


def _positive(source: Source, output: str | bytes) -> Positive:
    if isinstance(output, str):
        return Positive(CAPTION, source.id, caption=output)
    return Positive(IMAGE, source.id, source.source_caption, image=output)
