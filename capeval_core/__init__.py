"""Caption metrics that match the published ones, over one shared core.

import capeval_core
metric = capeval_core.load("pacs")
result = metric.score(captions=["a dog runs on grass"], images=["dog.jpg"])
result.mean, result.scores, result.signature, result.interval()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capeval_core._version import __version__

if TYPE_CHECKING:
    from capeval_core.registry import list_metrics, load
    from capeval_core.result import Result

__all__ = ["Result", "__version__", "list_metrics", "load"]

_HOMES = {
    "load": "capeval_core.registry",
    "list_metrics": "capeval_core.registry",
    "Result": "capeval_core.result",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that importing the package costs nothing.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
