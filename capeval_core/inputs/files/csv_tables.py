"""CSV: one row per caption under a header, or one row per image with its captions side by side."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from capeval_core.inputs.files.gathering import Gatherer
from capeval_core.inputs.files.parsing import decoded


def read_csv(data: bytes, gatherer: Gatherer, *, wide: bool = False) -> None:
    """A table whose header names ids and texts.

    With `wide`, a header that names no texts belongs to a table of one row per image: its id, then its
    captions, whose names do not matter.
    """
    reader = csv.reader(io.StringIO(decoded(gatherer.path, data), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        rows = ((f"line {reader.line_num}", cells) for cells in reader if cells)
        if wide and len(header) > 1 and not set(header) & set(gatherer.fields):
            _read_wide_rows(header, rows, gatherer)
        else:
            _read_rows(header, rows, gatherer)
    except csv.Error as error:
        gatherer.complain(f"line {reader.line_num} is not CSV ({error})")


def _read_rows(header: list[str], rows: Iterator[tuple[str, list[str]]], gatherer: Gatherer) -> None:
    gatherer.require_columns(header, "the header has")
    if twice := sorted({name for name in header if name and header.count(name) > 1}):
        gatherer.complain(f"the header has {twice[0]!r} twice: give every column a name of its own")
        return
    for place, cells in rows:
        if len(cells) != len(header):
            gatherer.complain(f"{place} has {len(cells)} cells, the header has {len(header)}")
            continue
        row: dict[str, Any] = dict(zip(header, cells, strict=True))
        for name in ("captions", "references"):
            if name in row:
                row[name] = _listed(row[name])
        gatherer.row(row, place)


def _read_wide_rows(header: list[str], rows: Iterator[tuple[str, list[str]]], gatherer: Gatherer) -> None:
    """Empty cells are no captions: images may have different numbers of them."""
    seen: set[str] = set()
    for place, (image_id, *cells) in rows:
        captions = [cell for cell in cells if cell.strip()]
        if image_id in seen:
            gatherer.complain(f"{place}: the id {image_id!r} comes twice, expected one row per image")
        elif (checked := gatherer.image_id(image_id, f"{place}: {header[0] or 'the id'}")) is not None:
            gatherer.add(checked, captions, f"{place} (id {image_id!r}): its captions")
        seen.add(image_id)


def _listed(cell: str) -> Any:
    """The JSON list in a cell; a text that merely begins with a bracket stays a text."""
    if not cell.lstrip().startswith("["):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell
