"""Pairs of images and captions with generated positives, and the order that they come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import warn, wrong_option
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.positives import Positives

Numbers = NDArray[np.int64]
ABSENT = -1
"""Stands where a pair has no generated image or no generated caption."""


class Pairs(NamedTuple):
    """Some pairs: of each the numbers of image, caption, generated image and generated caption, (n,) each.

    Images and generated images are numbered together, and so are captions and generated captions.
    """

    images: Numbers
    captions: Numbers
    generated_images: Numbers
    generated_captions: Numbers


class _Lists:
    """A list of numbers for each of n things: those of thing i are `values[starts[i]:starts[i + 1]]`."""

    def __init__(self, lists: Sequence[Sequence[int]]) -> None:
        self.values = np.fromiter(chain.from_iterable(lists), dtype=np.int64)
        self.starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)

    def drawn(self, things: Numbers, lots: NDArray[np.float64]) -> Numbers:
        """One of each thing's numbers, by a lot in [0, 1); `ABSENT` where it has none.

        >>> _Lists([[3], [], [4, 5]]).drawn(np.array([0, 1, 2]), np.array([0.9, 0.9, 0.9]))
        array([ 3, -1,  5])
        """
        first, counts = self.starts[things], self.starts[things + 1] - self.starts[things]
        places = first + np.floor(lots * counts).astype(np.int64)
        if not len(self.values):
            return np.full(len(things), ABSENT)
        return np.where(counts > 0, self.values[np.minimum(places, len(self.values) - 1)], ABSENT)


@dataclass(frozen=True)
class PairLists:
    """What belongs to what: captions of images, generated captions of images, generated images of captions.

    texts: all captions, then the generated ones.
    """

    captions: _Lists
    generated_captions: _Lists
    generated_images: _Lists
    texts: list[str]

    @classmethod
    def of(cls, captioned: CaptionedImages, positives: Positives | None) -> PairLists:
        """Of images with captions and the positives that were generated from them."""
        captions: list[list[int]] = [[] for _ in captioned.ids]
        for caption, image in enumerate(captioned.numbers):
            captions[image].append(caption)
        texts, unused = list(captioned.captions), 0
        generated_captions: list[list[int]] = [[] for _ in captioned.ids]
        generated_images: list[list[int]] = [[] for _ in captioned.captions]
        if positives is not None:
            number = {image_id: index for index, image_id in enumerate(captioned.ids)}
            for image_id, generated in positives.captions.items():
                if image_id not in number:
                    unused += len(generated)
                    continue
                generated_captions[number[image_id]] = list(range(len(texts), len(texts) + len(generated)))
                texts += generated
            sources: dict[tuple[str, str], list[int]] = {}
            for caption, source in enumerate(zip(captioned.images, captioned.captions, strict=True)):
                sources.setdefault(source, []).append(caption)
            for image, origin in enumerate(positives.sources, len(captioned.ids)):
                unused += origin not in sources
                for caption in sources.get(origin, ()):
                    generated_images[caption].append(image)
        if unused:
            warn(f"{unused:,} positives belong to no image or caption here")
        return cls(_Lists(captions), _Lists(generated_captions), _Lists(generated_images), texts)

    @property
    def generated(self) -> tuple[int, int]:
        """How many generated images and captions belong to a caption or an image."""
        return len(self.generated_images.values), len(self.generated_captions.values)

    def drawn(self, images: Numbers, rng: np.random.Generator) -> Pairs:
        """All of these images in random order, each with a caption and positives by lot."""
        order = images[rng.permutation(len(images))]
        lots = rng.random((3, len(order)))
        captions = self.captions.drawn(order, lots[0])
        return Pairs(
            order,
            captions,
            self.generated_images.drawn(captions, lots[1]),
            self.generated_captions.drawn(order, lots[2]),
        )


class PairOrder:
    """Batches of pairs by number: every process computes any of them from the seed and the number alone.

    In an epoch each image comes at most once, with one of its captions and one positive of each kind, by lot.
    So no batch has two captions of one image, which would be each other's negatives. What is left of an
    epoch after its last whole batch is not used.
    """

    def __init__(self, lists: PairLists, images: Numbers, size: int, processes: int, seed: int) -> None:
        if size % processes:
            found = f"no multiple of the {processes} processes"
            raise wrong_option("batch_size", size, found, "pass one that is")
        self.size, self.processes, self.batches = size, processes, len(images) // size
        self._epoch = lru_cache(maxsize=2)(
            lambda epoch: lists.drawn(images, np.random.default_rng([seed, 1, epoch]))
        )

    def chosen(self, number: int) -> Pairs:
        """The part of a process: number `batch * processes + process`."""
        batch, process = divmod(number, self.processes)
        epoch, place = divmod(batch, self.batches)
        each = self.size // self.processes
        start = place * self.size + process * each
        return Pairs(*(numbers[start : start + each] for numbers in self._epoch(epoch)))


def held_out(count: int, share: float, seed: int) -> tuple[Numbers, Numbers]:
    """Numbers of images to train on, and of those held out: the share, two at least unless it is 0.

    >>> [len(numbers) for numbers in held_out(40, 0.05, seed=0)]
    [38, 2]
    """
    most = min(count, max(2, round(share * count))) if share else 0
    order = np.random.default_rng([seed, 2]).permutation(count)
    return np.sort(order[most:]), np.sort(order[:most])
