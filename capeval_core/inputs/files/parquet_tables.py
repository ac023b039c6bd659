"""Parquet: a table with columns of ids and texts; other columns are not read."""

from __future__ import annotations

from capeval_core.inputs.files.gathering import ID_FIELDS, Gatherer


def read_parquet(data: bytes, gatherer: Gatherer) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        columns = file.schema_arrow.names
        gatherer.require_columns(columns, "the columns are")
        wanted = [name for name in (*ID_FIELDS, *gatherer.fields) if name in columns]
        rows = (row for batch in file.iter_batches(columns=wanted) for row in batch.to_pylist())
        for i, row in enumerate(rows):
            gatherer.row(row, f"row {i}")
    except pa.ArrowException as error:
        gatherer.complain(f"is not Parquet ({' '.join(str(error).split())[:200]})")
