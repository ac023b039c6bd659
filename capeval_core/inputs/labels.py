"""Labels of captions: a column of the user's, such as nocaps' `domain`, by which results are split."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.errors import FileError, did_you_mean, file_error
from capeval_core.inputs.files import Names, contents, decoded, some_of
from capeval_core.inputs.text_files import ID_FIELDS

NO_LABEL = ""
"""Of a caption whose row has none."""


def labels_of(files: Sequence[str | Path], column: str, ids: Sequence[str]) -> list[str]:
    """The label of each caption by the id of its image, from the first of these files with the column.

    A file is JSON (rows, or COCO annotations, whose `images` count), JSON lines, CSV, TSV or Parquet.

    Raises:
        FileError: no file has the column, or rows of one image differ in it.
    """
    columns: dict[str, None] = {}
    for path in map(Path, files):
        labels: dict[str, str] = {}
        for row in _rows(path):
            columns.update(dict.fromkeys(row))
            id_field = next((name for name in ("image_id", *ID_FIELDS) if row.get(name) is not None), None)
            if id_field is None or row.get(column) is None:
                continue
            label, image_id = str(row[column]), str(row[id_field])
            if labels.setdefault(image_id, label) != label:
                found = f"{column} is {labels[image_id]!r} and {label!r} of the image {image_id!r}"
                raise file_error(path, found, "give an image one label")
        if labels:
            names = Names(labels)
            matches = [names.find(image_id) for image_id in ids]
            return [labels[entries[0]] if len(entries) == 1 else NO_LABEL for entries in matches]
    listed = f"{did_you_mean(column, columns)}; there are {some_of(columns)}" if columns else ""
    raise file_error(files[0], f"has no column {column!r} beside an id{listed}")


def _rows(path: Path) -> Iterable[Mapping[str, Any]]:
    """The rows of a file that are objects with names; none where it has another form."""
    if str(path) == "-":
        return []
    data = contents(path)
    if data.startswith(b"PAR1"):
        table: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
        return table
    try:
        text = decoded(path, data)
    except FileError:  # whatever it is, it was read as captions or references, and says no labels
        return []
    if path.suffix.lower() in (".csv", ".tsv"):
        lines = io.StringIO(text, newline="")
        return csv.DictReader(lines, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        try:
            content = [json.loads(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError:
            return []
    if isinstance(content, Mapping):
        if not isinstance(content.get("images"), list):
            return [{"image_id": key, **row} for key, row in content.items() if isinstance(row, Mapping)]
        content = content["images"]
    return [row for row in content if isinstance(row, Mapping)] if isinstance(content, list) else []
