"""One Parquet table of the outputs of all shards."""

from __future__ import annotations

from contextlib import ExitStack
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from capeval_core.errors import Problems, file_error, noting, wrong_option
from capeval_core.integrations.shards.duplicates import duplicates_on_disk, have_keys
from capeval_core.integrations.shards.outputs import (
    MERGED_NOTE,
    opened,
    outputs_in,
    read_batches,
    read_note,
    written,
)
from capeval_core.integrations.shards.places import Place


def merge_shards(folder: str | PathLike[str], target: str | PathLike[str]) -> int:
    """Join the outputs of all shards in a folder into one Parquet table, and return its number of rows.

    Shards come in the order of their names. Uids that come twice stay twice: `check_shards` names them.
    Of outputs with keys of images it has a column `duplicate`: whether an earlier row has the picture.
    target: the Parquet file to write, outside of the folder; a merged table that is there is replaced.
    """
    outputs = outputs_in(folder)
    table = Place.of("target", target)
    # In the folder of the outputs it would be one of them in the next merge.
    if table.identity.rpartition("/")[0] == outputs[0].parent.identity or not table.name.endswith(".parquet"):
        fix = "name a file elsewhere that ends in .parquet"
        raise wrong_option("target", table.address, "is one of the shards, or not a table by its name", fix)
    if table.filesystem.exists(table.path):
        read_note(table, MERGED_NOTE)  # nothing else is replaced
    # Scores of two signatures have one column and no common scale: nobody could tell them apart afterwards.
    note: dict[str, Any] = {"signature": _common_signature(outputs), "shards": len(outputs), "rows": 0}
    with opened(outputs[0]) as parquet:
        schema = parquet.schema_arrow.remove_metadata()
    with ExitStack() as stack:
        marks = None
        merged_schema = schema
        if have_keys(outputs):
            marks = stack.enter_context(duplicates_on_disk(outputs))
            merged_schema = schema.append(pa.field("duplicate", pa.bool_()))
        merged = stack.enter_context(written(table, merged_schema, note, MERGED_NOTE))
        # Batch by batch: a merged table may be larger than the memory.
        for output in outputs:
            for batch in read_batches(output):
                rows_of_batch = pa.Table.from_batches([batch]).cast(schema)
                if marks is not None:
                    start = note["rows"]  # marks are of all rows, in the order in which outputs are read
                    column = pa.array(np.asarray(marks[start : start + len(batch)]))
                    rows_of_batch = rows_of_batch.append_column(merged_schema.field("duplicate"), column)
                merged.write_table(rows_of_batch)
                note["rows"] += len(batch)
    rows: int = note["rows"]
    return rows


def _common_signature(outputs: list[Place]) -> str:
    """The signature of all outputs; FileError names those of another one."""
    problems = Problems()  # all of them: of a thousand shards some may be of another run
    signatures: list[str] = []
    for output in outputs:
        with noting(problems):
            signature = read_note(output)["signature"]
            signatures.append(signature)
            if signature != signatures[0]:
                problem = f"has the signature {signature!r}, others have {signatures[0]!r}"
                raise file_error(output.address, problem, "merge shards of one signature")
    problems.raise_if_any()
    return signatures[0]
