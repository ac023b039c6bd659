"""Metrics for captions of images and videos that give the published numbers.

```python
import capeval_core

metric = capeval_core.load("clips")
result = metric.score(captions=["a dog runs on grass"], images=["dog.jpg"])
result.mean, result.scores, result.signature
```
"""

from __future__ import annotations

from capeval_core.project import __version__, lazy_names

# Their types are in __init__.pyi. Lazy, so that importing the package costs nothing.
__all__ = ["Note", "Result", "__version__", "fetch", "list_metrics", "load", "module", "module_path", "why"]

_HOMES = {
    "Note": "errors",
    "fetch": "judgements.fetching",
    "load": "registry",
    "list_metrics": "registry",
    "module": "integrations.evaluate_module",
    "module_path": "registry",
    "Result": "result",
    "why": "replay.why",
}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
