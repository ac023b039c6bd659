"""Batches as large as memory allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class ForwardCount:
    """The number of items and batches that went through the networks."""

    items: int = 0  # images, masks, texts, pairs
    batches: int = 0


_COUNTS: list[ForwardCount] = []


@contextmanager
def count_forwards() -> Iterator[ForwardCount]:
    """Count all forward passes of this process while it is open, whatever the network.

    >>> with count_forwards() as count:
    ...     outputs = list(BatchSize(2, automatic=True).run([1, 2, 3], sum))
    >>> count.items, count.batches
    (3, 2)
    """
    count = ForwardCount()
    _COUNTS.append(count)
    try:
        yield count
    finally:
        _COUNTS[:] = [open_count for open_count in _COUNTS if open_count is not count]


class BatchSize:
    """The size of the next batch, in whatever unit its owner counts (images, tokens). An automatic size is
    halved whenever memory runs out; of one that the user gave an error says to lower it."""

    def __init__(self, size: int, *, automatic: bool) -> None:
        self.size = size
        self.automatic = automatic

    def run(
        self,
        items: Sequence[Any],
        forward: Callable[[Any], Any],
        *,
        cost: int | Sequence[int] = 1,
        after: Callable[[Any], Any] = lambda output: output,
    ) -> Iterator[tuple[slice, Any]]:
        """Outputs of `forward` over slices that cover all items; `after` makes of each what is given. cost:
        units of each item; a sequence, where it differs."""
        start = 0
        while start < len(items):
            part = slice(start, self._stop(start, len(items), cost))
            refused: RuntimeError | None = None
            try:
                output = after(forward(items[part]))
            except RuntimeError as error:
                if not _out_of_memory(error):
                    raise
                # Without its traceback, which would keep the batch that did not fit in memory.
                refused = error.with_traceback(None)
            if refused is not None:
                self._shrink(part, cost, refused)
                continue
            for counted in _COUNTS:
                counted.items += part.stop - part.start
                counted.batches += 1
            yield part, output
            start = part.stop

    def _stop(self, start: int, count: int, cost: int | Sequence[int]) -> int:
        """The end of the batch that begins at an item: it holds one at least."""
        if isinstance(cost, int):
            return min(count, start + max(1, self.size // cost))
        stop = start + 1
        units = cost[start]
        while stop < count and units + cost[stop] <= self.size:
            units += cost[stop]
            stop += 1
        return stop

    def _shrink(self, part: slice, cost: int | Sequence[int], error: RuntimeError) -> None:
        failed = part.stop - part.start
        if not self.automatic:
            fix = "does not fit into memory: lower it, or leave batch_size=None"
            raise MemoryError(f"batch_size={failed} {fix}") from error
        if failed == 1:
            fix = 'use device="cpu" or smaller weights'
            raise MemoryError(f"a single item does not fit into memory: {fix}") from error
        half = failed // 2
        self.size = half * cost if isinstance(cost, int) else sum(cost[part.start : part.start + half])
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _out_of_memory(error: RuntimeError) -> bool:
    # The allocators of the CPU and of Apple GPUs raise a plain RuntimeError, each in its own words.
    messages = ("not enough memory", "can't allocate memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in messages)
