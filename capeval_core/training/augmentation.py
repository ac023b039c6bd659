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
from typing import Any, ClassVar, Literal

from PIL import Image
from tqdm import tqdm

from capeval_core.errors import FileError, Problems, ProblemsError, file_problem, option_problem, wrong_option
from capeval_core.inputs.images import in_rgb
from capeval_core.limits import LIMITS
from capeval_core.models.batching import BatchSize
from capeval_core.models.device import resolve_device
from capeval_core.options import Settings, option
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.generators import (
    BLIP,
    STABLE_DIFFUSION,
    Captioner,
    Dropped,
    FoundModel,
    Generator,
    TextToImage,
)
from capeval_core.training.positives import (
    CAPTION,
    IMAGE,
    MADE_WITH,
    Positive,
    PositiveShards,
    Shard,
    Source,
    check_folder,
)


class Sources:
    """What positives are generated from, each once: images for captions, captions of images for images.

    Raises FileError where there are none, with the name of what they are from.
    """

    def __init__(self, what: str, captioned: CaptionedImages, name: str | Path) -> None:
        """what: `captions` or `images`, which are generated."""
        self.sources = [Source(CAPTION, image_id) for image_id in captioned.ids]
        if what == "images":
            rows = zip(captioned.images, captioned.captions, strict=True)
            self.sources = list(dict.fromkeys(Source(IMAGE, image_id, text) for image_id, text in rows))
        if not self.sources:
            found = f"holds no {'captions' if what == 'images' else 'images'}"
            raise FileError(file_problem(name, found))
        self._visual = captioned.visual

    def load(self, number: int) -> Image.Image | str:
        """The content of a source, an RGB image or a caption; raises ImageError or InputTypeError."""
        source = self.sources[number]
        if source.source_caption is not None:
            return source.source_caption
        image: Any = self._visual(number)
        return in_rgb(image).load()

    @property
    def fingerprint(self) -> str:
        """Number, and digest of ids and captions in their order."""
        digest = hashlib.blake2b(digest_size=16)
        for source in self.sources:
            digest.update(json.dumps(source).encode())
        return f"{len(self.sources)} {digest.hexdigest()}"


@dataclass(frozen=True, kw_only=True)
class Augmentation(Settings):
    """How positives are generated."""

    kind: ClassVar[str]
    generator: ClassVar[Any]
    """The class of the model that makes them."""
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

    def stamp(self, found: FoundModel, sources: Sources) -> dict[str, object]:
        """What positives depend on, beside what is recorded only."""
        settings = {name: value for name, value in vars(self).items() if name not in self.free()}
        given = {"weights": found.digest, "sources": sources.fingerprint}
        software = {name: version(name) for name in (*self.libraries, "torch")}
        return {**given, **settings, MADE_WITH: {"model": found.name, **software}}


@dataclass(frozen=True, kw_only=True)
class CaptionAugmentation(Augmentation):
    """How captions are generated, by default as BLIP's release does it on COCO."""

    kind: ClassVar = CAPTION
    generator: ClassVar = Captioner
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
            problems.add(option_problem("top_p", self.top_p, "", expected, verb=""))
        if self.min_length > self.max_length:
            found = f"more than the {self.max_length} of max_length"
            problems.add(option_problem("min_length", self.min_length, found, "pass less"))
        problems.raise_if_any()

    def free(self) -> set[str]:
        return {*super().free(), "top_p" if self.decoding == "beam" else "beams"}


@dataclass(frozen=True, kw_only=True)
class ImageAugmentation(Augmentation):
    """How images are generated, by default as Stable Diffusion's release does it."""

    kind: ClassVar = IMAGE
    generator: ClassVar = TextToImage
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


def augment(settings: Augmentation, sources: Sources, out: Path, part: tuple[int, int] = (1, 1)) -> Counts:
    """Generate what is missing of the positives of one kind in a folder; what became of each.

    Args:
        settings: how.
        sources: of what.
        out: the folder.
        part: which of how many processes this one is, from (1, 1): each makes shards of its own.

    Raises:
        OSError: the folder cannot be written; shards that are written stay.
        ValueError: the folder is of something else, or the model could not be opened.
    """
    check_folder(out)
    found = settings.generator.find(str(settings.model), settings.revision)
    shards = PositiveShards(out, settings.kind, settings.stamp(found, sources))
    return _Run(settings, sources, lambda: settings.generator(found, settings), shards).run(part)


class _Run:
    """Generation of positives; `open_generator` opens the model when the first source needs it."""

    def __init__(
        self,
        settings: Augmentation,
        sources: Sources,
        open_generator: Callable[[], Generator],
        shards: PositiveShards,
    ) -> None:
        self.settings, self.sources, self.shards = settings, sources, shards
        self.counts = Counts()
        self._open = open_generator
        self._generator: Generator | None = None
        size = settings.batch_size
        self._size = BatchSize(size or settings.batch, automatic=size is None)

    def run(self, part: tuple[int, int]) -> Counts:
        """Complete every shard of a part: number I of N has every N-th one."""
        size, total = LIMITS.augmented[self.settings.kind], len(self.sources.sources)
        numbers = range(part[0] - 1, -(-total // size), part[1])
        stretches = [range(number * size, min((number + 1) * size, total)) for number in numbers]
        unit = "image" if self.settings.kind == CAPTION else "caption"
        count = sum(map(len, stretches))
        with tqdm(total=count, desc=f"{self.settings.kind}s", unit=unit, disable=None) as bar:
            for number, stretch in zip(numbers, stretches, strict=True):
                self._complete(number, stretch, bar)
        if self._generator is not None:
            self.counts.truncated = self._generator.truncated
        return self.counts

    def _complete(self, number: int, stretch: range, bar: Any) -> None:
        """Make what is missing of a shard, and write it; what an error interrupts is written too."""
        shard = self.shards.read(number, self.sources.sources[stretch.start : stretch.stop])
        missing = shard.missing(len(stretch))
        self.counts.found += len(shard.made)
        self.counts.dropped.update(shard.dropped.values())
        bar.update(len(stretch) - len(missing))
        unwritten, written_at = False, time.monotonic()
        try:
            for batch in self._batches(stretch, missing):
                unwritten = self._make(batch, stretch, shard) or unwritten
                bar.update(len(batch))
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

    def _make(self, batch: list[int], stretch: range, shard: Shard) -> bool:
        """Generate the positives of some sources; whether any is new."""
        contents: list[tuple[int, Any]] = []
        for i in batch:
            try:
                contents.append((i, self.sources.load(stretch[i])))
            except ProblemsError as error:
                self.counts.failed.append(str(error))
        if not contents:
            return False
        if self._generator is None:
            self._generator = self._open()
        generator = self._generator
        sources = {i: self.sources.sources[stretch[i]] for i in batch}

        def forward(part: list[tuple[int, Any]]) -> list[Any]:
            seeds = [_seed_of(self.settings.seed, sources[i]) for i, _ in part]
            return generator.generate([content for _, content in part], seeds)

        for piece, outputs in self._size.run(contents, forward):
            for (i, _), output in zip(contents[piece], outputs, strict=True):
                if isinstance(output, Dropped):
                    shard.dropped[i] = str(output)
                    self.counts.dropped[str(output)] += 1
                    continue
                caption, image = (output, None) if isinstance(output, str) else (None, output)
                shard.made[i] = Positive(*sources[i], caption, image)
                self.counts.made += 1
        return True


def _seed_of(seed: int, source: Source) -> int:
    """The seed of a source, of 63 bits: another one for every source, whatever is generated before it.

    >>> _seed_of(42, Source("image", "17", "a dog")) == _seed_of(42, Source("image", "17", "a cat"))
    False
    """
    texts = [str(seed), source.kind, source.id, source.source_caption or ""]
    content = "".join(f"{len(text)} {text}" for text in texts).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1
