"""UMIC: how well a caption fits an image, by a transformer over both that was tuned to rank captions.

Lee, Yoon, Dernoncourt, Bui, Jung: UMIC: An Unreferenced Metric for Image Captioning via Contrastive Learning,
ACL 2021, https://arxiv.org/abs/2106.14019
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from capeval_core.inputs.samples import Samples, windows
from capeval_core.metric import CommonOptions, Evidence
from capeval_core.options import option
from capeval_core.regions.regions import Regions
from capeval_core.registry import facts
from capeval_core.reports.explanations import DrawnExplanation, confident
from capeval_core.reports.figures import draw_picture, outlined, score_lines
from capeval_core.result import Values
from capeval_core.rows import column, common_columns, nullable, row_schema
from capeval_core.scores.boxes import RegionMetric, RegionOptions, check_selection, error_of
from capeval_core.weights.catalogue import FASTER_RCNN_VG

Doubles = NDArray[np.float64]
CAPTIONS_AT_ONCE = 256
"""Captions whose images' box features are held together, which bounds memory."""


def umic_score(logit: Doubles) -> Doubles:
    """S(I, X) = sigmoid(W i_[CLS] + b), in (0, 1), of ranking logits of any shape.

    >>> umic_score(np.array([0.0, np.log(3)]))
    array([0.5 , 0.75])
    """
    with np.errstate(over="ignore", under="ignore"):  # of a logit so low that the score is 0
        return np.asarray(1 / (1 + np.exp(-logit)))


@dataclass(frozen=True, kw_only=True)
class UmicOptions(RegionOptions):
    """Options of UMIC."""

    selection: Literal["bua10_100", "lxmert36"] = option(
        "bua10_100",
        "boxes of an image: those more confident than 0.2, 10 to 100 of them, as UMIC was trained with, or "
        "LXMERT's 36",
        sign="selection",
        encodes=True,
    )


@facts("umic")
class Umic(RegionMetric):
    """UMIC: sigmoid of the ranking head of UNITER on a caption and the boxes of an image, no references."""

    default_regions = FASTER_RCNN_VG
    Options: ClassVar[type[CommonOptions]] = UmicOptions
    ROW = row_schema(column("logit", pa.float32(), "logit of the ranking head, null where the image failed"))

    @classmethod
    def check_options(cls, options: Any) -> None:
        super().check_options(options)
        check_selection(options.regions, options.selection)

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        for window in windows(batch, CAPTIONS_AT_ONCE):
            boxes, sharing = self.boxes(window)  # an image runs once with all its captions
            rankings = self.encoder.rank(
                [boxes[rows[0]] for rows in sharing],
                [[window.captions[row] for row in rows] for rows in sharing],
                **self.run,
            )
            logits = np.full(len(window), np.nan, dtype=np.float32)
            groups, errors = [""] * len(window), list[str | None]([None]) * len(window)
            for rows, ranking in zip(sharing, rankings, strict=True):
                logits[rows] = ranking.logits
                for row in rows:
                    groups[row] = ranking.key and boxes[row].content
                    errors[row] = error_of(ranking.error, boxes[rows[0]], boxes[row])
            truncated = np.array(self.encoder.tokenizer.encode(window.captions).truncated)
            common = common_columns(window, slice(None), groups=groups, errors=errors, truncated=truncated)
            yield pa.table({**common, "logit": nullable(logits)}, schema=self.ROW)

    def aggregate(self, rows: pa.Table) -> Values:
        logit = rows["logit"].to_numpy().astype(np.float64)
        return Values(umic_score(logit), {"logit": logit})

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        explained: Evidence = {}
        zipped = zip(self.boxes(samples)[0], samples.images, rows["error"].to_pylist(), strict=True)
        shown = super().evidence_of(samples, rows, parts)
        for row, (visual, image, error) in enumerate(zipped):
            found: dict[str, Any] = {"error": error}
            if error is None:
                own = visual.load()
                scores = [None] * len(own) if own.scores is None else own.scores.tolist()
                pairs = zip(own.boxes.tolist(), scores, strict=True)
                found = {"boxes": [{"box": box, "confidence": one} for box, one in pairs]}
            explained[row] = BoxExplanation(shown[row] | found, image)
        return explained


class BoxExplanation(DrawnExplanation):
    """The explanation of a score, by `result.explain(i)`: numbers and texts, and `plot()`, which draws them.

    Keys: `caption`, `image`; the parts of the score; `boxes`, a list of `{"box": [x0, y0, x1, y1],
    "confidence": ...}` in pixels, best first (confidence None where the features came without); and `error`,
    the reason where there is no score.
    """

    def __init__(self, content: Mapping[str, Any], visual: Any) -> None:
        super().__init__(content)
        self._visual = visual

    def plot(self, width: int = 880) -> Image.Image:
        """Score, caption and the image with the boxes that count; ValueError without an image."""
        self.check_drawable(width)
        score, logit = float(umic_score(self["logit"])), f"logit {self['logit']:.3f}"
        lines = score_lines("UMIC", score, logit, [(self["caption"], False)])
        return draw_picture(lines, self.overlay(1000), width)

    def overlay(self, width: int = 1280) -> Image.Image:
        """The image with its boxes outlined, but for those of which the detector is not sure."""
        self.check_drawable(width)
        if self._visual.medium != "image":
            raise ValueError(f"there are only box features of {self['image']}, and no image to draw")
        image = self._visual.load()
        scale = min(1.0, 2 * width / image.width)  # no finer than they are drawn
        size = (round(image.width * scale), max(1, round(image.height * scale)))
        image = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        masks = []
        for place in confident(self["boxes"]):
            mask, box = Image.new("1", image.size), self["boxes"][place]["box"]
            ImageDraw.Draw(mask).rectangle([side * scale for side in box], fill=1)
            masks.append(np.asarray(mask))
        regions = Regions.of(masks, size=(image.height, image.width))
        return outlined(image, regions, [False] * len(regions), width, (0, 0, *image.size))
