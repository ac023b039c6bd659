"""The rows of a shard, a window at a time: Parquet, tars of webdataset, JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.errors import FileError, file_problem
from capeval_core.integrations.shards.columns import find_columns

Rows = dict[str, list[Any]]
"""Columns of equal length: `uid`, `caption`, `image` or `video`, `references`, `error`."""


class ParquetReader:
    """The rows of a Parquet file, with images as bytes, as paths, or as structs {bytes, path}."""

    def __init__(self, path: Path, address: str, needed: list[str], columns: Mapping[str, str]) -> None:
        self.path, self.address = path, address
        try:
            self.file = pq.ParquetFile(
                path, page_checksum_verification=True, pre_buffer=False, buffer_size=1 << 20
            )
        except (pa.ArrowException, OSError) as error:
            raise FileError(file_problem(address, f"is not Parquet, or damaged ({error})")) from error
        names = self.file.schema_arrow.names
        self.columns, problems = find_columns(names, ["uid", *needed], columns)
        problems = [p for p in problems if not p.startswith("no uid")]
        if problems:
            found = f"has {'; '.join(problems)}; its columns are {', '.join(names)}"
            raise FileError(file_problem(address, found, 'pass columns={"caption": "..."}'))

    def windows(self, rows: int) -> Iterator[Rows]:
        """Consecutive rows, so many at a time."""
        stem, position = self.address.rpartition("/")[2].partition(".")[0], 0
        for batch in self.file.iter_batches(rows, columns=list(self.columns.values())):
            window = {role: batch.column(name).to_pylist() for role, name in self.columns.items()}
            window["uid"] = [
                f"{stem}/{position + i}" if uid is None else str(uid)
                for i, uid in enumerate(window.get("uid", [None] * len(batch)))
            ]
            position += len(batch)
            yield {**window, "error": [None] * len(batch)}
