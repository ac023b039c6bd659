"""Metrics for captions of images and videos that give the published numbers.

```python
import capeval_core

metric = capeval_core.load("clips")
result = metric.score(captions=["a dog runs on grass"], images=["dog.jpg"])
result.mean, result.scores, result.signature
```
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from capeval_core._version import __version__

# Their types are in __init__.pyi.
__all__ = ["Result", "__version__", "list_metrics", "load", "module", "module_path"]

_MODULES = {
    "load": "capeval_core.registry",
    "list_metrics": "capeval_core.registry",
    "module": "capeval_core.integrations.evaluate_module",
    "module_path": "capeval_core.registry",
    "Result": "capeval_core.result",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that importing the package costs nothing.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
