"""The streaming engine: items in, arrays out, in order; equal ones run once, and memory does not grow.

An item is a visual (image, frames, box features) with what belongs to it: nothing, its regions, its texts.
Threads compute content keys of some items while those before are encoded. Equal items share an `_Entry`; its
keys are looked up in the cache. Threads load and prepare what is missing, a bounded number of items ahead:
that gives `Units`, the rows of a forward pass that the item needs. They fill a batch, which is launched when
it is full; two may run while the next one is filled. When the values of all its units have arrived, an item's
features are joined and cached, and the items at the front that are done are given out. One that cannot be
read, prepared or fitted has an error instead of arrays.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from capeval_core.cache import Feature, FeatureCache
from capeval_core.errors import Problem, Problems
from capeval_core.inputs.images import ImageError
from capeval_core.limits import LIMITS
from capeval_core.models.batching import BatchSize
from capeval_core.models.device import Arriving
from capeval_core.ragged import Floats

Item = tuple[Any, Any]
_Keyed = list[tuple[Item, str | ImageError]]
V = TypeVar("V")
T = TypeVar("T")

_RUNNING = 2  # batches that may wait for values: the device is busy with one while the next is launched
_THREADS = 16  # at most; they decode side by side, since decoders release the interpreter's lock
_TOGETHER = 8  # items at most that a thread prepares in one task, which costs Python as much as one of them


class Units(NamedTuple):
    """The rows of a forward pass that an item needs, some at a time; an iterator makes them as they are
    needed, by threads, since an item may have more than fit into memory."""

    groups: Iterable[Sequence[Any]]
    join: Callable[[list[Any]], dict[str, Feature]]  # the item's features, by key, of the values of all rows


@dataclass(frozen=True)
class Encoding:
    """The way of an encoder from items to features; by default each into one, of its visual alone.

    units: the rows that an item needs, by the item, its visual as loaded and as prepared, and the keys that
    are missing; ImageError if what belongs to the visual does not fit it. None: one, what is prepared.
    """

    size: BatchSize  # units per forward pass
    keys: Callable[[str, Any], tuple[str, ...]]  # the cache's, by the visual's content key and the rest
    prepare: Callable[[Any], Any]  # what the network takes of a loaded visual
    # One value per unit; of a tensor on a device, or `Arriving`, further batches are launched meanwhile.
    forward: Callable[[list[Any]], Iterable[Any] | Tensor | Arriving]
    units: Callable[[Item, Any, Any, Sequence[str]], Units] | None = None
    # Some visuals as prepared by other processes, None for one that a thread has to prepare.
    elsewhere: Callable[[Sequence[Any]], Sequence[Any]] | None = None
    ahead: int | None = None  # items that are prepared before their turn; None: two batches


@dataclass(frozen=True)
class Encoded:
    """The arrays of one item, or the error in their place."""

    extra: Any  # what belongs to its visual
    arrays: dict[str, Any] | None  # for each of its `keys` an array, or a tuple; None where there is an error
    keys: tuple[str, ...]
    content: str  # content key of the visual, '' where it could not be read
    error: str | None  # why there is nothing

    def array(self, shape: tuple[int, ...]) -> Floats:
        """The first array, in this shape; NaN where there is none."""
        if not self.arrays:
            return np.full(shape, np.nan, np.float32)
        array: Floats = self.arrays[self.keys[0]]
        return array.reshape(shape)


@dataclass(frozen=True)
class ImageFeatures:
    """Features of some consecutive images."""

    features: Floats  # (n, ...) un-normalised; NaN where an image could not be read
    keys: list[str]  # content key of each image, '' where it could not be read
    errors: list[str | None]  # why an image could not be read, None where it could

    @classmethod
    def of(cls, part: Sequence[Encoded], *, shape: tuple[int, ...]) -> ImageFeatures:
        """The first array of each item, in this shape."""
        features = np.stack([item.array(shape) for item in part])
        return cls(features, [item.content for item in part], [item.error for item in part])

    @classmethod
    def joined(cls, parts: Iterable[ImageFeatures]) -> ImageFeatures:
        """Parts, at least one, as one."""
        features: list[Floats] = []
        keys: list[str] = []
        errors: list[str | None] = []
        for part in parts:
            features.append(part.features)
            keys.extend(part.keys)
            errors.extend(part.errors)
        return cls(np.concatenate(features), keys, errors)


def encode_stream(items: Iterable[Item], encoding: Encoding, cache: FeatureCache) -> Iterator[list[Encoded]]:
    """Items as arrays, in order, some at a time; one that cannot be read or prepared costs its own row."""
    threads = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), thread_name_prefix="capeval-read")
    run = _Run(encoding, cache, threads)
    try:
        for keyed in _keyed(items, min(LIMITS.items, encoding.ahead or LIMITS.items), threads):
            run.add(keyed)
            if encoded := run.done():
                yield encoded
        run.wait()
        if encoded := run.done():
            yield encoded
    finally:
        threads.shutdown(cancel_futures=True)  # an interrupted run does not wait for what was read ahead


def _keyed(items: Iterable[Item], together: int, threads: ThreadPoolExecutor) -> Iterator[_Keyed]:
    """Items with their content keys, some at a time; those of the next ones are computed meanwhile."""

    def keyed(part: Sequence[Item]) -> _Keyed:
        pairs: _Keyed = []
        for item in part:
            try:
                pairs.append((item, item[0].key))  # reads the whole file, since keys are of its content
            except ImageError as error:
                pairs.append((item, error))
        return pairs

    waiting: deque[list[Future[_Keyed]]] = deque()
    for chunk in chunks(items, together):
        parts = chunks(chunk, max(1, len(chunk) // _THREADS))
        waiting.append([threads.submit(keyed, part) for part in parts])
        # A chunk is given out only when the next one is on its way: its files are read meanwhile.
        if len(waiting) > 1:
            yield _results(waiting.popleft())
    for last in waiting:
        yield _results(last)


def _results(parts: Iterable[Future[_Keyed]]) -> _Keyed:
    """Items with their content keys, of all parts of a chunk."""
    pairs: _Keyed = []
    for part in parts:
        pairs.extend(part.result())
    return pairs


@dataclass(eq=False)
class _Entry:
    """A distinct item, shared by all equal items in flight."""

    item: Item
    keys: tuple[str, ...]
    error: ImageError | None = None
    arrays: dict[str, Feature] = field(default_factory=dict)
    units: Units | None = None
    values: list[Any] = field(default_factory=list)  # of the rows that have run, in order
    expected: int | None = None  # rows, once all are made
    waiting: int = 0  # items that have not been given out

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.arrays) == len(self.keys)


class _Run:
    """Items between reading and giving out: prepared ahead, in a batch, running, or waiting their turn."""

    def __init__(self, encoding: Encoding, cache: FeatureCache, threads: ThreadPoolExecutor) -> None:
        self.encoding = encoding
        self.cache = cache
        self.threads = threads
        self.in_order: deque[tuple[Item, str, _Entry]] = deque()
        self.entries: dict[tuple[str, ...], _Entry] = {}
        self.owners: dict[str, _Entry] = {}  # by each of their keys
        self.preparing: deque[tuple[list[_Entry], Future[list[Units | ImageError]]]] = deque()
        self.batch: list[tuple[_Entry, Any]] = []
        self.running: deque[tuple[list[_Entry], Arriving]] = deque()

    def add(self, keyed: _Keyed) -> None:
        """Take items whose content keys are known."""
        new: list[_Entry] = []
        for item, content in keyed:
            if isinstance(content, ImageError):
                entry = _Entry(item, (), content)
                content_key = ""
            else:
                keys = self.encoding.keys(content, item[1])
                content_key = content
                if keys not in self.entries:
                    shared = {key: self.owners[key] for key in keys if key in self.owners}
                    if not all(owner.done for owner in shared.values()):
                        # Some of its features are being computed for another item: they are waited for.
                        self._prepare(new)
                        self.wait()
                        new = []
                    self.entries[keys] = self._entry(item, keys, shared)
                    new.append(self.entries[keys])
                entry = self.entries[keys]
            entry.waiting += 1
            self.in_order.append((item, content_key, entry))
        self._prepare(new)
        # One slow item at the front holds up all behind it: their features must not pile up.
        if len(self.in_order) > LIMITS.items_waiting + sum(len(batch) for batch, _ in self.running):
            self.wait()

    def _entry(self, item: Item, keys: tuple[str, ...], shared: Mapping[str, _Entry]) -> _Entry:
        """A new entry, with those features that other items in flight share with it."""
        arrays: dict[str, Feature] = {}
        for key, owner in shared.items():
            if key in owner.arrays:  # else that item has an error
                arrays[key] = owner.arrays[key]
        entry = _Entry(item, keys, arrays=arrays)
        self.owners |= dict.fromkeys(keys, entry)
        return entry

    def _prepare(self, entries: list[_Entry]) -> None:
        """Look items up in the cache, and have those prepared that are not there."""
        keys: dict[str, None] = {}  # in order, each once
        for entry in entries:
            keys |= dict.fromkeys(entry.keys)
        stored = self.cache.get(keys)  # all at once: on a disk each look-up is a query
        for entry in entries:
            entry.arrays.update({key: stored[key] for key in entry.keys if key in stored})
        new = [entry for entry in entries if not entry.done]
        ahead = 2 * self.encoding.size.size if self.encoding.ahead is None else self.encoding.ahead
        # Small enough that all threads have a task; another process is asked for many images at once.
        tasks = 8 if self.encoding.elsewhere else 64
        for group in chunks(new, max(1, min(_TOGETHER, ahead // tasks))):
            self.preparing.append((group, self.threads.submit(self._prepared, group)))
            while sum(len(waiting) for waiting, _ in self.preparing) > ahead:
                self._fill(*self.preparing.popleft())

    def _prepared(self, group: list[_Entry]) -> list[Units | ImageError]:
        """The units of each item, or the error that it has instead; runs in a thread."""
        decoded: Sequence[Any] = []
        if self.encoding.elsewhere:
            decoded = self.encoding.elsewhere([entry.item[0] for entry in group])
        units: list[Units | ImageError] = []
        for entry, prepared in zip_longest(group, decoded):
            visual = entry.item[0]
            loaded = None
            try:
                if prepared is None:  # also what another process could not decode: here the error is found
                    loaded = visual.load()
                    with preparing(visual, loaded):
                        prepared = self.encoding.prepare(loaded)
                units.append(self._units(entry, loaded, prepared))
            except ImageError as error:
                units.append(error)
        return units

    def _units(self, entry: _Entry, loaded: object, prepared: object) -> Units:
        if self.encoding.units is None:
            return Units([[prepared]], lambda values: {entry.keys[0]: values[0]})
        missing = [key for key in entry.keys if key not in entry.arrays]
        try:
            groups, join = self.encoding.units(entry.item, loaded, prepared, missing)
            if isinstance(groups, Iterator):
                # The first group is made here, in a thread; an error in it is this item's.
                groups = _ahead(next(groups, None), groups, self.threads)
            return Units(groups, join)
        except ImageError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, OSError) as error:
            # A source of regions is the user's own code, whose error says nothing of the image.
            problem = f"what belongs to it could not be made ({type(error).__name__}: {error})"
            raise ImageError(Problem(entry.item[0].where, problem, sentence=True)) from error

    def _fill(self, group: list[_Entry], future: Future[list[Units | ImageError]]) -> None:
        """Add the units of items to the batch, and launch it whenever it is full."""
        for entry, units in zip(group, future.result(), strict=True):
            count = 0
            try:
                if isinstance(units, ImageError):
                    raise units
                entry.units = units
                for unit in chain.from_iterable(units.groups):
                    count += 1
                    self.batch.append((entry, unit))
                    if len(self.batch) >= self.encoding.size.size:
                        self.launch()
            except ImageError as error:
                entry.error = error
                entry.units = None
            else:
                entry.expected = count
                # Its last batch may have arrived before it was known to be the last.
                if arrays := self._finished(entry):
                    self.cache.put(arrays)

    def launch(self) -> None:
        """Start a batch, and keep what has arrived meanwhile."""
        batch = self.batch
        self.batch = []
        units = [unit for _, unit in batch]
        # Several parts, where memory has run out and the batch was halved.
        for part, values in self.encoding.size.run(units, self.encoding.forward, after=Arriving.of):
            self.running.append(([entry for entry, _ in batch[part]], values))
            while self.running and (len(self.running) > _RUNNING or self.running[0][1].arrived()):
                self._keep()

    def _keep(self) -> None:
        """Note the values of the first batch that runs."""
        batch, values = self.running.popleft()
        for entry, value in zip(batch, values.values(), strict=True):
            if entry.units is not None:  # None: a later unit could not be made
                entry.values.append(value)
        arrays: dict[str, Feature] = {}
        for entry in dict.fromkeys(batch):
            arrays.update(self._finished(entry))
        if arrays:
            self.cache.put(arrays)

    def _finished(self, entry: _Entry) -> dict[str, Feature]:
        """The features of an item whose units have all run."""
        if entry.units is None or len(entry.values) != entry.expected:
            return {}
        arrays = entry.units.join(entry.values)
        entry.arrays.update(arrays)
        # Pixels and values are freed here; the entry itself stays until all equal items are given out.
        entry.units = None
        entry.values = []
        return arrays

    def wait(self) -> None:
        """Run what is left, in batches that need not be full, and keep all values."""
        while self.preparing:
            self._fill(*self.preparing.popleft())
        if self.batch:
            self.launch()
        while self.running:
            self._keep()

    def done(self) -> list[Encoded]:
        """The items at the front that are done."""
        encoded: list[Encoded] = []
        while self.in_order and self.in_order[0][2].done:
            (visual, extra), content, entry = self.in_order.popleft()
            arrays: dict[str, Any] | None = entry.arrays
            error = None
            if entry.error is not None:
                arrays = None
                error = self._error(entry.error, entry.item[0].where, visual.where)
            encoded.append(Encoded(extra, arrays, entry.keys, content, error))
            entry.waiting -= 1
            if not entry.waiting:
                # Given out to all equal items: from here on the cache is what knows its features.
                self.entries.pop(entry.keys, None)
                for key in entry.keys:
                    if self.owners.get(key) is entry:
                        del self.owners[key]
        return encoded

    @staticmethod
    def _error(error: ImageError, first: str, where: str) -> str:
        """The error of the first of equal items, about the one at `where`."""
        problems = []
        for problem in error.problems:
            problems.append(problem._replace(where=problem.where.replace(first, where, 1)))
        return str(Problems(problems))


def _ahead(group: T | None, groups: Iterator[T], threads: ThreadPoolExecutor) -> Iterator[T]:
    """A group, and those behind it, each made by a thread while the one before is used."""
    while group is not None:
        following = threads.submit(next, groups, None)
        yield group
        group = following.result()


@contextmanager
def preparing(visual: Any, loaded: object) -> Iterator[None]:
    """Let what fails be an ImageError about this visual."""
    try:
        yield
    except (ValueError, OSError, MemoryError) as error:  # e.g. no way from the mode La to RGB
        mode = f" ({loaded.mode})" if hasattr(loaded, "mode") else ""
        problem = f"cannot prepare {visual.name}{mode}: {error}"
        raise ImageError(Problem(visual.where, problem, sentence=True)) from None


def with_extras(images: Iterable[V], extras: Iterable[T], names: str, hint: str) -> Iterator[tuple[V, T]]:
    """Pairs of an image and its regions or texts, equally many; messages call these `names`."""
    missing: Any = object()  # no None, which may be an extra itself
    for index, (image, extra) in enumerate(zip_longest(images, extras, fillvalue=missing)):
        if extra is missing:
            raise ValueError(f"there are {index} {names} but more images: {hint}")
        if image is missing:
            raise ValueError(f"there are {index} images but more {names}: {hint}")
        yield image, extra


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive items, `size` at a time."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
