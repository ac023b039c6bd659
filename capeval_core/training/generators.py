"""Generative models of captions and images: found first, with what is wrong with them, and opened later.

Only safetensors are opened, and no code that comes with a model is run.
"""

from __future__ import annotations

import hashlib
import inspect
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from PIL import Image
from torch import Tensor

from capeval_core.errors import InputError, expanded_path, wrong_option
from capeval_core.models.device import DTYPES, resolve_device
from capeval_core.project import install_command
from capeval_core.weights.folder import (
    CONFIG,
    TENSORS,
    WeightsError,
    file_checksum,
    open_foreign,
    read_config,
)

if TYPE_CHECKING:
    from capeval_core.training.augmentation import CaptionAugmentation, ImageAugmentation

BLIP = "Salesforce/blip-image-captioning-large"
"""BLIP with ViT-L, pre-trained on 129M pairs and tuned on COCO's captions, as PAC-S's paper uses it."""
STABLE_DIFFUSION = "CompVis/stable-diffusion-v1-4"
"""Stable Diffusion, tuned at 512x512 on LAION-Aesthetics. PAC-S's paper names this model, not its version."""
_BLIP_CLASS = "BlipForConditionalGeneration"
_INDEX = "model_index.json"
_ARGUMENTS = {"num_inference_steps", "guidance_scale", "height", "width", "generator"}


class Dropped(str):
    """Why what was generated for a source is not kept."""


@dataclass(frozen=True)
class FoundModel:
    """The files of a generative model, of which only configs have been read.

    path: their folder. name: as messages and records call it, with its commit on the Hub. digest: of all
    files.
    """

    path: Path
    name: str
    digest: str


class Generator(ABC):
    """A generative model that is open."""

    what: ClassVar[str]
    """The model in messages."""
    default: ClassVar[str]
    """A repository that fits."""
    expected: ClassVar[str]
    files: ClassVar[list[str]] = ["*.json", "*.txt", "*.model"]
    """Patterns of configs and vocabularies."""
    truncated = 0
    """Sources of which it did not read all, so far."""

    @classmethod
    def find(cls, model: str, revision: str | None) -> FoundModel:
        """The files of a model, from a folder or from the Hub (`org/name`, `org/name@revision`)."""
        if expanded_path(model).is_file():
            raise wrong_option("model", model, "a file", "pass a folder or a Hub id", kind=WeightsError)
        if revision is not None and (expanded_path(model).is_dir() or "@" in model):
            where = "has one already" if "@" in model else "is a folder, which has no revisions"
            raise wrong_option("revision", revision, f"--model {model} {where}", "leave it out", verb="")
        pinned = model if revision is None else f"{model}@{revision}"

        def needed(path: Path) -> Sequence[str]:
            kind = _kind(path)
            if kind is None or not cls.fits(kind):
                found = "has no config.json" if kind is None else f"is a {kind}"
                expected = f"expected {cls.expected}, such as {cls.default}"
                raise WeightsError(f"{cls.what} {model!r} {found}, {expected}")
            if code := sorted(path.rglob("*.py")):
                found = f"holds code ({code[0].relative_to(path)}), and code of a model is not run"
                raise WeightsError(f"{cls.what} {model!r} {found}: delete it, or pass another model")
            return cls.tensors(path)

        path, name, commit = open_foreign(
            pinned, cls.what, cls.files, (), default=cls.default, tensors=needed
        )
        tensors = needed(path)
        if missing := [file for file in tensors if not (path / file).is_file()]:
            raise WeightsError(
                f"{cls.what} {name!r} has no {missing[0]} in {path}, and pickled weights are not opened: "
                f"pass a model with safetensors, such as {cls.default} from the Hub"
            )
        configs = [file for file in sorted(path.rglob("*")) if any(map(file.match, cls.files))]
        files = [*filter(Path.is_file, configs), *(path / file for file in tensors)]
        sums = "".join(f"{file.relative_to(path).as_posix()} {file_checksum(file)}\n" for file in files)
        digest = hashlib.sha256(sums.encode()).hexdigest()[:32]
        return FoundModel(path, f"{name}@{commit}" if commit else name, digest)

    @classmethod
    @abstractmethod
    def fits(cls, kind: str) -> bool:
        """Whether a class of transformers or diffusers is a model of this kind."""

    @classmethod
    @abstractmethod
    def tensors(cls, path: Path) -> Sequence[str]:
        """The files of tensors of a model, by the folder of its configs."""

    @abstractmethod
    def generate(self, contents: Sequence[Any], seeds: Sequence[int]) -> list[str | bytes | Dropped]:
        """Of each source one positive, which depends on its content and its seed alone."""


def _kind(path: Path) -> str | None:
    """The class that a folder's config names: a pipeline of diffusers, or a model of transformers."""
    for name in (_INDEX, CONFIG):
        if (path / name).is_file():
            config = read_config(path / name)
            named = config.get("architectures") or [config.get("_class_name") or config.get("model_type")]
            return str(named[0])
    return None


def _whole(class_: Any, path: Path, what: str, dtype: torch.dtype) -> Any:
    """A model with all of its tensors, where libraries would draw missing ones at random."""
    model, info = class_.from_pretrained(
        path, dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
    )
    for key, found in (("missing_keys", "missing"), ("mismatched_keys", "of another shape")):
        if names := sorted(map(str, info.get(key) or ())):
            raise WeightsError(f"{what}: {len(names):,} tensors are {found}, such as {names[0]}")
    return model


def _quiet(*libraries: str) -> None:
    """Keep to errors what libraries print: bars beside ours, and each truncated caption."""
    for library in libraries:
        logging: Any = import_module(f"{library}.utils.logging")
        logging.set_verbosity_error()
        logging.disable_progress_bar()


def _failure(what: str, error: Exception) -> Exception:
    """What a library raised while it opened a model, in a line."""
    if isinstance(error, InputError):
        return error
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return WeightsError(f"{what} could not be opened ({reason})")


class Captioner(Generator):
    """A BLIP captioner in transformers' format."""

    what, default, expected = "captioner", BLIP, f"a captioner ({_BLIP_CLASS})"

    @classmethod
    def fits(cls, kind: str) -> bool:
        return kind == _BLIP_CLASS

    @classmethod
    def tensors(cls, path: Path) -> Sequence[str]:
        return [TENSORS]

    def __init__(self, found: FoundModel, settings: CaptionAugmentation) -> None:
        from transformers import BlipForConditionalGeneration, BlipProcessor

        what, dtype = f"{self.what} {found.name!r}", DTYPES[settings.dtype]
        self._settings, self._device = settings, resolve_device(settings.device)
        _quiet("transformers")
        try:
            self._processor: Any = BlipProcessor.from_pretrained(found.path, local_files_only=True)
            model = _whole(BlipForConditionalGeneration, found.path, what, dtype)
        except Exception as error:  # whatever a damaged file leads its reader to
            raise _failure(what, error) from error
        prompt = len(self._processor.tokenizer(settings.prompt)["input_ids"]) - 1
        positions = model.config.text_config.max_position_embeddings
        if not prompt < settings.max_length <= positions:
            expected = f"expected more than the prompt's {prompt} and at most the model's {positions} tokens"
            raise wrong_option("max_length", settings.max_length, "", expected, verb="")
        self._model: Any = model.to(self._device).eval()

    def generate(self, contents: Sequence[Image.Image], seeds: Sequence[int]) -> list[str | bytes | Dropped]:
        """A caption of each image, without the prompt."""
        settings = self._settings
        prompts = [settings.prompt] * len(contents)
        inputs = self._processor(images=list(contents), text=prompts, return_tensors="pt")
        inputs = inputs.to(self._device, DTYPES[settings.dtype])
        search: dict[str, Any] = {"num_beams": settings.beams}
        if settings.decoding == "nucleus":
            search = {"num_beams": 1, "logits_processor": _nucleus(settings.top_p, seeds)}
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
        return [" ".join(text.split()) or Dropped("empty caption") for text in texts]


def _nucleus(top_p: float, seeds: Sequence[int]) -> Any:
    """Nucleus sampling (Holtzman et al., 2020) by logits of which the highest one is the sample."""
    from transformers import LogitsProcessorList, TopPLogitsWarper

    return LogitsProcessorList([TopPLogitsWarper(top_p), GumbelNoise(seeds)])


class GumbelNoise:
    """Noise under which the most probable token is a sample, from a stream of its own for each row.

    argmax(logits + g), where g = -log(-log(u)) is Gumbel noise, is distributed as softmax(logits). So a
    caption does not depend on the images beside it in the batch.

    >>> noise = GumbelNoise([7])
    >>> logits = torch.log(torch.tensor([[0.25, 0.0, 0.75]]))
    >>> draws = torch.stack([noise(None, logits).argmax(dim=-1)[0] for _ in range(2000)])
    >>> torch.bincount(draws, minlength=3).div(2000).tolist()
    [0.2..., 0.0, 0.7...]
    """

    def __init__(self, seeds: Sequence[int]) -> None:
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        size = scores.shape[-1]
        draws = torch.stack(
            [torch.rand(size, generator=stream, dtype=torch.float64) for stream in self._streams]
        )
        return scores.float() - torch.log(-torch.log(draws)).to(scores.device, torch.float32)


def require_diffusers() -> None:
    """Raise WeightsError, which says what to install, where diffusers is not."""
    if find_spec("diffusers") is None:
        raise WeightsError(f"generated images need diffusers: {install_command('augment')}")


class TextToImage(Generator):
    """A text-to-image pipeline of diffusers."""

    what, default = "text-to-image model", STABLE_DIFFUSION
    expected = "a text-to-image pipeline of diffusers"

    @classmethod
    def fits(cls, kind: str) -> bool:
        from diffusers.pipelines.auto_pipeline import AUTO_TEXT2IMAGE_PIPELINES_MAPPING

        known = {pipeline.__name__: pipeline for pipeline in AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values()}
        return kind in known and inspect.signature(known[kind].__call__).parameters.keys() >= _ARGUMENTS

    @classmethod
    def tensors(cls, path: Path) -> Sequence[str]:
        from diffusers import ModelMixin

        files = []
        for component, class_ in _networks(path).items():
            stem = "diffusion_pytorch_model" if issubclass(class_, ModelMixin) else "model"
            listing = path / component / f"{stem}.safetensors.index.json"
            names = [f"{stem}.safetensors"]
            if listing.is_file():
                names = sorted({str(name) for name in read_config(listing).get("weight_map", {}).values()})
            files += [f"{component}/{name}" for name in names]
        return files

    def __init__(self, found: FoundModel, settings: ImageAugmentation) -> None:
        from diffusers import DiffusionPipeline

        what, dtype = f"{self.what} {found.name!r}", DTYPES[settings.dtype]
        _quiet("diffusers", "transformers")
        try:
            modules = {
                name: _whole(class_, found.path / name, f"{what}: {name}", dtype)
                for name, class_ in _networks(found.path).items()
            }
            pipeline: Any = DiffusionPipeline
            self._pipeline = pipeline.from_pretrained(
                found.path,
                **modules,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
            ).to(resolve_device(settings.device))
        except Exception as error:  # whatever a damaged file leads its reader to
            raise _failure(what, error) from error
        self._pipeline.set_progress_bar_config(disable=True)
        self._settings = settings

    def generate(self, contents: Sequence[str], seeds: Sequence[int]) -> list[str | bytes | Dropped]:
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
        flags = getattr(made, "nsfw_content_detected", None) or [False] * len(contents)
        blacked_out = Dropped("blacked out by the safety checker")
        return [blacked_out if flag else _png(image) for image, flag in zip(made.images, flags, strict=True)]


def _networks(path: Path) -> dict[str, Any]:
    """The classes of a pipeline's components that have tensors, of diffusers and transformers only."""
    import diffusers
    import transformers

    modules: dict[str, Any] = {"diffusers": diffusers, "transformers": transformers}
    found = {}
    for component, entry in read_config(path / _INDEX).items():
        if component.startswith("_") or not isinstance(entry, list) or entry == [None, None]:
            continue
        library, name = map(str, entry) if len(entry) == 2 else ("", "")
        class_ = getattr(modules.get(library) or getattr(diffusers.pipelines, library, None), name, None)
        if not isinstance(class_, type):
            raise WeightsError(
                f"{path}: its {component} is {entry!r}, which is no class of diffusers or transformers, and "
                "code of a model is not run"
            )
        if issubclass(class_, torch.nn.Module):
            found[component] = class_
    return found


def _png(image: Image.Image) -> bytes | Dropped:
    if not image.getbbox():  # where numbers overflow, as in float16, nothing is left either
        return Dropped("black")
    file = io.BytesIO()
    image.convert("RGB").save(file, format="PNG")
    return file.getvalue()
