"""The formulas of HICE-S and RefHICE-S: from rows to the terms of the paper, equations 2 to 9."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.matching.cosine import harmonic_mean
from capeval_core.ragged import Integers, Ragged, inner, ranges, starts_of

Doubles = NDArray[np.float64]


def compatibility(cosine: Doubles, w: float = 1.0) -> Doubles:
    """w max(cos, 0), for global cosines (eq. 2, 3) and means of maxima (eq. 4, 5, 7, 8).

    The paper states neither: harmonic means need terms of at least 0, and its values (table 3, the threshold
    of 0.5 in figure 5) are those of cosines scaled by CLIP-S's w = 2.5.

    >>> compatibility(np.array([0.2, -0.1]), 2.5)
    array([0.5, 0. ])
    """
    return w * np.maximum(cosine, 0)


def image_text_terms(rows: pa.Table, w: float, include_whole_image: bool) -> dict[str, Doubles]:
    """gITC (eq. 2), precision (eq. 4), recall (eq. 5) and lITC (eq. 6) of each row; NaN where it failed.

    The whole image is a region where there is no other one, or where `include_whole_image` is set.
    """
    cosine = rows["cosine"].to_numpy().astype(np.float64)
    whole, best = Ragged.of(rows["phrase_cosines"]), Ragged.of(rows["phrase_maxima"])
    regions = Ragged.of(rows["region_maxima"])
    n = regions.lengths
    with_whole = (n == 0) | include_whole_image
    maxima = np.where((n == 0)[best.owner], whole.values, best.values)
    if include_whole_image:
        maxima = np.maximum(maxima, whole.values)
    p = compatibility(Ragged(maxima, best.lengths).mean(), w)
    r = compatibility((regions.sum() + np.where(with_whole, whole.max(), 0)) / (n + with_whole), w)
    terms = {"gitc": compatibility(cosine, w), "litc": harmonic_mean(p, r), "precision": p, "recall": r}
    return {name: np.where(np.isnan(cosine), np.nan, term) for name, term in terms.items()}


def text_text_terms(rows: pa.Table, reference_reduction: str) -> dict[str, Doubles]:
    """gTTC (eq. 3) and lTTC (eq. 9) of each row over its references, by the option `reference_reduction`."""
    gttc, lttc = reference_terms(rows)
    if reference_reduction == "best":
        return {"gttc": gttc.max(), "lttc": lttc.max()}
    if reference_reduction == "mean":
        return {"gttc": gttc.mean(), "lttc": lttc.mean()}
    if reference_reduction == "pooled":
        of_caption, of_references, counts = _phrase_maxima(rows)
        precision = compatibility(_best_of_all(of_caption, counts).mean())
        recall = compatibility(of_references.joined(counts).mean())
        return {"gttc": gttc.max(), "lttc": harmonic_mean(precision, recall)}
    chosen = joint(gttc, lttc).argmax()
    return {"gttc": gttc.values[chosen], "lttc": lttc.values[chosen]}


def reference_terms(rows: pa.Table) -> tuple[Ragged, Ragged]:
    """gTTC (eq. 3) and lTTC (eq. 7 to 9) of each reference of each row."""
    of_caption, of_references, counts = _phrase_maxima(rows)
    gttc = compatibility(Ragged.of(rows["reference_cosines"]).values)
    lttc = harmonic_mean(compatibility(of_caption.mean()), compatibility(of_references.mean()))
    return Ragged(gttc, counts), Ragged(lttc, counts)


def joint(gttc: Ragged, lttc: Ragged) -> Ragged:
    """hMean(gTTC, lTTC) of each reference, by which `reference_reduction="joint"` chooses."""
    return Ragged(harmonic_mean(gttc.values, lttc.values), gttc.lengths)


def _phrase_maxima(rows: pa.Table) -> tuple[Ragged, Ragged, Integers]:
    """Per reference the maxima of the caption's phrases and of its own; per row the number of references."""
    of_caption, counts = inner(rows["caption_phrase_maxima"])
    of_references, _ = inner(rows["reference_phrase_maxima"])
    return Ragged.of(of_caption), Ragged.of(of_references), counts


def _best_of_all(maxima: Ragged, counts: Integers) -> Ragged:
    """The best of each caption phrase over the references: `counts[i]` consecutive lists are of caption i."""
    lengths = maxima.lengths[starts_of(counts)]
    of_caption = np.repeat(starts_of(lengths), counts)  # where the phrases of each list's caption begin
    best = np.full(lengths.sum(), -np.inf)
    np.maximum.at(best, ranges(of_caption, maxima.lengths), maxima.values)
    return Ragged(best, lengths)
