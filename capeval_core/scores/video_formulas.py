"""The formulas of PAC-S for videos: eq. 5 and 6 of its paper, section 3.2, over EMScore's matching."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capeval_core.matching.cosine import harmonic_mean
from capeval_core.ragged import Ragged

Doubles = NDArray[np.float64]


def fine_score(precision: Doubles, recall: Doubles, *, released: bool = False) -> Doubles:
    """Score_f, the F1 of words and frames, 2PR / (P + R); a negative mean counts as 0.

    Precision is the mean over the words of a caption of their best cosines over frames, weighted by idf, and
    recall the plain mean over frames of their best cosines over words. Against a reference text, recall is
    the mean over its words, weighted by their idf. All token ids count as words, start and end included.

    The released code divides signed means, so that its F leaves [0, 1] where they have opposite signs:
    `released=True`. Where it divides zero by zero, which gives NaN there, both give 0.

    >>> fine_score(np.array([0.5, -0.1]), np.array([0.25, 0.2])).round(3)
    array([0.333, 0.   ])
    >>> fine_score(np.array([0.5, -0.1]), np.array([0.25, 0.2]), released=True).round(3)
    array([ 0.333, -0.4  ])
    """
    if released:
        return harmonic_mean(precision, recall)
    return harmonic_mean(np.maximum(precision, 0), np.maximum(recall, 0))


def video_pac_score(coarse: Doubles, fine: Doubles) -> Doubles:
    """Eq. 5: Score(t, V) = (Score_c + Score_f) / 2, and likewise Score(t, r) of a reference.

    >>> video_pac_score(np.array([0.25]), np.array([0.75]))
    array([0.5])
    """
    return (coarse + fine) / 2


def video_ref_pac_score(score: Doubles, reference_score: Doubles) -> Doubles:
    """Eq. 6: the mean of Score(t, V) and max_r Score(t, r), the largest score of one reference.

    >>> video_ref_pac_score(np.array([0.5]), np.array([1.0]))
    array([0.75])
    """
    return (score + reference_score) / 2


@dataclass(frozen=True)
class Components:
    """What n pairs of a caption with a video, or with a reference, come to: (n,) each.

    coarse: Score_c, the cosine of caption and video, or reference, as a whole. precision, recall, fine: of
    words and frames, see `fine_score`.
    """

    coarse: Doubles
    precision: Doubles
    recall: Doubles
    fine: Doubles

    @property
    def score(self) -> Doubles:
        """Eq. 5."""
        return video_pac_score(self.coarse, self.fine)

    def best(self, counts: NDArray[np.int64]) -> Components:
        """Of `counts` consecutive references each, the one with the largest score."""
        scores = Ragged(self.score, counts)
        position = scores.argmax()
        undefined = np.isnan(scores.max())  # features of a reference are no numbers

        def chosen(values: Doubles) -> Doubles:
            return np.where(undefined, np.nan, values[position]) if len(counts) else values

        return Components(*map(chosen, (self.coarse, self.precision, self.recall, self.fine)))

    def largest(self, counts: NDArray[np.int64]) -> Components:
        """Of `counts` consecutive references each, the largest of every component by itself."""
        values = (self.coarse, self.precision, self.recall, self.fine)
        return Components(*(Ragged(each, counts).max() for each in values))

    def parts(self, prefix: str = "") -> dict[str, Doubles]:
        """The components by name."""
        return {f"{prefix}{name}": value for name, value in vars(self).items()}
