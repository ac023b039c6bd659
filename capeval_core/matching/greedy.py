"""Greedy cosine matching of ragged sets: every row takes its most similar row of the other set.

BERTScore matches tokens so (Zhang et al., ICLR 2020, https://arxiv.org/abs/1904.09675, section 3), EMScore
words with frames (Shi et al., CVPR 2022, https://arxiv.org/abs/2111.08919), ViLBERTScore tokens in the
light of the image (Lee et al., Eval4NLP 2020, https://aclanthology.org/2020.eval4nlp-1.4).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.limits import LIMITS
from capeval_core.matching.cosine import harmonic_mean
from capeval_core.matching.paths import PathName, find_path, gain_by_own_norms, matching_device
from capeval_core.matching.sets import Best, Checks, OddRowError, Pairs, Sets, expand
from capeval_core.models.device import exact_float32

Numbers = Sequence[float] | NDArray[Any] | Tensor
Whole = Sequence[int] | NDArray[Any] | Tensor
Flags = bool | Sequence[bool] | NDArray[np.bool_] | Tensor

# Rows of both sides of all pairs matched at once, which bounds what is held besides the result; on a GPU the
# next part is prepared while it works.


@dataclass(frozen=True)
class GreedyMatch:
    """Precision, recall and F of every pair, on the device of the rows.

    `precision`, `recall`, `f` are (pairs,), float64 for float64 rows and float32 for all others. Without
    weights in the similarity they lie in [-1, 1]. `x_weightless` and `y_weightless` (pairs,) tell where the
    weights of a side add up to 0 (as those of an empty set do), so that its precision or recall is 0 for want
    of a better value.

    On request: `x_maxima` holds the best similarity of every x row of every pair, those of pair p at
    x_offsets[p]:x_offsets[p + 1], and `x_indices` which row of the y set that was, counted from the start of
    that set; -1 where the y set is empty, or where a padded row won. `y_...` likewise.
    """

    precision: Tensor
    recall: Tensor
    f: Tensor
    x_weightless: Tensor
    y_weightless: Tensor
    x_offsets: Tensor | None = None
    y_offsets: Tensor | None = None
    x_maxima: Tensor | None = None
    y_maxima: Tensor | None = None
    x_indices: Tensor | None = None
    y_indices: Tensor | None = None

    def to(self, device: torch.device | str) -> GreedyMatch:
        """The same on another device."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        moved = {name: value.to(device) for name, value in values.items() if value is not None}
        return GreedyMatch(**moved)


@torch.no_grad()
def greedy_match(
    x: Tensor,
    y: Tensor,
    x_lengths: Whole,
    y_lengths: Whole,
    x_weights: Numbers | None = None,
    y_weights: Numbers | None = None,
    return_indices: bool = False,
    return_maxima: bool = False,
    *,
    x_of_pair: Whole | None = None,
    y_of_pair: Whole | None = None,
    x_padded: Flags = False,
    y_padded: Flags = False,
    weighted_similarity: bool = False,
    path: PathName | None = None,
) -> GreedyMatch:
    """Match sets of rows greedily: precision, recall and F of each pair of sets.

    With m_i the largest cosine of x row i with a row of the y set, and w_i its weight (1 by default),
    precision = sum(w_i m_i) / sum(w_i); recall is the same over y rows with their best x row; F is their
    harmonic mean.

    Defined so: a pair with an empty set has precision, recall and F 0. The cosine of an all-zero row is 0. F
    is 0 unless precision and recall are both positive. Weights that add up to 0 give 0 and a flag. Negative
    maxima stay negative. Of equally similar rows the first is taken; where cosines differ by less than the
    rounding of a product (about 1e-7 in float32), another device may take another of them.

    What released scripts do instead is offered, and off by default:
    `x_padded`, `y_padded`: BERTScore, EMScore and ViLBERTScore pad the sets of a batch to the longest and
    give the padding similarity 0, which takes part in the maxima. So where the y set of a pair was padded,
    maxima of x rows are at least 0, and where the x set was, those of y rows. A bool for all pairs, or one
    for each. `weighted_similarity`: ViLBERTScore multiplies similarities by both rows' weights before the
    maximum (and then averages with the weights as well), so its scores may exceed 1. BERTScore and EMScore do
    not.

    >>> x, y = torch.eye(3), torch.tensor([[2.0, 0, 0], [1, 1, 0]])
    >>> match = greedy_match(x, y, [3], [2], return_indices=True)
    >>> [round(float(v), 4) for v in (match.precision, match.recall, match.f)]
    [0.569, 0.8536, 0.6828]
    >>> match.x_indices  # row 2 of x is as far from both
    tensor([0, 1, 0])

    Args:
        x: (sum of x_lengths, D), the rows of all x sets one after the other; float16, bfloat16, float32 or
            float64. They need no normalisation and are not changed. 16-bit rows are multiplied and added in
            float32.
        y: (sum of y_lengths, D), of the same type and device.
        x_lengths: rows of each x set; 0 is allowed.
        y_lengths: rows of each y set.
        x_weights: (sum of x_lengths,) weight of each x row, 0 or more, e.g. its idf; at most 1e15 with
            `weighted_similarity`.
        y_weights: (sum of y_lengths,) weight of each y row.
        return_indices: also with which row each row was matched.
        return_maxima: also the similarity of each row's match.
        x_of_pair: (pairs,) the x set of each pair, so that sets are shared rather than copied; None: pair p
            has set p.
        y_of_pair: (pairs,) the y set of each pair.
        x_padded: whether the x sets were padded in the script to be reproduced.
        y_padded: whether the y sets were.
        weighted_similarity: multiply weights into the similarities before the maxima.
        path: `reference` (plain torch), `slices` (one CPU thread), `buckets` (several) or `triton` (CUDA);
            None: what is likely the fastest for the device of the rows, their number, and torch's threads.
            Values may differ by a rounding (1e-8) with the path, the threads and the rest of the batch.
            Several Python threads may call at once; those on slices wait for each other.

    Raises:
        ValueError, TypeError: everything that is wrong with the arguments, at once. Rows that hold NaN or
            infinity are named with their set.
    """
    checks = Checks()
    x_rows, y_rows = checks.rows("x", x), checks.rows("y", y)
    checks.alike(x_rows, y_rows)
    x_sizes = checks.lengths("x_lengths", x_lengths, "x", x_rows)
    y_sizes = checks.lengths("y_lengths", y_lengths, "y", y_rows)
    pairs = checks.pairs(x_sizes, y_sizes, x_of_pair, y_of_pair)
    x_weight = checks.weights("x_weights", x_weights, "x", x_rows, weighted_similarity)
    y_weight = checks.weights("y_weights", y_weights, "y", y_rows, weighted_similarity)
    if weighted_similarity and x_weights is None and y_weights is None:
        checks.problems.add("weighted_similarity=True: pass x_weights, y_weights or both")
    # The padding of one side takes part in the maxima of the other.
    x_floor, y_floor = checks.flags("y_padded", y_padded, pairs), checks.flags("x_padded", x_padded, pairs)
    rows = x_rows if x_rows is not None else torch.empty(0)
    device = matching_device(rows.device)
    pair_rows = sum(float(sizes.mean()) for sizes in (x_sizes, y_sizes) if sizes is not None and len(sizes))
    best_matches = find_path(path, device, rows.dtype, pair_rows, checks.problems)
    checks.problems.raise_if_any()
    assert x_rows is not None and y_rows is not None and pairs is not None
    assert x_sizes is not None and y_sizes is not None
    x_rows, y_rows = x_rows.to(device), y_rows.to(device)

    def matched(x_sets: Sets, y_sets: Sets) -> GreedyMatch:
        x_side = _Side(x_sets, pairs.x, x_weight, x_floor, weighted_similarity)
        y_side = _Side(y_sets, pairs.y, y_weight, y_floor, weighted_similarity)
        for part in _parts(x_side.lengths + y_side.lengths, LIMITS.matched_rows[device.type]):
            chosen = Pairs(x_side.of_pair[part], y_side.of_pair[part])
            with exact_float32(device):
                of_x, of_y = best_matches(x_side.sets, y_side.sets, chosen, return_indices)
            x_side.take(of_x, part, return_maxima)
            y_side.take(of_y, part, return_maxima)
        if x_sets.odd is not None and x_sets.odd.item():
            raise OddRowError
        return _means(x_side, y_side, return_maxima, return_indices).to(rows.device)

    if not weighted_similarity and gain_by_own_norms(best_matches, x_sizes, y_sizes, pairs):
        odd = torch.zeros(1, dtype=torch.int32, device=device)
        try:
            return matched(checks.unmeasured(x_rows, x_sizes, odd), checks.unmeasured(y_rows, y_sizes, odd))
        except OddRowError:  # the pass looks at such rows, and names those that are no numbers
            pass
    x_sets, y_sets = checks.sets("x", x_rows, x_sizes), checks.sets("y", y_rows, y_sizes)
    checks.problems.raise_if_any()
    return matched(x_sets, y_sets)


class _Side:
    """One side of all pairs: takes the maxima of its rows part by part, and makes their means."""

    def __init__(
        self, sets: Sets, of_pair: Tensor, weights: Tensor | None, floor: Tensor | None, weighted: bool
    ) -> None:
        self.device = sets.rows.device
        self.of_pair = of_pair
        self.lengths = sets.lengths[of_pair]
        self.weights = None if weights is None else weights.to(self.device)
        self.floor = None if floor is None else floor.to(self.device)
        self.bounded = not weighted
        if weighted and self.weights is not None:
            sets = dataclasses.replace(sets, scale=sets.scale * self.weights.to(sets.scale.dtype))
        self.sets = sets
        if self.weights is None:
            self.totals = self.lengths.double().to(self.device)
        else:
            sums = _sums(self.weights, sets.lengths.to(self.device))
            self.totals = sums[of_pair.to(self.device)].double()
        self.means = torch.empty(len(of_pair), dtype=torch.float64, device=self.device)
        self.maxima: list[Tensor] = []
        self.indices: list[Tensor] = []

    def take(self, best: Best, part: slice, keep: bool) -> None:
        """The maxima of these pairs: bounded, weighted and averaged in float64, kept if they are wanted."""
        maxima, lengths = best.maxima, self.lengths[part].to(self.device)
        if self.bounded:  # the rounded cosine of equal rows may come out beyond 1
            maxima.clamp_(-1, 1)
        if self.floor is not None:
            low = torch.repeat_interleave(self.floor[part], lengths, output_size=len(maxima))
            low &= maxima < 0
            maxima.masked_fill_(low, 0)
            if best.indices is not None:
                best.indices.masked_fill_(low, -1)
        values = maxima.double()
        if self.weights is not None:
            starts = self.sets.starts[self.of_pair[part]].to(self.device)
            values = values * self.weights[expand(starts, lengths, len(values))]
        totals = self.totals[part]
        self.means[part] = torch.where(
            totals > 0, _sums(values, lengths) / torch.where(totals > 0, totals, 1), 0
        )
        if keep:
            self.maxima.append(maxima)
        if best.indices is not None:
            self.indices.append(best.indices)

    def offsets(self) -> Tensor:
        """Where the rows of each pair begin, and the end."""
        return torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)]).to(self.device)


def _means(x_side: _Side, y_side: _Side, maxima: bool, indices: bool) -> GreedyMatch:
    """What all pairs come to."""
    f = harmonic_mean(x_side.means.clamp(min=0), y_side.means.clamp(min=0))
    dtype = x_side.sets.scale.dtype
    kept = maxima or indices
    return GreedyMatch(
        precision=x_side.means.to(dtype),
        recall=y_side.means.to(dtype),
        f=f.to(dtype),
        x_weightless=x_side.totals == 0,
        y_weightless=y_side.totals == 0,
        x_offsets=x_side.offsets() if kept else None,
        y_offsets=y_side.offsets() if kept else None,
        x_maxima=_packed(x_side.maxima, x_side.sets.scale) if maxima else None,
        y_maxima=_packed(y_side.maxima, y_side.sets.scale) if maxima else None,
        x_indices=_packed(x_side.indices, x_side.sets.scale[:0].long()) if indices else None,
        y_indices=_packed(y_side.indices, y_side.sets.scale[:0].long()) if indices else None,
    )


def _parts(rows: Tensor, limit: int) -> Iterator[slice]:
    """Parts of the pairs with at most so many rows, but for one pair too many."""
    ends = rows.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    cuts = torch.searchsorted(
        ends, torch.arange(limit, max(total, limit), limit, device=ends.device), right=True
    )
    for start, stop in pairwise([0, *torch.unique(cuts).tolist(), len(rows)]):
        if start < stop:
            yield slice(start, stop)


def _sums(values: Tensor, lengths: Tensor) -> Tensor:
    """The sum of each packed run of values; 0 for an empty one."""
    return torch.segment_reduce(values, "sum", lengths=lengths, initial=0, unsafe=True)


def _packed(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(parts) if parts else like.new_empty(0)


def match_arrays(x: Sequence[NDArray[Any]], y: Sequence[NDArray[Any]], **settings: Any) -> GreedyMatch:
    """`greedy_match` of sets that are arrays, with the maxima; one set alone is not copied."""
    alone = [len(sets) == 1 and sets[0].flags.writeable for sets in (x, y)]
    arrays = [sets[0] if one else np.concatenate(sets) for sets, one in zip((x, y), alone, strict=True)]
    x_rows, y_rows = map(torch.from_numpy, arrays)
    return greedy_match(x_rows, y_rows, [*map(len, x)], [*map(len, y)], return_maxima=True, **settings)
