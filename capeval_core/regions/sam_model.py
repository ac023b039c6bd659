"""The modules of SAM, by transformers, with its image encoder or that of MobileSAM or MobileSAMv2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.weights.sam import COPY, GAUSSIAN

_RELEASED_EPS = 1e-5
"""Epsilon of the layer norms in the decoder's transformer: PyTorch's default, as in the original. Configs on
the Hub have 1e-6, which moves logits by up to 6e-4."""


def build(architecture: Mapping[str, Any]) -> nn.Module:
    """The model of an architecture, with random weights, in evaluation mode.

    Its tensors hold the Gaussian matrix twice, not tied. A config of the Hub is `{"transformers": config}`.
    """
    from transformers import SamConfig, SamModel

    if "transformers" in architecture:
        config: Any = SamConfig(**architecture["transformers"])
        config.mask_decoder_config.layer_norm_eps = _RELEASED_EPS
        return _untied(SamModel(config))
    decoder = dict(architecture["decoder"])
    masks = decoder.pop("mask_input_channels")
    width = decoder["hidden_size"]
    common = {"image_size": architecture["image_size"], "patch_size": architecture["patch_size"]}
    vision_class = VISION.get(architecture["kind"])
    vision = {"num_hidden_layers": 0, "hidden_size": width} if vision_class else dict(architecture["vision"])
    config = SamConfig(
        vision_config={**vision, **common, "output_channels": width, "num_pos_feats": width // 2},
        prompt_encoder_config={**common, "hidden_size": width, "mask_input_channels": masks},
        mask_decoder_config={**decoder, "layer_norm_eps": _RELEASED_EPS},
    )
    model: Any = SamModel(config)
    if vision_class:
        if width != CHANNELS:
            raise ValueError(f"a decoder of width {width}, but the image encoder gives {CHANNELS} channels")
        model.vision_encoder = vision_class()
    return _untied(model)


def with_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a file in transformers' format, which holds tied tensors once, by all their names."""
    by_name = dict(tensors)
    if GAUSSIAN in by_name:
        by_name.setdefault(COPY, by_name[GAUSSIAN])
    return by_name


def _untied(model: Any) -> nn.Module:
    gaussian = model.shared_image_embedding.positional_embedding
    model.prompt_encoder.shared_embedding.positional_embedding = nn.Parameter(gaussian.detach().clone())
    evaluated: nn.Module = model.eval()
    return evaluated


CHANNELS = 256
SIDE = 64
"""Features that SAM's decoder takes: 256 channels on a grid of 64 by 64."""
_EPS = 1e-6


class TinyVit(nn.Module):
    """TinyViT-5M as MobileSAM's image encoder: (n, 3, 1024, 1024) -> ((n, 256, 64, 64),).

    The last downsampling keeps its resolution, and SAM's neck follows.
    """

    def __init__(self) -> None:
        import timm

        super().__init__()
        backbone: Any = timm.create_model("tiny_vit_5m_224", num_classes=0)
        backbone.stages[3].downsample.conv2.conv.stride = (1, 1)
        self.patch_embed = backbone.patch_embed
        self.stages = backbone.stages
        self.neck = nn.Sequential(
            nn.Conv2d(320, CHANNELS, 1, bias=False),
            LayerNorm2d(CHANNELS),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
            LayerNorm2d(CHANNELS),
        )

    def forward(self, pixels: Tensor, **_: Any) -> tuple[Tensor]:
        return (self.neck(self.stages(self.patch_embed(pixels))),)


class EfficientVit(nn.Module):
    """EfficientViT-L2 as MobileSAMv2's image encoder: (n, 3, 1024, 1024) -> ((n, 256, 64, 64),).

    It works at half the resolution: the padded image is resized first. The neck sums its last three stages.
    """

    INPUT = 512

    def __init__(self) -> None:
        import timm

        super().__init__()
        # 1e-6 as the release; timm's default for L2 is 1e-7.
        backbone: Any = timm.create_model("efficientvit_l2", num_classes=0, norm_eps=_EPS)
        self.stem = backbone.stem
        self.stages = backbone.stages
        self.neck = _Neck((512, 256, 128))
        self.norm = LayerNorm2d(CHANNELS)

    def forward(self, pixels: Tensor, **_: Any) -> tuple[Tensor]:
        x = functional.interpolate(pixels, (self.INPUT, self.INPUT), mode="bilinear", align_corners=False)
        x = self.stem(x)
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return (self.norm(self.neck(maps[:0:-1])),)


class _Neck(nn.Module):
    """Feature maps of several resolutions, deepest first, resized to one grid, summed and refined."""

    def __init__(self, widths: tuple[int, ...], depth: int = 12) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(_ConvNorm(width, CHANNELS, 1) for width in widths)
        self.middle = nn.Sequential(*(_Refining(CHANNELS) for _ in range(depth)))
        self.output = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        total: Tensor | None = None
        for convolution, features in zip(self.inputs, maps, strict=True):
            x = convolution(features)
            if x.shape[-1] != SIDE:
                x = functional.interpolate(x, (SIDE, SIDE), mode="bicubic", align_corners=False)
            total = x if total is None else total + x
        refined: Tensor = self.output(self.middle(total))
        return refined


class _Refining(nn.Module):
    """A fused MBConv block that does not widen, with its shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial = _ConvNorm(width, width, 3)
        self.point = _ConvNorm(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.gelu(self.spatial(x), approximate="tanh")
        refined: Tensor = x + self.point(inner)
        return refined


class _ConvNorm(nn.Module):
    def __init__(self, width_in: int, width_out: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width_in, width_out, kernel, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(width_out, eps=_EPS)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.conv(x))
        return normed


VISION: dict[str, type[TinyVit] | type[EfficientVit]] = {
    "tiny_vit_5m": TinyVit,
    "efficientvit_l2": EfficientVit,
}
"""Image encoders beside SAM's own, by their name in config.json."""
