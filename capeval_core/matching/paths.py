"""The ways of matching, and which of them a device takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.errors import Problems, did_you_mean
from capeval_core.limits import LIMITS
from capeval_core.matching import buckets, slices
from capeval_core.matching.sets import Best, Pairs, Path, Sets, all_met
from capeval_core.models.device import triton_version
from capeval_core.models.trial import kernels_agree

Integers = NDArray[np.int64]
PathName = Literal["reference", "slices", "buckets", "triton"]

OLDEST_TRITON = (3, 4)
"""The Triton of torch 2.8, the oldest that the kernels are tested with: they give zeros with 3.0."""

GATHERED_FROM = 48
"""Rows of a pair, both sides, from which gathering them into buckets gains from a second thread."""


def matching_device(device: torch.device) -> torch.device:
    """The device on which rows of this one are matched: an Apple GPU has no float64 to add up in."""
    return device if device.type in ("cpu", "cuda") else torch.device("cpu")


def find_path(
    name: str | None, device: torch.device, dtype: torch.dtype, pair_rows: float, problems: Problems
) -> Path:
    """The way of that name, or the fastest for pairs of so many rows; notes why one cannot be taken."""
    if name is None:
        name = _on_cpu(pair_rows) if device.type == "cpu" else _on_gpu(device, dtype)
    if name == "reference":
        return reference_matches
    if name in ("slices", "buckets"):
        if device.type != "cpu":
            problems.add(f"path={name!r}, but the rows are on {device}: move them with .cpu()")
        return slices.best_matches if name == "slices" else buckets.best_matches
    if name != "triton":
        near, known = did_you_mean(str(name), get_args(PathName)), ", ".join(get_args(PathName))
        problems.add(f"path={name!r} is not known{near} (known: {known})")
        return reference_matches
    version = triton_version()
    if version is None:
        problems.add("path='triton', but triton is not installed: pip install triton (Linux only)")
        return reference_matches
    if version < OLDEST_TRITON:
        installed, oldest = (".".join(map(str, parts)) for parts in (version, OLDEST_TRITON))
        found = f"path='triton', but Triton {installed} is installed, with which matching is wrong"
        problems.add(f"{found}: install at least {oldest}, or take path='reference'")
        return reference_matches
    from capeval_core.matching import triton_kernels

    if device.type != "cuda" and not triton_kernels.INTERPRETED:
        fix = "move them to CUDA, or set TRITON_INTERPRET=1"
        problems.add(f"path='triton', but the rows are on {device}: {fix}")
    if dtype == torch.float64:
        problems.add("path='triton', but the rows are float64, which it does not do: take path='reference'")
    return triton_matches


def gain_by_own_norms(path: Path, x_lengths: Integers, y_lengths: Integers, pairs: Pairs) -> bool:
    """Whether norms found beside the products, rather than in a pass before, spare time."""
    if path is slices.best_matches:
        return slices.gain_by_own_norms(x_lengths, y_lengths, pairs)
    return path is triton_matches and all_met(x_lengths, pairs.x) and all_met(y_lengths, pairs.y)


def _on_cpu(pair_rows: float) -> PathName:
    threads = torch.get_num_threads()
    alone = pair_rows > LIMITS.bucket_rows / 2  # a pair has a bucket to itself, and is not even gathered
    gain = threads > 2 or (threads == 2 and pair_rows >= GATHERED_FROM)
    return "buckets" if gain or alone else "slices"


def _on_gpu(device: torch.device, dtype: torch.dtype) -> PathName:
    version = triton_version()
    usable = version is not None and version >= OLDEST_TRITON and dtype != torch.float64
    return "triton" if usable and _as_reference(device, dtype) else "reference"


@cache
def _as_reference(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels, in one tile and over several, do what plain matching does."""

    def trials() -> Iterator[tuple[str, Tensor, Tensor]]:
        lengths, pairs = torch.tensor([3, 20, 150]), Pairs(torch.tensor([0, 2]), torch.tensor([1, 2]))
        rows = torch.linspace(1, 40, 173 * 40, device=device).square().cos().view(173, 40).to(dtype)
        scale, odd = 1 / rows.float().norm(dim=1), torch.zeros(1, dtype=torch.int32, device=device)
        x, y = (Sets(each, scale, lengths, measured=False, odd=odd) for each in (rows, rows.roll(1, 0)))
        y = replace(y, scale=scale.roll(1))
        for ours, plain in zip(
            triton_matches(x, y, pairs, True), reference_matches(x, y, pairs, True), strict=True
        ):
            assert ours.indices is not None and plain.indices is not None
            yield "a maximum", ours.maxima, plain.maxima
            yield "an index", ours.indices, plain.indices

    return kernels_agree("Triton's matching", device, dtype, trials())


def triton_matches(x: Sets, y: Sets, pairs: Pairs, with_indices: bool) -> tuple[Best, Best]:
    """Matching by the kernels of `triton_kernels`, which wait for nothing."""
    from capeval_core.matching import triton_kernels

    sides = (triton_kernels.Side(s.lengths.numpy(), p.numpy()) for s, p in ((x, pairs.x), (y, pairs.y)))
    scales = (x.scale, y.scale) if x.measured else None
    of_x, of_y = triton_kernels.match(x.rows, y.rows, *sides, indices=with_indices, scales=scales, odd=x.odd)
    return Best(*of_x), Best(*of_y)


def reference_matches(x: Sets, y: Sets, pairs: Pairs, with_indices: bool) -> tuple[Best, Best]:
    """Plain matching, pair after pair: on any device, and in float64 the measure of the other paths."""
    of_x, of_y = Best.of_nothing(x, pairs.x, with_indices), Best.of_nothing(y, pairs.y, with_indices)
    x_ends, y_ends = x.lengths.cumsum(0).tolist(), y.lengths.cumsum(0).tolist()
    x_at = y_at = 0
    for i, j in zip(pairs.x.tolist(), pairs.y.tolist(), strict=True):
        similarity = _scaled(x, i, x_ends) @ _scaled(y, j, y_ends).T
        rows, columns = similarity.shape
        if rows and columns:
            for best, at, axis in ((of_x, x_at, 1), (of_y, y_at, 0)):
                maxima, indices = similarity.max(axis)
                best.maxima[at : at + len(maxima)] = maxima
                if best.indices is not None:
                    best.indices[at : at + len(maxima)] = indices
        x_at, y_at = x_at + rows, y_at + columns
    return of_x, of_y


def _scaled(sets: Sets, which: int, ends: list[int]) -> Tensor:
    """The rows of a set, scaled before they are multiplied: so no product leaves the range of numbers."""
    part = slice(ends[which - 1] if which else 0, ends[which])
    return sets.rows[part].to(sets.scale.dtype) * sets.scale[part, None]
