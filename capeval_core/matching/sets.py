"""Sets of vectors, packed row after row: what all ways of matching share, and how arguments become sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.errors import Problems

Integers = NDArray[np.int64]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HEAVIEST = 1e15  # a weight of either side multiplies a similarity
BLOCK = 1 << 12  # 16-bit rows whose norms are taken at once, since they are widened for it


@dataclass(frozen=True)
class Sets:
    """Sets of rows: `rows` (n, D), one set after the other; set s is lengths[s] rows from starts[s] on.

    `scale` (n,) turns a product of rows into a cosine: 1 / norm, or 1 for an all-zero row. It may hold a
    weight as well, so that weighted similarities need nothing more. It is float64 for float64 rows, else
    float32. Where it is not `measured` yet it means nothing: paths that take such sets find norms beside the
    products (`slices` writes their squares there). A row without an ordinary norm needs a second look:
    `slices` raises OddRowError for one, and kernels set `odd` (1,) to 1, which is read at the end.

    `rows`, `scale` and `odd` are on the device of the rows, `lengths` (sets,) on the CPU.
    """

    rows: Tensor
    scale: Tensor
    lengths: Tensor
    measured: bool = True
    odd: Tensor | None = None

    @cached_property
    def starts(self) -> Tensor:
        return starts_of(self.lengths)


class OddRowError(Exception):
    """A row has no ordinary norm."""


def ordinary(norms: Tensor) -> Tensor:
    """Which rows 1 / norm may scale: not all zero, and no square of theirs left the range of numbers."""
    limit = 1e150 if norms.dtype == torch.float64 else 1e15
    return (norms > 1 / limit) & (norms < limit)


@dataclass(frozen=True)
class Pairs:
    """Pair p matches set x[p] with set y[p]; both (pairs,), on the CPU."""

    x: Tensor
    y: Tensor

    @property
    def swapped(self) -> Pairs:
        return Pairs(self.y, self.x)


@dataclass(frozen=True)
class Best:
    """One side: best similarity of each row of each pair, packed in the order of pairs, and with which row.

    `indices` count from the start of the other set; where that is empty, similarity is 0 and index -1.
    """

    maxima: Tensor
    indices: Tensor | None

    @classmethod
    def of_nothing(cls, sets: Sets, which: Tensor, indices: bool) -> Best:
        """The answer for rows that meet an empty set, to be overwritten for all others."""
        size = int(sets.lengths[which].sum())
        device = sets.rows.device
        unmatched = torch.full((size,), -1, dtype=torch.int64, device=device) if indices else None
        return cls(torch.zeros(size, dtype=sets.scale.dtype, device=device), unmatched)


def all_met(lengths: NDArray[np.int64], of_pair: Tensor) -> bool:
    """Whether every set has rows and is in a pair, so that each row is read that might be no number."""
    return bool(len(lengths) and lengths.min() and np.bincount(of_pair.numpy(), minlength=len(lengths)).min())


# A way of matching: x, y, pairs, whether indices are wanted -> the best of each side.
Path = Callable[[Sets, Sets, Pairs, bool], tuple[Best, Best]]


def starts_of(lengths: Tensor) -> Tensor:
    """Where each of so many packed runs begins.

    >>> starts_of(torch.tensor([2, 0, 3]))
    tensor([0, 2, 2])
    """
    return lengths.cumsum(0) - lengths


def expand(starts: Tensor, lengths: Tensor, total: int | None = None) -> Tensor:
    """All positions of several ranges, one range after the other; with their `total`, no wait for a GPU.

    >>> expand(torch.tensor([7, 0]), torch.tensor([2, 3]))
    tensor([7, 8, 0, 1, 2])
    """
    shifts = torch.repeat_interleave(starts - starts_of(lengths), lengths, output_size=total)
    return shifts + torch.arange(len(shifts), device=shifts.device)


class Checks:
    """Reads the arguments of one call: every method notes what is wrong, gives None for it, and goes on."""

    def __init__(self) -> None:
        self.problems = Problems()

    def rows(self, name: str, rows: object) -> Tensor | None:
        """A matrix of floating-point rows."""
        if not isinstance(rows, Tensor):
            found = f"is a {type(rows).__name__}: pass a torch tensor (rows, D)"
        elif rows.dim() != 2:
            found = f"has shape {tuple(rows.shape)}: pack the rows of all sets into (rows, D)"
        elif rows.dtype not in DTYPES:
            found = f"is {rows.dtype}: convert it to float16, bfloat16, float32 or float64"
        else:
            return rows
        wrong_shape = isinstance(rows, Tensor) and rows.dim() != 2
        self.problems.add(f"{name} {found}", ValueError if wrong_shape else TypeError)
        return None

    def alike(self, x: Tensor | None, y: Tensor | None) -> None:
        """Both sides must have the same D, type and device."""
        if x is None or y is None:
            return
        if x.shape[1] != y.shape[1]:
            found = f"x has rows of {x.shape[1]} numbers, y of {y.shape[1]}"
            self.problems.add(f"{found}: take both from the same encoder")
        if x.dtype != y.dtype:
            self.problems.add(f"x is {x.dtype}, y is {y.dtype}: convert one of them", TypeError)
        if x.device != y.device:
            self.problems.add(f"x is on {x.device}, y on {y.device}: move one of them")

    def lengths(self, name: str, values: object, rows_name: str, rows: Tensor | None) -> Integers | None:
        """Lengths of sets, which must add up to the rows."""
        lengths = self._integers(name, values)
        if lengths is None:
            return None
        negative = np.flatnonzero(lengths < 0)
        for i in negative:
            self.problems.add(f"{name}[{i}] is {lengths[i]}: a set has 0 rows or more")
        if not len(negative) and rows is not None and lengths.sum() != len(rows):
            self.problems.add(f"{name} add up to {lengths.sum()}, but {rows_name} has {len(rows)} rows")
        return lengths

    def pairs(
        self, x_lengths: Integers | None, y_lengths: Integers | None, x_of_pair: object, y_of_pair: object
    ) -> Pairs | None:
        """Which sets meet: the given ones, or all sets of a side in order."""
        chosen: list[Integers] = []
        shown: list[str] = []
        for side, lengths, values in (("x", x_lengths, x_of_pair), ("y", y_lengths, y_of_pair)):
            if lengths is None:
                continue
            sets, name = len(lengths), f"{side}_of_pair"
            of_pair = np.arange(sets) if values is None else self._integers(name, values)
            if of_pair is None:
                continue
            for p in np.flatnonzero((of_pair < 0) | (of_pair >= sets)):
                self.problems.add(
                    f"{name}[{p}] is {of_pair[p]}: there are {sets} {side} sets, counted from 0"
                )
            chosen.append(of_pair)
            shown.append(f"{sets} {side} sets" if values is None else f"{len(of_pair)} in {name}")
        if len(chosen) < 2:
            return None
        if len(chosen[0]) != len(chosen[1]):
            fix = "name both sets of every pair with x_of_pair and y_of_pair"
            self.problems.add(f"{' but '.join(shown)}: {fix}")
            return None
        return Pairs(*map(torch.from_numpy, chosen))

    def weights(
        self, name: str, values: object, rows_name: str, rows: Tensor | None, in_similarity: bool
    ) -> Tensor | None:
        """One finite weight of 0 or more for every row, as float64 on the CPU.

        Those that go into similarities (`in_similarity`) must leave them within the range of float32.
        """
        if values is None or rows is None:
            return None
        array = _array(values)
        if array.dtype.kind not in "fiub" or array.shape != (len(rows),):
            self.problems.add(
                f"{name} has shape {array.shape} and type {array.dtype}: give each of the {len(rows)} "
                f"rows of {rows_name} one number"
            )
            return None
        numbers = array.astype(np.float64)
        for i in np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0))):
            self.problems.add(f"{name}[{i}] is {numbers[i]}: a weight is finite and 0 or more")
        for i in np.flatnonzero(np.isfinite(numbers) & (numbers > HEAVIEST)) if in_similarity else ():
            most = f"with weighted_similarity=True a weight is at most {HEAVIEST:g}"
            self.problems.add(f"{name}[{i}] is {numbers[i]}: {most}")
        with np.errstate(over="ignore"):
            if np.isfinite(numbers).all() and not np.isfinite(numbers.sum()):
                self.problems.add(f"{name} add up to more than a number holds: make them smaller")
        return torch.from_numpy(numbers)

    def flags(self, name: str, values: object, pairs: Pairs | None) -> Tensor | None:
        """One flag for each pair; None as well if no pair has it."""
        array = _array(values)
        count = len(pairs.x) if pairs else array.size
        if array.shape == (0,) == (count,):
            return None
        if array.dtype.kind != "b" or array.shape not in ((), (count,)):
            self.problems.add(
                f"{name} has shape {array.shape} and type {array.dtype}: pass one bool, or one for each of "
                f"the {count} pairs"
            )
        elif array.any():
            return torch.from_numpy(np.broadcast_to(array, count).copy())
        return None

    def sets(self, name: str, rows: Tensor, lengths: Integers) -> Sets:
        """The sets with the scale of every row, found in one pass that also finds what is not finite."""
        rows = rows.detach().contiguous()
        wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
        widened = rows.dtype != wide and rows.device.type == "cpu"  # a GPU widens them as it reads
        step = BLOCK if widened else max(len(rows), 1)
        starts = range(0, len(rows) or 1, step)
        norms = torch.cat([torch.linalg.vector_norm(rows[i : i + step], dim=1, dtype=wide) for i in starts])
        odd = torch.nonzero(~ordinary(norms)).flatten()
        if len(odd) and rows.shape[1]:
            some = rows[odd].to(wide)
            peaks = some.abs().amax(1, keepdim=True)
            ends = np.cumsum(lengths)
            for row in odd[~torch.isfinite(peaks[:, 0])].tolist():
                owner = int(np.searchsorted(ends, row, side="right"))
                place = f"{name}[{row}], row {row - int(ends[owner] - lengths[owner])} of set {owner}"
                self.problems.add(f"{place}, holds NaN or infinity: correct or drop it")
            there = peaks[:, 0] > 0
            if there.any():
                odd, some, peaks = odd[there], some[there], peaks[there]
                # By powers of two, so that 16-bit rows lose nothing.
                digits, exponents = torch.frexp(some)
                some = torch.ldexp(digits, (exponents - torch.frexp(peaks).exponent).clamp_(max=0))
                rows, norms[odd] = rows.clone(), torch.linalg.vector_norm(some, dim=1)
                rows[odd] = some.to(rows.dtype)
        scale = torch.where(norms > 0, norms, 1).reciprocal()
        return Sets(rows, scale, torch.from_numpy(lengths))

    def unmeasured(self, rows: Tensor, lengths: Integers, odd: Tensor) -> Sets:
        """The sets for a path that finds norms beside the products."""
        wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
        scale = torch.empty(len(rows), dtype=wide, device=rows.device)
        return Sets(rows.detach().contiguous(), scale, torch.from_numpy(lengths), measured=False, odd=odd)

    def _integers(self, name: str, values: object) -> Integers | None:
        """A flat list, array or tensor of whole numbers."""
        array = _array(values)
        if array.shape == (0,):
            return np.empty(0, dtype=np.int64)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            self.problems.add(
                f"{name} has shape {array.shape} and type {array.dtype}: pass a flat list of whole numbers",
                TypeError,
            )
            return None
        return array.astype(np.int64)


def _array(values: object) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return np.asarray(values.float() if values.dtype == torch.bfloat16 else values)
    try:
        return np.asarray(values)
    except ValueError:  # lists of several lengths
        return np.asarray(values, dtype=object)
