"""A filter operator for Data-Juicer: samples below a score go, and the others keep it as a column.

    dataset.process([CaptionScoreFilter(metric="clips", weights="tiny", min_score=0.7)])

Each image of a sample is scored with its text, and the best score counts; it is among the sample's stats, and
in `caption_score` of the result. A sample without a score goes, and `caption_error` says why.
"""

from typing import Any

import numpy as np
from data_juicer.ops.base_op import OPERATORS, Filter
from data_juicer.utils.constant import Fields
from data_juicer.utils.mm_utils import remove_special_tokens

from capeval_core.integrations.ray import CaptionScorer


@OPERATORS.register_module("caption_score_filter")
class CaptionScoreFilter(Filter):
    """Samples whose score is at least `min_score` stay; options are those of `capeval_core.load`."""

    _batched_op = True

    def __init__(self, metric: str = "clips", min_score: float = 0.7, weights: Any = None, **more: Any):
        super().__init__(**more)
        self.min_score = min_score
        self.scorer = CaptionScorer(metric, weights=weights)

    def compute_stats_batched(self, samples: dict[str, Any], rank: int | None = None) -> dict[str, Any]:
        batch: dict[str, list[Any]] = {"sample": [], "caption": [], "image": []}
        for sample, text in enumerate(samples[self.text_key]):
            for image in samples[self.image_key][sample] or [None]:
                batch["sample"].append(sample)
                batch["caption"].append(remove_special_tokens(text))
                batch["image"].append(image)
        scored = self.scorer(batch, rank)
        count = len(samples[self.text_key])
        scores = np.full(count, np.nan)
        errors = [""] * count
        for sample, score, error in zip(batch["sample"], scored["score"], scored["error"], strict=True):
            scores[sample] = np.fmax(scores[sample], score)
            errors[sample] = errors[sample] or error
        for stats, score in zip(samples[Fields.stats], scores.tolist(), strict=True):
            stats["caption_score"] = score
        return {**samples, "caption_score": scores.tolist(), "caption_error": errors}

    def process_batched(self, samples: dict[str, Any]) -> list[bool]:
        scores = [stats["caption_score"] for stats in samples[Fields.stats]]  # None where there is none
        return [score is not None and score >= self.min_score for score in scores]
