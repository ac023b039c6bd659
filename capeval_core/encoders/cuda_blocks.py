"""CLIP's transformers on packed rows; on CUDA with as few passes over memory as PyTorch and Triton allow.

Two exact shortcuts: in a causal transformer a prefix that all texts share ("A photo depicts") runs once in a
batch, since its states do not depend on what follows; and where the last block's output is read at one row of
a sequence (class token, end token), its query, projection and MLP run for that row alone.

Beside its matrix products a block reads and writes little: a layer norm in one pass, an activation in place,
and residual sums inside the products, which begin from x instead of from zero. Biases of those products
are not added to x but kept as a vector, `shift`, that the next norm adds: x + shift is the block's state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.encoders.clip_modules import Block, QuickGELU, VisionTransformer
from capeval_core.models.copies import on_device
from capeval_core.models.device import triton_version
from capeval_core.models.trial import kernels_agree

_OLDEST_TRITON = (3, 4)
_LONGEST = 128
"""Rows of a sequence whose products with all its keys fit into registers."""


@dataclass(frozen=True)
class Kernels:
    """Which steps run as kernels of our own; PyTorch does the others.

    passes: norms, activations, patches of images. attention: that of short causal sequences in 16 bits; the
    full products of float32 do not fit into registers.
    """

    passes: bool = True
    attention: bool = True


PYTORCH = Kernels(passes=False, attention=False)


@cache
def usable_kernels(device: torch.device, dtype: torch.dtype) -> Kernels:
    """The default on a device: our kernels where Triton compiles them, and they do what PyTorch does."""
    version = triton_version()
    if version is None or version < _OLDEST_TRITON:
        return PYTORCH
    return Kernels() if kernels_agree("Triton kernels", device, dtype, _trials(device, dtype)) else PYTORCH


def _trials(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each kernel that runs by default, on few rows: what it is for, its result, PyTorch's in float32."""
    from capeval_core.encoders import cuda_kernels

    def drawn(*shape: int) -> Tensor:
        return torch.arange(math.prod(shape), device=device).mul(0.7).cos().view(shape).to(dtype)

    width, epsilon = 40, 1e-5
    x, before, weight, bias, shift = drawn(5, width), drawn(5, width).flip(0), *drawn(3, width)
    norm = weight.float(), bias.float()
    ours = cuda_kernels.norm(x, shift.float(), weight, bias, epsilon)
    yield "norm", ours, functional.layer_norm(x.float() + shift.float(), (width,), *norm, epsilon)
    ours = cuda_kernels.add_norm(x, before, weight, bias, epsilon)
    yield "norm of a sum", ours, functional.layer_norm(x.float() + before.float(), (width,), *norm, epsilon)
    places = drawn(3, width)
    ours = cuda_kernels.embed(x[:4], shift, places, weight, bias, epsilon)
    rows = torch.cat([shift.expand(2, 1, -1), x[:4].view(2, 2, -1)], dim=1) + places
    yield "embedding", ours, functional.layer_norm(rows.float().view(6, -1), (width,), *norm, epsilon)
    for quick, plain in ((True, QuickGELU()), (False, functional.gelu)):
        yield "activation", cuda_kernels.activate(x.clone(), quick), plain(x.float())
    pixels = (torch.arange(2 * 3 * 8 * 8, device=device) % 251).to(torch.uint8).view(2, 3, 8, 8)
    scaled = (pixels / 255 - 0.5) / 0.25
    expected = functional.unfold(scaled, 4, stride=4).mT.flatten(0, 1)
    yield "patches", cuda_kernels.patches(pixels, 4, [0.5] * 3, [0.25] * 3, dtype), expected
    if dtype == torch.float32:  # PyTorch attends
        return
    lengths = [1, 3, 20]
    for prefix, last in ((2, False), (0, True)):
        query, keys, values = drawn(3, prefix + sum(lengths), width)
        both = [Causal(lengths, prefix, 2, kernels, x) for kernels in (Kernels(), PYTORCH)]
        asked = query[both[0].ends] if last else query
        ours = both[0](asked, keys, values, last)
        yield "attention", ours, both[1](asked.float(), keys.float(), values.float(), last)


class Attention(Protocol):
    """Attention over packed rows, (rows, width) each. With `chosen`, queries are of chosen rows alone."""

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, chosen: bool) -> Tensor: ...


@dataclass(frozen=True)
class Dense:
    """Every row sees all rows of its sequence; all `sequences` are equally long."""

    sequences: int
    heads: int

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, chosen: bool) -> Tensor:
        q, k, v = (by_head(t, self.sequences, self.heads) for t in (query, keys, values))
        attended = functional.scaled_dot_product_attention(q, k, v)
        return attended.transpose(1, 2).reshape(query.shape)


class Causal:
    """Sequences of sorted lengths, each after the prefix that is at the front: a row sees those before it.

    lengths: rows of each, without the prefix. With a prefix its own rows come first, as one more sequence.
    like: a tensor of the device and dtype.
    """

    def __init__(
        self, lengths: Sequence[int], prefix: int, heads: int, kernels: Kernels, like: Tensor
    ) -> None:
        self.lengths, self.prefix, self.heads, device = lengths, prefix, heads, like.device
        short = max(lengths, default=0) <= _LONGEST
        self.ours = kernels.attention and short and like.dtype != torch.float32
        sizes = torch.tensor(lengths, device="cpu")
        firsts = prefix + sizes.cumsum(0) - sizes
        self.ends = on_device(firsts + sizes - 1, device)
        if self.ours:
            from capeval_core.encoders import cuda_kernels

            self.runs = cuda_kernels.runs_of(lengths)
            self.firsts, self.sizes = on_device(firsts, device), on_device(sizes, device)

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, chosen: bool) -> Tensor:
        parts = []
        if self.prefix and not chosen:
            own = slice(self.prefix)
            parts.append(self._grouped(query[own], keys[own], values[own], [(0, 1, self.prefix)], 0, False))
        if self.ours:
            from capeval_core.encoders import cuda_kernels

            out = cuda_kernels.causal_attention(
                query, keys, values, self.heads, self.firsts, self.sizes, self.runs, self.prefix, chosen
            )
            if parts:
                out[: self.prefix] = parts[0]
            return out
        row, groups = self.prefix, []
        for length, same in groupby(self.lengths):
            count = sum(1 for _ in same)
            groups.append((row, count, length))
            row += count * length
        parts.append(self._grouped(query, keys, values, groups, self.prefix, chosen))
        return torch.cat(parts)

    def _grouped(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        groups: Sequence[tuple[int, int, int]],
        prefix: int,
        chosen: bool,
    ) -> Tensor:
        """PyTorch's attention, group by group of equal lengths: first row, sequences, length of each."""
        attended, done = [], 0
        for row, count, length in groups:
            rows = slice(row, row + count * length)
            own = query[done : done + count] if chosen else query[rows]
            done += count
            q, k, v = (by_head(t, count, self.heads) for t in (own, keys[rows], values[rows]))
            if prefix:
                k, v = (
                    torch.cat([by_head(t[:prefix], 1, self.heads).expand(count, -1, -1, -1), rest], dim=2)
                    for t, rest in ((keys, k), (values, v))
                )
            mask = None
            if not chosen and prefix:
                mask = torch.ones(length, prefix + length, dtype=torch.bool, device=q.device).tril(prefix)
            causal = not chosen and not prefix
            result = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
            attended.append(result.transpose(1, 2).reshape(own.shape))
        return torch.cat(attended)


def by_head(rows: Tensor, sequences: int, heads: int) -> Tensor:
    """(sequences, heads, length, head width) view of (rows, width)."""
    length, width = len(rows) // sequences, rows.shape[1]
    return rows.view(sequences, length, heads, width // heads).transpose(1, 2)


def run_packed(
    blocks: Sequence[Any],
    x: Tensor,
    attention: Attention,
    kernels: Kernels,
    chosen: Tensor | slice | None = None,
) -> Tensor:
    """(rows, width) output of all blocks on packed rows x (rows, width), which are overwritten.

    blocks: CLIP's, or others with the same steps under the same names.

    With `chosen` rows the output is theirs alone: of the last block, the others get keys and values only.
    """
    if not kernels.passes:
        return _run_plain(blocks, x, attention, chosen)
    from capeval_core.encoders import cuda_kernels

    # What the products have left out of x, before each norm: in float32, since they are many.
    biases = [bias for block in blocks for bias in (block.attn.out_proj.bias, block.mlp.c_proj.bias)]
    shifts = torch.stack([torch.zeros_like(biases[0]), *biases]).float().cumsum(0)
    for depth, block in enumerate(blocks):
        first, second = block.ln_1, block.ln_2
        normed = cuda_kernels.norm(x, shifts[2 * depth], first.weight, first.bias, first.eps)
        pooled = chosen if depth == len(blocks) - 1 else None
        attended = attention(*project(block, normed, pooled), pooled is not None)
        x = x if pooled is None else x[pooled].clone()
        x.addmm_(attended, block.attn.out_proj.weight.t())
        normed = cuda_kernels.norm(x, shifts[2 * depth + 1], second.weight, second.bias, second.eps)
        x.addmm_(_hidden(block.mlp, normed, kernels), block.mlp.c_proj.weight.t())
    return x.add_(shifts[-1])


def _run_plain(
    blocks: Sequence[Any], x: Tensor, attention: Attention, chosen: Tensor | slice | None
) -> Tensor:
    for depth, block in enumerate(blocks):
        pooled = chosen if depth == len(blocks) - 1 else None
        attended = attention(*project(block, block.ln_1(x), pooled), pooled is not None)
        x = (x if pooled is None else x[pooled]) + block.attn.out_proj(attended)
        x = x + block.mlp(block.ln_2(x))
    return x


def project(block: Block, normed: Tensor, chosen: Tensor | slice | None) -> tuple[Tensor, Tensor, Tensor]:
    """Query, keys, values (rows, width) as views of one product; with `chosen`, the query of those rows."""
    weight, bias, width = block.attn.in_proj_weight, block.attn.in_proj_bias, normed.shape[1]
    if chosen is None:
        query, keys, values = functional.linear(normed, weight, bias).chunk(3, dim=1)
    else:
        query = functional.linear(normed[chosen], weight[:width], bias[:width])
        keys, values = functional.linear(normed, weight[width:], bias[width:]).chunk(2, dim=1)
    return query, keys, values


def _hidden(mlp: Any, normed: Tensor, kernels: Kernels) -> Tensor:
    """The MLP's first product, and its activation."""
    from capeval_core.encoders import cuda_kernels

    quick = isinstance(mlp.gelu, QuickGELU)
    return cuda_kernels.activate(functional.linear(normed, mlp.c_fc.weight, mlp.c_fc.bias), quick)


def run_vision(visual: VisionTransformer, patches: Tensor, kernels: Kernels = PYTORCH) -> Tensor:
    """(images, dimension) features of patch embeddings (images, patches, width)."""
    norm, images = visual.ln_pre, len(patches)
    if kernels.passes:
        from capeval_core.encoders import cuda_kernels

        positions = visual.positional_embedding
        rows = patches.flatten(0, 1)
        x = cuda_kernels.embed(rows, visual.class_embedding, positions, norm.weight, norm.bias, norm.eps)
    else:
        x = torch.cat([visual.class_embedding.to(patches.dtype).expand(images, 1, -1), patches], dim=1)
        x = norm(x + visual.positional_embedding.to(x.dtype)).flatten(0, 1)
    blocks = visual.transformer.resblocks
    attention = Dense(images, blocks[0].attn.num_heads)
    first_rows = slice(None, None, len(x) // images)
    x = run_packed(blocks, x, attention, kernels, first_rows)
    features: Tensor = visual.ln_post(x) @ visual.proj
    return features


def embedded_patches(
    visual: VisionTransformer, pixels: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype
) -> Tensor:
    """(n, patches, width) embeddings of pixels (n, 3, s, s), uint8: a product instead of a convolution."""
    from capeval_core.encoders import cuda_kernels

    weight = visual.conv1.weight.flatten(1)
    rows = cuda_kernels.patches(pixels, visual.conv1.kernel_size[0], mean, std, dtype)
    embedded = rows @ functional.pad(weight, (0, rows.shape[1] - weight.shape[1])).t()
    return embedded.view(len(pixels), -1, embedded.shape[1])
