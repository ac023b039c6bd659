"""CSV, TSV, Flickr's files and Parquet: one row per caption, or in tables of text one row per image."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from capeval_core.errors import FileError, file_problem, warn
from capeval_core.inputs.file_texts import ID_FIELDS, LIST_FIELDS, Gatherer
from capeval_core.inputs.folder import some_of
from capeval_core.inputs.json_files import decoded
from capeval_core.inputs.texts import is_written_list

_MISSING = {"nan", "NaN", "None", "null", "NULL", "<NA>"}
"""What `str`, pandas and databases write for a missing value."""
_DELIMITERS = ",\t|;"
_TOKEN = re.compile(r"([^\t]+)#[0-9]+\t(.*)")
"""A line of Flickr8k and Flickr30k: an image's file name, the number of the caption, the caption."""
_JOINED = re.compile(r"\s*[0-9]+\s\s+(\S.*)")
"""Number and caption of an image of Flickr30k in one cell: a row of the published table lacks a `|`."""

Records = Iterator[tuple[str, list[str]]]


def read_table(data: bytes, gatherer: Gatherer) -> None:
    """A table of text whose header names ids and texts, or the lines of Flickr's token files.

    Cells are separated by commas, tabs, `|` or semicolons: by that one at which the header falls into known
    names. Where `gatherer.wide`, a header that names no texts belongs to a table of one row per image: its
    id, then its captions, whose names do not matter.
    """
    text = decoded(gatherer.path, data)
    first = text.lstrip("\r\n").partition("\n")[0]
    if _TOKEN.match(first):
        _read_tokens(text, gatherer)
        return
    delimiter = _delimiter(first, gatherer)
    rows = _tab_records(text, gatherer) if delimiter == "\t" else _records(text, delimiter, gatherer)
    _, header = next(rows, ("", []))
    header = [name.strip() for name in header]
    if len(header) == 1:
        found = f"the first line is {first.strip()[:40]!r}, expected a header that names an id and a caption"
        fix = "write image_id and caption above the first row, or use JSON"
        raise FileError(file_problem(gatherer.path, found, fix))
    if gatherer.wide and not gatherer.text_fields(header):
        _read_wide_rows(header, rows, gatherer)
    else:
        _read_rows(header, rows, gatherer, delimiter)
    _warn_of_missing(gatherer)


def _delimiter(header: str, gatherer: Gatherer) -> str:
    """What separates the cells of a table with this first line."""

    def names(delimiter: str) -> list[str]:
        return [name.strip().strip('"') for name in header.split(delimiter)]

    for delimiter in _DELIMITERS:
        if gatherer.id_field(names(delimiter)) and gatherer.text_fields(names(delimiter)):
            return delimiter
    return max(_DELIMITERS, key=header.count)


def _records(text: str, delimiter: str, gatherer: Gatherer) -> Records:
    """Each record that is not blank, with the line on which it begins."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begins = 1
    try:
        for cells in reader:
            if cells:
                yield f"line {begins}", cells
            begins = reader.line_num + 1
    except csv.Error as error:
        if str(error).startswith("field larger"):
            found = f"a cell of more than {csv.field_size_limit():,} characters"
            fix = "close the quotation mark with which it begins, or use JSON lines"
            gatherer.complain(f"line {begins}", found, fix, verb="has")
        else:
            gatherer.complain(f"line {begins}", f"not CSV ({error})")


def _tab_records(text: str, gatherer: Gatherer) -> Records:
    """Records of a table with tabs, in which a quotation mark may be one of the caption's.

    Where every line has as many tabs as the header, it is a record, and marks that do not enclose a cell
    belong to it. Else cells hold tabs or ends of lines between marks.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    if len({line.count("\t") for line in lines if line.strip()}) > 1:
        yield from _records(text, "\t", gatherer)
        return
    for number, line in enumerate(lines, start=1):
        if line.strip():
            cells = line.split("\t")
            if '"' in line:
                cells = [_unquoted(cell) for cell in cells]
            yield f"line {number}", cells


def _unquoted(cell: str) -> str:
    """
    >>> _unquoted('"a ""big"" dog"'), _unquoted('"Stop" on a sign')
    ('a "big" dog', '"Stop" on a sign')
    """
    inner = cell[1:-1].replace('""', "")
    if len(cell) < 2 or not cell.startswith('"') or not cell.endswith('"') or '"' in inner:
        return cell
    return cell[1:-1].replace('""', '"')


def _read_rows(header: list[str], rows: Records, gatherer: Gatherer, delimiter: str) -> None:
    gatherer.require_columns(header, "the header has")
    (field,) = gatherer.text_fields(header)
    alone = field not in LIST_FIELDS and field != getattr(gatherer.options, gatherer.column)
    joined = 0
    for line, cells in rows:
        if delimiter == "|":
            cells = [cell.strip() for cell in cells]
            if len(cells) == len(header) - 1 and (match := _JOINED.fullmatch(cells[-1])):
                cells[-1:] = ["", match[1]]
                joined += 1
        if len(cells) != len(header):
            fix = "quote captions that hold commas" if delimiter == "," and len(cells) > len(header) else ""
            gatherer.complain(line, f"{len(cells)} cells, the header has {len(header)}", fix, verb="has")
            continue
        row = dict(zip(header, cells, strict=True))
        if alone and is_written_list(row[field]):
            found = f"a list written as text ({row[field][:40]!r})"
            fix = "call the column captions, or write one row per caption"
            gatherer.complain(f"{line}: {field}", found, fix)
        else:
            gatherer.row(row, line)
    if joined:
        lacking = "row lacks" if joined == 1 else "rows lack"
        warn(
            f"{gatherer.path}: {joined:,} {lacking} the | between number and caption; what follows the "
            "number is taken for the caption"
        )


def _read_tokens(text: str, gatherer: Gatherer) -> None:
    numbered: dict[str, str] = {}  # captions with numbers of their own belong together
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if match := _TOKEN.fullmatch(line):
            gatherer.add(match[1], match[2], f"line {number} (id {match[1]!r})", ids=numbered)
        elif line.strip():
            found = f"{line[:40]!r}, expected a file name, # and a number, a tab, and a caption"
            gatherer.complain(f"line {number}", found)


def _read_wide_rows(header: list[str], rows: Records, gatherer: Gatherer) -> None:
    """Empty cells are no captions: images may have different numbers of them.

    The first line must be known to be a header: taken for one, the row of an image would be lost.
    """
    ids = (*ID_FIELDS, gatherer.options.id_column)
    if (header[0] and header[0] not in ids) or set(header[1:]) & set(ids):
        found = ", ".join(repr(name[:40]) for name in header[:4])
        fix = f"expected a header that begins with {' or '.join(ID_FIELDS)}, then any names"
        gatherer.complain("line 1", found, f"{fix}; write one above the first image", verb="has")
        return
    known: set[str] = set()
    for line, cells in rows:
        if len(cells) != len(header):
            found = f"{len(cells)} cells, the header has {len(header)}"
            fix = "quote captions that hold commas, and leave cells empty where an image has fewer captions"
            gatherer.complain(line, found, fix, verb="has")
            continue
        image_id, *texts = cells
        captions = [text for text in texts if text.strip()]
        lists = [text for text in captions if is_written_list(text)]
        if image_id in known:
            found = f"the id {image_id!r} comes twice, expected one row per image"
            gatherer.complain(line, found, verb="")
        elif lists:
            found = f"a list written as text ({lists[0][:40]!r})"
            fix = "write one caption per cell, or call the column captions"
            gatherer.complain(f"{line} (id {image_id!r}): a cell", found, fix)
        elif (checked := gatherer.image_id(image_id, f"{line}: {header[0] or 'the id'}")) is not None:
            gatherer.add(checked, captions, f"{line} (id {image_id!r}): its captions")
        known.add(image_id)


def _warn_of_missing(gatherer: Gatherer) -> None:
    """Tables are often written with a word for what is missing, which nobody wants to have scored."""
    ids = [image_id for image_id, text in gatherer.texts.rows if text.strip() in _MISSING]
    if ids:
        warn(
            f"{gatherer.path}: {len(ids):,} of {len(gatherer.texts.rows):,} captions are a word for a "
            f"missing value, such as 'nan' (ids {some_of(ids)}), and are read as "
            "captions: leave those rows out if there is none"
        )


def read_parquet(data: bytes, gatherer: Gatherer) -> None:
    """A table with columns of ids and texts; other columns are not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        columns = file.schema_arrow.names
        gatherer.require_columns(columns, "the columns are")
        used = gatherer.used_columns(columns)
        rows = (row for batch in file.iter_batches(columns=used) for row in batch.to_pylist())
        for i, row in enumerate(rows):
            gatherer.row(row, f"row {i}")
    except FileError:
        raise
    except Exception as error:  # pyarrow raises whatever the damaged part trips over
        reason = " ".join(str(error).split())[:200]
        gatherer.complain(None, f"is not Parquet, or damaged ({reason})", "write it again", verb="")
