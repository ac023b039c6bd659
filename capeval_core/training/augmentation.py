"""Positive augmentation: captions generated from images and images generated from captions.

Sarto et al., "Positive-Augmented Contrastive Learning for Image and Video Captioning Evaluation", CVPR 2023,
https://arxiv.org/abs/2303.12112, section 4.1: captions by BLIP (ViT-L, tuned on COCO), images by Stable
Diffusion at 512x512 with its safety checker. What the paper leaves open are the defaults of their releases:
beams and lengths of BLIP's captions, steps and guidance of Stable Diffusion.

Positives lie in a folder of Parquet shards, which also hold settings, what was dropped, and a digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from capeval_core.errors import (
    FileError,
    InputError,
    Problems,
    ProblemsError,
    file_error,
    option_problem,
    warn,
    wrong_option,
)
from capeval_core.inputs.images import InputImage, in_rgb
from capeval_core.kept import try_writing, write_whole
from capeval_core.limits import LIMITS
from capeval_core.models.batching import BatchSize
from capeval_core.models.device import DTYPES, resolve_device
from capeval_core.options import Settings, option
from capeval_core.project import install_command
from capeval_core.training.captioned import CaptionedImages
from capeval_core.weights.folder import WeightsError, file_checksum, open_foreign

CAPTION, IMAGE = "caption", "image"  # kinds of positive
MADE_WITH = "made_with"  # of the settings what may differ between the runs that fill a folder
_FORM: dict[str, Any] = {
    "compression": {"image": "none"},  # a PNG is compressed already
    "use_dictionary": False,  # pages without dictionaries have checksums
    "write_statistics": False,  # they would hold images twice
    "write_page_checksum": True,
}
_NOTE = b"capeval_positives"
_AT_ONCE = 64  # generated images in memory
BLIP = "Salesforce/blip-image-captioning-large"  # with ViT-L, as PAC-S's paper uses it
STABLE_DIFFUSION = "CompVis/stable-diffusion-v1-4"  # the paper names this model, not its version
_CONFIGS = ["*.json", "*.txt", "*.model"]
_TENSORS = ["*model.safetensors", "*-of-*.safetensors"]
"""Patterns of the files of a model: no pickles, no code, no variants in other numeric types."""


class Positive(NamedTuple):
    """A generated caption of an image, or image (a PNG) of a caption; without either, the source of one."""

    kind: str
    id: str
    source_caption: str | None = None
    caption: str | None = None
    image: bytes | None = None


_SCHEMA = pa.schema(
    [
        pa.field(name, pa.binary() if name == "image" else pa.string(), nullable=name not in ("kind", "id"))
        for name in Positive._fields
    ]
)
Outcomes = dict[int, Positive | str]
"""What became of the sources of a shard, by their positions in it: a positive, or why it was dropped."""


class Positives:
    """The positives in a folder that `capeval augment` made; images are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._shards = sorted(folder.glob("positives-*.parquet"))
        if not self._shards:
            found = "holds no positives (positives-captions-00000.parquet ...)"
            raise file_error(folder, found, "pass a folder that `capeval augment` made")
        self.settings: dict[str, Any] = {}
        self.captions: list[tuple[str, str]] = []
        self.sources: list[tuple[str, str]] = []
        digest = hashlib.blake2b(digest_size=16)
        for path in self._shards:
            with _opened(path) as (file, note):
                rows = file.read(_SCHEMA.names[:-1]).to_pylist()
            digest.update(note["digest"].encode())
            for row in rows:
                self.settings.setdefault(f"{row['kind']}s", note["settings"])
                if row["kind"] == CAPTION:
                    self.captions.append((row["id"], row["caption"]))
                else:
                    self.sources.append((row["id"], row["source_caption"]))
        self.fingerprint = digest.hexdigest()

    def images(self) -> Iterator[InputImage]:
        """The generated images, one at a time. Raises FileError where a shard is damaged."""
        for path in self._shards:
            with _opened(path) as (file, _):
                for batch in file.iter_batches(_AT_ONCE, columns=["id", "image"]):
                    for row in batch.to_pylist():
                        if row["image"] is not None:
                            yield InputImage.of(row["image"], f"generated image of {row['id']!r}")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[pq.ParquetFile, dict[str, Any]]]:
    """A shard and its note. Raises FileError, of the block as well, where it is damaged."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            note = json.loads(file.schema_arrow.metadata[_NOTE])
            yield file, {name: note[name] for name in ("settings", "dropped", "digest")}
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        found = f"is damaged or no shard of positives ({' '.join(str(error).split())[:200]})"
        fix = "delete it and run `capeval augment` again"
        raise file_error(path, found, fix) from error


class PositiveShards:
    """The shards of one kind of positive in a folder, which may hold those of the other kind too."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind, self.settings = folder, kind, dict[str, Any]()
        if folder.exists() and not folder.is_dir():
            raise file_error(folder, "is a file: choose a folder for the positives")
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        visible = [name for name in names if not name.startswith(".")]
        if visible and not any(name.startswith("positives-") for name in visible):
            found = f"holds something else ({visible[0]})"
            raise file_error(folder, found, "choose another folder for the positives")
        try:
            try_writing(folder)
        except OSError as error:
            found = f"cannot be written ({error.strerror})"
            raise file_error(folder, found, "choose another folder") from error

    def begin(self, settings: Mapping[str, Any]) -> PositiveShards:
        """Make positives by these settings, which must be those of the shards that are there."""
        self.settings = json.loads(json.dumps(settings))
        for path in self.folder.glob(f"positives-{self.kind}s-*.parquet"):
            try:
                with _opened(path) as (_, note):
                    stored = note["settings"]
            except FileError:
                continue  # it is made again
            names = [name for name in {**stored, **self.settings} if name != MADE_WITH]
            pairs = [(name, stored.get(name), self.settings.get(name)) for name in names]
            if differing := [f"{name} {old!r}, now {new!r}" for name, old, new in pairs if old != new]:
                found = f"holds {self.kind}s by other settings ({'; '.join(differing)})"
                fix = "pass the same settings, or choose another folder"
                raise file_error(self.folder, found, fix)
        return self

    def _path(self, number: int) -> Path:
        return self.folder / f"positives-{self.kind}s-{number:05d}.parquet"

    def read(self, number: int, sources: Sequence[Positive]) -> Outcomes:
        """What there is of a shard of these sources; one that is damaged is missing, with a warning."""
        path = self._path(number)
        if not path.exists():
            return {}
        try:
            with _opened(path) as (file, note):
                positives = [Positive(**row) for row in file.read().to_pylist()]
                if note.pop("digest") != _digest(note, positives):
                    raise ValueError("its digest is another one")
        except FileError as error:
            warn(f"{error}: what it held is generated again")
            return {}
        position = {source[:3]: i for i, source in enumerate(sources)}
        made = {position.get(positive[:3], -1): positive for positive in positives}
        if -1 in made:
            warn(f"{path} holds positives of other sources: what it held is generated again")
            return {}
        return {**made, **{int(i): reason for i, reason in note["dropped"].items()}}

    def write(self, number: int, outcomes: Outcomes) -> None:
        """Write a shard as a whole, which need not be complete. Raises OSError."""
        ordered = [(i, outcomes[i]) for i in sorted(outcomes)]
        positives = [made for _, made in ordered if isinstance(made, Positive)]
        dropped = {str(i): reason for i, reason in ordered if isinstance(reason, str)}
        note: dict[str, Any] = {"settings": self.settings, "dropped": dropped}
        note["digest"] = _digest(note, positives)
        table = pa.Table.from_pylist([positive._asdict() for positive in positives], _SCHEMA)
        sink = pa.BufferOutputStream()
        table = table.replace_schema_metadata({_NOTE: json.dumps(note, sort_keys=True)})
        pq.write_table(table, sink, row_group_size=_AT_ONCE, **_FORM)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(number), memoryview(sink.getvalue()))
        except OSError as error:
            found = f"{self.folder} cannot be written ({error.strerror or error}): what is there stays"
            raise OSError(f"{found}, and the same command goes on where there is room") from error


def _digest(note: Mapping[str, Any], positives: Sequence[Positive]) -> str:
    digest = hashlib.blake2b(json.dumps(note, sort_keys=True).encode(), digest_size=16)
    for positive in positives:
        image = positive.image or b""
        digest.update(json.dumps([*positive[:4], len(image)]).encode() + image)
    return digest.hexdigest()


def _whole(class_: Any, path: Path, dtype: torch.dtype) -> Any:
    """A model with all of its tensors, where libraries would draw missing ones at random."""
    model, loaded = class_.from_pretrained(
        path, dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
    )
    if missing := sorted(map(str, loaded["missing_keys"])):
        raise WeightsError(f"{path.name}: {len(missing):,} tensors are missing, such as {missing[0]}")
    return model


class _Captioner:
    """A BLIP captioner in transformers' format."""

    def __init__(self, path: Path, settings: CaptionAugmentation) -> None:
        from transformers import BlipForConditionalGeneration, BlipProcessor

        self._settings, self._device = settings, resolve_device(settings.device)
        self._dtype = DTYPES[settings.dtype]
        self._processor: Any = BlipProcessor.from_pretrained(path, local_files_only=True)
        model = _whole(BlipForConditionalGeneration, path, self._dtype)
        prompt = len(self._processor.tokenizer(settings.prompt)["input_ids"]) - 1
        positions = model.config.text_config.max_position_embeddings
        if not prompt < settings.max_length <= positions:
            expected = f"expected more than the prompt's {prompt} and at most the model's {positions} tokens"
            raise wrong_option("max_length", settings.max_length, "", expected, verb="")
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
        # The prompt's last token, the end, is not handed to the decoder.
        new = tokens[:, inputs["input_ids"].shape[1] - 1 :]
        texts = self._processor.batch_decode(new, skip_special_tokens=True)
        return [" ".join(text.split()) or None for text in texts]


class _GumbelNoise:
    """Gumbel noise, -log(-log(u)), of a stream for each row: argmax(logits + noise) samples the softmax."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        size = scores.shape[-1]
        draws = torch.stack([torch.rand(size, generator=own, dtype=torch.float64) for own in self._streams])
        return scores.float() - torch.log(-torch.log(draws)).to(scores.device, torch.float32)


class _TextToImage:
    """A text-to-image pipeline of diffusers."""

    truncated = 0  # captions of which it did not read all

    def __init__(self, path: Path, settings: ImageAugmentation) -> None:
        from diffusers import AutoPipelineForText2Image

        pipelines: Any = AutoPipelineForText2Image
        safely = {"use_safetensors": True, "trust_remote_code": False, "local_files_only": True}
        dtype = DTYPES[settings.dtype]
        pipeline = pipelines.from_pretrained(path, dtype=dtype, **safely)
        for name, module in pipeline.components.items():
            if isinstance(module, torch.nn.Module):
                pipeline.register_modules(**{name: _whole(type(module), path / name, dtype)})
        self._pipeline: Any = pipeline.to(resolve_device(settings.device))
        self._pipeline.set_progress_bar_config(disable=True)
        self._settings = settings

    def generate(self, contents: Sequence[str], seeds: Sequence[int]) -> list[str | bytes | None]:
        """A PNG of each caption. Noise is drawn on the CPU, so that it is the same on every device."""
        settings = self._settings
        with torch.inference_mode():
            made = self._pipeline(
                list(contents),
                num_inference_steps=settings.steps,
                guidance_scale=settings.guidance,
                height=settings.image_size,
                width=settings.image_size,
                generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            )
        if (tokenizer := getattr(self._pipeline, "tokenizer", None)) is not None:
            lengths = [len(ids) for ids in tokenizer(list(contents))["input_ids"]]
            self.truncated += sum(length > int(tokenizer.model_max_length) for length in lengths)
        # What the safety checker flags is black, and so is an image where numbers overflow, as in float16.
        return [_png(image) if image.getbbox() else None for image in made.images]


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.convert("RGB").save(file, format="PNG")
    return file.getvalue()


@dataclass(frozen=True, kw_only=True)
class Augmentation(Settings):
    """How positives are generated."""

    kind: ClassVar[str]
    what: ClassVar[str]  # the model in messages
    generator: ClassVar[Any]  # its class
    dropped: ClassVar[str]  # what it makes where there is no positive
    libraries: ClassVar[tuple[str, ...]]  # whose versions are recorded
    batch: ClassVar[int]  # sources per forward pass, where the user does not say

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

    def find(self) -> tuple[Path, str, str]:
        """The folder of the model's files, its name with its commit on the Hub, and a digest of the files."""
        default = type(self).model
        pinned = str(self.model) if self.revision is None else f"{self.model}@{self.revision}"
        path, name, commit = open_foreign(
            pinned, self.what, _CONFIGS, (), default=str(default), tensors=lambda _: _TENSORS
        )
        files = {file for pattern in (*_CONFIGS, *_TENSORS) for file in path.rglob(pattern)}
        sums = "".join(f"{own.relative_to(path).as_posix()} {file_checksum(own)}\n" for own in sorted(files))
        digest = hashlib.sha256(sums.encode()).hexdigest()[:32]
        return path, f"{name}@{commit}" if commit else name, digest

    def open(self, path: Path) -> Any:
        """The model, whose `generate` gives positives of contents by their seeds, or None."""
        logs: list[Any] = [import_module(f"{library}.utils.logging") for library in self.libraries]
        for log in logs:
            log.disable_progress_bar()
        try:
            generator = self.generator(path, self)
        except InputError:
            raise
        except Exception as error:  # whatever a damaged file leads its reader to
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:150]
            what, fix = f"{self.what} {str(self.model)!r}", f"pass another one, such as {type(self).model}"
            raise WeightsError(f"{what} could not be opened ({reason}): {fix}") from error
        for log in logs:
            log.set_verbosity_error()  # not each caption that is cut off
        return generator


@dataclass(frozen=True, kw_only=True)
class CaptionAugmentation(Augmentation):
    """How captions are generated, by default as BLIP's release does it on COCO."""

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
        if self.image_size % 8:
            raise wrong_option("image_size", self.image_size, "no multiple of 8", "pass one, e.g. 512")
        if find_spec("diffusers") is None:
            raise WeightsError(f"generated images need diffusers: {install_command('augment')}")


@dataclass
class _Counts:
    """What became of the sources of a run."""

    made: int = 0  # positives, in this run
    found: int = 0  # those that were there
    dropped: Counter[str] = field(default_factory=Counter)  # why, in this run or before
    failed: list[str] = field(default_factory=list)  # why sources could not be read
    truncated: int = 0  # captions of which the model read a part
    total: int = 0  # sources of all processes


def augment(
    settings: Augmentation, captioned: CaptionedImages, given: Any, out: Path, part: tuple[int, int]
) -> _Counts:
    """Generate what is missing in a folder, as part I of N processes. given: what `captioned` is called."""
    sources = [Positive(CAPTION, image_id) for image_id in captioned.ids]
    if settings.kind == IMAGE:
        rows = zip(captioned.images, captioned.captions, strict=True)
        sources = list(dict.fromkeys(Positive(IMAGE, image_id, text) for image_id, text in rows))
    if not sources:
        raise file_error(given, f"holds no {'captions' if settings.kind == IMAGE else 'images'}")
    shards = PositiveShards(out, settings.kind)
    path, name, weights = settings.find()
    digest = hashlib.blake2b(digest_size=16)
    for source in sources:
        digest.update(json.dumps(source[:3]).encode())
    own = {name: value for name, value in vars(settings).items() if name not in settings.free()}
    software = {name: version(name) for name in (*settings.libraries, "torch")}
    of = {"weights": weights, "sources": f"{len(sources)} {digest.hexdigest()}"}
    shards.begin({**of, **own, MADE_WITH: {"model": name, **software}})
    size = BatchSize(settings.batch_size or settings.batch, automatic=settings.batch_size is None)
    counts = _Counts(total=len(sources))
    return _Run(settings, captioned.visual, sources, path, shards, size, counts).run(part)


@dataclass
class _Run:
    """Generation of positives; the model is opened when the first source needs it."""

    settings: Augmentation
    visual: Callable[[int], Any]
    sources: list[Positive]
    path: Path
    shards: PositiveShards
    size: BatchSize
    counts: _Counts
    generator: Any = None

    def run(self, part: tuple[int, int]) -> _Counts:
        """Complete every shard of a part: number I of N has every N-th one."""
        size, total = LIMITS.augmented[self.settings.kind], len(self.sources)
        numbers = range(part[0] - 1, -(-total // size), part[1])
        stretches = {number: range(number * size, min((number + 1) * size, total)) for number in numbers}
        unit = "image" if self.settings.kind == CAPTION else "caption"
        count = sum(map(len, stretches.values()))
        with tqdm(total=count, desc=f"{self.settings.kind}s", unit=unit, disable=None) as bar:
            for number, stretch in stretches.items():
                self._complete(number, stretch, bar)
        self.counts.truncated = getattr(self.generator, "truncated", 0)
        return self.counts

    def _complete(self, number: int, stretch: range, bar: Any) -> None:
        """Make what is missing of a shard, and write it; what an error interrupts is written too."""
        shard = self.shards.read(number, self.sources[stretch.start : stretch.stop])
        reasons = [outcome for outcome in shard.values() if isinstance(outcome, str)]
        self.counts.found += len(shard) - len(reasons)
        self.counts.dropped.update(reasons)
        bar.update(len(shard))
        unwritten, written_at = False, time.monotonic()
        size = self.settings.batch_size or self.settings.batch
        try:
            for start in range(0, len(stretch), size):  # so a run that goes on makes the same batches
                batch = [i for i in range(start, min(start + size, len(stretch))) if i not in shard]
                unwritten = self._make(batch, stretch, shard) or unwritten
                bar.update(len(batch))
                if unwritten and time.monotonic() - written_at > LIMITS.training_seconds:
                    unwritten = False  # where this fails, once is enough
                    self.shards.write(number, shard)
                    written_at = time.monotonic()
        finally:
            if unwritten:
                self.shards.write(number, shard)

    def _make(self, batch: list[int], stretch: range, shard: Outcomes) -> bool:
        """Generate the positives of some sources; whether any is new."""
        contents: list[tuple[int, Any]] = []
        for i in batch:
            text = self.sources[stretch[i]].source_caption
            try:
                contents.append((i, in_rgb(self.visual(stretch[i])).load() if text is None else text))
            except ProblemsError as error:
                self.counts.failed.append(str(error))
        if contents and self.generator is None:
            self.generator = self.settings.open(self.path)

        def forward(part: list[tuple[int, Any]]) -> list[Any]:
            seeds = [_seed_of(self.settings.seed, self.sources[stretch[i]]) for i, _ in part]
            made: list[Any] = self.generator.generate([content for _, content in part], seeds)
            return made

        for piece, outputs in self.size.run(contents, forward):
            for (i, _), output in zip(contents[piece], outputs, strict=True):
                if output is None:
                    shard[i] = self.settings.dropped
                    self.counts.dropped[self.settings.dropped] += 1
                else:
                    shard[i] = self.sources[stretch[i]]._replace(**{self.settings.kind: output})
                    self.counts.made += 1
        return bool(contents)


def _seed_of(seed: int, source: Positive) -> int:
    """The seed of a source, of 63 bits: another one for every source, whatever is generated before it."""
    texts = [str(seed), source.kind, source.id, source.source_caption or ""]
    content = "".join(f"{len(text)} {text}" for text in texts).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1
