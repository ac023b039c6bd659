"""The streaming engine: items are read ahead by threads, equal ones encoded once, and come out in order.

An item is a visual (an image, frames, box features) with what belongs to it: nothing, its regions, its texts.
An encoder brings an `Encoding`: the cache keys of an item, how it is prepared, and how a batch runs. Two
shapes cover all networks: an item alone, which is the default, and an item with each of its texts (`Pairs`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from typing import Any, TypeVar
from weakref import WeakMethod, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders.encoding import Encoded, Encoding, Item, Units
from capeval_core.encoders.reading_ahead import ReadAhead
from capeval_core.encoders.running import Running
from capeval_core.errors import Problem, Problems
from capeval_core.inputs.visual import ImageError, InputImage, Visual
from capeval_core.regions.features import BoxVisual, refuse_unusable

Floats = NDArray[np.float32]
V = TypeVar("V")
T = TypeVar("T")

_LOOKED_UP = 64
"""Items whose keys are looked up in the cache together; the next ones are read meanwhile."""
_IN_FLIGHT = 1024
"""Items that may wait for an earlier one, which bounds memory."""
_THREADS = 16
_TOGETHER = 8  # items at most that a thread prepares in one task, which costs Python as much as one of them


def encode_stream(items: Iterable[Item], encoding: Encoding, cache: FeatureCache) -> Iterator[list[Encoded]]:
    """Items as arrays, in order, some at a time; memory does not grow with their number.

    One that cannot be read or prepared costs its own row only.

    Raises:
        MemoryError: a batch of a given size, or a single unit, does not fit into memory.
    """
    threads = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), thread_name_prefix="capeval-read")
    flight = _Flight(encoding, cache, threads)
    try:
        for batch in chain(flight.batches(items), [[]]):  # the last one has been waited for
            flight.running.launch(batch, [unit for _, _, unit in batch])
            if done := flight.done():
                yield done
    finally:
        threads.shutdown(cancel_futures=True)  # an interrupted run does not wait for what was read ahead


@dataclass(eq=False)
class _Entry:
    """A distinct item that is being encoded, shared by all equal items in flight."""

    item: Item
    keys: tuple[str, ...]
    arrays: dict[str, Floats] = field(default_factory=dict)
    units: Units | None = None
    expected: int = 0
    complete: bool = False
    error: ImageError | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.arrays) == len(self.keys)


_Batch = list[tuple[_Entry, int, Any]]


class _Flight:
    """Items between reading and giving out: prepared ahead, filling a batch, waiting for their turn."""

    def __init__(self, encoding: Encoding, cache: FeatureCache, threads: ThreadPoolExecutor) -> None:
        self.encoding, self.cache, self.threads = encoding, cache, threads
        self.entries: WeakValueDictionary[tuple[str, ...], _Entry] = WeakValueDictionary()
        self.owners: WeakValueDictionary[str, _Entry] = WeakValueDictionary()  # by each of their keys
        self.in_order: deque[tuple[Item, str, _Entry]] = deque()
        self.preparing: deque[tuple[list[_Entry], Future[list[Units | ImageError]]]] = deque()
        self.batch: _Batch = []
        keep: Any = WeakMethod(self.keep)  # no cycle: an encoder's memory is free as soon as its run is over
        self.running = Running(encoding.size, encoding.forward, lambda *batch: keep()(*batch))

    def batches(self, items: Iterable[Item]) -> Iterator[_Batch]:
        """Batches of units to run; an empty one where items may be done without."""
        waiting: deque[list[tuple[list[Item], Future[list[str | ImageError]]]]] = deque()
        for chunk in chunks(items, self.encoding.together or _LOOKED_UP):
            parts = chunks(chunk, max(1, len(chunk) // _THREADS))
            waiting.append([(part, self.threads.submit(content_keys, part)) for part in parts])
            if len(waiting) > 1:  # the next items are read while these are encoded
                yield from self._add(waiting.popleft())
        while waiting:
            yield from self._add(waiting.popleft())
        yield from self._rest()

    def _add(self, read: list[tuple[list[Item], Future[list[str | ImageError]]]]) -> Iterator[_Batch]:
        """Take items whose content keys are being computed."""
        new: list[_Entry] = []
        for item, content in (
            (i, key) for part, future in read for i, key in zip(part, future.result(), strict=True)
        ):
            if isinstance(content, ImageError):
                self.in_order.append((item, "", _Entry(item, (), error=content)))
                continue
            keys = self.encoding.keys(content, item[1])
            entry = self.entries.get(keys)
            if entry is None:
                shared = {key: owner for key in keys if (owner := self.owners.get(key))}
                if not all(owner.done for owner in shared.values()):
                    # Some of its arrays are being computed for another item: they are waited for.
                    yield from self._prepare(new)
                    yield from self._rest()
                    new = []
                entry = self.entries.setdefault(keys, _Entry(item, keys))
                entry.arrays.update({key: o.arrays[key] for key, o in shared.items() if key in o.arrays})
                self.owners.update(dict.fromkeys(keys, entry))
                new.append(entry)
            self.in_order.append((item, content, entry))
        yield from self._prepare(new)
        if len(self.in_order) > _IN_FLIGHT + self.running.units:
            yield from self._rest()
        yield []

    def _prepare(self, entries: list[_Entry]) -> Iterator[_Batch]:
        """Look items up in the cache, and prepare those that are not there."""
        stored = self.cache.get({key: None for entry in entries for key in entry.keys})
        ahead = 2 * self.encoding.size.size if self.encoding.ahead is None else self.encoding.ahead
        for entry in entries:
            entry.arrays.update({key: stored[key] for key in entry.keys if key in stored})
        new = [entry for entry in entries if not entry.done]
        for group in chunks(new, max(1, min(_TOGETHER, ahead // (8 if self.encoding.elsewhere else 64)))):
            self.preparing.append((group, self.threads.submit(self._prepared, group)))
            while sum(len(waiting) for waiting, _ in self.preparing) > ahead:
                yield from self._fill_all(*self.preparing.popleft())

    def _rest(self) -> Iterator[_Batch]:
        """What is left, in batches that need not be full."""
        while self.preparing:
            yield from self._fill_all(*self.preparing.popleft())
        batch, self.batch = self.batch, []
        yield batch
        self.running.wait()

    def _prepared(self, group: list[_Entry]) -> list[Units | ImageError]:
        """What each item needs of the network, or why it has no visual; runs in a thread."""
        done = self.encoding.elsewhere([entry.item[0] for entry in group]) if self.encoding.elsewhere else []
        units: list[Units | ImageError] = []
        for entry, prepared in zip_longest(group, done):
            visual, loaded = entry.item[0], None
            try:
                if prepared is None:
                    loaded = visual.load()
                    with preparing(visual, loaded):
                        prepared = self.encoding.prepare(loaded)
                units.append(self._units(entry, loaded, prepared))
            except ImageError as error:
                units.append(error)
        return units

    def _units(self, entry: _Entry, loaded: Any, prepared: Any) -> Units:
        missing = [key for key in entry.keys if key not in entry.arrays]
        try:
            units = self.encoding.units(entry.item, loaded, prepared, missing)
        except ImageError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, OSError) as error:
            # A source of regions is the user's own code, whose error says nothing of the image.
            found = f"what belongs to it could not be made ({type(error).__name__}: {error})"
            raise ImageError(Problem(entry.item[0].where, None, found, verb="")) from error
        if units.decoded:
            units = replace(
                units, groups=ReadAhead(iter(units.groups), self.threads, self.encoding.size.size)
            )
        return units

    def _fill_all(self, group: list[_Entry], future: Future[list[Units | ImageError]]) -> Iterator[_Batch]:
        for entry, units in zip(group, future.result(), strict=True):
            yield from self._fill(entry, units)

    def _fill(self, entry: _Entry, units: Units | ImageError) -> Iterator[_Batch]:
        """Add an item's units to the batch, and give it out whenever it is full."""
        if isinstance(units, ImageError):
            entry.error = units
            return
        entry.units = units
        groups = iter(units.groups)
        while True:
            try:
                group = next(groups, None)
            except ImageError as error:
                entry.error, entry.units = error, None
                return
            if group is None:
                break
            for label, unit in group:
                entry.expected += 1
                self.batch.append((entry, label, unit))
                if len(self.batch) >= self.encoding.size.size:
                    batch, self.batch = self.batch, []
                    yield batch
        entry.complete = True
        if arrays := self._finished(entry):
            self.cache.put(arrays)

    def keep(self, batch: _Batch, values: Iterable[Any]) -> None:
        """Note the values of units that have run."""
        for (entry, label, _), value in zip(batch, values, strict=True):
            if entry.units is not None:  # None: a later unit could not be made
                entry.units.values[label] = value
        arrays: dict[str, Floats] = {}
        for entry in dict.fromkeys(entry for entry, _, _ in batch):
            arrays.update(self._finished(entry))
        if arrays:
            self.cache.put(arrays)

    def _finished(self, entry: _Entry) -> dict[str, Floats]:
        """The arrays of an item whose units have all run."""
        units = entry.units
        if not entry.complete or units is None or len(units.values) != entry.expected:
            return {}
        arrays = self.encoding.arrays(entry.keys, units, units.values)
        entry.arrays.update(arrays)
        entry.units = None
        return arrays

    def done(self) -> list[Encoded]:
        """The items at the front that are done."""
        done: list[Encoded] = []
        while self.in_order and self.in_order[0][2].done:
            (visual, extra), content, entry = self.in_order.popleft()
            if entry.error is None:
                done.append(Encoded(extra, entry.arrays, entry.keys, content, None))
            else:
                # What is said of the first of equal items holds for this one.
                first, problems = entry.item[0].where, entry.error.problems
                own = [replace(p, argument=visual.where) if p.argument == first else p for p in problems]
                done.append(Encoded(extra, None, entry.keys, content, str(ImageError(Problems(own)))))
        return done


@contextmanager
def preparing(visual: Visual[Any], loaded: Any) -> Iterator[None]:
    """Let what fails be an ImageError about this visual."""
    try:
        yield
    except (ValueError, OSError, MemoryError) as error:  # e.g. no way from the mode La to RGB
        mode = f" ({loaded.mode})" if hasattr(loaded, "mode") else ""
        found = f"cannot prepare {visual.name}{mode}: {error}"
        raise ImageError(Problem(visual.where, None, found, verb="")) from None


def content_keys(items: Iterable[Item]) -> list[str | ImageError]:
    """The content key of each visual, or why it cannot be read."""
    keys: list[str | ImageError] = []
    for visual, _ in items:
        try:
            keys.append(visual.key)
        except ImageError as error:
            keys.append(error)
    return keys


def with_extras(images: Iterable[V], extras: Iterable[T], names: str, hint: str) -> Iterator[tuple[V, T]]:
    """Pairs of an image and its regions or texts.

    Raises:
        ValueError: there are more of one than of the other; `names` is what messages call the extras.
    """
    missing: Any = object()
    for index, (image, extra) in enumerate(zip_longest(images, extras, fillvalue=missing)):
        if image is missing or extra is missing:
            fewer, more = (names, "images") if extra is missing else ("images", names)
            raise ValueError(f"there are {index} {fewer} but more {more}: {hint}")
        yield image, extra


def box_visuals(images: Iterable[InputImage], encoding: Encoding, cache: FeatureCache) -> Iterator[BoxVisual]:
    """What `encode_boxes` returns, by an `Encoding` whose values are packed box features."""
    parts = encode_stream(((image, image) for image in images), encoding, cache)
    return map(_visual, chain.from_iterable(parts))


def _visual(item: Encoded) -> BoxVisual:
    image: InputImage = item.extra
    packed = None if item.arrays is None else item.arrays[item.keys[0]]
    key = item.keys[0] if item.keys else ""
    return refuse_unusable(BoxVisual(image.where, image.name, item.content, item.error, key, packed))


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive items, `size` at a time."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
