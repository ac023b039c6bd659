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
"""Attention over packed rows: query, keys, values, and whether only the last block's read rows ask."""

_LONGEST = 128  # rows of a sequence whose products with all its keys fit into registers


class LayerNorm(nn.LayerNorm):
    """A layer norm in float32 of states of any type."""

    def forward(self, x: Tensor) -> Tensor:
        # A variance in float16 overflows above 65,504, and bfloat16 keeps eight bits of it.
        return super().forward(x.float()).to(x.dtype)


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x): OpenAI's activation."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    """Attention, then an MLP, each added to its input."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, activation: str) -> None:
        super().__init__()
        # Names of the parts are open_clip's, and so are those of the tensors in weights.
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
    CLIP's, or others with the same steps under the same names. With `read_rows` the output is of these rows
    alone: of the last block, the others get keys and values only."""
    if triton:
        return _run_by_kernels(blocks, x, attention, read_rows)
    for block in blocks:
        block_rows = read_rows if block is blocks[-1] else None
        query, keys, values = _project(block, block.ln_1(x), block_rows)
        attended = attention(query, keys, values, block_rows is not None)
        if block_rows is not None:
            x = x[block_rows]
        x = x + block.attn.out_proj(attended)
        x = x + block.mlp(block.ln_2(x))
    return x


def _run_by_kernels(
    blocks: Sequence[Any], x: Tensor, attention: Attention, read_rows: Tensor | slice | None
) -> Tensor:
    from capeval_core.encoders import cuda_kernels

    biases = [torch.zeros_like(blocks[0].mlp.c_proj.bias)]
    for block in blocks:
        biases.append(block.attn.out_proj.bias)
        biases.append(block.mlp.c_proj.bias)
    # What the products have left out of x, before each norm: in float32, since they are many.
    shifts = torch.stack(biases).float().cumsum(0)  # (2 blocks + 1, width)
    for depth, block in enumerate(blocks):
        first = block.ln_1
        second = block.ln_2
        mlp = block.mlp
        normed = cuda_kernels.norm(x, shifts[2 * depth], first.weight, first.bias, first.eps)
        block_rows = read_rows if depth == len(blocks) - 1 else None
        query, keys, values = _project(block, normed, block_rows)
        attended = attention(query, keys, values, block_rows is not None)
        if block_rows is not None:
            x = x[block_rows].clone()  # contiguous, as `addmm_` and the kernels need it: a slice has steps
        x.addmm_(attended, block.attn.out_proj.weight.t())
        normed = cuda_kernels.norm(x, shifts[2 * depth + 1], second.weight, second.bias, second.eps)
        hidden = functional.linear(normed, mlp.c_fc.weight, mlp.c_fc.bias)
        x.addmm_(cuda_kernels.activate(hidden, isinstance(mlp.gelu, QuickGELU)), mlp.c_proj.weight.t())
    return x.add_(shifts[-1])


def _project(block: Any, normed: Tensor, read_rows: Tensor | slice | None) -> tuple[Tensor, Tensor, Tensor]:
    """Query, keys, values (rows, width) as views of one product; with `read_rows`, the query of those."""
    weight = block.attn.in_proj_weight  # (3 width, width): query, keys, values, one below the other
    bias = block.attn.in_proj_bias
    width = normed.shape[1]
    if read_rows is None:
        query, keys, values = functional.linear(normed, weight, bias).chunk(3, dim=1)
    else:
        query = functional.linear(normed[read_rows], weight[:width], bias[:width])
        keys, values = functional.linear(normed, weight[width:], bias[width:]).chunk(2, dim=1)
    return query, keys, values


def among_all(sequences: int, heads: int) -> Attention:
    """Attention of every row to all rows of its sequence; all are equally long."""

    def split(rows: Tensor) -> Tensor:
        return by_head(rows.view(sequences, -1, rows.shape[1]), heads)

    def attention(query: Tensor, keys: Tensor, values: Tensor, only_read_rows: bool) -> Tensor:
        attended = functional.scaled_dot_product_attention(split(query), split(keys), split(values))
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
    row of each. like: a tensor of the device and dtype.

    A prefix p of 2 rows and sequences a and b of 1 and 3:

        x            p0 p1 a0 b0 b1 b2      queries
        x[key_rows]  p0 p1 a0 p0 p1 b0 b1 b2    keys and values: the prefix before each of them
    """

    def __init__(self, lengths: Sequence[int], prefix: int, heads: int, triton: bool, like: Tensor) -> None:
        self.prefix = prefix
        self.heads = heads
        self.device = like.device
        sizes = np.array(lengths)
        firsts = prefix + starts_of(sizes)
        (self.ends,) = indices_on_device(self.device, firsts + sizes - 1)
        # Groups of one length need no padding, and one causal mask serves all of their sequences.
        parts = groups_of(lengths, 1.0)
        self.queries = Packing.of(lengths, self.device, parts)
        self.keys = self.queries
        self.alone = Packing.of([prefix], self.device) if prefix else None
        self.key_rows: Tensor | None = None  # of the prefix and the sequence itself, for each
        # For 16 bits only: float32 has PyTorch's memory-efficient kernel (`packed._kernel_of`).
        self.triton = triton and max(lengths) <= _LONGEST and like.dtype != torch.float32
        if self.triton:
            from capeval_core.encoders import cuda_kernels

            self.runs = cuda_kernels.runs_of(lengths)
            self.starts, self.sizes = indices_on_device(self.device, firsts, sizes)
        elif prefix:
            self.keys = Packing.of((sizes + prefix).tolist(), self.device, parts)
            begins = np.stack([np.zeros_like(firsts), firsts], axis=1).flatten()
            counts = np.stack([np.full_like(sizes, prefix), sizes], axis=1).flatten()
            (self.key_rows,) = indices_on_device(self.device, ranges(begins, counts))

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, only_read_rows: bool) -> Tensor:
        before = []
        prefix = self.prefix
        # The last block is read at the ends of texts, which are never rows of the prefix.
        if self.alone and not only_read_rows:
            before.append(
                attend(
                    query[:prefix],
                    keys[:prefix],
                    values[:prefix],
                    self.heads,
                    self.alone,
                    self.alone,
                    causal=True,
                )
            )
        if self.triton:
            from capeval_core.encoders import cuda_kernels

            out = cuda_kernels.causal_attention(
                query, keys, values, self.heads, self.starts, self.sizes, self.runs, prefix, only_read_rows
            )
            if before:
                out[:prefix] = before[0]
            return out
        if self.key_rows is not None:
            keys = keys[self.key_rows]
            values = values[self.key_rows]
        if only_read_rows:  # the last row of each sequence, which sees all of it: no mask
            return attend(query, keys, values, self.heads, self.queries.firsts, self.keys)
        attended = attend(query[prefix:], keys, values, self.heads, self.queries, self.keys, causal=True)
        return torch.cat([*before, attended])


@cache
def usable_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether our kernels run on a device: Triton compiles them, and they do what PyTorch does."""
    return not triton_problem() and kernels_agree("Triton kernels", device, dtype, _trials(device, dtype))


def _trials(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Trials of each kernel on few rows: its purpose, its result, PyTorch's in float32."""
    from capeval_core.encoders import cuda_kernels

    def drawn(*shape: int) -> Tensor:
        return torch.arange(math.prod(shape), device=device).mul(0.7).cos().view(shape).to(dtype)

    def normed(rows: Tensor) -> Tensor:
        return functional.layer_norm(rows, (width,), weight.float(), bias.float(), epsilon)

    width = 40  # not a power of two: tiles that are wider than the rows are what kernels get wrong
    epsilon = 1e-5
    x = drawn(5, width)
    before = drawn(5, width).flip(0)
    weight, bias, shift = drawn(3, width)
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
        by_kernel = Causal(lengths, prefix, 2, True, x)
        by_torch = Causal(lengths, prefix, 2, False, x)
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
    query_rows = rows
    of_query = packing
    if starts is not None:
        query_rows = rows[starts]
        of_query = packing.firsts
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
