"""The part of a CLIP that PAC-S trains: the projections of both towers, and the temperature."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from capeval_core.encoders.clip_model import build_clip
from capeval_core.encoders.clip_modules import VisionTransformer
from capeval_core.training.pacs import MOST_SCALE

SCALE = "logit_scale"
"""The tensor of weights that holds log(1 / temperature)."""


class Temperature(nn.Module):
    """The temperature of the losses; as in CLIP its parameter is log(1 / temperature).

    Args:
        tensors: of the weights, whose temperature is where it starts.
        fixed: a temperature that is not trained; None: it is, and stays at 0.01 or above.
    """

    def __init__(self, tensors: dict[str, Tensor], fixed: float | None) -> None:
        super().__init__()
        start = tensors[SCALE].float().reshape(()) if fixed is None else torch.tensor(-math.log(fixed))
        self.logit_scale = nn.Parameter(start.clone(), requires_grad=fixed is None)

    @property
    def scale(self) -> Tensor:
        """1 / temperature."""
        return self.logit_scale.exp()

    def bound(self) -> None:
        """Keep a trained temperature at 0.01 or above."""
        if self.logit_scale.requires_grad:
            with torch.no_grad():
                self.logit_scale.clamp_(max=math.log(MOST_SCALE))


class Projections(Temperature):
    """The two projections of a CLIP, or a ResNet's attention pool and the projection of texts.

    Its state has the names of a CLIP's tensors.
    """

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], fixed: float | None) -> None:
        super().__init__(tensors, fixed)
        clip = build_clip(config, {name: tensor.clone() for name, tensor in tensors.items()}, "float32")
        self.text_projection = nn.Parameter(clip.text_projection.detach().clone())
        self.visual = nn.Module()
        if isinstance(clip.visual, VisionTransformer):
            self.visual.proj = nn.Parameter(clip.visual.proj.detach().clone())
        else:
            self.visual.attnpool = clip.visual.attnpool.requires_grad_(True)

    def images(self, outputs: Tensor) -> Tensor:
        """(n, d) features of a tower's outputs for images."""
        visual: Any = self.visual
        features: Tensor = visual.attnpool(outputs) if hasattr(visual, "attnpool") else outputs @ visual.proj
        return features

    def texts(self, outputs: Tensor) -> Tensor:
        """(n, d) features of a tower's outputs for texts."""
        return outputs @ self.text_projection

    def tuned(self, state: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a whole CLIP, with those of a state of this module."""
        return {**tensors, **{name: tensor.reshape(tensors[name].shape) for name, tensor in state.items()}}
