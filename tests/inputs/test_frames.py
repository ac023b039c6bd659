"""Videos as frames: lists of images, arrays, folders; which frames are used."""

from __future__ import annotations

import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from capeval_core.inputs.frames import InputFrames, check_samplings
from capeval_core.inputs.sampling import Sampling
from capeval_core.inputs.visual import ImageError, InputImage
from tests.inputs.photographs import encoded, photograph
from tests.inputs.test_media import checked, folder_of, refusal
from tests.inputs.video_writing import video as video_file
from tests.support.seams import LIMITS

GREY = np.full((4, 6), 128, "uint8")
CLIP = [photograph(seed=i) for i in range(3)]


def test_a_video_has_one_key_however_it_is_handed_in(tmp_path: Path) -> None:
    array = np.stack([np.asarray(image) for image in CLIP])
    tensor = torch.tensor(array)
    values = [CLIP, tuple(CLIP), array, array / 255, tensor, tensor.permute(0, 3, 1, 2), list(array)]
    videos = [InputFrames.of(value) for value in values]
    assert len({video.key for video in videos}) == 1
    for video in videos:
        video.check()
        assert [np.asarray(frame).tobytes() for frame in video.load()] == [image.tobytes() for image in CLIP]
    assert InputFrames.of(CLIP[::-1]).key != videos[0].key  # in order
    assert InputFrames.of(CLIP[:2]).key != videos[0].key
    assert InputFrames.of(CLIP[:1]).key != InputImage.of(CLIP[0]).key


def test_a_folder_of_frames_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "clip", "f10.png", "f9.png", "f1.png")
    for name in (".hidden.png", "notes.txt"):
        (folder / name).write_text("x")
    video = InputFrames.of(folder)
    expected = [(folder / name).read_bytes() for name in ("f1.png", "f9.png", "f10.png")]
    assert video.key == InputFrames.of(expected).key == InputFrames.of(str(folder)).key
    assert [frame.tobytes() for frame in video.load()] == [photograph(seed=i).tobytes() for i in (2, 1, 0)]
    again = pickle.loads(pickle.dumps(video))
    assert (again.key, again.where, again.name) == (video.key, "video", repr(str(folder)))


def test_names_of_frames_are_in_the_order_of_whole_numbers(tmp_path: Path) -> None:
    names = ["20.png", "100.png", "3.png", "3b.png", "3a10.png", "3a9.png"]
    ordered = ["3.png", "3a9.png", "3a10.png", "3b.png", "20.png", "100.png"]
    video = InputFrames.of(folder_of(tmp_path / "clip", *names))
    expected = [photograph(seed=names.index(name)).tobytes() for name in ordered]
    assert [frame.tobytes() for frame in video.load()] == expected


def test_frames_that_cannot_be_used_are_named_by_their_index(tmp_path: Path) -> None:
    good, bad = encoded(CLIP[0]), encoded(CLIP[1])[:900]
    error = refusal([[good], [good, bad, good], "no-such-folder"], "video")
    assert [(problem.argument, problem.index) for problem in error.problems] == [
        ("videos", (1, 1)),
        ("videos", 2),
    ]
    assert "videos[1][1]: cannot decode the bytes object of length 900 (truncated)" in str(error)
    assert "videos[2]: there is no file 'no-such-folder'" in str(error)
    samples = checked([[good], [good, bad]], "video", on_error="nan")
    assert len(list(samples.images[0].load())) == 1
    for use in (lambda: list(samples.images[1].load()), samples.images[1].check):
        with pytest.raises(ImageError, match=r"^videos\[1\]\[1\]: cannot decode"):
            use()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "videos[0] is None: every caption needs a video"),
        ([], "videos[0] is a video without frames: pass at least one image"),
        (5, "videos[0] is the number 5: expected the path or bytes of a video file"),
        ([GREY, None], "videos[0][1] is None: every caption needs an image"),
        ([GREY, 7], "videos[0][1] is the number 7: expected a path"),
        ([GREY, "http://a/b.jpg"], "videos[0][1]: 'http://a/b.jpg' is a URL"),
        ("https://a/b.mp4", "videos[0]: 'https://a/b.mp4' is a URL"),
        (np.zeros((4, 6, 3), "uint8"), "videos[0]: the frames have shape (4, 6, 3): expected (T, H, W, 3)"),
        (np.zeros((1, 2, 4, 6, 3), "uint8"), "videos[0]: the frames have shape (1, 2, 4, 6, 3): expected"),
        (np.zeros((2, 4, 6, 5), "uint8"), "videos[0][0]: the numpy array has shape (4, 6, 5)"),
        (np.zeros((0, 4, 6, 3), "uint8"), "videos[0] is a video without frames"),
        (Image.new("RGB", (5, 5)), "videos[0] is an Image: expected the path or bytes of a video"),
        ({"boxes": 1}, "videos[0] is a dict of length 1: expected the path or bytes of a video"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "nan"])
def test_values_that_are_no_video(value: Any, message: str, on_error: str) -> None:
    assert str(refusal([value], "video", on_error=on_error)).startswith(message)


def test_files_and_folders_that_are_no_video(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("x")
    assert "holds no image: write the frames" in str(refusal([tmp_path / "empty"], "video"))
    assert "a\\x00b" in str(refusal(["a\0b"], "video"))


def test_used_frames_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "frames", 2)
    video = InputFrames.of(CLIP).load()
    with pytest.raises(ImageError, match="is a video of more than 2 frames: take fewer of them, by fps or"):
        list(video)
    assert [index for index, _ in video.read(Sampling(max_frames=2))] == [0, 2]
    assert len(list(InputFrames.of(CLIP[:2]).load())) == 2


def test_a_folder_is_listed_once_and_by_whoever_needs_it(tmp_path: Path) -> None:
    video = InputFrames.of(tmp_path / "later")
    folder_of(tmp_path / "later", "0.png", "1.png")
    assert len(list(video.load())) == 2


def test_a_video_is_read_any_number_of_times_frame_by_frame() -> None:
    video = InputFrames.of([encoded(CLIP[0]), b"broken"]).load()
    for _ in range(2):
        reading = video.read()
        assert next(reading)[0] == 0  # the second frame is not decoded yet
        with pytest.raises(ImageError, match=r"video\[1\]: the bytes object of length 6 is not an image"):
            next(reading)


# ---- sampling


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (1, [0] * 10),
        (3, [0, 0, 0, 0, 0, 1, 1, 1, 1, 2]),
        (10, list(range(10))),
        (17, [0, 1, 3, 5, 7, 8, 10, 12, 14, 16]),
        (40, [0, 4, 8, 13, 17, 21, 26, 30, 34, 39]),
    ],
)
def test_ten_frames_are_those_of_vatex_eval(frames: int, expected: list[int]) -> None:
    array = np.zeros((frames, 4, 6, 3), "uint8")
    reading = InputFrames.of(array).load().read(Sampling(max_frames=10))
    assert [index for index, _ in reading] == sorted(set(expected))  # each is decoded once
    assert reading.sampled.indices == expected


def test_frames_without_times_have_no_rate(tmp_path: Path) -> None:
    with pytest.raises(
        ImageError, match=r"does not say when frames are shown, which fps needs: pass a video"
    ):
        list(InputFrames.of(CLIP).load().read(Sampling(fps=1)))
    (tmp_path / "film").write_bytes(b"any file has times")
    values = [CLIP, tmp_path / "film", folder_of(tmp_path / "clip", "0.png"), video_file()]
    videos = [InputFrames.of(value, f"videos[{i}]") for i, value in enumerate(values)]
    with pytest.raises(ImageError) as caught:
        check_samplings(videos, Sampling(fps=1))
    assert [problem.argument for problem in caught.value.problems] == ["videos[0]", "videos[2]"]
    check_samplings(videos, Sampling(max_frames=1))


def test_a_metric_refuses_a_rate_before_weights_are_opened() -> None:
    from capeval_core.registry import metric_class

    metric = metric_class("pacs", "video")
    with pytest.raises(ImageError, match=r"^videos\[1\]: the video of 3 frames does not say when"):
        metric.check_input(metric.Options(fps=2.0), ["a", "b"], [video_file(), CLIP])
    lenient = metric.Options(fps=2.0, on_error="nan")
    assert len(metric.check_input(lenient, ["a", "b"], [video_file(), CLIP])) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"fps": 0}, "fps=0: expected a positive number of frames a second"),
        ({"fps": -1.5}, "fps=-1.5: expected a positive number"),
        ({"fps": float("nan")}, "fps=nan: expected a positive number"),
        ({"fps": float("inf")}, "fps=inf: expected a positive number"),
        ({"fps": "2"}, "fps='2' is a str of length 1: expected a positive number"),
        ({"fps": True}, "fps=True: expected a positive number"),
        ({"max_frames": 0}, "max_frames=0: expected an integer from 1 to"),
        ({"max_frames": -3}, "max_frames=-3: expected an integer from 1 to"),
        ({"max_frames": 2.5}, "max_frames=2.5: expected an integer from 1 to"),
        ({"max_frames": True}, "max_frames=True: expected an integer"),
        ({"max_frames": LIMITS.frames + 1}, f"expected an integer from 1 to {LIMITS.frames:,}"),
        ({"max_frames": "all"}, "max_frames='all' is a str of length 3: expected an integer"),
        ({"fps": 2, "max_frames": 8}, "max_frames=8 is given together with fps=2: leave one of the two out"),
    ],
)
def test_a_sampling_is_checked(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        Sampling(**wrong)
    assert message in str(caught.value)


def test_equal_samplings_are_equal() -> None:
    assert Sampling(fps=2) == Sampling(fps=np.float32(2)) and hash(Sampling(fps=2)) == hash(Sampling(fps=2.0))
    assert str(Sampling(max_frames=np.int64(3))) == "max_frames=3"
    assert len({str(Sampling()), str(Sampling(fps=1)), str(Sampling(max_frames=1))}) == 3


def test_slots_are_exact() -> None:
    for fps, seconds, slot in ((5, 100, 500), (5, Fraction(99_999, 1000), 499), (0.3, Fraction(10, 3), 1)):
        assert Sampling(fps=fps).slot(Fraction(seconds)) == slot
