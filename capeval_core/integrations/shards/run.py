"""A run over many shards, in this process or by workers of Ray, and its manifest."""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from capeval_core.errors import wrong_option
from capeval_core.integrations.shards.failures import FailureCounts
from capeval_core.integrations.shards.places import Place
from capeval_core.integrations.shards.plan import PlannedShard
from capeval_core.integrations.shards.score import ShardResult, score_by_metrics
from capeval_core.integrations.shards.scorer import BatchScorer
from capeval_core.models.device import cuda_is_lost
from capeval_core.project import __version__
from capeval_core.weights.folder import WeightsError

if TYPE_CHECKING:
    from ray import ObjectRef

_MAX_CRASHES = 3
"""Crashes of workers after which the shard that they scored is given up."""
_OBJECT_STORE_BYTES = 100 << 20  # of Ray on this machine: only addresses and counts go there


@dataclass(frozen=True)
class FailedShard:
    """A shard without scores, and why.

    ends_run: no other shard can have scores either. process_unfit: its process cannot score any more.
    """

    source: str
    reason: str
    ends_run: bool = False
    process_unfit: bool = False


Outcome = Sequence[ShardResult] | FailedShard
"""The outcome of a shard: a result by each metric."""


def score_one(shard: PlannedShard, scorers: Sequence[BatchScorer], settings: Mapping[str, Any]) -> Outcome:
    """Score a shard by some of `score_shard`'s keywords; what is wrong with it alone costs no other one."""
    source, targets = shard
    # Returned and not raised: of thousands of shards, one that is cut off must not end the night's run.
    try:
        return score_by_metrics(source, list(zip(targets, scorers, strict=True)), **settings)
    except (WeightsError, OSError) as error:
        # Without weights, or where no target can be written, no other shard has scores either.
        return FailedShard(source, _reason(error), ends_run=True)
    except RuntimeError as error:  # of a device, or of a metric's own code
        reason = f"{type(error).__name__}: {error}"
        # After a fault of the device CUDA refuses all further work of the process, of any shard.
        ends_run = any(cuda_is_lost(scorer.options.device) for scorer in scorers)
        return FailedShard(source, reason, ends_run=ends_run, process_unfit=True)
    except (MemoryError, TypeError, ValueError) as error:
        return FailedShard(source, _reason(error))


def _reason(error: Exception) -> str:
    """The message of an error; a MemoryError may have none."""
    return str(error) or "a window of its rows does not fit into memory"


def score_shards(
    shards: Sequence[PlannedShard],
    scorers: Sequence[BatchScorer],
    settings: Mapping[str, Any],
    *,
    workers: int,
    gpus: float | None = None,
    address: str | None = None,
) -> Iterator[Outcome]:
    """Score shards on Ray, one task each, and give results as they come; OSError if no worker starts."""
    import ray

    waiting = deque(shards)
    tasks: dict[Any, tuple[Any, PlannedShard | None]]  # worker and shard of each; Ray's handles have no types
    with _connected(workers, gpus, address) as gpus_of_worker:
        restarts: dict[str, Any] = {"max_restarts": -1, "max_task_retries": _MAX_CRASHES - 1}
        actor: Any = ray.remote(num_cpus=1, num_gpus=gpus_of_worker, **restarts)(_ShardWorker)
        # Workers on this machine divide its CPUs; those of a cluster's machines are not known here.
        sharing = workers if address is None else 0
        # Their start is a task of its own, without a shard: a worker that dies there has killed no shard.
        tasks = {}
        for _ in shards[:workers]:
            worker = actor.remote(scorers, settings, sharing)
            tasks[worker.__ray_ready__.remote()] = worker, None
        # A worker for which a cluster has no place stays without a shard, and is not waited for.
        while waiting or any(shard is not None for _, shard in tasks.values()):
            (task,), _ = ray.wait(list(tasks))
            worker, shard = tasks.pop(task)
            outcome = _outcome_of(task, shard)
            # After a RuntimeError CUDA may be lost to the process: it has failed that shard, and starts anew.
            if isinstance(outcome, FailedShard) and outcome.process_unfit:
                outcome = replace(outcome, ends_run=False)  # which holds for that process
                ray.kill(worker, no_restart=False)
            if waiting:
                following = waiting.popleft()
                tasks[worker.score.remote(following)] = worker, following
            if outcome is not None:
                yield outcome


def _outcome_of(task: ObjectRef[Any], shard: PlannedShard | None) -> Outcome | None:
    """The outcome of a task; None if it was the start of a worker, which has no shard yet."""
    import ray

    try:
        result: Any = ray.get(task)
    except ray.exceptions.RayTaskError:  # of our own code: `score_one` returns what is expected
        raise
    except ray.exceptions.RayError as error:
        if shard is None:
            reason = str(error).splitlines()[-1].strip()
            raise OSError(f"workers die as they start: {reason}") from error
        problem = f"{_MAX_CRASHES} workers were killed as they scored this shard, for want of memory perhaps"
        return FailedShard(shard[0], f"{problem}: run the same command again with fewer --workers")
    return None if shard is None else result


class _ShardWorker:
    """An actor that scores shards."""

    def __init__(self, scorers: Sequence[BatchScorer], settings: Mapping[str, Any], sharing: int) -> None:
        import torch

        self.scorers = scorers
        self.settings = settings
        if sharing:  # else each would start a thread for every CPU
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // sharing))

    def score(self, shard: PlannedShard) -> Outcome:
        return score_one(shard, self.scorers, self.settings)


@contextmanager
def _connected(workers: int, gpus: float | None, address: str | None) -> Iterator[float]:
    """A connection to Ray, one that is there already or a new one; gives the GPUs of a worker."""
    # Before Ray is imported. Nothing about a user's run is sent anywhere unless he wants it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    opens = not ray.is_initialized()  # a user's own connection stays open
    is_local = address is None
    # Ray would leave sockets and logs of every run in /tmp/ray. Its last processes may still write there.
    with tempfile.TemporaryDirectory(prefix="capeval-ray-", ignore_cleanup_errors=True) as folder:
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if is_local:
            options |= {
                # A worker takes one CPU of Ray's count, and more workers than CPUs would wait for ever.
                "num_cpus": max(workers, os.cpu_count() or 1),
                "object_store_memory": _OBJECT_STORE_BYTES,
                "include_dashboard": False,
                "_temp_dir": folder,
            }
        if opens:
            ray.init(address or "local", **options)
        try:
            resources: Any = ray.cluster_resources  # which has no types
            gpus_of_cluster = int(resources().get("GPU", 0))
            gpus_of_worker = _share_of_gpu(workers, gpus_of_cluster) if gpus is None else gpus
            if opens and is_local and gpus_of_worker > gpus_of_cluster:  # no worker would ever start
                problem = f"is too many: there are {gpus_of_cluster} GPUs"
                raise wrong_option("gpus_per_worker", gpus_of_worker, problem, "lower it, or leave it out")
            yield gpus_of_worker
        finally:
            if opens:
                ray.shutdown()


def _share_of_gpu(workers: int, gpus: int) -> float:
    """The GPUs of each worker that let all of them run at once; no worker is on two GPUs."""
    if not gpus:
        return 0.0
    # Rounded down: thirds that are rounded up would leave no place for the third worker.
    return math.floor(1000 / math.ceil(workers / gpus)) / 1000


def write_manifest(output: str, results: Sequence[ShardResult], failures: dict[str, str], name: str) -> None:
    """Write a file about a run: totals, every shard with its counts, and why shards have no scores."""
    of_one_run = ("signature", "skipped", "scored", "traits")
    totals = dict.fromkeys(("rows", "failed", "truncated"), 0)
    entries = []
    # By target: workers finish in any order, on which the manifest must not depend.
    for result in sorted(results, key=lambda result: result.target):
        entry = asdict(result)
        for count in totals:
            totals[count] += entry[count]
        for key in of_one_run:
            del entry[key]
        entries.append(entry)
    failed = FailureCounts()
    for result in results:
        failed.add_all(result.failures)
    content = {
        "capeval": __version__,
        "signature": results[0].signature if results else None,
        **totals,
        "failures": failed.rows,
        "shards": entries,
        "without_scores": failures,
    }
    with Place.of("output", output).child(name).whole() as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
