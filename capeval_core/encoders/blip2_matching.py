"""Images with their pools of captions: read ahead, each image run once, values of pairs kept."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders.images import chunks, content_key, told_at
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.matching.cosine import unit
from capeval_core.models.batching import BatchSize

if TYPE_CHECKING:
    from torch import Tensor

    from capeval_core.encoders.blip2_towers import Blip2Towers

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Matches:
    """An image and its n captions.

    itc: (n,) float32 cosines, see `best_query_cosine`; NaN where the image could not be read.
    logits: (n, 2) float32 of the matching head, averaged over the query tokens: no match, match.
    key: content key of the image, '' where it could not be read.
    error: why it could not be read, None where it could.
    dropped: per caption, token ids beyond the context length.
    """

    itc: Floats
    logits: Floats
    key: str
    error: str | None
    dropped: list[int]

    @property
    def itm(self) -> Floats:
        """(n,) float32 probabilities that a caption belongs to the image.

        >>> logits = np.float32([[0, 0], [200, 0], [0, np.log(3)]])
        >>> Matches(np.zeros(3, np.float32), logits, "", None, [0, 0, 0]).itm
        array([0.5 , 0.  , 0.75], dtype=float32)
        """
        # Of the larger logit's side, so that the exponential never overflows.
        ahead = self.logits[:, 1].astype(np.float64) - self.logits[:, 0]
        small = np.exp(-np.abs(ahead))
        return np.asarray(np.where(ahead < 0, small, 1) / (1 + small), dtype=np.float32)


def best_query_cosine(images: Floats, texts: Floats) -> Floats:
    """(n,) largest cosine of a text's feature (n, d) with those of its image's query tokens (n, q, d).

    >>> two_queries = np.float32([[[3, 0], [0, 1]]])
    >>> best_query_cosine(two_queries, np.float32([[1, 2]]))
    array([0.89442719], dtype=float32)
    """
    cosines = np.einsum("nqd,nd->nq", unit(images), unit(texts))
    return np.asarray(np.clip(cosines.max(axis=1), -1, 1), dtype=np.float32)


def match_pools(
    encoder: Blip2Towers,
    images: Iterable[InputImage],
    captions: Iterable[Sequence[str]],
    cache: FeatureCache,
    batch_size: int | None,
) -> Iterator[Matches]:
    """See `Blip2Encoder.match`."""
    size = encoder.images_per_batch(batch_size)
    pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1), thread_name_prefix="capeval-images")
    try:
        waiting: deque[_Pools] = deque()
        for some in chunks(_paired(images, captions), size.size):
            waiting.append(_Pools(encoder, some, cache, pool))
            if len(waiting) > 1:  # the next images are decoded while these run
                yield from waiting.popleft().matches(size, batch_size)
        while waiting:
            yield from waiting.popleft().matches(size, batch_size)
    finally:
        pool.shutdown(cancel_futures=True)


class _Pools:
    """Some images with their captions, and what is known of them already."""

    def __init__(
        self,
        encoder: Blip2Towers,
        pairs: list[tuple[InputImage, Sequence[str]]],
        cache: FeatureCache,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.encoder, self.cache = encoder, cache
        self.images = [image for image, _ in pairs]
        self.captions = [list(texts) for _, texts in pairs]
        self.contents = list(pool.map(content_key, self.images))
        tokens = [encoder.tokenizer.encode(texts) for texts in self.captions]
        self.ids = [[tuple(row) for row in found.ids] for found in tokens]
        self.dropped = [found.dropped for found in tokens]
        self.first: dict[str, InputImage] = {}
        wanted: dict[str, dict[str, Ids]] = {}
        for image, content, texts in zip(self.images, self.contents, self.ids, strict=True):
            if not isinstance(content, ImageError):
                self.first.setdefault(content, image)
                wanted.setdefault(content, {}).update({encoder.match_key(content, ids): ids for ids in texts})
        every = [key for keys in wanted.values() for key in keys]
        self.known = cache.get([*map(encoder.image_key, wanted), *every])
        self.missing: dict[str, dict[str, Ids]] = {}
        for content, keys in wanted.items():
            left = {key: ids for key, ids in keys.items() if key not in self.known}
            if keys and (left or encoder.image_key(content) not in self.known):
                self.missing[content] = left
        self.pixels: dict[str, Future[Pixels | ImageError]] = {
            content: pool.submit(_prepared, encoder, self.first[content]) for content in self.missing
        }

    def matches(self, size: BatchSize, batch_size: int | None) -> Iterator[Matches]:
        """What is asked of every image, in order."""
        read = {content: future.result() for content, future in self.pixels.items()}
        failed = {content: found for content, found in read.items() if isinstance(found, ImageError)}
        readable = {content: found for content, found in read.items() if not isinstance(found, ImageError)}
        if readable:
            self._run(list(readable), np.stack(list(readable.values())), size, batch_size)
        texts = [text for texts in self.captions for text in texts]
        said = self.encoder.encode_texts(texts, cache=self.cache, batch_size=batch_size).features
        start = 0
        for row, content in enumerate(self.contents):
            own = said[start : start + len(self.captions[row])]
            start += len(own)
            if isinstance(content, ImageError):
                error: ImageError | None = content
            else:
                error = failed.get(content)
            if error is not None:
                nothing = np.full((len(own), 3), np.nan, dtype=np.float32)
                told = told_at(self.images[row], error, self.first.get(str(content)))
                key = "" if isinstance(content, ImageError) else content
                yield Matches(nothing[:, 0], nothing[:, 1:], key, told, self.dropped[row])
            else:
                yield self._matches(row, str(content), own)

    def _matches(self, row: int, content: str, said: Floats) -> Matches:
        if not len(said):
            return Matches(said[:, 0], said[:, :2], content, None, [])
        shape = (1, -1, said.shape[1])
        seen = np.repeat(self.known[self.encoder.image_key(content)].reshape(shape), len(said), axis=0)
        logits = np.stack([self.known[self.encoder.match_key(content, ids)] for ids in self.ids[row]])
        return Matches(best_query_cosine(seen, said), logits, content, None, self.dropped[row])

    def _run(self, contents: list[str], pixels: Pixels, size: BatchSize, batch_size: int | None) -> None:
        """Compute and keep what is not known of these images."""
        for part, states in size.run(len(contents), lambda part: self.encoder.states(pixels[part])):
            found = self._asked(contents[part], states, batch_size)
            self.cache.put(found)
            self.known |= found

    def _asked(self, contents: list[str], states: Tensor, batch_size: int | None) -> dict[str, Floats]:
        """Features of images, and logits of their pairs, by their keys in the cache."""
        encoder = self.encoder
        features = encoder.query_features(states)
        found = {encoder.image_key(key): row for key, row in zip(contents, features, strict=True)}
        asked = [
            (place, ids, key)
            for place, content in enumerate(contents)
            for key, ids in sorted(self.missing[content].items(), key=lambda item: len(item[1]))
        ]
        longest = max((len(ids) for _, ids, _ in asked), default=0)
        size, cost = encoder.texts_per_batch(batch_size, encoder.queries + longest)
        for part, logits in size.run(
            len(asked), lambda part: _logits(encoder, states, asked[part]), cost=cost
        ):
            found |= {key: row for (_, _, key), row in zip(asked[part], logits, strict=True)}
        return found


def _logits(encoder: Blip2Towers, states: Tensor, asked: list[tuple[int, Ids, str]]) -> Floats:
    """(n, 2) logits of pairs (place in `states`, text, ...), those of an image one after the other."""
    pools = [(place, [ids for _, ids, _ in own]) for place, own in groupby(asked, key=lambda pair: pair[0])]
    logits = []
    for _, alike in groupby(pools, key=lambda pool: len(pool[1])):  # equally many captions: one batch
        places, texts = zip(*alike, strict=True)
        logits.append(encoder.match_logits(states[list(places)], [ids for own in texts for ids in own]))
    return np.concatenate(logits)


def _prepared(encoder: Blip2Towers, image: InputImage) -> Pixels | ImageError:
    try:
        decoded = image.load()
    except ImageError as error:
        return error
    try:
        return encoder.pixels(decoded)
    except (ValueError, OSError, MemoryError) as error:  # e.g. no way from the mode La to RGB
        return ImageError(f"{image.where}: cannot prepare {image.name} ({decoded.mode}): {error}")


def _paired(
    images: Iterable[InputImage], captions: Iterable[Sequence[str]]
) -> Iterator[tuple[InputImage, Sequence[str]]]:
    nothing: Any = object()
    for index, (image, own) in enumerate(zip_longest(images, captions, fillvalue=nothing)):
        if image is nothing or own is nothing:
            fewer, more = ("lists of captions", "images")
            if image is nothing:
                fewer, more = more, fewer
            raise ValueError(f"there are {index} {fewer} but more {more}: give every image its captions")
        if isinstance(own, str):
            raise ValueError(f"captions[{index}] is one text, expected a list of texts: write [{own!r}]")
        yield image, own
