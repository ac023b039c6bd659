"""Captions scored on Ray: a callable for the user's own pipelines, and whole shards on many workers.

Ray is only needed where it runs: `CaptionScorer` and `ImageDecoder` are plain callables on batches, which
`ray.data` and `datasets` take alike.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from capeval_core.encoders.preprocessing import Preprocessing
from capeval_core.errors import wrong_option
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.integrations.shards.columns import check_columns, find_columns, how_missing
from capeval_core.integrations.shards.plan import PlannedShard
from capeval_core.integrations.shards.scoring import BatchScorer
from capeval_core.integrations.shards.shard import WINDOW, ShardResult, score_shard
from capeval_core.weights.folder import WeightsError, open_weights

INSTALL = 'pip install "capeval[ray]"'
_STORE_BYTES = 100 << 20  # of Ray's shared memory: only addresses and counts go through it
Batch = Mapping[str, Any]


class CaptionScorer:
    """A metric on batches of columns, for `ray.data`'s `map_batches` and `datasets`' `map`.

        ds.map_batches(
            CaptionScorer,
            fn_constructor_kwargs={"metric": "pacs"},
            compute=ray.data.ActorPoolStrategy(size=8), num_gpus=1, batch_size=1024,
        )
        dataset.map(CaptionScorer("pacs"), batched=True, with_rank=True, num_proc=2)

    It adds `score` (NaN where there is none), `truncated` (token ids), `error` ('', or why there is no score)
    and, of a metric with components, `parts` (a dict each): no column has nulls, so that its type is the same
    in all batches. From Ray all columns come back, from `datasets` the new ones, which it adds itself. What
    else is in its batch moves a row's score by rounding only. In `datasets` with `with_rank=True` process r
    takes the r-th GPU, and images are read as stored, not as its decoder turns them.

    The metric is opened at the first batch, in the process that scores. Weights of the Hub go through the
    cache of `huggingface_hub`, whose file lock lets one process of a node download them; the others wait.

    Args:
        metric: its name.
        columns: names of columns where they are not found by themselves: {"caption": "alt_text"}.
        **options: of the metric: `weights`, `batch_size`, `statistics`, ...; `media="video"`.

    Raises:
        TypeError, ValueError: a metric or an option that does not exist; a metric whose scores depend on what
            else is scored: without `statistics`, or relative to one set as ECO's.

    >>> scorer = CaptionScorer("pacs", weights="tiny")
    >>> grey = np.full((2, 48, 48, 3), 128, dtype="uint8")
    >>> found = scorer({"image": grey, "caption": np.array(["a grey wall", ""])})
    >>> list(found), list(found["error"])
    (['image', 'caption', 'score', 'truncated', 'error', 'parts'], ['', 'caption is empty'])
    """

    def __init__(self, metric: str, *, columns: Mapping[str, str] | None = None, **options: Any) -> None:
        self._metric, self._options, self._columns = metric, options, check_columns(columns)
        self._scorer = BatchScorer(metric, **options)
        self._rank: int | None = None

    @property
    def signature(self) -> str:
        """Everything that a score depends on beside its row; it opens the metric."""
        return self._scorer.signature

    def __call__(self, batch: Batch, *rank: int | None) -> dict[str, Any]:
        """The columns that come out. `rank` is the number of this process, as `with_rank=True` passes it."""
        if rank and rank[0] is not None:
            self._take_gpu(rank[0])
        rows = _columns_of(batch, self._scorer.columns, self._columns)
        if "error" in batch:  # of `ImageDecoder`
            rows["error"] = [error or None for error in batch["error"]]
        found = self._scorer(rows)
        added: dict[str, Any] = {
            "score": np.array([np.nan if score is None else score for score in found["score"]]),
            "truncated": np.array(found["truncated"], dtype=np.int32),
            "error": np.array([error or "" for error in found["error"]], dtype=object),
        }
        kind = self._scorer.schema().field("parts").type
        if not pa.types.is_null(kind):
            missing = {field.name: _missing(field.type) for field in kind}
            added["parts"] = np.array([parts or missing for parts in found["parts"]], dtype=object)
        return {**batch, **added} if isinstance(batch, dict) else added

    def _take_gpu(self, rank: int) -> None:
        """Let the process of this rank have a GPU of its own, where there are any."""
        import torch

        if rank == self._rank or "device" in self._options or not torch.cuda.is_available():
            return
        self._rank = rank
        device = f"cuda:{rank % torch.cuda.device_count()}"
        self._scorer = BatchScorer(self._metric, device=device, **self._options)


class ImageDecoder:
    """Images decoded and resized on CPUs to what a metric's network takes, for `map_batches` before a
    `CaptionScorer`:

        ds = ds.map_batches(ImageDecoder("pacs"), batch_size=256)
        ds = ds.map_batches(CaptionScorer, ..., num_gpus=1, batch_size=1024)

    GPUs then never wait for a JPEG, and what is shipped is small: uint8 (n, size, size, 3) in the column of
    images. The scores are those without this stage. An image that cannot be read is black and has a reason
    in the column `error`, by which the scorer leaves it out.

    Only the config of the weights is used. Make it once, in the driver: it is pickled with its settings.

    Args:
        metric: the name of one that sees the central square of an image at one size: pacs, refpacs, clips,
            refclips. Others take the image itself, which their encoders cut up in several ways.
        columns: `{"image": name}` where the column is not found by itself.
        **options: of the metric, as for `CaptionScorer`; only `weights` matters.

    Raises:
        TypeError, ValueError: as for `CaptionScorer`, or a metric of another kind.

    >>> decoder = ImageDecoder("pacs", weights="tiny")
    >>> found = decoder({"image": [np.full((90, 120, 3), 128, dtype="uint8"), b"no image"]})
    >>> found["image"].shape, [bool(error) for error in found["error"]]
    ((2, 48, 48, 3), [False, True])
    """

    def __init__(self, metric: str, *, columns: Mapping[str, str] | None = None, **options: Any) -> None:
        class_ = BatchScorer(metric, **options).metric_class
        self._columns = check_columns(columns)
        if class_.network != "clip" or class_.media != ("image",):
            found = "no metric that sees an image at one size only"
            fix = "leave this stage out: its CaptionScorer decodes in threads"
            raise wrong_option("metric", metric, found, fix)
        default = class_.default_weights
        weights = options.get("weights") or ("" if default is None else default.repository)
        folder = open_weights(weights, metric=class_.name, tiny=str(class_.tiny))
        self._preprocessing = Preprocessing(**class_.encoder_class().read_config(folder)["preprocessing"])
        self.__name__ = type(self).__name__  # how Ray calls a function

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """The batch with its images decoded."""
        name = _names_of(batch, ["image"], self._columns)["image"]
        n = self._preprocessing.image_size
        pixels = np.zeros((len(batch[name]), n, n, 3), dtype=np.uint8)
        errors = np.full(len(pixels), "", dtype=object)
        for row, image in enumerate(_stored(batch, name)):
            try:
                loaded = InputImage.of(image, "image").load()
                pixels[row] = self._preprocessing.pixels(loaded).transpose(1, 2, 0)
            except (ImageError, TypeError, ValueError, OSError, MemoryError) as error:
                errors[row] = str(error)
        return {**batch, name: pixels, "error": errors}


def _names_of(batch: Batch, needed: Sequence[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Columns of a batch by what they hold.

    Raises:
        ValueError: one is missing.
    """
    present = list(batch)
    names, missing = find_columns(present, needed, chosen)
    if missing:
        found = "; ".join(how_missing(role, present, chosen) for role in missing)
        raise wrong_option("batch", present, found, 'pass columns={"caption": "..."}', verb="has")
    return names


def _columns_of(batch: Batch, needed: Sequence[str], chosen: Mapping[str, str]) -> dict[str, list[Any]]:
    """The columns that a metric needs, by what they hold."""
    return {role: _stored(batch, name) for role, name in _names_of(batch, needed, chosen).items()}


def _stored(batch: Batch, name: str) -> list[Any]:
    """A column of a batch; images of `datasets` as {bytes, path}, since its decoder turns them by EXIF."""
    table = getattr(batch, "pa_table", None)
    if table is not None:
        return list(table[name].to_pylist())
    values = batch[name]
    return [value.tolist() if _holds_texts(value) else value for value in values]


def _holds_texts(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "OUS"


def _missing(kind: pa.DataType) -> Any:
    """What stands for a part of a row without a score."""
    return float("nan") if pa.types.is_floating(kind) else [] if pa.types.is_list(kind) else 0


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
    """A shard without scores, and why; `ends`: the reason holds for the other shards, too."""

    source: str
    reason: str
    ends: bool = False


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


def score_shards(
    shards: Sequence[PlannedShard], scorer: BatchScorer, workers: Workers, settings: Mapping[str, Any]
) -> Iterator[ShardResult | FailedShard]:
    """Score shards on Ray, one task each, and give their results as they come.

    A worker that is killed is replaced, and its shard scored again. A target is there as a whole or not at
    all, so nothing is lost but what the killed worker had of its shard.
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


class _ShardWorker:
    """An actor that scores shards."""

    def __init__(self, scorer: BatchScorer, settings: dict[str, Any], sharing: int) -> None:
        import torch

        self.scorer, self.settings = scorer, settings
        if sharing:  # the CPUs of this machine
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // sharing))

    def __call__(self, batch: Batch) -> dict[str, list[str]]:
        outcomes = [
            score_one(PlannedShard(str(source), str(target)), self.scorer, self.settings)
            for source, target in zip(batch["source"], batch["target"], strict=True)
        ]
        return {"outcome": [json.dumps(asdict(outcome)) for outcome in outcomes]}


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
        gpus = min(1.0, round(there / workers.number, 3)) if workers.gpus is None else workers.gpus
        if folder is not None and gpus * workers.number > there:
            found = f"{workers.number} workers need {gpus * workers.number:g} GPUs, and there are {there:g}"
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
