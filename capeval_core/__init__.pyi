"""The public names as type checkers see them: `load` gives the class of the metric's name.

Options are checked when a metric is opened, all at once. Every other name is a metric of another package.
"""

from typing import Any, Literal, overload

from capeval_core.integrations.evaluate_module import module as module
from capeval_core.metric import CaptionMetric
from capeval_core.project import __version__ as __version__
from capeval_core.registry import list_metrics as list_metrics
from capeval_core.registry import module_path as module_path
from capeval_core.result import Result as Result
from capeval_core.scores.eco import Eco
from capeval_core.scores.hice import HiceS, RefHiceS
from capeval_core.scores.ngram import Bleu, Cider, CiderD, RougeL
from capeval_core.scores.pac import ClipS, PacS, RefClipS, RefPacS
from capeval_core.scores.umic import Umic
from capeval_core.scores.video import VideoPacS, VideoRefPacS
from capeval_core.scores.vilbert import VilbertScore

__all__ = ["Result", "__version__", "list_metrics", "load", "module", "module_path"]

_Image = Literal["image", None]

@overload
def load(name: Literal["pacs"], *, media: Literal["video"], **options: Any) -> VideoPacS: ...
@overload
def load(name: Literal["refpacs"], *, media: Literal["video"], **options: Any) -> VideoRefPacS: ...
@overload
def load(name: Literal["pacs"], *, media: _Image = None, **options: Any) -> PacS: ...
@overload
def load(name: Literal["refpacs"], *, media: _Image = None, **options: Any) -> RefPacS: ...
@overload
def load(name: Literal["clips"], **options: Any) -> ClipS: ...
@overload
def load(name: Literal["refclips"], **options: Any) -> RefClipS: ...
@overload
def load(name: Literal["hices"], **options: Any) -> HiceS: ...
@overload
def load(name: Literal["refhices"], **options: Any) -> RefHiceS: ...
@overload
def load(name: Literal["umic"], **options: Any) -> Umic: ...
@overload
def load(name: Literal["vilbertscore"], **options: Any) -> VilbertScore: ...
@overload
def load(name: Literal["eco"], **options: Any) -> Eco: ...
@overload
def load(name: Literal["bleu"], **options: Any) -> Bleu: ...
@overload
def load(name: Literal["rougel"], **options: Any) -> RougeL: ...
@overload
def load(name: Literal["cider"], **options: Any) -> Cider: ...
@overload
def load(name: Literal["ciderd"], **options: Any) -> CiderD: ...
@overload
def load(name: str, **options: Any) -> CaptionMetric: ...
