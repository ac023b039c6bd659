"""Videos: lists of images, folders and files of every container; which frames, their colours, and damage."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, features

import capeval_core
from capeval_core.errors import InputError
from capeval_core.testing import count_forwards
from tests.inputs.photographs import encoded, photograph
from tests.inputs.video_writing import FORMS, LOSSLESS, damaged_frame, drawn, numbers, turned, video, written
from tests.support.seams import LIMITS, read_video, visual

CLIP = [photograph(seed=i) for i in range(3)]


def refusal(value: Any, **sampling: Any) -> InputError:
    """The error of reading all frames."""
    with pytest.raises(InputError) as caught:
        read_video(value, **sampling)
    return caught.value


def folder_of(path: Path, *names: str) -> Path:
    path.mkdir()
    for i, name in enumerate(names):
        (path / name).write_bytes(encoded(photograph(seed=i), "PNG"))
    return path


# ---- frames at hand, and in folders


def test_a_video_has_one_key_however_it_is_handed_in() -> None:
    array = np.stack([np.asarray(image) for image in CLIP])
    tensor = torch.tensor(array)
    values = [CLIP, tuple(CLIP), array, array / 255, tensor, tensor.permute(0, 3, 1, 2), list(array)]
    videos = [visual("video", value) for value in values]
    assert len({video.key for video in videos}) == 1
    for one in videos:
        one.check()
        assert [np.asarray(frame).tobytes() for frame in one.load()] == [image.tobytes() for image in CLIP]
    assert len({visual("video", own).key for own in (CLIP, CLIP[::-1], CLIP[:2], CLIP[:1])}) == 4
    assert visual("video", CLIP[:1]).key != visual("image", CLIP[0]).key


@pytest.mark.parametrize(
    ("sampling", "option"),
    [
        ({"fps": 0}, "fps"), ({"fps": -1.0}, "fps"), ({"fps": float("nan")}, "fps"),
        ({"fps": float("inf")}, "fps"), ({"max_frames": 0}, "max_frames"),
        ({"max_frames": 2**19 + 1}, "max_frames"), ({"fps": 2, "max_frames": 3}, "max_frames"),
    ],
)  # fmt: skip
def test_a_sampling_that_gives_no_frames_is_refused_by_its_option(
    sampling: dict[str, Any], option: str
) -> None:
    with pytest.raises(ValueError, match=f"^{option}="):
        read_video(CLIP, **sampling)


def test_frames_without_times_are_not_taken_by_the_second() -> None:
    with pytest.raises(InputError, match="does not say when frames are shown, which fps needs"):
        read_video(CLIP, fps=1)
    for shape, of_one in (((4, 6, 3), True), ((4, 6), False), ((3, 4, 6), False), ((1, 2, 4, 6, 3), False)):
        with pytest.raises(InputError) as caught:
            visual("video", np.zeros(shape, "uint8"))
        message = str(caught.value)
        assert f"the frames have shape {shape}" in message and ("[None]" in message) is of_one
    with pytest.raises(TypeError, match=r"videos\[2\]\[1\]"):
        visual("video", [CLIP[0], 5], "videos[2]")


@pytest.mark.parametrize("form", ["list", "folder"])
def test_every_frame_is_checked_before_a_network_runs(form: str, tmp_path: Path) -> None:
    broken: Any = folder_of(tmp_path / "clip", "0.png", "1.png", "2.png")
    (broken / "2.png").write_bytes((broken / "1.png").read_bytes()[:60])
    if form == "list":
        broken = sorted(broken.iterdir())
    metric = capeval_core.load("pacs", media="video", weights="tiny", device="cpu", idf=False)
    with count_forwards() as forwards, pytest.raises(ValueError, match=r"videos\[1\]\[2\]"):
        metric.score(["a dog", "a cat"], videos=[CLIP, broken])
    assert forwards.items == 0


def test_a_folder_of_frames_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    names = ["20.png", "100.png", "3.png", "3b.png", "3a10.png", "3a9.png"]
    ordered = ["3.png", "3a9.png", "3a10.png", "3b.png", "20.png", "100.png"]
    folder = folder_of(tmp_path / "clip", *names)
    for name in (".hidden.png", "notes.txt"):
        (folder / name).write_text("x")
    images, indices, _ = read_video(folder)
    assert indices == list(range(6))
    expected = [photograph(seed=names.index(name)).tobytes() for name in ordered]
    assert [frame.tobytes() for frame in images.values()] == expected
    one = visual("video", folder)
    assert one.key == visual("video", [(folder / name).read_bytes() for name in ordered]).key
    again = pickle.loads(pickle.dumps(one))
    assert (again.key, again.name) == (one.key, repr(str(folder)))


def test_used_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "frames", 2)
    for value in (CLIP, video()):
        assert refusal(value).problems
        assert len(read_video(value, max_frames=2)[1]) == 2
    monkeypatch.setattr(LIMITS, "frames", 3)
    assert len(read_video(CLIP)[0]) == len(read_video(video(), fps=2)[0]) == 3


# ---- which frames


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
    images, indices, _ = read_video(np.zeros((frames, 4, 6, 3), "uint8"), max_frames=10)
    assert list(images) == sorted(set(expected)) and indices == expected  # each is decoded once


@pytest.mark.parametrize("form", FORMS)
def test_every_frame_of_every_container_or_so_many(form: str) -> None:
    images, indices, incomplete = read_video(video(form))
    assert numbers(images.values()) == indices == list(range(12)) and incomplete is None
    assert {(image.mode, image.size) for image in images.values()} == {("RGB", (48, 32))}
    green = np.asarray(images[5])[8, 36].astype(int)
    assert abs(green - [20, 200, 20]).max() <= (40 if form == "gif" else 8)
    for most in (1, 5, 12, 30):
        expected = np.linspace(0, 11, most).astype(int).tolist()
        images, indices, incomplete = read_video(video(form), max_frames=most)
        assert indices == expected and incomplete is None
        assert numbers(images.values()) == sorted(set(expected))


def times(*milliseconds: int) -> bytes:
    return written(drawn(len(milliseconds)), **LOSSLESS, times=list(milliseconds))


@pytest.mark.parametrize(
    ("data", "fps", "expected"),
    [
        (video(), 10, list(range(12))),
        (video(), 5, [0, 2, 4, 6, 8, 10]),
        (video("avi"), 5, [0, 2, 4, 6, 8, 10]),
        (video(), 4, [0, 3, 5, 8, 10]),  # slots from 0, 0.25, 0.5, 0.75 and 1 s
        (video(), 1000, list(range(12))),  # no frame twice
        (video(), 0.5, [0]),
        (video(), 1e-300, [0]),
        (times(0, 33, 67, 100, 133, 167, 200), 30, list(range(7))),  # thirtieths, rounded to milliseconds
        (times(0, 40, 80, 2000, 2040, 9000), 1, [0, 3, 5]),  # at its own times, not by a constant rate
        (times(500, 540, 1400, 1500, 1540), 1, [0, 3]),  # from the first frame on
    ],
)
def test_so_many_frames_a_second(data: bytes, fps: float, expected: list[int]) -> None:
    images, indices, _ = read_video(data, fps=fps)
    assert indices == list(images) == expected
    if data in (video(), video("avi")):
        assert numbers(images.values()) == expected


def test_the_number_of_frames_is_that_which_is_there() -> None:
    """Whatever a header says: of an AVI it is overwritten."""
    whole = video("avi")
    place = whole.index(b"strh") + 8 + 32
    assert whole[place : place + 4] == (12).to_bytes(4, "little")
    for stated in (1, 5, 11, 40, 2**31 - 1):
        images, indices, _ = read_video(
            whole[:place] + stated.to_bytes(4, "little") + whole[place + 4 :], max_frames=5
        )
        assert indices == [0, 2, 5, 8, 11] and images.keys() >= set(indices)
        assert numbers(images.values()) == list(images)


# ---- files


def test_one_file_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "no-extension"
    path.write_bytes(video())
    decoder = type("VideoDecoder", (), {"__module__": "torchcodec.decoders._video_decoder"})()
    decoder._hf_encoded = {"bytes": video(), "path": None}  # as datasets puts it there
    forms: list[Any] = [path, str(path), video(), bytearray(video()), decoder]
    forms += [{"bytes": video(), "path": "x.mkv"}, {"bytes": None, "path": str(path)}]
    visuals = [visual("video", form) for form in forms]
    assert len({one.key for one in visuals}) == 1
    for one in visuals:
        one.check()
        assert np.array_equal(np.stack([np.asarray(image) for image in one.load()]), drawn())
        assert pickle.loads(pickle.dumps(one)).key == one.key
    assert visual("video", video("mp4")).key != visuals[0].key


def test_a_frame_is_turned_as_players_turn_it() -> None:
    upright = read_video(video("mp4"))[0].values()
    for degrees, transpose in (
        (90, Image.Transpose.ROTATE_270),  # Pillow counts against the clock
        (180, Image.Transpose.ROTATE_180),
        (270, Image.Transpose.ROTATE_90),
    ):
        images = read_video(turned(video("mp4"), degrees))[0].values()
        assert [i.tobytes() for i in images] == [i.transpose(transpose).tobytes() for i in upright]


def test_the_matrix_that_a_stream_states_is_used() -> None:
    """The same numbers mean other colours by BT.709 than by BT.601, which unmarked streams have."""

    def green(**marked: str) -> Any:
        data = written(drawn(2), **{**FORMS["mp4"], "stream": {"crf": "1", **marked}})
        return np.asarray(read_video(data)[0][0])[8, 36].astype(int)

    assert np.abs(green() - [20, 200, 20]).max() <= 6
    to_yuv = np.array([[0.257, 0.504, 0.098], [-0.148, -0.291, 0.439], [0.439, -0.368, -0.071]])  # BT.601
    y, u, v = to_yuv @ [20, 200, 20]
    by_709 = [1.164 * y + 1.793 * v, 1.164 * y - 0.213 * u - 0.533 * v, 1.164 * y + 2.112 * u]
    assert np.abs(green(colorspace="bt709") - np.clip(by_709, 0, 255)).max() <= 6


# ---- damage: the frames before it are used, and the result says so


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zeros", [False, True])
def test_frames_before_a_damaged_end_are_used(form: str, zeros: bool) -> None:
    whole = video(form, 40)
    start = max(0, whole.find(b"movi"), whole.find(b"mdat"))  # behind the header
    kept = start + int((len(whole) - start) * 0.5)
    cut = whole[:kept] + bytes(len(whole) - kept if zeros else 0)
    visual("video", cut).check()
    images, indices, why = read_video(cut)
    count = len(images)
    assert 0 < count < 40 and indices == list(range(count)) and why
    assert f"frames end after {count}: " in why and "left out" not in why
    sound = count if form in ("mp4", "avi") else count - 1  # of the last one a part may be missing
    whole_images = read_video(whole)[0]
    assert all(images[i].tobytes() == whole_images[i].tobytes() for i in range(sound))
    for sampling in ({"max_frames": 5}, {"fps": 5}):
        assert read_video(cut, **sampling)[2] == why
    assert read_video(cut, max_frames=5)[1] == np.linspace(0, count - 1, 5).astype(int).tolist()


def test_the_length_that_a_file_states_is_compared() -> None:
    whole = video("mkv", 40).replace(b"DURATION", b"NOTATION")  # that of the container is left
    stated = struct.pack(">d", 4000.0)
    assert whole.count(stated) == 1
    for seconds, complete in ((4.9, True), (5.2, False)):
        assert (read_video(whole.replace(stated, struct.pack(">d", seconds * 1000)))[2] is None) == complete
    longer = read_video(whole.replace(stated, struct.pack(">d", 5250.0)))[2]
    assert longer == "frames end after 40: the file states 5.2 s, and ends at 4.0 s"
    assert read_video(whole[: len(whole) // 2])[2]


@pytest.mark.parametrize("damaged", [0, 1, 4])
def test_a_damaged_frame_is_not_used(damaged: int) -> None:
    """Half of a frame's bytes are zeros; the decoder gives a picture, and flags it."""
    images, _, why = read_video(damaged_frame(video("avi"), damaged))
    sound = [image.tobytes() for image in read_video(video("avi"))[0].values()]
    assert why
    if damaged:
        assert [image.tobytes() for image in images.values()] == sound[:damaged]
        assert why.startswith(f"frames end after {damaged}: ")
    else:
        assert len(images) == 11 and why == "damaged frames at its start are left out: 1"


# ---- hostility: no other file is opened, and no frame beyond the bound of pixels


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{path}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{path}'\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>{path}</BaseURL></MPD>',
    ],
)
def test_playlists_open_no_other_file(text: str, tmp_path: Path) -> None:
    film = tmp_path / "film.mkv"
    film.write_bytes(video())
    for name in ("list.m3u8", "list.mp4", "list.ffconcat", "list.sdp", "list.mpd"):
        (tmp_path / name).write_text(text.format(path=film))
        assert refusal(tmp_path / name).problems


@pytest.mark.skipif(not features.check("avif"), reason="Pillow cannot write AVIF")
def test_a_picture_in_a_videos_container_is_no_video(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "picture.avif")
    assert "is an image" in str(refusal(tmp_path / "picture.avif"))
