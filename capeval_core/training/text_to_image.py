"""Generated images: text-to-image pipelines of diffusers, such as Stable Diffusion.

Rombach, Blattmann, Lorenz, Esser, Ommer: High-Resolution Image Synthesis with Latent Diffusion Models, CVPR
2022, https://arxiv.org/abs/2112.10752
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from capeval_core.errors import InputError, did_you_mean
from capeval_core.models.device import DTYPES, resolve_device
from capeval_core.project import install_command
from capeval_core.training.generators import (
    Dropped,
    FoundModel,
    Generated,
    Generator,
    failure,
    find_model,
    quiet,
    refuse_incomplete,
)
from capeval_core.weights.folder import CONFIG, WeightsError, read_config

if TYPE_CHECKING:
    from capeval_core.training.augmentation import ImageAugmentation

STABLE_DIFFUSION = "CompVis/stable-diffusion-v1-4"
"""Stable Diffusion, tuned at 512x512 on LAION-Aesthetics. PAC-S's paper names this model, not its version."""
BLACKED_OUT, BLACK = Dropped("blacked out by the safety checker"), Dropped("black")
_INDEX = "model_index.json"
_WHAT = "text-to-image model"
_EXPECTED = f"expected a text-to-image pipeline of diffusers, such as {STABLE_DIFFUSION}"
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
    return find_model(model, revision, _WHAT, default=STABLE_DIFFUSION, files=patterns, needed=needed)


def _components(model: str, path: Path) -> dict[str, tuple[str, str]]:
    """Library and class of each component of a pipeline that makes images of texts."""
    import diffusers
    from diffusers.pipelines.auto_pipeline import AUTO_TEXT2IMAGE_PIPELINES_MAPPING

    if not (path / _INDEX).is_file():
        if (path / CONFIG).is_file():
            config = read_config(path / CONFIG)
            kinds = config.get("architectures") or [config.get("_class_name") or config.get("model_type")]
            raise WeightsError(f"{_WHAT} {model!r} is a {kinds[0]}, {_EXPECTED}")
        raise WeightsError(f"{_WHAT} {model!r} has no {_INDEX}, {_EXPECTED}")
    index = read_config(path / _INDEX)
    name = index.get("_class_name")
    known = {pipeline.__name__: pipeline for pipeline in AUTO_TEXT2IMAGE_PIPELINES_MAPPING.values()}
    if not isinstance(name, str) or name not in known:
        raise WeightsError(f"{_WHAT} {model!r} is a {name}, {_EXPECTED}")
    takes = inspect.signature(known[name].__call__).parameters
    if lacking := [argument for argument in _ARGUMENTS if argument not in takes]:
        raise WeightsError(f"{_WHAT} {model!r} is a {name}, which takes no {lacking[0]}; {_EXPECTED}")
    components = {}
    for component, entry in index.items():
        if component.startswith("_") or not isinstance(entry, list) or entry == [None, None]:
            continue
        library, class_name = entry if len(entry) == 2 else (None, None)
        standard = library in ("diffusers", "transformers") or hasattr(diffusers.pipelines, str(library))
        if not standard or not isinstance(class_name, str):
            found = f"its {component} is {entry!r}, which is no class of diffusers or transformers"
            raise WeightsError(f"{_WHAT} {model!r}: {found}, and code of a model is not run")
        components[component] = (str(library), class_name)
    return components


def refuse_code(model: str, path: Path) -> None:
    """Raise WeightsError for a folder with modules, which diffusers would import."""
    if code := sorted(path.rglob("*.py")):
        found = f"holds code ({code[0].relative_to(path)}), and code of a model is not run"
        raise WeightsError(f"{_WHAT} {model!r} {found}: delete it, or pass another model")


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

        what = f"{_WHAT} {found.name!r}"
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
