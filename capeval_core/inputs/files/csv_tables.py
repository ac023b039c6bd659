"""CSV: one row per caption under a header, or one row per image with its captions side by side."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator

from capeval_core.inputs.files.gathering import ID_FIELDS, Gatherer
from capeval_core.inputs.files.parsing import decoded
from capeval_core.inputs.names import NAMED
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
            gatherer.complain(
                f"line {begins} has a cell of more than {csv.field_size_limit():,} characters: close the "
                "quotation mark with which it begins, or use JSON lines"
            )
        else:
            gatherer.complain(f"line {begins} is not CSV ({error})")


def _read_rows(header: list[str], rows: Records, gatherer: Gatherer) -> None:
    gatherer.require_columns(header, "the header has")
    alone = gatherer.text_field(header) == "caption"
    for place, cells in rows:
        if len(cells) != len(header):
            gatherer.complain(f"{place} has {len(cells)} cells, the header has {len(header)}")
            continue
        row = dict(zip(header, cells, strict=True))
        if alone and is_written_list(row["caption"]):
            gatherer.complain(
                f"{place}: caption is a list written as text ({row['caption'][:40]!r}): call the column "
                "captions, or write one row per caption"
            )
        else:
            gatherer.row(row, place)


def _read_wide_rows(header: list[str], rows: Records, gatherer: Gatherer) -> None:
    """Empty cells are no captions: images may have different numbers of them.

    The first line must be known to be a header: taken for one, the row of an image would be lost.
    """
    if (header[0] and header[0] not in ID_FIELDS) or set(header[1:]) & set(ID_FIELDS):
        found = ", ".join(repr(name[:40]) for name in header[:4])
        gatherer.complain(
            f"line 1 has {found}: expected a header that begins with {' or '.join(ID_FIELDS)}, then any "
            "names; write one above the first image"
        )
        return
    seen: set[str] = set()
    for place, cells in rows:
        if len(cells) != len(header):
            gatherer.complain(
                f"{place} has {len(cells)} cells, the header has {len(header)}: quote captions that hold "
                "commas, and leave cells empty where an image has fewer captions"
            )
            continue
        image_id, *texts = cells
        captions = [text for text in texts if text.strip()]
        lists = [text for text in captions if is_written_list(text)]
        if image_id in seen:
            gatherer.complain(f"{place}: the id {image_id!r} comes twice, expected one row per image")
        elif lists:
            gatherer.complain(
                f"{place} (id {image_id!r}): a cell is a list written as text ({lists[0][:40]!r}): write one "
                "caption per cell, or call the column captions"
            )
        elif (checked := gatherer.image_id(image_id, f"{place}: {header[0] or 'the id'}")) is not None:
            gatherer.add(checked, captions, f"{place} (id {image_id!r}): its captions")
        seen.add(image_id)


def _warn_of_missing(gatherer: Gatherer) -> None:
    """Tables are often written with a word for what is missing, which nobody wants to have scored."""
    ids = [image_id for image_id, text in gatherer.texts.rows if text.strip() in _MISSING]
    if ids:
        more = ", ..." if len(ids) > NAMED else ""
        warnings.warn(
            f"{gatherer.path}: {len(ids):,} of {len(gatherer.texts.rows):,} captions are a word for a "
            f"missing value, such as 'nan' (ids {', '.join(map(repr, ids[:NAMED]))}{more}), and are read as "
            "captions: leave those rows out if there is none",
            stacklevel=2,
        )
