"""Rows and shards scored: a row that cannot be scored costs itself, and a shard becomes one file, once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from capeval_core.cache import FeatureCache
from capeval_core.errors import (
    FileError,
    Problem,
    ProblemsError,
    described,
    file_error,
    naming,
    place,
    warn,
    wrong_option,
)
from capeval_core.inputs.samples import Samples, argument_of, medium_of
from capeval_core.integrations.shards.readers import Place, Shard, check_columns, format_of, reason_of
from capeval_core.metric import CaptionMetric, CommonOptions
from capeval_core.registry import metric_class
from capeval_core.result import parts_of
from capeval_core.rows import FreedMemory, canonical

_CACHE_BYTES, _TEXT_BYTES = 32 << 20, 8 << 20
"""Memory for features of images and of texts: those of a web collection rarely come again."""
_NAMES = {"captions": "caption", "images": "image", "videos": "video"}
_ROW = "\n"  # between the number of a row and the place of a problem in it
NOTE = b"capeval_scores"
"""Key of an output's metadata: what its scores depend on, how many there are, and a digest of both."""
_NOTED = ("rows", "failed", "error", "truncated", "signature", "checksum")
_COLUMNS = ["uid", "score", "parts", "truncated", "error"]
_MAGIC = b"PAR1"
_AT_ONCE = 65_536  # rows of an output that are read together


class BatchScorer:
    """A metric that scores batches of plain rows, columns in and columns out; it is opened when it is used.

    Args:
        metric: a name, or a metric of `capeval_core.load`, whose models are shared.
        **options: of a metric given by name, and `media="video"` for one on videos, but no `rows`. A broken
            image costs its row, whatever `on_error` says.

    Raises:
        TypeError, ValueError: a metric or an option that does not exist; a metric whose scores depend on what
            else is scored: without `statistics`, or relative to one set as ECO's.
    """

    metric_class: type[CaptionMetric]
    options: CommonOptions
    columns: list[str]
    """The columns that a batch must have."""

    def __init__(self, metric: str | CaptionMetric, **options: Any) -> None:
        if isinstance(metric, CaptionMetric) and not options:
            self.metric_class, chosen = type(metric), metric.options
        elif isinstance(metric, str):
            self.metric_class = metric_class(metric, options.pop("media", None))
            chosen = self.metric_class.Options.of(metric, options)
        else:
            fix = 'expected a name ("pacs"), with options, or a metric of capeval_core.load(...), without'
            raise wrong_option("metric", metric, f"is {described(metric)}", fix, kind=TypeError)
        if chosen.rows is not None:
            fix = "leave it out: a shard's own output keeps its scores"
            raise wrong_option("rows", chosen.rows, "is not for rows that are scored one by one", fix)
        chosen.check_separable(self.metric_class)
        self.options = replace(chosen, on_error="nan", evidence=False)
        self.options.check(self.metric_class)
        argument = argument_of(self.metric_class.media)
        self._visual = [] if argument is None else [medium_of(argument)]
        references = ["references"] if self.metric_class.needs_references else []
        self.columns = ["caption", *self._visual, *references]
        self._given = metric if isinstance(metric, CaptionMetric) else None  # keeps its models in memory
        self._opened: CaptionMetric | None = None

    @property
    def metric(self) -> CaptionMetric:
        """The open metric."""
        if self._opened is None:
            self._opened = self.metric_class(self.options)
            self.forget()
        return self._opened

    def forget(self) -> None:
        """Forget features in memory, whose last bits depend on the batch that they were made in."""
        if self._opened is not None and self.options.cache is None:
            self._opened.cache = FeatureCache(_CACHE_BYTES, text_bytes=_TEXT_BYTES)

    @property
    def signature(self) -> str:
        """Everything that a score depends on beside its row."""
        return self.metric.signature()

    def schema(self) -> pa.Schema:
        """The columns that come out; `parts` has a field per component of the metric, a number or a list."""
        empty = self.metric.ROW.empty_table()
        kinds = {
            name: pa.from_numpy_dtype(part.dtype) if isinstance(part, np.ndarray) else pa.list_(pa.float64())
            for name, part in parts_of(self.metric.aggregate(empty), empty).items()
        }
        parts = pa.struct(list(kinds.items())) if kinds else pa.null()
        columns = {"score": pa.float64(), "parts": parts, "truncated": pa.int32(), "error": pa.string()}
        return pa.schema(list(columns.items()))

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """`score`, `parts`, `truncated` and `error` of the rows of a batch; None where there is none.

        batch: `caption`, `image` or `video`, `references`, of which the metric needs `columns`. An `error`
        that is a text is why a row is not scored. Others are ignored.
        """
        columns = {name: list(batch[name]) for name in self.columns}
        rows = len(columns["caption"])
        given = batch.get("error", [None] * rows)
        errors = [str(error) if error and isinstance(error, str) else None for error in given]  # or NaN
        found: dict[str, list[Any]] = {"score": [None] * rows, "parts": [None] * rows}
        found |= {"truncated": [0] * rows, "error": errors}
        samples, scored = self._checked(columns, errors)
        if samples is not None:
            table = canonical(self.metric.encode_all(samples))
            result = self.metric.combine(table)
            for i, (row, cut) in enumerate(zip(scored, table["truncated"].to_pylist(), strict=True)):
                found["truncated"][row], errors[row] = cut, result.errors.get(i)
                if errors[row] is None:
                    found["score"][row] = result.scores[i]
                    found["parts"][row] = {name: part[i] for name, part in result.parts.items()} or None
        return found

    def _checked(
        self, columns: Mapping[str, list[Any]], errors: list[str | None]
    ) -> tuple[Samples | None, list[int]]:
        """Checked samples of the rows that can be scored, and which these are; the others get an error."""

        def named(argument: str, path: Sequence[int | str]) -> str:
            return f"{path[0]}{_ROW}{place(argument, path[1:])}"

        while rows := [row for row, error in enumerate(errors) if error is None]:
            chosen = {name: [column[row] for row in rows] for name, column in columns.items()}
            visuals = chosen[self._visual[0]] if self._visual else None
            texts = chosen["caption"], visuals, chosen.get("references")
            try:
                with naming(_NAMES, row=named):
                    samples = self.options.check_input(self.metric_class, *texts)
            except ProblemsError as error:
                for problem in error.problems:
                    number, _, where = problem.where.partition(_ROW)
                    row, reason = rows[int(number)], str(problem._replace(where=where, fix=""))
                    errors[row] = "; ".join(filter(None, [errors[row], reason]))
            else:
                images = [image.at(self._visual[0]) if self._visual else image for image in samples.images]
                return replace(samples, images=images), rows
        return None, []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_given": None, "_opened": None}


# shards


@dataclass(frozen=True)
class ShardResult:
    """The outcome of a shard: the addresses of its files, and counts of rows.

    error: of the first row without a score. truncated: rows with a text longer than the encoder reads.
    checksum: SHA-256 of the source. skipped: whether the target was there already. scored: rows that this
    call scored. columns: the names of those that were read, by what they hold.
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
    window: int = 2048,
    progress: Callable[[int], None] | None = None,
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
        **options: of a metric given by name, as for `capeval_core.load`.

    Raises:
        TypeError, ValueError: as `BatchScorer`; a source that cannot be read, a target of other scores.
        OSError: the target cannot be written.
    """
    begin, end, chosen = Place.of("source", source), Place.of("target", target), check_columns(columns)
    if begin.identity == end.identity:
        raise wrong_option("target", end.address, "is the source", "name another file")
    given: Any = metric  # a scorer that is ready, if it has all its options
    scorer = given if isinstance(given, BatchScorer) and not options else BatchScorer(given, **options)
    format_of(begin)
    version = begin.version()
    folder = begin.parent if images is None else images_folder(images)
    stored = _finished(end)
    retry = stored is not None and retry_failed and stored["failed"]

    settings = {**settings_of(scorer, chosen), "images": folder.identity}

    def is_kept(checksum: str) -> bool:
        fix = "choose another target, or delete it"
        return stored is not None and is_same(end, stored, {**settings, "checksum": checksum}, fix)

    def result(note: Mapping[str, Any], **run: Any) -> ShardResult:
        own = {name: note[name] for name in _NOTED}
        return ShardResult(begin.address, end.address, **own, columns=note["read"], **run)

    read_before = stored and (stored["source"], stored["version"]) == (begin.address, version or None)
    if stored and read_before and is_kept(stored["checksum"]) and not retry:
        return result(stored, skipped=True)
    with begin.local_copy() as path:
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        kept = is_kept(checksum)
        if stored is not None and kept and not retry:
            return result(stored, skipped=True)
        earlier = pa.Table.from_batches(read_batches(end)) if kept else None
        shard, memory, scored = Shard(path, begin, scorer.columns, chosen, folder), FreedMemory(), 0
        windows = shard.windows(max(1, window))
        note = {**settings, "checksum": checksum, "source": begin.address, "version": version}
        note |= {"error": None, "rows": 0, "failed": 0, "truncated": 0}
        scorer.forget()  # so that a rerun, by whichever worker, writes the very same file
        schema = pa.schema([pa.field("uid", pa.string(), nullable=False), *scorer.schema()])
        with written(end, schema, note) as parquet:
            for rows in windows:
                size = len(rows["uid"])
                before = None if earlier is None else earlier.slice(note["rows"], size).to_pydict()
                table, again = _scored(rows, scorer, schema, before)
                del rows  # its images leave memory before the next ones are read
                parquet.write_table(table)
                note["rows"] += size
                note["failed"] += table["score"].null_count
                note["error"] = note["error"] or next(iter(table["error"].drop_null().to_pylist()), None)
                note["truncated"] += sum(cut > 0 for cut in table["truncated"].to_pylist())
                scored += again
                memory.add(size)
                if progress is not None:
                    progress(again)
            if begin.is_local and begin.version() != version:
                raise file_error(begin.address, "changed while it was read", "score it again")
            note["read"] = {role: list(names) for role, names in shard.used.items()}
            note["looked_up"] = shard.looked_up
    if not note["rows"]:
        warn(f"{begin.address} has no rows: its output has none either")
    return result(note, skipped=False, scored=scored)


def _scored(
    rows: dict[str, list[Any]], scorer: BatchScorer, schema: pa.Schema, before: dict[str, list[Any]] | None
) -> tuple[pa.Table, int]:
    """The output of rows, and how many of them were scored: those without a score in an earlier one."""
    output = {**(before or {name: [None] * len(rows["uid"]) for name in schema.names}), "uid": rows["uid"]}
    again = [i for i, score in enumerate(output["score"]) if score is None]
    found = scorer({name: [values[i] for i in again] for name, values in rows.items()}) if again else {}
    for name, values in found.items():
        for i, value in zip(again, values, strict=True):
            output[name][i] = value
    return pa.table(output, schema=schema), len(again)


def images_folder(images: str | PathLike[str]) -> Place:
    """The folder of images that a user names; FileError where this machine has no such folder."""
    place = Place.of("images", images)
    if place.is_local and not Path(place.path).is_dir():
        raise file_error(place.address, "there is no such folder", "check the path")
    return place


def settings_of(scorer: BatchScorer, columns: Mapping[str, str] | None) -> dict[str, Any]:
    """What scores depend on beside the shard and its images; it opens the weights."""
    empty, signature = str(scorer.options.empty), scorer.signature
    return {"columns": dict(columns or {}), "empty": empty, "signature": signature}


def is_same(target: Place, stored: Mapping[str, Any], now: Mapping[str, Any], fix: str) -> bool:
    """Whether a target is of these settings; FileError if it has scores of others."""
    found = [
        f"{name}: {stored.get(name)!r} there, {value!r} now"
        for name, value in now.items()
        if stored.get(name) != value and (name != "images" or stored["looked_up"])  # a row has a path there
    ]
    if found and stored["failed"] < stored["rows"]:
        raise file_error(target.address, f"holds other scores ({'; '.join(found)})", fix)
    return not found


def _finished(target: Place) -> dict[str, Any] | None:
    """The note of a target that is there and whole."""
    with target.reading():
        there = target.filesystem.exists(target.path)
    try:
        return read_note(target, whole=True) if there else None
    except DamagedError as error:
        warn(f"{target.address} {error.problems[0].found}: it is made again")
        return None


# outputs


class DamagedError(FileError):
    """An output is not as it was written."""

    def __init__(self, place: Place, found: str) -> None:
        super().__init__(Problem(place.address, found, "delete it and score its shard again", FileError))


@contextmanager
def written(
    place: Place, schema: pa.Schema, note: dict[str, Any], key: bytes = NOTE
) -> Iterator[pq.ParquetWriter]:
    """A table that appears as a whole or not at all; its footer holds what the note is in the end."""
    with place.whole() as partial, pq.ParquetWriter(partial, schema, write_page_checksum=True) as parquet:
        yield parquet
        parquet.add_key_value_metadata({key: json.dumps({**note, "digest": _digest(note)})})


def _digest(note: Mapping[str, Any]) -> str:
    """A digest of a note: Parquet has none of its metadata."""
    return hashlib.blake2b(json.dumps(note, sort_keys=True).encode(), digest_size=16).hexdigest()


@contextmanager
def opened(place: Place) -> Iterator[pq.ParquetFile]:
    """An open table, which the block does nothing but read. DamagedError: it is not as it was written."""
    place.version()  # refuses pipes and devices: opening one could block for ever
    with place.reading(), place.filesystem.open(place.path, "rb") as file:
        if file.read(len(_MAGIC)) not in (b"", _MAGIC):
            raise file_error(place.address, "is not Parquet", "choose another file")
        try:
            yield pq.ParquetFile(file, page_checksum_verification=True)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise DamagedError(place, f"is cut off or damaged ({reason_of(error)})") from error


def read_note(place: Place, key: bytes = NOTE, *, whole: bool = False) -> dict[str, Any]:
    """The note in an output; `whole`: whose every page can be read, with its columns and as many rows."""
    with opened(place) as parquet:
        metadata, names = parquet.metadata.metadata or {}, parquet.schema_arrow.names
        rows = sum(map(len, parquet.iter_batches(_AT_ONCE))) if whole else 0
    try:
        note: dict[str, Any] = json.loads(metadata[key])
    except (KeyError, ValueError) as error:
        found = "is Parquet of something else, not the scores of a shard"
        raise file_error(place.address, found, "choose another file") from error
    if note.pop("digest", None) != _digest(note):
        raise DamagedError(place, "has a damaged note")
    if whole and (names != _COLUMNS or rows != note["rows"]):
        found = f"has {rows:,} rows of {', '.join(names)}, not its {note['rows']:,} of scores"
        raise DamagedError(place, found)
    return note


def read_batches(place: Place, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of an output in order, some at a time."""
    with opened(place) as parquet:
        yield from parquet.iter_batches(_AT_ONCE, columns=columns)
