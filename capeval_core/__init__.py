"""Metrics for captions of images and videos that give the published numbers.

```python
import capeval_core

metric = capeval_core.load("clips")
result = metric.score(captions=["a dog runs on grass"], images=["dog.jpg"])
result.mean, result.scores, result.signature
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capeval_core.project import __version__, lazy_names

if TYPE_CHECKING:
    from os import PathLike
    from typing import Any, Literal, overload

    import torch

    from capeval_core.errors import Note
    from capeval_core.integrations.evaluate_module import module
    from capeval_core.judgements.fetching import fetch
    from capeval_core.metric import CaptionMetric
    from capeval_core.registry import list_metrics, module_path
    from capeval_core.replay.why import why
    from capeval_core.result import Result
    from capeval_core.scores import box_metrics, chair, eco, hice, ngram, pac, specs, video

    _Weights = str | PathLike[str] | None
    _Device = str | torch.device | None

    # The class of each name. A metric checks its other options when it is opened.
    @overload
    def load(
        name: Literal["pacs", "refpacs"],
        *,
        media: Literal["video"],
        weights: _Weights = None,
        device: _Device = None,
        **options: Any,
    ) -> video.VideoPacS: ...
    @overload
    def load(
        name: Literal["pacs", "refpacs", "clips", "refclips"],
        *,
        media: Literal["image"] | None = None,
        weights: _Weights = None,
        device: _Device = None,
        **options: Any,
    ) -> pac.PacS: ...
    @overload
    def load(
        name: Literal["specs"], *, weights: _Weights = None, device: _Device = None, **options: Any
    ) -> specs.Specs: ...
    @overload
    def load(
        name: Literal["hices", "refhices"],
        *,
        weights: _Weights = None,
        device: _Device = None,
        **options: Any,
    ) -> hice.HiceS: ...
    @overload
    def load(
        name: Literal["umic", "vilbertscore"],
        *,
        weights: _Weights = None,
        device: _Device = None,
        **options: Any,
    ) -> box_metrics.RegionMetric: ...
    @overload
    def load(
        name: Literal["eco"], *, weights: _Weights = None, device: _Device = None, **options: Any
    ) -> eco.Eco: ...
    @overload
    def load(name: Literal["bleu", "rougel", "cider", "ciderd"], **options: Any) -> ngram.NgramMetric: ...
    @overload
    def load(name: Literal["chair"], **options: Any) -> chair.Chair: ...
    @overload
    def load(
        name: str,
        *,
        media: str | None = None,
        weights: _Weights = None,
        device: _Device = None,
        **options: Any,
    ) -> CaptionMetric: ...
    def load(name: str, **options: Any) -> Any: ...

else:  # imported where they are used, so that importing the package costs nothing
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

__all__ = ["Note", "Result", "__version__", "fetch", "list_metrics", "load", "module", "module_path", "why"]
