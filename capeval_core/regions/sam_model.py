"""transformers' SAM, with its own image encoder or another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from capeval_core.regions.vision import CHANNELS, VISION
from capeval_core.weights.sam import COPY, GAUSSIAN

_RELEASED_EPS = 1e-5
"""Of the layer norms in the decoder's transformer: PyTorch's default, as the original has it. Configurations
on the Hub say 1e-6, which moves logits by up to 6e-4."""


def build(architecture: Mapping[str, Any]) -> nn.Module:
    """The model of an architecture, with random weights, in evaluation mode.

    The Gaussian matrix stands twice among its tensors, not tied.
    """
    from transformers import SamConfig, SamModel

    decoder = dict(architecture["decoder"])
    masks = decoder.pop("mask_input_channels")
    width = decoder["hidden_size"]
    common = {"image_size": architecture["image_size"], "patch_size": architecture["patch_size"]}
    foreign = VISION.get(architecture["kind"])
    vision = {"num_hidden_layers": 0, "hidden_size": width} if foreign else dict(architecture["vision"])
    config = SamConfig(
        vision_config={**vision, **common, "output_channels": width, "num_pos_feats": width // 2},
        prompt_encoder_config={**common, "hidden_size": width, "mask_input_channels": masks},
        mask_decoder_config={**decoder, "layer_norm_eps": _RELEASED_EPS},
    )
    model: Any = SamModel(config)
    if foreign:
        if width != CHANNELS:
            raise ValueError(f"a decoder of width {width}, but the image encoder gives {CHANNELS} channels")
        model.vision_encoder = foreign()
    return _untied(model)


def build_transformers(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The model of a SAM repository in transformers' format, filled strictly, in evaluation mode.

    Raises:
        ValueError: the tensors are not those of the config.
    """
    model = empty_transformers(config)
    fill(model, with_copy(tensors))
    return model


def empty_transformers(config: Mapping[str, Any]) -> nn.Module:
    """The model of a SAM repository in transformers' format, with random weights, in evaluation mode."""
    from transformers import SamConfig, SamModel

    read: Any = SamConfig(**config)
    read.mask_decoder_config.layer_norm_eps = _RELEASED_EPS
    return _untied(SamModel(read))


def with_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file in transformers' format, which keeps the tied ones once, by all names."""
    content = dict(tensors)
    if GAUSSIAN in content:
        content.setdefault(COPY, content[GAUSSIAN])
    return content


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load tensors, exactly those of the model.

    Raises:
        ValueError: the first few lines of what does not fit.
    """
    try:
        model.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise ValueError("; ".join(line.strip()[:200] for line in str(error).splitlines()[1:4])) from None


def _untied(model: Any) -> nn.Module:
    gaussian = model.shared_image_embedding.positional_embedding
    model.prompt_encoder.shared_embedding.positional_embedding = nn.Parameter(gaussian.detach().clone())
    evaluated: nn.Module = model.eval()
    return evaluated
