"""One shard in, one Parquet file out, exactly once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa

from capeval_core.errors import FileError, Problem, file_problem, warn, wrong_option
from capeval_core.integrations.shards.columns import check_columns
from capeval_core.integrations.shards.images import ImageFolder
from capeval_core.integrations.shards.outputs import (
    COUNTS,
    NOTE,
    DamagedError,
    check_whole,
    read_batches,
    sealed,
    whole_table,
)
from capeval_core.integrations.shards.places import Place, checksum
from capeval_core.integrations.shards.readers import JsonLinesReader, ParquetReader, Reader
from capeval_core.integrations.shards.scoring import BatchScorer
from capeval_core.integrations.shards.tars import TarReader
from capeval_core.metric import CaptionMetric
from capeval_core.row_store import FreedMemory

WINDOW = 2048
"""Rows that are in memory together."""
FORMATS: dict[str, type[Reader]] = {
    **dict.fromkeys((".parquet", ".pq"), ParquetReader),
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), TarReader),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), JsonLinesReader),
}
"""How names of shards end, and what reads them."""


@dataclass(frozen=True)
class ShardResult:
    """What a shard came to.

    source, target: their addresses.
    rows: all. failed: without a score, see the column `error`. error: the first of these, or None.
    truncated: rows with a text longer than the encoder reads.
    signature: what the scores depend on.
    checksum: SHA-256 of the source.
    skipped: whether the target was there already, so that nothing was encoded.
    scored: the rows that this call scored.
    columns: the names of the columns that were read, by what they hold.
    """

    source: str
    target: str
    rows: int
    failed: int
    error: str | None
    truncated: int
    signature: str
    checksum: str
    skipped: bool
    scored: int = 0
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)


def score_shard(
    source: str | PathLike[str],
    target: str | PathLike[str],
    metric: str | CaptionMetric | BatchScorer,
    *,
    images: str | PathLike[str] | None = None,
    columns: Mapping[str, str] | None = None,
    retry_failed: bool = False,
    window: int = WINDOW,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> ShardResult:
    """Score the rows of one shard into one Parquet file, which appears as a whole or not at all.

    The target's columns are `uid` (text), `score` (null where there is none), `parts` (a struct of the
    components that the metric names), `truncated` (token ids cut off) and `error` (why there is no score), a
    row per row of the source, in its order. Its metadata hold the signature, the source's checksum, the
    options `columns` and `empty`, and the folder of images where a row has a path in it. A target that is
    there with all of them the same is kept, one of other scores refused, a damaged one made again with a
    warning, and one without any score made again where they differ.

    A row that cannot be scored costs itself: a broken or missing image, a caption that is empty (unless
    `empty="score"`) or None, a line that is not JSON. A shard that is cut off or damaged is refused as a
    whole. Uids that come twice are kept, `check_shards` names them. Per caption, a corpus metric such as BLEU
    has scores too; what it reports of a corpus is not their mean.

    Memory is that of a window, whatever the length of the shard, and of the longest page of a Parquet file:
    those of some writers hold 1,024 images. What a killed process had done of a shard is lost, and it may
    leave an unfinished `.partial` file beside the target, which nothing reads. Addresses such as
    `s3://bucket/00000.tar` go through fsspec, with the credentials and endpoints of its own configuration: a
    copy of the source and the target lie in the temporary folder meanwhile. `s3://` is tested, others
    (`gs://`, `hf://`) are fsspec's own promise.

    Args:
        source: the shard. Parquet: images are bytes, paths, or structs {bytes, path}. A tar of webdataset:
            `0001.jpg` with `0001.txt` or `0001.json` is the row `0001`. JSON lines: objects with paths of
            images.
        target: the Parquet file to write, in a folder that is made where there is none.
        metric: a name, an open metric, or a `BatchScorer`, which is best for several shards. Images whose
            metric is about videos are videos.
        images: folder that paths of images are relative to, which may be an address too; None: that of the
            source. Images named by addresses are never fetched. It is known by its whole path, links
            followed, so a folder that was moved is another one. The checksum does not cover its files.
        columns: names of columns by what they hold, where they are not found by themselves: {"uid": ...,
            "caption": ..., "image": ..., "references": ...}. In a tar these are extensions of members or
            fields of the `.json`. Without a uid, rows are called `<name of the shard>/<number>`.
            Several columns for captions, or references, are refused unless one is named; in a tar or in
            JSON lines only where their texts differ.
        retry_failed: score the rows of a finished target again that have an `error`, such as those whose
            image was not there; the other rows stay as they are. The target's rows are in memory then.
        window: rows that are in memory together; fewer where they have more than 128 MB.
        progress: called with a number of rows whenever so many more are done.
        **options: of a metric given by name, as for `capeval_core.load`.

    Raises:
        TypeError, ValueError: an option, a metric or a column that does not exist, a source that cannot be
            read, a target of other scores; before weights are opened.
        ValueError: a metric whose scores depend on what else is scored: without `statistics`, or relative to
            one set as ECO's.
        OSError: the target cannot be written; nothing of it stays.
        MemoryError: a single row does not fit into memory.

    >>> import io, tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (48, 48), "red").save(file, "PNG")
    >>> rows = {"uid": ["a", "b"], "caption": ["red", "blue"], "image": [file.getvalue(), b"GIF"]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pq.write_table(pa.table(rows), f"{folder}/0.parquet")
    ...     result = score_shard(f"{folder}/0.parquet", f"{folder}/out/0.parquet", "pacs", weights="tiny")
    >>> result.rows, result.failed, result.skipped
    (2, 1, False)
    """
    begin, end = Place.of("source", source), Place.of("target", target)
    named = check_columns(columns)
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        raise wrong_option("window", window, "", "expected a whole number of at least 1", verb="")
    if begin.is_same(end):
        raise wrong_option("target", end.address, "the source", "name another file")
    if isinstance(metric, BatchScorer) and options:
        raise wrong_option("metric", "BatchScorer(...)", f"open already: pass {', '.join(options)} to it")
    scorer = metric if isinstance(metric, BatchScorer) else BatchScorer(metric, **options)
    reader_class = _reader_of(begin)
    version = begin.version()
    folder = begin.parent if images is None else images_folder(images)
    place = {"images": folder.identity}
    stored, kept = _finished(end), None
    if stored is not None:
        settings = {**settings_of(scorer, named), **place}
        known = bool(version) and (stored["source"], stored["version"]) == (begin.address, version)
        now = {**settings, "checksum": stored["checksum"] if known else _checksum(begin)}
        if (problem := other_scores(end, stored, now)) is not None:
            raise FileError(problem)
        if not differing(stored, now):
            if not (retry_failed and stored["failed"]):
                return _result(begin, end, stored, skipped=True)
            kept = pa.Table.from_batches(read_batches(end))
    with begin.local_copy() as path:
        reader = reader_class(path, begin.address, scorer.columns, named, ImageFolder(folder))
        about = {"checksum": _checksum_of(path), "source": begin.address, "version": version}
        note = {**settings_of(scorer, named), **place, **about}
        counts = _write(begin, end, note, reader, scorer, window, progress, kept)
    return _result(begin, end, {**note, **counts}, scored=counts["scored"])


def images_folder(images: str | PathLike[str]) -> Place:
    """The folder of images that a user names. Raises FileError where this machine has no such folder."""
    place = Place.of("images", images)
    if place.is_local and not Path(place.path).is_dir():
        raise FileError(file_problem(place.address, "there is no such folder", "check the path"))
    return place


def settings_of(scorer: BatchScorer, columns: Mapping[str, str] | None) -> dict[str, Any]:
    """What scores depend on beside the shard and its images; it opens the weights."""
    return {"columns": check_columns(columns), "empty": scorer.empty, "signature": scorer.signature}


def differing(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What a target's note has otherwise. A folder of images counts where a row has a path in it."""
    return [
        f"{name}: {stored.get(name)!r} there, {value!r} now"
        for name, value in now.items()
        if stored.get(name) != value and not (name == "images" and stored.get("looked_up") is False)
    ]


def other_scores(
    target: Place,
    stored: Mapping[str, Any],
    now: Mapping[str, Any],
    fix: str = "choose another target, or delete it",
) -> Problem | None:
    """The problem of a target that holds other scores; without any score it is made again."""
    found = differing(stored, now)
    if not found or stored["failed"] == stored["rows"]:
        return None
    return file_problem(target.address, f"holds other scores ({'; '.join(found)})", fix)


def _write(
    source: Place,
    target: Place,
    note: Mapping[str, Any],
    reader: Reader,
    scorer: BatchScorer,
    window: int,
    progress: Callable[[int], None] | None,
    kept: pa.Table | None,
) -> dict[str, Any]:
    """Write the scores of all rows; how many there are, failed and are truncated, and what was read of them.

    kept: the rows of an earlier output, of which those without a score are scored again.
    """
    uid = pa.field("uid", pa.string(), nullable=False)
    schema = pa.schema([uid, *scorer.schema()], metadata={NOTE: json.dumps(note)})
    counts: dict[str, Any] = {"rows": 0, "failed": 0, "truncated": 0, "error": None}
    scored = 0
    memory = FreedMemory()
    scorer.forget()  # so that a rerun, by whichever worker, writes the very same file
    with whole_table(target, schema) as writer:
        for rows in reader.windows(window):
            old = None if kept is None else kept.slice(counts["rows"], len(rows["uid"])).to_pydict()
            again = [i for i in range(len(rows["uid"])) if old is None or old["score"][i] is None]
            found = (
                scorer({name: [values[i] for i in again] for name, values in rows.items()}) if again else {}
            )
            if old is not None:
                for name, values in found.items():
                    for i, value in zip(again, values, strict=True):
                        old[name][i] = value
            table = pa.table(old or {"uid": rows["uid"], **found}, schema=schema)
            del rows  # its images leave memory before the next ones are read
            writer.write(table)
            counts["rows"] += len(table)
            counts["failed"] += table["score"].null_count
            counts["error"] = counts["error"] or next(filter(None, table["error"].to_pylist()), None)
            counts["truncated"] += sum(cut > 0 for cut in table["truncated"].to_pylist())
            scored += len(again)
            memory.add(len(table))
            if progress is not None:
                progress(len(again))
        if source.is_local and source.version() != note["version"]:
            raise FileError(file_problem(source.address, "changed while it was read", "score it again"))
        counts["looked_up"] = reader.images.used
        counts["read"] = {role: list(names) for role, names in reader.used.items()}
        writer.add_note(COUNTS, sealed(note, counts))
    if not counts["rows"]:
        warn(f"{reader.address} has no rows: its output has none either")
    return {**counts, "scored": scored}


def _reader_of(source: Place) -> type[Reader]:
    name = source.name.lower()
    for end in sorted(FORMATS, key=len, reverse=True):
        if name.endswith(end):
            return FORMATS[end]
    raise FileError(
        file_problem(source.address, "is no shard by its name", f"one ends in {', '.join(FORMATS)}")
    )


def _finished(target: Place) -> dict[str, Any] | None:
    """The note of a target that is there and whole."""
    if not target.exists():
        return None
    try:
        return check_whole(target)
    except DamagedError as error:
        warn(f"{target.address} {error.found}: it is made again")
        return None


def _checksum(place: Place) -> str:
    with place.local_copy() as path:
        return _checksum_of(path)


def _checksum_of(path: Path) -> str:
    with path.open("rb") as file:
        return checksum(file)


def _result(
    source: Place, target: Place, note: Mapping[str, Any], *, skipped: bool = False, scored: int = 0
) -> ShardResult:
    names = ("rows", "failed", "error", "truncated", "signature", "checksum")
    counts = {name: note[name] for name in names}
    return ShardResult(
        source.address, target.address, **counts, skipped=skipped, scored=scored, columns=note["read"]
    )
