"""Collections in shards: each is scored into one Parquet file, whole or not at all; and their outputs.

A row that cannot be scored costs itself.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import math
import os
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.errors import (
    FileError,
    Problem,
    Problems,
    ProblemsError,
    described,
    file_error,
    naming,
    noting,
    place,
    warn,
    wrong_option,
)
from capeval_core.inputs.images import short_reason
from capeval_core.inputs.samples import Samples, argument_of, medium_of
from capeval_core.integrations.shards.readers import Place, Shard, check_columns, format_of, stem_of
from capeval_core.kept import PARTIAL
from capeval_core.metric import CaptionMetric, CommonOptions
from capeval_core.models.device import cuda_is_lost
from capeval_core.project import __version__
from capeval_core.registry import metric_class
from capeval_core.result import parts_of
from capeval_core.rows import FreedMemory, canonical
from capeval_core.weights.folder import WeightsError

_NAMES = {"captions": "caption", "images": "image", "videos": "video"}
_ROW = "\n"  # between the number of a row and the place of a problem in it
NOTE = b"capeval_scores"
"""Key of an output's metadata: what its scores depend on, how many there are, and a digest of both."""
_ROWS = 65_536  # of an output, or of a temporary file, that are looked at together
_MERGED = b"capeval_merged"  # in a merged table's metadata: signature and number of shards
_QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_NAMED = 1000  # uids that are named at most where many come twice
_TRIALS = 3  # workers that a shard may kill before it is given up
Planned = tuple[str, str]
"""Addresses of a shard and of the file for its scores."""


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
        self._visual = argument and medium_of(argument)
        references = "references" if self.metric_class.needs_references else None
        self.columns = [name for name in ("caption", self._visual, references) if name]
        self._given = metric if isinstance(metric, CaptionMetric) else None  # keeps its models in memory
        self._opened: CaptionMetric | None = None

    @property
    def metric(self) -> CaptionMetric:
        """The open metric."""
        if self._opened is None:
            self._opened = self.metric_class(self.options)
            self.forget()
        return self._opened

    @property
    def signature(self) -> str:
        """Everything that a score depends on beside its row."""
        return self.metric.signature()

    def forget(self) -> None:
        """Forget features in memory: their last bits depend on the batch, and few would come again."""
        if self._opened is not None and self.options.cache is None:
            self._opened.run["cache"] = FeatureCache(32 << 20, text_bytes=8 << 20)

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
        scores, parts, truncated = list[Any]([None] * rows), list[Any]([None] * rows), [0] * rows
        samples, scored = self._checked(columns, errors)
        if samples is not None:
            table = canonical(self.metric.encode_all(samples))
            result = self.metric.combine(table)
            for i, (row, cut) in enumerate(zip(scored, table["truncated"].to_pylist(), strict=True)):
                truncated[row], errors[row] = cut, result.errors.get(i)
                if errors[row] is None:
                    scores[row] = result.scores[i]
                    parts[row] = {name: part[i] for name, part in result.parts.items()} or None
        return {"score": scores, "parts": parts, "truncated": truncated, "error": errors}

    def _checked(
        self, columns: Mapping[str, list[Any]], errors: list[str | None]
    ) -> tuple[Samples | None, list[int]]:
        """Checked samples of the rows that can be scored, and which these are; the others get an error."""

        def named(argument: str, path: Sequence[int | str]) -> str:
            return f"{path[0]}{_ROW}{place(argument, path[1:])}"

        while rows := [row for row, error in enumerate(errors) if error is None]:
            names = "caption", self._visual or "", "references"
            chosen = ([columns[name][row] for row in rows] if name in columns else None for name in names)
            try:
                with naming(_NAMES, row=named):
                    samples = self.options.check_input(self.metric_class, *chosen)
            except ProblemsError as error:
                for problem in error.problems:
                    number, _, where = problem.where.partition(_ROW)
                    row, reason = rows[int(number)], str(problem._replace(where=where, fix=""))
                    errors[row] = "; ".join(filter(None, [errors[row], reason]))
            else:
                visuals = [visual.at(self._visual) if self._visual else visual for visual in samples.images]
                return replace(samples, images=visuals), rows
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
    stored = _finished(end) or {}
    finished = bool(stored) and not (retry_failed and stored["failed"])
    settings = {**settings_of(scorer, chosen), "images": folder.identity}

    def result(note: Mapping[str, Any], **run: Any) -> ShardResult:
        own = {name: note[name] for name in ("rows", "failed", "error", "truncated", "signature", "checksum")}
        return ShardResult(begin.address, end.address, **own, columns=note["read"], **run)

    read_before = finished and (stored["source"], stored["version"]) == (begin.address, version or None)
    if read_before and is_same(end, stored, settings):
        return result(stored, skipped=True)
    with begin.local_copy() as path:
        with path.open("rb") as file:
            settings["checksum"] = hashlib.file_digest(file, "sha256").hexdigest()
        kept = bool(stored) and is_same(end, stored, settings)
        if kept and finished:
            return result(stored, skipped=True)
        earlier = pa.Table.from_batches(read_batches(end)) if kept else None
        shard, memory, scored = Shard(path, begin, scorer.columns, chosen, folder), FreedMemory(), 0
        windows = shard.windows(max(1, window))
        note = {**settings, "source": begin.address, "version": version}
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


def is_same(target: Place, stored: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a target is of these settings; FileError if it has scores of others."""
    found = [
        f"{name}: {stored.get(name)!r} there, {value!r} now"
        for name, value in now.items()
        if stored.get(name) != value and (name != "images" or stored["looked_up"])  # a row has a path there
    ]
    if found and stored["failed"] < stored["rows"]:
        fix = "choose another output, or delete it"
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
        if file.read(4) not in (b"", b"PAR1"):
            raise file_error(place.address, "is not Parquet", "choose another file")
        try:
            yield pq.ParquetFile(file, page_checksum_verification=True)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise DamagedError(place, f"is cut off or damaged ({short_reason(error)})") from error


def read_note(place: Place, key: bytes = NOTE, *, whole: bool = False) -> dict[str, Any]:
    """The note in an output; `whole`: whose every page can be read, with its columns and as many rows."""
    with opened(place) as parquet:
        metadata, names = parquet.metadata.metadata or {}, parquet.schema_arrow.names
        rows = sum(map(len, parquet.iter_batches(_ROWS))) if whole else 0
    try:
        note: dict[str, Any] = json.loads(metadata[key])
    except (KeyError, ValueError) as error:
        found = "is Parquet of something else, not the scores of a shard"
        raise file_error(place.address, found, "choose another file") from error
    if note.pop("digest", None) != _digest(note):
        raise DamagedError(place, "has a damaged note")
    if whole and (names != ["uid", "score", "parts", "truncated", "error"] or rows != note["rows"]):
        found = f"has {rows:,} rows of {', '.join(names)}, not its {note['rows']:,} of scores"
        raise DamagedError(place, found)
    return note


def read_batches(place: Place, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of an output in order, some at a time."""
    with opened(place) as parquet:
        yield from parquet.iter_batches(_ROWS, columns=columns)


# before a run


def plan_shards(inputs: Sequence[str], output: str) -> list[Planned]:
    """The shards that patterns (with `*`, `?`, `[...]`, `**`) match, by name, each with its target."""
    folder, problems = Place.of("output", output), Problems()
    if folder.is_local and Path(folder.path).is_file():
        problems.add(wrong_option("output", output, "is a file", "pass a folder"))
    planned: dict[str, str] = {}  # source by target
    for pattern in inputs:
        sources = [one for one in Place.of("input", pattern).matching() if one.name[0] != "."]
        if not sources:
            problems.add(wrong_option("input", pattern, "no file matches", "check the path"))
        if any(one.parent.identity == folder.identity for one in sources):
            found, fix = "is the folder of the input", "choose another folder for the scores"
            problems.add(wrong_option("output", output, found, fix))
        for source in sources:
            target = folder.child(stem_of(source.name) + ".parquet")
            other = planned.setdefault(target.address, source.address)
            if other != source.address:
                found = f"{other} and {source.address} would both go to {target.name}"
                problems.add(Problem("input", found, "give them other names, or run twice"))
    problems.raise_if_any()
    return [(planned[target], target) for target in sorted(planned)]


def refuse_other_scores(
    shards: Sequence[Planned], output: str, settings: Mapping[str, Any], images: str | None
) -> int:
    """How many targets are there; FileError for those of other settings, or of something else."""
    names = {place.name for place in _files_in(Place.of("output", output))}
    there = [shard for shard in shards if shard[1].rpartition("/")[2] in names]

    def problems_of(shard: Planned) -> Problems:
        target, found = Place.of("output", shard[1]), Problems()
        folder = Place.of("input", shard[0]).parent if images is None else Place.of("images", images)
        with noting(found), suppress(DamagedError):  # which is scored again
            is_same(target, read_note(target), {**settings, "images": folder.identity})
        return found

    with ThreadPoolExecutor(16) as threads:  # object stores answer slowly
        Problems(problem for found in threads.map(problems_of, there) for problem in found).raise_if_any()
    return len(there)


def write_manifest(output: str, results: Sequence[ShardResult], failures: dict[str, str], name: str) -> None:
    """Write a file about a run: totals, every shard with its counts, and why shards have no scores."""
    of_one_run = ("signature", "skipped", "scored")
    shards = [asdict(result) for result in sorted(results, key=lambda result: result.target)]
    content = {
        "capeval": __version__,
        "signature": results[0].signature if results else None,
        **{count: sum(shard[count] for shard in shards) for count in ("rows", "failed", "truncated")},
        "shards": [{key: one[key] for key in one if key not in of_one_run} for one in shards],
        "without_scores": failures,
    }
    with Place.of("output", output).child(name).whole() as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _files_in(folder: Place) -> list[Place]:
    """All files in a folder, by name; none where there is no such folder."""
    return Place(folder.filesystem, f"{glob.escape(folder.path.rstrip('/'))}/*").matching()


# the run


@dataclass(frozen=True)
class FailedShard:
    """A shard without scores; `ends`: so are all others; `unfit`: its process is of no use any more."""

    source: str
    reason: str
    ends: bool = False
    unfit: bool = False


Outcome = ShardResult | FailedShard


def score_one(shard: Planned, scorer: BatchScorer, settings: Mapping[str, Any]) -> Outcome:
    """Score a shard by some of `score_shard`'s keywords; what is wrong with it alone costs no other one."""
    try:
        return score_shard(*shard, scorer, **settings)
    except (MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        unfit = isinstance(error, RuntimeError)  # of a device, or of a metric's own code
        # Without weights, or where no target can be written, no other shard has scores either.
        ends = isinstance(error, (WeightsError, OSError)) or (unfit and cuda_is_lost(scorer.options.device))
        reason = f"{type(error).__name__}: {error}" if unfit else str(error)
        return FailedShard(shard[0], reason or "a window of its rows does not fit into memory", ends, unfit)


def score_shards(
    shards: Sequence[Planned],
    scorer: BatchScorer,
    settings: Mapping[str, Any],
    *,
    workers: int,
    gpus: float | None = None,
    address: str | None = None,
) -> Iterator[Outcome]:
    """Score shards on Ray, one task each, and give results as they come; OSError if no worker starts."""
    import ray

    todo = deque(shards)
    tasks: dict[Any, tuple[Any, Planned | None]]
    with _connected(workers, gpus, address) as gpus:
        restarts: dict[str, Any] = {"max_restarts": -1, "max_task_retries": _TRIALS - 1}
        actor: Any = ray.remote(num_cpus=1, num_gpus=gpus, **restarts)(_ShardWorker)
        started = [actor.remote(scorer, settings, workers * (address is None)) for _ in shards[:workers]]
        tasks = {worker.__ray_ready__.remote(): (worker, None) for worker in started}
        # A worker for which a cluster has no place stays without a shard, and is not waited for.
        while todo or any(shard is not None for _, shard in tasks.values()):
            (task,), _ = ray.wait(list(tasks))
            worker, shard = tasks.pop(task)
            try:
                outcome: Any = ray.get(task)
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as error:
                if shard is None:
                    reason = str(error).splitlines()[-1].strip()
                    raise OSError(f"workers die as they start: {reason}") from error
                found = f"{_TRIALS} workers were killed as they scored this shard, for want of memory perhaps"
                outcome = FailedShard(shard[0], f"{found}: run the same command again with fewer --workers")
            # After a RuntimeError CUDA may be lost to the process: it has failed that shard, and starts anew.
            if isinstance(outcome, FailedShard) and outcome.unfit:
                outcome = replace(outcome, ends=False)  # which holds for that process
                ray.kill(worker, no_restart=False)
            if todo:
                following = todo.popleft()
                tasks[worker.score.remote(following)] = worker, following
            if shard is not None:
                yield outcome


class _ShardWorker:
    """An actor that scores shards."""

    def __init__(self, scorer: BatchScorer, settings: Mapping[str, Any], sharing: int) -> None:
        import torch

        self.scorer, self.settings = scorer, settings
        if sharing:  # the CPUs of this machine
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // sharing))

    def score(self, shard: Planned) -> Outcome:
        return score_one(shard, self.scorer, self.settings)


@contextmanager
def _connected(workers: int, gpus: float | None, address: str | None) -> Iterator[float]:
    """A connection to Ray, one that is there already or a new one; gives the GPUs of a worker."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    mine, here = not ray.is_initialized(), address is None
    with tempfile.TemporaryDirectory(prefix="capeval-ray-", ignore_cleanup_errors=True) as folder:
        own: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if here:  # only addresses and counts go to the object store
            own |= {"num_cpus": max(workers, os.cpu_count() or 1), "object_store_memory": 100 << 20}
            own |= {"include_dashboard": False, "_temp_dir": folder}
        if mine:
            ray.init(address or "local", **own)
        try:
            resources: Any = ray.cluster_resources  # which has no types
            there = int(resources().get("GPU", 0))
            # A share of a GPU that lets all workers run at once; no share lies on two GPUs.
            share = math.floor(1000 / math.ceil(workers / there)) / 1000 if there else 0.0
            each = share if gpus is None else gpus
            if mine and here and each > there:  # no worker would ever start
                fix = "lower it, or leave it out"
                raise wrong_option("gpus_per_worker", each, f"is too many: there are {there} GPUs", fix)
            yield each
        finally:
            if mine:
                ray.shutdown()


# after it


def _outputs_in(folder: str | PathLike[str]) -> list[Place]:
    """The Parquet files in a folder, by name; files that were not finished are none."""
    place = Place.of("folder", folder)
    outputs = [one for one in _files_in(place) if one.name.endswith(".parquet") and one.name[0] != "."]
    if not outputs:
        fix = "pass the folder that shards were scored into"
        raise file_error(place.address, "has no scores of shards (*.parquet)", fix)
    return outputs


def merge_shards(folder: str | PathLike[str], target: str | PathLike[str]) -> int:
    """Join the outputs of all shards in a folder into one Parquet table, and return its number of rows.

    Shards come in the order of their names. Uids that come twice stay twice: `check_shards` names them.
    target: the Parquet file to write, outside of the folder; a merged table that is there is replaced.
    """
    outputs, end = _outputs_in(folder), Place.of("target", target)
    if end.identity.rpartition("/")[0] == outputs[0].parent.identity or not end.name.endswith(".parquet"):
        fix = "name a file elsewhere that ends in .parquet"
        raise wrong_option("target", end.address, "is one of the shards, or no table by its name", fix)
    if end.filesystem.exists(end.path):
        read_note(end, _MERGED)  # nothing else is replaced
    problems = Problems()
    signatures: list[str] = []
    for output in outputs:
        with noting(problems):
            signatures.append(signature := read_note(output)["signature"])
            if signature != signatures[0]:
                found = f"has the signature {signature!r}, others have {signatures[0]!r}"
                raise file_error(output.address, found, "merge shards of one signature")
    problems.raise_if_any()
    with opened(outputs[0]) as parquet:
        schema = parquet.schema_arrow.remove_metadata()
    rows = 0
    with written(end, schema, {"signature": signatures[0], "shards": len(outputs)}, _MERGED) as merged:
        for output in outputs:
            for batch in read_batches(output):
                merged.write_table(pa.Table.from_batches([batch]).cast(schema))
                rows += len(batch)
    return rows


@dataclass
class ShardCheck:
    """What is wrong with a folder of outputs; nothing if `ok`.

    signatures: the shards of each. duplicates: the first 1,000 uids that come more than once, how often in
    each shard. repeated: rows beyond the first of each uid, above 1,000 by a hash of 64 bits. damaged: shards
    that are no whole outputs, and why. failed: rows without a score by shard. without_scores: shards that
    have rows, and no score. unfinished: files that an interrupted run left.
    """

    shards: int
    rows: int = 0
    signatures: dict[str, list[str]] = field(default_factory=dict)
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)
    repeated: int = 0
    damaged: dict[str, str] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)
    failed: dict[str, int] = field(default_factory=dict)
    without_scores: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every uid comes once, all signatures are equal, every shard is whole and has a score."""
        one = len(self.signatures) <= 1 and not self.repeated
        return one and not self.damaged and not self.without_scores


def check_shards(folder: str | PathLike[str]) -> ShardCheck:
    """Check the outputs of all shards in a folder: every uid once, one signature, every page as written."""
    outputs = _outputs_in(folder)
    found, whole = ShardCheck(len(outputs)), list[Place]()
    for output in outputs:
        try:
            note = read_note(output, whole=True)
        except FileError as error:
            found.damaged[output.name] = error.problems[0].found
            continue
        whole.append(output)
        found.signatures.setdefault(note["signature"], []).append(output.name)
        if note["failed"]:
            found.failed[output.name] = note["failed"]
            if note["failed"] == note["rows"]:
                found.without_scores.append(output.name)
        found.rows += note["rows"]
    found.duplicates, found.repeated = _duplicates(whole)
    files = _files_in(Place.of("folder", folder))
    found.unfinished = [file.name for file in files if file.name.endswith(PARTIAL)]
    return found


def _duplicates(outputs: Sequence[Place]) -> tuple[dict[str, dict[str, int]], int]:
    """Uids that come more than once, in which shards how often, and the rows beyond the first of each."""
    # By hash, sorted on disk; those that are named are confirmed by their texts.
    suspects, repeated = set[int](), 0  # hashes that come twice, and how often
    with _on_disk(outputs, "uid", lambda uids: [hash(uid) for uid in uids.to_pylist()], np.int64) as hashes:
        hashes.sort()
        for start in range(0, len(hashes), _ROWS):
            part = hashes[start : start + _ROWS + 1]
            again = part[1:][part[1:] == part[:-1]]
            repeated += len(again)
            suspects.update(np.unique(again)[: _NAMED - len(suspects)].tolist())
    counts: dict[str, Counter[str]] = {}
    for output in outputs if suspects else []:
        for batch in read_batches(output, ["uid"]):
            for uid in batch.column("uid").to_pylist():
                if hash(uid) in suspects:
                    counts.setdefault(uid, Counter())[output.name] += 1
    named = {uid: dict(own) for uid, own in counts.items() if own.total() > 1}
    if len(suspects) < _NAMED:  # all of them are known by their texts
        repeated = sum(sum(own.values()) - 1 for own in named.values())
    return named, repeated


@contextmanager
def _on_disk(
    outputs: Sequence[Place], column: str, numbers: Callable[[pa.Array], Any], kind: type
) -> Iterator[NDArray[Any]]:
    """The numbers that a column of all outputs comes to, in a temporary file that may be changed."""
    with tempfile.TemporaryFile(prefix="capeval-") as file:
        for output in outputs:
            for batch in read_batches(output, [column]):
                file.write(np.asarray(numbers(batch.column(column)), kind).tobytes())
        file.flush()
        yield np.memmap(file, kind) if file.tell() else np.empty(0, kind)


@dataclass
class ScoreHistogram:
    """How scores are distributed; NaN where there are none.

    edges, counts: a histogram over the range. quantiles: the score below or at which so large a share of all
    lies, exactly. keep, threshold, kept: the share that is wanted, the score from which on rows are kept for
    it, and how many these are: more than wanted where several have that very score.
    """

    scored: int
    failed: int
    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    keep: float | None = None
    mean: float = math.nan
    least: float = math.nan
    most: float = math.nan
    quantiles: Mapping[float, float] = field(default_factory=lambda: dict.fromkeys(_QUANTILES, math.nan))
    threshold: float = math.nan
    kept: int = 0


def score_histogram(folder: str | PathLike[str], *, keep: float | None = None) -> ScoreHistogram:
    """The distribution of the scores of all shards in a folder, partitioned on disk (8 bytes each).

    keep: a share between 0 and 1, such as 0.3: rows with `score >= threshold` are the best 30%.
    """
    if keep is not None and not (isinstance(keep, (int, float)) and 0 < keep <= 1):
        raise wrong_option("keep", keep, "", "expected a share above 0, at most 1, such as 0.3")
    outputs = _outputs_in(folder)
    failed = sum(read_note(output)["failed"] for output in outputs)
    with _on_disk(outputs, "score", pa.Array.drop_null, np.float64) as scores:
        counts, edges = np.histogram(scores, 60)
        found = ScoreHistogram(rows := len(scores), failed, edges, counts, keep)
        if rows:
            ranks = {share: max(1, math.ceil(share * rows)) - 1 for share in _QUANTILES}
            best = rows - max(1, round((keep or 1) * rows))
            scores.partition(sorted({0, *ranks.values(), best, rows - 1}))
            found.mean, found.least, found.most = map(float, (scores.mean(), scores[0], scores[-1]))
            found.quantiles = {share: float(scores[rank]) for share, rank in ranks.items()}
            if keep is not None:
                found.threshold = float(scores[best])
                found.kept = int(np.histogram(scores, [found.threshold, found.most])[0][0])
    return found
