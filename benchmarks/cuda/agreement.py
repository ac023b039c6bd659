"""Agreement of what is computed twice: on two devices, in two dtypes, in two runs.

A part hands in one function of its own, `run(device, dtype)`, which gives the outputs of a fixed input by
name: features (rows, width) in any number, and "scores" (rows,).

    def run(device: str, dtype: str) -> Outputs: ...

    yield from agreement(gpu, Subject(("pacs",), "ViT-B/32, seeded"), run)

All rows are `Agreement`: their numbers stand in `cuda.jsonl` beside the sentence of the table, from which the
metrics' cards take them (`tools/exactness.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from capeval_core.judgements.correlation import kendall_tau_b

Outputs = Mapping[str, Any]
"""Arrays, tensors or lists by name; lists of arrays of one width are joined. "scores" has one value a row."""
Run = Callable[[str, str], Outputs]
"""Outputs on a device ("cpu", "cuda") in a dtype ("float32", "bfloat16", "float16")."""
Comparison = Literal["devices", "bfloat16", "float16", "repeats", "order", "batches"]
DEVICE_GOAL = 1e-5
"""float32 on a GPU against the CPU: scores, and features of length 1."""
DTYPE_GOAL = 0.01
"""A dtype of 16 bits against float32: PAC-S, which lies in 0 to 2; other ranges have no goal."""
BOTH = ("bfloat16", "float16")


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
        self.device, self.small = torch.device(device), small
        self.is_cuda = self.device.type == "cuda"
        self.name = torch.cuda.get_device_name(self.device) if self.is_cuda else "CPU (rehearsal)"


@dataclass(frozen=True)
class Subject:
    """What is compared. metrics: the names of those whose scores or features these are, as `load` takes them;
    `NAME video` for the one on videos. weights: in words, with their origin: "ViT-B/32, seeded", "tiny"."""

    metrics: tuple[str, ...]
    weights: str

    def __str__(self) -> str:
        return f"{', '.join(self.metrics)} ({self.weights})"

    @property
    def dtype_goal(self) -> float | None:
        """The goal for a dtype of 16 bits, if all these metrics have one."""
        return DTYPE_GOAL if {"pacs", "refpacs"}.issuperset(self.metrics) else None


@dataclass(frozen=True)
class Agreement(Row):
    """A row with its numbers.

    metrics, weights: of its subject. comparison: what differs between the two computations. output: "scores",
    or the name of features. rows: how many were compared. largest: the largest absolute difference of scores,
    or of features whose rows have length 1. tau: Kendall's tau-b of the two rankings, scores only.
    device: where.
    """

    metrics: tuple[str, ...] = ()
    weights: str = ""
    comparison: Comparison = "devices"
    output: str = "scores"
    rows: int = 0
    largest: float = 0.0
    tau: float | None = None
    device: str = ""


def agreement(
    gpu: Gpu,
    subject: Subject,
    run: Run,
    *,
    dtypes: Sequence[Literal["bfloat16", "float16"]] = BOTH,
    device_goal: float = DEVICE_GOAL,
) -> Iterator[Row]:
    """Everything below for one subject; each distinct run is made once, and float32 on the device twice."""
    once = functools.cache(run)
    yield from repeats_equal(gpu, subject, run, first=once)
    yield from compare_devices(gpu, subject, once, goal=device_goal)
    yield from compare_dtypes(gpu, subject, once, dtypes=dtypes)


def compare_devices(gpu: Gpu, subject: Subject, run: Run, *, goal: float = DEVICE_GOAL) -> Iterator[Row]:
    """float32 on the device against the CPU: the largest difference of each output."""
    what = f"{subject}: float32, {gpu.device.type} against the CPU"

    def rows() -> Iterator[Row]:
        here, there = run(str(gpu.device), "float32"), run("cpu", "float32")
        for name in here:
            yield difference(gpu, subject, "devices", what, name, here[name], there[name], goal)

    yield from _or_failure(what, goal, rows)


def compare_dtypes(
    gpu: Gpu,
    subject: Subject,
    run: Run,
    *,
    dtypes: Sequence[Literal["bfloat16", "float16"]] = BOTH,
) -> Iterator[Row]:
    """Other dtypes against float32 on the device: the largest difference of scores, and Kendall's tau-b."""
    goal = subject.dtype_goal
    for dtype in dtypes:
        what = f"{subject}: {dtype} against float32"

        def rows(dtype: Any = dtype, what: str = what) -> Iterator[Row]:
            low, full = run(str(gpu.device), dtype), run(str(gpu.device), "float32")
            for name in low:
                yield difference(
                    gpu, subject, dtype, what, name, low[name], full[name], goal if name == "scores" else None
                )

        yield from _or_failure(what, goal, rows)


def repeats_equal(
    gpu: Gpu, subject: Subject, run: Run, *, dtype: str = "float32", first: Run | None = None
) -> Iterator[Row]:
    """Two runs on the device, which should be bit-equal. first: makes the first one; default `run`."""
    what = f"{subject}: {dtype}, two runs"

    def rows() -> Iterator[Row]:
        one, two = (make(str(gpu.device), dtype) for make in (first or run, run))
        for name in one:
            yield difference(gpu, subject, "repeats", what, name, one[name], two[name], 0.0)

    yield from _or_failure(what, 0.0, rows)


def difference(
    gpu: Gpu,
    subject: Subject,
    comparison: Comparison,
    what: str,
    output: str,
    found: Any,
    expected: Any,
    goal: float | None,
) -> Agreement:
    """The row of one output; where one of two values is no number, the difference is infinite."""
    a, b = as_rows(found), as_rows(expected)
    if a.shape != b.shape:
        largest, tau = float("inf"), None
    elif output == "scores":
        largest, tau = largest_difference(a, b), kendall_tau_b(a.ravel(), b.ravel()).value
    else:
        largest, tau = largest_difference(_of_length_1(a), _of_length_1(b)), None
    measured = "bit-equal" if largest == 0 else f"largest difference {largest:.1e}"
    if tau is not None and np.isfinite(tau) and comparison in BOTH:
        measured += f", tau-b {tau:.4f}"
    wanted = "" if goal is None else "bit-equal" if goal == 0 else f"at most {goal:g}"
    return Agreement(
        f"{what}, {output}",
        f"{measured} ({len(a)} rows)",
        wanted,
        None if goal is None else largest <= goal,
        subject.metrics,
        subject.weights,
        comparison,
        output,
        len(a),
        largest,
        tau if tau is not None and np.isfinite(tau) else None,
        gpu.name,
    )


def as_rows(values: Any) -> NDArray[np.float64]:
    """Values as an array of rows in double precision, wherever and in whatever dtype they are.

    >>> as_rows([0.5, 1.0]).shape, as_rows([np.ones((2, 3)), np.zeros((1, 3))]).shape
    ((2,), (3, 3))
    """
    if isinstance(values, (list, tuple)) and any(np.ndim(value) for value in values):
        return np.concatenate([as_rows(value) for value in values])
    if hasattr(values, "detach"):
        values = values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=np.float64)


def largest_difference(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The largest absolute difference; equal values, infinite ones and NaN included, differ by 0.

    >>> largest_difference(np.array([1.0, np.nan]), np.array([1.5, np.nan]))
    0.5
    >>> largest_difference(np.array([np.nan]), np.array([0.0]))
    inf
    """
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        distances = np.abs(a - b)
    distances = np.where(equal, 0.0, np.where(np.isnan(distances), np.inf, distances))
    return float(distances.max(initial=0.0))


def _of_length_1(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows divided by their length; rows of 0 stay."""
    if rows.ndim < 2:
        return rows
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


def _or_failure(what: str, goal: float | None, rows: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """The rows; what a run raises is a row of its own, and the rows of others come nevertheless."""
    try:
        yield from rows()
    except Exception as error:
        wanted = "" if goal is None else f"at most {goal:g}" if goal else "bit-equal"
        yield Row(what, f"{type(error).__name__}: {' '.join(str(error).split())}", wanted, False)
