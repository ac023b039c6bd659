"""Rows on disk: a folder of Parquet whose rows are reused for the same captions, images and references."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from capeval_core.inputs.images import ImageError, Visual
from capeval_core.inputs.samples import Samples
from capeval_core.limits import LIMITS
from capeval_core.rows import canonical
from capeval_core.store import DamagedError, TableStore, check_folder, digest_of, read_kept

CONTENT = "content"
"""The column of stored rows with the digest of caption, image and references."""


def kept_rows(folder: str | PathLike[str]) -> Callable[[str, Any, Sequence[str]], bool]:
    """A test for whether a folder, or one below it, has a row of a caption, its image and its references."""
    digests: set[str] = set()
    for path in Path(folder).rglob("*.parquet"):
        # Damage and files of something else only cost a check; `RowStore` tells of them.
        with suppress(DamagedError, KeyError):
            rows, _ = read_kept(path)
            encoded = rows.filter(pc.is_null(rows["error"]))
            digests.update(encoded[CONTENT].to_pylist())

    def has_row(caption: str, visual: Visual[Any], references: Sequence[str]) -> bool:
        return content_of(caption, visual, references) in digests

    return has_row


def content_of(caption: str, visual: Visual[Any], references: Sequence[str]) -> str:
    """The digest of a caption, its image and its references, by which a stored row is found again."""
    try:
        image = visual.key
    except ImageError:
        image = ""  # its row will hold the error, and is computed again in the next run
    return digest_of(json.dumps([caption, image, references]).encode())


class RowStore(TableStore):
    """Rows in a folder, each with a digest of caption, image and references, and only reused for these."""

    def __init__(self, path: str | PathLike[str], schema: pa.Schema, stamp: Mapping[str, Any]) -> None:
        folder = check_folder("rows", path)
        # A metric of another package may change its columns under the same fingerprint of weights.
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        stamp = {**stamp, "columns": digest_of(columns.encode())}
        super().__init__(
            folder, stamp, "rows", most_rows=LIMITS.shard_rows, most_seconds=LIMITS.shard_seconds
        )
        stored_schema = schema.append(pa.field(CONTENT, pa.string()))
        self._rows = [stored_schema.empty_table()]
        for table in self.tables():
            self._rows.append(table.select(stored_schema.names).cast(stored_schema))

    def reuse(self, samples: Samples) -> tuple[pa.Table, dict[int, str]]:
        """The stored rows of samples that have no error, and the digests of the other samples by index."""
        rows = canonical(pa.concat_tables(self._rows))
        rows = rows.filter(pc.is_null(rows["error"]))
        self._rows = [rows]
        stored = dict(zip(rows["index"].to_pylist(), rows[CONTENT].to_pylist(), strict=True))
        references = samples.references or [[]] * len(samples)
        reusable: list[int] = []
        missing: dict[int, str] = {}
        for index, *content in zip(
            samples.indices, samples.captions, samples.images, references, strict=True
        ):
            digest = content_of(*content)
            # By place and content: rows hold their index, and a caption that moved is another row.
            if stored.get(index) == digest:
                reusable.append(index)
            else:
                missing[index] = digest
        reused = rows.filter(pc.is_in(rows["index"], pa.array(sorted(reusable), pa.int64())))
        return reused.drop_columns([CONTENT]), missing

    def append(self, table: pa.Table) -> None:
        self._rows.append(table)
        super().append(table)


class RowStores(dict[str, RowStore]):
    """The folders of rows that a metric has opened, each once; `flush` writes what was added to them."""

    def open(
        self, folder: str | PathLike[str] | None, schema: pa.Schema, stamp: Mapping[str, Any]
    ) -> RowStore | None:
        """The rows in a folder, None without one."""
        if folder is None:
            return None
        # Once per folder and stamp: two stores of one folder would each lack what the other appends.
        key = json.dumps([str(Path(folder).resolve()), stamp], sort_keys=True)
        if key not in self:
            self[key] = RowStore(folder, schema, stamp)
        return self[key]

    def flush(self) -> None:
        for store in self.values():
            store.flush()
