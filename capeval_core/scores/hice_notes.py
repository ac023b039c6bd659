"""What an explanation of HICE-S notes of each phrase, region and reference."""

from __future__ import annotations

from typing import TypedDict


class PhraseNote(TypedDict):
    """A phrase of the caption.

    precision: w max(cos, 0) of the region that fits it best. region: which one that is among `regions`, None
    for the whole image. mistake: whether the precision is below the threshold. judged: whether it could be
    told; not where the precision is below the threshold and the image has regions outside of what the image
    tower sees, which the phrase may be about. What is not judged is no mistake.
    """

    phrase: str
    precision: float
    region: int | None
    mistake: bool
    judged: bool


class Verdict(TypedDict):
    """What a `PhraseNote` says of its phrase."""

    mistake: bool
    judged: bool


def verdict(precision: float, threshold: float, outside: int) -> Verdict:
    """The verdict on a phrase; `outside` is how many regions the image tower does not see.

    >>> verdict(0.1, 0.5, 0), verdict(0.1, 0.5, 11)
    ({'mistake': True, 'judged': True}, {'mistake': False, 'judged': False})
    """
    below = precision < threshold
    return {"mistake": below and not outside, "judged": not (below and outside)}


class RegionNote(TypedDict):
    """A region of the image.

    box: x0, y0, x1, y1 in pixels. area: its share of the image. recall: w max(cos, 0) of the phrase that
    fits it best. unmentioned: whether the recall is below the threshold.
    """

    box: list[float]
    area: float
    recall: float
    phrase: str
    unmentioned: bool


class ReferenceNote(TypedDict):
    """A reference: how well the caption as a whole (eq. 3) and its phrases (eq. 9) fit it.

    chosen: whether the score uses either.
    """

    reference: str
    gttc: float
    lttc: float
    chosen: bool
