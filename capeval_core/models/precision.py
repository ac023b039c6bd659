"""Numeric types of the encoders, and float32 that is really float32."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Switch off TF32, its CPU kin and autocast, which a program may have allowed for its training."""
    with ExitStack() as restored:
        for kind in {device.type, "cpu"}:
            if torch.is_autocast_enabled(kind):
                restored.enter_context(torch.autocast(kind, enabled=False))
        with _SWITCH:
            yield


class _Switch:
    """The process-wide switches: off while any thread computes, restored by the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._restore = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                newer = hasattr(torch.backends, "fp32_precision")
                self._restore.enter_context(_by_operation() if newer else _at_large())
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._restore.close()


_SWITCH = _Switch()


@contextmanager
def _by_operation() -> Iterator[None]:
    # Where a program has used these switches of torch 2.9, the older ones refuse even to be read.
    backends: Any = torch.backends  # whose stubs lack the newer places
    places = [backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv]
    found = [(place, place.fp32_precision) for place in places]
    changed = [(place, precision) for place, precision in found if precision not in ("none", "ieee")]
    for place, _ in changed:
        place.fp32_precision = "ieee"
    try:
        yield
    finally:
        for place, precision in changed:
            place.fp32_precision = precision


@contextmanager
def _at_large() -> Iterator[None]:
    precision = torch.get_float32_matmul_precision()
    convolution = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolution
