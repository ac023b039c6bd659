"""What may be wrong with sets, pairs and weights, found before anything is matched."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.errors import Problems
from capeval_core.matching.sets import Pairs, Sets, ordinary

Integers = NDArray[np.int64]

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HEAVIEST = 1e15  # a weight of either side multiplies a similarity
BLOCK = 1 << 12  # 16-bit rows whose norms are taken at once, since they are widened for it


class Checks:
    """Reads the arguments of one call: every method notes what is wrong, gives None for it, and goes on."""

    def __init__(self) -> None:
        self.problems = Problems()

    def rows(self, name: str, rows: object) -> Tensor | None:
        """A matrix of floating-point rows."""
        if not isinstance(rows, Tensor):
            self.problems.add(f"{name} is a {type(rows).__name__}: pass a torch tensor (rows, D)", TypeError)
        elif rows.dim() != 2:
            self.problems.add(
                f"{name} has shape {tuple(rows.shape)}: pack the rows of all sets into (rows, D)"
            )
        elif rows.dtype not in DTYPES:
            self.problems.add(
                f"{name} is {rows.dtype}: convert it to float16, bfloat16, float32 or float64", TypeError
            )
        else:
            return rows
        return None

    def alike(self, name: str, rows: Tensor | None, other_name: str, other: Tensor | None) -> None:
        """Both sides must have the same D, type and device."""
        if rows is None or other is None:
            return
        if rows.shape[1] != other.shape[1]:
            self.problems.add(
                f"{name} has rows of {rows.shape[1]} numbers, {other_name} of {other.shape[1]}: "
                "take both from the same encoder"
            )
        if rows.dtype != other.dtype:
            self.problems.add(
                f"{name} is {rows.dtype}, {other_name} is {other.dtype}: convert one of them", TypeError
            )
        if rows.device != other.device:
            self.problems.add(f"{name} is on {rows.device}, {other_name} on {other.device}: move one of them")

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
        chosen = {}
        for side, lengths, values in (("x", x_lengths, x_of_pair), ("y", y_lengths, y_of_pair)):
            sets = len(lengths) if lengths is not None else 0
            of_pair = np.arange(sets) if values is None else self._integers(f"{side}_of_pair", values)
            if lengths is not None and of_pair is not None:
                for p in np.flatnonzero((of_pair < 0) | (of_pair >= sets)):
                    self.problems.add(
                        f"{side}_of_pair[{p}] is {of_pair[p]}: there are {sets} {side} sets, counted from 0"
                    )
                chosen[f"{sets} {side} sets" if values is None else f"{len(of_pair)} in {side}_of_pair"] = (
                    of_pair
                )
        if len(chosen) < 2:
            return None
        x, y = chosen.values()
        if len(x) != len(y):
            self.problems.add(
                f"{' but '.join(chosen)}: name both sets of every pair with x_of_pair and y_of_pair"
            )
            return None
        return Pairs(torch.from_numpy(x), torch.from_numpy(y))

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
            self.problems.add(
                f"{name}[{i}] is {numbers[i]}: with weighted_similarity=True a weight is at most {HEAVIEST:g}"
            )
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
            self._not_finite(name, odd[~torch.isfinite(peaks[:, 0])].tolist(), lengths)
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

    def _not_finite(self, name: str, rows: list[int], lengths: Integers) -> None:
        """Name such rows with their sets."""
        ends = np.cumsum(lengths)
        for row in rows:
            owner = int(np.searchsorted(ends, row, side="right"))
            within = row - int(ends[owner] - lengths[owner])
            self.problems.add(
                f"{name}[{row}], row {within} of set {owner}, holds NaN or infinity: mend or drop it"
            )

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
