"""Features of any number of images: read ahead by threads, equal ones encoded once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.inputs.visual import ImageError, InputImage

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]
T = TypeVar("T")

_CHUNK = 1024
"""Images whose keys are known at a time; equal ones among them are decoded and encoded once."""


@dataclass(frozen=True)
class ImageFeatures:
    """Features of some consecutive images.

    features: (n, d) float32, un-normalised; NaN where an image could not be read.
    keys: content key of each image, '' where it could not be read.
    errors: why an image could not be read, None where it could.
    """

    features: Floats
    keys: list[str] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)


def encode_distinct(
    images: Iterable[InputImage],
    *,
    prepare: Callable[[Image.Image], Pixels],
    forward: Callable[[Pixels], Iterator[tuple[slice, Floats]]],
    dimension: int,
    ahead: int,
    cache: FeatureCache,
    cache_key: Callable[[str], str],
) -> Iterator[ImageFeatures]:
    """Features of images in order, some at a time; memory does not grow with their number.

    Args:
        images: as many as there are; they are consumed a chunk at a time.
        prepare: what an image becomes before it is stacked; runs in threads.
        forward: features of stacked images, in slices that cover them.
        dimension: length of a feature.
        ahead: images decoded together; two such groups wait for the encoder.
        cache: where features are looked up and kept.
        cache_key: the cache's key for an image's content key.
    """
    pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="capeval-images")

    def encode(read: list[tuple[InputImage, Future[str | ImageError]]]) -> Iterator[ImageFeatures]:
        chunk = _Chunk(read, dimension, cache, cache_key)
        for batch in _prepared_ahead(chunk.missing(), prepare, pool, ahead):
            chunk.failed |= {key: pixels for key, pixels in batch if isinstance(pixels, ImageError)}
            readable = [(key, pixels) for key, pixels in batch if not isinstance(pixels, ImageError)]
            if readable:
                for part, features in forward(np.stack([pixels for _, pixels in readable])):
                    rows = {key: row for (key, _), row in zip(readable[part], features, strict=True)}
                    cache.put(rows)
                    chunk.known.update(rows)
            yield from chunk.finished()
        yield from chunk.finished()

    try:
        waiting: deque[list[tuple[InputImage, Future[str | ImageError]]]] = deque()
        for some in chunks(images, _CHUNK):
            waiting.append([(image, pool.submit(content_key, image)) for image in some])
            if len(waiting) > 1:  # the next chunk's files are read while this one is encoded
                yield from encode(waiting.popleft())
        while waiting:
            yield from encode(waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupted run does not wait for what was read ahead


class _Chunk:
    """Consecutive images whose keys are known; their rows are given out from the front as they finish."""

    def __init__(
        self,
        read: list[tuple[InputImage, Future[str | ImageError]]],
        dimension: int,
        cache: FeatureCache,
        cache_key: Callable[[str], str],
    ) -> None:
        self.dimension = dimension
        self.images = [image for image, _ in read]
        self.contents = [future.result() for _, future in read]
        self.keys = ["" if isinstance(found, ImageError) else cache_key(found) for found in self.contents]
        self.first: dict[str, InputImage] = {}
        for key, image in zip(self.keys, self.images, strict=True):
            if key:
                self.first.setdefault(key, image)
        self.known = cache.get(self.first)
        self.failed: dict[str, ImageError] = {}
        self.given = 0

    def missing(self) -> list[tuple[str, InputImage]]:
        """Distinct images that have no features yet, in order."""
        return [(key, image) for key, image in self.first.items() if key not in self.known]

    def finished(self) -> Iterator[ImageFeatures]:
        """The rows that have finished since the last call, if any."""
        end = self.given
        while end < len(self.keys) and self._is_done(self.keys[end]):
            end += 1
        if end > self.given:
            yield self._features(range(self.given, end))
            self.given = end

    def _is_done(self, key: str) -> bool:
        return not key or key in self.known or key in self.failed

    def _features(self, rows: range) -> ImageFeatures:
        part = ImageFeatures(np.full((len(rows), self.dimension), np.nan, dtype=np.float32))
        for place, row in enumerate(rows):
            content, key = self.contents[row], self.keys[row]
            error = content if isinstance(content, ImageError) else self.failed.get(key)
            part.keys.append("" if isinstance(content, ImageError) else content)
            part.errors.append(told_at(self.images[row], error, self.first.get(key)) if error else None)
            if not error:
                part.features[place] = self.known[key]
        return part


def _prepared_ahead(
    images: list[tuple[str, InputImage]],
    prepare: Callable[[Image.Image], Pixels],
    pool: ThreadPoolExecutor,
    size: int,
) -> Iterator[list[tuple[str, Pixels | ImageError]]]:
    """Keys and prepared images in batches of `size`, at most two batches ahead of their use."""

    def load(image: InputImage) -> Pixels | ImageError:
        try:
            decoded = image.load()
        except ImageError as error:
            return error
        try:
            return prepare(decoded)
        except (ValueError, OSError, MemoryError) as error:  # e.g. no way from the mode La to RGB
            return ImageError(f"{image.where}: cannot prepare {image.name} ({decoded.mode}): {error}")

    waiting: deque[list[tuple[str, Future[Pixels | ImageError]]]] = deque()
    for batch in chunks(images, size):
        waiting.append([(key, pool.submit(load, image)) for key, image in batch])
        if len(waiting) > 2:
            yield [(key, future.result()) for key, future in waiting.popleft()]
    while waiting:
        yield [(key, future.result()) for key, future in waiting.popleft()]


def told_at(image: InputImage, error: ImageError, told: InputImage | None) -> str:
    """The error of an equal image, `told`, with this one's place in the input."""
    reason = str(error)
    return image.where + reason.removeprefix(told.where) if told else reason


def content_key(image: InputImage) -> str | ImageError:
    """The image's key, or why it cannot be read."""
    try:
        return image.key
    except ImageError as error:
        return error


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive items, `size` at a time."""
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
