"""The only file of the tests that imports internals of the package: what moves is mended here.

Everything else in `tests/` uses the public modules and `tests.support`. At most 60 names.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from torch import Tensor

from capeval_core import registry
from capeval_core.limits import LIMITS
from capeval_core.weights.folder import config_checksum

__all__ = [
    "LIMITS",
    "config_checksum",
    "convert",
    "network",
    "shapes",
]

# networks


def network(
    kind: str,
    weights: Mapping[str, Any] | str | PathLike[str],
    tensors: Mapping[str, Tensor] | None = None,
    *,
    device: str | None = "cpu",
    dtype: str = "float32",
) -> Any:
    """A network: of a config and its tensors, or of `tiny`, a weights folder or a repository."""
    class_: Any = registry.network(kind)
    if isinstance(weights, Mapping):
        return class_(weights, tensors, device=device, dtype=dtype)
    return class_.from_pretrained(weights, device=device, dtype=dtype)


def convert(kind: str, path: str | PathLike[str], **settings: Any) -> Any:
    """An original checkpoint as `config`, `tensors` and `notes`."""
    return registry.network(kind).convert(path, **settings)


def shapes(kind: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """Name and shape of every tensor of a network, without memory."""
    return dict(registry.network(kind).empty(config).state_dict())
