"""Agreement of scores that are computed twice: on two devices, in two dtypes, in another order, again.

All rows are `Agreement`: their numbers stand in `cuda.jsonl` and `exactness.jsonl` beside the sentence of the
table, from which the metrics' cards take them (`tools/exactness.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from capeval_core.judgements.correlation import kendall_tau_b

Run = Callable[[str, str], Sequence[float]]
"""Scores of a fixed input on a device ("cpu", "cuda") in a dtype ("float32", "bfloat16", "float16")."""
Comparison = Literal["devices", "bfloat16", "float16", "repeats", "order", "batches"]
DEVICE_GOAL = 1e-5
"""float32 on a GPU against the CPU, and one order or batch against another."""
DTYPE_GOAL = 0.01
"""A dtype of 16 bits against float32: PAC-S, which lies in 0 to 2; other ranges have no goal."""
BOTH: tuple[Comparison, ...] = ("bfloat16", "float16")


@dataclass(frozen=True)
class Row:
    """What was measured, the number and its unit, the goal, '' where there is none, and if it is met."""

    quantity: str
    measured: str
    goal: str = ""
    met: bool | None = None


class Gpu:
    """The device that is measured; small: a rehearsal, on the CPU too, whose numbers say nothing."""

    def __init__(self, device: str, *, small: bool) -> None:
        self.device = torch.device(device)
        self.small = small
        self.is_cuda = self.device.type == "cuda"
        self.name = torch.cuda.get_device_name(self.device) if self.is_cuda else "CPU (rehearsal)"


@dataclass(frozen=True)
class Agreement(Row):
    """A row with its numbers.

    metrics: the name as `load` takes it, `NAME video` for the one on videos. weights: in words. comparison:
    what differs between the two computations. rows: scores that were compared. largest: their largest
    absolute difference. tau: Kendall's tau-b of the two rankings. moved: pairs of captions that the two rank
    the other way round, and widest, the most by which the second tells such a pair apart. device: where.
    """

    metrics: tuple[str, ...] = ()
    weights: str = ""
    comparison: Comparison = "devices"
    output: str = "scores"
    rows: int = 0
    largest: float = 0.0
    tau: float | None = None
    moved: int | None = None
    widest: float | None = None
    device: str = ""


@dataclass(frozen=True)
class Subject:
    """A metric with weights, on a device."""

    gpu: Gpu
    metric: str
    weights: str

    def compared(
        self,
        comparison: Comparison,
        what: str,
        pair: Callable[[], tuple[Sequence[float], Sequence[float]]],
        goal: float | None,
    ) -> Row:
        """The row of two runs; what one of them raises is a row, too."""
        what = f"{self.metric} ({self.weights}): {what}, scores"
        goal_in_words = ""
        if goal is not None:
            goal_in_words = f"at most {goal:g}" if goal else "bit-equal"
        try:
            scores, expected = (np.asarray(values, dtype=np.float64) for values in pair())
            largest = largest_difference(scores, expected)
            tau = float(kendall_tau_b(scores, expected).value)
        except Exception as error:
            return Row(what, f"{type(error).__name__}: {' '.join(str(error).split())}", goal_in_words, False)
        finite = tau if np.isfinite(tau) else None
        measured = "bit-equal" if largest == 0 else f"largest difference {largest:.1e}"
        moved, widest = moved_pairs(scores, expected) if comparison in BOTH else (None, None)
        if finite is not None and comparison in BOTH:
            measured += f", tau-b {tau:.4f}, {moved} pairs moved"
        return Agreement(
            what,
            f"{measured} ({len(scores)} rows)",
            goal_in_words,
            None if goal is None else largest <= goal,
            (self.metric,),
            self.weights,
            comparison,
            rows=len(scores),
            largest=largest,
            tau=finite,
            moved=moved,
            widest=widest,
            device=self.gpu.name,
        )

    def agreement(self, run: Run) -> Iterator[Row]:
        """A second run, on a GPU the CPU, and dtypes of 16 bits, each beside float32 on the device."""
        once = functools.cache(run)
        gpu = str(self.gpu.device)
        first = functools.partial(once, gpu, "float32")
        yield self.compared("repeats", "float32, two runs", lambda: (first(), run(gpu, "float32")), 0.0)
        if self.gpu.is_cuda:
            what = "float32, cuda against the CPU"
            yield self.compared("devices", what, lambda: (first(), run("cpu", "float32")), DEVICE_GOAL)
        goal = DTYPE_GOAL if self.metric in ("pacs", "refpacs") else None
        for dtype in BOTH:
            what = f"{dtype} against float32"
            yield self.compared(dtype, what, lambda name=dtype: (once(gpu, name), first()), goal)  # type: ignore[misc]


def moved_pairs(scores: np.ndarray, expected: np.ndarray) -> tuple[int, float]:
    """The number of pairs that two lists rank the other way round, and the most by which `expected` differs.

    >>> moved_pairs(np.array([0.1, 0.3, 0.2]), np.array([0.1, 0.2, 0.25]))[0]
    1
    """
    first, second = np.triu_indices(len(expected), 1)
    distances = expected[first] - expected[second]
    moved = (scores[first] - scores[second]) * distances < 0
    return int(moved.sum()), float(np.abs(distances[moved]).max(initial=0.0))


def largest_difference(scores: np.ndarray, expected: np.ndarray) -> float:
    """The largest absolute difference; equal values, infinite ones and NaN included, differ by 0."""
    equal = (scores == expected) | (np.isnan(scores) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        distances = np.abs(scores - expected)
    return float(np.where(equal, 0.0, np.nan_to_num(distances, nan=np.inf)).max(initial=0.0))
