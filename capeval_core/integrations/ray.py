"""Scores within your own pipelines: callables on batches, for `ray.data` and `datasets` alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from capeval_core.errors import wrong_option
from capeval_core.integrations.shards import BatchScorer
from capeval_core.integrations.shards.readers import check_columns, column_problems, find_columns


class CaptionScorer(BatchScorer):
    """A metric on batches of columns, for `ray.data`'s `map_batches` and `datasets`' `map`.

        ds.map_batches(CaptionScorer, fn_constructor_kwargs={"metric": "pacs"}, num_gpus=1,
                       compute=ray.data.ActorPoolStrategy(size=8), batch_size=1024)
        dataset.map(CaptionScorer("pacs"), batched=True, with_rank=True, num_proc=2)

    It adds `score` (NaN where there is none), `truncated` (token ids), `error` ('', or why there is no score)
    and, of a metric with components, `parts` (a dict each); no column has nulls. In `datasets` with
    `with_rank=True` process r takes the r-th GPU, and images are read as stored, not as its decoder turns
    them. The metric is opened at the first batch, in the process that scores.

    Args:
        metric: its name.
        columns: names of columns where they are not found by themselves: {"caption": "alt_text"}.
        **options: of the metric: `weights`, `batch_size`, `statistics`, ...; `media="video"`.

    >>> scorer = CaptionScorer("pacs", weights="tiny")
    >>> grey = np.full((2, 48, 48, 3), 128, dtype="uint8")
    >>> found = scorer({"image": grey, "caption": np.array(["a grey wall", ""])})
    >>> list(found), list(found["error"])
    (['image', 'caption', 'score', 'truncated', 'error', 'parts'], ['', 'caption is empty'])
    """

    def __init__(self, metric: str, *, columns: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(metric, **options)
        self._chosen = check_columns(columns)

    def __call__(self, batch: Mapping[str, Any], *rank: int | None) -> dict[str, Any]:
        """The columns that come out; `rank`: of this process, as `with_rank=True` passes it."""
        if rank and rank[0] is not None and self.options.device is None and torch.cuda.is_available():
            device = f"cuda:{rank[0] % torch.cuda.device_count()}"  # of its own for each process
            self.options = replace(self.options, device=device)
            self._metric = None
        names = find_columns([*batch], self.columns, self._chosen)
        if problems := column_problems(names, self._chosen, list(batch)):
            fix = 'pass columns={"caption": "..."}'
            raise wrong_option("batch", [*batch], f"has {'; '.join(problems)}", fix)
        rows = {role: _stored(batch, own[0]) for role, own in names.items()}
        counts = {role: len(values) for role, values in rows.items()}
        if len(set(counts.values())) > 1:
            raise wrong_option("batch", counts, "is not equally many of each", "give every row one of each")
        found = super().__call__(rows)
        added: dict[str, Any] = {
            "score": np.array(found["score"], dtype=float),
            "truncated": np.array(found["truncated"], dtype=np.int32),
            "error": np.array([error or "" for error in found["error"]], dtype=object),
        }
        kind = self.schema().field("parts").type
        if not pa.types.is_null(kind):
            missing: dict[str, Any] = {
                field.name: np.nan if pa.types.is_floating(field.type) else [] if field.type.num_fields else 0
                for field in kind
            }
            added["parts"] = np.array([parts or missing for parts in found["parts"]], dtype=object)
        return {**batch, **added} if isinstance(batch, dict) else added


def _stored(batch: Mapping[str, Any], name: str) -> list[Any]:
    """A column of a batch; images of `datasets` as {bytes, path}, since its decoder turns them by EXIF."""
    table = getattr(batch, "pa_table", None)
    if table is not None:
        return list(table[name].to_pylist())
    texts = [isinstance(value, np.ndarray) and value.dtype.kind in "OUS" for value in batch[name]]
    return [value.tolist() if text else value for value, text in zip(batch[name], texts, strict=True)]
