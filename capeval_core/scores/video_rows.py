"""Rows of PAC-S for videos: words of captions matched with frames, and with words of references."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from capeval_core.matching.cosine import paired_cosine
from capeval_core.matching.greedy import GreedyMatch, greedy_match
from capeval_core.rows import lists

if TYPE_CHECKING:
    from capeval_core.encoders.texts import TokenFeatures
    from capeval_core.encoders.videos import VideoFeatures

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


def video_feature(frames: Floats) -> Floats:
    """(d,) the feature of a whole video: the mean of its frames' features (frames, d), each of length 1.

    >>> video_feature(np.float32([[2, 0], [0, 1]]))
    array([0.5, 0.5], dtype=float32)
    """
    lengths = np.sqrt(np.einsum("td,td->t", frames, frames))  # a copy of an hour's frames is 200 MB
    scale = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    with np.errstate(invalid="ignore"):  # features that are no numbers have no mean
        return np.asarray(scale @ frames / np.float32(len(frames)), dtype=np.float32)


def text_feature(tokens: Floats) -> Floats:
    """(d,) the feature of a whole text: that of its end token, the last of its tokens' (tokens, d)."""
    return np.asarray(tokens[-1])


@dataclass(frozen=True)
class Matches:
    """What distinct pairs of x and y sets come to.

    x_maxima: per pair, each x row's best cosine over the y rows. y_maxima: the other way round. recall: means
    of these. cosine: of both sides as a whole.
    """

    x_maxima: pa.ListArray
    y_maxima: pa.ListArray
    recall: pa.Array
    cosine: pa.Array


class Pairs:
    """Pairs of captions with videos, or with references, each distinct one matched once.

    whole: the feature of a whole y set.
    """

    def __init__(self, whole: Callable[[Floats], Floats]) -> None:
        self._whole = whole
        self._x: dict[Hashable, tuple[int, Floats]] = {}
        self._y: dict[Hashable, tuple[int, Floats]] = {}
        self._pairs: dict[tuple[int, int], int] = {}

    def add(self, x_key: Hashable, x: Floats, y_key: Hashable, y: Floats) -> int:
        """The position of a pair among the distinct ones; equal keys are equal features."""
        of_x, _ = self._x.setdefault(x_key, (len(self._x), x))
        of_y, _ = self._y.setdefault(y_key, (len(self._y), y))
        return self._pairs.setdefault((of_x, of_y), len(self._pairs))

    def matched(self) -> Matches:
        """All pairs matched greedily; NaN where the features of one side are not all finite numbers."""
        x, y = ([rows for _, rows in side.values()] for side in (self._x, self._y))
        pairs = np.array([*self._pairs], dtype=np.int64).reshape(-1, 2)
        of_x, of_y = (_lengths(side)[pairs[:, i]] for i, side in enumerate((x, y)))
        finite = np.ones(len(pairs), dtype=np.bool_)
        try:
            found = _greedy(x, y, pairs)
        except ValueError:  # not all are numbers, which costs those pairs alone
            x_finite, y_finite = (np.array([bool(np.isfinite(s).all()) for s in side]) for side in (x, y))
            finite = x_finite[pairs[:, 0]] & y_finite[pairs[:, 1]]
            found = _greedy(
                [np.nan_to_num(s, posinf=0, neginf=0) for s in x],
                [np.nan_to_num(s, posinf=0, neginf=0) for s in y],
                pairs,
            )

        def defined(values: torch.Tensor | None, lengths: Integers | int = 1) -> Floats:
            assert values is not None
            return np.where(np.repeat(finite, lengths), values.numpy(), np.float32(np.nan))

        ends = np.stack([text_feature(rows) for rows in x])
        whole = np.stack([self._whole(rows) for rows in y])
        return Matches(
            lists(defined(found.x_maxima, of_x), of_x),
            lists(defined(found.y_maxima, of_y), of_y),
            pa.array(defined(found.recall)),
            pa.array(paired_cosine(ends[pairs[:, 0]], whole[pairs[:, 1]])),
        )


def _greedy(x: Sequence[Floats], y: Sequence[Floats], pairs: Integers) -> GreedyMatch:
    return greedy_match(
        torch.from_numpy(_packed(x)),
        torch.from_numpy(_packed(y)),
        _lengths(x),
        _lengths(y),
        x_of_pair=pairs[:, 0],
        y_of_pair=pairs[:, 1],
        return_maxima=True,
    )


def _packed(sets: Sequence[Floats]) -> Floats:
    """Rows one after the other; those of one set are not copied."""
    return sets[0] if len(sets) == 1 and sets[0].flags.writeable else np.concatenate(sets)


def _lengths(sets: Sequence[Floats]) -> Integers:
    return np.array([len(rows) for rows in sets], dtype=np.int64)


def video_columns(tokens: TokenFeatures, captions: Integers, videos: VideoFeatures) -> dict[str, pa.Array]:
    """The columns of `VideoPacS.ROW`; `captions` tells which of the texts each video's caption is."""
    pairs = Pairs(video_feature)
    chosen: list[int | None] = []
    failed = [error is not None for error in videos.errors]
    for text, key, frames, none in zip(captions.tolist(), videos.keys, videos.features, failed, strict=True):
        of_caption = tokens.ids[text], tokens.features[text]
        chosen.append(None if none else pairs.add(*of_caption, key, frames))
    frames_of = [None if none else len(frames) for frames, none in zip(videos.features, failed, strict=True)]
    columns: dict[str, pa.Array] = {
        "caption_ids": pa.array([tokens.ids[text] for text in captions], pa.list_(pa.int32())),
        "frames": pa.array(frames_of, pa.int32()),
        "incomplete": pa.array(videos.incomplete, pa.string()),
    }
    if all(failed):
        matched = {
            "caption_maxima": pa.list_(pa.float32()),
            "frame_recall": pa.float32(),
            "cosine": pa.float32(),
        }
        return columns | {name: pa.nulls(len(chosen), type) for name, type in matched.items()}
    found, indices = pairs.matched(), pa.array(chosen, pa.int64())
    return columns | {
        "caption_maxima": found.x_maxima.take(indices),
        "frame_recall": found.recall.take(indices),
        "cosine": found.cosine.take(indices),
    }


def reference_columns(tokens: TokenFeatures, captions: Integers, counts: Integers) -> dict[str, pa.Array]:
    """The further columns of `VideoRefPacS.ROW`; a caption's `counts` references follow it in the texts."""
    pairs = Pairs(text_feature)
    chosen: list[int] = []
    references: list[int] = []
    for text, count in zip(captions.tolist(), counts.tolist(), strict=True):
        own = range(text + 1, text + 1 + count)
        references += own
        chosen += [
            pairs.add(tokens.ids[text], tokens.features[text], tokens.ids[other], tokens.features[other])
            for other in own
        ]
    found = pairs.matched()
    indices = pa.array(chosen, pa.int64())
    ids = pa.array([tokens.ids[text] for text in references], pa.list_(pa.int32()))
    return {
        "reference_ids": lists(ids, counts),
        "reference_caption_maxima": lists(found.x_maxima.take(indices), counts),
        "reference_maxima": lists(found.y_maxima.take(indices), counts),
        "reference_cosines": lists(found.cosine.take(indices), counts),
    }
