"""Low-rank adapters of the attention in both towers of a CLIP, as PAC-S++ has them, by peft."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.clip_model import build_clip
from capeval_core.encoders.clip_modules import VisionTransformer
from capeval_core.encoders.tokenizers import Ids
from capeval_core.errors import wrong_option
from capeval_core.project import install_command
from capeval_core.training.pacs import MOST_SCALE
from capeval_core.weights.adapters import ALPHA, merge_adapters

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


_PEFT_NAME = re.compile(
    r"(?P<block>.*\.attn)\.(?P<layer>in_proj|out_proj)\.lora_(?P<half>[AB])\.default\.weight"
)


class LinearAttention(nn.Module):
    """Self-attention like PyTorch's, of two linear layers, which peft can adapt.

    peft 0.21 also adapts PyTorch's own attention, but adds the update of its output projection twice.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        width, self.heads = attention.embed_dim, attention.num_heads
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.in_proj.weight, self.in_proj.bias = attention.in_proj_weight, attention.in_proj_bias
        self.out_proj.weight, self.out_proj.bias = attention.out_proj.weight, attention.out_proj.bias

    def forward(
        self,
        x: Tensor,
        keys: Tensor,
        values: Tensor,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Attention of `x` (batch, length, width) to itself."""
        projected = self.in_proj(x).view(*x.shape[:2], 3, self.heads, -1)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)
        return self.out_proj(attended.transpose(1, 2).flatten(2)), None


class AdaptedClip(Temperature):
    """A CLIP of which only low-rank adapters of the attention, and the temperature, are trained.

    Its state holds the adapters alone. An update is B @ A / rank, as in PAC-S++.

    Args:
        config, tensors: of the CLIP.
        rank: of the adapters.
        fixed: as for `Temperature`.
        seed: of A, which begins at random; B begins with zeros.
        device: where it runs.

    Raises:
        ImportError: peft is missing. InputError: the image tower is a ResNet.
    """

    def __init__(
        self,
        config: dict[str, Any],
        tensors: dict[str, Tensor],
        rank: int,
        fixed: float | None,
        seed: int,
        device: torch.device,
    ) -> None:
        super().__init__(tensors, fixed)
        clip = build_clip(config, {name: tensor.clone() for name, tensor in tensors.items()}, "float32")
        if not isinstance(clip.visual, VisionTransformer):
            raise wrong_option(
                "lora", rank, "only for ViTs: these weights are a ResNet's", "pass 0", verb="is"
            )
        peft = import_peft()
        for tower in (clip.visual.transformer, clip.transformer):
            for block in tower.resblocks:
                block.attn = LinearAttention(block.attn)
        layers = r".*resblocks\.\d+\.attn\.(in|out)_proj"
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(
                peft.LoraConfig(r=rank, lora_alpha=ALPHA, target_modules=layers), clip.to("cpu")
            )
        clip.to(device).train()
        length = clip.context_length
        self._clip = [clip]  # in a list: its frozen tensors are not part of the state
        self._mask = torch.full((length, length), -torch.inf, device=device).triu(1)
        trained = [(name, p) for name, p in clip.named_parameters() if p.requires_grad]
        self._names = [adapter_name(name) for name, _ in trained]
        self.adapters = nn.ParameterList([parameter for _, parameter in trained])

    def images(self, pixels: Tensor) -> Tensor:
        """(n, d) features of normalised pixels."""
        features: Tensor = self._clip[0].visual(pixels)
        return features

    def texts(self, ids: Sequence[Ids]) -> Tensor:
        """(n, d) features of texts."""
        clip, longest = self._clip[0], max(map(len, ids))
        padded = torch.zeros(len(ids), longest, dtype=torch.long)
        for row, text in zip(padded, ids, strict=True):
            row[: len(text)] = torch.tensor(text)
        ends = torch.tensor([text.index(max(text)) for text in ids])
        states = clip.token_embedding(padded.to(self._mask.device)) + clip.positional_embedding[:longest]
        states = clip.transformer(states, attn_mask=self._mask[:longest, :longest])
        features: Tensor = clip.ln_final(states[torch.arange(len(ids)), ends]) @ clip.text_projection
        return features

    def tuned(self, state: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a plain CLIP, into which the adapters of a state of this module are merged."""
        adapters = {name: state[f"adapters.{index}"].cpu() for index, name in enumerate(self._names)}
        merged = merge_adapters({**tensors, **adapters}, "all", [])
        merged["logit_scale"] = state["logit_scale"].reshape(tensors["logit_scale"].shape)
        return merged


def adapter_name(name: str) -> str:
    """What PAC-S++ calls an adapter of peft's.

    >>> adapter_name("visual.transformer.resblocks.0.attn.in_proj.lora_A.default.weight")
    'visual.transformer.resblocks.0.attn.in_proj_weight_lora_A'
    >>> adapter_name("transformer.resblocks.3.attn.out_proj.lora_B.default.weight")
    'transformer.resblocks.3.attn.out_proj.lora_B'
    """
    parts = _PEFT_NAME.fullmatch(name)
    if parts is None:
        raise ValueError(f"{name} is no adapter of attention")
    owner = f"{parts['block']}.{parts['layer']}"
    return (
        f"{owner}_weight_lora_{parts['half']}"
        if parts["layer"] == "in_proj"
        else f"{owner}.lora_{parts['half']}"
    )


def import_peft() -> Any:
    """The package of adapters.

    Raises:
        ImportError: it is missing.
    """
    try:
        import peft
    except ImportError as error:
        raise ImportError(f"--lora needs peft: {install_command('lora')}") from error
    return peft
