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
    them. The metric is opened at the first batch, in the process that scores. Batches of every format come
    back in theirs: dicts of arrays, Arrow tables, pandas DataFrames.

    Args:
        metric: its name.
        columns: names of columns where they are not found by themselves: {"caption": "alt_text"}.
        **options: of the metric: `weights`, `batch_size`, `statistics`, ...; `media="video"`.

    >>> scorer = CaptionScorer("pacs", weights="tiny")
    >>> grey = np.full((2, 48, 48, 3), 128, dtype="uint8")
    >>> scored = scorer({"image": grey, "caption": np.array(["a grey wall", ""])})
    >>> list(scored), list(scored["error"])
    (['image', 'caption', 'score', 'truncated', 'error', 'parts'], ['', 'caption is empty'])
    """

    def __init__(self, metric: str, *, columns: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init__(metric, **options)
        self._column_of = check_columns(columns)

    def __call__(self, batch: Any, *rank: int | None) -> Any:
        """The batch with the columns of the output; `rank`: of this process, as `with_rank=True` passes."""
        if rank and rank[0] is not None and self.options.device is None and torch.cuda.is_available():
            device = f"cuda:{rank[0] % torch.cuda.device_count()}"  # of its own for each process
            self.options = replace(self.options, device=device)
            self._metric = None
        present = _column_names(batch)
        columns = find_columns(present, self.columns, self._column_of)
        problems = column_problems(columns, self._column_of, present)
        if problems:
            raise wrong_option(
                "batch", present, f"has {'; '.join(problems)}", 'pass columns={"caption": "..."}'
            )
        rows = {role: _values(batch, names[0]) for role, names in columns.items()}
        counts = {role: len(values) for role, values in rows.items()}
        if len(set(counts.values())) > 1:
            fix = "give every row one of each"
            raise wrong_option("batch", counts, "has columns of different lengths", fix)
        return self._with_scores(batch, self.score_batch(rows))

    def _with_scores(self, batch: Any, scored: Mapping[str, list[Any]]) -> Any:
        """The batch in its own format, with the columns of the output, which have no nulls."""
        added: dict[str, Any] = {
            "score": np.array(scored["score"], dtype=float),
            "truncated": np.array(scored["truncated"], dtype=np.int32),
            "error": np.array([error or "" for error in scored["error"]], dtype=object),
        }
        kind = self.schema().field("parts").type
        if not pa.types.is_null(kind):
            missing = {field.name: _missing(field.type) for field in kind}
            added["parts"] = np.array([parts or missing for parts in scored["parts"]], dtype=object)
        if isinstance(batch, (pa.Table, pa.RecordBatch)):
            table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
            for name, values in added.items():
                column = pa.array(values, kind if name == "parts" else None)
                if name in table.column_names:
                    table = table.set_column(table.column_names.index(name), name, column)
                else:
                    table = table.append_column(name, column)
            return table
        if hasattr(batch, "assign"):  # a DataFrame of pandas
            return batch.assign(**{name: list(values) for name, values in added.items()})
        # `datasets` passes a lazy mapping, and joins the output with its columns.
        return {**batch, **added} if isinstance(batch, dict) else added


def _missing(kind: pa.DataType) -> Any:
    """The value of a part of a row without a score."""
    if pa.types.is_floating(kind):
        return np.nan
    return [] if kind.num_fields else 0


def _column_names(batch: Any) -> list[str]:
    """The names of columns of a batch; the rows of an Arrow table are not its names."""
    return [str(name) for name in getattr(batch, "column_names", batch)]


def _values(batch: Any, name: str) -> list[Any]:
    """A column of a batch; images of `datasets` as {bytes, path}, since its decoder turns them by EXIF."""
    table = getattr(batch, "pa_table", batch)
    column = table[name]
    if hasattr(column, "to_pylist"):
        return list(column.to_pylist())
    if hasattr(column, "isna"):  # of pandas, which has NaN or NA where a value is missing
        return [None if missing else value for value, missing in zip(column, column.isna(), strict=True)]
    texts = [isinstance(value, np.ndarray) and value.dtype.kind in "OUS" for value in column]
    return [value.tolist() if text else value for value, text in zip(column, texts, strict=True)]
