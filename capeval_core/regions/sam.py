"""SAM prompted with boxes: an image and boxes in, a mask for each box out.

Kirillov et al.: Segment Anything, ICCV 2023, https://arxiv.org/abs/2304.02643; MobileSAM (arXiv:2306.14289)
and MobileSAMv2 (arXiv:2312.09579), which prompts with all boxes of an object detector at once.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.inputs.resizing import resized
from capeval_core.models.architecture import scaling_problems, shown, size_problems
from capeval_core.models.canary import canary_images
from capeval_core.models.model import CheckedModel
from capeval_core.models.precision import DTYPES, exact_float32
from capeval_core.regions import rle
from capeval_core.regions.regions import Regions
from capeval_core.regions.sam_model import build, build_transformers, empty_transformers, fill, with_copy
from capeval_core.weights.folder import WeightsError, WeightsFolder
from capeval_core.weights.sam import MEAN, STD, SamConversion

_BOXES = 32
"""Boxes that the decoder takes at a time: each needs a copy of the image's features."""
_LOGITS = 1 << 25
"""Logits at the size of the image that are held at a time."""


class UnfitError(WeightsError):
    """The tensors and the config of a SAM that do not make a model together."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(f"the tensors do not fit the config ({reason}): get the weights again")


class Sam(CheckedModel, tags=["mask-generation", "sam"]):
    """SAM, MobileSAM or MobileSAMv2, on transformers' modules, in their original behaviour.

    Weights are a folder made by `capeval convert` of an original release, or a SAM in transformers' format.
    Only the image encoder runs in bfloat16 or float16: coordinates of boxes need float32.

    Any number of threads may use one; the model then serves them in turn. Arguments and errors are those of
    `CheckedModel`.
    """

    kind = "sam"
    depends_on = ("architecture", "preprocessing")
    Conversion = SamConversion

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
        try:
            if "transformers" in config["architecture"]:
                model = build_transformers(config["architecture"]["transformers"], tensors)
            else:
                model = build(config["architecture"])
                fill(model, tensors)
        except Exception as error:  # whatever transformers' parts refuse, each in its own way
            raise UnfitError(error) from error
        encoder: Any = model.vision_encoder
        encoder.to(DTYPES[self.dtype])
        encoder.register_forward_pre_hook(lambda module, inputs: (inputs[0].to(DTYPES[self.dtype]),))
        encoder.register_forward_hook(lambda module, inputs, found: (found[0].float(),))
        return model

    @classmethod
    def empty(cls, config: dict[str, Any]) -> nn.Module:
        architecture = config["architecture"]
        try:
            with torch.device("meta"):
                if "transformers" in architecture:
                    return empty_transformers(architecture["transformers"])
                return build(architecture)
        except Exception as error:  # whatever transformers' parts refuse, each in its own way
            raise UnfitError(error) from error

    @classmethod
    def check_header(cls, config: dict[str, Any], header: dict[str, Tensor]) -> None:
        found = with_copy(header) if "transformers" in config["architecture"] else header
        try:
            super().check_header(config, found)
        except UnfitError:  # of `empty`
            raise
        except WeightsError as error:
            raise UnfitError(error) from error

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
            _check(size_problems(folder.config, ""))
            return {"encoder": cls.kind, "architecture": architecture, "preprocessing": preprocessing}
        config = super().read_config(folder)
        if missing := {"architecture", "preprocessing"} - set(config):
            raise WeightsError(f"in the config, {min(missing)} is missing: convert the weights again")
        architecture, pixels = config["architecture"], config["preprocessing"]
        parts = (
            [architecture.get("kind"), architecture.get("decoder")] if isinstance(architecture, dict) else []
        )
        if not parts or not isinstance(parts[0], str) or not isinstance(parts[1], dict):
            _check([f"architecture is {shown(architecture)}, expected an object with kind and decoder"])
        if not isinstance(pixels, dict):
            _check([f"preprocessing is {shown(pixels)}, expected an object"])
        _check(size_problems(architecture, "architecture") + scaling_problems(pixels))
        return config

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        """The architecture in one line."""
        architecture = config["architecture"]
        if "transformers" in architecture:
            return "SAM in transformers' format"
        encoder = architecture["kind"]
        if "vision" in architecture:
            vision = architecture["vision"]
            encoder = (
                f"ViT/{architecture['patch_size']} {vision['num_hidden_layers']}x{vision['hidden_size']}"
            )
        decoder = architecture["decoder"]
        return (
            f"SAM with {encoder}, {architecture['image_size']} pixels; decoder "
            f"{decoder['num_hidden_layers']}x{decoder['hidden_size']}, {decoder['num_attention_heads']} heads"
        )

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) that a picture of (height, width) has for the encoder: its longer side is fixed."""
        scale = self.image_size / max(size)
        return int(size[0] * scale + 0.5), int(size[1] * scale + 0.5)

    def preprocess(self, image: Image.Image) -> Tensor:
        """(3, image_size, image_size) float32: resized, normalised, with zeros on the right and below."""
        height, width = self.resized((image.height, image.width))
        small = resized(image.convert("RGB"), (width, height), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1).float()
        pixels = (pixels - self._mean) / self._std
        return functional.pad(pixels, (0, self.image_size - width, 0, self.image_size - height))

    def embed(self, image: Image.Image) -> Tensor:
        """(1, channels, side, side) float32 features of an image, the decoder's input."""
        model: Any = self.model
        pixels = self.preprocess(image)[None].to(self.device)
        with self._lock, torch.inference_mode(), exact_float32(self.device):
            features: Tensor = model.get_image_embeddings(pixels)
        return features

    def decode(
        self, features: Tensor, corners: NDArray[np.float32], size: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """Logits (n, 1, s, s) at the decoder's resolution, and predicted IoU (n,), of boxes of one image.

        Args:
            features: as `embed` gives them.
            corners: (n, 4) boxes, x0, y0, x1, y1 in pixels of the image.
            size: (height, width) of the image.
        """
        model: Any = self.model
        scaled = torch.from_numpy(self.scaled(corners, size)).to(self.device)
        logits, quality = [], []
        with self._lock, torch.inference_mode(), exact_float32(self.device):
            for start in range(0, len(scaled), _BOXES):
                boxes = scaled[None, start : start + _BOXES]
                found = model(image_embeddings=features, input_boxes=boxes, multimask_output=False)
                logits.append(found.pred_masks[0])
                quality.append(found.iou_scores[0, :, 0])
        return torch.cat(logits), torch.cat(quality)

    def scaled(self, corners: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
        """(n, 4) boxes of a picture of (height, width), in pixels of the resized one."""
        height, width = self.resized(size)
        ratio = np.tile(np.array([width / size[1], height / size[0]]), 2)
        return np.asarray(corners.astype(np.float64) * ratio, dtype=np.float32)

    def upsample(self, logits: Tensor, size: tuple[int, int]) -> Tensor:
        """(n, h, w) logits at the size of the image, of those that `decode` gives; masks are where they
        exceed 0."""
        height, width = self.resized(size)
        side = self.image_size
        with exact_float32(self.device):
            large = functional.interpolate(logits, (side, side), mode="bilinear", align_corners=False)
            cropped = large[..., :height, :width]
            return functional.interpolate(cropped, size, mode="bilinear", align_corners=False)[:, 0]

    def segment(self, image: Image.Image, corners: NDArray[np.float32]) -> Regions:
        """The mask of each box (n, 4) in an image; `quality` is the IoU that the decoder predicts.

        No box gives no region, and costs nothing. Memory does not grow with the number of boxes, apart from
        runs.
        """
        size = (image.height, image.width)
        if not len(corners):
            return Regions.of([], size=size)
        logits, quality = self.decode(self.embed(image), corners, size)
        at_once = max(1, _LOGITS // max(size[0] * size[1], self.image_size**2))
        runs = []
        for start in range(0, len(logits), at_once):
            masks = self.upsample(logits[start : start + at_once], size) > 0.0
            runs += [rle.encode(mask) for mask in masks.cpu().numpy()]
        return Regions.of_runs(runs, size, quality=quality.cpu().numpy(), boxes=corners)

    def canary(self) -> NDArray[np.float32]:
        """Of three boxes in a drawn image, (2, 3) the predicted IoU and the mean of the mask."""
        image = canary_images()[0]
        boxes = np.array([[5, 5, 60, 70], [30, 20, 110, 80], [0, 0, 120, 90]], dtype=np.float32)
        logits, quality = self.decode(self.embed(image), boxes, (image.height, image.width))
        return torch.stack([quality, logits.sigmoid().mean((1, 2, 3))]).cpu().numpy().astype(np.float32)


def _check(problems: list[str]) -> None:
    if problems:
        raise WeightsError(f"in the config, {'; '.join(problems)}: get the weights again")
