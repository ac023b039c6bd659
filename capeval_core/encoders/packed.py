"""Sequences of different lengths one after another in one tensor: attention pads only within groups.

All layers but attention run on the rows as they are. For attention, sequences of nearly equal length are
padded to the longest of their group, which costs little, and the padding is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_PADDING = 1.15
"""Most rows that attention may run over, relative to those there are."""


@dataclass(frozen=True)
class Group:
    """Consecutive sequences of nearly equal length.

    sequences: which ones. rows: which rows are theirs. longest: rows of the longest.
    inside: (sequences * longest,) index of the padded rows that are real; None where all are.
    mask: (sequences, 1, 1, longest), true on real rows; None where all are.
    """

    sequences: slice
    rows: slice
    longest: int
    inside: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(cls, lengths: Sequence[int], first: int, row: int, device: torch.device) -> Group:
        """Sequences of these lengths, the first of them being number `first` and beginning at `row`."""
        longest, rows = max(lengths), slice(row, row + sum(lengths))
        sequences = slice(first, first + len(lengths))
        if min(lengths) == longest:
            return cls(sequences, rows, longest, None, None)
        real = torch.arange(longest, device="cpu")[None] < torch.tensor(lengths, device="cpu")[:, None]
        inside = real.flatten().nonzero()[:, 0].to(device)
        return cls(sequences, rows, longest, inside, real[:, None, None].to(device))

    def firsts(self) -> Group:
        """The group of these sequences' first rows alone."""
        return Group(self.sequences, self.sequences, 1, None, None)

    def pad(self, rows: Tensor) -> Tensor:
        """(sequences, longest, width) of rows (all, width)."""
        own = rows[self.rows]
        if self.inside is not None:
            count = (self.sequences.stop - self.sequences.start) * self.longest
            own = own.new_zeros(count, own.shape[-1]).index_copy(0, self.inside, own)
        return own.reshape(-1, self.longest, own.shape[-1])

    def unpad(self, padded: Tensor) -> Tensor:
        """(rows of the group, width) of what `pad` gives."""
        flat = padded.flatten(0, 1)
        return flat if self.inside is None else flat[self.inside]


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


def grouped(lengths: Sequence[int], parts: Sequence[slice], device: torch.device) -> list[Group]:
    """The groups of these parts of packed sequences."""
    groups, row = [], 0
    for part in parts:
        own = lengths[part]
        groups.append(Group.of(own, part.start, row, device))
        row += sum(own)
    return groups


def starts_of(lengths: Sequence[int]) -> Tensor:
    """(sequences,) the first row of each packed sequence."""
    sizes = torch.tensor(lengths, device="cpu")
    return sizes.cumsum(0) - sizes


def rows_of_sequences(lengths: Sequence[int], chosen: Sequence[int] | Tensor) -> Tensor:
    """Rows of chosen packed sequences, one sequence after another.

    >>> rows_of_sequences([2, 1, 3], [2, 0])
    tensor([3, 4, 5, 0, 1])
    """
    sizes, index = torch.tensor(lengths, device="cpu"), torch.as_tensor(chosen, device="cpu")
    shift = starts_of(lengths)[index] - starts_of(sizes[index].tolist())
    return torch.arange(int(sizes[index].sum()), device="cpu") + shift.repeat_interleave(sizes[index])


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    own: Sequence[Group],
    other: Sequence[Group],
    dropout: float = 0.0,
) -> Tensor:
    """Attention of sequences to sequences, pair by pair: rows of `own` see those of `other`.

    query: (rows of `own`, width). keys, values: (rows of `other`, width). Groups pair up.
    """

    def by_head(rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], heads, -1).transpose(1, 2)

    attended = []
    for mine, theirs in zip(own, other, strict=True):
        result = functional.scaled_dot_product_attention(
            by_head(mine.pad(query)),
            by_head(theirs.pad(keys)),
            by_head(theirs.pad(values)),
            attn_mask=theirs.mask,
            dropout_p=dropout,
        )
        attended.append(mine.unpad(result.transpose(1, 2).flatten(2)))
    return torch.cat(attended)


def bert_layer(
    layer: Any,
    rows: Tensor,
    groups: Sequence[Group],
    heads: int,
    *,
    starts: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """One of transformers' BERT layers on packed rows; with `starts`, the first row of each sequence only."""
    own, of_own = (rows, groups) if starts is None else (rows[starts], [each.firsts() for each in groups])
    attention = layer.attention.self
    query, keys, values = attention.query(own), attention.key(rows), attention.value(rows)
    attended = attend(query, keys, values, heads, of_own, groups, dropout)
    output: Tensor = layer.feed_forward_chunk(layer.attention.output(attended, own))
    return output
