"""The formulas of HICE-S and RefHICE-S, from rows to the terms of the paper: its equations 2 to 11."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.ragged import Integers, Ragged, inner

Doubles = NDArray[np.float64]


def harmonic_mean(*terms: Doubles) -> Doubles:
    """hMean of eq. 6 and 9 to 11, of terms of at least 0: 0 where one of them is 0, NaN where one is NaN.

    >>> harmonic_mean(np.array([0.6, 0.6, 0.6]), np.array([0.3, 0.0, np.nan]))
    array([0.4, 0. , nan])
    """
    stacked = np.stack(terms)
    positive = (stacked > 0).all(axis=0)
    inverse = (1 / np.where(positive, stacked, 1)).sum(axis=0)
    failed = np.isnan(stacked).any(axis=0)
    return np.where(failed, np.nan, np.where(positive, len(terms) / inverse, 0.0))


def compatibility(cosine: Doubles, w: float = 1.0) -> Doubles:
    """w max(cos, 0), for each global cosine (eq. 2, 3) and each mean of maxima (eq. 4, 5, 7, 8).

    The paper states neither: harmonic means need terms of at least 0, and its values (table 3, the threshold
    of 0.5 in figure 5) are those of cosines that CLIP-S's w = 2.5 has stretched.

    >>> compatibility(np.array([0.2, -0.1]), 2.5)
    array([0.5, 0. ])
    """
    return w * np.maximum(cosine, 0)


def image_text(rows: pa.Table, w: float, include_whole: bool) -> dict[str, Doubles]:
    """gITC (eq. 2), precision (eq. 4), recall (eq. 5) and lITC (eq. 6) of each row; NaN where it failed.

    The full-one mask serves gITC only, unless there is no region, or `include_whole` asks for it.
    """
    cosine = rows["cosine"].to_numpy().astype(np.float64)
    whole, best = Ragged.of(rows["phrase_cosines"]), Ragged.of(rows["phrase_maxima"])
    found = Ragged.of(rows["region_maxima"])
    n = found.lengths
    with_whole = (n == 0) | include_whole
    maxima = np.where((n == 0)[best.owner], whole.values, best.values)
    if include_whole:
        maxima = np.maximum(maxima, whole.values)
    recall = (found.sum() + np.where(with_whole, whole.max(), 0)) / (n + with_whole)
    p = compatibility(Ragged(maxima, best.lengths).mean(), w)
    r = compatibility(recall, w)
    terms = {"gitc": compatibility(cosine, w), "litc": harmonic_mean(p, r), "precision": p, "recall": r}
    return {name: np.where(np.isnan(cosine), np.nan, term) for name, term in terms.items()}


def text_text(rows: pa.Table, several: str) -> dict[str, Doubles]:
    """gTTC (eq. 3) and lTTC (eq. 9) over the references, as the option `several` says."""
    gttc, lttc = each_reference(rows)
    if several == "best":
        return {"gttc": gttc.max(), "lttc": lttc.max()}
    if several == "mean":
        return {"gttc": gttc.mean(), "lttc": lttc.mean()}
    if several == "pooled":
        said, meant, counts = _phrase_maxima(rows)
        precision = compatibility(_best_of_all(said, counts).mean())
        recall = compatibility(meant.joined(counts).mean())
        return {"gttc": gttc.max(), "lttc": harmonic_mean(precision, recall)}
    chosen = joint(gttc, lttc).argmax()
    return {"gttc": gttc.values[chosen], "lttc": lttc.values[chosen]}


def each_reference(rows: pa.Table) -> tuple[Ragged, Ragged]:
    """gTTC (eq. 3) and lTTC (eq. 7 to 9) of each reference of each row."""
    said, meant, counts = _phrase_maxima(rows)
    gttc = compatibility(Ragged.of(rows["reference_cosines"]).values)
    lttc = harmonic_mean(compatibility(said.mean()), compatibility(meant.mean()))
    return Ragged(gttc, counts), Ragged(lttc, counts)


def joint(gttc: Ragged, lttc: Ragged) -> Ragged:
    """hMean(gTTC, lTTC) of each reference, by which `several="joint"` chooses."""
    return Ragged(harmonic_mean(gttc.values, lttc.values), gttc.lengths)


def _phrase_maxima(rows: pa.Table) -> tuple[Ragged, Ragged, Integers]:
    """Per reference the maxima of the caption's phrases and of its own; references per caption."""
    of_caption, counts = inner(rows["caption_phrase_maxima"])
    of_reference, _ = inner(rows["reference_phrase_maxima"])
    return Ragged.of(of_caption), Ragged.of(of_reference), counts


def _best_of_all(maxima: Ragged, counts: Integers) -> Ragged:
    """Each phrase's best over several lists: `counts[i]` consecutive ones are of the phrases of caption i."""
    ends = np.cumsum(counts)
    lengths = maxima.lengths[ends - counts]
    starts = np.repeat(np.cumsum(lengths) - lengths, counts)
    within = np.arange(len(maxima.values)) - np.repeat(
        np.cumsum(maxima.lengths) - maxima.lengths, maxima.lengths
    )
    best = np.full(lengths.sum(), -np.inf)
    np.maximum.at(best, np.repeat(starts, maxima.lengths) + within, maxima.values)
    return Ragged(best, lengths)
