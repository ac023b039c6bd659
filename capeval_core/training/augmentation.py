"""Positive augmentation: captions generated from images and images generated from captions.

Sarto et al., "Positive-Augmented Contrastive Learning for Image and Video Captioning Evaluation", CVPR 2023,
https://arxiv.org/abs/2303.12112, section 4.1: captions by BLIP (ViT-L, tuned on COCO), images by Stable
Diffusion at 512x512 with its safety checker. What the paper leaves open are the defaults of their releases:
beams and lengths of BLIP's captions, steps and guidance of Stable Diffusion.

Positives are kept tables, in a folder of each kind, which also hold the settings and what was dropped.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from capeval_core.errors import InputError, Problems, ProblemsError, file_error, wrong_option
from capeval_core.inputs.images import InputImage, in_rgb
from capeval_core.limits import LIMITS
from capeval_core.models.batching import BatchSize
from capeval_core.models.device import DTYPES, resolve_device
from capeval_core.options import Settings, option
from capeval_core.project import install_command
from capeval_core.store import DamagedError, TableStore, check_folder, read_kept
from capeval_core.training.training_data import CaptionedImages
from capeval_core.weights.folder import WeightsError, file_checksum, open_foreign

# Kinds of positives.
CAPTION = "caption"
IMAGE = "image"
BLIP = "Salesforce/blip-image-captioning-large"  # with ViT-L, as PAC-S's paper uses it
STABLE_DIFFUSION = "CompVis/stable-diffusion-v1-4"  # the paper names this model, not its version
_CONFIGS = ["*.json", "*.txt", "*.model"]
_TENSORS = ["*model.safetensors", "*-of-*.safetensors"]
"""Patterns of the files of a model: no pickles, no code, no variants in other numeric types."""


class Positive(NamedTuple):
    """A caption or an image (a PNG) of a source, or why there is none: a row of a kept table."""

    id: str
    source_caption: str | None = None  # of an image
    caption: str | None = None
    image: bytes | None = None
    dropped: str | None = None
    made_with: str | None = None  # the model and the libraries, in JSON

    @property
    def source(self) -> tuple[str, str | None]:
        return self.id, self.source_caption


# Stated, as the type of a column of None alone would be null, and files would not fit together.
_SCHEMA = pa.schema([(name, pa.binary() if name == "image" else pa.string()) for name in Positive._fields])
_ALL_BUT_IMAGES = [name for name in Positive._fields if name != "image"]


def table_of(positives: Sequence[Positive]) -> pa.Table:
    """The rows of a kept table that hold these positives."""
    return pa.Table.from_pylist([positive._asdict() for positive in positives], _SCHEMA)


class Positives:
    """The positives in a folder that `capeval augment` made; images are read one at a time."""

    def __init__(self, folder: Path) -> None:
        self.settings: dict[str, Any] = {}
        captions: dict[str, str] = {}
        self._images: dict[tuple[str, str], tuple[Path, int]] = {}
        digest = hashlib.blake2b(digest_size=16)
        for kind in (CAPTION, IMAGE):
            for path in sorted((folder / f"{kind}s").glob("*.parquet")):
                table, stamp = self._read(path)
                # A name is the time of writing, which says nothing, and a digest of the content.
                digest.update(path.name.partition("-")[2].encode())
                # Not the images: those of a large set would not fit into memory.
                for row, values in enumerate(table.select(_ALL_BUT_IMAGES).to_pylist()):
                    made_with = json.loads(values["made_with"])
                    self.settings.setdefault(f"{kind}s", {**stamp, "made_with": made_with})
                    if values["caption"] is not None:
                        captions[values["id"]] = values["caption"]
                    elif kind == IMAGE and values["dropped"] is None:
                        self._images[values["id"], values["source_caption"]] = path, row
        if not self.settings:
            problem = "holds no positives (captions/*.parquet, images/*.parquet)"
            raise file_error(folder, problem, "pass a folder that `capeval augment` made")
        self.captions = list(captions.items())
        self.sources = list(self._images)
        self.fingerprint = digest.hexdigest()

    def _read(self, path: Path) -> tuple[pa.Table, dict[str, Any]]:
        """The table of a file, and its stamp."""
        try:
            return read_kept(path)
        except DamagedError as error:
            fix = "delete it and run `capeval augment` again"
            raise file_error(path, str(error), fix) from error

    def images(self) -> Iterator[InputImage]:
        """The generated images, one at a time. Raises FileError where a file is damaged."""
        open_path = Path()
        table = pa.table({})
        for (image_id, _), (path, row) in self._images.items():
            # In the order of the files, so each is read once and one is in memory.
            if path != open_path:
                table, _ = self._read(path)
                open_path = path
            yield InputImage.of(table["image"][row].as_py(), f"generated image of {image_id!r}")


def _complete(class_: Any, path: Path, dtype: torch.dtype) -> Any:
    """A model with all of its tensors, where libraries would draw missing ones at random."""
    # `local_files_only`: all that is needed was fetched before, at the commit that is recorded.
    model, loading = class_.from_pretrained(
        path, dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
    )
    missing = sorted(map(str, loading["missing_keys"]))
    if missing:
        raise WeightsError(f"{path.name}: {len(missing):,} tensors are missing, such as {missing[0]}")
    return model


class _Captioner:
    """A BLIP captioner in transformers' format."""

    def __init__(self, path: Path, settings: CaptionAugmentation) -> None:
        from transformers import BlipForConditionalGeneration, BlipProcessor

        self._settings = settings
        self._device = resolve_device(settings.device)
        self._dtype = DTYPES[settings.dtype]
        self._processor: Any = BlipProcessor.from_pretrained(path, local_files_only=True)
        model = _complete(BlipForConditionalGeneration, path, self._dtype)
        prompt_length = len(self._processor.tokenizer(settings.prompt)["input_ids"]) - 1  # without the end
        positions = model.config.text_config.max_position_embeddings
        if not prompt_length < settings.max_length <= positions:
            expected = (
                f"expected more than the prompt's {prompt_length} and at most the model's {positions} tokens"
            )
            raise wrong_option("max_length", settings.max_length, "", expected)
        self._model: Any = model.to(self._device).eval()

    def generate(self, contents: Sequence[Image.Image], seeds: Sequence[int]) -> list[str | bytes | None]:
        """A caption of each image, without the prompt."""
        settings = self._settings
        prompts = [settings.prompt] * len(contents)
        inputs = self._processor(images=list(contents), text=prompts, return_tensors="pt")
        inputs = inputs.to(self._device, self._dtype)
        search: dict[str, Any] = {"num_beams": settings.beams}
        if settings.decoding == "nucleus":
            from transformers import LogitsProcessorList, TopPLogitsWarper

            # Nucleus sampling (Holtzman et al., 2020) by logits of which the highest one is the sample.
            processors = LogitsProcessorList([TopPLogitsWarper(settings.top_p), _GumbelNoise(seeds)])
            search = {"num_beams": 1, "logits_processor": processors}
        with torch.inference_mode():
            tokens = self._model.generate(
                pixel_values=inputs["pixel_values"],
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_length=settings.max_length,
                min_length=settings.min_length,
                do_sample=False,  # which would draw from one stream for all images of a batch
                **search,
            )
        # The prompt's last token, the end, is not passed to the decoder.
        continuations = tokens[:, inputs["input_ids"].shape[1] - 1 :]
        texts = self._processor.batch_decode(continuations, skip_special_tokens=True)
        return [" ".join(text.split()) or None for text in texts]


class _GumbelNoise:
    """Gumbel noise, -log(-log(u)), of a stream for each row: argmax(logits + noise) samples the softmax."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        size = scores.shape[-1]
        # In float64: the noise of draws in float32 would end at 16.6. A stream for each row, so that a
        # caption does not depend on the others of its batch.
        draws = torch.empty(len(self._streams), size, dtype=torch.float64)
        for row, stream in zip(draws, self._streams, strict=True):
            torch.rand(size, generator=stream, dtype=torch.float64, out=row)
        return scores.float() - torch.log(-torch.log(draws)).to(scores.device, torch.float32)


class _TextToImage:
    """A text-to-image pipeline of diffusers."""

    truncated = 0  # captions that are longer than it reads

    def __init__(self, path: Path, settings: ImageAugmentation) -> None:
        from diffusers import AutoPipelineForText2Image

        pipelines: Any = AutoPipelineForText2Image
        safely = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
        dtype = DTYPES[settings.dtype]
        pipeline = pipelines.from_pretrained(path, dtype=dtype, **safely)
        # diffusers does not say which tensors of a part were missing, so each part is read once more.
        for name, module in pipeline.components.items():
            if isinstance(module, torch.nn.Module):
                pipeline.register_modules(**{name: _complete(type(module), path / name, dtype)})
        self._pipeline: Any = pipeline.to(resolve_device(settings.device))
        self._pipeline.set_progress_bar_config(disable=True)
        self._settings = settings

    def generate(self, contents: Sequence[str], seeds: Sequence[int]) -> list[str | bytes | None]:
        """A PNG of each caption. Noise is drawn on the CPU, so that it is the same on every device."""
        settings = self._settings
        with torch.inference_mode():
            output = self._pipeline(
                list(contents),
                num_inference_steps=settings.steps,
                guidance_scale=settings.guidance,
                height=settings.image_size,
                width=settings.image_size,
                generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            )
        tokenizer = getattr(self._pipeline, "tokenizer", None)
        if tokenizer is not None:
            for ids in tokenizer(list(contents))["input_ids"]:
                self.truncated += len(ids) > int(tokenizer.model_max_length)
        images: list[str | bytes | None] = []
        for image in output.images:
            # The safety checker blacks images out, and numbers that overflow, as in float16, make black ones.
            images.append(_png(image) if image.getbbox() else None)
        return images


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.convert("RGB").save(file, format="PNG")
    return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class Augmentation(Settings):
    """Options of the generation of positives."""

    kind: ClassVar[str]
    what: ClassVar[str]  # the model in messages
    generator: ClassVar[Any]  # the model's class
    dropped: ClassVar[str]  # outputs that are not positives, in messages
    libraries: ClassVar[tuple[str, ...]]  # their versions are recorded
    batch: ClassVar[int]  # the default of `batch_size`

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
            raise wrong_option("model", "", "is missing", "pass a Hub repository id or a folder")

    def free(self) -> set[str]:
        """Settings that positives do not depend on, but for rounding."""
        return {"model", "revision", "device", "batch_size"}

    def find(self) -> tuple[Path, str, str]:
        """The folder of the model's files, its name with its commit on the Hub, and a digest of the files."""
        default = type(self).model
        pinned = str(self.model) if self.revision is None else f"{self.model}@{self.revision}"
        path, name, commit = open_foreign(
            pinned, self.what, _CONFIGS, (), default=str(default), tensors=_TENSORS
        )
        # A digest, since a folder's name says nothing of what is in it.
        files: set[Path] = set()  # patterns overlap
        for pattern in (*_CONFIGS, *_TENSORS):
            files.update(path.rglob(pattern))
        checksums = ""
        for file in sorted(files):
            checksums += f"{file.relative_to(path).as_posix()} {file_checksum(file)}\n"
        digest = hashlib.sha256(checksums.encode()).hexdigest()[:32]
        return path, f"{name}@{commit}" if commit else name, digest

    def open(self, path: Path) -> Any:
        """The model, whose `generate` gives positives of contents by their seeds, or None."""
        logs: list[Any] = []
        for library in self.libraries:
            log: Any = import_module(f"{library}.utils.logging")
            log.disable_progress_bar()  # of opening: the one of the sources is ours
            logs.append(log)
        try:
            generator = self.generator(path, self)
        except InputError:
            raise
        except Exception as error:  # a damaged file can raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:150]
            problem = f"{self.what} {str(self.model)!r} could not be opened ({reason})"
            raise WeightsError(f"{problem}: pass another one, such as {type(self).model}") from error
        for log in logs:
            log.set_verbosity_error()  # else every caption that is cut off has a line
        return generator


@dataclass(frozen=True, kw_only=True)
class CaptionAugmentation(Augmentation):
    """Options of captions, by default as BLIP's release generates them on COCO."""

    kind: ClassVar = CAPTION
    what: ClassVar = "captioner"
    generator: ClassVar = _Captioner
    dropped: ClassVar = "empty captions"
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
    prompt: str = option("a picture of", "text that the model continues; it is not part of the caption")
    min_length: int = option(5, "tokens at least, with those of the prompt", minimum=1)
    max_length: int = option(20, "tokens at most, with those of the prompt", minimum=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = Problems()
        if not 0 < self.top_p <= 1:
            expected = "expected more than 0 and at most 1"
            problems.add(wrong_option("top_p", self.top_p, "", expected))
        if self.min_length > self.max_length:
            problem = f"is more than the {self.max_length} of max_length"
            problems.add(wrong_option("min_length", self.min_length, problem, "pass less"))
        problems.raise_if_any()

    def free(self) -> set[str]:
        unused = "top_p" if self.decoding == "beam" else "beams"
        return {*super().free(), unused}


@dataclass(frozen=True, kw_only=True)
class ImageAugmentation(Augmentation):
    """Options of images, by default as Stable Diffusion's release generates them."""

    kind: ClassVar = IMAGE
    what: ClassVar = "text-to-image model"
    generator: ClassVar = _TextToImage
    dropped: ClassVar = "black images"
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
        # Stable Diffusion draws in a latent space of 1/8 the width and height.
        if self.image_size % 8:
            raise wrong_option("image_size", self.image_size, "is not a multiple of 8", "pass one, e.g. 512")
        if find_spec("diffusers") is None:
            raise WeightsError(f"generated images need diffusers: {install_command('augment')}")


@dataclass
class _Counts:
    """Outcomes of the sources of a run."""

    generated: int = 0  # positives of this run
    stored: int = 0  # positives of earlier runs
    dropped: Counter[str] = field(default_factory=Counter)  # by reason, in this run or before
    failed: list[str] = field(default_factory=list)  # the reasons why sources could not be read
    truncated: int = 0  # captions that are longer than the model reads
    total: int = 0  # sources of all processes


def augment(
    settings: Augmentation, captioned: CaptionedImages, source_path: Any, out: Path, part: tuple[int, int]
) -> _Counts:
    """Generate the positives that a folder lacks, as part I of N processes.

    source_path: the file, folder or dataset of `captioned`, for messages.
    """
    kind = settings.kind
    sources = _sources(kind, captioned)
    if not sources:
        raise file_error(source_path, f"holds no {'captions' if kind == IMAGE else 'images'}")
    check_folder("out", out)  # before the model is fetched
    path, name, weights = settings.find()
    stretch = LIMITS.augmented[kind]
    folder = check_folder("out", out / f"{kind}s")
    store = TableStore(
        folder,
        _stamp(settings, weights, sources),
        "out",
        most_rows=stretch,
        most_seconds=LIMITS.training_seconds,
        required=True,
    )
    stored: dict[tuple[str, str | None], str | None] = {}  # the reason of each dropped one, by source
    for table in store.tables():
        for row in table.select(["id", "source_caption", "dropped"]).to_pylist():
            stored[row["id"], row["source_caption"]] = row["dropped"]
    # Each part has every N-th stretch, so that its batches begin at the same sources in every run:
    #
    #     sources    0 ... 99 | 100 ... 199 | 200 ... 299 | 300 ... 399      stretches of 100
    #     part       1          2             1             2                of 2
    number, parts = part
    numbers = [i for i in range(len(sources)) if i // stretch % parts == number - 1]
    counts = _Counts(total=len(sources))
    for i in numbers:
        if sources[i].source in stored:
            reason = stored[sources[i].source]
            if reason is None:
                counts.stored += 1
            else:
                counts.dropped[reason] += 1
    software = {package: version(package) for package in (*settings.libraries, "torch")}
    made_with = json.dumps({"model": name, **software})
    batch_size = settings.batch_size or settings.batch
    size = BatchSize(batch_size, automatic=settings.batch_size is None)
    run = _Run(settings, captioned.visual, sources, path, store, made_with, size, counts)
    try:
        with tqdm(total=len(numbers), desc=f"{kind}s", unit="source", disable=None) as bar:
            for start in range(0, len(numbers), batch_size):
                batch = numbers[start : start + batch_size]
                run.make([i for i in batch if sources[i].source not in stored])
                bar.update(len(batch))
    finally:
        store.flush()  # also after Ctrl-C: what is generated is not generated again
    counts.truncated = getattr(run.generator, "truncated", 0)
    return counts


def _sources(kind: str, captioned: CaptionedImages) -> list[Positive]:
    """A positive to be of each image, or of each caption of an image, once."""
    if kind == CAPTION:
        return list(map(Positive, captioned.ids))
    sources = map(Positive, captioned.images, captioned.captions)
    return list(dict.fromkeys(sources))


def _stamp(settings: Augmentation, weights: str, sources: Sequence[Positive]) -> dict[str, Any]:
    """Everything that positives depend on: settings, a digest of the model's files, and the sources."""
    stamp: dict[str, Any] = {}
    for name, value in vars(settings).items():
        if name not in settings.free():
            stamp[name] = value
    # Parts of a run share one folder only while they have the same sources: they divide them by number.
    digest = hashlib.blake2b(digest_size=16)
    for source in sources:
        digest.update(json.dumps(source.source).encode())
    return {**stamp, "weights": weights, "sources": f"{len(sources)} {digest.hexdigest()}"}


@dataclass
class _Run:
    """Generation of positives; the model is opened when the first source needs it."""

    settings: Augmentation
    visual: Callable[[int], Any]
    sources: list[Positive]
    path: Path
    store: TableStore
    made_with: str
    size: BatchSize
    counts: _Counts
    generator: Any = None

    def make(self, batch: list[int]) -> None:
        """Generate the positives of some sources, and store them."""
        contents: list[tuple[int, Any]] = []
        for i in batch:
            text = self.sources[i].source_caption
            try:
                contents.append((i, in_rgb(self.visual(i)).load() if text is None else text))
            except ProblemsError as error:
                self.counts.failed.append(str(error))
        if contents and self.generator is None:
            self.generator = self.settings.open(self.path)

        def forward(part: list[tuple[int, Any]]) -> list[Any]:
            seeds = [_seed_of(self.settings, self.sources[i]) for i, _ in part]
            generated: list[Any] = self.generator.generate([content for _, content in part], seeds)
            return generated

        # In pieces, should the device's memory not hold the batch.
        for piece, outputs in self.size.run(contents, forward):
            positives = []
            for (i, _), output in zip(contents[piece], outputs, strict=True):
                positive = self.sources[i]._replace(made_with=self.made_with)
                if output is None:
                    self.counts.dropped[self.settings.dropped] += 1
                    positive = positive._replace(dropped=self.settings.dropped)
                else:
                    self.counts.generated += 1
                    positive = positive._replace(**{self.settings.kind: output})
                positives.append(positive)
            self.store.append(table_of(positives))


def _seed_of(settings: Augmentation, source: Positive) -> int:
    """The seed of a source, of 63 bits: another one for every source, whatever is generated before it."""
    # With their lengths, so that "a" + "bc" and "ab" + "c" differ.
    content = ""
    for text in (str(settings.seed), settings.kind, source.id, source.source_caption or ""):
        content += f"{len(text)} {text}"
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # 63 bits: positive in every type that holds a seed
