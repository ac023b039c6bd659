"""CLIP's transformer blocks, and how they run on packed rows.

Radford et al.: Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.

Two exact shortcuts: in a causal transformer a prefix that all texts share ("A photo depicts") runs once in a
batch, since its states do not depend on what follows; and where the last block's output is read at one row of
a sequence (class token, end token), its query, projection and MLP run for that row alone.

With Triton's kernels a block makes few passes over memory beside its matrix products: a layer norm in one,
an activation in place, and residual sums inside the products, which begin from x instead of from zero. Biases
of those products are not added to x but kept as a vector, `shift`, that the next norm adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.packed import Packing, attend, by_head, groups_of
from capeval_core.models.device import indices_on_device, kernels_agree, triton_problem
from capeval_core.ragged import ranges, starts_of

Attention = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
"""Attention over packed rows: query, keys, values, and whether queries are of the chosen rows alone."""

_LONGEST = 128  # rows of a sequence whose products with all its keys fit into registers


class LayerNorm(nn.LayerNorm):
    """A layer norm in float32 of states of any type."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float()).to(x.dtype)


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x): OpenAI's activation."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    """Attention, then an MLP, each added to what it is given."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, activation: str) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(width)
        self.ln_2 = LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        hidden = int(width * mlp_ratio)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, hidden))
        self.mlp.add_module("gelu", QuickGELU() if activation == "quick_gelu" else nn.GELU())
        self.mlp.add_module("c_proj", nn.Linear(hidden, width))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False, attn_mask=attn_mask)[0]
        return torch.add(x, self.mlp(self.ln_2(x)))


class Transformer(nn.Module):
    """Blocks, one after another."""

    def __init__(self, layers: int, width: int, heads: int, mlp_ratio: float, activation: str) -> None:
        super().__init__()
        self.resblocks: Any = nn.ModuleList(Block(width, heads, mlp_ratio, activation) for _ in range(layers))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        """(n, length, width) states; `attn_mask` (length, length) is added to the logits of attention."""
        for block in self.resblocks:
            x = block(x, attn_mask)
        return x


def run_packed(
    blocks: Sequence[Any],
    x: Tensor,
    attention: Attention,
    triton: bool,
    read_rows: Tensor | slice | None = None,
) -> Tensor:
    """(rows, width) output of all blocks on packed rows x (rows, width), which may be overwritten. blocks:
    CLIP's, or others with the same steps under the same names. With `chosen` rows the output is theirs alone:
    of the last block, the others get keys and values only."""
    if triton:
        return _run_by_kernels(blocks, x, attention, read_rows)
    for block in blocks:
        pooled = read_rows if block is blocks[-1] else None
        attended = attention(*_project(block, block.ln_1(x), pooled), pooled is not None)
        x = (x if pooled is None else x[pooled]) + block.attn.out_proj(attended)
        x = x + block.mlp(block.ln_2(x))
    return x


def _run_by_kernels(
    blocks: Sequence[Any], x: Tensor, attention: Attention, read_rows: Tensor | slice | None
) -> Tensor:
    from capeval_core.encoders import cuda_kernels

    # What the products have left out of x, before each norm: in float32, since they are many.
    biases = [bias for block in blocks for bias in (block.attn.out_proj.bias, block.mlp.c_proj.bias)]
    shifts = torch.stack([torch.zeros_like(biases[0]), *biases]).float().cumsum(0)
    for depth, block in enumerate(blocks):
        first = block.ln_1
        second = block.ln_2
        mlp = block.mlp
        normed = cuda_kernels.norm(x, shifts[2 * depth], first.weight, first.bias, first.eps)
        pooled = read_rows if depth == len(blocks) - 1 else None
        attended = attention(*_project(block, normed, pooled), pooled is not None)
        x = x if pooled is None else x[pooled].clone()
        x.addmm_(attended, block.attn.out_proj.weight.t())
        normed = cuda_kernels.norm(x, shifts[2 * depth + 1], second.weight, second.bias, second.eps)
        hidden = functional.linear(normed, mlp.c_fc.weight, mlp.c_fc.bias)
        x.addmm_(cuda_kernels.activate(hidden, isinstance(mlp.gelu, QuickGELU)), mlp.c_proj.weight.t())
    return x.add_(shifts[-1])


def _project(block: Any, normed: Tensor, read_rows: Tensor | slice | None) -> tuple[Tensor, Tensor, Tensor]:
    """Query, keys, values (rows, width) as views of one product; with `chosen`, the query of those rows."""
    weight = block.attn.in_proj_weight
    bias = block.attn.in_proj_bias
    width = normed.shape[1]
    if read_rows is None:
        query, keys, values = functional.linear(normed, weight, bias).chunk(3, dim=1)
    else:
        query = functional.linear(normed[read_rows], weight[:width], bias[:width])
        keys, values = functional.linear(normed, weight[width:], bias[width:]).chunk(2, dim=1)
    return query, keys, values


def among_all(sequences: int, heads: int) -> Attention:
    """Every row sees all rows of its sequence; all are equally long."""

    def attention(query: Tensor, keys: Tensor, values: Tensor, only_read_rows: bool) -> Tensor:
        q, k, v = (by_head(rows.view(sequences, -1, rows.shape[1]), heads) for rows in (query, keys, values))
        attended = functional.scaled_dot_product_attention(q, k, v)
        return attended.transpose(1, 2).reshape(query.shape)

    return attention


class Full:
    """Sequences of sorted lengths, in which every row sees all rows of its sequence. ends: the last row of
    each."""

    def __init__(self, lengths: Sequence[int], heads: int, device: torch.device) -> None:
        self.heads = heads
        self.packing = Packing.of(lengths, device)
        (self.ends,) = indices_on_device(device, np.cumsum(lengths) - 1)

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, only_read_rows: bool) -> Tensor:
        of_query = self.packing.firsts if only_read_rows else self.packing
        return attend(query, keys, values, self.heads, of_query, self.packing)


class Causal:
    """Sequences of sorted lengths, each after the prefix that is at the front: a row sees those before it.
    lengths: rows of each, without the prefix, whose own rows come first, as one more sequence. ends: the last
    row of each. like: a tensor of the device and dtype."""

    def __init__(self, lengths: Sequence[int], prefix: int, heads: int, triton: bool, like: Tensor) -> None:
        self.prefix = prefix
        self.heads = heads
        self.device = like.device
        sizes = np.array(lengths)
        firsts = prefix + starts_of(sizes)
        (self.ends,) = indices_on_device(self.device, firsts + sizes - 1)
        parts = groups_of(lengths, 1.0)
        self.own = self.other = Packing.of(lengths, self.device, parts)
        self.alone = Packing.of([prefix], self.device) if prefix else None
        self.rows: Tensor | None = None  # of the prefix and the sequence itself, for each
        self.triton = triton and max(lengths) <= _LONGEST and like.dtype != torch.float32
        if self.triton:
            from capeval_core.encoders import cuda_kernels

            self.runs = cuda_kernels.runs_of(lengths)
            self.starts, self.sizes = indices_on_device(self.device, firsts, sizes)
        elif prefix:
            self.other = Packing.of((sizes + prefix).tolist(), self.device, parts)
            begins = np.stack([np.zeros_like(firsts), firsts], axis=1).flatten()
            counts = np.stack([np.full_like(sizes, prefix), sizes], axis=1).flatten()
            (self.rows,) = indices_on_device(self.device, ranges(begins, counts))

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, only_read_rows: bool) -> Tensor:
        before = []
        prefix = self.prefix
        if self.alone and not only_read_rows:
            parts = query[:prefix], keys[:prefix], values[:prefix]
            before.append(attend(*parts, self.heads, self.alone, self.alone, causal=True))
        if self.triton:
            from capeval_core.encoders import cuda_kernels

            out = cuda_kernels.causal_attention(
                query, keys, values, self.heads, self.starts, self.sizes, self.runs, prefix, only_read_rows
            )
            if before:
                out[:prefix] = before[0]
            return out
        if self.rows is not None:
            keys = keys[self.rows]
            values = values[self.rows]
        of_query = self.own.firsts if only_read_rows else self.own
        query = query if only_read_rows else query[prefix:]
        attended = attend(query, keys, values, self.heads, of_query, self.other, causal=not only_read_rows)
        return torch.cat([*before, attended])


@cache
def usable_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether our kernels run on a device: Triton compiles them, and they do what PyTorch does."""
    return not triton_problem() and kernels_agree("Triton kernels", device, dtype, _trials(device, dtype))


def _trials(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each kernel on few rows: what it is for, its result, PyTorch's in float32."""
    from capeval_core.encoders import cuda_kernels

    def drawn(*shape: int) -> Tensor:
        return torch.arange(math.prod(shape), device=device).mul(0.7).cos().view(shape).to(dtype)

    def normed(rows: Tensor) -> Tensor:
        return functional.layer_norm(rows, (width,), weight.float(), bias.float(), epsilon)

    width = 40
    epsilon = 1e-5
    x, before, weight, bias, shift = drawn(5, width), drawn(5, width).flip(0), *drawn(3, width)
    ours = cuda_kernels.norm(x, shift.float(), weight, bias, epsilon)
    yield "norm", ours, normed(x.float() + shift.float())
    ours = cuda_kernels.norm(x, before, weight, bias, epsilon)
    yield "norm of a sum", ours, normed(x.float() + before.float())
    for quick, plain in ((True, QuickGELU()), (False, functional.gelu)):
        yield "activation", cuda_kernels.activate(x.clone(), quick), plain(x.float())
    pixels = (torch.arange(2 * 3 * 8 * 8, device=device) % 251).to(torch.uint8).view(2, 3, 8, 8)
    expected = functional.unfold((pixels / 255 - 0.5) / 0.25, 4, stride=4).mT.flatten(0, 1)
    yield "patches", cuda_kernels.patches(pixels, 4, [0.5] * 3, [0.25] * 3, dtype), expected
    if dtype == torch.float32:  # PyTorch attends
        return
    lengths = [1, 3, 20]
    for prefix, last in ((2, False), (0, True)):
        query, keys, values = drawn(3, prefix + sum(lengths), width)
        by_kernel, by_torch = (Causal(lengths, prefix, 2, triton, x) for triton in (True, False))
        queries = query[by_kernel.ends] if last else query
        ours = by_kernel(queries, keys, values, last)
        yield "attention", ours, by_torch(queries.float(), keys.float(), values.float(), last)


def bert_layer(
    layer: Any,
    rows: Tensor,
    packing: Packing,
    heads: int,
    *,
    starts: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """One of transformers' BERT layers on packed rows; with `starts`, the first row of each sequence only."""
    query_rows, of_query = (rows, packing) if starts is None else (rows[starts], packing.firsts)
    attention = layer.attention.self
    query = attention.query(query_rows)
    keys = attention.key(rows)
    values = attention.value(rows)
    attended = attend(query, keys, values, heads, of_query, packing, dropout=dropout)
    merged = merge(layer.attention.output, attended, query_rows)
    return merge(layer.output, layer.intermediate(merged), merged)


def merge(output: Any, rows: Tensor, before: Tensor) -> Tensor:
    """The layer norm of W rows + b + before, by the module of transformers that ends a half of a layer."""
    learning = torch.is_grad_enabled() or output.training  # the kernels have no gradient
    if rows.device.type == "cuda" and not learning and usable_kernels(rows.device, rows.dtype):
        from capeval_core.encoders import cuda_kernels

        norm = output.LayerNorm
        return cuda_kernels.norm(output.dense(rows), before, norm.weight, norm.bias, norm.eps)
    merged: Tensor = output(rows, before)
    return merged
