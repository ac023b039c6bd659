"""A CUDA device without a GPU: tensors say that they are on `cuda:0`, and are computed on the CPU.

    with fake_cuda() as gpu:
        encoder = ClipEncoder.from_pretrained("tiny", device="cuda")
        features = encoder.encode_texts(["a dog"])
    gpu.waits        # what would make the host wait for the GPU, each with its line

Values are real, so that whole paths run, data-dependent ones too, and equal those of the CPU. Tensors of
both devices in one operation are an error, as they are on a GPU. What would copy between the two or make the
host wait is recorded. Kernels of CUDA alone (Triton) cannot run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from capeval_core.models import copies

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
_ROOT = Path(__file__).parents[2]
_READING = {
    "_local_scalar_dense", "item", "nonzero", "nonzero_numpy", "argwhere", "masked_select", "_unique",
    "_unique2", "unique_dim", "unique_consecutive", "bincount", "equal", "allclose", "is_nonzero", "nms",
    "tensor_split",
}  # fmt: skip
"""Operations whose result, or its size, the host must wait for."""
_COPYING = {"copy_", "_to_copy", "to"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_MIXING = _COPYING | _INDEXING
"""Operations that take tensors of both devices."""


@dataclass(frozen=True)
class Transfer:
    """A copy between host and device, or an operation that the host waits for.

    direction: "to device", "to host", or "" for an operation that gives the host a number or a size.
    where: the line of this project that asked for it. waits: whether the host waits for the device.
    """

    direction: str
    operation: str
    bytes: int
    where: str
    waits: bool


@dataclass
class FakeCuda:
    """What happened on the device. launches: number of operations on it."""

    transfers: list[Transfer] = field(default_factory=list)
    launches: int = 0

    @property
    def waits(self) -> list[str]:
        """Operation and line of everything that makes the host wait for the device."""
        return [f"{each.operation} at {each.where}" for each in self.transfers if each.waits]

    def clear(self) -> None:
        self.transfers.clear()
        self.launches = 0


class _OnDevice(torch.Tensor):
    """A tensor on the device. held: its values."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> _OnDevice:
        with torch.inference_mode(False):  # where a view of a parameter could not be made
            made: _OnDevice = torch.Tensor._make_wrapper_subclass(
                cls,
                held.size(),
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                layout=held.layout,
                device=CUDA,
            )
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.held} on {CUDA}"

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy: copy it to the host first")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def record_stream(self, stream: Any) -> None:
        """Nothing is freed while a stream uses it."""

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _active().run(operation, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Catches what makes tensors on the device; torch asks for no driver while one of this kind is there."""

    def __init__(self, device: _Device) -> None:
        super().__init__()
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self.device = device

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.device.run(operation, args, kwargs or {})


class _Device:
    """Runs operations on what tensors hold."""

    def __init__(self) -> None:
        self.record = FakeCuda()
        self.pinned: dict[int, torch.Tensor] = {}  # by the address of their memory, which they keep

    def run(self, operation: Any, args: Any, kwargs: Any) -> Any:
        name = operation._schema.name.split("::")[-1]
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        on_device = [each for each in tensors if isinstance(each, _OnDevice)]
        if name in ("pin_memory", "_pin_memory"):
            return self._pin(tensors[0].clone())
        if name == "is_pinned":
            return self._is_pinned(tensors[0])
        if on_device and name not in _MIXING and any(_on_host(each) and each.ndim for each in tensors):
            shapes = [f"{tuple(each.shape)} on {each.device}" for each in tensors]
            raise RuntimeError(f"{operation} got tensors of several devices: {', '.join(shapes)}")
        asked = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        if name in ("copy_", "to") and not asked:  # `to` also takes another tensor
            asked = [args[0].device if name == "copy_" else tensors[-1].device]
        to_device = asked[0].type == "cuda" if asked else bool(on_device)
        self.record.launches += bool(on_device or to_device)
        if name in _COPYING:
            self._note_copy(
                operation, args, kwargs, tensors[-1] if name == "copy_" else tensors[0], to_device
            )
        elif on_device:
            self._note_wait(name, operation, args, kwargs)
        result = _plain(operation, args, kwargs)
        if kwargs.get("pin_memory"):
            self._pin(result)
        given = {id(each.held): each for each in on_device}
        for each in on_device:
            if each.shape != each.held.shape or each.stride() != each.held.stride():
                raise NotImplementedError(f"{operation} changed the shape of its argument in place")
        host = {id(each) for each in tensors}

        def lifted(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            if id(leaf) in given:
                return given[id(leaf)]
            return _OnDevice(leaf.clone() if id(leaf) in host else leaf)

        return tree_map(lifted, result) if to_device else result

    def _pin(self, tensor: torch.Tensor) -> torch.Tensor:
        self.pinned[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return _on_host(tensor) and tensor.untyped_storage().data_ptr() in self.pinned

    def _note_copy(self, operation: Any, args: Any, kwargs: Any, source: Any, to_device: bool) -> None:
        """Note what goes from one device to the other, and whether it may do so later."""
        named = {part.name: value for part, value in zip(operation._schema.arguments, args, strict=False)}
        later = bool({**named, **kwargs}.get("non_blocking"))
        if to_device and _on_host(source) and source.ndim:
            self._add("to device", operation, source.nbytes, not (later and self._is_pinned(source)))
        elif not to_device and not _on_host(source):
            self._add("to host", operation, source.nbytes, not later)

    def _note_wait(self, name: str, operation: Any, args: Any, kwargs: Any) -> None:
        if name in _READING or (name == "where" and len(args) == 1):
            self._add("", operation, 0, True)
        elif name == "repeat_interleave":
            if kwargs.get("output_size") is None and any(
                isinstance(each, torch.Tensor) for each in args[-2:]
            ):
                self._add("", operation, 0, True)
        elif name in _INDEXING:
            for index in (each for each in args[1] if each is not None):
                if _on_host(index):
                    self._add("to device", operation, index.nbytes, True)
                if index.dtype in (torch.bool, torch.uint8):
                    self._add("", operation, 0, True)

    def _add(self, direction: str, operation: Any, size: int, waits: bool) -> None:
        self.record.transfers.append(Transfer(direction, str(operation), size, _line(), waits))


def _packed_attention(name: str, args: Any) -> tuple[torch.Tensor]:
    """What CUDA's kernels make of sequences one after another, which the CPU has no operation for."""
    flash = name == "_flash_attention_forward"
    query, keys, values = (part if flash else part[0] for part in args[:3])
    own, other = (offsets.tolist() for offsets in (args[3:5] if flash else args[4:6]))
    triangle = args[8] if flash else args[9]  # its corner is the last pair of a sequence
    attended = []
    for i in range(len(own) - 1):
        rows = query[own[i] : own[i + 1]], *(part[other[i] : other[i + 1]] for part in (keys, values))
        shape = len(rows[0]), len(rows[1])
        mask = torch.ones(shape, dtype=torch.bool).tril(shape[1] - shape[0]) if triangle else None
        heads_first = [part.transpose(0, 1) for part in rows]
        attended.append(functional.scaled_dot_product_attention(*heads_first, attn_mask=mask).transpose(0, 1))
    joined = torch.cat(attended)
    return (joined if flash else joined[None],)


def _plain(operation: Any, args: Any, kwargs: Any) -> Any:
    """The operation on the CPU."""

    def held(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return CPU
        return leaf.held if isinstance(leaf, _OnDevice) else leaf

    arguments, options = tree_map(held, args), tree_map(held, kwargs)
    options.pop("pin_memory", None)
    name = operation._schema.name.split("::")[-1]
    if name in ("_flash_attention_forward", "_efficient_attention_forward"):
        return _packed_attention(name, arguments)
    return operation(*arguments, **options)


def _on_host(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, _OnDevice)


def _line() -> str:
    frame = sys._getframe(2)
    other = ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_ROOT) and path != Path(__file__):
            found = f"{path.relative_to(_ROOT).as_posix()}:{frame.f_lineno}"
            if path.is_relative_to(_ROOT / "capeval_core"):
                return found
            other = other or found
        frame = frame.f_back  # type: ignore[assignment]
    return other


_DEVICES: list[_Device] = []


def _active() -> _Device:
    if not _DEVICES:
        raise RuntimeError("a tensor of fake_cuda() is used after it was closed")
    return _DEVICES[-1]


class _Stream:
    """A stream or an event: everything is done at once, so there is nothing to wait for."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = CUDA

    def __getattr__(self, name: str) -> Any:
        if name in ("wait_stream", "wait_event", "record", "wait"):
            return lambda *_, **__: None
        if name == "record_event":
            return lambda *_: _Stream()
        if name == "query":
            return lambda: True
        if name == "synchronize":
            return lambda: _active()._add("", f"{name} of a stream or event", 0, True)
        raise AttributeError(name)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """A CUDA device that this process takes for real while it is open, in all its threads."""
    device = _Device()
    run = threading.Thread.run

    def run_in_mode(thread: threading.Thread) -> None:
        with _Mode(device):
            run(thread)

    here: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda *_: "a CUDA device without a GPU",
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: SimpleNamespace(
            multi_processor_count=132, total_memory=80 << 30, major=9, minor=0
        ),
        "is_bf16_supported": lambda *_: True,
        "mem_get_info": lambda *_: (80 << 30, 80 << 30),
        "memory_allocated": lambda *_: 0,
        "synchronize": lambda *_: device._add("", "synchronize", 0, True),
        "empty_cache": lambda: None,
        "Stream": _Stream,
        "Event": _Stream,
        "current_stream": _Stream,
        "stream": lambda stream: nullcontext(stream),
        "device": lambda *_: nullcontext(),
    }
    # Without a GPU, a device guard that does nothing; and `torch.tensor` makes its copy by operations.
    torch._C._ensureCUDADeviceGuardSet()
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    with ExitStack() as stack:
        for name, value in here.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", lambda *_: None))
        stack.enter_context(mock.patch.object(threading.Thread, "run", run_in_mode))
        copies._stream.cache_clear()
        stack.callback(copies._stream.cache_clear)
        # A module that is moved gets new parameters, since values cannot be put into those of another kind.
        overwriting = torch.__future__.get_overwrite_module_params_on_conversion()
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwriting)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        _DEVICES.append(device)
        stack.callback(_DEVICES.remove, device)
        stack.callback(torch._C._set_only_lift_cpu_tensors, before)
        stack.enter_context(_Mode(device))
        yield device.record
