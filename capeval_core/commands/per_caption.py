"""The file of `capeval score --per-caption`: a row per caption, a column per metric and part."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.commands import common
from capeval_core.reports.tables import System
from capeval_core.result import plain

_FLAG = "--per-caption"


def check(path: Path | None) -> None:
    """Refuse a file whose name does not say in which form it is to be written."""
    if path is not None and path.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"{_FLAG} {path}: name a .csv or a .parquet file")


def write(path: Path | None, systems: Sequence[System], group_by: str | None = None) -> None:
    """Write the file, if there is one; group_by: the column for the labels of captions, if they have some.

    A score has the metric's key, a part `METRIC.PART`; a caption without a score has none, and its `error`.
    """
    if path is None:
        return
    tables = []
    for system in systems:
        columns: dict[str, Any] = {}
        if len(systems) > 1:
            columns["system"] = [system.name] * len(system.ids)
        columns["id"] = list(system.ids)
        columns["caption"] = list(system.captions)
        # A column of labels that is called `id` or `caption` is in the file already.
        if system.labels is not None and group_by is not None and group_by not in columns:
            columns[group_by] = list(system.labels)
        reasons: dict[int, list[str]] = {}
        for name, cell in system.cells.items():
            result = cell.result
            columns[result.key] = _finite(result.scores)
            for part, values in result.parts.items():
                columns[f"{name}.{part}"] = plain(values)
            for index, reason in result.errors.items():
                reasons_of_caption = reasons.setdefault(index, [])
                # Metrics that share an encoder fail for one reason, which is said once.
                if reason not in reasons_of_caption:
                    reasons_of_caption.append(reason)
        errors: list[str | None] = [None] * len(system.ids)
        for index, reasons_of_caption in reasons.items():
            errors[index] = "; ".join(reasons_of_caption)
        # The type is stated, as a column without any error would have the type null.
        columns["error"] = pa.array(errors, pa.string())
        tables.append(pa.table(columns))
    # Permissive: a part that is null for all captions of one system has a type in another's table.
    table = pa.concat_tables(tables, promote_options="permissive")
    common.write(_FLAG, path, _csv(table) if path.suffix.lower() == ".csv" else _parquet(table))


def _finite(scores: Sequence[float]) -> list[float | None]:
    """Scores with None for NaN, which CSV and JSON have no word for."""
    return [score if math.isfinite(score) else None for score in scores]


def _parquet(table: pa.Table) -> bytes:
    content = io.BytesIO()
    pq.write_table(table, content)
    return content.getvalue()


def _csv(table: pa.Table) -> str:
    """CSV in which a list is JSON, and what is missing an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.column_names)
    columns = []
    for column in table.columns:
        values = column.to_pylist()
        if pa.types.is_nested(column.type):
            values = [None if value is None else json.dumps(value) for value in values]
        columns.append(values)
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()
