"""The ways of matching, and which of them a device takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from capeval_core.errors import did_you_mean
from capeval_core.limits import LIMITS
from capeval_core.matching import buckets, slices
from capeval_core.matching.sets import Best, Integers, Path, Sets
from capeval_core.models.device import kernels_agree, triton_version

PathName = Literal["reference", "slices", "buckets", "triton"]

_OLDEST_TRITON = (3, 4)
"""The Triton of torch 2.8, the oldest that the kernels are tested with: they give zeros with 3.0."""
_GATHERED_FROM = 48
"""Rows of a pair, both sides, from which gathering them into buckets gains from a second thread."""


def likely_fastest(device: torch.device, dtype: torch.dtype, pair_rows: float) -> PathName:
    """The way for pairs of so many rows."""
    if device.type != "cpu":
        usable = not problem_of("triton", device, dtype) and _as_reference(device, dtype)
        return "triton" if usable else "reference"
    threads = torch.get_num_threads()
    alone = pair_rows > LIMITS.bucket_rows / 2  # a pair has a bucket to itself, and is not even gathered
    gain = threads > 2 or (threads == 2 and pair_rows >= _GATHERED_FROM)
    return "buckets" if gain or alone else "slices"


def problem_of(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """Why a way cannot be taken, to stand behind its name; '' if it can."""
    if name not in get_args(PathName):
        near, known = did_you_mean(str(name), get_args(PathName)), ", ".join(get_args(PathName))
        return f" is not known{near} (known: {known})"
    if name in ("slices", "buckets") and device.type != "cpu":
        return f", but the rows are on {device}: move them with .cpu()"
    if name != "triton":
        return ""
    version = triton_version()
    if version is None:
        return ", but triton is not installed: pip install triton (Linux only)"
    if version < _OLDEST_TRITON:
        installed, oldest = (".".join(map(str, parts)) for parts in (version, _OLDEST_TRITON))
        fix = f"install at least {oldest}, or take path='reference'"
        return f", but Triton {installed} is installed, with which matching is wrong: {fix}"
    if dtype == torch.float64:
        return ", but the rows are float64, which it does not do: take path='reference'"
    from capeval_core.matching import triton_kernels

    if device.type == "cuda" or triton_kernels.INTERPRETED:
        return ""
    return f", but the rows are on {device}: move them to CUDA, or set TRITON_INTERPRET=1"


@cache
def _as_reference(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels, in one tile and over several, do what plain matching does."""

    def trials() -> Iterator[tuple[str, Tensor, Tensor]]:
        lengths, of_x, of_y = np.array([3, 20, 150]), np.array([0, 2]), np.array([1, 2])
        rows = torch.linspace(1, 40, 173 * 40, device=device).square().cos().view(173, 40).to(dtype)
        scale, odd = 1 / rows.float().norm(dim=1), torch.zeros(1, dtype=torch.int32, device=device)
        x, y = (Sets(each, scale, lengths, measured=False, odd=odd) for each in (rows, rows.roll(1, 0)))
        y = replace(y, scale=scale.roll(1))
        both = (way(x, y, of_x, of_y, True) for way in (_triton_matches, _reference_matches))
        for ours, plain in zip(*both, strict=True):
            assert ours.indices is not None and plain.indices is not None
            yield "a maximum", ours.maxima, plain.maxima
            yield "an index", ours.indices, plain.indices

    return kernels_agree("Triton's matching", device, dtype, trials())


def _triton_matches(
    x: Sets, y: Sets, of_x: Integers, of_y: Integers, with_indices: bool
) -> tuple[Best, Best]:
    """Matching by the kernels of `triton_kernels`, which wait for nothing."""
    from capeval_core.matching import triton_kernels

    sides = triton_kernels.Side(x.lengths, of_x), triton_kernels.Side(y.lengths, of_y)
    scales = (x.scale, y.scale) if x.measured else None
    best = triton_kernels.match(x.rows, y.rows, *sides, indices=with_indices, scales=scales, odd=x.odd)
    return Best(*best[0]), Best(*best[1])


def _reference_matches(
    x: Sets, y: Sets, of_x: Integers, of_y: Integers, with_indices: bool
) -> tuple[Best, Best]:
    """Plain matching, pair after pair: on any device, and in float64 the measure of the other paths."""
    found = Best.of_nothing(x, of_x, with_indices), Best.of_nothing(y, of_y, with_indices)
    ends = [[0, *np.cumsum(sets.lengths[which]).tolist()] for sets, which in ((x, of_x), (y, of_y))]
    places = zip(*map(pairwise, ends), strict=True)
    for i, j, both in zip(of_x.tolist(), of_y.tolist(), places, strict=True):
        similarity = _scaled(x, i) @ _scaled(y, j).T
        if not similarity.numel():
            continue
        for best, (start, stop), axis in zip(found, both, (1, 0), strict=True):
            best.maxima[start:stop], indices = similarity.max(axis)
            if best.indices is not None:
                best.indices[start:stop] = indices
    return found


def _scaled(sets: Sets, which: int) -> Tensor:
    """The rows of a set, scaled before they are multiplied: so no product leaves the range of numbers."""
    part = slice(int(sets.starts[which]), int(sets.starts[which] + sets.lengths[which]))
    return sets.rows[part].to(sets.scale.dtype) * sets.scale[part, None]


PATHS: dict[str, Path] = {
    "reference": _reference_matches,
    "slices": slices.best_matches,
    "buckets": buckets.best_matches,
    "triton": _triton_matches,
}
