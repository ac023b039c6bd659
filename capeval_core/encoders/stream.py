"""The streaming engine: items are read ahead by threads, equal ones encoded once, and come out in order.

An item is a visual (an image, frames, box features) with what belongs to it: nothing, its regions, its texts.
An encoder brings an `Encoding`: the cache keys of an item, how it is prepared, and how a batch runs. Two
shapes cover all networks: `Features` (an item alone) and `pairs.Pairs` (an item with each of its texts).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.models.batching import BatchSize

Floats = NDArray[np.float32]
Item = tuple[InputImage, Any]
T = TypeVar("T")

_LOOKED_UP = 64
"""Items whose keys are looked up in the cache together; the next ones are read meanwhile."""
_IN_FLIGHT = 1024
"""Items that may wait for an earlier one, which bounds memory."""
_THREADS = 16


@dataclass(frozen=True)
class Encoded:
    """What one item became.

    extra: what belongs to its visual.
    arrays: by cache key, all that `Encoding.keys` names; None where there is an error.
    keys: those keys, in order.
    content: content key of the visual, '' where it could not be read.
    error: why it could not be encoded, None where it could.
    """

    extra: Any
    arrays: dict[str, Floats] | None
    keys: tuple[str, ...]
    content: str
    error: str | None


@dataclass(frozen=True)
class Units:
    """The rows of a forward pass that an item needs.

    groups: some at a time, each with its label; made as they are needed, since an item may have more units
        than fit into memory.
    detail: what `Encoding.arrays` must know of the item.
    """

    groups: Iterable[Sequence[tuple[int, Any]]]
    detail: Any = None


class Encoding(ABC):
    """How an encoder turns items into arrays, `size` units per forward pass."""

    size: BatchSize

    @property
    def ahead(self) -> int:
        """How many items are prepared before their turn."""
        return 2 * self.size.size

    @abstractmethod
    def keys(self, content: str, extra: Any) -> tuple[str, ...]:
        """The cache's keys of an item's arrays, by the content key of its visual and what belongs to it."""

    @abstractmethod
    def prepare(self, loaded: Any) -> Any:
        """What the network takes of a loaded visual; runs in threads."""

    def units(self, item: Item, loaded: Any, prepared: Any, missing: Sequence[str]) -> Units:
        """The item's rows of a forward pass; runs in threads, after `prepare`. `missing`: keys to compute.

        Raises:
            ImageError: what belongs to the visual does not fit it.
        """
        return Units([[(0, prepared)]])

    @abstractmethod
    def forward(self, units: list[Any]) -> Iterable[Any]:
        """One value per unit."""

    def arrays(self, keys: Sequence[str], units: Units, values: dict[int, Any]) -> dict[str, Floats]:
        """The arrays of an item whose units have all run, by key; `values` are by label."""
        return {keys[0]: values[0]}


def encode_stream(items: Iterable[Item], encoding: Encoding, cache: FeatureCache) -> Iterator[list[Encoded]]:
    """Items as arrays, in order, some at a time; memory does not grow with their number.

    One that cannot be read or prepared costs its own row only.

    Raises:
        MemoryError: a batch of a given size, or a single unit, does not fit into memory.
    """
    threads = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), thread_name_prefix="capeval-read")
    stream = _Stream(encoding, cache, threads)
    try:
        waiting: deque[list[tuple[Item, Future[str | ImageError]]]] = deque()
        for chunk in chunks(items, _LOOKED_UP):
            waiting.append([(item, threads.submit(content_key, item[0])) for item in chunk])
            if len(waiting) > 1:  # the next items are read while these are encoded
                yield from stream.add(waiting.popleft())
        while waiting:
            yield from stream.add(waiting.popleft())
        yield from stream.finish()
    finally:
        threads.shutdown(cancel_futures=True)  # an interrupted run does not wait for what was read ahead


@dataclass(eq=False)
class _Entry:
    """A distinct item that is being encoded, shared by all equal items in flight."""

    item: Item
    keys: tuple[str, ...]
    arrays: dict[str, Floats] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)
    units: Units | None = None
    expected: int = 0
    complete: bool = False
    error: ImageError | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or len(self.arrays) == len(self.keys)


class _Stream:
    """Items in flight: those that are prepared ahead, the batch that is being filled, and those in order."""

    def __init__(self, encoding: Encoding, cache: FeatureCache, threads: ThreadPoolExecutor) -> None:
        self.encoding, self.cache, self.threads = encoding, cache, threads
        self.entries: WeakValueDictionary[tuple[str, ...], _Entry] = WeakValueDictionary()
        self.in_order: deque[tuple[Item, str, _Entry]] = deque()
        self.preparing: deque[tuple[_Entry, Future[Units | ImageError]]] = deque()
        self.batch: list[tuple[_Entry, int, Any]] = []

    def add(self, read: list[tuple[Item, Future[str | ImageError]]]) -> Iterator[list[Encoded]]:
        """Take items whose content keys are being computed, and give out what is done."""
        new: list[_Entry] = []
        for item, future in read:
            content = future.result()
            if isinstance(content, ImageError):
                entry, content = _Entry(item, (), error=content), ""
            else:
                keys = self.encoding.keys(content, item[1])
                found = self.entries.get(keys)
                entry = found or self.entries.setdefault(keys, _Entry(item, keys))
                if found is None:
                    new.append(entry)
            self.in_order.append((item, content, entry))
        stored = self.cache.get({key: None for entry in new for key in entry.keys})
        for entry in new:
            entry.arrays.update({key: stored[key] for key in entry.keys if key in stored})
            if not entry.done:
                self.preparing.append((entry, self.threads.submit(self._prepared, entry)))
            while len(self.preparing) > self.encoding.ahead:
                yield from self._collect(*self.preparing.popleft())
        if len(self.in_order) > _IN_FLIGHT:
            yield from self.finish()
        yield from self._done()

    def finish(self) -> Iterator[list[Encoded]]:
        """Encode what is left in batches that are not full, and give out everything."""
        while self.preparing:
            yield from self._collect(*self.preparing.popleft())
        self._run()
        yield from self._done()

    def _prepared(self, entry: _Entry) -> Units | ImageError:
        visual = entry.item[0]
        try:
            loaded = visual.load()
            try:
                prepared = self.encoding.prepare(loaded)
            except (ValueError, OSError, MemoryError) as error:  # e.g. no way from the mode La to RGB
                mode = f" ({loaded.mode})" if hasattr(loaded, "mode") else ""
                raise ImageError(f"{visual.where}: cannot prepare {visual.name}{mode}: {error}") from None
            missing = [key for key in entry.keys if key not in entry.arrays]
            return self.encoding.units(entry.item, loaded, prepared, missing)
        except ImageError as error:
            return error

    def _collect(self, entry: _Entry, future: Future[Units | ImageError]) -> Iterator[list[Encoded]]:
        """Add an item's units to the batch, and run it whenever it is full."""
        units = future.result()
        if isinstance(units, ImageError):
            entry.error = units
            return
        entry.units = units
        for group in units.groups:
            for label, unit in group:
                entry.expected += 1
                self.batch.append((entry, label, unit))
                if len(self.batch) >= self.encoding.size.size:
                    self._run()
                    yield from self._done()
        entry.complete = True
        self._keep_if_whole(entry)

    def _run(self) -> None:
        batch, self.batch = self.batch, []
        units = [unit for _, _, unit in batch]
        for part, values in self.encoding.size.run(
            len(units), lambda part: self.encoding.forward(units[part])
        ):
            for (entry, label, _), value in zip(batch[part], values, strict=True):
                entry.values[label] = value
        for entry in dict.fromkeys(entry for entry, _, _ in batch):
            self._keep_if_whole(entry)

    def _keep_if_whole(self, entry: _Entry) -> None:
        if entry.complete and entry.units is not None and len(entry.values) == entry.expected:
            arrays = self.encoding.arrays(entry.keys, entry.units, entry.values)
            self.cache.put(arrays)
            entry.arrays.update(arrays)
            entry.units, entry.values = None, {}

    def _done(self) -> Iterator[list[Encoded]]:
        """The items at the front that are done, if any."""
        done: list[Encoded] = []
        while self.in_order and self.in_order[0][2].done:
            (visual, extra), content, entry = self.in_order.popleft()
            if entry.error is None:
                done.append(Encoded(extra, entry.arrays, entry.keys, content, None))
            else:
                # The message names the first of equal items: here it is about this one.
                reason = str(entry.error).removeprefix(entry.item[0].where)
                done.append(Encoded(extra, None, entry.keys, content, f"{visual.where}{reason}"))
        if done:
            yield done


class Features(Encoding):
    """One array per item, computed from the visual alone.

    Args:
        key: the cache's key by the visual's content key.
        prepare: what the network takes of a loaded visual.
        forward: (n, ...) rows of n prepared visuals.
        size: visuals per forward pass.
    """

    def __init__(
        self,
        *,
        key: Callable[[str], str],
        prepare: Callable[[Any], Any],
        forward: Callable[[list[Any]], Floats],
        size: BatchSize,
    ) -> None:
        self._key, self._prepare, self._forward, self.size = key, prepare, forward, size

    def keys(self, content: str, extra: Any) -> tuple[str, ...]:
        return (self._key(content),)

    def prepare(self, loaded: Any) -> Any:
        return self._prepare(loaded)

    def forward(self, units: list[Any]) -> Floats:
        return self._forward(units)


@dataclass(frozen=True)
class ImageFeatures:
    """Features of some consecutive images.

    features: (n, ...) float32, un-normalised; NaN where an image could not be read.
    keys: content key of each image, '' where it could not be read.
    errors: why an image could not be read, None where it could.
    """

    features: Floats
    keys: list[str] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)


def encode_features(
    images: Iterable[InputImage], features: Features, shape: tuple[int, ...], cache: FeatureCache
) -> Iterator[ImageFeatures]:
    """Features of any number of images, each of `shape`, in order, some at a time."""
    for part in encode_stream(((image, None) for image in images), features, cache):
        rows = np.full((len(part), *shape), np.nan, dtype=np.float32)
        for row, encoded in zip(rows, part, strict=True):
            if encoded.arrays is not None:
                row[...] = encoded.arrays[encoded.keys[0]].reshape(shape)
        yield ImageFeatures(rows, [each.content for each in part], [each.error for each in part])


def content_key(visual: InputImage) -> str | ImageError:
    """The visual's content key, or why it cannot be read."""
    try:
        return visual.key
    except ImageError as error:
        return error


def with_extras(
    images: Iterable[InputImage], extras: Iterable[T], names: str, hint: str
) -> Iterator[tuple[InputImage, T]]:
    """Each image with what belongs to it.

    Raises:
        ValueError: there are more of one than of the other; `names` is what messages call the extras.
    """
    nothing: Any = object()
    for index, (image, extra) in enumerate(zip_longest(images, extras, fillvalue=nothing)):
        if image is nothing or extra is nothing:
            fewer, more = (names, "images") if extra is nothing else ("images", names)
            raise ValueError(f"there are {index} {fewer} but more {more}: {hint}")
        yield image, extra


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive items, `size` at a time."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
