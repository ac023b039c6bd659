"""Shards scored by workers: one after another in this process, or on Ray, which is only needed there."""

from __future__ import annotations

import logging
import math
import os
import shutil
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from capeval_core.errors import wrong_option
from capeval_core.integrations.shards.folder import PlannedShard
from capeval_core.integrations.shards.scoring import BatchScorer
from capeval_core.integrations.shards.shard import WINDOW, ShardResult, score_shard
from capeval_core.models.device import cuda_is_lost
from capeval_core.project import install_command
from capeval_core.weights.folder import WeightsError

_TRIALS = 3  # workers that a shard may kill before it is given up
_STARTS = 10  # workers that may be killed one after the other before they have a shard
_DEADLY = (
    f"{_TRIALS} workers were killed as they scored this shard, for want of memory perhaps: run the same "
    "command again with fewer --workers"
)
_STORE_BYTES = 100 << 20  # of Ray's shared memory: only addresses and counts go through it


@dataclass(frozen=True)
class Workers:
    """Actors, GPUs of each (None: those that there are, shared), and a Ray cluster (None: this machine)."""

    number: int
    gpus: float | None = None
    address: str | None = None

    @property
    def on_ray(self) -> bool:
        """Whether they need Ray; else there is this process alone."""
        return self.number > 1 or self.address is not None


@dataclass(frozen=True)
class FailedShard:
    """A shard without scores; `ends`: so are all others; `unfit`: its process is of no use any more."""

    source: str
    reason: str
    ends: bool = False
    unfit: bool = False


def check_ray() -> None:
    """Raise ValueError unless Ray is installed."""
    if find_spec("ray") is None:
        raise ValueError(f"several --workers, and --ray, need Ray: {install_command('ray')}")


def score_one(
    shard: PlannedShard, scorer: BatchScorer, settings: Mapping[str, Any]
) -> ShardResult | FailedShard:
    """Score a shard; what is wrong with it alone costs no other one.

    A window that does not fit into memory is halved. settings: some of `score_shard`'s keywords.
    """
    window = WINDOW
    while True:
        try:
            return score_shard(shard.source, shard.target, scorer, window=window, **settings)
        except MemoryError as error:
            if window == 1:
                return FailedShard(shard.source, str(error) or "a row does not fit into memory")
            window //= 2
        except (WeightsError, OSError) as error:  # no weights, or a target that cannot be written
            return FailedShard(shard.source, str(error), ends=True)
        except (ValueError, TypeError) as error:
            return FailedShard(shard.source, str(error))
        except RuntimeError as error:  # of a device, or of a metric's own code
            reason = f"{type(error).__name__}: {error}"
            return FailedShard(shard.source, reason, ends=cuda_is_lost(scorer.options.device), unfit=True)


def score_shards(
    shards: Sequence[PlannedShard], scorer: BatchScorer, workers: Workers, settings: Mapping[str, Any]
) -> Iterator[ShardResult | FailedShard]:
    """Score shards on Ray, one task each, and give their results as they come; OSError if no worker starts.

    A worker that is killed is replaced, and its shard scored again, three times in all. One that met a
    RuntimeError, after which CUDA may be lost to its process, has failed that shard and is replaced as well.
    """
    import ray

    todo, deaths = deque(shards), Counter[PlannedShard | None]()
    tasks: dict[Any, tuple[Any, PlannedShard | None]] = {}
    with _connected(workers) as gpus:
        actor: Any = ray.remote(num_cpus=1, num_gpus=gpus)(_ShardWorker)

        def start() -> None:
            worker = actor.remote(scorer, dict(settings), 0 if workers.address else workers.number)
            tasks[worker.ready.remote()] = worker, None

        for _ in range(min(workers.number, len(shards))):
            start()
        try:
            # A worker for which a cluster has no place stays without a shard, and is not waited for.
            while todo or any(shard is not None for _, shard in tasks.values()):
                (task,), _ = ray.wait(list(tasks))
                worker, shard = tasks.pop(task)
                replaced = False
                try:
                    outcome = ray.get(task)
                    deaths[None] = 0
                except ray.exceptions.RayTaskError:
                    raise
                except ray.exceptions.RayError as error:
                    outcome, replaced = None, True
                    deaths[shard] += 1
                    if shard is None:
                        if deaths[None] == _STARTS or getattr(error, "actor_init_failed", False):
                            reason = str(error).splitlines()[-1].strip()
                            raise OSError(f"workers die as they start: {reason}") from error
                    elif deaths[shard] < _TRIALS:
                        todo.append(shard)
                    else:
                        outcome = FailedShard(shard.source, _DEADLY)
                if isinstance(outcome, FailedShard) and outcome.unfit:
                    outcome, replaced = replace(outcome, ends=False), True  # which holds for that process
                if replaced:
                    ray.kill(worker)  # one that died may only be out of reach
                    if todo:
                        start()
                elif todo:
                    following = todo.popleft()
                    tasks[worker.score.remote(following)] = worker, following
                if outcome is not None:
                    yield outcome
        finally:
            for worker, _ in tasks.values():
                ray.kill(worker)


def _gpus_of_each(workers: int, gpus: int) -> float:
    """The share of a GPU that lets all workers run at once, at most a whole one; no share lies on two GPUs.

    >>> _gpus_of_each(2, 8), _gpus_of_each(8, 3), _gpus_of_each(2, 0)
    (1.0, 0.333, 0.0)
    """
    return math.floor(1000 / math.ceil(workers / gpus)) / 1000 if gpus else 0.0


def _fits(workers: int, share: float, gpus: int) -> bool:
    """Whether so many workers run at once with so many GPUs each, or with a share of one.

    >>> _fits(8, 0.375, 3), _fits(6, 0.375, 3), _fits(2, 2, 3)
    (False, True, False)
    """
    if share <= 0:
        return True
    return workers <= (gpus * math.floor(1 / share + 1e-9) if share <= 1 else gpus // math.ceil(share))


class _ShardWorker:
    """An actor that scores shards."""

    def __init__(self, scorer: BatchScorer, settings: dict[str, Any], sharing: int) -> None:
        import torch

        self.scorer, self.settings = scorer, settings
        if sharing:  # the CPUs of this machine
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // sharing))

    def ready(self) -> None:
        """Return once the worker runs."""

    def score(self, shard: PlannedShard) -> ShardResult | FailedShard:
        return score_one(shard, self.scorer, self.settings)


@contextmanager
def _connected(workers: Workers) -> Iterator[float]:
    """A connection to Ray, one that is there already or a new one; gives the GPUs of a worker."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    folder, mine = None, not ray.is_initialized()
    if mine:
        settings: dict[str, Any] = {"address": workers.address}
        if workers.address is None:
            folder = tempfile.mkdtemp(prefix="capeval-ray-")
            settings = {
                "address": "local",
                "num_cpus": max(workers.number, os.cpu_count() or 1),
                "include_dashboard": False,
                "object_store_memory": _STORE_BYTES,
                "_temp_dir": folder,
            }
        with _silent():
            ray.init(logging_level=logging.ERROR, log_to_driver=False, **settings)
    try:
        resources: Any = ray.cluster_resources  # which has no types
        there = int(resources().get("GPU", 0))
        gpus = _gpus_of_each(workers.number, there) if workers.gpus is None else workers.gpus
        if folder is not None and not _fits(workers.number, gpus, there):
            each = f"{gpus:g} GPU{'s' if gpus > 1 else ''} each"
            found = f"{workers.number} workers need {each}, and there are {there:g}"
            fix = "lower it, or the number of workers" if there else "leave it out"
            raise wrong_option("gpus_per_worker", gpus, found, fix, verb="")
        yield gpus
    finally:
        if mine:
            ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _silent() -> Iterator[None]:
    """Nothing on stderr, to which Ray's C++ writes that it took its level of logging from the environment."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
