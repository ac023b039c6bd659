"""Examples of an evaluation: its worst, best and most changed captions, for the log of a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import Image

from capeval_core.inputs.images import ImageError
from capeval_core.reports.thumbnails import thumbnail

EXAMPLES = 4  # captions of each kind
_SIDE = 160  # pixels of a picture's longer side
COLUMNS = ("kind", "image", "caption", "score", "change", "caption before", "reference")


@dataclass(frozen=True)
class Example:
    """A caption with its score. change: of the score since the evaluation before; None without one."""

    kind: str  # worst, best or changed
    row: int
    caption: str
    score: float
    change: float | None = None
    caption_before: str = ""
    reference: str = ""
    picture: Image.Image | None = None

    def cells(self, image: object) -> list[Any]:
        """The values of `COLUMNS`; `image`: what shows the picture."""

        change = None if self.change is None else round(self.change, 4)
        return [
            self.kind,
            image,
            self.caption,
            round(self.score, 4),
            change,
            self.caption_before,
            self.reference,
        ]


def examples_of(
    scores: Sequence[float],
    captions: Sequence[str],
    picture: Callable[[int], Image.Image | None],
    *,
    higher_is_better: bool = True,
    references: Sequence[Sequence[str]] | None = None,
    scores_before: Sequence[float] | None = None,
    captions_before: Sequence[str] | None = None,
    count: int = EXAMPLES,
) -> list[Example]:
    """The worst, best and, where there are scores before, most changed captions of an evaluation.

    scores: one per caption, NaN where it failed. picture: a small picture of a row's image, or None. count:
    most captions of each kind; none is both worst and best.
    """
    finite = [row for row, score in enumerate(scores) if math.isfinite(score)]
    # Two sorts, so that of ties the first rows are shown at either end, as by `Result.worst` and `best`.
    worst_first = sorted(finite, key=scores.__getitem__, reverse=not higher_is_better)
    best_first = sorted(finite, key=scores.__getitem__, reverse=higher_is_better)
    # Of few captions the worst are at most one half, so that something is left to be the best.
    worst = worst_first[: min(count, len(finite) // 2)]
    best = [row for row in best_first if row not in worst]
    rows_of_kind = {"worst": worst, "best": best[:count]}
    changes: dict[int, float] = {}
    if scores_before is not None:
        for row in finite:
            if math.isfinite(scores_before[row]):
                changes[row] = scores[row] - scores_before[row]
        changed = [row for row, change in changes.items() if change]
        # By size without the sign: what became worse in a training is as telling as what became better.
        changed.sort(key=lambda row: -abs(changes[row]))
        rows_of_kind["changed"] = changed[:count]
    examples = []
    for kind, rows in rows_of_kind.items():
        for row in rows:
            caption_before = ""
            if captions_before is not None and row in changes:
                caption_before = captions_before[row]
            example = Example(
                kind,
                row,
                captions[row],
                scores[row],
                changes.get(row),
                caption_before,
                reference=references[row][0] if references is not None and references[row] else "",
                picture=picture(row),
            )
            examples.append(example)
    return examples


class Pictures:
    """Small pictures of visuals by their row, each made once."""

    def __init__(self, visual: Callable[[int], Any]) -> None:
        self._visual = visual
        self._pictures: dict[int, Image.Image | None] = {}

    def of(self, row: int) -> Image.Image | None:
        """The picture of a row; None of a text, of boxes, and where the file is gone."""
        if row not in self._pictures:
            # First None, so that a file that is gone is looked for once, and not in every evaluation.
            self._pictures[row] = None
            visual = self._visual(row)
            if visual.medium in ("image", "video"):
                with suppress(ImageError):
                    self._pictures[row] = thumbnail(visual.source, visual.medium, side=_SIDE)
        return self._pictures[row]
