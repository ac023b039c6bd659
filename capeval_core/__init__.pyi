"""The public names as type checkers see them; a metric checks the options of its own when it is opened."""

from collections.abc import Callable
from os import PathLike
from typing import Any, Generic, Literal, ParamSpec, overload

import torch

from capeval_core.cache import FeatureCache
from capeval_core.errors import Note
from capeval_core.integrations.evaluate_module import module
from capeval_core.judgements.fetching import fetch
from capeval_core.metric import CaptionMetric
from capeval_core.project import __version__
from capeval_core.registry import list_metrics, module_path
from capeval_core.replay.why import why
from capeval_core.result import Result
from capeval_core.scores import boxes, eco, hice, ngram, pac, video

__all__ = ["Note", "Result", "__version__", "fetch", "list_metrics", "load", "module", "module_path", "why"]
_O = ParamSpec("_O")
_Pac = Literal["pacs", "refpacs", "clips", "refclips", "specs"]
_Boxes = Literal["umic", "vilbertscore"]
_Ngram = Literal["bleu", "rougel", "cider", "ciderd"]

class _Load(Generic[_O]):  # the class of the name's paper, with the options below
    def __init__(self, options: Callable[_O, Any]) -> None: ...
    @overload
    def __call__(self, name: _Pac, *, media: Literal["video"], **own: Any) -> video.VideoPacS: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, name: _Pac, *_: _O.args, **own: _O.kwargs) -> pac.PacS: ...
    @overload
    def __call__(self, name: Literal["hices", "refhices"], *_: _O.args, **own: _O.kwargs) -> hice.HiceS: ...
    @overload
    def __call__(self, name: _Boxes, *_: _O.args, **own: _O.kwargs) -> boxes.RegionMetric: ...
    @overload
    def __call__(self, name: Literal["eco"], *_: _O.args, **own: _O.kwargs) -> eco.Eco: ...
    @overload
    def __call__(self, name: _Ngram, *_: _O.args, **own: _O.kwargs) -> ngram.NgramMetric: ...
    @overload
    def __call__(self, name: str, *_: _O.args, **own: _O.kwargs) -> CaptionMetric: ...

@_Load
def load(
    *, media: Literal["image"] | None = None, fetch: bool = False, weights: str | PathLike[str] | None = None,
    device: str | torch.device | None = None, dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    batch_size: int | None = None, cache: str | PathLike[str] | FeatureCache | None = None,
    rows: str | PathLike[str] | None = None, on_error: Literal["raise", "nan"] = "raise",
    empty: Literal["error", "score"] = "error", compat: Literal["released"] | None = None,
    evidence: bool = False, **options: Any,
) -> Any: ...  # fmt: skip
