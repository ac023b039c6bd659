"""What a user hands to a metric, checked once: captions, images and references, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, overload

from capeval_core.inputs.images import check_decodable, check_images
from capeval_core.inputs.problems import Problems
from capeval_core.inputs.texts import check_captions, check_references, warn_of_written_lists
from capeval_core.inputs.visual import InputImage


@dataclass(frozen=True)
class Sample:
    """One caption with its image and, for metrics that need them, its references."""

    index: int
    caption: str
    image: InputImage
    references: list[str] | None


@dataclass(frozen=True)
class Samples:
    """Checked input. All sequences have one entry per caption.

    `indices` holds each row's position in the input as it was handed in: a window or a selection keeps it.
    """

    captions: list[str]
    images: Sequence[InputImage]
    references: list[list[str]] | None
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def places(self) -> list[int]:
        """Of a whole input, which of its images each row is about."""
        return list(range(len(self)))

    def __iter__(self) -> Iterator[Sample]:
        return (self[row] for row in range(len(self)))

    @overload
    def __getitem__(self, row: int) -> Sample: ...
    @overload
    def __getitem__(self, row: slice) -> Samples: ...
    def __getitem__(self, row: int | slice) -> Sample | Samples:
        if isinstance(row, slice):
            return self.select(range(*row.indices(len(self))))
        references = None if self.references is None else self.references[row]
        return Sample(self.indices[row], self.captions[row], self.images[row], references)

    def select(self, rows: Iterable[int]) -> Samples:
        """The given rows, in the given order. `rows` count within these samples; `indices` stay global."""
        rows = list(rows)
        return replace(
            self,
            captions=[self.captions[row] for row in rows],
            images=[self.images[row] for row in rows],
            references=None if self.references is None else [self.references[row] for row in rows],
            indices=[self.indices[row] for row in rows],
        )


@dataclass(frozen=True)
class Pools(Samples):
    """Checked pools of candidates, one row per candidate.

    `candidates` holds the position of each in the pool of its image, whose first candidate has the index
    `index - candidate`.
    """

    candidates: Sequence[int]

    @property
    def places(self) -> list[int]:
        """Of a whole input, which of its images each row is about: that of its pool."""
        return [first - 1 for first in accumulate(candidate == 0 for candidate in self.candidates)]

    @property
    def starts(self) -> list[int]:
        """Rows at which another pool begins: one per image, at least one where there are rows."""
        first = [index - candidate for index, candidate in zip(self.indices, self.candidates, strict=True)]
        return [row for row in range(len(self)) if row == 0 or first[row] != first[row - 1]]

    def select(self, rows: Iterable[int]) -> Pools:
        """The given rows, in the given order."""
        rows = list(rows)
        return Pools(**{**vars(super().select(rows)), "candidates": [self.candidates[row] for row in rows]})


def check_samples(
    captions: Any,
    images: Any,
    references: Any = None,
    *,
    needs_references: bool,
    on_error: Literal["raise", "nan"] = "raise",
    empty: Literal["error", "score"] = "error",
    called: str = "captions",
) -> Samples:
    """Check everything that a user hands in, and raise all complaints at once.

    captions: one string per row (list, tuple, numpy array, pandas Series, a column of a dataset).
    images: one image per row, each anything that `InputImage.of` takes; also an array (N, H, W, C), a
        tensor (N, 3, H, W), or the image column of a dataset, which is read row by row and not by its own
        decoder (that one applies the EXIF orientation, the published metrics do not).
    references: per row a list of strings, of any length above zero, or one bare string. Ignored unless
        `needs_references`.
    on_error: "raise" decodes every distinct image now; "nan" leaves the images to `InputImage.load`, so that
        a broken file costs its own row later. What can never work (lengths, types, None) raises with both.
    empty: "error" refuses empty and whitespace-only captions and references; "score" lets them through.
    called: what messages call the captions, where a user knows them by another name.

    Raises ValueError or TypeError; several problems make one exception that lists them.

    >>> import numpy as np
    >>> grey = np.full((4, 6), 128, dtype="uint8")
    >>> samples = check_samples(["a wall", "grey"], [grey, grey], needs_references=False)
    >>> len(samples), samples[1].caption, samples[1:].indices
    (2, 'grey', [1])
    >>> check_samples(["a wall", ""], [grey], needs_references=False)
    Traceback (most recent call last):
    ValueError: 2 problems with the input:
      captions[1] is empty: write a caption or pass empty="score"
      len(captions)=2 but len(images)=1: give one image per caption, and repeat it for further captions
    """
    if on_error not in ("raise", "nan"):
        raise ValueError(f'on_error={on_error!r}: expected "raise" or "nan"')
    if empty not in ("error", "score"):
        raise ValueError(f'empty={empty!r}: expected "error" or "score"')
    problems = Problems()
    texts = check_captions(captions, empty, problems, called)
    images = check_images(images, problems)
    if texts is not None and images is not None and (texts or images) and len(texts) != len(images):
        problems.add(
            f"len({called})={len(texts)} but len(images)={len(images)}: "
            "give one image per caption, and repeat it for further captions"
        )
    compared: list[list[str]] | None = None
    if needs_references:
        count = None if texts is None else len(texts)
        compared = check_references(references, count, empty, problems, called)
    if images is not None and on_error == "raise":
        check_decodable([image for image in images if image is not None], problems)
    problems.raise_if_any()
    kept = [text for text in texts or [] if text is not None]
    warn_of_written_lists(kept, called)
    return Samples(
        captions=kept,
        images=[image for image in images or [] if image is not None],
        references=compared,
        indices=range(len(texts or [])),
    )


def windows(samples: Samples, texts: int) -> Iterator[Samples]:
    """Consecutive samples of at most so many captions and references together (at least one caption)."""
    start = held = 0
    for i in range(len(samples)):
        needed = 1 + (len(samples.references[i]) if samples.references else 0)
        if i > start and held + needed > texts:
            yield samples.select(range(start, i))
            start, held = i, 0
        held += needed
    if len(samples) > start:
        yield samples.select(range(start, len(samples)))
