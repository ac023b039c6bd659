"""Videos to the features of their frames, through the one engine: read ahead, cached, memory bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.encoders.engine import Encoded, Encoding, Item, Units, encode_stream, preparing
from capeval_core.inputs.videos import InputFrames, Reading, Sampling
from capeval_core.models.batching import BatchSize

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]

_GROUP = 16
"""Frames that a thread decodes at a time; what is kept of them is the encoder's pixels."""
_AHEAD = 8
"""Videos that are opened before their turn: each has a decoder and a group of frames in memory."""
_TOGETHER = 4
"""Videos whose features are taken from the cache at once: an hour of frames has 100 MB and more."""


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
    return Units(_groups(item, reading, pixels), detail=reading, decoded=True)


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
    sampled = units.detail
    why = (sampled.incomplete or "").encode()
    return {
        keys[0]: np.stack([values[index] for index in sampled.indices]),
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
