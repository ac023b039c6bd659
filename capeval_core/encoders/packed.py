"""Sequences of different lengths one after another in one tensor: attention runs within each.

All layers but attention run on the rows as they are. On CUDA one kernel attends within all sequences, by
the offset at which each begins. Elsewhere sequences of nearly equal length are padded to the longest of their
group, which costs little, and the padding is masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from capeval_core.models.trial import kernels_agree

Whole = NDArray[np.int64]
Kernel = Literal["flash", "efficient"]
"""PyTorch's kernels: flash attention for 16 bits, the memory-efficient one for float32."""

_PADDING = 1.15
"""Most rows that attention may run over, relative to those there are."""
_BOTTOM_RIGHT = 2
"""Number of the causal mask, among those of the memory-efficient kernel, by which the last row sees all."""


@dataclass(frozen=True)
class Group:
    """Consecutive sequences of nearly equal length.

    lengths: of each. rows: which rows are theirs. device: where the rows are.
    inside: (sequences * longest,) index of the padded rows that are real; None where all are.
    mask: (sequences, 1, 1, longest), true on real rows; None where all are.
    """

    lengths: Sequence[int]
    rows: slice
    device: torch.device
    inside: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(cls, lengths: Sequence[int], row: int, device: torch.device) -> Group:
        """Sequences of these lengths, the first of them beginning at `row`."""
        rows = slice(row, row + sum(lengths))
        if min(lengths) == max(lengths):
            return cls(lengths, rows, device, None, None)
        real = np.arange(max(lengths)) < np.array(lengths)[:, None]
        inside, mask = torch.from_numpy(np.flatnonzero(real)), torch.from_numpy(real[:, None, None])
        return cls(lengths, rows, device, inside.to(device), mask.to(device))

    @property
    def longest(self) -> int:
        """Rows of the longest sequence."""
        return max(self.lengths)

    def pad(self, rows: Tensor) -> Tensor:
        """(sequences, longest, width) of rows (all, width)."""
        own = rows[self.rows]
        if self.inside is not None:
            padded = own.new_zeros(len(self.lengths) * self.longest, own.shape[-1])
            own = padded.index_copy(0, self.inside, own)
        return own.reshape(-1, self.longest, own.shape[-1])

    def unpad(self, padded: Tensor) -> Tensor:
        """(rows of the group, width) of what `pad` gives."""
        flat = padded.flatten(0, 1)
        return flat if self.inside is None else flat[self.inside]

    def causal(self, own: Group) -> Tensor:
        """(sequences, 1, longest of `own`, longest) where rows of `own` may look: their last one at all."""
        last = np.arange(own.longest)[:, None] + np.subtract(self.lengths, own.lengths)[:, None, None]
        visible = np.arange(self.longest) <= np.minimum(last, np.array(self.lengths)[:, None, None] - 1)
        return torch.from_numpy(visible[:, None]).to(self.device)


@dataclass(frozen=True)
class Packing:
    """Where the sequences of a packed tensor stand.

    lengths: of each sequence. parts: those that are nearly equally long, in runs that cover all.
    offsets: (sequences + 1,) int32 first row of each sequence, and the end, on the rows' device.
    """

    lengths: Sequence[int]
    parts: Sequence[slice]
    offsets: Tensor

    @cached_property
    def longest(self) -> int:
        """Rows of the longest sequence."""
        return max(self.lengths)

    @cached_property
    def groups(self) -> list[Group]:
        """The parts as groups; made when attention has to pad."""
        groups, row = [], 0
        for part in self.parts:
            own = self.lengths[part]
            groups.append(Group.of(own, row, self.offsets.device))
            row += sum(own)
        return groups

    @cached_property
    def firsts(self) -> Packing:
        """The packing of these sequences' first rows alone."""
        count = len(self.lengths)
        offsets = torch.arange(count + 1, dtype=torch.int32, device=self.offsets.device)
        return replace(self, lengths=[1] * count, offsets=offsets)


def groups_of(lengths: Sequence[int], most: float = _PADDING) -> list[slice]:
    """Runs of sorted lengths whose longest is at most `most` times each of them.

    >>> groups_of([10, 10, 11, 12, 13, 30])
    [slice(0, 3, None), slice(3, 5, None), slice(5, 6, None)]
    """
    starts = [0]
    for i, length in enumerate(lengths):
        if length > most * lengths[starts[-1]]:
            starts.append(i)
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(lengths)], strict=True)]


def starts_of(lengths: Sequence[int] | Whole) -> Whole:
    """(sequences + 1,) the first row of each packed sequence, and the end.

    >>> starts_of([2, 1, 3])
    array([0, 2, 3, 6])
    """
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))])


def rows_of_sequences(lengths: Sequence[int], chosen: Sequence[int] | Whole) -> Whole:
    """Rows of chosen packed sequences, one sequence after another.

    >>> rows_of_sequences([2, 1, 3], [2, 0])
    array([3, 4, 5, 0, 1])
    """
    sizes, index = np.asarray(lengths, dtype=np.int64), np.asarray(chosen, dtype=np.int64)
    starts = starts_of(sizes[index])
    shift = starts_of(sizes)[index] - starts[:-1]
    return np.arange(starts[-1]) + np.repeat(shift, sizes[index])


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    own: Packing,
    other: Packing,
    *,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    """(rows of `own`, width) attention of sequences to sequences, pair by pair.

    query: (rows of `own`, width). keys, values: (rows of `other`, width). causal: the last row of a sequence
    of `own` sees all rows of its sequence of `other`, which is at least as long, and each one before it one
    row less.
    """
    kernel = kernel_of(query, heads)
    if kernel is None:
        return _attend_in_groups(query, keys, values, heads, own, other, dropout, causal)
    return _attend_at_once(kernel, query, keys, values, heads, own, other, dropout, causal)


def kernel_of(rows: Tensor, heads: int) -> Kernel | None:
    """The kernel that attends within all sequences of such rows in one launch; None: there is none."""
    if rows.device.type != "cuda" or torch.version.hip is not None:
        return None
    width, newer = rows.shape[1] // heads, torch.cuda.get_device_capability(rows.device) >= (8, 0)
    kernel: Kernel | None = None
    if rows.dtype in (torch.float16, torch.bfloat16) and newer and width <= 256 and width % 8 == 0:
        kernel = "flash"
    elif rows.dtype is torch.float32 and width % 4 == 0:
        kernel = "efficient"
    return kernel if kernel and _usable(kernel, rows.device, rows.dtype, width) else None


@cache
def _usable(kernel: Kernel, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether a kernel does what the groups do: both belong to PyTorch, but no public function calls one."""
    lengths = [2, 5]
    stands = Packing(lengths, groups_of(lengths), torch.tensor([0, 2, 7], dtype=torch.int32, device=device))
    rows = torch.linspace(-2, 2, 7 * width, device=device, dtype=dtype).view(7, width)
    given = rows, rows.flip(0), rows.cos(), 1, stands, stands, 0.0, True

    def trial() -> Iterator[tuple[str, Tensor, Tensor]]:
        yield "the kernel", _attend_at_once(kernel, *given), _attend_in_groups(*given)

    return kernels_agree("attention in one launch", device, dtype, trial())


def _attend_at_once(
    kernel: Kernel,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    own: Packing,
    other: Packing,
    dropout: float,
    causal: bool,
) -> Tensor:
    parts = [rows.view(len(rows), heads, -1) for rows in (query, keys, values)]
    sizes = own.offsets, other.offsets, own.longest, other.longest
    if kernel == "flash":
        attended = torch.ops.aten._flash_attention_forward(*parts, *sizes, dropout, causal, False)[0]
    else:
        one = [part[None] for part in parts]
        settings = dropout, _BOTTOM_RIGHT if causal else 0, torch.is_grad_enabled()
        attended = torch.ops.aten._efficient_attention_forward(*one, None, *sizes, *settings)[0]
    rows: Tensor = attended.reshape(len(query), -1)
    return rows


def _attend_in_groups(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    own: Packing,
    other: Packing,
    dropout: float,
    causal: bool,
) -> Tensor:
    def by_head(rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)

    attended = []
    for mine, theirs in zip(own.groups, other.groups, strict=True):
        result = functional.scaled_dot_product_attention(
            by_head(mine.pad(query)),
            by_head(theirs.pad(keys)),
            by_head(theirs.pad(values)),
            attn_mask=theirs.causal(mine) if causal else theirs.mask,
            dropout_p=dropout,
        )
        attended.append(mine.unpad(result.transpose(1, 2).flatten(2)))
    return torch.cat(attended)


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
    own, of_own = (rows, packing) if starts is None else (rows[starts], packing.firsts)
    attention = layer.attention.self
    query, keys, values = attention.query(own), attention.key(rows), attention.value(rows)
    attended = attend(query, keys, values, heads, of_own, packing, dropout=dropout)
    merged = merge(layer.attention.output, attended, own)
    return merge(layer.output, layer.intermediate(merged), merged)


def merge(output: Any, rows: Tensor, before: Tensor) -> Tensor:
    """The layer norm of W rows + b + before, by the module of transformers that ends a half of a layer."""
    if rows.device.type == "cuda" and not (torch.is_grad_enabled() or output.training):  # no gradient here
        from capeval_core.encoders.cuda_blocks import usable_kernels

        if usable_kernels(rows.device, rows.dtype).passes:
            from capeval_core.encoders.cuda_kernels import add_norm

            norm = output.LayerNorm
            return add_norm(output.dense(rows), before, norm.weight, norm.bias, norm.eps)
    merged: Tensor = output(rows, before)
    return merged
