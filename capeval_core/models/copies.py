"""Copies between the host and a device that neither waits for.

On a CUDA device pixels go from pinned memory on a stream of their own, while earlier batches run, and what a
network gives comes back into pinned memory behind it. PyTorch gives pinned memory that was freed out again
only when the copies from and into it are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Arriving:
    """Values of a batch that may still be on their way to the host."""

    def __init__(self, values: Any) -> None:
        self._values = values

    @property
    def arrived(self) -> bool:
        """Whether `values` need not wait."""
        return True

    def values(self) -> Any:
        """The values, one per unit of the batch.

        Raises:
            RuntimeError: what went wrong on the device.
        """
        return self._values


class _FromCuda(Arriving):
    def __init__(self, features: Tensor) -> None:
        host = torch.empty(features.shape, dtype=torch.float32, pin_memory=True)
        super().__init__(host.copy_(features.float(), non_blocking=True))
        self._copied = torch.cuda.Event(blocking=True)  # a thread that waits leaves its core to the decoders
        self._copied.record(torch.cuda.current_stream(features.device))

    @property
    def arrived(self) -> bool:
        return bool(self._copied.query())

    def values(self) -> NDArray[np.float32]:
        self._copied.synchronize()
        return np.array(self._values)  # out of pinned memory, which is scarce


def to_host(features: Tensor) -> Arriving:
    """Features on any device, of any dtype, as float32 on the host."""
    if features.device.type == "cuda":
        return _FromCuda(features)
    return Arriving(np.asarray(features.float().cpu()))


def to_device(arrays: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    """Arrays of one shape as one tensor (n, ...) on a device."""
    if device.type != "cuda":
        return torch.from_numpy(np.stack(arrays)).to(device)
    tensors = [torch.from_numpy(array) for array in arrays]
    host = torch.empty((len(tensors), *tensors[0].shape), dtype=tensors[0].dtype, pin_memory=True)
    torch.stack(tensors, out=host)
    used, copies = torch.cuda.current_stream(device), _copies(device)
    with torch.cuda.stream(copies):
        there = host.to(device, non_blocking=True)
    used.wait_stream(copies)
    there.record_stream(used)  # else its memory could be given to the next copy while a network reads it
    return there


@cache
def _copies(device: torch.device) -> torch.cuda.Stream:
    """The stream of copies to a device."""
    return torch.cuda.Stream(device)
