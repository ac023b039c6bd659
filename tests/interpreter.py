"""bfloat16 in Triton's interpreter, which keeps it as whole numbers of 16 bits.

It multiplies these, and cuts off what a GPU rounds. Here products are those of the numbers in float32, in
which a GPU adds them up, and a cast rounds to the nearest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch


@contextmanager
def right_bfloat16() -> Iterator[None]:
    """What runs inside computes with bfloat16 as a GPU does."""
    import triton.language as tl
    from triton.runtime import interpreter

    Builder, Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle  # noqa: N806
    dot, cast = Builder.create_dot, Builder.cast_impl

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

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Builder, "create_dot", right_dot)
        patch.setattr(Builder, "cast_impl", right_cast)
        yield
