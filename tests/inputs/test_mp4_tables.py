"""Tables of MP4 files: what they state is bounded before FFmpeg makes room for it; cut fragments show."""

from __future__ import annotations

import io
from functools import cache

import pytest

from capeval_core.inputs import mp4_tables
from capeval_core.inputs.frames import InputFrames
from capeval_core.inputs.mp4_tables import read_tables
from capeval_core.inputs.visual import ImageError
from tests.inputs.video_writing import FORMS, drawn, video, written

MANY = (10_000_000).to_bytes(4, "big")


@cache
def fragments() -> bytes:
    """A file of `drawn` frames, each in a fragment of its own."""
    container = {"movflags": "frag_every_frame+empty_moov+default_base_moof"}
    form = {"fmt": "mp4", "codec": "mpeg4", "pix_fmt": "yuv420p", "container": container}
    return written(drawn(), **form)


def stating(data: bytes, box: bytes, behind: int, content: bytes) -> bytes:
    """The file with this content so many bytes behind the type of its first such box."""
    place = data.index(box) + 4 + behind
    return data[:place] + content + data[place + len(content) :]


def test_samples_are_counted_whole_and_in_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_tables(io.BytesIO(video("mp4"))).samples == 12
    assert read_tables(io.BytesIO(fragments())).samples == 12
    monkeypatch.setattr(mp4_tables, "_PIECE", 7)  # a box lies across several pieces
    assert read_tables(io.BytesIO(fragments())).samples == 12
    assert {read_tables(io.BytesIO(video(form))).samples for form in FORMS if form != "mp4"} == {0}


@pytest.mark.parametrize(
    "data",
    [
        stating(video("mp4"), b"stsz", 4, (1).to_bytes(4, "big") + MANY),  # all of one size: no table
        stating(fragments(), b"trun", 0, bytes(4) + MANY),
        stating(video("mp4"), b"elst", 4, MANY),
    ],
)
def test_more_samples_than_a_file_can_hold_are_refused(data: bytes) -> None:
    with pytest.raises(ImageError, match=r"bytes and states [\d,]+ samples: it is damaged, or made to fill"):
        InputFrames.of(data).check()


def test_compressed_tables_are_refused() -> None:
    with pytest.raises(ImageError, match="compressed tables"):
        InputFrames.of(stating(video("mp4"), b"udta", -4, b"cmov")).check()


def test_frames_before_a_fragment_whose_tables_are_cut_are_used() -> None:
    data = fragments()
    start, end = data.rindex(b"moof") - 4, data.rindex(b"mdat") - 4
    for place in (start + 6, start + 7, start + 12, start + 40, (start + end) // 2, end - 1):
        InputFrames.of(data[:place]).check()
        reading = InputFrames.of(data[:place]).load().read()
        assert len(list(reading)) == 11
        assert reading.sampled.incomplete == "frames end after 11: the file ends within a fragment"
    reading = InputFrames.of(data[: data.rindex(b"mfra") + 1]).load().read()  # within the index behind all
    assert len(list(reading)) == 12 and reading.sampled.incomplete is None


def test_one_lost_frame_shows_by_the_tables() -> None:
    data = written(drawn(), fmt="mp4", codec="mpeg4", pix_fmt="yuv420p", container={"movflags": "faststart"})
    count = 12
    start = data.index(b"stsz") + 12 + 4  # sizes of frames, the last of which is cut off
    sizes = [int.from_bytes(data[start + 4 * i : start + 4 * i + 4], "big") for i in range(count)]
    reading = InputFrames.of(data[: -sizes[-1]]).load().read()
    assert len(list(reading)) == 11
    assert reading.sampled.incomplete == "frames end after 11: the file states 12"
