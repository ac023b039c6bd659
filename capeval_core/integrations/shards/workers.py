"""Shards scored by workers: one after another in this process, or on Ray, which is only needed there."""

from __future__ import annotations

import logging
import math
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from capeval_core.errors import wrong_option
from capeval_core.integrations.shards.folder import Planned
from capeval_core.integrations.shards.scoring import BatchScorer
from capeval_core.integrations.shards.shard import ShardResult, score_shard
from capeval_core.models.device import cuda_is_lost
from capeval_core.weights.folder import WeightsError

_TRIALS = 3  # workers that a shard may kill before it is given up
_DEADLY = (
    f"{_TRIALS} workers were killed as they scored this shard, for want of memory perhaps: run the same "
    "command again with fewer --workers"
)
_STORE_BYTES = 100 << 20  # of Ray's shared memory: only addresses and counts go through it


@dataclass(frozen=True)
class FailedShard:
    """A shard without scores; `ends`: so are all others; `unfit`: its process is of no use any more."""

    source: str
    reason: str
    ends: bool = False
    unfit: bool = False


Outcome = ShardResult | FailedShard


def score_one(shard: Planned, scorer: BatchScorer, settings: Mapping[str, Any]) -> Outcome:
    """Score a shard; what is wrong with it alone costs no other one.

    settings: some of `score_shard`'s keywords.
    """
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
    """Score shards on Ray, one task each, and give their results as they come; OSError if no worker starts.

    Ray starts a killed worker anew, and scores its shard again, three times in all. One that met a
    RuntimeError, after which CUDA may be lost to its process, has failed that shard and is started anew too.
    gpus: of each worker; None: those that there are, shared. address: of a cluster; None: this machine.
    """
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
            raise wrong_option("gpus_per_worker", each, found, fix, verb="")
        yield each
    finally:
        if mine:
            ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
