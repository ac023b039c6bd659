"""One shard in, one Parquet file out, exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.errors import FileError, file_problem, wrong_option
from capeval_core.integrations.shards.columns import check_columns
from capeval_core.integrations.shards.places import Place, checksum
from capeval_core.integrations.shards.readers import ParquetReader
from capeval_core.integrations.shards.scoring import BatchScorer
from capeval_core.metric import CaptionMetric

WINDOW = 2048
"""Rows that are in memory together."""
NOTE, COUNTS = b"capeval_shard", b"capeval_counts"
"""Keys of the metadata of an output: what its scores depend on, and how many there are."""


@dataclass(frozen=True)
class ShardResult:
    """What a shard came to.

    source, target: their addresses. rows: all. failed: without a score, see the column `error`. truncated:
    with a text longer than the encoder reads. signature: what scores depend on. checksum: SHA-256 of the
    source. skipped: whether the target was there already, so that nothing was encoded.
    """

    source: str
    target: str
    rows: int
    failed: int
    truncated: int
    signature: str
    checksum: str
    skipped: bool


def score_shard(
    source: str | PathLike[str],
    target: str | PathLike[str],
    metric: str | CaptionMetric | BatchScorer,
    *,
    images: str | PathLike[str] | None = None,
    columns: Mapping[str, str] | None = None,
    window: int = WINDOW,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> ShardResult:
    """Score the rows of one shard into one Parquet file.

    Args:
        source: a Parquet file, path or address of fsspec.
        target: the Parquet file to write: `uid, score, parts, truncated, error`, in input order. One that is
            there with the same signature and source is kept.
        metric: a name, an open metric, or a `BatchScorer`.
        images: folder that paths of images are relative to; None: that of the source.
        columns: names of columns where they are not found by themselves: {"caption": "alt_text"}.
        window: rows that are in memory together.
        progress: called with the number of rows whenever some are done.
        **options: of a metric given by name.
    """
    begin, end = Place.of("source", source), Place.of("target", target)
    chosen = check_columns(columns)
    if (begin.path, type(begin.filesystem)) == (end.path, type(end.filesystem)):
        raise wrong_option("target", end.address, "the source", "choose another file")
    scorer = metric if isinstance(metric, BatchScorer) else BatchScorer(metric, **options)
    begin.version()
    with begin.local_copy() as path:
        with path.open("rb") as file:
            digest = checksum(file)
        reader = ParquetReader(path, begin.address, scorer.columns, chosen)
        note = {"signature": scorer.signature, "checksum": digest, "columns": reader.columns}
        if end.exists():
            stored = read_note(end)
            if any(stored.get(name) != value for name, value in note.items()):
                raise FileError(file_problem(end.address, "holds other scores", "choose another target"))
            return _result(begin, end, stored, skipped=True)
        uid = pa.field("uid", pa.string())
        schema = pa.schema([uid, *scorer.schema()], metadata={NOTE: json.dumps(note)})
        counts = {"rows": 0, "failed": 0, "truncated": 0}
        with end.whole() as partial:
            with pq.ParquetWriter(partial, schema, write_page_checksum=True) as writer:
                for rows in reader.windows(window):
                    table = pa.table({"uid": rows["uid"], **scorer(rows)}, schema=schema)
                    writer.write_table(table)
                    counts["rows"] += len(table)
                    counts["failed"] += table["score"].null_count
                    counts["truncated"] += sum(cut > 0 for cut in table["truncated"].to_pylist())
                    if progress is not None:
                        progress(len(table))
                writer.add_key_value_metadata({COUNTS: json.dumps(counts)})
    return _result(begin, end, {**note, **counts}, skipped=False)


def read_note(place: Place) -> dict[str, Any]:
    with place.local_copy() as path:
        metadata = pq.read_metadata(path).metadata or {}
    return {name: value for key in (NOTE, COUNTS) for name, value in json.loads(metadata[key]).items()}


def _result(source: Place, target: Place, note: Mapping[str, Any], *, skipped: bool) -> ShardResult:
    counts = {name: note[name] for name in ("rows", "failed", "truncated", "signature", "checksum")}
    return ShardResult(source.address, target.address, **counts, skipped=skipped)
