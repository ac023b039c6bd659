"""Greedy cosine matching of ragged sets: every row takes its most similar row of the other set.

BERTScore matches tokens so (Zhang et al., ICLR 2020, https://arxiv.org/abs/1904.09675, section 3), EMScore
words with frames (Shi et al., CVPR 2022, https://arxiv.org/abs/2111.08919), ViLBERTScore tokens in the
light of the image (Lee et al., Eval4NLP 2020, https://aclanthology.org/2020.eval4nlp-1.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.errors import Problems, did_you_mean
from capeval_core.limits import LIMITS
from capeval_core.matching import cpu_kernel, cpu_threads
from capeval_core.matching.cosine import harmonic_mean
from capeval_core.matching.ragged_sets import Best, OddRowError, Sets, ordinary, reference
from capeval_core.models.device import exact_float32, kernels_agree, on_device, triton_problem
from capeval_core.ragged import Integers, starts_of

Numbers = Sequence[float] | NDArray[Any] | Tensor
WholeNumbers = Sequence[int] | NDArray[Any] | Tensor
Flags = bool | Sequence[bool] | NDArray[np.bool_] | Tensor
PathName = Literal["reference", "slices", "buckets", "triton"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HEAVIEST = 1e15  # weight: products of two and a similarity stay within float32
_BLOCK = 1 << 12  # 16-bit rows whose norms are taken at once, since they are widened for it
_GATHERED_FROM = 48  # rows of a pair, both sides, from which buckets gain from a second thread


@dataclass(frozen=True)
class GreedyMatch:
    """Precision, recall and F of every pair, (pairs,), on the device of the rows.

    They are float64 for float64 rows, else float32; without weights in the similarity they lie in [-1, 1].
    `..._weightless` (pairs,): the weights of a side add up to 0 (as those of an empty set do), so that its
    precision or recall is 0 for want of a better value. On request the best similarity of every row of every
    pair, those of pair p at offsets[p]:offsets[p + 1], and which row of the other set that was, counted from
    the start of that set; -1 where it is empty, or where a padded row won.
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
        moved = {name: value.to(device) for name, value in vars(self).items() if value is not None}
        return GreedyMatch(**moved)


@torch.no_grad()
def greedy_match(
    x: Tensor,
    y: Tensor,
    x_lengths: WholeNumbers,
    y_lengths: WholeNumbers,
    x_weights: Numbers | None = None,
    y_weights: Numbers | None = None,
    return_indices: bool = False,
    return_maxima: bool = False,
    *,
    x_of_pair: WholeNumbers | None = None,
    y_of_pair: WholeNumbers | None = None,
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
    problems = Problems()
    # Each side gets the padding of the other one: it is what its maxima are bounded by.
    x_side = _Side("x", problems, x, x_lengths, x_of_pair, x_weights, y_padded, weighted_similarity)
    y_side = _Side("y", problems, y, y_lengths, y_of_pair, y_weights, x_padded, weighted_similarity)
    # A wrong type makes other problems, which would be noise.
    Problems(problem for problem in problems if issubclass(problem.kind, TypeError)).raise_if_any()
    sides = (x_side, y_side)
    if all(side.usable for side in sides):
        if x.shape[1] != y.shape[1]:
            problem = f"x has rows of {x.shape[1]} numbers, y of {y.shape[1]}"
            problems.add(f"{problem}: take both from the same encoder")
        if x.dtype != y.dtype:
            problems.add(f"x is {x.dtype}, y is {y.dtype}: convert one of them", TypeError)
        if x.device != y.device:
            problems.add(f"x is on {x.device}, y on {y.device}: move one of them")
    if len(x_side.of_pair) != len(y_side.of_pair):
        fix = "name both sets of every pair with x_of_pair and y_of_pair"
        problems.add(f"{x_side.described} but {y_side.described}: {fix}")
    if weighted_similarity and x_weights is None and y_weights is None:
        problems.add("weighted_similarity=True: pass x_weights, y_weights or both")
    # An Apple GPU has no float64 to add up in.
    device = x_side.rows.device if x_side.rows.device.type == "cuda" else torch.device("cpu")
    pair_rows = sum(float(side.set_lengths.mean()) for side in sides if len(side.set_lengths))
    path = path or _likely_fastest(device, x_side.rows.dtype, pair_rows)
    if problem := _problem_of(path, device, x_side.rows.dtype):
        problems.add(f"path={path!r}{problem}")
    problems.raise_if_any()

    def matched(x_sets: Sets, y_sets: Sets) -> GreedyMatch:
        x_side.begin(x_sets)
        y_side.begin(y_sets)
        # Part by part, since a copy of the rows of all pairs would not fit where sets are shared by many.
        for part in _parts(x_side.lengths + y_side.lengths, LIMITS.matched_rows[device.type]):
            x_part = x_side.of_pair[part]
            y_part = y_side.of_pair[part]
            with exact_float32(device):
                x_best, y_best = _PATHS[path](x_side.sets, y_side.sets, x_part, y_part, return_indices)
            x_side.take(x_best, part, return_maxima)
            y_side.take(y_best, part, return_maxima)
        # Read once at the end: each look at a number on a GPU waits for it.
        if x_sets.odd is not None and x_sets.odd.item():
            raise OddRowError
        f = harmonic_mean(x_side.means.clamp(min=0), y_side.means.clamp(min=0))
        means = {"precision": x_side.means, "recall": y_side.means, "f": f}
        fields = {name: mean.to(x_sets.scale.dtype) for name, mean in means.items()}
        for side in sides:
            fields[f"{side.name}_weightless"] = side.totals == 0
            fields |= side.evidence(return_maxima, return_indices)
        return GreedyMatch(**fields).to(x.device)

    if not weighted_similarity and _gain_by_own_norms(path, sides):
        odd = torch.zeros(1, dtype=torch.int32, device=device)
        try:
            return matched(x_side.unmeasured(device, odd), y_side.unmeasured(device, odd))
        except OddRowError:  # the pass looks at such rows, and names those that are no numbers
            pass
    x_sets = x_side.measured(device)
    y_sets = y_side.measured(device)
    problems.raise_if_any()  # rows that hold NaN or infinity, of both sides
    return matched(x_sets, y_sets)


class _Side:
    """One side of all pairs: its arguments checked, the maxima of its rows part by part, their means."""

    def __init__(
        self,
        name: str,
        problems: Problems,
        rows: Any,
        lengths: object,
        of_pair: object,
        weights: object,
        padded: object,
        weighted: bool,
    ) -> None:
        self.name = name
        self.problems = problems
        self.weighted = weighted
        self.usable = self._is_matrix(rows)
        self.rows = rows if self.usable else torch.empty(0, 0, device="cpu")
        self.set_lengths = self._whole(f"{name}_lengths", lengths)
        before = len(problems)
        for i in np.flatnonzero(self.set_lengths < 0):
            problems.add(f"{name}_lengths[{i}] is {self.set_lengths[i]}: a set has 0 rows or more")
        total = self.set_lengths.sum()
        count = len(self.rows)
        # Not where lengths are wrong already: their sum would be a second message about the same.
        if len(problems) == before and self.usable and total != count:
            problems.add(f"{name}_lengths add up to {total}, but {name} has {count} rows")
        sets = len(self.set_lengths)
        key = f"{name}_of_pair"
        self.of_pair = np.arange(sets) if of_pair is None else self._whole(key, of_pair)
        for p in np.flatnonzero((self.of_pair < 0) | (self.of_pair >= sets)):
            problems.add(f"{key}[{p}] is {self.of_pair[p]}: there are {sets} {name} sets, counted from 0")
        self.described = f"{sets} {name} sets" if of_pair is None else f"{len(self.of_pair)} in {key}"
        self.weights = None if weights is None else self._weights(weights)
        # The padding of one side takes part in the maxima of the other.
        self.floor = self._flags("y_padded" if name == "x" else "x_padded", padded)

    def _is_matrix(self, rows: object) -> bool:
        """Return whether these are floating-point rows; notes why not."""
        if not isinstance(rows, Tensor):
            problem = f"is a {type(rows).__name__}: pass a torch tensor (rows, D)"
        elif rows.dtype not in _DTYPES:
            problem = f"is {rows.dtype}: convert it to float16, bfloat16, float32 or float64"
        elif rows.dim() != 2:
            problem = f"has shape {tuple(rows.shape)}: pack the rows of all sets into (rows, D)"
            self.problems.add(f"{self.name} {problem}")
            return False
        else:
            return True
        self.problems.add(f"{self.name} {problem}", TypeError)
        return False

    def _whole(self, name: str, values: object) -> Integers:
        """A flat list, array or tensor of whole numbers."""
        array = _array(values)
        if array.shape != (0,) and (array.ndim != 1 or array.dtype.kind not in "iu"):
            problem = f"{name} has shape {array.shape} and type {array.dtype}"
            self.problems.add(f"{problem}: pass a flat list of whole numbers", TypeError)
            array = np.empty(0)
        return array.astype(np.int64)

    def _weights(self, values: object) -> Tensor | None:
        """One finite weight of 0 or more for every row, as float64."""
        array = _array(values)
        name = f"{self.name}_weights"
        count = len(self.rows)
        if array.dtype.kind not in "fiub" or array.shape != (count,):
            problem = f"{name} has shape {array.shape} and type {array.dtype}"
            self.problems.add(f"{problem}: give each of the {count} rows of {self.name} one number")
            return None
        numbers = array.astype(np.float64)
        for i in np.flatnonzero(~((numbers >= 0) & (numbers <= _HEAVIEST))):
            self.problems.add(f"{name}[{i}] is {numbers[i]}: a weight is a number from 0 to {_HEAVIEST:g}")
        return torch.from_numpy(numbers)

    def _flags(self, name: str, values: object) -> Tensor | None:
        """One flag for each pair; None as well if no pair has it."""
        array = _array(values)
        count = len(self.of_pair)
        if array.dtype.kind == "b" and array.shape in ((), (count,)):
            return torch.from_numpy(np.broadcast_to(array, count).copy()) if array.any() else None
        if array.size or count:
            problem = f"{name} has shape {array.shape} and type {array.dtype}"
            self.problems.add(f"{problem}: pass one bool, or one for each of the {count} pairs")
        return None

    def unmeasured(self, device: torch.device, odd: Tensor) -> Sets:
        """The sets for a path that finds norms beside the products."""
        rows = self.rows.detach().to(device).contiguous()
        scale = torch.empty(len(rows), dtype=_wide(rows), device=device)
        return Sets(rows, scale, self.set_lengths, measured=False, odd=odd)

    def measured(self, device: torch.device) -> Sets:
        """The sets with the scale of every row, found in one pass that also finds what is not finite."""
        rows = self.rows.detach().to(device).contiguous()
        wide = _wide(rows)
        lengths = self.set_lengths
        widened = rows.dtype != wide and rows.device.type == "cpu"  # a GPU widens them as it reads
        step = _BLOCK if widened else max(len(rows), 1)
        starts = range(0, len(rows) or 1, step)
        norms = torch.cat([torch.linalg.vector_norm(rows[i : i + step], dim=1, dtype=wide) for i in starts])
        # Few: all-zero rows, and those whose squares are beyond the range of the type.
        odd = torch.nonzero(~ordinary(norms)).flatten()
        if len(odd) and rows.shape[1]:
            some = rows[odd].to(wide)
            peaks = some.abs().amax(1, keepdim=True)
            ends = np.cumsum(lengths)
            for row in odd[~torch.isfinite(peaks[:, 0])].tolist():
                owner = int(np.searchsorted(ends, row, side="right"))
                place = f"{self.name}[{row}], row {row - int(ends[owner] - lengths[owner])} of set {owner}"
                self.problems.add(f"{place}, holds NaN or infinity: correct or drop it")
            not_zero = peaks[:, 0] > 0
            if not_zero.any():
                odd = odd[not_zero]
                some = some[not_zero]
                peaks = peaks[not_zero]
                # By powers of two, so that 16-bit rows lose nothing.
                digits, exponents = torch.frexp(some)
                some = torch.ldexp(digits, (exponents - torch.frexp(peaks).exponent).clamp_(max=0))
                norms[odd] = torch.linalg.vector_norm(some, dim=1)
                rows = rows.clone()  # the caller's rows are not changed
                rows[odd] = some.to(rows.dtype)
        return Sets(rows, torch.where(norms > 0, norms, 1).reciprocal(), lengths)

    def begin(self, sets: Sets) -> None:
        """Take the maxima of these sets from now on."""
        self.device = device = sets.rows.device
        self.lengths = self.set_lengths[self.of_pair]
        if self.weights is not None:
            self.weights = self.weights.to(device)
            sums = _sums(self.weights, on_device(self.set_lengths, device))
            self.totals = sums[on_device(self.of_pair, device)]
            if self.weighted:
                sets = replace(sets, scale=sets.scale * self.weights.to(sets.scale.dtype))
        else:
            self.totals = torch.from_numpy(self.lengths).double().to(device)
        self.floor = None if self.floor is None else self.floor.to(device)
        self.sets = sets
        self.means = torch.empty(len(self.of_pair), dtype=torch.float64, device=device)
        self.maxima: list[Tensor] = []
        self.indices: list[Tensor] = []

    def take(self, best: Best, part: slice, keep: bool) -> None:
        """Bound, weight and average the maxima of these pairs in float64; `keep` them for the evidence."""
        maxima, indices = best
        device = self.device
        lengths = on_device(self.lengths[part], device)
        if not self.weighted:  # the rounded cosine of equal rows may come out beyond 1
            maxima.clamp_(-1, 1)
        if self.floor is not None:
            low = torch.repeat_interleave(self.floor[part], lengths, output_size=len(maxima))
            low &= maxima < 0
            maxima.masked_fill_(low, 0)
            if indices is not None:
                indices.masked_fill_(low, -1)
        values = maxima.double()
        if self.weights is not None:
            shift = self.sets.starts[self.of_pair[part]] - starts_of(self.lengths[part])
            places = torch.repeat_interleave(on_device(shift, device), lengths, output_size=len(values))
            values = values * self.weights[places + torch.arange(len(values), device=device)]
        sums = _sums(values, lengths)
        totals = self.totals[part]
        self.means[part] = torch.where(totals > 0, sums / totals, 0)
        if keep:
            self.maxima.append(maxima)
        if indices is not None:
            self.indices.append(indices)

    def evidence(self, maxima: bool, indices: bool) -> dict[str, Tensor]:
        """The requested values of the rows, by their names in `GreedyMatch`."""
        evidence: dict[str, Tensor] = {}
        nothing = self.sets.scale[:0]  # of the right type and device, for a match without any pair
        name = self.name
        if maxima or indices:
            evidence[f"{name}_offsets"] = on_device(np.append(0, np.cumsum(self.lengths)), self.device)
        if maxima:
            evidence[f"{name}_maxima"] = torch.cat([nothing, *self.maxima])
        if indices:
            evidence[f"{name}_indices"] = torch.cat([nothing.long(), *self.indices])
        return evidence


def _likely_fastest(device: torch.device, dtype: torch.dtype, pair_rows: float) -> PathName:
    """The way for pairs of so many rows."""
    if device.type != "cpu":
        usable = not _problem_of("triton", device, dtype) and _as_reference(device, dtype)
        return "triton" if usable else "reference"
    threads = torch.get_num_threads()
    alone = pair_rows > LIMITS.bucket_rows / 2  # a pair has a bucket to itself, and is not even gathered
    gain = threads > 2 or (threads == 2 and pair_rows >= _GATHERED_FROM)
    return "buckets" if gain or alone else "slices"


def _problem_of(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """The reason why a path cannot be taken, to follow its name; '' if it can."""
    if name not in get_args(PathName):
        near = did_you_mean(str(name), get_args(PathName))
        path_names = ", ".join(get_args(PathName))
        return f" is not known{near} (known: {path_names})"
    if name in ("slices", "buckets") and device.type != "cpu":
        return f", but the rows are on {device}: move them with .cpu()"
    if name != "triton":
        return ""
    if problem := triton_problem():
        return f", but {problem}"
    if dtype == torch.float64:
        return ", but the rows are float64, which it does not do: take path='reference'"
    from capeval_core.matching import triton_kernels

    if device.type == "cuda" or triton_kernels.INTERPRETED:
        return ""
    return f", but the rows are on {device}: move them to CUDA, or set TRITON_INTERPRET=1"


def _triton(x: Sets, y: Sets, of_x: Integers, of_y: Integers, indices: bool) -> tuple[Best, Best]:
    from capeval_core.matching import triton_kernels

    return triton_kernels.match(x, y, of_x, of_y, indices)


_PATHS: dict[str, Any] = {
    "reference": reference,
    "slices": cpu_kernel.best_matches,
    "buckets": cpu_threads.best_matches,
    "triton": _triton,
}


@cache
def _as_reference(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernels, in one tile and over several, do what plain matching does."""

    def trials() -> Iterator[tuple[str, Tensor, Tensor]]:
        lengths = np.array([3, 20, 150])
        of_x = np.array([0, 2])
        of_y = np.array([1, 2])
        rows = torch.linspace(1, 40, 173 * 40, device=device).square().cos().view(173, 40).to(dtype)
        scale = 1 / rows.float().norm(dim=1)
        odd = torch.zeros(1, dtype=torch.int32, device=device)
        x = Sets(rows, scale, lengths, measured=False, odd=odd)
        y = replace(x, rows=rows.roll(1, 0), scale=scale.roll(1))
        by_kernels = _triton(x, y, of_x, of_y, True)
        by_torch = reference(x, y, of_x, of_y, True)
        for (maxima, indices), (expected_maxima, expected_indices) in zip(by_kernels, by_torch, strict=True):
            assert indices is not None and expected_indices is not None
            yield "a maximum", maxima, expected_maxima
            yield "an index", indices, expected_indices

    return kernels_agree("Triton's matching", device, dtype, trials())


def _gain_by_own_norms(path: str, sides: Sequence[_Side]) -> bool:
    """Return whether norms found beside the products, rather than in a pass before, spare time."""
    if path not in ("slices", "triton"):
        return False
    rows = 0.0
    for side in sides:
        lengths = side.set_lengths
        pairs_of_set = np.bincount(side.of_pair, minlength=len(lengths))
        # Every set has rows and is in a pair, since a row that is no number must not be missed.
        if not len(lengths) or not lengths.min() or not pairs_of_set.min():
            return False
        # For slices sets must be in few pairs, since their norms are found each time, and large.
        if path == "slices" and (pairs_of_set * lengths).sum() > 1.5 * lengths.sum():
            return False
        rows += float(lengths.mean())
    return path == "triton" or rows >= LIMITS.norms_from


def _parts(rows: Integers, limit: int) -> list[slice]:
    """Parts of the pairs with at most so many rows, but for one pair too many."""
    ends = np.cumsum(rows)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(limit, max(total, limit), limit), side="right")
    # Without duplicates, which a pair of more than a part's rows makes.
    bounds = np.unique([0, *cuts.tolist(), len(rows)]).tolist()
    return list(map(slice, bounds[:-1], bounds[1:]))


def _sums(values: Tensor, lengths: Tensor) -> Tensor:
    """The sum of each packed run of values; 0 for an empty one."""
    return torch.segment_reduce(values, "sum", lengths=lengths, initial=0, unsafe=True)


def match_arrays(x: Sequence[NDArray[Any]], y: Sequence[NDArray[Any]], **settings: Any) -> GreedyMatch:
    """`greedy_match` of sets that are arrays, with the maxima; one set alone is not copied."""
    x_lengths = [len(rows) for rows in x]
    y_lengths = [len(rows) for rows in y]
    return greedy_match(_packed(x), _packed(y), x_lengths, y_lengths, return_maxima=True, **settings)


def _packed(sets: Sequence[NDArray[Any]]) -> Tensor:
    """The rows of all sets, one after the other."""
    # torch warns of arrays that cannot be written, as those of the cache: these are copied after all.
    alone = len(sets) == 1 and sets[0].flags.writeable
    return torch.from_numpy(sets[0] if alone else np.concatenate(sets))


def _wide(rows: Tensor) -> torch.dtype:
    return torch.float64 if rows.dtype == torch.float64 else torch.float32


def _array(values: object) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return np.asarray(
            values.float() if values.dtype == torch.bfloat16 else values
        )  # numpy has no bfloat16
    try:
        return np.asarray(values)
    except ValueError:  # lists of several lengths
        return np.asarray(values, dtype=object)
