"""UMIC: how well a caption fits an image, by a transformer over both that was tuned to rank captions.

Lee, Yoon, Dernoncourt, Bui, Jung: UMIC: An Unreferenced Metric for Image Captioning via Contrastive Learning,
ACL 2021, https://arxiv.org/abs/2106.14019
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.inputs.samples import Samples
from capeval_core.metric import Model
from capeval_core.options import Options as CommonOptions
from capeval_core.options import option
from capeval_core.regions.features import BoxVisual
from capeval_core.result import Values
from capeval_core.rows import column, common_columns, row_schema
from capeval_core.scores.box_source import FirstBoxes, check_selection
from capeval_core.scores.facts import facts
from capeval_core.scores.region_metric import (
    CAPTIONS_AT_ONCE,
    RegionMetric,
    RegionOptions,
    rows_by_image,
)
from capeval_core.weights.catalogue import FASTER_RCNN_VG

if TYPE_CHECKING:
    from capeval_core.encoders.uniter import UniterEncoder

Doubles = NDArray[np.float64]


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

    def check(self, metric: Any) -> None:
        super().check(metric)
        check_selection(self.regions, self.selection)


@dataclass(frozen=True)
class _Ranked:
    """A caption beside its image. group: content key of the image. The logit is NaN if there is an error."""

    logit: float
    group: str
    error: str | None


@facts("umic")
class Umic(RegionMetric):
    """UMIC: sigmoid of the ranking head of UNITER on a caption and the boxes of an image, no references."""

    default_regions = FASTER_RCNN_VG
    Options: ClassVar[type[CommonOptions]] = UmicOptions
    ROW = row_schema(
        column("logit", pa.float32(), "logit of the ranking head, null where the image failed"),
    )

    options: UmicOptions

    def open_models(self) -> dict[str, Model]:
        options, folder = self.options, self.weights_folder()
        device: dict[str, Any] = {"device": options.device, "dtype": options.dtype}
        self.encoder: UniterEncoder = self.encoder_class().open(folder, **device)
        return {
            "weights": Model(folder.label(self.encoder.fingerprint), self.encoder.fingerprint),
            "regions": self.open_regions(folder, options.selection, device),
        }

    def encode(self, batch: Samples) -> Iterator[pa.Table]:
        for start in range(0, len(batch), CAPTIONS_AT_ONCE):
            window = batch[start : start + CAPTIONS_AT_ONCE]
            ranked = self._rank(window.captions, self.boxes(window))
            logits = np.array([caption.logit for caption in ranked], dtype=np.float32)
            common = common_columns(
                window,
                slice(None),
                groups=[caption.group for caption in ranked],
                errors=[caption.error for caption in ranked],
                truncated=np.array(self.encoder.tokenizer.encode(window.captions).truncated),
            )
            yield pa.table({**common, "logit": pa.array(logits, mask=np.isnan(logits))}, schema=self.ROW)

    def _rank(self, captions: Sequence[str], boxes: Sequence[BoxVisual | FirstBoxes]) -> list[_Ranked]:
        """Captions beside the boxes of their images, each image once with all its captions."""
        sharing = rows_by_image(boxes)
        rankings = self.encoder.rank(
            [boxes[rows[0]] for rows in sharing],
            [[captions[row] for row in rows] for rows in sharing],
            cache=self.cache,
            batch_size=self.options.batch_size,
        )
        ranked: dict[int, _Ranked] = {}
        for rows, ranking in zip(sharing, rankings, strict=True):
            for row, logit in zip(rows, ranking.logits.tolist(), strict=True):
                ranked[row] = _Ranked(logit, ranking.key and boxes[row].content, ranking.error)
            for row in rows[1:] if ranking.error else []:  # the error names the first of equal images
                (ranked[row],) = self._rank([captions[row]], [boxes[row]])
        return [ranked[row] for row in range(len(boxes))]

    def evidence_of(
        self, samples: Samples, rows: pa.Table, parts: Mapping[str, list[Any]]
    ) -> dict[int, dict[str, Any]]:
        from capeval_core.reports.explained import BoxExplanation, box_notes

        numbers = super().evidence_of(samples, rows, parts)
        errors = rows["error"].to_pylist()
        explained: dict[int, dict[str, Any]] = {}
        for row, visual in enumerate(self.boxes(samples)):
            found = {"error": errors[row]} if errors[row] is not None else {"boxes": box_notes(visual.load())}
            explained[row] = BoxExplanation(numbers[row] | found, samples.images[row])
        return explained

    def aggregate(self, rows: pa.Table) -> Values:
        logit = rows["logit"].to_numpy().astype(np.float64)
        return Values(umic_score(logit), {"logit": logit})
