"""Where networks run and in which numeric type: float32 that is really float32, kernels that are tried."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from capeval_core.errors import did_you_mean, setting, warn, wrong_option

P = ParamSpec("P")
R = TypeVar("R")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str | None) -> torch.device:
    """The device that a user means: its name, or by default CUDA where there is a GPU, else the CPU."""
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
    """As `resolve_device`, and of several GPUs the current one by number: it may be another one later."""
    device = resolve_device(name)
    numbered = device.type != "cuda" or device.index is not None
    return device if numbered else torch.device("cuda", torch.cuda.current_device())


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


def triton_problem() -> str:
    """Why kernels in Triton cannot be used here; '' if they can be tried."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install triton (Linux only)"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 4):  # of torch 2.8, the oldest that is tested
        return f"Triton {triton.__version__} is installed, whose kernels may be wrong: install at least 3.4"
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
    def run(*given: P.args, **named: P.kwargs) -> R:
        network: Any = given[0]
        with torch.inference_mode(), exact_float32(network.device):
            return method(*given, **named)

    return run


def kernels_agree(
    kernels: str, device: torch.device, dtype: torch.dtype, cases: Iterator[tuple[str, Tensor, Tensor]]
) -> bool:
    """Whether kernels give what plain PyTorch gives; warns where they do not, or do not run at all. cases:
    what is tried, the kernels' result, PyTorch's; of numbers of about 1, as they are asked for."""
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
