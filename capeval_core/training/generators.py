"""Generative models of captions and images: found first, with what is wrong with them, and opened later."""

from __future__ import annotations

import hashlib
import inspect
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from PIL import Image
from torch import Tensor

from capeval_core.errors import InputError, did_you_mean, wrong_option
from capeval_core.models.device import DTYPES, resolve_device
from capeval_core.project import install_command
from capeval_core.values import expanded_path
from capeval_core.weights.folder import CONFIG, TENSORS, WeightsError, file_checksum, read_config
from capeval_core.weights.foreign import open_foreign

if TYPE_CHECKING:
    from capeval_core.training.augmentation import CaptionAugmentation, ImageAugmentation


Given = TypeVar("Given", contravariant=True)
Generated = str | bytes
"""A caption, or the bytes of a PNG."""


class Dropped(str):
    """Why what was generated for a source is not kept."""


class Generator(ABC, Generic[Given]):
    """A generative model that is open."""

    truncated = 0
    """Sources of which it did not read all, so far."""

    @abstractmethod
    def generate(self, contents: Sequence[Given], seeds: Sequence[int]) -> list[Generated | Dropped]:
        """Of each source one positive, which depends on its content and its seed alone."""


@dataclass(frozen=True)
class FoundModel:
    """The files of a generative model, of which only configs have been read.

    path: their folder. name: as messages and records call it, with its commit on the Hub. digest: of all
    files.
    """

    path: Path
    name: str
    digest: str


def find_model(
    model: str,
    revision: str | None,
    what: str,
    *,
    default: str,
    files: Sequence[str],
    needed: Callable[[Path], Sequence[str]],
) -> FoundModel:
    """The files of a generative model, from a folder or from the Hub; only safetensors count as weights.

    Args:
        model: folder, or Hub id (`org/name` or `org/name@revision`).
        revision: commit, branch or tag on the Hub; None: what `model` names.
        what: the model in messages.
        default: a repository that fits.
        files: patterns of configs and vocabularies.
        needed: the files of tensors, by the folder of the other ones; it raises WeightsError where that is no
            model of this kind.

    Raises:
        WeightsError: the model could not be found, or a file is missing.
    """
    if expanded_path(model).is_file():
        raise wrong_option("model", model, "a file", "pass a folder or a Hub id", kind=WeightsError)
    if revision is not None and (expanded_path(model).is_dir() or "@" in model):
        where = "has one already" if "@" in model else "is a folder, which has no revisions"
        raise wrong_option("revision", revision, f"--model {model} {where}", "leave it out", verb="")
    pinned = model if revision is None else f"{model}@{revision}"
    path, name, commit = open_foreign(pinned, what, files, (), default=default, tensors=needed)
    tensors = needed(path)
    if missing := [file for file in tensors if not (path / file).is_file()]:
        raise WeightsError(
            f"{what} {name!r} has no {missing[0]} in {path}, and pickled weights are not opened: pass a "
            f"model with safetensors, such as {default} from the Hub"
        )
    configs = [file for file in sorted(path.rglob("*")) if file.is_file() and _matches(file, files)]
    digest = _digest(path, [*configs, *(path / file for file in tensors)])
    return FoundModel(path, f"{name}@{commit}" if commit else name, digest)


def _matches(file: Path, patterns: Iterable[str]) -> bool:
    return any(file.match(pattern) for pattern in patterns)


def _digest(folder: Path, files: Sequence[Path]) -> str:
    content = "".join(f"{file.relative_to(folder).as_posix()} {file_checksum(file)}\n" for file in files)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def refuse_incomplete(what: str, info: dict[str, Any]) -> None:
    """Raise WeightsError for tensors that are missing or misshaped, where a library would draw random ones.

    info: `output_loading_info` of `from_pretrained`.
    """
    for key, found in (("missing_keys", "missing"), ("mismatched_keys", "of another shape")):
        if names := sorted(map(str, info.get(key) or ())):
            raise WeightsError(f"{what}: {len(names):,} tensors are {found}, such as {names[0]}")


@contextmanager
def quiet(*libraries: str) -> Iterator[None]:
    """Keep to errors what diffusers and transformers print: bars beside ours, and each truncated caption."""
    loggings: list[Any] = [import_module(f"{library}.utils.logging") for library in libraries]
    before = [(logging, logging.get_verbosity(), logging.is_progress_bar_enabled()) for logging in loggings]
    for logging in loggings:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
    try:
        yield
    finally:
        for logging, level, bars in before:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()


def failure(what: str, error: Exception) -> WeightsError:
    """What a library raised while it opened a model, in a line."""
    if isinstance(error, WeightsError):
        return error
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return WeightsError(f"{what} could not be opened ({reason})")


BLIP = "Salesforce/blip-image-captioning-large"
"""BLIP with ViT-L, pre-trained on 129M pairs and tuned on COCO's captions, as PAC-S's paper uses it."""
_ARCHITECTURE = "BlipForConditionalGeneration"
_WHAT = "captioner"


def find_captioner(model: str, revision: str | None) -> FoundModel:
    """The files of a BLIP captioner in transformers' format.

    Raises:
        WeightsError: there is none, or it is another model.
    """

    def needed(path: Path) -> list[str]:
        if not (path / CONFIG).is_file():
            if (path / "model_index.json").is_file():
                kind = read_config(path / "model_index.json").get("_class_name")
                raise WeightsError(f"{_WHAT} {model!r} is a pipeline of diffusers ({kind}), {_EXPECTED}")
            raise WeightsError(f"{_WHAT} {model!r} has no {CONFIG}, {_EXPECTED}")
        config = read_config(path / CONFIG)
        kinds = config.get("architectures") or [f"model of type {config.get('model_type')!r}"]
        if config.get("model_type") != "blip" or _ARCHITECTURE not in kinds:
            raise WeightsError(f"{_WHAT} {model!r} is a {kinds[0]}, {_EXPECTED}")
        return [TENSORS]

    return find_model(model, revision, _WHAT, default=BLIP, files=["*.json", "*.txt"], needed=needed)


_EXPECTED = f"expected a captioner ({_ARCHITECTURE}), such as {BLIP}"


class Captioner(Generator[Image.Image]):
    """A BLIP captioner that is open.

    Args:
        found: its files.
        settings: how captions are decoded.

    Raises:
        WeightsError: a file is damaged, or tensors are missing.
    """

    def __init__(self, found: FoundModel, settings: CaptionAugmentation) -> None:
        from transformers import BlipConfig, BlipForConditionalGeneration, BlipProcessor

        what = f"{_WHAT} {found.name!r}"
        try:
            with quiet("transformers"):
                self._processor: Any = BlipProcessor.from_pretrained(found.path, local_files_only=True)
                config: Any = BlipConfig.from_pretrained(found.path, local_files_only=True)
                self._check_length(settings, config.text_config.max_position_embeddings)
                captioner: Any = BlipForConditionalGeneration
                model, info = captioner.from_pretrained(
                    found.path,
                    dtype=DTYPES[settings.dtype],
                    use_safetensors=True,
                    local_files_only=True,
                    output_loading_info=True,
                )
        except InputError:
            raise
        except Exception as error:  # whatever a damaged file leads its reader to
            raise failure(what, error) from error
        refuse_incomplete(what, info)
        self._settings = settings
        self._device = resolve_device(settings.device)
        self._model: Any = model.to(self._device).eval()

    def _check_length(self, settings: CaptionAugmentation, positions: int) -> None:
        """Refuse captions that the text decoder cannot hold, or that end within the prompt."""
        prompt = len(self._processor.tokenizer(settings.prompt)["input_ids"]) - 1
        if not prompt < settings.max_length <= positions:
            expected = f"expected more than the prompt's {prompt} and at most the model's {positions} tokens"
            raise wrong_option("max_length", settings.max_length, "", expected, verb="")

    def generate(self, contents: Sequence[Image.Image], seeds: Sequence[int]) -> list[Generated | Dropped]:
        """A caption of each image, without the prompt."""
        settings = self._settings
        prompts = [settings.prompt] * len(contents)
        inputs = self._processor(images=list(contents), text=prompts, return_tensors="pt")
        inputs = inputs.to(self._device, DTYPES[settings.dtype])
        search: dict[str, Any] = {"num_beams": settings.beams}
        if settings.decoding == "nucleus":
            search = {"num_beams": 1, "logits_processor": _nucleus(settings.top_p, seeds)}
        with torch.inference_mode(), quiet("transformers"):
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


STABLE_DIFFUSION = "CompVis/stable-diffusion-v1-4"
"""Stable Diffusion, tuned at 512x512 on LAION-Aesthetics. PAC-S's paper names this model, not its version."""
BLACKED_OUT, BLACK = Dropped("blacked out by the safety checker"), Dropped("black")
_INDEX = "model_index.json"
_PIPELINE = "text-to-image model"
_EXPECTED_PIPELINE = f"expected a text-to-image pipeline of diffusers, such as {STABLE_DIFFUSION}"
_ARGUMENTS = ("num_inference_steps", "guidance_scale", "height", "width", "generator")
_STEMS = {"diffusers": "diffusion_pytorch_model"}
"""How files of tensors begin, by the library of a component; those of others begin with `model`."""


def require_diffusers() -> None:
    """Raise WeightsError, which says what to install, where diffusers is not."""
    if find_spec("diffusers") is None:
        raise WeightsError(f"generated images need diffusers: {install_command('augment')}")


def find_text_to_image(model: str, revision: str | None) -> FoundModel:
    """The files of a text-to-image pipeline of diffusers.

    Raises:
        WeightsError: diffusers is not installed; there is no such model, it is another one, or it has code or
            components of its own.
    """
    require_diffusers()

    def needed(path: Path) -> list[str]:
        components = _components(model, path)
        refuse_code(model, path)
        return [
            file
            for name, (library, class_name) in components.items()
            if _has_weights(library, class_name)
            for file in _tensors_of(path, name, library)
        ]

    patterns = ["*.json", "*.txt", "*.model"]
    return find_model(model, revision, _PIPELINE, default=STABLE_DIFFUSION, files=patterns, needed=needed)


def _components(model: str, path: Path) -> dict[str, tuple[str, str]]:
    """Library and class of each component of a pipeline that makes images of texts."""
    import diffusers
    from diffusers.pipelines.auto_pipeline import AUTO_TEXT2IMAGE_PIPELINES_MAPPING

    if not (path / _INDEX).is_file():
        if (path / CONFIG).is_file():
            config = read_config(path / CONFIG)
            kinds = config.get("architectures") or [config.get("_class_name") or config.get("model_type")]
            raise WeightsError(f"{_PIPELINE} {model!r} is a {kinds[0]}, {_EXPECTED_PIPELINE}")
        raise WeightsError(f"{_PIPELINE} {model!r} has no {_INDEX}, {_EXPECTED_PIPELINE}")
    index = read_config(path / _INDEX)
    name = index.get("_class_name")
    known = {pipeline.__name__: pipeline for pipeline in AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values()}
    if not isinstance(name, str) or name not in known:
        raise WeightsError(f"{_PIPELINE} {model!r} is a {name}, {_EXPECTED_PIPELINE}")
    takes = inspect.signature(known[name].__call__).parameters
    if lacking := [argument for argument in _ARGUMENTS if argument not in takes]:
        raise WeightsError(
            f"{_PIPELINE} {model!r} is a {name}, which takes no {lacking[0]}; {_EXPECTED_PIPELINE}"
        )
    components = {}
    for component, entry in index.items():
        if component.startswith("_") or not isinstance(entry, list) or entry == [None, None]:
            continue
        library, class_name = entry if len(entry) == 2 else (None, None)
        standard = library in ("diffusers", "transformers") or hasattr(diffusers.pipelines, str(library))
        if not standard or not isinstance(class_name, str):
            found = f"its {component} is {entry!r}, which is no class of diffusers or transformers"
            raise WeightsError(f"{_PIPELINE} {model!r}: {found}, and code of a model is not run")
        components[component] = (str(library), class_name)
    return components


def refuse_code(model: str, path: Path) -> None:
    """Raise WeightsError for a folder with modules, which diffusers would import."""
    if code := sorted(path.rglob("*.py")):
        found = f"holds code ({code[0].relative_to(path)}), and code of a model is not run"
        raise WeightsError(f"{_PIPELINE} {model!r} {found}: delete it, or pass another model")


def _class_of(library: str, class_name: str) -> Any:
    import diffusers
    import transformers

    modules = {"diffusers": diffusers, "transformers": transformers}
    module: Any = modules.get(library) or getattr(diffusers.pipelines, library)
    found = getattr(module, class_name, None)
    if found is None:
        raise WeightsError(f"{library} has no {class_name}{did_you_mean(class_name, dir(module))}")
    return found


def _has_weights(library: str, class_name: str) -> bool:
    return issubclass(_class_of(library, class_name), torch.nn.Module)


def _tensors_of(path: Path, component: str, library: str) -> list[str]:
    """The files of tensors of a component: one, or those that an index lists."""
    stem = _STEMS.get(library, "model")
    listing = path / component / f"{stem}.safetensors.index.json"
    names = [f"{stem}.safetensors"]
    if listing.is_file():
        shards = read_config(listing).get("weight_map")
        names = sorted(set(map(str, shards.values()))) if isinstance(shards, Mapping) else names
    return [f"{component}/{name}" for name in names]


class TextToImage(Generator[str]):
    """A text-to-image pipeline that is open.

    Args:
        found: its files.
        settings: steps, guidance, size of images.

    Raises:
        WeightsError: a file is damaged, or tensors are missing.
    """

    def __init__(self, found: FoundModel, settings: ImageAugmentation) -> None:
        from diffusers import DiffusionPipeline

        what = f"{_PIPELINE} {found.name!r}"
        refuse_code(found.name, found.path)
        dtype = DTYPES[settings.dtype]
        try:
            with quiet("diffusers", "transformers"):
                modules = {
                    name: _opened(what, found.path / name, _class_of(library, class_name), dtype)
                    for name, (library, class_name) in _components(found.name, found.path).items()
                    if _has_weights(library, class_name)
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
        except InputError:
            raise
        except Exception as error:  # whatever a damaged file leads its reader to
            raise failure(what, error) from error
        self._pipeline.set_progress_bar_config(disable=True)
        self._settings = settings

    def generate(self, contents: Sequence[str], seeds: Sequence[int]) -> list[Generated | Dropped]:
        """A PNG of each caption. Noise is drawn on the CPU, so that it is the same on every device."""
        settings = self._settings
        with torch.inference_mode(), quiet("diffusers", "transformers"):
            made = self._pipeline(
                list(contents),
                num_inference_steps=settings.steps,
                guidance_scale=settings.guidance,
                height=settings.image_size,
                width=settings.image_size,
                generator=[torch.Generator().manual_seed(seed) for seed in seeds],
            )
        self.truncated += sum(map(self._is_truncated, contents))
        flags = getattr(made, "nsfw_content_detected", None) or [False] * len(contents)
        return [BLACKED_OUT if flag else _png(image) for image, flag in zip(made.images, flags, strict=True)]

    def _is_truncated(self, caption: str) -> bool:
        tokenizer = getattr(self._pipeline, "tokenizer", None)
        if tokenizer is None:
            return False
        return len(tokenizer(caption)["input_ids"]) > int(tokenizer.model_max_length)


def _opened(what: str, path: Path, class_: Any, dtype: torch.dtype) -> Any:
    """A component with all of its tensors."""
    model, info = class_.from_pretrained(
        path, dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
    )
    refuse_incomplete(f"{what}: {path.name}", info)
    return model


def _png(image: Image.Image) -> bytes | Dropped:
    if not image.getbbox():  # where numbers overflow, as in float16, nothing is left either
        return BLACK
    file = io.BytesIO()
    image.convert("RGB").save(file, format="PNG")
    return file.getvalue()
