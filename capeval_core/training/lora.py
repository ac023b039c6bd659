"""What is trained of a CLIP: its projections, or low-rank adapters of the attention in both towers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.clip import VisionTransformer, frozen_clip
from capeval_core.encoders.tokenizers import Ids
from capeval_core.errors import wrong_option
from capeval_core.weights.adapters import ALPHA, low_rank_update

SCALE = "logit_scale"
"""The tensor of weights that holds log(1 / temperature)."""
MOST_SCALE = 100.0
"""The largest 1 / temperature of CLIP."""


class _Trained(nn.Module):
    """The part of a CLIP that is trained, with the temperature of the losses.

    As in CLIP the parameter of the temperature is log(1 / temperature); it starts at that of the weights.

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

    def images(self, inputs: Tensor) -> Tensor:
        """(n, d) features of images."""
        raise NotImplementedError

    def texts(self, inputs: Any) -> Tensor:
        """(n, d) features of texts."""
        raise NotImplementedError

    def tuned(self, state: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a plain CLIP, with what a state of this module has learned."""
        raise NotImplementedError


class Projections(_Trained):
    """The two projections of a CLIP, or a ResNet's attention pool and the projection of texts.

    They take outputs of the frozen towers. Its state has the names of a CLIP's tensors.
    """

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], fixed: float | None) -> None:
        super().__init__(tensors, fixed)
        clip = frozen_clip(config, tensors)
        self.text_projection = nn.Parameter(clip.text_projection.detach().clone())
        self.visual = nn.Module()
        if isinstance(clip.visual, VisionTransformer):
            self.visual.proj = nn.Parameter(clip.visual.proj.detach().clone())
        else:
            self.visual.attnpool = clip.visual.attnpool.requires_grad_(True)

    def images(self, inputs: Tensor) -> Tensor:
        visual: Any = self.visual
        features: Tensor = visual.attnpool(inputs) if hasattr(visual, "attnpool") else inputs @ visual.proj
        return features

    def texts(self, inputs: Tensor) -> Tensor:
        return inputs @ self.text_projection

    def tuned(self, state: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**tensors, **{name: tensor.reshape(tensors[name].shape) for name, tensor in state.items()}}


class _LowRank(nn.Module):
    """A frozen linear layer with a trained update of low rank, as in PAC-S++: W x + c + B A x * alpha / rank.

    Hu et al.: LoRA, ICLR 2022, https://arxiv.org/abs/2106.09685. A begins at random, B with zeros.
    """

    def __init__(self, weight: Tensor, bias: Tensor, rank: int) -> None:
        super().__init__()
        self.weight, self.bias, self.factor = weight, bias, ALPHA / rank
        self.a = nn.Linear(weight.shape[1], rank, bias=False)
        self.b = nn.Linear(rank, weight.shape[0], bias=False)
        nn.init.kaiming_uniform_(self.a.weight, a=math.sqrt(5))
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.b(self.a(x))
        return functional.linear(x, self.weight, self.bias) + update * self.factor


class _AdaptedAttention(nn.Module):
    """Self-attention like PyTorch's, with adapters of its two projections."""

    def __init__(self, attention: nn.MultiheadAttention, rank: int) -> None:
        super().__init__()
        self.heads = attention.num_heads
        self.in_proj = _LowRank(attention.in_proj_weight, attention.in_proj_bias, rank)
        self.out_proj = _LowRank(attention.out_proj.weight, attention.out_proj.bias, rank)

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


class AdaptedClip(_Trained):
    """A CLIP of which only low-rank adapters of the attention, and the temperature, are trained.

    They take pixels and token ids. Its state holds the adapters alone.

    rank: of the adapters. seed: of their random halves. InputError where the image tower is a ResNet.
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
        clip = frozen_clip(config, tensors)
        if not isinstance(clip.visual, VisionTransformer):
            raise wrong_option("lora", rank, "only for ViTs: these weights are a ResNet's", "pass 0")
        self._targets: list[str] = []
        adapters: list[nn.Parameter] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for name, block in [*clip.named_modules()]:
                if isinstance(attention := getattr(block, "attn", None), nn.MultiheadAttention):
                    block.attn = _AdaptedAttention(attention, rank)
                    self._targets += [f"{name}.attn.in_proj_weight", f"{name}.attn.out_proj.weight"]
                    for layer in (block.attn.in_proj, block.attn.out_proj):
                        adapters += [layer.a.weight, layer.b.weight]
        clip.to(device).train()
        length = clip.context_length
        self._clip = [clip]  # in a list: its frozen tensors are not part of the state
        self._mask = torch.full((length, length), -torch.inf, device=device).triu(1)
        self.adapters = nn.ParameterList(adapters)

    def images(self, inputs: Tensor) -> Tensor:
        features: Tensor = self._clip[0].visual(inputs)
        return features

    def texts(self, inputs: Sequence[Ids]) -> Tensor:
        clip, longest = self._clip[0], max(map(len, inputs))
        padded = torch.zeros(len(inputs), longest, dtype=torch.long)
        for row, text in zip(padded, inputs, strict=True):
            row[: len(text)] = torch.tensor(text)
        ends = torch.tensor([text.index(max(text)) for text in inputs])
        states = clip.token_embedding(padded.to(self._mask.device)) + clip.positional_embedding[:longest]
        states = clip.transformer(states, attn_mask=self._mask[:longest, :longest])
        features: Tensor = clip.ln_final(states[torch.arange(len(inputs)), ends]) @ clip.text_projection
        return features

    def tuned(self, state: dict[str, Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        merged = {**tensors, SCALE: state[SCALE].reshape(tensors[SCALE].shape)}
        for index, target in enumerate(self._targets):
            a, b = (state[f"adapters.{2 * index + half}"].cpu() for half in (0, 1))
            merged[target] = (merged[target].double() + low_rank_update(merged[target], a, b)).float()
        return merged
