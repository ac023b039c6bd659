"""How often a program waits for a device: reads of tensors by the host, counted on the CPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READS = ("cpu", "item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__")
"""Methods of a tensor that give the host its values."""
SHAPED_BY_VALUES = ("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal")
"""Operations whose output's size the host must know."""


class HostReads(TorchFunctionMode):
    """Counts of reads in this thread while it is open, by method or operation.

    A read of what lies on the host anyway is counted as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._operations = _Operations(self.counts)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS or (name == "to" and _to_cpu(args[1:], kwargs or {})):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))

    def __enter__(self) -> HostReads:
        self._operations.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._operations.__exit__(*error)


class _Operations(TorchDispatchMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        masks = name in ("index", "index_put", "index_put_") and any(
            isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            for index in args[1] or ()
        )
        if name in SHAPED_BY_VALUES or masks:
            self._counts[name] += 1
        return func(*args, **(kwargs or {}))


def _to_cpu(args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    wanted = [*args, keywords.get("device")]
    return any(isinstance(one, (str, torch.device)) and str(one).startswith("cpu") for one in wanted)
