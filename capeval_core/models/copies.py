"""Copies between the host and a device that neither waits for.

On a CUDA device pixels go from pinned memory on a stream of their own, while earlier batches run, and what a
network gives comes back into pinned memory behind it. PyTorch gives pinned memory that was freed out again
only when the copies from and into it are done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def on_device(values: Tensor | NDArray[Any] | Sequence[int], device: torch.device) -> Tensor:
    """Values of the host on a device; a copy to a GPU waits neither for what runs there nor to be done."""
    if not isinstance(values, Tensor):
        values = torch.as_tensor(values, device="cpu")
    if device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def indices_on_device(device: torch.device, *numbers: Sequence[int] | NDArray[np.int64]) -> list[Tensor]:
    """Lists of whole numbers as int64 tensors, all by one copy."""
    lists = [np.asarray(own, dtype=np.int64) for own in numbers]
    if device.type == "cpu":
        return [torch.from_numpy(own) for own in lists]
    return list(torch.split(rows_on_device(device, lists), [len(own) for own in lists]))


def rows_on_device(
    device: torch.device, arrays: Sequence[NDArray[Any]], dtype: torch.dtype | None = None
) -> Tensor:
    """Rows of arrays one after another; the host does not wait for a copy to CUDA."""
    shape = sum(len(own) for own in arrays), *arrays[0].shape[1:]
    host = _host_memory(shape, arrays[0].dtype, device)
    np.concatenate(arrays, out=host.numpy())
    return host.to(device, non_blocking=True).to(dtype or host.dtype)


def stacked_on_device(device: torch.device, arrays: Sequence[NDArray[Any]]) -> Tensor:
    """Arrays of one shape as one tensor (n, ...) on a device."""
    host = _host_memory((len(arrays), *arrays[0].shape), arrays[0].dtype, device)
    np.stack(arrays, out=host.numpy())
    if device.type != "cuda":
        return host.to(device)
    used, copies = torch.cuda.current_stream(device), _stream(device)
    with torch.cuda.stream(copies):
        there = host.to(device, non_blocking=True)
    used.wait_stream(copies)
    there.record_stream(used)  # else its memory could be given to the next copy while a network reads it
    return there


def _host_memory(shape: tuple[int, ...], kind: np.dtype[Any], device: torch.device) -> Tensor:
    """PyTorch's own memory, since sums of a matrix product differ by where in memory its factors begin."""
    dtype = torch.from_numpy(np.empty(0, kind)).dtype
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of copies to a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Arriving:
    """Values of a batch, one per unit, that may still be on their way; `arrived`: whether none is."""

    values: Callable[[], Any]
    arrived: Callable[[], bool] = lambda: True

    @classmethod
    def of(cls, values: Any) -> Arriving:
        """Values that are there, may be on their way, or are a tensor, as in `to_host`."""
        if isinstance(values, Tensor):
            return to_host(values)
        return values if isinstance(values, Arriving) else cls(lambda: values)


def to_host(features: Tensor) -> Arriving:
    """Features on any device, of any dtype, as float32 on the host, once they are there."""
    if features.device.type != "cuda":
        found = on_host(features)
        return Arriving(lambda: found)
    host = torch.empty(features.shape, dtype=torch.float32, device="cpu", pin_memory=True)
    host.copy_(features.float(), non_blocking=True)
    cuda: Any = torch.cuda  # whose stubs lack types
    copied = cuda.Event(blocking=True)  # a thread that waits leaves its core to the decoders
    copied.record(torch.cuda.current_stream(features.device))

    def values() -> NDArray[np.float32]:
        copied.synchronize()
        return np.array(host)  # out of pinned memory, which is scarce

    return Arriving(values, lambda: bool(copied.query()))


def on_host(features: Tensor) -> NDArray[np.float32]:
    """Features on any device, of any dtype, as float32 on the host; it is waited for them."""
    return np.asarray(features.float().cpu())


def arrays_of(tensors: Sequence[Tensor]) -> Arriving:
    """Tensors (rows, width) as float32 arrays on the host, by one copy."""
    ends = np.cumsum([len(rows) for rows in tensors])[:-1]
    packed = to_host(torch.cat(list(tensors)))
    return Arriving(lambda: np.split(packed.values(), ends), packed.arrived)
