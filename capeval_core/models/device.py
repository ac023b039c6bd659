"""Where networks run and in which numeric type, and float32 that is really float32."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from capeval_core.errors import did_you_mean, setting, wrong_option

P = ParamSpec("P")
R = TypeVar("R")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str | None) -> torch.device:
    """The device that a user means: its name, or by default CUDA where there is a GPU, else the CPU.

    Raises:
        ValueError: unknown name, or a device that this machine does not have.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        meant = "cuda" if name.lower().startswith("gpu") else name
        hint = did_you_mean(meant, ["cpu", "cuda", "cuda:0", "mps", "xpu"])
        fix = "" if hint else "use cpu, cuda, cuda:1, mps or xpu"
        raise wrong_option("device", name, f"not a device{hint}", fix) from error
    on_cpu = setting("device", "cpu", "pass ")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise wrong_option("device", name, "no CUDA GPU can be used here", on_cpu, verb="")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise wrong_option("device", name, f"CUDA GPUs here are 0 to {count - 1}", verb="")
    for kind, maker, backend in (("mps", "Apple", torch.backends.mps), ("xpu", "Intel", torch.xpu)):
        if device.type == kind and not backend.is_available():
            raise wrong_option("device", name, f"this machine has no {maker} GPU", on_cpu, verb="")
    if device.type not in ("cpu", "cuda", "mps", "xpu"):
        raise wrong_option("device", name, "the encoders", "use cpu, cuda, mps or xpu", verb="cannot run")
    return device


def numbered_device(name: str | None) -> torch.device:
    """The device to put a network on now: as `resolve_device`, and of several GPUs the current one by number.

    So one network is not opened twice as "cuda" and "cuda:0", and its inputs follow it where a program, or
    another thread, has another current GPU later.

    Raises:
        ValueError: as for `resolve_device`.
    """
    device = resolve_device(name)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def cuda_is_lost(name: str | None = None) -> bool:
    """Whether an earlier error has made a GPU unusable for this process: no CUDA call succeeds any more."""
    cuda: Any = torch.cuda  # whose functions have no types
    if not cuda.is_initialized() or (name is not None and not name.startswith("cuda")):
        return False
    try:
        cuda.synchronize(name)
    except RuntimeError:
        return True
    return False


def triton_version() -> tuple[int, int] | None:
    """Major and minor version of the Triton that is installed, None without one.

    >>> version = triton_version()
    >>> version is None or version >= (2, 0)
    True
    """
    if importlib.util.find_spec("triton") is None:
        return None
    import triton

    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Switch off TF32, its CPU kin and autocast, which a program may have allowed for its training.

    A GPU is the current one meanwhile: Triton's kernels run there, wherever their tensors are.
    """
    with ExitStack() as restored:
        if device.type == "cuda":
            restored.enter_context(torch.cuda.device(device))
        for kind in {device.type, "cpu"}:
            if torch.is_autocast_enabled(kind):
                restored.enter_context(torch.autocast(kind, enabled=False))
        with _SWITCH:
            yield


def exact(method: Callable[P, R]) -> Callable[P, R]:
    """A method of a network that learns nothing, in exact float32 on `self.device`."""

    @wraps(method)
    def run(*given: P.args, **named: P.kwargs) -> R:
        network: Any = given[0]
        with torch.inference_mode(), exact_float32(network.device):
            return method(*given, **named)

    return run


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
    backends: Any = torch.backends  # whose stubs lack the newer attributes
    operations = [backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv]
    precisions = [(operation, operation.fp32_precision) for operation in operations]
    changed = [(operation, value) for operation, value in precisions if value not in ("none", "ieee")]
    for operation, _ in changed:
        operation.fp32_precision = "ieee"
    try:
        yield
    finally:
        for operation, value in changed:
            operation.fp32_precision = value


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
