"""Tables of pyarrow and openpyxl: Parquet, Arrow and Excel. The bytes of pictures in them are not read."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capeval_core.errors import FileError
from capeval_core.inputs.files import some_of
from capeval_core.inputs.images import short_reason
from capeval_core.inputs.records import Record, Records, TextSource

if TYPE_CHECKING:
    import pyarrow as pa


def is_parquet(data: bytes, name: str) -> bool:
    """Whether these bytes of a file of this name are Parquet."""
    return data.startswith(b"PAR1") or name.endswith((".parquet", ".pq"))


def is_arrow(data: bytes, name: str) -> bool:
    """Whether these bytes of a file of this name are an Arrow file or stream."""
    is_stream = name.endswith((".arrow", ".feather")) and data[:4] == b"\xff\xff\xff\xff"
    return data.startswith(b"ARROW1") or is_stream


def is_excel(data: bytes, name: str) -> bool:
    """Whether these bytes of a file of this name are a workbook of Excel."""
    is_workbook = name.endswith((".xlsx", ".xlsm")) or b"xl/workbook.xml" in data
    return data.startswith(b"PK\x03\x04") and is_workbook


def open_parquet(source: TextSource, data: bytes | Path, name: str) -> Records:
    """The rows of a Parquet file, or of its bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = pa.BufferReader(data) if isinstance(data, bytes) else data
    try:
        # A flipped bit in a page of texts is read without a word unless checksums are compared.
        file = pq.ParquetFile(place, page_checksum_verification=True)
        columns = file.schema_arrow.names
        source.check_names(columns)
        batches = file.iter_batches(columns=_readable_columns(file.schema_arrow))
        rows = _rows_of_batches(batches, columns)
    except FileError:
        raise
    except Exception as error:  # pyarrow raises whatever the damaged part trips over
        problem = f"is not Parquet, or damaged ({short_reason(error)})"
        raise source.error(problem, "write it again") from None
    return Records(source.path, "Parquet", rows, "row", range(len(rows)))


def open_arrow(source: TextSource, data: bytes, name: str) -> Records:
    """The rows of an Arrow file or stream."""
    import pyarrow as pa

    try:
        buffer = pa.BufferReader(data)
        file = pa.ipc.open_file(buffer) if data.startswith(b"ARROW1") else pa.ipc.open_stream(buffer)
        table = file.read_all()
        source.check_names(table.column_names)
        batches = table.select(_readable_columns(table.schema)).to_batches()
        rows = _rows_of_batches(batches, table.column_names)
    except FileError:
        raise
    except Exception as error:
        problem = f"is an Arrow file that cannot be read ({short_reason(error)})"
        fix = "write it with `datasets.load_from_disk(FOLDER).to_parquet(FILE)`"
        raise source.error(problem, fix) from None
    return Records(source.path, "Arrow", rows, "row", range(len(rows)))


def open_excel(source: TextSource, data: bytes, name: str) -> Records:
    """The rows of a workbook's only sheet; the first one is the header."""
    try:
        import openpyxl
    except ImportError:
        fix = "save it as CSV (UTF-8), or install the reader: pip install openpyxl"
        raise source.error("is an Excel workbook", fix) from None
    sheets: dict[str, list[Sequence[Any]]] = {}
    try:
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        for sheet in book:
            # Excel keeps rows whose cells were cleared, and older versions make three sheets.
            rows = [row for row in sheet.iter_rows(values_only=True) if not _is_blank(row)]
            if rows:
                sheets[sheet.title] = rows
    except Exception as error:  # whatever the damaged part makes the reader raise
        problem = f"is an Excel workbook that cannot be read ({short_reason(error)})"
        raise source.error(problem, "save it as CSV (UTF-8)") from None
    if len(sheets) > 1:
        problem = f"is an Excel workbook with several sheets ({some_of(sheets)})"
        raise source.error(problem, "save one as CSV (UTF-8)")
    if not sheets:
        raise source.error("is an Excel workbook without rows")
    header, *cells_of_rows = next(iter(sheets.values()))
    columns = ["" if cell is None else str(cell).strip() for cell in header]
    source.check_names(columns)
    records: list[Record] = []
    for cells in cells_of_rows:
        # Some programs write no empty cells at the end of a row.
        records.append(dict.fromkeys(columns) | dict(zip(columns, cells, strict=False)))
    return Records(source.path, "Excel", records, "row", range(len(records)), is_table=True)


def _is_blank(cells: Iterable[object]) -> bool:
    """Whether a row of a sheet holds nothing."""
    return all(cell is None or not str(cell).strip() for cell in cells)


# ---- columns of Arrow


def _readable_columns(schema: pa.Schema) -> list[str]:
    """The columns that are not the bytes of pictures."""
    return [name for name in schema.names if not _is_bytes(schema.field(name).type)]


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _rows_of_batches(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> list[Record]:
    """Rows of record batches, without the bytes of pictures; columns that are not read are None."""
    rows: list[Record] = []
    for batch in batches:
        values: dict[str, list[Any]] = {}
        for name in batch.schema.names:
            values[name] = _without_bytes(batch.column(name)).to_pylist()
        for index in range(batch.num_rows):
            row: Record = dict.fromkeys(columns)  # in the order of the file, which messages list
            for name, column in values.items():
                row[name] = column[index]
            rows.append(row)
    return rows


def _without_bytes(array: pa.Array) -> pa.Array:
    """The array without binary fields: of a picture `{bytes, path}` only its path."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Here, before Python objects are made: the pictures of a batch may not fit memory twice.
    kind = array.type
    if isinstance(kind, pa.ExtensionType):  # as `datasets` writes arrays of several axes
        return _without_bytes(array.storage)
    if pa.types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        readable = [field.name for field in fields if not _is_bytes(field.type)]
        if len(readable) == len(fields):
            return array
        # `struct_field` and not `field`, which forgets that a whole struct is missing.
        columns = [_without_bytes(pc.struct_field(array, name)) for name in readable]
        if readable == ["path"]:
            return columns[0]
        return pa.StructArray.from_arrays(columns, names=readable)
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        values = _without_bytes(array.flatten())
        # Anew, as `flatten` leaves out what a slice does not show and what lies under missing lists.
        offsets = [0]
        for length in pc.list_value_length(array).to_pylist():
            offsets.append(offsets[-1] + (length or 0))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)
    return array
