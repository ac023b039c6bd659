"""One process of a distributed evaluation; separate, so that spawned processes import little."""

from __future__ import annotations

import os
from multiprocessing import get_context
from typing import Any

Batch = dict[str, list[Any]]


def run_ranks(
    path: str, options: dict[str, Any], scenarios: dict[str, list[list[Batch] | None]]
) -> dict[str, Any]:
    """What process 0 gets for each scenario: per process its batches, or None for one that dies after one.

    All scenarios run in the same processes, one after the other, since starting them is what takes time.
    """
    ranks = len(next(iter(scenarios.values())))
    context = get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(
            target=rank,
            args=(
                path,
                options,
                {name: batches[i] for name, batches in scenarios.items()},
                ranks,
                i,
                results,
            ),
        )
        for i in range(ranks)
    ]
    for process in processes:
        process.start()
    try:
        return results.get(timeout=1200)
    finally:
        for process in processes:
            process.join(timeout=600)
            process.kill()


def rank(
    path: str,
    options: dict[str, Any],
    scenarios: dict[str, list[Batch] | None],
    ranks: int,
    process_id: int,
    results: Any,
) -> None:
    import evaluate
    import torch

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, batches in scenarios.items():
        module = evaluate.load(path, num_process=ranks, process_id=process_id, experiment_id=name, **options)
        if batches is None:
            module.add_batch(predictions=[], images=[])
            os._exit(1)  # as if killed, its locks fall open
        try:
            for batch in batches:
                module.add_batch(**batch)
            found[name] = module.compute(per_caption=True)
        except ValueError as error:
            found[name] = str(error)
        if process_id:
            assert found[name] is None
    if process_id == 0:
        results.put(found)
