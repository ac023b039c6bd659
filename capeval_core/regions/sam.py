"""SAM, prompted with the boxes of a detector or with a grid of points: images in, masks out.

Kirillov et al.: Segment Anything, ICCV 2023, https://arxiv.org/abs/2304.02643; MobileSAM (arXiv:2306.14289)
and MobileSAMv2 (arXiv:2312.09579), which prompts with all boxes of an object detector at once: the HICE-S
paper's way to its regions (appendix A).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.layers.norm import LayerNorm2d
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.inputs.images import InputImage, resized
from capeval_core.limits import LIMITS
from capeval_core.models.config import Deviations, Means, Side, read
from capeval_core.models.device import DTYPES, exact_float32, on_device
from capeval_core.models.model import CheckedModel, OpenedLater, canary_images, check_tensors
from capeval_core.regions import rle
from capeval_core.regions.boxes import BoxSource
from capeval_core.regions.regions import Regions, RegionSource
from capeval_core.regions.sam_conversion import COPY, GAUSSIAN, MEAN, STD, SamConversion
from capeval_core.weights.folder import WeightsError, WeightsFolder

# SAM pruned to a tenth of ViT-B, 39 MB, Apache 2.0; the paper's MobileSAMv2 must be converted first.
SEGMENTER = "Zigeng/SlimSAM-uniform-77"
# Points along each side, least predicted intersection over union of a mask, and least one of the masks at
# thresholds 1 above and below: those of SAM's release.
GRID = {"points_per_crop": 32, "pred_iou_thresh": 0.88, "stability_score_thresh": 0.95}
# Logits at the size of the image in memory at a time, of a grid of points.
_GRID_LOGITS = 1 << 26
_CHANNELS = 256  # of the features that SAM's decoder takes
_SIDE = 64  # cells along each side of their grid
_EPS = 1e-6
# Of the layer norms in the decoder's transformer: PyTorch's default, as in the original. Configs on the Hub
# have 1e-6, which moves logits by up to 6e-4.
_DECODER_EPS = 1e-5


@dataclass(frozen=True)
class _SamSizes:
    """Sizes of every kind; those of `decoder` and of a `vit`'s `vision` have transformers' names."""

    kind: Literal["vit", "tiny_vit_5m", "efficientvit_l2"]
    image_size: Side
    patch_size: Side


@dataclass(frozen=True)
class _SamPixels:
    mean: Means
    std: Deviations


@dataclass(frozen=True)
class _SamSettings:
    architecture: _SamSizes
    preprocessing: _SamPixels


class _TinyVit(nn.Module):
    """TinyViT-5M as MobileSAM's image encoder: (n, 3, 1024, 1024) -> ((n, 256, 64, 64),)."""

    def __init__(self) -> None:
        import timm

        super().__init__()
        backbone: Any = timm.create_model("tiny_vit_5m_224", num_classes=0)
        backbone.stages[3].downsample.conv2.conv.stride = (1, 1)  # as in MobileSAM: 64 cells a side, not 32
        self.patch_embed = backbone.patch_embed
        self.stages = backbone.stages
        self.neck = nn.Sequential(
            nn.Conv2d(320, _CHANNELS, 1, bias=False),
            LayerNorm2d(_CHANNELS),
            nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, bias=False),
            LayerNorm2d(_CHANNELS),
        )

    def forward(self, pixels: Tensor, **_: Any) -> tuple[Tensor]:
        return (self.neck(self.stages(self.patch_embed(pixels))),)


class _EfficientVit(nn.Module):
    """EfficientViT-L2 as MobileSAMv2's, at half the resolution; the neck sums its last three stages."""

    def __init__(self) -> None:
        import timm

        super().__init__()
        # 1e-6 as the release; timm's default for L2 is 1e-7.
        backbone: Any = timm.create_model("efficientvit_l2", num_classes=0, norm_eps=_EPS)
        self.stem = backbone.stem
        self.stages = backbone.stages
        self.neck = _Neck((512, 256, 128))
        self.norm = LayerNorm2d(_CHANNELS)

    def forward(self, pixels: Tensor, **_: Any) -> tuple[Tensor]:
        maps = [self.stem(functional.interpolate(pixels, (512, 512), mode="bilinear", align_corners=False))]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return (self.norm(self.neck(maps[:1:-1])),)  # the last three, the deepest first


class _Neck(nn.Module):
    """Feature maps of several resolutions, deepest first, resized to one grid, summed and refined."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.inputs = nn.ModuleList(_conv_norm(width, _CHANNELS, 1) for width in widths)
        self.middle = nn.Sequential(*(_Refining(_CHANNELS) for _ in range(12)))
        self.output = nn.Conv2d(_CHANNELS, _CHANNELS, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        total: Any = 0
        for convolution, features in zip(self.inputs, maps, strict=True):
            x = convolution(features)
            if x.shape[-1] != _SIDE:
                x = functional.interpolate(x, (_SIDE, _SIDE), mode="bicubic", align_corners=False)
            total = total + x
        return cast(Tensor, self.output(self.middle(total)))


class _Refining(nn.Module):
    """A fused MBConv block that does not widen, with its shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial = _conv_norm(width, width, 3)
        self.point = _conv_norm(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, x + self.point(functional.gelu(self.spatial(x), approximate="tanh")))


def _conv_norm(width_in: int, width_out: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(width_in, width_out, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(width_out, eps=_EPS)))


# Image encoders other than SAM's own, by their name in config.json.
_ENCODERS = {"tiny_vit_5m": _TinyVit, "efficientvit_l2": _EfficientVit}


def _modules(architecture: Mapping[str, Any]) -> nn.Module:
    """transformers' model of an architecture, with random weights; `{"transformers": config}` of the Hub."""
    from transformers import SamConfig, SamModel

    encoder: type[nn.Module] | None = None
    if "transformers" in architecture:
        config: Any = SamConfig(**architecture["transformers"])
        config.mask_decoder_config.layer_norm_eps = _DECODER_EPS
    else:
        decoder = dict(architecture["decoder"])
        mask_channels = decoder.pop("mask_input_channels")
        width = decoder["hidden_size"]
        common = {"image_size": architecture["image_size"], "patch_size": architecture["patch_size"]}
        encoder = _ENCODERS.get(architecture["kind"])
        vision = {"num_hidden_layers": 0, "hidden_size": width} if encoder else dict(architecture["vision"])
        config = SamConfig(
            vision_config={**vision, **common, "output_channels": width, "num_pos_feats": width // 2},
            prompt_encoder_config={**common, "hidden_size": width, "mask_input_channels": mask_channels},
            mask_decoder_config={**decoder, "layer_norm_eps": _DECODER_EPS},
        )
        if encoder and width != _CHANNELS:
            raise ValueError(f"a decoder of width {width}, an image encoder of {_CHANNELS} channels")
    model: Any = SamModel(config)
    if encoder:
        model.vision_encoder = encoder()
    gaussian = model.shared_image_embedding.positional_embedding
    # A copy: tensors have this matrix under two names, and they are filled strictly.
    model.prompt_encoder.shared_embedding.positional_embedding = nn.Parameter(gaussian.detach().clone())
    return cast(nn.Module, model.eval())


class Sam(CheckedModel, tags=["mask-generation", "sam"]):
    """SAM, MobileSAM or MobileSAMv2, on transformers' modules, in their original behaviour.

    One forward pass runs at a time. Only the image encoder runs in bfloat16 or float16: coordinates of boxes
    need float32.
    """

    kind = "sam"
    described = (
        "SAM with {kind}, {image_size} pixels; decoder {decoder[num_hidden_layers]}x{decoder[hidden_size]}, "
        "{decoder[num_attention_heads]} heads"
    )
    depends_on = ("architecture", "preprocessing")
    Conversion = SamConversion

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
        if GAUSSIAN in tensors:  # transformers' files hold tied tensors once
            tensors = {COPY: tensors[GAUSSIAN], **tensors}
        check_tensors(self.empty(config).state_dict(), tensors)  # before memory is taken for them
        model = self.modules(config)
        model.load_state_dict(tensors)
        encoder: Any = model.vision_encoder
        encoder.to(DTYPES[self.dtype])
        # Hooks, since transformers passes pixels in float32 and wants features in it.
        encoder.register_forward_pre_hook(lambda module, inputs: (inputs[0].to(DTYPES[self.dtype]),))
        encoder.register_forward_hook(lambda module, inputs, output: (output[0].float(),))
        return model.to(self.device)

    @classmethod
    def modules(cls, config: dict[str, Any]) -> nn.Module:
        try:
            return _modules(config["architecture"])
        except Exception as error:  # parts of transformers raise errors of any type
            raise WeightsError(f"no such model can be built ({error}): get the weights again") from error

    def prepare(self) -> None:
        preprocessing = self.config["preprocessing"]
        model: Any = self.model
        self.image_size: int = model.config.prompt_encoder_config.image_size
        self._mean = torch.tensor(preprocessing["mean"]).view(3, 1, 1)
        self._std = torch.tensor(preprocessing["std"]).view(3, 1, 1)
        self._lock = threading.Lock()

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        if folder.config.get("model_type") == "sam":
            architecture = {"transformers": folder.config}
            preprocessing = {"mean": list(MEAN), "std": list(STD)}
            return {"encoder": cls.kind, "architecture": architecture, "preprocessing": preprocessing}
        config = super().read_config(folder)
        read(_SamSettings, config, "")
        return config

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Size (height, width) of the encoder's input: the longer side is fixed."""
        scale = self.image_size / max(size)
        return int(size[0] * scale + 0.5), int(
            size[1] * scale + 0.5
        )  # halves up, where `round` has them even

    def preprocess(self, image: Image.Image) -> Tensor:
        """(3, image_size, image_size) float32: resized, normalised, with zeros on the right and below."""
        height, width = self.resized((image.height, image.width))
        small = resized(image.convert("RGB"), (width, height), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1).float()
        pixels = (pixels - self._mean) / self._std
        return functional.pad(pixels, (0, self.image_size - width, 0, self.image_size - height))

    def embed(self, image: Image.Image) -> Tensor:
        """(1, channels, side, side) float32 features of an image, for `decode`."""
        model: Any = self.model
        pixels = on_device(self.preprocess(image)[None], self.device)
        with self._lock, torch.inference_mode(), exact_float32(self.device):
            features: Tensor = model.get_image_embeddings(pixels)
        return features

    def decode(
        self, features: Tensor, corners: NDArray[np.float32], size: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Logits (n, 1, s, s) at the decoder's resolution, and predicted IoU (n,), of boxes (n, 4), x0, y0,
        x1, y1 in pixels of one image of (height, width)."""
        model: Any = self.model
        scaled = on_device(torch.from_numpy(self.scaled(corners, size)), self.device)
        # All boxes of an image by few passes of the small decoder, each of bounded memory.
        logits: list[Tensor] = []
        quality: list[Tensor] = []
        with self._lock, torch.inference_mode(), exact_float32(self.device):
            for start in range(0, len(scaled), LIMITS.sam_boxes):
                boxes = scaled[None, start : start + LIMITS.sam_boxes]
                output = model(image_embeddings=features, input_boxes=boxes, multimask_output=False)
                logits.append(output.pred_masks[0])
                quality.append(output.iou_scores[0, :, 0])
        return torch.cat(logits), torch.cat(quality)

    def scaled(self, corners: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
        """(n, 4) boxes of an image of (height, width), in pixels of the resized image."""
        height, width = self.resized(size)
        # In float64, as the original's numpy: a corner on the edge of a pixel may move else.
        ratio = np.tile(np.array([width / size[1], height / size[0]]), 2)
        return np.asarray(corners.astype(np.float64) * ratio, dtype=np.float32)

    def upsample(self, logits: Tensor, size: tuple[int, int]) -> Tensor:
        """(n, h, w) logits of `decode` at the size of the image; masks are where they exceed 0."""
        height, width = self.resized(size)
        side = self.image_size
        with exact_float32(self.device):
            # First to the padded square, then without its padding to the image: two steps, as the original.
            large = functional.interpolate(logits, (side, side), mode="bilinear", align_corners=False)
            cropped = large[..., :height, :width]
            return functional.interpolate(cropped, size, mode="bilinear", align_corners=False)[:, 0]

    def segment(self, image: Image.Image, corners: NDArray[np.float32]) -> Regions:
        """The mask of each box (n, 4) in an image; `quality` is the IoU that the decoder predicts."""
        size = (image.height, image.width)
        if not len(corners):
            return Regions.of([], size=size)
        logits, quality = self.decode(self.embed(image), corners, size)
        at_once = max(1, LIMITS.sam_logits // max(size[0] * size[1], self.image_size**2))
        runs = []
        for start in range(0, len(logits), at_once):
            masks = self.upsample(logits[start : start + at_once], size) > 0.0
            runs += [rle.encode(mask) for mask in masks.cpu().numpy()]  # at once: masks take h w bytes each
        return Regions.of_runs(runs, size, quality=quality.cpu().numpy(), boxes=corners)

    def canary(self) -> NDArray[np.float32]:
        """(2, 3) predicted IoU and mean of the mask, of three boxes in a drawn image."""
        image = canary_images()[0]
        boxes = np.array([[5, 5, 60, 70], [30, 20, 110, 80], [0, 0, 120, 90]], dtype=np.float32)
        logits, quality = self.decode(self.embed(image), boxes, (image.height, image.width))
        return torch.stack([quality, logits.sigmoid().mean((1, 2, 3))]).cpu().numpy().astype(np.float32)


class ObjectRegions(RegionSource):
    """SAM's mask of every box of a detector; all boxes of an image share one pass of SAM's image encoder."""

    def __init__(self, boxes: BoxSource, sam: OpenedLater[Sam], *, name: str, fingerprint: str) -> None:
        self.boxes = boxes
        self.sam = sam
        self.name = f"objects:{name}+{boxes.name}"
        self.fingerprint = f"objects-1-{fingerprint}-{boxes.fingerprint}"

    def find(self, image: InputImage) -> Regions:
        decoded = image.load().convert("RGB")
        # Quality is the decoder's predicted IoU, not the detector's score.
        return self.sam.model.segment(decoded, self.boxes.find(decoded).corners)


class EverythingRegions(RegionSource):
    """SAM's "segment everything": masks at a grid of points, by transformers' `mask-generation` pipeline, of
    an image that is scaled down to SAM's input."""

    def __init__(self, sam: OpenedLater[Sam], *, name: str, fingerprint: str) -> None:
        self.sam = sam
        self._pipeline = OpenedLater(lambda: _mask_pipeline(sam.model))
        self._lock = threading.Lock()
        self.name = f"everything:{name}"
        settings = "-".join(f"{setting:g}" for setting in GRID.values())
        self.fingerprint = f"everything-1-{settings}-{fingerprint}"

    def find(self, image: InputImage) -> Regions:
        decoded = image.load().convert("RGB")
        size = (decoded.height, decoded.width)
        sam = self.sam.model
        pipeline = self._pipeline.model
        small = decoded
        # The pipeline makes masks at the size of what it gets: of a large photograph they would not fit.
        if max(size) > sam.image_size:
            height, width = sam.resized(size)
            small = resized(decoded, (max(width, 1), max(height, 1)), Image.Resampling.BILINEAR)
        at_once = int(np.clip(_GRID_LOGITS // (3 * small.width * small.height), 1, 64))
        with self._lock, torch.inference_mode(), exact_float32(sam.device):
            output = pipeline(small, points_per_batch=at_once, **GRID)
        runs = []
        for mask in output["masks"]:
            small_mask = Image.fromarray(np.asarray(mask, dtype=np.bool_))
            runs.append(rle.encode(np.asarray(small_mask.resize(decoded.size, Image.Resampling.NEAREST))))
        return Regions.of_runs(runs, size, np.asarray(output["scores"].cpu(), dtype=np.float32))


def _mask_pipeline(sam: Sam) -> Any:
    """transformers' pipeline of "segment everything", with SAM's own sizes and numbers."""
    import transformers

    side = sam.image_size
    preprocessing = sam.config["preprocessing"]
    mean = np.array(preprocessing["mean"]) / 255
    std = np.array(preprocessing["std"]) / 255
    # Resizes as the original; the default of transformers 5 differs by one level in a few pixels.
    processor: Any = transformers.SamImageProcessorPil(
        size={"longest_edge": side},
        pad_size={"height": side, "width": side},
        image_mean=mean.tolist(),
        image_std=std.tolist(),
    )
    pipeline: Any = transformers.MaskGenerationPipeline
    return pipeline(model=sam.model, image_processor=processor, device=sam.device)
