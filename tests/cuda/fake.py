"""A CUDA device without a GPU: tensors say that they are on `cuda:0`, and are computed on the CPU.

    with fake_cuda():
        encoder = ClipEncoder.from_pretrained("tiny", device="cuda")
        features = encoder.encode_texts(["a dog"])

Values are real, so that whole paths run, and equal those of the CPU. Tensors of both devices in one operation
are an error, as they are on a GPU. Kernels of CUDA alone (Triton) cannot run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.support.seams import copy_stream

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
_MIXING = {"copy_", "_to_copy", "to", "index", "index_put", "index_put_", "_index_put_impl_"}
"""Operations that take tensors of both devices."""


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
        return _run(operation, args, kwargs or {})


class _Mode(TorchDispatchMode):
    """Catches what makes tensors on the device; torch asks for no driver while one of this kind is there."""

    def __init__(self) -> None:
        super().__init__()
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, args, kwargs or {})


def _run(operation: Any, args: Any, kwargs: Any) -> Any:
    """An operation on what tensors hold."""
    name = operation._schema.name.split("::")[-1]
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    on_device = [each for each in tensors if isinstance(each, _OnDevice)]
    if name in ("pin_memory", "_pin_memory"):
        return tensors[0].clone()
    if name == "is_pinned":
        return False
    if on_device and name not in _MIXING and any(_on_host(each) and each.ndim for each in tensors):
        shapes = [f"{tuple(each.shape)} on {each.device}" for each in tensors]
        raise RuntimeError(f"{operation} got tensors of several devices: {', '.join(shapes)}")
    asked = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
    if name in ("copy_", "to") and not asked:  # `to` also takes another tensor
        asked = [args[0].device if name == "copy_" else tensors[-1].device]
    to_device = asked[0].type == "cuda" if asked else bool(on_device)
    result = _plain(operation, args, kwargs)
    given = {id(each.held): each for each in on_device}
    host = {id(each) for each in tensors}

    def lifted(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) in given:
            return given[id(leaf)]
        return _OnDevice(leaf.clone() if id(leaf) in host else leaf)

    return tree_map(lifted, result) if to_device else result


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


class _Stream:
    """A stream or an event: everything is done at once, so there is nothing to wait for."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = CUDA

    def __getattr__(self, name: str) -> Any:
        if name in ("wait_stream", "wait_event", "record", "wait", "synchronize"):
            return lambda *_, **__: None
        if name == "record_event":
            return lambda *_: _Stream()
        if name == "query":
            return lambda: True
        raise AttributeError(name)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None: ...


@contextmanager
def fake_cuda() -> Iterator[None]:
    """A CUDA device that this process takes for real while it is open, in all its threads."""
    run = threading.Thread.run

    def run_in_mode(thread: threading.Thread) -> None:
        with _Mode():
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
        "synchronize": lambda *_: None,
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
        copy_stream.cache_clear()
        stack.callback(copy_stream.cache_clear)
        # A module that is moved gets new parameters, since values cannot be put into those of another kind.
        overwriting = torch.__future__.get_overwrite_module_params_on_conversion()
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwriting)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, before)
        stack.enter_context(_Mode())
        yield
