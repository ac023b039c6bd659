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

from capeval_core.inputs.samples import Samples, windows
from capeval_core.metric import CommonOptions, Evidence
from capeval_core.options import option
from capeval_core.registry import facts
from capeval_core.reports.evidence import BoxExplanation, box_notes
from capeval_core.result import Values
from capeval_core.rows import column, common_columns, nullable, row_schema
from capeval_core.scores.box_metrics import RegionMetric, RegionOptions, error_of
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

    @property
    def box_selection(self) -> Literal["bua10_100", "lxmert36"]:
        return self.selection


@facts("umic")
class Umic(RegionMetric):
    """UMIC: sigmoid of the ranking head of UNITER on a caption and the boxes of an image, no references."""

    default_regions = FASTER_RCNN_VG
    Options: ClassVar[type[CommonOptions]] = UmicOptions
    ROW = row_schema(column("logit", pa.float32(), "logit of the ranking head, null where the image failed"))

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        for window in windows(batch, CAPTIONS_AT_ONCE):
            boxes, sharing = self.boxes(window)
            # An image runs once with all its captions.
            images = [boxes[rows[0]] for rows in sharing]
            captions = []
            for rows in sharing:
                captions.append([window.captions[row] for row in rows])
            rankings = self.encoder.rank(images, captions, **self.run)
            logits = np.full(len(window), np.nan, dtype=np.float32)  # NaN stays where an image failed
            groups = [""] * len(window)
            errors: list[str | None] = [None] * len(window)
            for rows, ranking in zip(sharing, rankings, strict=True):
                logits[rows] = ranking.logits
                for row in rows:
                    errors[row] = error_of(ranking.error, boxes[rows[0]], boxes[row])
                    if ranking.key:  # else the image could not be read
                        groups[row] = boxes[row].content
            # Also of captions whose image failed: a text that is too long is too long with any image.
            truncated = np.array(self.encoder.tokenizer.encode(window.captions).truncated)
            common = common_columns(window, slice(None), groups=groups, errors=errors, truncated=truncated)
            yield pa.table({**common, "logit": nullable(logits)}, schema=self.ROW)

    def aggregate(self, rows: pa.Table) -> Values:
        # In float64: of a logit of 17 the score in float32 is 1, like that of any higher one.
        logit = rows["logit"].to_numpy().astype(np.float64)
        return Values(umic_score(logit), {"logit": logit})

    def evidence_of(self, samples: Samples, rows: pa.Table, parts: Mapping[str, Any]) -> Evidence:
        scores = self.aggregate(rows).scores
        boxes, _ = self.boxes(samples)  # again, and from the cache of features where there is one
        explained: Evidence = {}
        for row, content in super().evidence_of(samples, rows, parts).items():
            error = rows["error"][row].as_py()
            if error is None:
                content["boxes"] = box_notes(boxes[row].load())
            else:
                content["error"] = error
            image = samples.images[row]
            explained[row] = BoxExplanation(content, image, self.title, float(scores[row]))
        return explained
