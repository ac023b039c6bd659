"""Devices and numeric types of networks, and asynchronous copies.

On a CUDA device pixels go from pinned memory on a stream of their own, while earlier batches run, and what a
network gives comes back into pinned memory behind it. PyTorch gives pinned memory that was freed out again
only when the copies from and into it are done.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.errors import setting, warn, wrong_option

P = ParamSpec("P")
R = TypeVar("R")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str | None) -> torch.device:
    """The device that a user means: its name, or by default CUDA where there is a GPU, else the CPU. Of
    several GPUs the current one has its number: it may be another one later."""
    expected = "expected cpu, cuda, cuda:1, mps or xpu"
    backends: dict[str, Any] = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name is None else name)
    except RuntimeError as error:
        raise wrong_option("device", name, "is not a device", expected) from error
    if device.type not in ("cpu", *backends):
        raise wrong_option("device", name, "cannot run the encoders", expected)
    if device.type != "cpu" and not backends[device.type].is_available():
        problem = f"no {device.type.upper()} GPU can be used here"
        fix = setting("device", "cpu", "pass ")
        raise wrong_option("device", name, problem, fix, sentence=True)
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise wrong_option("device", name, f"CUDA GPUs here are 0 to {count - 1}", sentence=True)
    if device.type == "cuda" and device.index is None:  # nothing starts CUDA before a network does
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    return device


def has_bfloat16() -> bool:
    """Return whether the CPU multiplies matrices in bfloat16 itself (AVX-512, AMX), faster than float32."""
    cpu: Any = torch.cpu  # whose stubs lack these
    return bool(cpu._is_avx512_bf16_supported() or cpu._is_amx_tile_supported())


def warn_of_slow(device: str | None, dtype: str) -> None:
    """Warn of a type of 16 bits that this CPU only imitates."""
    is_fast = dtype == "float32" or (dtype == "bfloat16" and has_bfloat16())
    if is_fast or resolve_device(device).type != "cpu":
        return
    fix = setting("dtype", "float32", "pass ")
    warn(f"{dtype} takes several times as long as float32 on this CPU, which has no such arithmetic: {fix}")


def cuda_is_lost(name: str | None = None) -> bool:
    """Return whether an earlier error has made a GPU unusable for this process: all CUDA calls fail then."""
    cuda: Any = torch.cuda  # whose functions have no types
    if not cuda.is_initialized() or (name is not None and not name.startswith("cuda")):
        return False
    try:
        cuda.synchronize(name)
    except RuntimeError:
        return True
    return False


def triton_problem() -> str:
    """The reason why kernels in Triton cannot be used here; '' if they can be tried."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install triton (Linux only)"
    return ""


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Switch off TF32, its CPU kin and autocast, which a program may have allowed for its training. A GPU is
    the current one meanwhile: Triton's kernels run there, wherever their tensors are."""
    with ExitStack() as restored:
        if device.type == "cuda":
            restored.enter_context(torch.cuda.device(device))
        for kind in {device.type, "cpu"}:
            if torch.is_autocast_enabled(kind):
                restored.enter_context(torch.autocast(kind, enabled=False))
        with _SWITCHES:
            if not _INSIDE:
                _switch_off()
            _INSIDE.append(device)
        try:
            yield
        finally:
            with _SWITCHES:
                _INSIDE.pop()
                if not _INSIDE:
                    _RESTORED.close()


_SWITCHES = threading.Lock()  # which are the whole process's: off while any thread computes
_INSIDE: list[torch.device] = []
_RESTORED = ExitStack()


def _switch_off() -> None:
    backends: Any = torch.backends  # whose stubs lack the newer attributes
    if not hasattr(backends, "fp32_precision"):  # before torch 2.9
        _RESTORED.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        _RESTORED.callback(setattr, backends.cudnn, "allow_tf32", backends.cudnn.allow_tf32)
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = False
        return
    # Where a program has used these, the older switches refuse even to be read.
    for operation in (
        backends.cuda.matmul, backends.cudnn.conv, backends.mkldnn.matmul, backends.mkldnn.conv
    ):  # fmt: skip
        if (precision := operation.fp32_precision) not in ("none", "ieee"):
            _RESTORED.callback(setattr, operation, "fp32_precision", precision)
            operation.fp32_precision = "ieee"


def exact(method: Callable[P, R]) -> Callable[P, R]:
    """A method of a network that learns nothing, in exact float32 on `self.device`."""

    @wraps(method)
    def run(*arguments: P.args, **settings: P.kwargs) -> R:
        network: Any = arguments[0]  # the method's own `self`
        with torch.inference_mode(), exact_float32(network.device):
            return method(*arguments, **settings)

    return run


def kernels_agree(
    kernels: str, device: torch.device, dtype: torch.dtype, cases: Iterator[tuple[str, Tensor, Tensor]]
) -> bool:
    """Return whether kernels give what plain PyTorch gives; warns where they do not, or do not run at all.
    cases: what is tried, the kernels' result, PyTorch's; of numbers of about 1, as they are asked for."""
    bound = 1e-5 if dtype == torch.float32 else 0.02
    try:
        with torch.no_grad(), exact_float32(device):
            for name, ours, expected in cases:
                off = float((ours.double() - expected.double()).abs().max())
                if not off <= bound:  # nor if it is no number
                    reason = f"{name} is off by {off:.1e}"
                    break
            else:
                return True
    except torch.OutOfMemoryError:  # which says nothing about kernels
        raise
    except Exception as error:  # a compiler that is missing, a driver that is too old, in any words
        reason = f"{type(error).__name__}: {error}".split("\n", 1)[0]
    warn(f"{kernels} cannot be used on {device} in {dtype}, which is slower ({reason})")
    return False


# ---- copies between the host and a device


def on_device(values: Tensor | NDArray[Any] | Sequence[int], device: torch.device) -> Tensor:
    """Values of the host on a device; a copy to a GPU waits neither for what runs there nor to be done."""
    if not isinstance(values, Tensor):
        values = torch.as_tensor(values, device="cpu")
    if device.type == "cuda" and values.device.type == "cpu":
        values = values.pin_memory()
    return values.to(device, non_blocking=True)


def indices_on_device(device: torch.device, *numbers: Sequence[int] | NDArray[np.int64]) -> list[Tensor]:
    """Lists of whole numbers as int64 tensors, all by one copy."""
    lists = [np.asarray(array, dtype=np.int64) for array in numbers]
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in lists]
    return list(torch.split(rows_on_device(device, lists), [len(array) for array in lists]))


def rows_on_device(
    device: torch.device, arrays: Sequence[NDArray[Any]], dtype: torch.dtype | None = None
) -> Tensor:
    """Rows of arrays one after another; the host does not wait for a copy to CUDA."""
    shape = sum(len(array) for array in arrays), *arrays[0].shape[1:]
    host = _host_memory(shape, arrays[0].dtype, device)
    np.concatenate(arrays, out=host.numpy())
    return host.to(device, non_blocking=True).to(dtype or host.dtype)


def stacked_on_device(device: torch.device, arrays: Sequence[NDArray[Any]]) -> Tensor:
    """Arrays of one shape as one tensor (n, ...) on a device."""
    host = _host_memory((len(arrays), *arrays[0].shape), arrays[0].dtype, device)
    np.stack(arrays, out=host.numpy())
    if device.type != "cuda":
        return host.to(device)
    used = torch.cuda.current_stream(device)
    copies = _stream(device)
    with torch.cuda.stream(copies):
        stacked = host.to(device, non_blocking=True)
    used.wait_stream(copies)
    stacked.record_stream(used)  # else its memory could be given to the next copy while a network reads it
    return stacked


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
    def of(cls, values: object) -> Arriving:
        """Values that are there, may be on their way, or are a tensor, as in `to_host`."""
        if isinstance(values, Tensor):
            return to_host(values)
        return values if isinstance(values, Arriving) else cls(lambda: values)


def to_host(features: Tensor) -> Arriving:
    """Features on any device, of any dtype, as float32 on the host, once they are there."""
    if features.device.type != "cuda":
        arrived = on_host(features)
        return Arriving(lambda: arrived)
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
