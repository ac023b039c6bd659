"""EVA-CLIP-18B: a CLIP whose image tower has 17.6 billion parameters, without running downloaded code.

Sun, Wang, Yu, Cui, Zhang, Zhang, Wang: EVA-CLIP-18B: Scaling CLIP to 18 Billion Parameters, 2024,
https://arxiv.org/abs/2402.04252

The tower is nearly all of the model. Its layers compute in the type of what comes in and widen their weights
as they run, one at a time: weights stored in float16 take half the memory in float32 arithmetic, and give
the very numbers that float32 weights would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.clip import ClipEncoder, ClipSettings, ClipSizes
from capeval_core.encoders.clip_conversion import head_width_of, read_text
from capeval_core.models.config import Closed, Layers, Side, Width
from capeval_core.models.device import DTYPES
from capeval_core.options import option
from capeval_core.weights.checkpoint import INDEX, read_checkpoint, read_shards
from capeval_core.weights.conversion import Conversion, Shapes, Tensors, clip_preprocessing, joined, side_of

_PRE_NORM_WIDTH = 4096  # of the model of 8 billion parameters, whose norms come first
_VISION = "vision_model.embeddings."
_TEXT = "text_projection.weight"


@dataclass(frozen=True)
class _EvaSizes(Closed):
    """Sizes of the image tower. norm: "post" in the model of 18 billion parameters, "pre" in that of 8."""

    image_size: Side
    patch_size: Side
    width: Width
    layers: Layers
    head_width: Width
    mlp_width: Width
    norm: Literal["post", "pre"]

    def __post_init__(self) -> None:
        if self.width % self.head_width:
            raise ValueError(f"head_width is {self.head_width}, which does not divide the width {self.width}")


@dataclass(frozen=True)
class _EvaClipSizes(ClipSizes):
    vision: _EvaSizes  # type: ignore[assignment]


@dataclass(frozen=True)
class _EvaClipSettings(ClipSettings):
    architecture: _EvaClipSizes
    activation: Literal["gelu"]


@dataclass(frozen=True, kw_only=True)
class EvaClipConversion(Conversion):
    """EVA-CLIP in its authors' own naming or in transformers', whole or in shards."""

    encoder = "eva_clip"
    keeps_type = True

    head_width: int = option(128, "width of the image tower's heads", minimum=1)
    text_heads: int | None = option(None, "heads of the text tower; None: its width / 64", minimum=1)
    norm: Literal["post", "pre"] | None = option(
        None,
        "the image tower's norms follow attention and MLP (post, as in EVA-CLIP-18B) or come first (pre, "
        "as in EVA-CLIP-8B); None: as in the one of these models that has its width",
    )

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        if path.name.endswith(INDEX):
            return read_shards(path)
        return read_checkpoint(path, in_place=True), [path]  # mapped: the file may be larger than memory

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        if any(name.startswith(_VISION) for name in content):
            content = _from_transformers(content)
            notes.append("names: transformers', translated into the authors' own")
        return super().translate(content, notes)

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        config = super().config(shapes, content, notes)
        vision = config["architecture"]["vision"]
        width = vision["width"]
        positions = shapes["visual.pos_embed"][1] - 1
        vision["norm"] = norm = self.norm or ("pre" if width == _PRE_NORM_WIDTH else "post")
        vision["head_width"] = head_width_of(width, self.head_width)
        vision["image_size"] = side_of(positions, "visual.pos_embed") * vision["patch_size"]
        notes.append(f"image tower: heads {self.head_width} wide, {norm}-norm (not visible in the tensors)")
        config["architecture"]["text"] = read_text(shapes, notes, self.text_heads)
        return {**config, "preprocessing": clip_preprocessing(vision["image_size"])}


def _from_transformers(content: Mapping[str, Any]) -> dict[str, Any]:
    """transformers' tensors in the authors' shapes: query, keys and values in one, the projection turned."""
    tensors = joined(content)
    bias = tensors.pop("visual_projection.bias", None)
    # transformers' class has a bias, which stays as it was initialised.
    if bias is not None and bool(bias.any()):
        raise ValueError("visual_projection.bias is not zero, but EVA-CLIP projects images without a bias")
    class_token = f"{_VISION}class_embedding"
    positions = f"{_VISION}position_embedding.weight"
    tensors[class_token] = tensors[class_token].reshape(1, 1, -1)
    tensors[positions] = tensors[positions][None]
    tensors[_TEXT] = tensors[_TEXT].T  # a linear layer (out, in), where the authors have (in, out)
    return tensors


class EvaClipEncoder(ClipEncoder, tags=["image-captioning", "clip", "eva-clip"]):
    """EVA-CLIP: a vision transformer with RMS norms beside CLIP's text tower; images are made as for CLIP.
    Tensors have the release's names, those of the text tower without `text.`. The weights of 18 billion
    parameters take 38 GB in float32, and 37 GB in float16 or bfloat16; on the CPU the file is mapped."""

    kind = "eva_clip"
    family = "EVA "
    Conversion = EvaClipConversion
    Settings = _EvaClipSettings

    @classmethod
    def tower(cls, config: dict[str, Any], sizes: ClipSizes) -> nn.Module:
        return _EvaTower(cast(_EvaSizes, sizes.vision), sizes.embed_dim)

    def dtype_of(self, name: str, stored: torch.dtype) -> torch.dtype:
        if not name.startswith("visual."):
            return super().dtype_of(name, stored)
        # In float32 the tower's weights keep the type they are stored in: layers widen them one by one.
        return stored if self.dtype == "float32" else DTYPES[self.dtype]


class _RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon), times a weight per channel, in float32; no mean is subtracted."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        # In float16 the squares of some states are beyond its range.
        return functional.rms_norm(x.float(), self.weight.shape, self.weight.float(), 1e-6)


class _Linear(nn.Linear):
    """A linear layer in the type of its input, in whatever type its weights are kept."""

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class _Block(nn.Module):
    """x + norm(f(x)) for attention, then for the MLP; with `norm_first` x + f(norm(x)). The sum x stays in
    float32 while f computes in `dtype`: over 48 blocks its rounding would add up."""

    def __init__(self, sizes: _EvaSizes) -> None:
        super().__init__()
        width = sizes.width
        hidden = sizes.mlp_width
        self.heads = width // sizes.head_width
        self.norm_first = sizes.norm == "pre"
        self.norm1 = _RmsNorm(width)
        self.norm2 = _RmsNorm(width)
        self.attn = nn.ModuleDict(
            {"qkv": _Linear(width, 3 * width, bias=False), "proj": _Linear(width, width)}
        )
        self.mlp = nn.ModuleDict({"fc1": _Linear(width, hidden), "fc2": _Linear(hidden, width)})

    def _attended(self, x: Tensor) -> Tensor:
        projections = self.attn["qkv"](x).unflatten(2, (3, self.heads, -1))  # (n, rows, 3, heads, width)
        query, keys, values = projections.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, keys, values)
        projected: Tensor = self.attn["proj"](attended.transpose(1, 2).flatten(2))
        return projected

    def _expanded(self, x: Tensor) -> Tensor:
        expanded: Tensor = self.mlp["fc2"](functional.gelu(self.mlp["fc1"](x)))
        return expanded

    def forward(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        for step, norm in ((self._attended, self.norm1), (self._expanded, self.norm2)):
            update = step(norm(x).to(dtype)) if self.norm_first else norm(step(x.to(dtype)))
            x = x + update
        return x


class _EvaTower(nn.Module):
    """A vision transformer with RMS norms, whose class token is normed and projected."""

    def __init__(self, sizes: _EvaSizes, embed_dim: int) -> None:
        super().__init__()
        width = sizes.width
        patch = sizes.patch_size
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, (sizes.image_size // patch) ** 2 + 1, width))
        self.blocks = nn.ModuleList(_Block(sizes) for _ in range(sizes.layers))
        self.norm = _RmsNorm(width)
        self.head = _Linear(width, embed_dim, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """(n, embed_dim) features of normalised pixels (n, 3, image_size, image_size), in their type."""
        conv: Any = self.patch_embed["proj"]
        # Not called: a convolution refuses weights of another type than its input.
        weight = conv.weight.to(pixels.dtype)
        bias = conv.bias.to(pixels.dtype)
        x = functional.conv2d(pixels, weight, bias, conv.stride).flatten(2).mT.float()
        x = torch.cat([self.cls_token.float().expand(len(x), -1, -1), x], dim=1)
        x = x + self.pos_embed.float()
        for block in self.blocks:
            x = block(x, pixels.dtype)
        features: Tensor = self.head(self.norm(x[:, 0]).to(pixels.dtype))
        return features
