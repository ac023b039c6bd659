"""The streaming engine through CLIP: in order, equal items once, broken ones alone, bounded memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.testing import count_forwards
from tests.inputs.photographs import photograph
from tests.inputs.video_writing import drawn, video
from tests.support import seams
from tests.support.seeded import encoder


def grey(value: int) -> NDArray[np.uint8]:
    """An image that stands for a value, 0 to 65535."""
    return np.full((2, 2, 3), [value % 256, value // 256, 0], np.uint8)


def encode(images: Any, **more: Any) -> Iterator[dict[str, Any]]:
    return seams.encode(encoder(), images, **more)


def reading() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("capeval-read")]


@contextmanager
def batches() -> Iterator[list[int]]:
    """Sizes of the batches of images."""
    sizes: list[int] = []
    layer = encoder().model.visual.conv1
    hook = layer.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    try:
        yield sizes
    finally:
        hook.remove()


# ---- images


def test_a_run_that_is_given_up_stops_reading() -> None:
    taken = 0

    def endless() -> Iterator[Any]:
        nonlocal taken
        for i in itertools.count():
            taken += 1
            yield grey(i % 60_000)

    running = encode(endless())
    found = [next(running) for _ in range(100)]
    assert len({each["key"] for each in found}) == 100 and taken <= 100 + 3 * 64 + 32
    running.close()  # type: ignore[attr-defined]
    assert not reading()


def test_images_in_memory_are_bounded_where_a_batch_never_fills() -> None:
    """Nor does it hold back cached items for ever."""
    taken, cache = 0, FeatureCache()
    list(encode([grey(1)], cache=cache))

    def mostly_cached() -> Iterator[Any]:
        nonlocal taken
        for i in itertools.count():
            taken += 1
            yield grey(1 if i else 2)

    assert next(encode(mostly_cached(), cache=cache))["error"] is None and taken <= 1024 + 3 * 64
    taken = 0
    cached = encode(itertools.chain([grey(1)], mostly_cached()), cache=cache)
    assert next(cached)["error"] is None and taken <= 3 * 64  # what is there already comes out as it is read


# ---- videos


def several() -> list[Any]:
    rng = np.random.default_rng(3)
    return [
        video(),
        rng.integers(0, 256, (1, 20, 30, 3), dtype=np.uint8),
        video("mp4"),
        rng.integers(0, 256, (70, 24, 24, 3), dtype=np.uint8),
        video()[:1500],
        [photograph(seed=1), photograph(40, 50, seed=2).convert("L")],
    ]


def videos(given: Any, **more: Any) -> list[dict[str, Any]]:
    return list(seams.encode(encoder(), given, medium="videos", **more))


def test_frames_that_are_used_are_those_of_all(tmp_path: Path) -> None:
    kept = {"cache": FeatureCache(folder=tmp_path)}
    given = several()[:1]
    (every,) = videos(given, **kept)
    for sampling in ({"max_frames": 5}, {"fps": 3}):
        (some,) = videos(given, sampling=sampling, **kept)
        _, used, _ = seams.read_video(given[0], **sampling)
        assert 0 < len(used) < 12 and np.abs(some["features"] - every["features"][used]).max() < 1e-5
    with count_forwards() as count:
        (twice,) = videos([drawn(3)], sampling={"max_frames": 10})
    assert count.items == 3 and (twice["features"][0] == twice["features"][4]).all()
    (first,) = videos(several()[4:5], cache=FeatureCache(folder=tmp_path))
    assert str(first["incomplete"]).startswith("frames end after 7")
    with count_forwards() as count:
        (again,) = videos(several()[4:5], cache=FeatureCache(folder=tmp_path))
    assert count.items == 0 and again["incomplete"] == first["incomplete"]


def test_frames_in_memory_do_not_grow_with_a_video_or_their_number() -> None:
    """Frames are decoded a few batches ahead of those that have run."""
    ahead: list[int] = []
    decoded = ran = 0

    def note(_: Any, inputs: Any) -> None:
        nonlocal ran
        ran += len(inputs[0])
        ahead.append(decoded - ran)

    load = Image.Image.convert

    def convert(self: Image.Image, *given: Any, **more: Any) -> Image.Image:
        nonlocal decoded
        decoded += 1
        return load(self, *given, **more)

    def most(frames: int, count: int) -> int:
        nonlocal decoded, ran
        decoded = ran = 0
        ahead.clear()
        given = [[Image.new("L", (4, 4), (7 * v + i) % 250) for i in range(frames)] for v in range(count)]
        hook = encoder().model.visual.conv1.register_forward_pre_hook(note)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Image.Image, "convert", convert)
            found = videos(given, batch_size=8)
        hook.remove()
        assert [len(each["features"]) for each in found] == [frames] * count
        return max(ahead)

    assert most(600, 1) <= 3 * 16
    assert most(30, 30) <= 300
