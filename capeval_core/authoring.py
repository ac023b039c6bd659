"""Stable names for metrics in packages of their own; the CHANGELOG lists every change.

`greedy_match`, `ClipEncoder` and `ImageFeatures` bring torch, which takes seconds: use them as attributes of
this module (`authoring.greedy_match(...)`), then listing metrics stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.inputs.samples import Samples, windows
from capeval_core.matching.cosine import grouped_cosine, harmonic_mean, paired_cosine, unit
from capeval_core.metric import CaptionMetric, CorpusOptions, CorpusStatistics, Model
from capeval_core.metric import CommonOptions as Options
from capeval_core.options import option
from capeval_core.project import lazy_names
from capeval_core.ragged import Ragged
from capeval_core.result import Result, Values
from capeval_core.rows import Texts, column, common_columns, lists, nullable, row_schema
from capeval_core.scores.corpus import TokenIdf
from capeval_core.scores.pac import ClipS, ClipsOptions, PacOptions, PacS, RefClipS, RefPacS
from capeval_core.weights.catalogue import WeightsEntry

if TYPE_CHECKING:
    from capeval_core.encoders.clip import ClipEncoder
    from capeval_core.encoders.engine import ImageFeatures
    from capeval_core.matching.greedy import greedy_match

__all__ = [
    "CaptionMetric", "ClipEncoder", "ClipS", "ClipsOptions", "CorpusOptions", "CorpusStatistics",
    "ImageError", "ImageFeatures", "InputImage", "Model", "Options", "PacOptions", "PacS", "Ragged",
    "RefClipS", "RefPacS", "Result", "Samples", "Texts", "TokenIdf", "Values",
    "WeightsEntry", "column", "common_columns", "greedy_match", "grouped_cosine", "harmonic_mean", "lists",
    "nullable", "option", "paired_cosine", "row_schema", "unit", "windows",
]  # fmt: skip
_HEAVY = {
    "ClipEncoder": "encoders.clip",
    "ImageFeatures": "encoders.engine",
    "greedy_match": "matching.greedy",
}
__getattr__, __dir__ = lazy_names(__name__, _HEAVY)
