"""The ways of matching, and which of them a device takes."""

from __future__ import annotations

import importlib.util
from typing import Literal

import torch

from capeval_core.inputs.problems import Problems
from capeval_core.matching import cpu, reference
from capeval_core.matching.sets import Path
from capeval_core.suggestion import did_you_mean

PathName = Literal["reference", "cpu", "triton"]


def place_of(device: torch.device) -> torch.device:
    """Where rows of this device are matched: an Apple GPU, for one, has no float64 to add up in."""
    return device if device.type in ("cpu", "cuda") else torch.device("cpu")


def find_path(name: str | None, device: torch.device, dtype: torch.dtype, problems: Problems) -> Path:
    """The way of that name, or the fastest for such rows; notes why a named one cannot be taken."""
    double = dtype == torch.float64
    if name is None:
        has_triton = device.type == "cuda" and importlib.util.find_spec("triton") is not None
        name = "cpu" if device.type == "cpu" else "triton" if has_triton and not double else "reference"
    if name == "cpu":
        if device.type != "cpu":
            problems.add(f"path='cpu', but the rows are on {device}: move them with .cpu()")
        return cpu.best_matches
    if name == "triton":
        if importlib.util.find_spec("triton") is None:
            problems.add("path='triton', but triton is not installed: pip install triton (Linux only)")
            return reference.best_matches
        from capeval_core.matching import triton_kernels

        if device.type != "cuda" and not triton_kernels.INTERPRETED:
            problems.add(
                f"path='triton', but the rows are on {device}: move them to CUDA, or set TRITON_INTERPRET=1"
            )
        if double:
            problems.add(
                "path='triton', but the rows are float64, which it does not do: take path='reference'"
            )
        return triton_kernels.best_matches
    if name != "reference":
        problems.add(f"path={name!r} is not known{did_you_mean(str(name), ('reference', 'cpu', 'triton'))}")
    return reference.best_matches
