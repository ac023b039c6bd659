"""Copies from the host to a device and back, a few large ones: each small one would stop the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def indices_on_device(device: torch.device, *numbers: Sequence[int] | NDArray[np.int64]) -> list[Tensor]:
    """Lists of whole numbers as int64 tensors, all by one copy.

    >>> indices_on_device(torch.device("cpu"), [1, 2], [3])
    [tensor([1, 2]), tensor([3])]
    """
    lists = [np.asarray(own, dtype=np.int64) for own in numbers]
    if device.type == "cpu":
        return [torch.from_numpy(own) for own in lists]
    return list(torch.split(rows_on_device(device, lists), [len(own) for own in lists]))


def rows_on_device(
    device: torch.device, arrays: Sequence[NDArray[Any]], dtype: torch.dtype | None = None
) -> Tensor:
    """Rows of arrays one after another; the host does not wait for a copy to CUDA."""
    if device.type != "cuda":
        return torch.from_numpy(np.concatenate(arrays)).to(device, dtype)
    like = torch.from_numpy(arrays[0][:0])
    shape = sum(len(own) for own in arrays), *like.shape[1:]
    host = pinned(shape, like.dtype)
    np.concatenate(arrays, out=host.numpy())
    return host.to(device, non_blocking=True).to(dtype or like.dtype)


def pinned(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Memory of the host from which CUDA copies while the host goes on."""
    return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True)


def arrays_of(tensors: Sequence[Tensor]) -> list[NDArray[np.float32]]:
    """Tensors (rows, width) as float32 arrays on the CPU, by one copy.

    >>> [array.tolist() for array in arrays_of([torch.ones(1, 2), torch.zeros(2, 2)])]
    [[[1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]]
    """
    packed = torch.cat(list(tensors))
    host = packed.float().to("cpu", non_blocking=packed.is_cuda)  # such a copy from CUDA is pinned
    if packed.is_cuda:
        torch.cuda.current_stream(packed.device).synchronize()
    return np.split(np.asarray(host), np.cumsum([len(rows) for rows in tensors])[:-1])
