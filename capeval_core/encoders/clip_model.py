"""open_clip's CLIP modules, filled strictly with checked tensors."""

from __future__ import annotations

from typing import Any

import torch
from open_clip.model import CLIP, convert_weights_to_lp
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from capeval_core.models.architecture import check_tensors
from capeval_core.models.precision import DTYPES
from capeval_core.weights.folder import WeightsError

VISION_KEYS = {"layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size"}
TEXT_KEYS = {"layers", "width", "heads", "mlp_ratio", "context_length", "vocab_size"}


def build_clip(
    config: dict[str, Any], tensors: dict[str, Tensor], dtype: str, *, mask_channel: bool = False
) -> CLIP:
    """open_clip's CLIP with exactly these tensors, in eval mode.

    With `mask_channel` its image tower, a ViT, also holds `conv1_alpha`, the patch embedding of masks.

    Raises:
        WeightsError: an architecture that is not plain CLIP; tensors that are missing, extra or misshaped.
    """
    model = empty_clip(config, dtype, mask_channel=mask_channel)
    check_tensors(model.state_dict(), tensors)
    wide = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    model.load_state_dict(wide, strict=True, assign=True)
    model.attn_mask = None  # causality is ours, at each text's real length
    if dtype != "float32":
        convert_weights_to_lp(model, DTYPES[dtype])
    return model.eval().requires_grad_(False)


def empty_clip(config: dict[str, Any], dtype: str = "float32", *, mask_channel: bool = False) -> CLIP:
    """open_clip's CLIP of a config on torch's meta device: no memory, and no numbers for what is overwritten.

    Raises:
        WeightsError: an architecture that is not plain CLIP.
    """
    architecture = config["architecture"]
    _check_architecture(architecture)
    try:
        with torch.device("meta"):
            model = CLIP(
                architecture["embed_dim"],
                architecture["vision"],
                architecture["text"],
                quick_gelu=config["activation"] == "quick_gelu",
                cast_dtype=None if dtype == "float32" else DTYPES[dtype],
            )
            if mask_channel:
                add_mask_channel(model.visual)
    except WeightsError:
        raise
    except Exception as error:  # whatever its parts refuse, each in its own way
        raise WeightsError(f"the architecture of the config cannot be built ({error})") from error
    return model


def add_mask_channel(visual: nn.Module) -> None:
    """Give an image tower, a ViT, the patch embedding of masks."""
    if not isinstance(visual, VisionTransformer):
        raise WeightsError("the image tower is a ResNet, but only a ViT can have a mask channel")
    of_images = visual.conv1
    visual.conv1_alpha = nn.Conv2d(
        1, of_images.out_channels, of_images.kernel_size, of_images.stride, bias=False
    )


def _check_architecture(architecture: dict[str, Any]) -> None:
    for tower, known in (("vision", VISION_KEYS), ("text", TEXT_KEYS)):
        unknown = sorted(
            key for key in architecture[tower].keys() - known if architecture[tower][key] is not None
        )
        if unknown:
            raise WeightsError(
                f"architecture.{tower} has {', '.join(unknown)}, which OpenAI's and OpenCLIP's plain CLIP "
                f"does not have (known: {', '.join(sorted(known))})"
            )
    vocabulary = architecture["text"].get("vocab_size", 49408)
    if vocabulary != 49408:
        raise WeightsError(
            f"architecture.text.vocab_size is {vocabulary}, but CLIP's vocabulary has 49408 entries"
        )
