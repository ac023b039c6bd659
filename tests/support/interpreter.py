"""Triton's interpreter, made more like a GPU.

It keeps bfloat16 as whole numbers of 16 bits, multiplies these, and cuts off what a GPU rounds. Here products
are those of the numbers in float32, in which a GPU adds them up, and a cast rounds to the nearest. And an
address outside of a kernel's tensors raises, rather than give what happens to be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch


@contextmanager
def like_a_gpu() -> Iterator[None]:
    """Kernels run inside compute with bfloat16 as a GPU does, and touch only what they were given."""
    import triton.language as tl
    from triton.runtime import interpreter

    Builder, Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle  # noqa: N806
    Executor = interpreter.GridExecutor  # noqa: N806
    dot, cast, load, store = (
        getattr(Builder, name)
        for name in ("create_dot", "cast_impl", "create_masked_load", "create_masked_store")
    )
    on_host, ranges = Executor._init_args_hst, list[tuple[int, int]]()

    def wide(values: Any) -> Any:
        if values.dtype.scalar != tl.bfloat16:
            return values
        return Handle((values.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def right_dot(self: Any, a: Any, b: Any, *more: Any) -> Any:
        return dot(self, wide(a), wide(b), *more)

    def right_cast(self: Any, values: Any, kind: Any) -> Any:
        if (values.dtype.scalar, kind.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, values, kind)
        rounded = torch.from_numpy(np.ascontiguousarray(values.data)).bfloat16().view(torch.uint16)
        return Handle(rounded.numpy().reshape(values.data.shape), tl.bfloat16)

    def noted(self: Any, given: Any, named: Any) -> Any:
        found = on_host(self, given, named)
        tensors = [getattr(each, "base", each) for each in (*found[0], *found[1].values())]
        storages = [each.untyped_storage() for each in tensors if isinstance(each, torch.Tensor)]
        ranges[:] = [(each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages]
        return found

    def check(places: Any, mask: Any) -> None:
        at = places.data[np.broadcast_to(mask.data, places.data.shape)].astype(np.int64)
        size = places.get_element_ty().primitive_bitwidth // 8
        inside = np.zeros(at.shape, bool)
        for start, end in ranges:
            inside |= (at >= start) & (at + size <= end)
        if not inside.all():
            raise IndexError(f"{(~inside).sum()} addresses are in no tensor of the kernel")

    def right_load(self: Any, places: Any, mask: Any, *more: Any) -> Any:
        check(places, mask)
        return load(self, places, mask, *more)

    def right_store(self: Any, places: Any, values: Any, mask: Any, *more: Any) -> Any:
        check(places, mask)
        return store(self, places, values, mask, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Builder, "create_dot", right_dot)
        patch.setattr(Builder, "cast_impl", right_cast)
        patch.setattr(Builder, "create_masked_load", right_load)
        patch.setattr(Builder, "create_masked_store", right_store)
        patch.setattr(Executor, "_init_args_hst", noted)
        yield
