"""Groups of units that threads make ahead of their turn, a few at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ReadAhead(Iterator[Sequence[T]]):
    """The groups of an iterator, made by threads: the first one at once, in the thread that calls.

    Groups of at most `size` elements wait, or one group; twice as many when someone has begun to take them.
    No thread waits: making a group is a task, which submits the next one. An error of the iterator is raised
    where its group would be, that of the first one at once.
    """

    def __init__(self, groups: Iterator[Sequence[T]], threads: ThreadPoolExecutor, size: int) -> None:
        self._groups = groups
        self._threads = threads
        self._most = size
        self._made: deque[Sequence[T]] = deque()
        self._waiting = 0  # elements in `_made`
        self._error: BaseException | None = None
        self._ended = False
        self._taken = False
        self._busy = False  # a task is making a group
        self._change = threading.Condition()
        self._make()
        if self._error is not None:
            raise self._error
        with self._change:
            self._submit()

    def __next__(self) -> Sequence[T]:
        with self._change:
            if not self._taken:
                self._taken, self._most = True, 2 * self._most
            self._submit()
            while not self._made and not self._ended:
                self._change.wait()
            if self._made:
                group = self._made.popleft()
                self._waiting -= len(group)
                self._submit()
                return group
            if self._error is not None:
                raise self._error
            raise StopIteration

    def _submit(self) -> None:
        """Have the next group made, if there is room for it and nobody makes it."""
        if not self._busy and not self._ended and self._waiting < self._most:
            try:
                self._threads.submit(self._task)
            except RuntimeError:  # the threads are shut down: nobody takes what would be made
                self._ended = True
            else:
                self._busy = True

    def _task(self) -> None:
        self._make()
        with self._change:
            self._busy = False
            self._submit()
            self._change.notify_all()

    def _make(self) -> None:
        group: Sequence[T] | None = None
        error: BaseException | None = None
        try:
            group = next(self._groups, None)
        except BaseException as raised:
            error = raised
        with self._change:
            if group is None:
                self._ended, self._error = True, error
            else:
                self._made.append(group)
                self._waiting += len(group)
            self._change.notify_all()
