"""Features of the regions of any number of images: masks of many images fill one batch."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.encoders.images import chunks, content_key, told_at
from capeval_core.inputs.visual import ImageError, InputImage

Floats = NDArray[np.float32]

_CHUNK = 64
"""Images whose keys are known at a time; equal ones among them are encoded once."""


@dataclass(frozen=True)
class RegionFeatures:
    """Features of one image and its regions.

    whole: (d,) float32, un-normalised, of the image under the full-one mask; NaN if there is an error.
    regions: (n, d) float32, un-normalised, of the regions that were kept.
    kept: (n,) the index of each among the masks of the image.
    dropped: masks that are empty, or lie wholly outside what the image tower sees.
    key: content key of the image, '' where it could not be read.
    error: why there are no features, None where there are.
    """

    whole: Floats
    regions: Floats
    kept: NDArray[np.int64]
    dropped: int
    key: str
    error: str | None = None


class Prepared(NamedTuple):
    """An image that is ready for its forward pass.

    pixels: what the image tower takes.
    full: the full-one mask, as it takes it.
    masks: how many there are, empty ones included.
    visible: some at a time, the index of each mask that the tower sees, with the mask as it takes it.
    """

    pixels: Tensor
    full: Tensor
    masks: int
    visible: Iterator[list[tuple[int, Tensor]]]


class Row(NamedTuple):
    """One forward pass: the pixels of an image under one mask."""

    pixels: Tensor
    alpha: Tensor


class Steps(Protocol):
    """What an encoder brings."""

    dimension: int

    def record_key(self, image: str, regions: str) -> str:
        """The cache's key for an image's content key and what names its regions."""

    def whole_key(self, image: str) -> str:
        """The cache's key for the feature of the whole image."""

    def name_of(self, regions: Any) -> str:
        """What names the regions of an image, or the source that they will come from."""

    def prepare(self, image: InputImage, regions: Any) -> Prepared:
        """Runs in threads; ImageError where it cannot be done."""

    def forward(self, rows: list[Row]) -> Iterator[tuple[slice, Floats]]:
        """Features of rows, in slices that cover them."""

    def rows_at_once(self) -> int:
        """How many rows fill a batch."""


def encode_regions_of(
    images: Iterable[tuple[InputImage, Any]], steps: Steps, cache: FeatureCache
) -> Iterator[RegionFeatures]:
    """Features of images with their regions, in order; memory does not grow with their number."""
    pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="capeval-regions")
    try:
        for some in chunks(images, _CHUNK):
            yield from _Chunk(some, steps, cache, pool).run()
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(eq=False)
class _Entry:
    """An image with its regions: where it stands, and the rows of its record as they come.

    A record is (1 + n, 1 + d): first the number of masks with the whole image's feature, then each
    kept mask's index with its feature.
    """

    image: InputImage
    regions: Any
    content: str
    masks: int = 0
    wanted: int = 0
    complete: bool = False
    rows: dict[int, Floats] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return self.complete and len(self.rows) == self.wanted


_WHOLE = -1


class _Chunk:
    """Consecutive images whose keys are known; their features are given out from the front."""

    def __init__(
        self,
        given: list[tuple[InputImage, Any]],
        steps: Steps,
        cache: FeatureCache,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.given, self.steps, self.cache, self.pool = given, steps, cache, pool
        self.contents = list(pool.map(content_key, [image for image, _ in given]))
        self.keys = [
            "" if isinstance(content, ImageError) else steps.record_key(content, steps.name_of(regions))
            for (_, regions), content in zip(given, self.contents, strict=True)
        ]
        self.entries: dict[str, _Entry] = {}
        for (image, regions), content, key in zip(given, self.contents, self.keys, strict=True):
            if not isinstance(content, ImageError):
                self.entries.setdefault(key, _Entry(image, regions, content))
        self.uses = Counter(self.keys)
        self.known = cache.get(self.entries)
        self.missing = {key: entry for key, entry in self.entries.items() if key not in self.known}
        self.failed: dict[str, ImageError] = {}
        self.given_out = 0

    def run(self) -> Iterator[RegionFeatures]:
        yield from self._finished()
        waiting: dict[str, _Entry] = {}
        batch: list[tuple[str, int, Row]] = []
        for key, place, row in self._rows(waiting):
            batch.append((key, place, row))
            if len(batch) >= self.steps.rows_at_once():
                self._encode(batch, waiting)
                batch = []
                yield from self._finished()
        self._encode(batch, waiting)
        yield from self._finished()

    def _rows(self, waiting: dict[str, _Entry]) -> Iterator[tuple[str, int, Row]]:
        """All rows that are missing, image by image."""
        wholes = self.cache.get(self.steps.whole_key(entry.content) for entry in self.missing.values())
        for key, prepared in self._ahead():
            if isinstance(prepared, ImageError):
                self.failed[key] = prepared
                continue
            entry = waiting[key] = self.missing[key]
            entry.masks = prepared.masks
            whole = wholes.get(self.steps.whole_key(entry.content))
            if whole is not None:
                entry.rows[_WHOLE] = whole
            entry.wanted = 1
            if whole is None:
                yield key, _WHOLE, Row(prepared.pixels, prepared.full)
            for some in prepared.visible:
                for index, alpha in some:
                    entry.wanted += 1
                    yield key, index, Row(prepared.pixels, alpha)
            entry.complete = True
            self._keep_if_done(key, waiting)

    def _ahead(self) -> Iterator[tuple[str, Prepared | ImageError]]:
        """Prepared images, a few ahead of their use."""

        def prepare(entry: _Entry) -> Prepared | ImageError:
            try:
                return self.steps.prepare(entry.image, entry.regions)
            except ImageError as error:
                return error

        ahead: deque[tuple[str, Future[Prepared | ImageError]]] = deque()
        for key, entry in self.missing.items():
            ahead.append((key, self.pool.submit(prepare, entry)))
            if len(ahead) > 3:
                key, future = ahead.popleft()
                yield key, future.result()
        while ahead:
            key, future = ahead.popleft()
            yield key, future.result()

    def _encode(self, batch: list[tuple[str, int, Row]], waiting: dict[str, _Entry]) -> None:
        if not batch:
            return
        for part, features in self.steps.forward([row for _, _, row in batch]):
            for (key, place, _), feature in zip(batch[part], features, strict=True):
                waiting[key].rows[place] = feature
        for key in {key: None for key, _, _ in batch}:
            self._keep_if_done(key, waiting)

    def _keep_if_done(self, key: str, waiting: dict[str, _Entry]) -> None:
        entry = waiting.get(key)
        if entry is None or not entry.done:
            return
        del waiting[key]
        places = sorted(entry.rows)
        record = np.empty((len(places), 1 + self.steps.dimension), dtype=np.float32)
        record[:, 0] = [entry.masks, *places[1:]]
        record[:, 1:] = [entry.rows[place] for place in places]
        entry.rows.clear()
        self.known[key] = record
        self.cache.put({key: record, self.steps.whole_key(entry.content): record[0, 1:]})

    def _finished(self) -> Iterator[RegionFeatures]:
        while self.given_out < len(self.given):
            place = self.given_out
            key, content = self.keys[place], self.contents[place]
            error = content if isinstance(content, ImageError) else self.failed.get(key)
            if error is None and key not in self.known:
                return
            self.given_out += 1
            yield self._failure(place, error) if error else self._features(key)
            self.uses[key] -= 1
            if not self.uses[key]:
                self.known.pop(key, None)

    def _failure(self, place: int, error: ImageError) -> RegionFeatures:
        content, entry = self.contents[place], self.entries.get(self.keys[place])
        dimension = self.steps.dimension
        return RegionFeatures(
            whole=np.full(dimension, np.nan, dtype=np.float32),
            regions=np.empty((0, dimension), dtype=np.float32),
            kept=np.empty(0, dtype=np.int64),
            dropped=0,
            key="" if isinstance(content, ImageError) else content,
            error=told_at(self.given[place][0], error, entry.image if entry else None),
        )

    def _features(self, key: str) -> RegionFeatures:
        record = self.known[key]
        return RegionFeatures(
            whole=record[0, 1:],
            regions=record[1:, 1:],
            kept=record[1:, 0].astype(np.int64),
            dropped=int(record[0, 0]) - (len(record) - 1),
            key=self.entries[key].content,
        )
