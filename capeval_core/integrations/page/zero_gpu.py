"""ZeroGPU, the shared GPUs of the Hub: a Space holds one for as long as a marked function runs.

https://huggingface.co/docs/hub/spaces-zerogpu
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., object])


def on_gpu(function: Function) -> Function:
    """The function, which holds a GPU while it runs where the package `spaces` is; else as it is.

    On ZeroGPU it runs in a forked process, and its arguments and what it returns are pickled. The package
    has to be imported before CUDA is touched, which is when this module is.
    """
    if find_spec("spaces") is None:
        return function
    import spaces

    return cast("Function", spaces.GPU(function))
