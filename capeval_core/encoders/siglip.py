"""SigLIP: images and texts in one space by a sigmoid loss, in open_clip's format.

Zhai, Mustafa, Kolesnikov, Beyer: Sigmoid Loss for Language Image Pre-Training, ICCV 2023,
https://arxiv.org/abs/2303.15343

Unlike CLIP's, the text tower looks in both directions, reads the padding of a text as well, and takes the
state of the very last position; images are squashed to squares, whatever their shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from capeval_core.encoders.clip import Clip, ClipSettings, OpenClipEncoder, Ratio, TimmSizes
from capeval_core.encoders.dual import TextTokenizer
from capeval_core.encoders.tokenizers import TokenizerFile, canonical
from capeval_core.models.config import Closed, Layers, Share, Side, Text, Width, read
from capeval_core.store import write_whole
from capeval_core.weights.folder import TOKENIZER, WeightsError, WeightsFolder, read_config

_TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True)
class _NormSettings(Closed):
    eps: Share = 1e-5


@dataclass(frozen=True)
class _TokenizerSettings(Closed):
    clean: Literal["canonicalize"]


@dataclass(frozen=True)
class _TextSizes(Closed):
    """The text tower; the literals are what all SigLIPs of open_clip have."""

    context_length: Side
    vocab_size: Annotated[int, range(1, 1 << 20)]
    width: Width
    heads: Width
    layers: Layers
    tokenizer_kwargs: _TokenizerSettings
    no_causal_mask: Literal[True]
    proj_bias: Literal[True]
    pool_type: Literal["last"]
    norm_kwargs: _NormSettings
    mlp_ratio: Ratio = 4.0
    hf_tokenizer_name: Text = ""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads is {self.heads}, which does not divide the width {self.width}")


@dataclass(frozen=True)
class _SiglipSizes:
    embed_dim: Width
    vision: TimmSizes
    text: _TextSizes


@dataclass(frozen=True)
class _SiglipSettings(ClipSettings):
    architecture: _SiglipSizes  # type: ignore[assignment]
    activation: Literal["gelu"]


class _Siglip(Clip):
    """CLIP's modules with a bias in the text projection and in the loss, and the release's epsilon."""

    def __init__(self, embed_dim: int, visual: nn.Module, activation: str, text: Any) -> None:
        super().__init__(embed_dim, visual, activation, text)
        projection: Any = nn.Linear(text.width, embed_dim)
        del self.text_projection  # a parameter's name cannot be given to a module
        self.text_projection = projection
        self.logit_bias = nn.Parameter(torch.empty(()))
        # 1e-6 in the release, where CLIP has torch's 1e-5: features differ by more than rounding.
        for module in (*self.transformer.modules(), self.ln_final):
            if isinstance(module, nn.LayerNorm):
                module.eps = text.norm_kwargs.eps


class SiglipEncoder(OpenClipEncoder, tags=["image-captioning", "siglip"]):
    """SigLIP with an image tower of timm's. Its tokenizer lies in tokenizer.json, next to its weights."""

    kind = "siglip"
    Settings = _SiglipSettings  # type: ignore[assignment]
    Network = _Siglip
    depends_on = ("architecture", "activation", "preprocessing", "tokenizer")
    attention = "full"
    pooled = "last"
    wide = rf"{OpenClipEncoder.wide}|logit_bias"  # not read by any score, but saved as it came

    @classmethod
    def tokenizer_of(cls, config: dict[str, Any]) -> TextTokenizer:
        length = read(_TextSizes, config["architecture"]["text"]).context_length
        try:
            return TokenizerFile(context_length=length, clean=canonical, **config["tokenizer"])
        except (ValueError, TypeError) as error:
            raise WeightsError(f"{TOKENIZER}: {error}") from error

    def project_texts(self, states: Tensor) -> Tensor:
        projection: Any = self.model.text_projection
        features: Tensor = projection(self.model.ln_final(states))
        return features

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        config = super().read_config(folder)
        # The tokenizer becomes a part of the config, so that the fingerprint depends on it.
        file = folder.path / TOKENIZER
        if not file.is_file():
            raise WeightsError(f"{folder.path} has no {TOKENIZER}: download the repository again")
        marks = config.get("tokenizer")
        if marks is None:  # open_clip's format: transformers' settings lie next to the tokenizer
            settings = read_config(folder.path / _TOKENIZER_CONFIG)
            marks = {"end": _token(settings, "eos_token"), "padding": _token(settings, "pad_token")}
        return {**config, "tokenizer": {**marks, "content": file.read_text(encoding="utf-8")}}

    def save_beside(self, folder: Path) -> dict[str, Any]:
        stated = self.config["tokenizer"]
        write_whole(folder / TOKENIZER, stated["content"])
        return {**self.config, "tokenizer": {"end": stated["end"], "padding": stated["padding"]}}


def _token(settings: Mapping[str, Any], name: str) -> str:
    """A special token of transformers' settings, which write it as a text or as an object."""
    token = settings.get(name)
    if isinstance(token, Mapping):
        token = token.get("content")
    if not isinstance(token, str):
        raise WeightsError(f"{_TOKENIZER_CONFIG} states no {name}: download the repository again")
    return token
