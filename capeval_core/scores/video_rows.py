"""Rows of PAC-S for videos: words of captions matched with frames, and with words of references."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from capeval_core.matching.cosine import paired_cosine, unit
from capeval_core.matching.greedy import greedy_match
from capeval_core.rows import lists

if TYPE_CHECKING:
    from capeval_core.encoders.texts import TokenFeatures

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class VideoFeatures:
    """Features of some consecutive videos.

    features: (frames, d) float32 of each, un-normalised; None where it could not be read.
    keys: content key of each video, '' where it could not be read.
    errors: why a video could not be read, None where it could.
    incomplete: why decoding stopped early, None where it did not.
    """

    features: list[Floats | None]
    keys: list[str]
    errors: list[str | None]
    incomplete: list[str | None]


def video_feature(frames: Floats) -> Floats:
    """(d,) the feature of a whole video: the mean of its frames' features (frames, d), each of length 1.

    >>> video_feature(np.float32([[2, 0], [0, 1]]))
    array([0.5, 0.5], dtype=float32)
    """
    return np.asarray(unit(frames).mean(axis=0, dtype=np.float64), dtype=np.float32)


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
        (x_rows, x_lengths, x_sound), (y_rows, y_lengths, y_sound) = _packed(x), _packed(y)
        found = greedy_match(
            x_rows,
            y_rows,
            x_lengths,
            y_lengths,
            x_of_pair=pairs[:, 0],
            y_of_pair=pairs[:, 1],
            return_maxima=True,
        )
        sound = x_sound[pairs[:, 0]] & y_sound[pairs[:, 1]]

        def defined(values: torch.Tensor | None, lengths: Integers) -> Floats:
            assert values is not None
            return np.where(np.repeat(sound, lengths), values.numpy(), np.float32(np.nan))

        of_x, of_y = x_lengths[pairs[:, 0]], y_lengths[pairs[:, 1]]
        ends = np.array([text_feature(rows) for rows in x]).reshape(len(x), x_rows.shape[1])
        whole = np.array([self._whole(rows) for rows in y]).reshape(len(y), x_rows.shape[1])
        return Matches(
            lists(defined(found.x_maxima, of_x), of_x),
            lists(defined(found.y_maxima, of_y), of_y),
            pa.array(defined(found.recall, np.ones(len(pairs), dtype=np.int64))),
            pa.array(paired_cosine(ends[pairs[:, 0]], whole[pairs[:, 1]])),
        )


def _packed(sets: Sequence[Floats]) -> tuple[torch.Tensor, Integers, NDArray[np.bool_]]:
    """Rows one after the other, how many each set has, and whether all of a set are finite numbers."""
    sound = np.array([bool(np.isfinite(rows).all()) for rows in sets], dtype=np.bool_)
    usable = [rows if good else np.zeros_like(rows) for rows, good in zip(sets, sound, strict=True)]
    packed = np.concatenate(usable) if usable else np.empty((0, 1), dtype=np.float32)
    return torch.from_numpy(packed), np.array([len(rows) for rows in sets], dtype=np.int64), sound


def video_columns(tokens: TokenFeatures, captions: Integers, videos: VideoFeatures) -> dict[str, pa.Array]:
    """The columns of `VideoPacS.ROW`; `captions` tells which of the texts each video's caption is."""
    pairs = Pairs(video_feature)
    chosen: list[int | None] = []
    for text, key, frames in zip(captions.tolist(), videos.keys, videos.features, strict=True):
        of_caption = tokens.ids[text], tokens.features[text]
        chosen.append(None if frames is None else pairs.add(*of_caption, key, frames))
    columns: dict[str, pa.Array] = {
        "caption_ids": pa.array([tokens.ids[text] for text in captions], pa.list_(pa.int32())),
        "frames": pa.array(
            [None if frames is None else len(frames) for frames in videos.features], pa.int32()
        ),
        "incomplete": pa.array(videos.incomplete, pa.string()),
    }
    indices = pa.array(chosen, pa.int64())
    if indices.null_count == len(chosen):
        return columns | {
            "caption_maxima": pa.nulls(len(chosen), pa.list_(pa.float32())),
            "frame_recall": pa.nulls(len(chosen), pa.float32()),
            "cosine": pa.nulls(len(chosen), pa.float32()),
        }
    found = pairs.matched()
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
