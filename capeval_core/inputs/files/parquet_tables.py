"""Parquet: a table with columns of ids and texts; other columns are not read."""

from __future__ import annotations

from capeval_core.inputs.files.gathering import ID_FIELDS, Gatherer
from capeval_core.inputs.problems import FileError


def read_parquet(data: bytes, gatherer: Gatherer) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        columns = file.schema_arrow.names
        gatherer.require_columns(columns, "the columns are")
        wanted = [name for name in (*ID_FIELDS, *gatherer.fields) if name in columns]
        rows = (row for batch in file.iter_batches(columns=wanted) for row in batch.to_pylist())
        for i, row in enumerate(rows):
            gatherer.row(row, f"row {i}")
    except FileError:
        raise
    except Exception as error:  # pyarrow raises whatever the damaged part trips over
        reason = " ".join(str(error).split())[:200]
        gatherer.complain(f"is not Parquet, or damaged ({reason}): write it again")
