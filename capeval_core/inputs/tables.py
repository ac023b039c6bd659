"""CSV and Parquet: one row per caption, or in CSV one row per image with its captions side by side."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator

from capeval_core.errors import FileError
from capeval_core.inputs.file_texts import ID_FIELDS, Gatherer
from capeval_core.inputs.folder import some_of
from capeval_core.inputs.json_files import decoded
from capeval_core.inputs.texts import is_written_list

_MISSING = {"nan", "NaN", "None", "null", "NULL", "<NA>"}
"""What `str`, pandas and databases write for a missing value."""

Records = Iterator[tuple[str, list[str]]]


def read_csv(data: bytes, gatherer: Gatherer, *, wide: bool = False) -> None:
    """A table whose header names ids and texts.

    With `wide`, a header that names no texts belongs to a table of one row per image: its id, then its
    captions, whose names do not matter.
    """
    reader = csv.reader(io.StringIO(decoded(gatherer.path, data), newline=""), strict=True)
    begins = 1

    def records() -> Records:
        """Each record that is not blank, with the line on which it begins."""
        nonlocal begins
        for cells in reader:
            if cells:
                yield f"line {begins}", cells
            begins = reader.line_num + 1

    try:
        rows = records()
        _, header = next(rows, ("", []))
        header = [name.strip() for name in header]
        if wide and len(header) > 1 and not set(header) & set(gatherer.fields):
            _read_wide_rows(header, rows, gatherer)
        else:
            _read_rows(header, rows, gatherer)
        _warn_of_missing(gatherer)
    except csv.Error as error:
        if str(error).startswith("field larger"):
            found = f"a cell of more than {csv.field_size_limit():,} characters"
            fix = "close the quotation mark with which it begins, or use JSON lines"
            gatherer.complain(f"line {begins}", found, fix, verb="has")
        else:
            gatherer.complain(f"line {begins}", f"not CSV ({error})")


def _read_rows(header: list[str], rows: Records, gatherer: Gatherer) -> None:
    gatherer.require_columns(header, "the header has")
    alone = gatherer.text_field(header) == "caption"
    for line, cells in rows:
        if len(cells) != len(header):
            gatherer.complain(line, f"{len(cells)} cells, the header has {len(header)}", verb="has")
            continue
        row = dict(zip(header, cells, strict=True))
        if alone and is_written_list(row["caption"]):
            found = f"a list written as text ({row['caption'][:40]!r})"
            fix = "call the column captions, or write one row per caption"
            gatherer.complain(f"{line}: caption", found, fix)
        else:
            gatherer.row(row, line)


def _read_wide_rows(header: list[str], rows: Records, gatherer: Gatherer) -> None:
    """Empty cells are no captions: images may have different numbers of them.

    The first line must be known to be a header: taken for one, the row of an image would be lost.
    """
    if (header[0] and header[0] not in ID_FIELDS) or set(header[1:]) & set(ID_FIELDS):
        found = ", ".join(repr(name[:40]) for name in header[:4])
        fix = f"expected a header that begins with {' or '.join(ID_FIELDS)}, then any names"
        gatherer.complain("line 1", found, f"{fix}; write one above the first image", verb="has")
        return
    ids: set[str] = set()
    for line, cells in rows:
        if len(cells) != len(header):
            found = f"{len(cells)} cells, the header has {len(header)}"
            fix = "quote captions that hold commas, and leave cells empty where an image has fewer captions"
            gatherer.complain(line, found, fix, verb="has")
            continue
        image_id, *texts = cells
        captions = [text for text in texts if text.strip()]
        lists = [text for text in captions if is_written_list(text)]
        if image_id in ids:
            found = f"the id {image_id!r} comes twice, expected one row per image"
            gatherer.complain(line, found, verb="")
        elif lists:
            found = f"a list written as text ({lists[0][:40]!r})"
            fix = "write one caption per cell, or call the column captions"
            gatherer.complain(f"{line} (id {image_id!r}): a cell", found, fix)
        elif (checked := gatherer.image_id(image_id, f"{line}: {header[0] or 'the id'}")) is not None:
            gatherer.add(checked, captions, f"{line} (id {image_id!r}): its captions")
        ids.add(image_id)


def _warn_of_missing(gatherer: Gatherer) -> None:
    """Tables are often written with a word for what is missing, which nobody wants to have scored."""
    ids = [image_id for image_id, text in gatherer.texts.rows if text.strip() in _MISSING]
    if ids:
        warnings.warn(
            f"{gatherer.path}: {len(ids):,} of {len(gatherer.texts.rows):,} captions are a word for a "
            f"missing value, such as 'nan' (ids {some_of(ids)}), and are read as "
            "captions: leave those rows out if there is none",
            stacklevel=2,
        )


def read_parquet(data: bytes, gatherer: Gatherer) -> None:
    """A table with columns of ids and texts; other columns are not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        columns = file.schema_arrow.names
        gatherer.require_columns(columns, "the columns are")
        used = [name for name in (*ID_FIELDS, *gatherer.fields) if name in columns]
        rows = (row for batch in file.iter_batches(columns=used) for row in batch.to_pylist())
        for i, row in enumerate(rows):
            gatherer.row(row, f"row {i}")
    except FileError:
        raise
    except Exception as error:  # pyarrow raises whatever the damaged part trips over
        reason = " ".join(str(error).split())[:200]
        gatherer.complain(None, f"is not Parquet, or damaged ({reason})", "write it again", verb="")
