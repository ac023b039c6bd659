"""What a user hands to a metric, checked once: captions, images and references, row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal

from capeval_core.errors import Problems, wrong_option
from capeval_core.inputs.media import argument_of, check_decodable, check_visuals
from capeval_core.inputs.sources import InRgb, Source
from capeval_core.inputs.texts import (
    check_candidates,
    check_captions,
    check_references,
    other_length,
    warn_of_written_lists,
)
from capeval_core.inputs.visual import InputReferences


@dataclass(frozen=True)
class Samples:
    """Checked input. All sequences have one entry per caption.

    `images` holds visuals of the media that the metric takes: `InputImage`, `InputFrames` or `InputBoxes`;
    `InputReferences` for a metric on texts alone.
    `indices` holds each row's position in the input as it was handed in: a window or a selection keeps it.
    """

    captions: list[str]
    images: Sequence[Any]
    references: list[list[str]] | None
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def places(self) -> list[int]:
        """Of a whole input, which of its images each row is about."""
        return list(range(len(self)))

    def __getitem__(self, rows: slice) -> Samples:
        return self.select(range(*rows.indices(len(self))))

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
    """Checked pools, one row per candidate; `candidates` holds the position of each in the pool."""

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


OnError = Literal["raise", "nan"]
Empty = Literal["error", "score"]


def check_samples(
    captions: Any,
    images: Any,
    references: Any = None,
    *,
    needs_references: bool,
    on_error: OnError = "raise",
    empty: Empty = "error",
    media: Sequence[str] = ("image",),
    decoders: int | None = None,
    kept: Callable[[str, Any, Sequence[str]], bool] | None = None,
    progress: bool = False,
) -> Samples:
    """Check everything that a user hands to `CaptionMetric.score`, and raise all problems at once.

    media: the kinds of visuals that the metric takes; none for texts alone, whose references then stand for
    the image. on_error: "raise" decodes every distinct visual now; "nan" leaves them to their `load`, so that
    a broken file costs its own row later. kept: whether an earlier run has a row of a caption, its visual and
    references: it is not decoded again. progress: show a bar of those that are decoded, on a terminal only.

    >>> import numpy as np
    >>> grey = np.full((4, 6), 128, dtype="uint8")
    >>> check_samples(["a wall", ""], [grey], needs_references=False)
    Traceback (most recent call last):
    capeval_core.errors.InputError: 2 problems with the input:
      captions[1] is empty: write a caption or pass empty="score"
      len(captions)=2 but len(images)=1: pass one image per caption; repeat it if it has several captions
    """
    problems = _check_choices(on_error, empty)
    texts = check_captions(captions, empty, problems)
    rows = None if texts is None else len(texts)
    fix = "pass one {} per caption; repeat it if it has several captions"
    visuals = _check_visuals(images, rows, fix, media, problems) if media else []
    compared = check_references(references, rows, empty, problems) if needs_references else None
    if on_error == "raise" and media:

        def row_kept(row: int) -> bool:
            assert kept is not None and texts is not None
            return kept(str(texts[row]), visuals[row], compared[row] if compared else [])

        # Where a text is missing, its row is not complete.
        known = row_kept if kept is not None and not len(problems) else None
        check_decodable(visuals, problems, media, decoders, kept=known, progress=progress)
    problems.raise_if_any()
    if not media:
        visuals = [InputReferences.of(row, f"references[{i}]") for i, row in enumerate(compared or [])]
    checked = [text for text in texts or [] if text is not None]
    warn_of_written_lists(checked)
    return Samples(checked, visuals, compared, range(len(checked)))


def check_pools(
    captions: Any,
    images: Any,
    *,
    on_error: OnError = "raise",
    empty: Empty = "error",
    media: Sequence[str] = ("image",),
    progress: bool = False,
) -> Pools:
    """One row per candidate of pools, checked as by `check_samples`.

    >>> import numpy as np
    >>> grey = np.full((4, 6), 128, dtype="uint8")
    >>> samples = check_pools([["a wall", "grey"], ["a door"]], [grey, grey])
    >>> samples.captions, samples.candidates
    (['a wall', 'grey', 'a door'], [0, 1, 0])
    """
    problems = _check_choices(on_error, empty)
    pools = check_candidates(captions, empty, problems)
    rows = None if pools is None else len(pools)
    fix = "give each {} one pool, a list of its candidates"
    visuals = _check_visuals(images, rows, fix, media, problems)
    if on_error == "raise":
        check_decodable(visuals, problems, media, progress=progress)
    problems.raise_if_any()
    texts = [text for pool in pools or [] for text in pool]
    warn_of_written_lists(texts)
    return Pools(
        captions=texts,
        images=[visual for visual, pool in zip(visuals, pools or [], strict=True) for _ in pool],
        references=None,
        indices=range(len(texts)),
        candidates=[candidate for pool in pools or [] for candidate in range(len(pool))],
    )


def _check_choices(on_error: str, empty: str) -> Problems:
    choices = (("on_error", on_error, "raise", "nan"), ("empty", empty, "error", "score"))
    for name, value, *known in choices:
        if value not in known:
            raise wrong_option(name, value, "", f'expected "{known[0]}" or "{known[1]}"', verb="")
    return Problems()


def _check_visuals(
    images: Any, rows: int | None, fix: str, media: Sequence[str], problems: Problems
) -> list[Any]:
    """A visual per row, None where the value can be none."""
    argument = str(argument_of(media))
    visuals = check_visuals(images, problems, media)
    if rows is not None and visuals is not None and rows != len(visuals):
        problems.add(other_length("captions", rows, argument, len(visuals), fix.format(argument[:-1])))
    return visuals or []


def in_rgb(samples: Samples) -> Samples:
    """The same samples, their images converted to RGB."""
    sources: dict[int, Source[Any]] = {}  # images that share a source still do
    images = [
        type(image)(image.where, sources.setdefault(id(image.source), InRgb(image.source)))
        for image in samples.images
    ]
    return replace(samples, images=images)


def windows(samples: Samples, texts: int) -> Iterator[Samples]:
    """Consecutive samples of at most so many captions and references together (at least one caption)."""
    for part in parts(text_counts(samples), texts):
        yield samples.select(range(part.start, part.stop))


def text_counts(samples: Samples) -> list[int]:
    """How many texts each row has: its caption and its references."""
    if samples.references is None:
        return [1] * len(samples)
    return [1 + len(texts) for texts in samples.references]


def parts(sizes: Sequence[int], limit: int) -> Iterator[slice]:
    """Consecutive items whose sizes add up to at most `limit`, but at least one item."""
    start = total = 0
    for end, size in enumerate(sizes):
        if end > start and total + size > limit:
            yield slice(start, end)
            start, total = end, 0
        total += size
    if len(sizes) > start:
        yield slice(start, len(sizes))
