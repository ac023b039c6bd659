"""`CaptionScore` in torchmetrics: collections, copies, and two processes over gloo."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import capeval_core
from tests.adapters import CAPTIONS, IMAGES, REFERENCES, Comparison

METRICS: dict[str, dict[str, Any]] = {
    "pacs": {"weights": "tiny"},
    "refpacs": {"weights": "tiny"},
    "umic": {"weights": "tiny"},
    "bleu": {},
    "rougel": {},
}
SHARES = {"3 and 1 captions": ((0, 1, 2), (3,)), "no caption and 4": ((), (0, 1, 2, 3))}
"""Captions of each of two processes."""


def collection() -> Any:
    from torchmetrics import MetricCollection

    from capeval_core.integrations.torchmetrics import CaptionScore

    return MetricCollection({name: CaptionScore(name, **options) for name, options in METRICS.items()})


def update(metrics: Any, rows: tuple[int, ...]) -> None:
    metrics.update(
        captions=[CAPTIONS[row] for row in rows],
        images=[IMAGES[row] for row in rows],
        references=[REFERENCES[row] for row in rows],
    )


def process(rank: int, folder: str) -> None:
    """One of two processes: its captions, then the numbers of all, which rank 0 keeps."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    found = {}
    for share, rows in SHARES.items():
        metrics = collection()
        if rows[rank]:
            update(metrics, rows[rank])
        found[share] = {name: float(value) for name, value in metrics.compute().items()}
    (Path(folder) / f"{rank}.pickle").write_bytes(pickle.dumps(found))
    distributed.destroy_process_group()


def trial() -> list[Comparison]:
    from torch import multiprocessing

    expected = {}
    for name, options in METRICS.items():
        metric = capeval_core.load(name, **options)
        expected[name] = metric.score(
            CAPTIONS, IMAGES if metric.media else None, REFERENCES if metric.needs_references else None
        ).mean
    metrics = collection()
    update(metrics, (0, 1))
    copied = pickle.loads(pickle.dumps(metrics)).to("cpu")
    update(copied, (2, 3))
    cases = {"MetricCollection, pickled between two batches": copied.compute()}
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(process, (folder,), nprocs=2)  # type: ignore[no-untyped-call,attr-defined]
        for rank in (0, 1):
            found = pickle.loads((Path(folder) / f"{rank}.pickle").read_bytes())
            cases |= {f"two processes (gloo), {share}, on process {rank}": found[share] for share in SHARES}
    return [
        Comparison(f"{case}: {name}", expected[name], float(values[name]))
        for case, values in cases.items()
        for name in METRICS
    ]
