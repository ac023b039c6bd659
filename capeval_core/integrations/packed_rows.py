"""Rows of a metric as bytes, for frameworks that gather states of processes by concatenation or by pickle."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from capeval_core.metric import CaptionMetric
from capeval_core.result import Result


def pack_rows(rows: pa.Table) -> bytes:
    """Rows as an Arrow stream. Streams may stand behind each other.

    >>> table = pa.table({"index": [0, 1]})
    >>> [part.num_rows for part in unpack_rows(pack_rows(table) + pack_rows(table[:1]))]
    [2, 1]
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema.remove_metadata()) as stream:
        stream.write_table(rows)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack_rows(packed: bytes) -> list[pa.Table]:
    """The tables of all streams, in their order."""
    source, tables = pa.BufferReader(packed), []
    while source.tell() < source.size():
        tables.append(pa.ipc.open_stream(source).read_all())
    return tables


def combine_tables(metric: CaptionMetric, tables: Iterable[pa.Table]) -> Result:
    """The result of tables whose rows follow each other, whatever indices they had where they were made."""
    rows = pa.concat_tables(table.cast(metric.ROW) for table in tables)
    return metric.combine(rows.set_column(0, metric.ROW.field(0), pa.array(range(len(rows)), pa.int64())))
