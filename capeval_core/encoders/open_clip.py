"""CLIPs whose image tower is one of timm's, as MobileCLIP's and EVA-02's, beside CLIP's own text tower."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.clip_model import (
    TEXT_KEYS,
    VISION_KEYS,
    check_architecture,
    filled,
    set_values,
)
from capeval_core.encoders.clip_modules import Clip
from capeval_core.models.device import DTYPES
from capeval_core.weights.folder import WeightsError, WeightsFolder

_OPTIONS = {"timm_pool", "timm_proj", "timm_proj_bias", "timm_drop", "timm_drop_path", "image_size"}
_TIMM_KEYS = {"timm_model_name", "timm_model_pretrained", *_OPTIONS}


class OpenClipEncoder(ClipEncoder, tags=["image-captioning", "clip"]):
    """An image tower of timm's beside CLIP's text tower; all else is as for `ClipEncoder`.

    It reads folders and repositories in open_clip's format.
    """

    kind = "open_clip"

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], **more: Any) -> None:
        super().__init__(config, _own_names(tensors), **more)

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Clip:
        return build_open_clip(config, tensors, self.dtype)

    @classmethod
    def empty(cls, config: dict[str, Any]) -> Clip:
        return _built(config, "meta")

    @classmethod
    def check_header(cls, config: dict[str, Any], header: dict[str, Tensor]) -> None:
        super().check_header(config, _own_names(header))

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        return {**super().read_config(folder), "encoder": cls.kind}

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        """The architecture in one line.

        >>> vision = {"timm_model_name": "vit_base_mci_224", "image_size": 224}
        >>> shape = {"embed_dim": 512, "vision": vision, "text": {"layers": 12, "width": 512}}
        >>> OpenClipEncoder.describe({"architecture": shape})
        'vit_base_mci_224, 224 pixels; text 12x512; 512 dimensions'
        """
        shape = config["architecture"]
        vision, text = shape["vision"], shape["text"]
        return (
            f"{vision['timm_model_name']}, {vision['image_size']} pixels; text {text['layers']}x"
            f"{text['width']}; {shape['embed_dim']} dimensions"
        )


def _own_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Where a model has another image tower, open_clip puts the text tower's tensors under `text.`."""
    return {name.removeprefix("text."): tensor for name, tensor in tensors.items()}


def is_plain(architecture: dict[str, Any]) -> bool:
    """Whether both towers are CLIP's own, so that `ClipEncoder` has shortcuts for them."""
    known = (("vision", VISION_KEYS), ("text", TEXT_KEYS))
    return all(set_values(architecture[tower]).keys() <= keys for tower, keys in known)


def build_open_clip(config: dict[str, Any], tensors: dict[str, Tensor], dtype: str) -> Clip:
    """A CLIP with exactly these tensors, in eval mode.

    Raises:
        WeightsError: an architecture that is not known; tensors that are missing, extra or misshaped.
    """
    # Really built, since timm's towers may have buffers that no file holds; its random numbers are nobody's.
    with torch.random.fork_rng(devices=[]):
        model = _built(config, "cpu")
    filled(model, tensors, dtype, visual=DTYPES[dtype])
    if dtype != "float32":
        model.visual.to(DTYPES[dtype])  # its buffers too
    return model


def _built(config: dict[str, Any], device: str) -> Clip:
    """The model of a config, its image tower on a device."""
    from open_clip.timm_model import TimmModel  # which takes seconds to import

    architecture = config["architecture"]
    _check_architecture(architecture)
    try:
        vision, text = architecture["vision"], set_values(architecture["text"])
        text.pop("no_causal_mask", None)
        options = {key.removeprefix("timm_"): vision[key] for key in _OPTIONS & vision.keys()}
        with torch.device(device):
            visual = TimmModel(vision["timm_model_name"], architecture["embed_dim"], **options)
        with torch.device("meta"):
            return Clip(architecture["embed_dim"], visual, config["activation"], **text)
    except Exception as error:  # whatever its parts refuse, each in its own way
        raise WeightsError(f"the architecture of the config cannot be built ({error})") from error


def _check_architecture(architecture: dict[str, Any]) -> None:
    vision, text = set_values(architecture["vision"]), set_values(architecture["text"])
    if text.pop("no_causal_mask", False):
        raise WeightsError("architecture.text.no_causal_mask is set, but CLIP's text tower is causal")
    if "timm_model_name" not in vision:
        raise WeightsError("architecture.vision has no timm_model_name, so its tower is not known")
    if not re.fullmatch(r"[\w.]+", str(vision["timm_model_name"])):
        # timm would fetch the configuration of a model named `hf-hub:...`.
        raise WeightsError(f"architecture.vision.timm_model_name is {vision['timm_model_name']!r}, no name")
    check_architecture({"vision": vision, "text": text}, _TIMM_KEYS)
