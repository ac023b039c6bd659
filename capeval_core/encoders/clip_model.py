"""The configuration of a CLIP, and its modules filled strictly with checked tensors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capeval_core.encoders.clip_modules import Clip, ResNet, VisionTransformer
from capeval_core.models.architecture import scaling_problems, size_problems
from capeval_core.models.config import is_number, shown
from capeval_core.models.device import DTYPES
from capeval_core.models.model import check_tensors
from capeval_core.values import expanded_path
from capeval_core.weights.catalogue import entry_of
from capeval_core.weights.folder import CONFIG, OPEN_CLIP_CONFIG, TINY, WeightsError, read_json

VISION_KEYS = {"layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size"}
TEXT_KEYS = {"layers", "width", "heads", "mlp_ratio", "context_length", "vocab_size"}
_PREPROCESSING = {"image_size", "mean", "std", "interpolation"}
_USUAL = 77  # token ids that CLIP reads; all listed weights do
_INTERPOLATIONS = ("bicubic", "bilinear")


def build_clip(
    config: dict[str, Any], tensors: dict[str, Tensor], dtype: str, *, mask_channel: bool = False
) -> Clip:
    """A CLIP with exactly these tensors, in eval mode.

    With `mask_channel` its image tower, a ViT, also holds `conv1_alpha`, the patch embedding of masks.

    Raises:
        WeightsError: an architecture that is not plain CLIP; tensors that are missing, extra or misshaped.
    """
    return filled(empty_clip(config, mask_channel=mask_channel), tensors, dtype)


def filled(
    model: Clip,
    tensors: dict[str, Tensor],
    dtype: str,
    *,
    visual: torch.dtype | None = torch.float32,
    device: torch.device | None = None,
) -> Clip:
    """A CLIP with exactly these tensors, in eval mode.

    Each tensor goes to the device by itself: no second copy of the model is made. `visual` is the type of the
    image tower's before those of linear layers get `dtype`; None: the type in which they are stored.

    Raises:
        WeightsError: tensors that are missing, extra or misshaped.
    """
    check_tensors(model.state_dict(), tensors)
    typed = {
        name: t.to(device, visual if name.startswith("visual.") else torch.float32)
        if t.is_floating_point()
        else t
        for name, t in tensors.items()
    }
    model.load_state_dict(typed, strict=True, assign=True)
    if dtype != "float32":
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear, nn.MultiheadAttention)):
                module.to(DTYPES[dtype])
        model.text_projection.data = model.text_projection.to(DTYPES[dtype])
        if isinstance(model.visual, VisionTransformer):
            model.visual.proj.data = model.visual.proj.to(DTYPES[dtype])
    return model.eval().requires_grad_(False)


def empty_clip(config: dict[str, Any], *, mask_channel: bool = False) -> Clip:
    """The CLIP of a config on torch's meta device: no memory, and no numbers for what is overwritten.

    Raises:
        WeightsError: an architecture that is not plain CLIP.
    """
    architecture = config["architecture"]
    check_architecture(architecture)
    try:
        with torch.device("meta"):
            embed_dim, activation = architecture["embed_dim"], config["activation"]
            vision, text = set_values(architecture["vision"]), set_values(architecture["text"])
            if isinstance(vision.get("layers"), list):
                visual: nn.Module = ResNet(embed_dim, **vision)
            else:
                visual = VisionTransformer(embed_dim, activation, **vision)
            if mask_channel:
                add_mask_channel(visual)
            model = Clip(embed_dim, visual, activation, **text)
    except WeightsError:
        raise
    except Exception as error:  # whatever its parts refuse, each in its own way
        raise WeightsError(f"the architecture of the config cannot be built ({error})") from error
    return model


def add_mask_channel(visual: Any) -> None:
    """Give an image tower, a ViT, the patch embedding of masks."""
    if isinstance(visual, ResNet):
        raise WeightsError("the image tower is a ResNet, but only a ViT can have a mask channel")
    width, _, patch, _ = visual.conv1.weight.shape
    visual.conv1_alpha = nn.Conv2d(1, width, patch, patch, bias=False)


def check_architecture(architecture: dict[str, Any], vision_keys: set[str] = VISION_KEYS) -> None:
    """Refuse an architecture with keys that are not known, or with another vocabulary than CLIP's."""
    for tower, known in (("vision", vision_keys), ("text", TEXT_KEYS)):
        if unknown := sorted(set_values(architecture[tower]).keys() - known):
            raise WeightsError(
                f"architecture.{tower} has {', '.join(unknown)}, which is not known here (known: "
                f"{', '.join(sorted(known))})"
            )
    if problem := vocabulary_problem(architecture):
        raise WeightsError(problem)


def vocabulary_problem(architecture: dict[str, Any]) -> str:
    """What is wrong with the size of the vocabulary, in words; '' if nothing is."""
    size = set_values(architecture["text"]).get("vocab_size", 49408)
    return (
        ""
        if size == 49408
        else (f"architecture.text.vocab_size is {size}, but CLIP's vocabulary has 49408 entries")
    )


def set_values(section: dict[str, Any]) -> dict[str, Any]:
    """The keys of a part of a config that have a value."""
    return {key: value for key, value in section.items() if value is not None}


def config_problems(config: dict[str, Any]) -> list[str]:
    """What is missing or of the wrong kind, in words; an empty list if all is well.

    Whether the architecture can be built and the tensors fit it is asked when they are loaded.
    """
    problems = _architecture_problems(config.get("architecture"))
    activation = config.get("activation")
    if activation not in ("quick_gelu", "gelu"):
        problems.append(f"activation is {shown(activation)}, expected 'quick_gelu' or 'gelu'")
    problems += _preprocessing_problems(config.get("preprocessing"))
    if not problems:
        built_for = config["architecture"]["vision"].get("image_size")
        size = config["preprocessing"]["image_size"]
        if built_for not in (None, size):
            problems.append(f"preprocessing.image_size is {size}, but architecture.vision's is {built_for}")
    constants = config.get("constants", {})
    if not isinstance(constants, dict):
        problems.append(f"constants is {shown(constants)}, expected an object")
    elif not isinstance(constants.get("prompt", ""), str):
        problems.append(f"constants.prompt is {shown(constants['prompt'])}, expected a text")
    return problems


def context_length(weights: str | os.PathLike[str], *, tiny: str) -> int | None:
    """The context length of weights by their config alone; None where it shows only when they are opened."""
    name = os.fspath(weights)
    if entry_of(name.partition("@")[0]) is not None and not Path(name).is_dir():
        return _USUAL
    folder = TINY / tiny if name == "tiny" else expanded_path(name)
    for file in (OPEN_CLIP_CONFIG, CONFIG):
        try:
            config = read_json(folder / file)
            ours = file == CONFIG
            text = config["architecture"]["text"] if ours else config["model_cfg"]["text_cfg"]
            length = text.get("context_length", _USUAL)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # whatever is wrong with it shows when the weights are opened
        return length if is_number(length, 0, 1 << 20) and isinstance(length, int) else None
    return None


def mask_problems(scaling: Any) -> list[str]:
    """What is wrong with the scaling of masks in an Alpha-CLIP's config, in words."""
    mean, std = _object(scaling).get("mean"), _object(scaling).get("std")
    if is_number(mean, -1e3, 1e3) and is_number(std, 1e-4, 1e3):
        return []
    return [f"mask is {shown(scaling)}, expected the mean and the standard deviation (above 0) of masks"]


def _architecture_problems(architecture: Any) -> list[str]:
    if not isinstance(architecture, dict):
        return ["architecture is missing"]
    towers = {name: _object(architecture.get(name)) for name in ("vision", "text")}
    problems = [f"architecture.{name} is missing" for name, tower in towers.items() if not tower]
    if architecture.get("embed_dim") is None:
        problems.append("architecture.embed_dim is missing, expected a positive integer")
    problems += size_problems(architecture, "architecture")
    if not problems:
        problems = [problem for name, tower in towers.items() for problem in _head_problems(tower, name)]
    return problems


def _head_problems(tower: dict[str, Any], name: str) -> list[str]:
    """Attention heads leave no trace in tensors, but share the width."""
    width = tower.get("width")
    share = tower.get("head_width") if name == "vision" else tower.get("heads")
    if not width or not share or isinstance(tower.get("layers"), list) or width % share == 0:
        return []
    key = "head_width" if name == "vision" else "heads"
    return [f"architecture.{name}.{key} is {share}, which does not divide the width {width}"]


def _preprocessing_problems(preprocessing: Any) -> list[str]:
    if not isinstance(preprocessing, dict):
        return ["preprocessing is missing"]
    problems = []
    if preprocessing.get("image_size") is None:
        problems.append("preprocessing.image_size is missing, expected a positive integer")
    problems += size_problems(preprocessing, "preprocessing") + scaling_problems(preprocessing)
    if preprocessing.get("interpolation", "bicubic") not in _INTERPOLATIONS:
        problems.append(
            f"preprocessing.interpolation is {shown(preprocessing['interpolation'])}, but only "
            f"{' and '.join(map(repr, _INTERPOLATIONS))} are known"
        )
    if unknown := sorted(preprocessing.keys() - _PREPROCESSING):
        problems.append(f"preprocessing has {shown(', '.join(unknown))}, which is not known here")
    return problems


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
