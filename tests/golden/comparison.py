"""One quantity of a golden case beside ours: the difference, the tolerance, the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


class UnreadableCaseError(Exception):
    """A golden folder that lacks something or cannot be understood; the message is one line."""


@dataclass(frozen=True)
class Comparison:
    """The largest absolute difference of one quantity; `defined` counts values where the original has NaN."""

    quantity: str
    error: float
    tolerance: float
    defined: int = 0

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance

    @property
    def verdict(self) -> str:
        if not self.ok:
            return "FAIL"
        return "ok (defined)" if self.defined else "ok"


def compare(quantity: str, ours: Any, theirs: Any, tolerance: float) -> Comparison:
    """Compare arrays of equal shape. Where the original gives NaN, ours may be NaN or any finite number.

    >>> compare("score", [1.0, 0.0], [1.5, float("nan")], 1.0)
    Comparison(quantity='score', error=0.5, tolerance=1.0, defined=1)
    """
    mine, original = (np.asarray(_on_host(each), dtype=np.float64) for each in (ours, theirs))
    if mine.shape != original.shape:
        return Comparison(f"{quantity} has shape {mine.shape}, not {original.shape}", float("inf"), tolerance)
    undefined = np.isnan(original)
    # NaN or infinity of ours where the original has a number is no small error.
    difference = np.where(undefined, 0.0, np.abs(mine - np.where(undefined, 0.0, original)))
    difference = np.where(np.isnan(difference), np.inf, difference)
    difference = np.where(undefined & np.isinf(mine), np.inf, difference)
    defined = int(np.sum(undefined & np.isfinite(mine)))
    return Comparison(quantity, float(difference.max(initial=0.0)), tolerance, defined)


def _on_host(values: Any) -> Any:
    return values.cpu() if isinstance(values, torch.Tensor) else values
