"""Shards scored by workers: one after another in this process, or on Ray, which is only needed there."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from capeval_core.errors import wrong_option
from capeval_core.integrations.shards.plan import PlannedShard
from capeval_core.integrations.shards.scoring import BatchScorer
from capeval_core.integrations.shards.shard import WINDOW, ShardResult, score_shard
from capeval_core.models.device import cuda_is_lost
from capeval_core.weights.folder import WeightsError

INSTALL = 'pip install "capeval[ray]"'
_STORE_BYTES = 100 << 20  # of Ray's shared memory: only addresses and counts go through it


@dataclass(frozen=True)
class Workers:
    """Where shards are scored.

    number: of actors. gpus: of each; None: those that there are, shared, at most one each. address: of a Ray
    cluster; None: this machine.
    """

    number: int
    gpus: float | None = None
    address: str | None = None

    @property
    def on_ray(self) -> bool:
        """Whether they need Ray; else there is this process alone."""
        return self.number > 1 or self.address is not None


@dataclass(frozen=True)
class FailedShard:
    """A shard without scores, and why.

    ends: the reason holds for the other shards, too. unfit: the process may be of no use any more, as it is
    after an error of CUDA.
    """

    source: str
    reason: str
    ends: bool = False
    unfit: bool = False


def check_ray() -> None:
    """Raise ValueError unless Ray is installed."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise ValueError(f"several --workers, and --ray, need Ray: {INSTALL}")


def score_one(
    shard: PlannedShard, scorer: BatchScorer, settings: Mapping[str, Any]
) -> ShardResult | FailedShard:
    """Score a shard; what is wrong with it alone costs no other one.

    A window that does not fit into memory is halved, for this shard and once more where it must be.

    Args:
        settings: `images` and `columns` of `score_shard`, and its `progress`.
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
            return FailedShard(shard.source, reason, ends=cuda_is_lost(scorer.device), unfit=True)


def score_shards(
    shards: Sequence[PlannedShard], scorer: BatchScorer, workers: Workers, settings: Mapping[str, Any]
) -> Iterator[ShardResult | FailedShard]:
    """Score shards on Ray, one task each, and give their results as they come.

    A worker that is killed is replaced, and its shard scored again. A target is there as a whole or not at
    all, so nothing is lost but what the killed worker had of its shard. One that met a RuntimeError, after
    which CUDA may be lost to its process, has failed that shard and is replaced before the next one.
    """
    import ray
    import ray.data

    with _connected(workers) as gpus:
        rows = [asdict(shard) for shard in shards]
        # One block each: the tasks of one block would all go to one actor. Made here, since a task that makes
        # blocks would wait for a CPU that the actors have.
        outcomes = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _ShardWorker,
            fn_constructor_args=(scorer, dict(settings), workers.number if not workers.address else 0),
            compute=ray.data.ActorPoolStrategy(size=min(workers.number, len(rows))),
            batch_size=1,
            num_gpus=gpus or None,
        )
        for row in outcomes.iter_rows():
            fields = json.loads(row["outcome"])
            yield FailedShard(**fields) if "reason" in fields else ShardResult(**fields)


def gpus_of_each(workers: int, gpus: int) -> float:
    """The share of a GPU that lets all workers run at once, at most a whole one; no share lies on two GPUs.

    >>> gpus_of_each(2, 8), gpus_of_each(8, 3), gpus_of_each(2, 0)
    (1.0, 0.333, 0.0)
    """
    if not gpus:
        return 0.0
    on_one = math.ceil(workers / gpus)
    return math.floor(1000 / on_one) / 1000


def fits(workers: int, share: float, gpus: int) -> bool:
    """Whether so many workers run at once with so many GPUs each, or with a share of one.

    >>> fits(8, 0.375, 3), fits(6, 0.375, 3), fits(2, 2, 3)
    (False, True, False)
    """
    if share <= 0:
        return True
    places = gpus * math.floor(1 / share + 1e-9) if share <= 1 else gpus // math.ceil(share)
    return workers <= places


class _ShardWorker:
    """An actor that scores shards."""

    def __init__(self, scorer: BatchScorer, settings: dict[str, Any], sharing: int) -> None:
        import torch

        self.scorer, self.settings, self.unfit = scorer, settings, False
        if sharing:  # the CPUs of this machine
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // sharing))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        if self.unfit:
            os._exit(1)  # Ray gives the shard to a new process
        shards = map(PlannedShard, map(str, batch["source"]), map(str, batch["target"]))
        return {"outcome": [json.dumps(asdict(self._outcome(shard))) for shard in shards]}

    def _outcome(self, shard: PlannedShard) -> ShardResult | FailedShard:
        outcome = score_one(shard, self.scorer, self.settings)
        if isinstance(outcome, FailedShard) and outcome.unfit:
            self.unfit = True
            return replace(outcome, ends=False)  # which holds for this process only
        return outcome


@contextmanager
def _connected(workers: Workers) -> Iterator[float]:
    """A connection to Ray, one that is there already or a new one; gives the GPUs of a worker."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # which warns of what `ray.data` does itself
    import ray
    import ray.data

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
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        resources: Any = ray.cluster_resources  # which has no types
        there = float(resources().get("GPU", 0))
        gpus = gpus_of_each(workers.number, int(there)) if workers.gpus is None else workers.gpus
        if folder is not None and not fits(workers.number, gpus, int(there)):
            found = f"{workers.number} workers need {gpus:g} GPUs each, and there are {there:g}"
            raise wrong_option("gpus_per_worker", gpus, found, "lower it, or the number of workers", verb="")
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
