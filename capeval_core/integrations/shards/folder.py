"""A folder of outputs: plan its shards, score them, merge them, check them, and count their scores."""

from __future__ import annotations

import glob
import json
import logging
import math
import os
import shutil
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
from numpy.typing import NDArray

from capeval_core.errors import FileError, Problem, Problems, file_error, noting, wrong_option
from capeval_core.integrations.shards.readers import Place, stem_of
from capeval_core.integrations.shards.shard import (
    BatchScorer,
    DamagedError,
    ShardResult,
    is_same,
    opened,
    read_batches,
    read_note,
    score_shard,
    written,
)
from capeval_core.kept import PARTIAL
from capeval_core.models.device import cuda_is_lost
from capeval_core.project import __version__
from capeval_core.weights.folder import WeightsError

MANIFEST = "manifest.json"
_MERGED = b"capeval_merged"  # in a merged table's metadata: signature and number of shards
_QUANTILES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_BINS = 60
_NAMED = 1000  # uids that are named at most where many come twice
_OF_ONE_RUN = ("signature", "skipped", "scored")
_FILES = 16  # files whose notes are read together: object stores answer slowly, but many at a time
_ROWS = 1 << 20  # rows of a temporary file that are looked at together
_TRIALS = 3  # workers that a shard may kill before it is given up
_DEADLY = (
    f"{_TRIALS} workers were killed as they scored this shard, for want of memory perhaps: run the same "
    "command again with fewer --workers"
)
_STORE_BYTES = 100 << 20  # of Ray's shared memory: only addresses and counts go through it
Planned = tuple[str, str]
"""Addresses of a shard and of the file for its scores."""

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

    def problems_of(shard: Planned) -> Problems:
        source, target, found = Place.of("input", shard[0]), Place.of("output", shard[1]), Problems()
        folder = source.parent if images is None else Place.of("images", images)
        now = {**settings, "images": folder.identity}
        with noting(found), suppress(DamagedError):  # which is scored again
            is_same(target, read_note(target), now, "choose another --output")
        return found

    there = [shard for shard in shards if shard[1].rpartition("/")[2] in names]
    with ThreadPoolExecutor(_FILES) as threads:
        Problems(problem for found in threads.map(problems_of, there) for problem in found).raise_if_any()
    return len(there)


def write_manifest(
    output: str, results: Sequence[ShardResult], failures: dict[str, str], name: str = MANIFEST
) -> None:
    """Write a file about a run: totals, every shard with its counts, and why shards have no scores."""
    shards = [asdict(result) for result in sorted(results, key=lambda result: result.target)]
    content = {
        "capeval": __version__,
        "signature": results[0].signature if results else None,
        **{count: sum(shard[count] for shard in shards) for count in ("rows", "failed", "truncated")},
        "shards": [{key: one[key] for key in one if key not in _OF_ONE_RUN} for one in shards],
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
        tasks = {worker.ready.remote(): (worker, None) for worker in started}
        # A worker for which a cluster has no place stays without a shard, and is not waited for.
        while todo or any(shard is not None for _, shard in tasks.values()):
            (task,), _ = ray.wait(list(tasks))
            worker, shard = tasks.pop(task)
            try:
                outcome: Outcome | None = ray.get(task)
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as error:
                if shard is None:
                    reason = str(error).splitlines()[-1].strip()
                    raise OSError(f"workers die as they start: {reason}") from error
                outcome = FailedShard(shard[0], _DEADLY)
            # After a RuntimeError CUDA may be lost to the process: it has failed that shard, and starts anew.
            if isinstance(outcome, FailedShard) and outcome.unfit:
                outcome = replace(outcome, ends=False)  # which holds for that process
                ray.kill(worker, no_restart=False)
            if todo:
                following = todo.popleft()
                tasks[worker.score.remote(following)] = worker, following
            if outcome is not None:
                yield outcome


class _ShardWorker:
    """An actor that scores shards."""

    def __init__(self, scorer: BatchScorer, settings: Mapping[str, Any], sharing: int) -> None:
        import torch

        self.scorer, self.settings = scorer, settings
        if sharing:  # the CPUs of this machine
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // sharing))

    def ready(self) -> None:
        """Return once the worker runs."""

    def score(self, shard: Planned) -> Outcome:
        return score_one(shard, self.scorer, self.settings)


@contextmanager
def _connected(workers: int, gpus: float | None, address: str | None) -> Iterator[float]:
    """A connection to Ray, one that is there already or a new one; gives the GPUs of a worker."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    folder, mine = None, not ray.is_initialized()
    if mine:
        own: dict[str, Any] = {}
        if address is None:
            folder = tempfile.mkdtemp(prefix="capeval-ray-")
            own = {"num_cpus": max(workers, os.cpu_count() or 1), "object_store_memory": _STORE_BYTES}
            own |= {"include_dashboard": False, "_temp_dir": folder}
        ray.init(address or "local", logging_level=logging.ERROR, log_to_driver=False, **own)
    try:
        resources: Any = ray.cluster_resources  # which has no types
        there = int(resources().get("GPU", 0))
        # A share of a GPU that lets all workers run at once; no share lies on two GPUs.
        share = math.floor(1000 / math.ceil(workers / there)) / 1000 if there else 0.0
        each = share if gpus is None else gpus
        if folder is not None and each > there:  # no worker would ever start
            found, fix = f"there are {there} GPUs", "lower it, or leave it out"
            raise wrong_option("gpus_per_worker", each, found, fix)
        yield each
    finally:
        if mine:
            ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


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
        counts, edges = np.histogram(scores, _BINS)
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
