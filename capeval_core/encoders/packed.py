"""Sequences of different lengths one after another in one tensor: attention runs within each.

All layers but attention run on the rows as they are. On CUDA one kernel attends within all sequences, by
the offset at which each begins. Elsewhere sequences of nearly equal length are padded to the longest of their
group, which costs little, and the padding is masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.models.device import indices_on_device, kernels_agree, on_device
from capeval_core.ragged import ranges, starts_of

Kernel = Literal["flash", "efficient"]  # PyTorch's: for 16 bits, for float32

_PADDING = 1.15  # most rows that attention may run over, relative to those there are
_BOTTOM_RIGHT = 2  # number of the memory-efficient kernel's causal mask by which the last row sees all


@dataclass(frozen=True)
class Packing:
    """Places of the sequences in a packed tensor. Three of them, of 2, 3 and 3 rows:

    rows     a0 a1 b0 b1 b2 c0 c1 c2
    offsets  0     2        5        8
    parts    [0:1] is padded alone, [1:3] together: three rows are more than 1.15 times two
    """

    lengths: Sequence[int]
    parts: Sequence[slice]  # runs of sequences that are nearly equally long, which cover all
    offsets: Tensor  # (sequences + 1,) int32 first row of each sequence, and the end, on the rows' device

    @classmethod
    def of(
        cls, lengths: Sequence[int], device: torch.device, parts: Sequence[slice] | None = None
    ) -> Packing:
        """Sequences of these lengths, sorted unless their `parts` are given."""
        offsets = on_device(np.append(0, np.cumsum(lengths)).astype(np.int32), device)
        return cls(lengths, groups_of(lengths) if parts is None else parts, offsets)

    @cached_property
    def groups(self) -> list[_Group]:
        """The parts as groups; made when attention has to pad."""
        starts = starts_of(np.array(self.lengths))
        device = self.offsets.device
        return [_Group(self.lengths[part], int(starts[part.start]), device) for part in self.parts]

    @cached_property
    def firsts(self) -> Packing:
        """The packing of one row of each of these sequences."""
        count = len(self.lengths)
        offsets = torch.arange(count + 1, dtype=torch.int32, device=self.offsets.device)
        return replace(self, lengths=[1] * count, offsets=offsets)


@dataclass(frozen=True)
class Sorted:
    """Sequences of rows, the shortest first."""

    packing: Packing
    order: Tensor  # rows of the sequences as they came, in the order of the packing
    back: Tensor  # the reverse
    rank: Tensor  # (sequences,) the position of each among the sorted ones

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device, padding: float = _PADDING) -> Sorted:
        """Sequences of these lengths; `padding` as for `groups_of`."""
        sizes = np.array(lengths)
        by_length = np.argsort(sizes, kind="stable")
        sorted_sizes = sizes[by_length]
        order = ranges(starts_of(sizes)[by_length], sorted_sizes)
        # The argsort of a permutation is its inverse.
        rows = indices_on_device(device, order, np.argsort(order), np.argsort(by_length))
        sorted_lengths = sorted_sizes.tolist()
        return cls(Packing.of(sorted_lengths, device, groups_of(sorted_lengths, padding)), *rows)


class _Group:
    """Consecutive sequences of nearly equal length, the first of them beginning at row `first`."""

    def __init__(self, lengths: Sequence[int], first: int, device: torch.device) -> None:
        self.lengths = np.array(lengths)
        self.device = device
        self.longest = max(lengths)
        self.rows = slice(first, first + sum(lengths))
        self.inside: Tensor | None = None  # index of the padded rows that are real, unless all are
        self.mask: Tensor | None = None  # (sequences, 1, 1, longest) true on real rows, unless all are
        if min(lengths) < self.longest:
            real = np.arange(self.longest) < self.lengths[:, None]
            self.inside = on_device(np.flatnonzero(real), device)
            self.mask = on_device(real[:, None, None], device)

    def pad(self, rows: Tensor, heads: int) -> Tensor:
        """(sequences, heads, longest, width / heads) of rows (all, width)."""
        group_rows = rows[self.rows]
        if self.inside is not None:
            padded = group_rows.new_zeros(len(self.lengths) * self.longest, group_rows.shape[-1])
            group_rows = padded.index_copy(0, self.inside, group_rows)
        return by_head(group_rows.reshape(-1, self.longest, group_rows.shape[-1]), heads)

    def unpad(self, padded: Tensor) -> Tensor:
        """(rows of the group, width) of what has the shape that `pad` gives."""
        flat = padded.transpose(1, 2).flatten(2).flatten(0, 1)
        return flat if self.inside is None else flat[self.inside]

    def causal(self, of_query: _Group) -> Tensor:
        """(sequences, 1, longest query, longest) where query rows may look: the last of each at all keys."""
        # Without padding all sequences have one length, and the first one's mask serves all.
        needed = slice(1 if self.inside is None and of_query.inside is None else None)
        ends = self.lengths[needed, None, None]
        query_ends = of_query.lengths[needed, None, None]
        # Bounded, since rows of padding behind the queries would look beyond the keys.
        last = np.minimum(np.arange(of_query.longest)[:, None] + ends - query_ends, ends - 1)
        return on_device((np.arange(self.longest) <= last)[:, None], self.device)


def by_head(rows: Tensor, heads: int) -> Tensor:
    """(sequences, heads, length, width / heads) view of (sequences, length, width)."""
    return rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)


def groups_of(lengths: Sequence[int], most: float = _PADDING) -> list[slice]:
    """Runs of sorted lengths whose longest is at most `most` times each of them."""
    starts = [0]
    for i, length in enumerate(lengths):
        if length > most * lengths[starts[-1]]:
            starts.append(i)
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(lengths)], strict=True)]


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    of_query: Packing,
    of_keys: Packing,
    *,
    dropout: float = 0.0,
    causal: bool = False,
) -> Tensor:
    """(rows of the query, width) attention of sequences to sequences, pair by pair. query: (rows of
    `of_query`, width). keys, values: (rows of `of_keys`, width). causal: the last row of a sequence of the
    query sees all rows of its sequence of keys, which is at least as long, and each one before it one row
    less."""
    rows = (query, keys, values)
    kernel = _kernel_of(query, heads)
    if kernel is None:
        return _attend_in_groups(rows, heads, of_query, of_keys, dropout, causal)
    return _attend_at_once(kernel, rows, heads, of_query, of_keys, dropout, causal)


def _kernel_of(rows: Tensor, heads: int) -> Kernel | None:
    """The kernel that attends within all sequences of such rows in one launch; None: there is none."""
    if rows.device.type != "cuda" or torch.version.hip is not None:  # ROCm has kernels of its own
        return None
    width = rows.shape[1] // heads
    kernel: Kernel | None = None
    # Both load 16 bytes at a time, so that a head's width must fill them.
    if rows.dtype is torch.float32:
        if width % 4 == 0:
            kernel = "efficient"
    elif rows.dtype.itemsize == 2:
        has_flash = torch.cuda.get_device_capability(rows.device) >= (8, 0)  # from Ampere on
        if has_flash and width <= 256 and width % 8 == 0:
            kernel = "flash"
    if kernel is None or not _usable(kernel, rows.device, rows.dtype, width):
        return None
    return kernel


@cache
def _usable(kernel: Kernel, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Return whether a kernel does what the groups do."""
    # Both kernels belong to PyTorch, but no public function calls them: a release may change them.
    packing = Packing.of([2, 5], device)
    query = torch.linspace(-2, 2, 7 * width, device=device, dtype=dtype).view(7, width)
    rows = (query, query.flip(0), query.cos())

    def trial() -> Iterator[tuple[str, Tensor, Tensor]]:
        # Causal: the mask is where the kernels' conventions differ (top left or bottom right).
        at_once = _attend_at_once(kernel, rows, 1, packing, packing, 0.0, True)
        yield "the kernel", at_once, _attend_in_groups(rows, 1, packing, packing, 0.0, True)

    return kernels_agree("attention in one launch", device, dtype, trial())


def _attend_at_once(
    kernel: Kernel,
    rows: Sequence[Tensor],
    heads: int,
    of_query: Packing,
    of_keys: Packing,
    dropout: float,
    causal: bool,
) -> Tensor:
    query, keys, values = (tensor.view(len(tensor), heads, -1) for tensor in rows)
    sizes = (of_query.offsets, of_keys.offsets, max(of_query.lengths), max(of_keys.lengths))
    if kernel == "flash":
        attended = torch.ops.aten._flash_attention_forward(
            query, keys, values, *sizes, dropout, causal, False
        )[0]
    else:
        # This one takes a batch of one packed tensor; only a gradient needs the sums that it can keep.
        mask = _BOTTOM_RIGHT if causal else 0
        attended = torch.ops.aten._efficient_attention_forward(
            query[None], keys[None], values[None], None, *sizes, dropout, mask, torch.is_grad_enabled()
        )[0]
    merged: Tensor = attended.reshape(len(rows[0]), -1)
    return merged


def _attend_in_groups(
    rows: Sequence[Tensor], heads: int, of_query: Packing, of_keys: Packing, dropout: float, causal: bool
) -> Tensor:
    attended = []
    for query_group, key_group in zip(of_query.groups, of_keys.groups, strict=True):
        result = functional.scaled_dot_product_attention(
            query_group.pad(rows[0], heads),
            key_group.pad(rows[1], heads).contiguous(),
            key_group.pad(rows[2], heads).contiguous(),
            attn_mask=key_group.causal(query_group) if causal else key_group.mask,
            dropout_p=dropout,
        )
        attended.append(query_group.unpad(result))
    return torch.cat(attended)
