"""The distribution of the scores of all shards, and the threshold that keeps a share of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from capeval_core.errors import wrong_option
from capeval_core.integrations.shards.outputs import numbers_on_disk, outputs_in, read_note

_QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_BINS = 60


@dataclass
class ScoreHistogram:
    """The distribution of scores; NaN where there are none.

    edges, counts: a histogram over the range. quantiles: the score below or at which so large a share of all
    lies, exactly. keep, threshold, kept: the share that is wanted, the score from which on rows are kept for
    it, and how many these are: more than wanted where several have that very score.
    """

    scored: int
    failed: int
    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    keep: float | None = None
    mean: float = math.nan
    least: float = math.nan
    most: float = math.nan
    quantiles: Mapping[float, float] = field(default_factory=lambda: dict.fromkeys(_QUANTILES, math.nan))
    threshold: float = math.nan
    kept: int = 0


def score_histogram(
    folder: str | PathLike[str], *, keep: float | None = None, part: str | None = None
) -> ScoreHistogram:
    """The distribution of the scores of all shards in a folder, partitioned on disk (8 bytes each).

    keep: a share between 0 and 1, such as 0.3: rows with `score >= threshold` are the best 30%. part: the
    name of a part of the scores, such as `cosine`, that is looked at instead.
    """

    def numbers(column: pa.Array) -> pa.Array:
        # A failed row has no place in an order of scores: a share is one of those with a score.
        return (column if part is None else part_of(column, part)).drop_null()

    if keep is not None and not (isinstance(keep, (int, float)) and 0 < keep <= 1):
        raise wrong_option("keep", keep, "", "expected a share above 0, at most 1, such as 0.3")
    outputs = outputs_in(folder)
    failed = 0
    for output in outputs:
        failed += read_note(output)["failed"]
    column = "score" if part is None else "parts"
    with numbers_on_disk(outputs, column, numbers, np.float64) as scores:
        counts, edges = np.histogram(scores, _BINS)
        histogram = ScoreHistogram(len(scores), failed, edges, counts, keep)
        if len(scores):
            _add_quantiles(histogram, scores, keep)
    return histogram


def _add_quantiles(histogram: ScoreHistogram, scores: NDArray[np.float64], keep: float | None) -> None:
    """Fill in what depends on the order of scores, which are partitioned in place."""
    last = len(scores) - 1
    # Ranks and no interpolation (`inverted_cdf`): a quantile is the score of a row.
    rank_of = {share: max(1, math.ceil(share * len(scores))) - 1 for share in _QUANTILES}
    # At least one row, however small the share: no row at all is no answer to which ones are best.
    best = len(scores) - max(1, round((keep or 1) * len(scores)))
    # Partitioned at these ranks and not sorted, which takes fewer passes over the file on disk.
    scores.partition(sorted({0, *rank_of.values(), best, last}))
    histogram.mean = float(scores.mean())
    histogram.least = float(scores[0])
    histogram.most = float(scores[last])
    histogram.quantiles = {share: float(scores[rank]) for share, rank in rank_of.items()}
    if keep is not None:
        histogram.threshold = float(scores[best])
        # Rows with the very score of the last one are kept, too: nothing tells which of them to leave out.
        # `np.histogram` counts block by block, without a mask as long as all scores.
        histogram.kept = int(np.histogram(scores, [histogram.threshold, histogram.most])[0][0])


def part_of(parts: pa.Array, part: str) -> pa.Array:
    """A part of scores, of their column `parts`. Raises ValueError where there is no such part."""
    part_names = [field.name for field in parts.type] if pa.types.is_struct(parts.type) else []
    if part not in part_names:
        fix = f"there are {', '.join(part_names)}" if part_names else "these scores have none: leave it out"
        raise wrong_option("part", part, "is not a part of these scores", fix)
    column = pc.struct_field(parts, part)
    # Lists of cosines, one for each reference, have no order.
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise wrong_option(
            "part", part, "is a list of numbers for each row", "choose a part that is a number"
        )
    return column
