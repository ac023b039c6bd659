"""Features of videos: as those of images, whatever the batch, order and cache; what is in memory then."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders import videos as module
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.videos import VideoFeatures, encode_frames
from capeval_core.inputs.frames import InputFrames
from capeval_core.inputs.sampling import Sampling
from capeval_core.inputs.visual import InputImage
from capeval_core.models.batching import BatchSize, count_forwards
from tests.inputs.photographs import encoded, photograph
from tests.inputs.video_writing import drawn, video

EVERY = Sampling()


@pytest.fixture(scope="module")
def clip(weights: str) -> ClipEncoder:
    return ClipEncoder.from_pretrained(weights)


def together(parts: Iterator[VideoFeatures]) -> VideoFeatures:
    found = VideoFeatures([], [], [], [])
    for part in parts:
        found.features.extend(part.features)
        found.keys.extend(part.keys)
        found.errors.extend(part.errors)
        found.incomplete.extend(part.incomplete)
    return found


def several() -> list[InputFrames]:
    rng = np.random.default_rng(3)
    values: list[Any] = [
        video(),
        rng.integers(0, 256, (1, 20, 30, 3), dtype=np.uint8),
        video("mp4"),
        rng.integers(0, 256, (70, 24, 24, 3), dtype=np.uint8),
        video()[:1500],
        [photograph(seed=1), photograph(40, 50, seed=2).convert("L")],
    ]
    return [InputFrames.of(value, f"videos[{i}]") for i, value in enumerate(values)]


def test_a_frame_is_encoded_as_an_image(clip: ClipEncoder) -> None:
    found = together(clip.encode_videos(several(), cache=FeatureCache(0)))
    assert found.errors == [None] * 6
    for one, features in zip(several(), found.features, strict=True):
        images = [InputImage.of(image) for image in one.load()]
        alone = np.concatenate([part.features for part in clip.encode_images(images, cache=FeatureCache(0))])
        assert features.dtype == np.float32 and features.shape == alone.shape
        assert np.abs(features - alone).max() < 1e-5


def test_order_batches_and_duplicates_change_nothing(clip: ClipEncoder) -> None:
    expected = together(clip.encode_videos(several(), cache=FeatureCache(0)))
    assert [len(features) for features in expected.features] == [12, 1, 12, 70, 7, 2]
    for batch_size, order in itertools.product((1, 7, 64), ([5, 3, 4, 0, 2, 1], [0, 0, 3, 0, 3, 3, 1, 4])):
        given = [several()[i] for i in order]
        with count_forwards() as count:
            found = together(clip.encode_videos(given, cache=FeatureCache(0), batch_size=batch_size))
        frames = sum(len(expected.features[i]) for i in set(order))
        assert (count.items, count.batches) == (frames, -(-frames // batch_size))  # videos share batches
        for place, i in enumerate(order):
            assert np.abs(found.features[place] - expected.features[i]).max() < 1e-5
            assert found.incomplete[place] == expected.incomplete[i]
            assert found.keys[place] == expected.keys[i] == several()[i].key


@pytest.mark.parametrize("sampling", [Sampling(max_frames=5), Sampling(fps=3)], ids=str)
def test_frames_that_are_used_are_those_of_all(clip: ClipEncoder, sampling: Sampling) -> None:
    cache = FeatureCache()
    (every,) = together(clip.encode_videos(several()[:1], cache=cache)).features
    (some,) = together(clip.encode_videos(several()[:1], sampling=sampling, cache=cache)).features
    reading = several()[0].load().read(sampling)
    list(reading)
    assert len(some) == len(reading.sampled.indices) < len(every)
    assert np.abs(some - every[reading.sampled.indices]).max() < 1e-5


def test_a_frame_that_is_used_twice_runs_once(clip: ClipEncoder) -> None:
    one = InputFrames.of(drawn(3))
    with count_forwards() as count:
        (features,) = together(
            clip.encode_videos([one], sampling=Sampling(max_frames=10), cache=FeatureCache(0))
        ).features
    assert count.items == 3 and features.shape[0] == 10
    assert (features[0] == features[4]).all() and (features[4] != features[5]).any()


def test_what_is_missing_survives_the_cache(clip: ClipEncoder, tmp_path: Path) -> None:
    samplings = [EVERY, Sampling(max_frames=4), Sampling(fps=2)]
    first = [
        together(clip.encode_videos(several(), sampling=s, cache=FeatureCache(folder=tmp_path)))
        for s in samplings[:2]
    ]
    why = first[0].incomplete[4]
    assert why == "frames end after 7: the file states 1.2 s, and ends at 0.7 s"
    assert [one for one in first[0].incomplete if one] == [one for one in first[1].incomplete if one] == [why]
    with count_forwards() as count:
        for sampling, expected in zip(samplings, first, strict=False):
            again = together(
                clip.encode_videos(several(), sampling=sampling, cache=FeatureCache(folder=tmp_path))
            )
            assert again.incomplete == expected.incomplete
            assert all((a == b).all() for a, b in zip(again.features, expected.features, strict=True))
    assert count.items == 0


def test_broken_videos_cost_their_own_rows(clip: ClipEncoder, tmp_path: Path) -> None:
    good, bad = encoded(photograph()), encoded(photograph(seed=1))[:900]
    values: list[Any] = [b"text", [good] * 20 + [bad], video(), "no-such-file.mp4", [good, bad], [good]]
    given = [InputFrames.of(value, f"videos[{i}]") for i, value in enumerate(values)]
    found = together(clip.encode_videos(given, cache=FeatureCache(0), batch_size=4))
    assert [features.shape for features in found.features] == [
        (n, clip.dimension) for n in (0, 0, 12, 0, 0, 1)
    ]
    assert [error is None for error in found.errors] == [False, False, True, False, False, True]
    assert str(found.errors[0]).startswith("videos[0]: the bytes object of length 4 is not a video")
    assert str(found.errors[1]).startswith("videos[1][20]: cannot decode")
    assert str(found.errors[4]).startswith("videos[4][1]: cannot decode")
    assert found.keys[3] == "" and found.incomplete == [None] * 6


def test_frames_that_fit_no_encoder_cost_their_row(clip: ClipEncoder) -> None:
    def refusing(image: Image.Image) -> Any:
        if image.width == 30:
            raise ValueError("height and width must be > 0")
        return clip.preprocessing.pixels(image)

    found = together(run(several(), pixels=refusing, forward=clip._image_forward, size=4))
    assert str(found.errors[1]) == (
        "videos[1]: cannot prepare the video of 1 frames (RGB): height and width must be > 0"
    )
    assert [len(features) for features in found.features] == [12, 0, 12, 70, 7, 2]


def run(videos: Any, *, pixels: Any, forward: Any, size: int, sampling: Sampling = EVERY) -> Any:
    return encode_frames(
        videos,
        sampling,
        keys=lambda used: (f"features {used}", f"incomplete {used}"),
        pixels=pixels,
        forward=forward,
        size=BatchSize(size, automatic=False),
        dimension=1,
        cache=FeatureCache(0),
    )


class Alive:
    """Counts the pixels that are in memory, and the most there were."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def pixels(self, image: Image.Image) -> Any:
        array = np.asarray(image)[-1:, :1].copy()
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        weakref.finalize(array, self._gone)
        return array

    def _gone(self) -> None:
        with self.lock:
            self.now -= 1


def test_pixels_in_memory_do_not_grow_with_a_video_or_their_number() -> None:
    def most(frames: int, videos: int) -> int:
        alive = Alive()
        given = [
            InputFrames.of([Image.new("RGB", (4, 4), (i % 250, v, 0)) for i in range(frames)])
            for v in range(videos)
        ]
        found = together(
            run(
                given, pixels=alive.pixels, size=8, forward=lambda p: np.float32([one[0, 0, :1] for one in p])
            )
        )
        for features in found.features:
            assert features[:, 0].tolist() == [i % 250 for i in range(frames)]
        return alive.most

    first = 3 * 8 + 3 * module._GROUP  # of the video whose turn it is: waiting, in the batch, being made
    assert most(2000, 1) <= first
    assert most(100, 40) <= first + (module._AHEAD + module._TOGETHER) * (8 + module._GROUP)


def test_the_next_frames_are_decoded_while_some_run() -> None:
    """The first batch waits for later frames to be prepared."""
    later = threading.Event()
    prepared: list[int] = []

    def pixels(image: Image.Image) -> Any:
        prepared.append(1)
        if len(prepared) > 2 * module._GROUP:
            later.set()
        return np.asarray(image)[0, 0]

    def forward(batch: list[Any]) -> Any:
        assert later.wait(600)
        return np.float32([one[:1] for one in batch])

    frames = [Image.new("RGB", (4, 4), (i, 0, 0)) for i in range(3 * module._GROUP)]
    (features,) = together(
        run([InputFrames.of(frames)], pixels=pixels, forward=forward, size=module._GROUP)
    ).features
    assert features[:, 0].tolist() == list(range(len(frames)))


def test_a_run_that_is_given_up_stops_reading() -> None:
    decoded: list[int] = []

    def pixels(image: Image.Image) -> Any:
        decoded.append(1)
        return np.asarray(image)[0, 0]

    given = (InputFrames.of(np.full((1000, 4, 4, 3), i, np.uint8)) for i in itertools.count())

    def forward(batch: list[Any]) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run(given, pixels=pixels, forward=forward, size=4))
    assert len(decoded) < 500
    assert not [one for one in threading.enumerate() if one.name.startswith("capeval-read")]
