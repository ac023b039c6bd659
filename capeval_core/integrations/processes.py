"""Work shared by the processes of a distributed training: each does its part, all get the whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa


def processes() -> tuple[int, int]:
    """The number of this process, and how many there are: (0, 1) where nothing is distributed."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def own_device() -> str | None:
    """The GPU of this process where several share a machine, e.g. `cuda:1`; None: let the metric choose.

    It is read before the Trainer makes it the current one, which may be after the metrics are opened.
    """
    import torch

    number = int(os.environ.get("LOCAL_RANK", -1))  # as torchrun and accelerate set it
    if number < 0 or not torch.cuda.is_available():
        return None
    return f"cuda:{number % torch.cuda.device_count()}"  # each may be shown its own GPU only


def share(count: int) -> range:
    """This process's part of `count` rows: neighbours, since captions of one image often are."""
    rank, size = processes()
    return range(count * rank // size, count * (rank + 1) // size)


def gather_tables(work: Callable[[], list[pa.Table]]) -> list[pa.Table]:
    """Tables that `work` returns here, each with those of the same position in all other processes.

    Every process must call this. One that fails takes part nevertheless, so that no other waits for it.
    """
    _, size = processes()
    if size == 1:
        return work()
    from torch import distributed

    tables: list[pa.Table] = []
    failure: Exception | None = None
    try:
        tables = work()
    except Exception as error:
        failure = error
    gathered: list[Any] = [None] * size
    distributed.all_gather_object(gathered, (tables, failure and f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    for process, (_, message) in enumerate(gathered):
        if message is not None:
            raise RuntimeError(f"process {process} of {size} could not score its captions: {message}")
    return [pa.concat_tables(parts) for parts in zip(*(parts for parts, _ in gathered), strict=True)]
