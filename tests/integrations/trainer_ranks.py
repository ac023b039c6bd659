"""One process of a distributed evaluation by a Trainer; separate, so that spawned processes import it."""

from __future__ import annotations

import os
import socket
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def run_trainer_ranks(ranks: int, scenes: int, folder: Path) -> list[dict[str, Any]]:
    """What every process finds, in the order of their numbers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=rank, args=(i, ranks, port, scenes, folder, results)) for i in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        found = dict(results.get(timeout=1200) for _ in processes)
    finally:
        for process in processes:
            process.join(timeout=600)
            process.kill()
    return [found[i] for i in range(ranks)]


def rank(number: int, ranks: int, port: int, scenes: int, folder: Path, results: Any) -> None:
    os.environ |= {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TENSORBOARD_LOGGING_DIR": str(folder / str(number) / "curves"),
    }
    import torch

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    try:
        evaluate_everything(found, scenes, folder / str(number))
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    results.put((number, found))
    torch.distributed.destroy_process_group()


def evaluate_everything(found: dict[str, Any], count: int, folder: Path) -> None:
    import torch

    from capeval_core.integrations import CaptionMetrics
    from capeval_core.testing import count_forwards
    from tests.integrations.captioner import Scenes, make_trainer

    scenes = Scenes(count)
    metrics = CaptionMetrics(
        scenes.tokenizer, images=scenes.images, references=scenes.references, weights="tiny"
    )
    for batchwise in (False, True):
        trainer = make_trainer(
            scenes,
            folder,
            metrics,
            ddp_backend="gloo",
            batch_eval_metrics=batchwise,
            report_to=["tensorboard"],
        )
        metrics.watch(trainer)
        assert torch.distributed.get_world_size() == 2
        with count_forwards() as forwards:
            values = trainer.evaluate()
        found[f"batchwise={batchwise}"] = {
            "values": {key: values[key] for key in ("eval_pac_s", "eval_refpac_s")},
            "captions": metrics.captions,
            "scores": metrics.results["refpacs"].scores,
            "items": forwards.items,
            "log": trainer.state.log_history[-1],
        }
    found["tables"] = len(list(folder.rglob("events.out.tfevents.*")))
    # An image that vanishes costs the process that has it in its share an error, and the other one no hang.
    paths = [folder.parent / f"{int(folder.name)}-{i}.png" for i in range(count)]
    for path, image in zip(paths, scenes.images, strict=True):
        image.save(path)
    metrics = CaptionMetrics(scenes.tokenizer, images=paths, metrics=["pacs"], weights="tiny")
    paths[-1].unlink()
    trainer.compute_metrics = metrics
    try:
        trainer.evaluate()
    except (ValueError, RuntimeError) as error:
        found["vanished"] = f"{type(error).__name__}: {error}"
