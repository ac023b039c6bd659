"""What a metric is, as class attributes: tables, cards and checks are made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import pyarrow as pa

from capeval_core.options import Options as CommonOptions
from capeval_core.result import Published
from capeval_core.statistics import CorpusFormula
from capeval_core.weights.catalogue import WeightsEntry

PUBLIC = (
    "name", "title", "key", "summary", "paper", "bibtex", "range", "higher_is_better", "needs_references",
    "media", "relative", "default_weights", "published", "Options", "ROW", "options", "models", "score",
    "check", "prepare", "with_statistics", "encode_all", "combine", "signature", "flush",
)  # fmt: skip
"""Names of a metric for those who score with it; the others are steps, for those who write one."""


class MetricFacts:
    """The facts of a metric. `dir(metric)` lists what is public."""

    name: ClassVar[str]
    title: ClassVar[str]
    key: ClassVar[str]
    """Name of the value in an `evaluate` result."""
    summary: ClassVar[str]
    paper: ClassVar[str]
    """Authors, title, venue and address."""
    bibtex: ClassVar[str] = ""
    """The paper's entry."""
    range: ClassVar[tuple[float, float]]
    higher_is_better: ClassVar[bool] = True
    needs_references: ClassVar[bool] = False
    media: ClassVar[tuple[str, ...]] = ("image",)
    """Kinds of visuals that captions are about: "image", "video", "boxes"; none for texts alone."""
    variant: ClassVar[str | None] = None
    """The medium that `load(name, media=...)` chooses this class by, where another class is the default."""
    crops: ClassVar[bool] = True
    """Whether it sees the square in an image's centre only."""
    part_titles: ClassVar[Mapping[str, str]] = {}
    """What papers call the parts of its scores, by their names in `Result.parts`, where it is another."""
    relative: ClassVar[str | None] = None
    """Why its scores can be compared within one set only; None if with those of other sets, too."""
    plots: ClassVar[bool] = False
    """Whether the evidence that `Result.explain` returns has a `plot()`."""
    default_weights: ClassVar[WeightsEntry | None] = None
    """None: the metric has no weights."""
    network: ClassVar[str | None] = None
    """Kind of the network that the option `weights` is for, one of `registry.NETWORKS`."""
    tiny: ClassVar[str | None] = None
    """Folder of the embedded small model that `weights="tiny"` means."""
    formula: ClassVar[CorpusFormula | None] = None
    """How its number comes from sums over captions (BLEU), its values' names in `evaluate` included; None:
    it is the mean of the scores."""
    reference_columns: ClassVar[tuple[str, ...]] = ()
    """List columns of `ROW` with one entry per reference, in their order. Where all that depends on
    references stands in them, the score with fewer references is another aggregation of the same rows."""
    corpus_texts: ClassVar[str] = "captions + references"
    """Which texts `corpus` gives, by these words; in messages."""
    Options: ClassVar[type[CommonOptions]] = CommonOptions
    ROW: ClassVar[pa.Schema]
    published: ClassVar[tuple[Published, ...]] = ()
    """Means that papers report for this metric, lowest first."""

    def __dir__(self) -> Iterable[str]:
        return [*PUBLIC, *(name for name in super().__dir__() if name.startswith("__"))]
