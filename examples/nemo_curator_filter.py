"""A filter stage for NeMo Curator: image rows below a score go, and the others keep it as a column.

    pipeline.add_stage(CaptionScoreFilterStage(metric="clips", weights="tiny", min_score=0.7))

The stage takes interleaved batches, as Curator's readers of WebDataset and Parquet make them: each image is
scored with every text of its sample, and its best score counts. A broken image has none; `error` says why.
"""

from dataclasses import dataclass
from typing import Any

import pandas as pd
from nemo_curator.stages.interleaved.stages import BaseInterleavedFilterStage

from capeval_core.integrations.ray import CaptionScorer


@dataclass
class CaptionScoreFilterStage(BaseInterleavedFilterStage):
    """`min_score`: images below it, or without a score, are left out; None: all stay, with their score."""

    metric: str = "clips"
    weights: str | None = None
    min_score: float | None = 0.7
    name: str = "caption_score_filter"

    def setup(self, worker_metadata: Any = None) -> None:
        self._scorer = CaptionScorer(self.metric, weights=self.weights)

    def content_keep_mask(self, task: Any, df: pd.DataFrame) -> pd.Series:
        is_image = df["modality"] == "image"
        is_text = df["modality"] == "text"
        texts = df[is_text].groupby("sample_id")["text_content"].apply(list)
        pairs = []
        for row, image in self.iter_materialized_bytes(task, df, is_image):
            for text in texts.get(df.loc[row, "sample_id"], [None]):
                pairs.append((row, image, text))
        df["score"] = float("nan")
        df["error"] = ""
        if pairs:
            scored = self._scorer(pd.DataFrame(pairs, columns=["row", "image", "caption"]))
            # The best score of an image comes last: rows without one come first.
            best = scored.sort_values("score", na_position="first").drop_duplicates("row", keep="last")
            df.loc[best["row"], ["score", "error"]] = best[["score", "error"]].to_numpy()
        if self.min_score is None:
            return pd.Series(True, index=df.index)
        return ~is_image | (df["score"].astype(float) >= self.min_score)
