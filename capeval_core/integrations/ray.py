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

Batch = Any
"""Columns by name: a dict of arrays, an Arrow table, a DataFrame, or a lazy mapping of `datasets`."""


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

    def __call__(self, batch: Batch, *rank: int | None) -> Batch:
        """The batch with the columns of the output; `rank`: of this process, as `with_rank=True` passes."""
        # Ray shows each actor its own GPU only; `datasets` shows every process all of them.
        if rank and rank[0] is not None and self.options.device is None and torch.cuda.is_available():
            device = f"cuda:{rank[0] % torch.cuda.device_count()}"
            self.options = replace(self.options, device=device)
            self._metric = None
        present = _column_names(batch)
        columns = find_columns(present, self.columns, self._column_of)
        problems = column_problems(columns, self._column_of, present)
        if problems:
            raise wrong_option(
                "batch", present, f"has {'; '.join(problems)}", 'pass columns={"caption": "..."}'
            )
        rows = {}
        counts = {}
        for role, names in columns.items():
            rows[role] = _values(batch, names[0])
            counts[role] = len(rows[role])
        # NumPy's dict of columns holds anything, and a zip would drop the rows of the longer ones.
        if len(set(counts.values())) > 1:
            fix = "give every row one of each"
            raise wrong_option("batch", counts, "has columns of different lengths", fix)
        return self._with_scores(batch, self.score_batch(rows))

    def _with_scores(self, batch: Any, scored: Mapping[str, list[Any]]) -> Batch:
        """The batch in its own format, with the columns of the output, which have no nulls."""
        # No nulls: a block of nulls alone would have another type than the blocks that it is joined with.
        added: dict[str, Any] = {
            "score": np.array(scored["score"], dtype=float),
            "truncated": np.array(scored["truncated"], dtype=np.int32),
            "error": np.array(_without_none(scored["error"], ""), dtype=object),
        }
        kind = self.schema().field("parts").type
        if not pa.types.is_null(kind):
            missing = {field.name: _missing(field.type) for field in kind}
            added["parts"] = np.array(_without_none(scored["parts"], missing), dtype=object)
        if isinstance(batch, (pa.Table, pa.RecordBatch)):
            table = batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
            for name, values in added.items():
                # Stated: a batch whose lists are all empty would give a type of its own.
                column = pa.array(values, kind if name == "parts" else None)
                if name in table.column_names:  # of an earlier run
                    table = table.set_column(table.column_names.index(name), name, column)
                else:
                    table = table.append_column(name, column)
            return table
        if hasattr(batch, "assign"):  # a DataFrame of pandas
            columns = {name: list(values) for name, values in added.items()}
            return batch.assign(**columns)
        # `datasets` passes a lazy mapping, and joins the output with its columns.
        return {**batch, **added} if isinstance(batch, dict) else added


def _without_none(values: list[Any], replacement: object) -> list[Any]:
    """The values, with a replacement of None."""
    return [replacement if value is None else value for value in values]


def _missing(kind: pa.DataType) -> Any:
    """The value of a part of a row without a score."""
    if pa.types.is_floating(kind):
        return np.nan
    return [] if kind.num_fields else 0


def _column_names(batch: Batch) -> list[str]:
    """The names of columns of a batch; iteration over an Arrow table would give its columns."""
    names: Any = getattr(batch, "column_names", batch)
    return list(map(str, names))


def _values(batch: Batch, name: str) -> list[Any]:
    """A column of a batch; images of `datasets` as {bytes, path}, since its decoder turns them by EXIF."""
    table: Any = getattr(batch, "pa_table", batch)
    column = table[name]
    if hasattr(column, "to_pylist"):
        return list(column.to_pylist())
    values = []
    if hasattr(column, "isna"):  # of pandas, which has NaN or NA where a value is missing
        for value, is_missing in zip(column, column.isna(), strict=True):
            values.append(None if is_missing else value)
        return values
    for value in column:
        # A list of references is an array of objects or of texts; an array of numbers is an image.
        is_texts = isinstance(value, np.ndarray) and value.dtype.kind in "OUS"
        values.append(value.tolist() if is_texts else value)
    return values
