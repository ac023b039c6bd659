"""Scores of one shard: a Parquet file with a row for each of its rows, whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import pyarrow as pa

from capeval_core.errors import file_error, warn, wrong_option
from capeval_core.integrations.shards.failures import FailureCounts
from capeval_core.integrations.shards.outputs import read_batches, written
from capeval_core.integrations.shards.places import Place
from capeval_core.integrations.shards.plan import images_folder, is_same, note_of_target, settings_of
from capeval_core.integrations.shards.readers import Shard, check_columns, format_of
from capeval_core.integrations.shards.scorer import BatchScorer
from capeval_core.metric import CaptionMetric
from capeval_core.run import FreedMemory


@dataclass(frozen=True)
class ShardResult:
    """The outcome of a shard: the addresses of its files, and counts of rows.

    error: of the first row without a score. truncated: rows with a text longer than the encoder reads.
    checksum: SHA-256 of the source. skipped: whether the target was there already. scored: rows that this
    call scored. columns: the names of those that were read, by what they hold. unread: names of columns that
    were not. failures: the first error of each kind, and how many rows have one of this kind. outside: failed
    rows whose image is a file outside of the shard, which a retry mends once the file is there. traits: how
    many of the images that this call scored lie on their side (`turned`), or have 16 bits a channel (`deep`).
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
    unread: Sequence[str] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    outside: int = 0
    traits: Mapping[str, int] = field(default_factory=dict)


_FROM_NOTE = (
    "rows", "failed", "error", "truncated", "signature", "checksum", "columns_read", "unread", "failures",
    "outside",
)  # fmt: skip


def score_shard(
    source: str | PathLike[str],
    target: str | PathLike[str],
    metric: str | CaptionMetric | BatchScorer,
    *,
    images: str | PathLike[str] | None = None,
    columns: Mapping[str, str] | None = None,
    retry_failed: bool = False,
    window: int = 2048,
    progress: Callable[[int], None] | None = None,
    expected: Callable[[int], None] | None = None,
    **options: Any,
) -> ShardResult:
    """Score the rows of one shard into one Parquet file, which appears as a whole or not at all.

    What both hold, and what is kept, refused or made again, is in `docs/scale.md`.

    Args:
        source, target: paths, or addresses of fsspec.
        metric: a name, an open metric, or a `BatchScorer`, which is best for several shards.
        images: folder that paths of images are relative to, or its address; None: that of the source.
        columns: names of columns where they are not found by themselves: {"caption": "alt_text"}.
        retry_failed: score the rows of a finished target again that have an `error`; the other rows stay.
        window: rows that are in memory together; fewer where they have more than 128 MB.
        progress: called with a number of rows whenever so many more are done.
        expected: called with about how many rows there are to score, before each window.
        **options: of a metric given by name, as for `capeval_core.load`.

    Raises:
        TypeError, ValueError: as `BatchScorer`; a source that cannot be read, a target of other scores.
        OSError: the target cannot be written.
    """
    source_place = Place.of("source", source)
    target_place = Place.of("target", target)
    column_of = check_columns(columns)
    if source_place.identity == target_place.identity:
        raise wrong_option("target", target_place.address, "is the source", "name another file")
    scorer = metric if isinstance(metric, BatchScorer) and not options else BatchScorer(metric, **options)  # type: ignore[arg-type]
    format_of(source_place)
    version = source_place.version()
    folder = source_place.parent if images is None else images_folder(images)
    settings = {**settings_of(scorer, column_of), "images": folder.identity}

    def result(
        note: Mapping[str, Any], *, skipped: bool, scored: int = 0, traits: Mapping[str, int] | None = None
    ) -> ShardResult:
        outcome = {name: note[name] for name in _FROM_NOTE}
        columns_read = outcome.pop("columns_read")
        return ShardResult(
            source_place.address,
            target_place.address,
            **outcome,
            columns=columns_read,
            skipped=skipped,
            scored=scored,
            traits=traits or {},
        )

    stored = note_of_target(target_place)
    finished = stored is not None and not (retry_failed and stored["failed"])
    if stored is not None and finished:
        unchanged = (stored["source"], stored["version"]) == (source_place.address, version or None)
        if unchanged and is_same(target_place, stored, settings):
            return result(stored, skipped=True)
    with source_place.local_copy() as path:
        with path.open("rb") as file:
            settings["checksum"] = hashlib.file_digest(file, "sha256").hexdigest()
        reusable = stored is not None and is_same(target_place, stored, settings)
        if stored is not None and reusable and finished:
            return result(stored, skipped=True)
        earlier = pa.Table.from_batches(read_batches(target_place)) if reusable else None
        shard = Shard(path, source_place, scorer.columns, column_of, folder)
        windows = shard.windows(max(1, window))
        note = {
            **settings,
            "source": source_place.address,
            "version": version,
            "error": None,
            "rows": 0,
            "failed": 0,
            "truncated": 0,
            "outside": 0,
        }
        failures = FailureCounts()
        memory = FreedMemory()
        scored = 0
        reused = 0
        scorer.traits.clear()
        scorer.forget()  # so that a rerun, by whichever worker, writes the very same file
        schema = pa.schema([pa.field("uid", pa.string(), nullable=False), *scorer.schema()])
        with written(target_place, schema, note) as parquet:
            for rows in windows:
                count = len(rows["uid"])
                before = None if earlier is None else earlier.slice(note["rows"], count).to_pydict()
                if expected is not None:
                    expected(shard.expected_rows - reused)
                table, count_scored = _scored(rows, scorer, schema, before, progress)
                outside = rows["outside"]
                del rows  # its images leave memory before the next ones are read
                parquet.write_table(table)
                for error, is_outside in zip(table["error"].to_pylist(), outside, strict=True):
                    if error is not None:
                        note["error"] = note["error"] or error
                        failures.add(error)
                        # What is wrong with a caption, or with bytes of the shard, no retry can mend.
                        note["outside"] += is_outside and error.startswith(shard.visual)
                note["rows"] += count
                note["failed"] += table["score"].null_count
                note["truncated"] += sum(token_ids > 0 for token_ids in table["truncated"].to_pylist())
                scored += count_scored
                reused += count - count_scored
                memory.add(count)
            if source_place.is_local and source_place.version() != version:
                raise file_error(
                    source_place.address, "changed while it was read", "score it again", sentence=True
                )
            note["columns_read"] = {role: list(names) for role, names in shard.used.items()}
            note["unread"] = shard.unread
            note["failures"] = failures.rows
            note["looked_up"] = shard.looked_up
    if not note["rows"]:
        warn(f"{source_place.address} has no rows: its output has none either")
    return result(note, skipped=False, scored=scored, traits=dict(scorer.traits))


def _scored(
    rows: dict[str, list[Any]],
    scorer: BatchScorer,
    schema: pa.Schema,
    before: dict[str, list[Any]] | None,
    progress: Callable[[int], None] | None,
) -> tuple[pa.Table, int]:
    """The output of rows, and how many of them were scored: those without a score in an earlier one."""
    output = before or {name: [None] * len(rows["uid"]) for name in schema.names}
    output["uid"] = rows["uid"]
    missing = [position for position, score in enumerate(output["score"]) if score is None]
    encoded = 0

    def add(count: int) -> None:
        nonlocal encoded
        encoded += count
        if progress is not None and count:
            progress(count)

    if missing:
        batch = {}
        for name, values in rows.items():
            batch[name] = [values[position] for position in missing]
        for name, values in scorer.score_batch(batch, progress=add).items():
            for position, value in zip(missing, values, strict=True):
                output[name][position] = value
        add(len(missing) - encoded)  # those that were refused before they were encoded
    return pa.table(output, schema=schema), len(missing)
