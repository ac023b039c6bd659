"""Batches between the launch of a network and the arrival of its values, a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from capeval_core.models.batching import BatchSize
from capeval_core.models.copies import Arriving, arriving

RUNNING = 2
"""Batches that may wait for their values: the device is busy with one while the next one is launched."""


class Running:
    """Batches that run, in order.

    size: units per batch; it shrinks where memory runs out.
    forward: values of some units, as `arriving` takes them.
    keep: takes a batch and its values, in the order of the launches.
    """

    def __init__(
        self,
        size: BatchSize,
        forward: Callable[[list[Any]], Any],
        keep: Callable[[list[Any], Iterable[Any]], None],
    ) -> None:
        self._size, self._forward, self._keep = size, forward, keep
        self._batches: deque[tuple[list[Any], Arriving]] = deque()

    @property
    def units(self) -> int:
        """How many units run."""
        return sum(len(batch) for batch, _ in self._batches)

    def launch(self, batch: list[Any], units: list[Any]) -> None:
        """Start a batch, of one unit per element, and keep what has arrived meanwhile.

        Raises:
            MemoryError: a batch of a given size, or a single unit, does not fit into memory.
        """
        for part, values in self._size.run(units, self._forward, after=arriving):
            self._batches.append((batch[part], values))
            while self._batches and (len(self._batches) > RUNNING or self._batches[0][1].arrived()):
                self._keep_first()
        while self._batches and self._batches[0][1].arrived():
            self._keep_first()

    def wait(self) -> None:
        """Keep the values of all that runs."""
        while self._batches:
            self._keep_first()

    def _keep_first(self) -> None:
        batch, rows = self._batches.popleft()
        self._keep(batch, rows.values())
