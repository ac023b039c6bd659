"""Videos to the features of their frames, through the one engine: read ahead, cached, memory bounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import Feature, FeatureCache
from capeval_core.encoders.engine import Encoding, Item, Units, chunks, encode_stream, preparing
from capeval_core.inputs.videos import InputFrames, Reading, Sampling
from capeval_core.models.batching import BatchSize

Floats = NDArray[np.float32]

_AHEAD = 8
"""Videos that are opened before their turn: each has a decoder and a batch of frames in memory."""


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
    encoder: Any, videos: Iterable[InputFrames], sampling: Sampling, cache: FeatureCache, size: BatchSize
) -> Iterator[VideoFeatures]:
    """What `ClipEncoder.encode_videos` gives."""

    def units(item: Item, video: Any, prepared: Any, missing: Sequence[str]) -> Units:
        reading: Reading = video.read(sampling)
        used: list[int] = []

        def frames() -> Iterator[NDArray[np.uint8]]:
            for index, image in reading:
                used.append(index)
                with preparing(item[0], image):
                    taken = encoder.preprocessing.pixels(image)
                yield taken

        def join(values: list[Any]) -> dict[str, Feature]:
            row_of = {index: row for row, index in enumerate(used)}
            features = np.stack([values[row_of[index]] for index in reading.indices])
            why = np.frombuffer((reading.incomplete or "").encode(), dtype=np.uint8)
            return {missing[0]: (features, why)}

        return Units(chunks(frames(), size.size), join)

    encoding = Encoding(
        size=size,
        keys=lambda content, _: (encoder.key("video", f"{content} {sampling}".encode()),),
        prepare=lambda video: video,
        forward=encoder.run_images,
        units=units,
        ahead=_AHEAD,
    )
    nothing = np.empty((0, encoder.dimension), dtype=np.float32), np.empty(0, dtype=np.uint8)
    for part in encode_stream(((video, None) for video in videos), encoding, cache):
        found = [item.arrays[item.keys[0]] if item.arrays else nothing for item in part]
        yield VideoFeatures(
            features=[features for features, _ in found],
            keys=[item.content for item in part],
            errors=[item.error for item in part],
            incomplete=[why.tobytes().decode() or None for _, why in found],
        )
