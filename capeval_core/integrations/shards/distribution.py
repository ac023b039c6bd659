"""The distribution of the scores in a folder of outputs: exact quantiles, and a threshold for a share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import wrong_option
from capeval_core.integrations.shards.merging import outputs_in
from capeval_core.integrations.shards.outputs import read_batches, read_note

QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
BINS = 60
_DIGIT = 16  # bits of a score that one pass over all shards finds

Floats = NDArray[np.float64]
Scores = Callable[[], Iterator[Floats]]


@dataclass(frozen=True)
class ScoreHistogram:
    """How scores are distributed.

    scored, failed: rows with and without a score.
    mean: of the scores, NaN without any. least, most: their range.
    quantiles: the score below or at which so large a share of all lies: an actual score each, and exact.
    edges, counts: the bins of a histogram over their range, (bins + 1,) and (bins,).
    keep, threshold, kept: the share of the scored rows that is wanted, the score from which on rows are kept
        for it, and how many rows these are: more than wanted where several have that very score.
    """

    scored: int
    failed: int
    mean: float
    least: float
    most: float
    quantiles: Mapping[float, float]
    edges: Floats
    counts: NDArray[np.int64]
    keep: float | None = None
    threshold: float = math.nan
    kept: int = 0


def score_histogram(folder: str | PathLike[str], *, keep: float | None = None) -> ScoreHistogram:
    """The distribution of the scores of all shards in a folder.

    Memory does not grow with the rows: their scores are read six times.

    Args:
        folder: outputs of `score_shard`, a path or an address of fsspec.
        keep: a share between 0 and 1, of which the threshold is computed: keep rows with
            `score >= threshold` for the best 30% of all that have a score.

    Raises:
        ValueError: no outputs in the folder, one that is damaged, or a share out of its range.
    """
    if keep is not None and not (isinstance(keep, (int, float)) and 0 < keep <= 1):
        raise wrong_option("keep", keep, "", "expected a share above 0, at most 1, such as 0.3", verb="")
    outputs = outputs_in(folder)

    notes = [read_note(output) for output in outputs]

    def scores() -> Iterator[Floats]:
        for output in outputs:
            for batch in read_batches(output, ["score"]):
                yield batch.column("score").drop_null().to_numpy()

    failed = sum(note["failed"] for note in notes)
    return distribution(scores, failed=failed, keep=keep)


def distribution(scores: Scores, *, failed: int = 0, keep: float | None = None) -> ScoreHistogram:
    """The distribution of scores that come in parts, as often as they are asked for.

    >>> found = distribution(lambda: iter([np.array([0.1, 0.4]), np.array([0.2, 0.3])]), keep=0.5)
    >>> found.quantiles[0.5], found.threshold, found.kept
    (0.2, 0.3, 2)
    """
    scored, total, least, most = 0, 0.0, math.inf, -math.inf
    for part in scores():
        if len(part):
            scored, total = scored + len(part), total + float(part.sum())
            least, most = min(least, float(part.min())), max(most, float(part.max()))
    if not scored:
        none, nan = np.zeros(BINS, np.int64), dict.fromkeys(QUANTILES, math.nan)
        edges = np.linspace(0, 1, BINS + 1)
        return ScoreHistogram(0, failed, math.nan, math.nan, math.nan, nan, edges, none, keep)
    ranks = {share: max(1, math.ceil(share * scored)) for share in QUANTILES}
    best = None if keep is None else scored + 1 - max(1, round(keep * scored))
    values = order_statistics(scores, [*ranks.values(), *([] if best is None else [best])])
    threshold = math.nan if best is None else values[best]
    edges = np.histogram_bin_edges(np.array([least, most]), BINS)
    counts, kept = np.zeros(BINS, np.int64), 0
    for part in scores():
        counts += np.histogram(part, edges)[0]
        kept += int(np.count_nonzero(part >= threshold))
    quantiles = {share: values[rank] for share, rank in ranks.items()}
    mean = total / scored
    return ScoreHistogram(scored, failed, mean, least, most, quantiles, edges, counts, keep, threshold, kept)


def order_statistics(scores: Scores, ranks: Sequence[int]) -> dict[int, float]:
    """The scores of these ranks, 1 the lowest, in four passes and memory for some of them.

    Each pass finds 16 more bits of the scores, which order as whole numbers do once the sign is turned.

    >>> order_statistics(lambda: iter([np.array([0.5, -2.0]), np.array([3.0])]), [1, 2, 3])
    {1: -2.0, 2: 0.5, 3: 3.0}
    """
    wanted = {rank: (0, rank) for rank in ranks}  # the first bits, and the rank among scores that have them
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counts = {prefix: np.zeros(1 << _DIGIT, np.int64) for prefix, _ in wanted.values()}
        for part in scores():
            begin, digit = np.divmod(_ordered(part) >> np.uint64(shift), np.uint64(1 << _DIGIT))
            for prefix, count in counts.items():
                count += np.bincount(digit[begin == prefix].astype(np.int64), minlength=len(count))
        for rank, (prefix, remaining) in wanted.items():
            up_to = np.cumsum(counts[prefix])
            next_bits = int(np.searchsorted(up_to, remaining))
            below = int(up_to[next_bits - 1]) if next_bits else 0
            wanted[rank] = prefix << _DIGIT | next_bits, remaining - below
    return {rank: _score(bits) for rank, (bits, _) in wanted.items()}


_SIGN = np.uint64(1 << 63)


def _ordered(scores: Floats) -> NDArray[np.uint64]:
    """Whole numbers in the order of scores."""
    bits = scores.view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _score(ordered: int) -> float:
    bits = np.uint64(ordered)
    return float((bits ^ _SIGN if bits & _SIGN else ~bits).view(np.float64))
