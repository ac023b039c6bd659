"""Videos to the features of their frames, through the one engine: read ahead, cached, memory bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.encoders.encoding import Encoded, Encoding, Item, Units
from capeval_core.encoders.stream import encode_stream, preparing
from capeval_core.inputs.frames import InputFrames, Reading
from capeval_core.inputs.sampling import Sampling
from capeval_core.models.batching import BatchSize

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]

_GROUP = 16
"""Frames that a thread decodes at a time; what is kept of them is the encoder's pixels."""
_AHEAD = 8
"""Videos that are opened before their turn: each has a decoder and a group of frames in memory."""
_TOGETHER = 4
"""Videos whose features are taken from the cache at once: an hour of frames has 100 MB and more."""


class FrameRows(MutableMapping[int, Floats]):
    """Rows of equal length by the number of their frame, packed: an array of its own costs more than a row.

    >>> rows = FrameRows()
    >>> rows[7], rows[3] = np.float32([1, 2]), np.float32([3, 4])
    >>> rows.of([3, 7, 7]).tolist(), len(rows)
    ([[3.0, 4.0], [1.0, 2.0], [1.0, 2.0]], 2)
    """

    _TOGETHER = 4096

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._blocks: list[Floats] = []

    def __setitem__(self, frame: int, row: Floats) -> None:
        block, place = divmod(self._places.setdefault(frame, len(self._places)), self._TOGETHER)
        if block == len(self._blocks):
            self._blocks.append(np.empty((self._TOGETHER, len(row)), dtype=np.float32))
        self._blocks[block][place] = row

    def __getitem__(self, frame: int) -> Floats:
        block, place = divmod(self._places[frame], self._TOGETHER)
        row: Floats = self._blocks[block][place]
        return row

    def __delitem__(self, frame: int) -> None:
        raise TypeError("rows are kept until all are there")

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def of(self, frames: Sequence[int]) -> Floats:
        """(len(frames), d) rows of these frames, in this order."""
        rows = np.empty((len(frames), self._blocks[0].shape[1]), dtype=np.float32)
        for i, frame in enumerate(frames):
            rows[i] = self[frame]
        return rows


@dataclass(frozen=True)
class VideoFeatures:
    """Features of the frames of some consecutive videos.

    features: per video (T, d) float32, un-normalised, a row per frame that is used; (0, d) where the video
        could not be read.
    keys: content key of each video, '' where it could not be read.
    errors: why a video could not be read, None where it could.
    incomplete: why frames of a video are missing, where it is damaged and the others are used; None where
        none are.
    """

    features: list[Floats]
    keys: list[str]
    errors: list[str | None]
    incomplete: list[str | None]


def encode_frames(
    videos: Iterable[InputFrames],
    sampling: Sampling,
    *,
    keys: Callable[[str], tuple[str, str]],
    pixels: Callable[[Image.Image], Pixels],
    forward: Callable[[list[Any]], Iterable[Any] | Tensor],
    size: BatchSize,
    dimension: int,
    cache: FeatureCache,
) -> Iterator[VideoFeatures]:
    """What `ClipEncoder.encode_videos` gives, by the parts of any encoder of images.

    keys: of a video's features and of why it is incomplete, by its content key. pixels: a frame as the
    encoder takes it. forward: features of a list of those.
    """
    encoding = Encoding(
        size=size,
        keys=lambda content, _: keys(f"{content} {sampling}"),
        prepare=lambda video: video,
        forward=forward,
        units=partial(_frames, sampling, pixels),
        arrays=_features,
        ahead=_AHEAD,
        together=_TOGETHER,
    )
    items = ((video, None) for video in videos)
    return map(partial(_video_features, dimension), encode_stream(items, encoding, cache))


def _frames(
    sampling: Sampling,
    pixels: Callable[[Image.Image], Pixels],
    item: Item,
    video: Any,
    prepared: Any,
    missing: Sequence[str],
) -> Units:
    reading: Reading = video.read(sampling)
    return Units(_groups(item, reading, pixels), detail=reading, decoded=True, values=FrameRows())


def _groups(
    item: Item, reading: Reading, pixels: Callable[[Image.Image], Pixels]
) -> Iterator[list[tuple[int, Pixels]]]:
    group: list[tuple[int, Pixels]] = []
    for index, image in reading:
        with preparing(item[0], image):
            group.append((index, pixels(image)))
        if len(group) == _GROUP:
            yield group
            group = []
    if group:
        yield group


def _features(keys: Sequence[str], units: Units, values: Any) -> dict[str, Floats]:
    sampled = units.detail.sampled
    why = (sampled.incomplete or "").encode()
    return {
        keys[0]: values.of(sampled.indices),
        keys[1]: np.frombuffer(why, dtype=np.uint8).astype(np.float32),  # the cache holds float32 alone
    }


def _video_features(dimension: int, part: Sequence[Encoded]) -> VideoFeatures:
    nothing = np.empty((0, dimension), dtype=np.float32)
    features, incomplete = [], []
    for item in part:
        arrays = item.arrays or {}
        features.append(arrays[item.keys[0]] if arrays else nothing)
        why = arrays[item.keys[1]].astype(np.uint8).tobytes().decode() if arrays else ""
        incomplete.append(why or None)
    return VideoFeatures(features, [item.content for item in part], [item.error for item in part], incomplete)
