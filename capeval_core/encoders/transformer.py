"""Exact shortcuts through CLIP's transformers: shared prefixes, and only the rows that are pooled.

Both leave every number as it is, up to the order of summation:
- A causal transformer's states at a prefix do not depend on what follows, so the prefix that all
  texts share ("A photo depicts") runs once and only its keys and values are kept.
- Where the last block's output is read at one position per sequence (class token or end token), its
  query, projection and MLP run for that position alone; its keys and values run for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.encoders.clip_modules import Block, VisionTransformer
from capeval_core.encoders.cuda_blocks import Kernels, run_vision_packed


class KeyValues(NamedTuple):
    """Keys and values of one block: (1, heads, length, head width) each."""

    keys: Tensor
    values: Tensor


class Prefix(NamedTuple):
    """What a shared prefix leaves: keys and values in every block, and its states (1, length, width)."""

    kept: Sequence[KeyValues] = ()
    states: Tensor | None = None


def run_prefix(blocks: Sequence[Block], x: Tensor) -> Prefix:
    """All blocks over a shared prefix `x` (1, length, width)."""
    kept: list[KeyValues] = []
    for block in blocks:
        query, keys, values = _project(block, block.ln_1(x))
        kept.append(KeyValues(keys, values))
        attended = functional.scaled_dot_product_attention(query, keys, values, is_causal=True)
        x = _finish(block, x, attended)
    return Prefix(kept, x)


def run_blocks(
    blocks: Sequence[Block],
    x: Tensor,
    *,
    position: int | None = None,
    causal: bool,
    prefix: Sequence[KeyValues] = (),
) -> Tensor:
    """(batch, length, width) output of all blocks on `x` (batch, length, width).

    With a `position` the output is that of this position alone, (batch, 1, width). `prefix` holds the keys
    and values of tokens that stand before `x` (only with `causal`).
    """
    position = None if position is None else position % x.shape[1]
    mask = _causal_mask(x, len(prefix) and prefix[0].keys.shape[2]) if causal else None
    for depth, block in enumerate(blocks):
        pooled = position if depth == len(blocks) - 1 else None
        chosen = slice(None) if pooled is None else slice(pooled, pooled + 1)
        query, keys, values = _project(block, block.ln_1(x), pooled)
        if prefix:
            keys = torch.cat([prefix[depth].keys.expand(len(x), -1, -1, -1), keys], dim=2)
            values = torch.cat([prefix[depth].values.expand(len(x), -1, -1, -1), values], dim=2)
        rows = None if mask is None else mask[chosen]
        attended = functional.scaled_dot_product_attention(query, keys, values, attn_mask=rows)
        x = _finish(block, x[:, chosen], attended)
    return x


def run_vision(visual: VisionTransformer, patches: Tensor, kernels: Kernels | None = None) -> Tensor:
    """(batch, dimension) features of patch embeddings (batch, width, rows, columns).

    `kernels` are what it runs with on CUDA.
    """
    x = patches.flatten(2).transpose(1, 2)
    if kernels is not None:
        return run_vision_packed(visual, x.flatten(0, 1), len(x), kernels)
    x = torch.cat([visual.class_embedding.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
    x = visual.ln_pre(x + visual.positional_embedding.to(x.dtype))
    x = run_blocks(visual.transformer.resblocks, x, position=0, causal=False)[:, 0]
    pooled: Tensor = visual.ln_post(x) @ visual.proj
    return pooled


def _causal_mask(x: Tensor, before: int) -> Tensor:
    """(length, before + length) boolean, true where a position may look."""
    length = x.shape[1]
    mask = torch.ones(length, before + length, dtype=torch.bool, device=x.device)
    return mask.tril(diagonal=before)


def _project(block: Block, x: Tensor, position: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Query, keys, values of normalised `x`, each (batch, heads, length, head width).

    With a `position` the query is that of this position alone.
    """
    attention = block.attn
    weight, bias = attention.in_proj_weight, attention.in_proj_bias
    width = x.shape[-1]
    if position is None:
        query, keys, values = functional.linear(x, weight, bias).chunk(3, dim=-1)
    else:
        query = functional.linear(x[:, position : position + 1], weight[:width], bias[:width])
        keys, values = functional.linear(x, weight[width:], bias[width:]).chunk(2, dim=-1)
    heads = attention.num_heads
    query, keys, values = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in (query, keys, values))
    return query, keys, values


def _finish(block: Block, x: Tensor, attended: Tensor) -> Tensor:
    """Residual sums, output projection and MLP of a block after its attention."""
    x = x + block.attn.out_proj(attended.transpose(1, 2).flatten(2))
    done: Tensor = x + block.mlp(block.ln_2(x))
    return done
