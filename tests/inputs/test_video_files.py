"""Video files: every container, which frames, colours, turns, and what damaged and hostile files give."""

from __future__ import annotations

import errno
import io
import os
import pickle
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capeval_core.inputs.container_sizes import ends_early
from capeval_core.inputs.decoding import Refused
from capeval_core.inputs.frames import InputFrames, Reading
from capeval_core.inputs.samples import check_samples
from capeval_core.inputs.sampling import Sampling
from capeval_core.inputs.video_file import OpenVideo
from capeval_core.inputs.visual import ImageError
from tests.inputs.photographs import encoded, photograph
from tests.inputs.test_media import refusal
from tests.inputs.video_writing import (
    FORMS,
    LOSSLESS,
    drawn,
    numbers,
    turned,
    video,
    with_sound,
    written,
)
from tests.support.seams import LIMITS

EXAMPLE = Path(__file__).parents[3] / "shared/data/example_video/Bfyp0C02sko_000248_000258.mp4"


def read(data: Any, **sampling: Any) -> tuple[list[Image.Image], Reading]:
    reading = InputFrames.of(data).load().read(Sampling(**sampling))
    return [image for _, image in reading], reading


def packets(data: bytes) -> list[Any]:
    """PyAV's packets of the frames of a file."""
    import av

    with av.open(io.BytesIO(data)) as container:
        return [packet for packet in container.demux(video=0) if packet.size]


@pytest.mark.parametrize("form", FORMS)
def test_every_frame_of_every_container(form: str) -> None:
    images, reading = read(video(form))
    assert numbers(images) == reading.sampled.indices == list(range(12))
    assert reading.sampled.incomplete is None
    assert {(image.mode, image.size) for image in images} == {("RGB", (48, 32))}
    green = np.asarray(images[5])[8, 36].astype(int)
    assert abs(green - [20, 200, 20]).max() <= (40 if form == "gif" else 8)


def test_lossless_frames_come_back_as_they_were() -> None:
    images, _ = read(video("mkv"))
    assert np.array_equal(np.stack([np.asarray(image) for image in images]), drawn())


def test_one_video_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "no-extension"
    path.write_bytes(video())
    forms = [path, str(path), video(), bytearray(video()), {"bytes": video(), "path": "x.mkv"}]
    visuals = [InputFrames.of(form) for form in [*forms, {"bytes": None, "path": str(path)}]]
    assert len({visual.key for visual in visuals}) == 1
    for visual in visuals:
        visual.check()
        assert numbers(visual.load()) == list(range(12))
        assert pickle.loads(pickle.dumps(visual)).key == visual.key
    assert InputFrames.of(video("mp4")).key != visuals[0].key


def test_videos_of_a_dataset_are_not_decoded_by_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = tmp_path / "a.mkv"
    path.write_bytes(video())
    rows: list[Any] = [str(path), {"bytes": video("mp4"), "path": None}, None]
    table = datasets.Dataset.from_dict({"video": rows[:1]}).cast_column("video", datasets.Video())
    stored = datasets.Dataset.from_dict(
        {"video": [{"bytes": None, "path": str(path)}, *rows[1:]]},
        features=datasets.Features({"video": datasets.Video()}),
    )
    plain = stored.cast_column("video", datasets.Video(decode=False))
    for column, count in (
        (table["video"], 1),
        (stored["video"], 3),
        (plain["video"], 3),
        (plain[:2]["video"], 2),
    ):
        samples = check_samples(
            ["a"] * count, column, needs_references=False, media=["video"], on_error="nan"
        )
        for visual in samples.images[:2]:
            assert numbers(visual.load()) == list(range(12))
    with pytest.raises(ImageError, match=r"videos\[2\] is None"):
        check_samples(["a"] * 3, stored["video"], needs_references=False, media=["video"])


def test_the_decoder_that_a_dataset_hands_out_leads_to_its_file() -> None:
    """datasets puts {"bytes", "path"} on torchcodec's decoder, which is not installed here."""
    decoder = type("VideoDecoder", (), {"__module__": "torchcodec.decoders._video_decoder"})()
    assert "is a VideoDecoder: pass the path or the bytes" in str(refusal([decoder], "video"))
    decoder._hf_encoded = {"bytes": video(), "path": None}
    assert numbers(InputFrames.of(decoder).load()) == list(range(12))


# ---- which frames


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
    images, reading = read(data, fps=fps)
    assert reading.sampled.indices == expected
    count = 12 if data in (video(), video("avi")) else 7 if fps == 30 else None
    if count is not None:
        assert numbers(images, count) == expected


@pytest.mark.parametrize("form", FORMS)
def test_so_many_frames_in_all(form: str) -> None:
    for most in (1, 5, 12, 30):
        expected = np.linspace(0, 11, most).astype(int).tolist()
        images, reading = read(video(form), max_frames=most)
        assert reading.sampled.indices == expected and reading.sampled.incomplete is None
        assert numbers(images) == sorted(set(expected))


@pytest.mark.parametrize("stated", [0, 1, 5, 11, 40, 2**31 - 1])
def test_the_number_of_frames_is_that_which_is_there(stated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a header or a count of packets says."""
    monkeypatch.setattr(OpenVideo, "stated_frames", lambda self: stated)
    given = {}
    reading = InputFrames.of(video()).load().read(Sampling(max_frames=5))
    for index, image in reading:
        assert index not in given
        given[index] = image
    assert reading.sampled.indices == [0, 2, 5, 8, 11]
    assert given.keys() >= set(reading.sampled.indices)
    assert numbers(given.values()) == list(given)


def test_used_frames_of_a_file_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, "frames", 5)
    with pytest.raises(ImageError, match="is a video of more than 5 frames: take fewer"):
        read(video())
    assert len(read(video(), fps=2)[0]) == 3 and len(read(video(), max_frames=4)[0]) == 4


# ---- what is in a frame


def test_a_frame_is_turned_as_players_turn_it() -> None:
    upright, _ = read(video("mp4"))
    for degrees, transpose in (
        (90, Image.Transpose.ROTATE_270),  # Pillow counts against the clock
        (180, Image.Transpose.ROTATE_180),
        (270, Image.Transpose.ROTATE_90),
    ):
        images, _ = read(turned(video("mp4"), degrees))
        assert [i.tobytes() for i in images] == [i.transpose(transpose).tobytes() for i in upright]


@pytest.mark.parametrize(
    ("pix_fmt", "tolerance"),
    [("gray", None), ("yuv444p10le", 3), ("bgra", 0), ("yuv410p", 160)],
)
def test_frames_of_any_pixel_format_are_rgb(pix_fmt: str, tolerance: int | None) -> None:
    images, _ = read(written(drawn(3), fmt="matroska", codec="ffv1", pix_fmt=pix_fmt))
    found = np.stack([np.asarray(image) for image in images]).astype(int)
    assert found.shape == (3, 32, 48, 3)
    if tolerance is None:
        assert (found == found[..., :1]).all() and found[2, 0, 0, 0] > found[0, 0, 0, 0]
    else:
        assert np.abs(found - drawn(3)).max() <= tolerance


def test_the_matrix_that_a_stream_states_is_used() -> None:
    """The same numbers mean other colours by BT.709 than by BT.601, which unmarked streams have."""

    def green(**marked: str) -> Any:
        data = written(drawn(2), **{**FORMS["mp4"], "stream": {"crf": "1", **marked}})
        return np.asarray(read(data)[0][0])[8, 36].astype(int)

    assert np.abs(green() - [20, 200, 20]).max() <= 6
    to_yuv = np.array([[0.257, 0.504, 0.098], [-0.148, -0.291, 0.439], [0.439, -0.368, -0.071]])  # BT.601
    y, u, v = to_yuv @ [20, 200, 20]
    by_709 = [1.164 * y + 1.793 * v, 1.164 * y - 0.213 * u - 0.533 * v, 1.164 * y + 2.112 * u]
    assert np.abs(green(colorspace="bt709") - np.clip(by_709, 0, 255)).max() <= 6


def test_frames_may_change_their_size() -> None:
    images, _ = read(growing())
    assert [image.size for image in images] == [(32, 32), (64, 48)]


def growing(second: tuple[int, int] = (64, 48)) -> bytes:
    """An AVI of two frames, 32x32 as its header says, and larger."""
    sizes = ((32, 32), second)
    small, large = (written(drawn(2, *size), fmt="avi", codec="mjpeg", pix_fmt="yuvj420p") for size in sizes)
    return _with_frames_of(small, large)


def _with_frames_of(first: bytes, second: bytes) -> bytes:
    """An AVI whose second frame is that of another file."""
    own, other = chunk(first, 1), chunk(second, 1)
    grown = len(other[2]) - len(own[2])
    data = first[: own[0]] + other[2] + first[own[1] :]
    index = data.find(b"idx1")
    data = data[:index]  # without the index frames are found by walking over them
    movi = data.index(b"movi") - 4
    size = int.from_bytes(data[movi : movi + 4], "little") + grown
    return data[:movi] + size.to_bytes(4, "little") + data[movi + 4 :]


def chunk(data: bytes, number: int) -> tuple[int, int, bytes]:
    start = data.index(b"movi") + 4
    for _ in range(number + 1):
        start = data.index(b"00dc", start)
        size = int.from_bytes(data[start + 4 : start + 8], "little")
        end = start + 8 + size + size % 2
        found = (start, end, data[start:end])
        start = end
    return found


# ---- damage


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zeros", [False, True])
def test_frames_before_a_damaged_end_are_used(form: str, zeros: bool) -> None:
    whole = video(form, 40)
    start = max(
        0, whole.find(b"movi"), whole.find(b"mdat")
    )  # small frames take little room behind the header
    kept = start + int((len(whole) - start) * 0.5)
    cut = whole[:kept] + bytes(len(whole) - kept if zeros else 0)
    InputFrames.of(cut).check()
    images, reading = read(cut)
    count = len(images)
    assert 0 < count < 40 and reading.sampled.indices == list(range(count))
    why = reading.sampled.incomplete
    assert why is not None and why.startswith(f"frames end after {count:,}: the file ")
    sound = images if form in ("mp4", "avi") else images[:-1]  # of the last one a part may be missing
    assert [image.tobytes() for image in sound] == [i.tobytes() for i in read(whole)[0][: len(sound)]]
    for sampling in ({"max_frames": 5}, {"fps": 5}):
        _, sampled = read(cut, **sampling)
        assert sampled.sampled.incomplete == why
        assert 1 <= sampled.sampled.indices[-1] <= count - 1
    assert read(cut, max_frames=5)[1].sampled.indices == np.linspace(0, count - 1, 5).astype(int).tolist()


def test_frames_that_the_decoder_holds_back_come_before_the_damage() -> None:
    """H.264 gives frames in another order than it stores them."""
    import av

    whole = video("mp4", 40)
    start = whole.index(b"mdat")
    cut = whole[: start + (len(whole) - start) // 2]
    with av.open(io.BytesIO(cut)) as container:
        sound = sum(packet.size > 0 and not packet.is_corrupt for packet in container.demux(video=0))
    assert 0 < sound < 40 and len(read(cut)[0]) == sound


@pytest.mark.parametrize("form", ["webm", "mkv"])
def test_two_lost_frames_show(form: str) -> None:
    """The file is cut between frames, so nothing in it is damaged; it states how long it is."""
    whole = video(form, 40)
    for kept in range(len(whole) - 1, 0, -3):
        images, reading = read(whole[:kept])
        if len(images) == 38:
            break
    assert reading.sampled.incomplete == ("frames end after 38: the file states 4.0 s, and ends at 3.8 s")


@pytest.mark.parametrize("form", ["webm", "mkv", "avi"])
def test_one_lost_frame_shows_where_the_file_states_its_size(form: str) -> None:
    whole, last = video(form, 40), packets(video(form, 40))[-1]
    for kept in (last.pos, last.pos + last.size // 2, last.pos + last.size - 1):
        images, reading = read(whole[:kept])
        assert len(images) == 39
        assert str(reading.sampled.incomplete).endswith("cut off there"), kept
    images, reading = read(whole[:-1])  # the index behind the frames is cut
    assert len(images) == 40 and reading.sampled.incomplete is None


def test_a_live_recording_states_no_size() -> None:
    live = written(drawn(), **{**FORMS["webm"], "container": {"live": "1"}})
    assert len(packets(live)) == 12
    for data in (live, live[: packets(live)[-1].pos]):
        assert not ends_early(io.BytesIO(data)) and read(data)[1].sampled.incomplete is None
    unfinished = video("avi")
    for size in (0, 2**32 - 1):
        assert not ends_early(io.BytesIO(unfinished[:4] + size.to_bytes(4, "little") + unfinished[8:-9]))


def test_containers_of_several_parts_end_where_the_last_one_does() -> None:
    parts = b"".join(b"RIFF" + len(own).to_bytes(4, "little") + own for own in (b"AVI 1234", b"AVIX567890"))
    room = b"\xec\x83abc"  # between the header and the segment
    other = b"\x1aE\xdf\xa3\x84head" + room + b"\x18S\x80g\x40\x05" + b"12345"
    for whole in (parts, other):
        assert [ends_early(io.BytesIO(whole[:kept])) for kept in (len(whole), len(whole) - 1)] == [
            False,
            True,
        ]


def test_a_length_may_be_counted_from_0_or_from_the_first_frame() -> None:
    """That of an index of fragments is the time of the end; that of tables is how long it is shown."""
    times = list(range(5000, 11000, 1000))
    form: dict[str, Any] = {"fmt": "mp4", "codec": "mpeg4", "pix_fmt": "yuv420p", "times": times}
    for flags in ("frag_every_frame+delay_moov+dash+global_sidx", "faststart"):
        whole = written(drawn(6), container={"movflags": flags}, **form)
        images, reading = read(whole)
        assert len(images) == 6 and reading.sampled.incomplete is None


def test_hours_of_a_stated_length_count() -> None:
    whole = video("mkv", 40)
    assert whole.count(b"00:00:04.0") == 1
    why = str(read(whole.replace(b"00:00:04.0", b"02:01:04.0"))[1].sampled.incomplete)
    assert why == "frames end after 40: the file states 7264.0 s, and ends at 4.0 s"


def test_sound_may_end_a_second_after_the_frames() -> None:
    """As far as the container's length goes; the stream's own is of its frames."""
    whole = video("mkv", 40).replace(b"DURATION", b"NOTATION")
    stated = struct.pack(">d", 4000.0)
    assert whole.count(stated) == 1
    for seconds, incomplete in ((4.9, None), (5.2, "the file states 5.2 s, and ends at 4.0 s")):
        _, reading = read(whole.replace(stated, struct.pack(">d", seconds * 1000)))
        assert reading.sampled.incomplete == (incomplete and f"frames end after 40: {incomplete}")


def test_a_length_that_only_the_container_states_counts() -> None:
    whole = video("mkv", 40).replace(b"DURATION", b"NOTATION")
    assert read(whole)[1].sampled.incomplete is None
    why = str(read(whole[: len(whole) // 2])[1].sampled.incomplete)
    assert "the file states 4.0 s, and ends at " in why


def test_a_part_of_a_frame_is_not_used() -> None:
    """Half a JPEG gives a picture, too."""
    whole = written(
        drawn(8), fmt="mov", codec="mjpeg", pix_fmt="yuvj420p", container={"movflags": "faststart"}
    )
    images, reading = read(whole[:-40])
    assert len(images) == 7 and reading.sampled.incomplete is not None


def test_frames_behind_damage_are_not_used() -> None:
    whole = video("mp4", 40)
    start = whole.index(b"mdat") + (len(whole) - whole.index(b"mdat")) // 2
    images, reading = read(whole[:start] + b"\xff" * 40 + whole[start + 40 :])
    assert 0 < len(images) < 40
    assert str(reading.sampled.incomplete).endswith("the file is damaged or cut off there")


@pytest.mark.parametrize("damaged", [0, 1, 4])
def test_a_damaged_frame_is_not_used(damaged: int) -> None:
    """Half of a frame's bytes are zeros; the decoder gives a picture, and flags it."""
    whole = video("avi")
    start, end, _ = chunk(whole, damaged)
    middle = start + 8 + (end - start - 8) // 2
    images, reading = read(whole[:middle] + bytes(end - middle) + whole[end:])
    sound = [image.tobytes() for image in read(whole)[0]]
    if damaged:
        assert [image.tobytes() for image in images] == sound[:damaged]
        why = f"frames end after {damaged}: the file is damaged or cut off there"
    else:
        assert len(images) == 11
        why = "damaged frames at its start are left out: 1"
    assert reading.sampled.incomplete == why


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "the bytes object of length 0 is empty (zero bytes)"),
        (
            b"some text\n" * 50,
            "is not a video that can be read: expected MP4 or MOV, WebM or Matroska, AVI and GIF",
        ),
        (video("mp4")[:300], "is not a video that can be read"),
        (
            encoded(photograph(), "PNG"),
            "is an image (PNG): pass a list of images, or the path of their folder",
        ),
        (encoded(photograph(), "WEBP"), "is an image (WEBP)"),
        (with_sound(), "has no video stream: pass a file with frames, not audio alone"),
        (with_sound(cover=True), "has no video stream"),
        ({"bytes": None, "path": None}, 'both "bytes" and "path" are None'),
        ({"path": "https://a/b.mp4"}, "'https://a/b.mp4' is a URL, and videos are never fetched; download"),
        ({"bytes": "text"}, "is a str of length 4: expected bytes or None"),
        ({"array": 1}, "is a dict of length 1: expected the path or bytes of a video file"),
        ("/dev/zero", "'/dev/zero' is not a regular file"),
    ],
)
def test_files_that_are_no_video(value: Any, message: str, tmp_path: Path) -> None:
    text = str(refusal([value], "video"))
    assert message in text and text.startswith("videos[0]")
    if isinstance(value, bytes):
        path = tmp_path / "film.mp4"
        path.write_bytes(value)
        found = message.replace("the bytes object of length 0", repr(str(path)))
        assert found in str(refusal([path], "video"))


def test_a_file_without_a_sound_frame() -> None:
    whole = video("mp4")
    start = whole.index(b"mdat") + 4
    text = str(refusal([whole[:start] + bytes(len(whole) - start)], "video"))
    assert (
        "cannot decode the bytes object of length" in text
        and "(its frames are damaged, or too large to trust)" in text
    )


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
        playlist = tmp_path / name
        playlist.write_text(text.format(path=film))
        assert "is not a video that can be read" in str(refusal([playlist], "video"))


def test_names_with_patterns_and_protocols_are_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "film.mkv").write_bytes(video())
    (tmp_path / "frame1.png").write_bytes(encoded(photograph(), "PNG"))
    monkeypatch.chdir(tmp_path)
    for name in ("concat:film.mkv", "file:film.mkv", "frame%d.png", "subfile,,start,0,end,0,,:film.mkv"):
        assert "there is no file" in str(refusal([name], "video"))
    Path("file:film.mkv").write_bytes(video("mp4"))
    assert InputFrames.of("file:film.mkv").key == InputFrames.of(video("mp4")).key


def test_sizes_are_bounded_before_frames_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {form: video(form) for form in FORMS}
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 48 * 32)
    for one in data.values():
        InputFrames.of(one).check()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 48 * 32 - 1)
    for one in data.values():
        assert "48x32 = 1,536 pixels (a decompression bomb?)" in str(refusal([one], "video"))


def test_sizes_within_the_stream_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2_000)
    with pytest.raises(ImageError, match="64x48 = 3,072 pixels"):
        read(growing())
    # Of one that is far too large not even its pixels are decoded.
    images, reading = read(growing((640, 480)))
    assert len(images) == 1 and "damaged" in str(reading.sampled.incomplete)


@pytest.mark.parametrize("form", FORMS)
def test_far_too_large_frames_are_not_decoded_to_learn_their_size(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = written(drawn(1, 640, 480), **FORMS[form])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2_000)
    sizes: list[tuple[int, int]] = []
    monkeypatch.setattr(OpenVideo, "image", lambda self, frame: sizes.append((frame.width, frame.height)))
    text = str(refusal([data], "video"))
    assert "640x480 = 307,200 pixels" in text or "too large to trust" in text
    assert not sizes


@pytest.mark.parametrize(("fmt", "codec"), [("flv", "flv1"), ("nut", "mpeg4"), ("mpegts", "mpeg2video")])
def test_containers_that_are_not_opened(fmt: str, codec: str) -> None:
    data = written(drawn(30), fmt=fmt, codec=codec, pix_fmt="yuv420p", rate=25)
    assert "is not a video that can be read: expected MP4" in str(refusal([data], "video"))


def test_a_name_may_be_of_any_bytes(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff%d.mkv"
    Path(os.fsdecode(path)).write_bytes(video())
    assert numbers(InputFrames.of(os.fsdecode(path)).load()) == list(range(12))


def test_the_check_of_a_long_file_decodes_its_first_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    image = OpenVideo.image

    def counted(self: OpenVideo, frame: Any) -> Image.Image:
        counts.append(self.count)
        return image(self, frame)

    monkeypatch.setattr(OpenVideo, "image", counted)
    InputFrames.of(video()).check()
    assert counts == [1]


def test_what_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    InputFrames.of([photograph()]).check()
    with pytest.raises(ImportError, match=r'not installed: pip install "capeval\[video\]"'):
        InputFrames.of(video()).check()


@pytest.mark.skipif(not EXAMPLE.is_file(), reason="needs ../shared/data/example_video")
def test_the_example_of_emscore() -> None:
    images, reading = read(EXAMPLE)
    assert (len(images), reading.sampled.incomplete, images[0].size) == (250, None, (640, 360))
    assert len(read(EXAMPLE, fps=2)[0]) == 20
    assert read(EXAMPLE, max_frames=10)[1].sampled.indices == [0, 27, 55, 83, 110, 138, 166, 193, 221, 249]
    # A green and a pink egg white, yolks, and a white table; looked at by eye.
    frame = np.asarray(images[120]).astype(int)
    yolk, green, pink, table = frame[115, 325], frame[70, 330], frame[150, 190], frame[20, 20]
    assert yolk[0] > yolk[1] + 30 > yolk[2] + 60
    assert green[1] > green[0] + 10 and pink[0] > pink[1] + 10 and table.min() > 220


def test_notes_in_a_file_may_be_in_any_encoding() -> None:
    data = video("mkv").replace(b"Lavf", b"L\xe9vf")
    assert data != video("mkv")
    assert numbers(read(data)[0]) == list(range(12))


def test_damage_anywhere_is_refused_or_reported_or_harmless() -> None:
    """Random bytes changed, lost and added in files of every container."""
    random = np.random.default_rng(5)
    found = {"refused": 0, "frames": 0}
    for _ in range(250):
        data = bytearray(video(list(FORMS)[random.integers(len(FORMS))]))
        for _ in range(random.integers(1, 6)):
            place = random.integers(len(data) if random.random() < 0.6 else 700)
            length = random.integers(0, 20)
            data[place : place + length] = random.bytes(random.integers(0, 20))
        sampling = [{}, {"fps": 3}, {"max_frames": 6}][random.integers(3)]
        try:
            images, reading = read(bytes(data), **sampling)
        except ImageError:
            found["refused"] += 1
            continue
        found["frames"] += 1
        assert images and (len(reading.sampled.indices) == 6 or "max_frames" not in sampling)
    assert min(found.values()) > 20


class Failing(io.BytesIO):
    """A file whose disk fails from a place on."""

    def __init__(self, data: bytes, place: int) -> None:
        super().__init__(data)
        self.place = place

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() + (size or 0) > self.place:
            raise OSError(errno.EIO, "Input/output error")
        return super().read(size)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.7])
def test_a_disk_that_fails_is_no_damaged_video(form: str, share: float) -> None:
    data = written(np.random.default_rng(1).integers(0, 256, (12, 96, 96, 3), np.uint8), **FORMS[form])
    with pytest.raises(Refused, match=r"cannot read film \(Input/output error\)"):  # noqa: SIM117
        with OpenVideo(Failing(data, int(len(data) * share)), "film") as film:
            list(film.frames())


def test_a_file_that_changes_between_its_key_and_its_frames_costs_its_row(tmp_path: Path) -> None:
    path = tmp_path / "film.mkv"
    path.write_bytes(video("mkv"))
    visual = InputFrames.of(path)
    before = visual.key
    assert numbers(visual.load()) == list(range(12))
    path.write_bytes(video("mp4"))
    with pytest.raises(ImageError, match=r"film.mkv' was changed after it was first read: score it again"):
        list(visual.load())
    with pytest.raises(ImageError, match="was changed"):
        visual.check()
    assert InputFrames.of(path).key != before
