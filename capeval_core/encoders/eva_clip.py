"""EVA-CLIP-18B: a CLIP whose image tower has 17.6 billion parameters, without running downloaded code.

Sun, Wang, Yu, Cui, Zhang, Zhang, Wang: EVA-CLIP-18B: Scaling CLIP to 18 Billion Parameters, 2024,
https://arxiv.org/abs/2402.04252
"""

from __future__ import annotations

from typing import Any

from open_clip.model import CLIP
from torch import Tensor

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.eva_clip_model import build_eva_clip, empty_eva_clip
from capeval_core.weights.eva_clip import EvaClipConversion
from capeval_core.weights.folder import WeightsError, WeightsFolder


class EvaClipEncoder(ClipEncoder, tags=["image-captioning", "clip", "eva-clip"]):
    """EVA-CLIP: a vision transformer with RMS norms beside CLIP's text tower; images are made as for CLIP.

    Memory of the model of 18 billion parameters, whose weights are released in float16: 37 GB in float16 or
    bfloat16, 38 GB in float32, since weights of the image tower are widened only as they run; plus what
    a batch needs. On the CPU the file is mapped, not copied.

    Arguments, errors and methods are those of `ClipEncoder`; tensors have the release's names, those of the
    text tower without `text.`.

    >>> text = {"layers": 32, "width": 1280}
    >>> vision = {"layers": 48, "width": 5120, "patch_size": 14, "image_size": 224}
    >>> shape = {"embed_dim": 1536, "vision": vision, "text": text}
    >>> EvaClipEncoder.describe({"architecture": shape, "activation": "gelu"})
    'EVA ViT/14 48x5120, 224 pixels; text 32x1280; 1536 dimensions; gelu'
    """

    kind = "eva_clip"
    Conversion = EvaClipConversion

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> CLIP:
        return build_eva_clip(config, tensors, self.dtype, self.device)

    @classmethod
    def empty(cls, config: dict[str, Any]) -> CLIP:
        return empty_eva_clip(config)

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        config = super().read_config(folder)
        if config["encoder"] != cls.kind:  # a repository of open_clip's
            raise WeightsError(f"these are weights in open_clip's format, expected {cls.kind!r}")
        return config

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        return f"EVA {ClipEncoder.describe(config)}"
