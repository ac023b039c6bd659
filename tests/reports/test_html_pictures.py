"""Pictures of a report: small, each once, without metadata, up to a size, and absent where unreadable."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capeval_core.reports.html import page
from capeval_core.reports.html_pictures import FRAMES, SIDE, Pictures, frame_strip, thumbnail
from capeval_core.reports.systems import Systems
from tests.reports.pages import X, cell, system


def stored(html: str) -> list[Image.Image]:
    """The pictures that a page holds, decoded."""
    found = re.findall(r"data:image/jpeg;base64,([A-Za-z0-9+/=]+)", html)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


def photo(path: Path, size: tuple[int, int] = (800, 600), colour: str = "teal") -> Path:
    """A JPEG with a place, a comment and an orientation in it."""
    image = Image.new("RGB", size, colour)
    exif = image.getexif()
    exif[0x0112], exif[0x010E] = 6, "secret place"
    exif.get_ifd(0x8825)[2] = (52.0, 30.0, 0.0)
    image.save(path, exif=exif, comment=b"secret comment", icc_profile=b"secret profile")
    return path


def test_a_picture_is_small_and_holds_no_metadata(tmp_path: Path) -> None:
    path = photo(tmp_path / "secret name.jpg")
    assert b"secret place" in path.read_bytes()
    pictures = Pictures("image")
    assert pictures.of(path, 'a "b"').startswith('<svg role="img" aria-label="a &quot;b&quot;"')
    (small,) = stored(pictures.symbols())
    assert small.size == (SIDE, SIDE * 3 // 4)  # as the file has it: metrics ignore the orientation, too
    assert not small.getexif() and set(small.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    assert b"secret" not in base64.b64decode(re.findall(r"base64,([^\"]+)", pictures.symbols())[0])
    assert np.abs(np.asarray(small, dtype=int) - [0, 128, 128]).max() < 4


def test_equal_pictures_are_stored_once(tmp_path: Path) -> None:
    path = photo(tmp_path / "a.jpg")
    pictures = Pictures("image")
    shown = [
        pictures.of(path, "a"),
        pictures.of(str(path), "again"),
        pictures.of(photo(tmp_path / "b.jpg"), ""),
    ]
    assert [re.findall("#picture-[0-9]", one) for one in shown] == [
        ["#picture-0"],
        ["#picture-0"],
        ["#picture-1"],
    ]
    assert len(stored(pictures.symbols())) == 2


@pytest.mark.parametrize("value", ["/no/such/file.jpg", "id7", "", None, b"broken", 3, "https://x.org/a.jpg"])
def test_what_cannot_be_read_has_no_picture(value: Any) -> None:
    pictures = Pictures("image")
    assert pictures.of(value, "x") == "" and pictures.left_out == 0


@pytest.mark.parametrize(
    "image",
    [
        Image.new("RGBA", (40, 30), (0, 0, 0, 0)),
        Image.new("P", (40, 30)),
        Image.new("1", (40, 30), 1),
        Image.fromarray(np.full((30, 40), 40_000, dtype=np.uint16)),
        Image.new("CMYK", (40, 30)),
    ],
    ids=lambda image: image.mode,
)
def test_images_of_any_mode(image: Image.Image) -> None:
    assert thumbnail(image).mode == "RGB" and thumbnail(image).size == (40, 30)


def test_transparent_pixels_are_white_and_panoramas_keep_their_middle() -> None:
    assert thumbnail(Image.new("RGBA", (8, 8), (0, 0, 0, 0))).getpixel((4, 4)) == (255, 255, 255)
    wide = Image.new("RGB", (4000, 100), "red")
    wide.paste("blue", (1800, 0, 2200, 100))
    strip = thumbnail(wide)
    assert strip.size == (320, 100) and strip.getpixel((160, 50)) == (0, 0, 255)
    assert thumbnail(Image.new("RGB", (2, 400))).size == (2, 5)


def test_a_video_is_a_strip_of_frames() -> None:
    colours = ["red", "lime", "blue", "white", "black", "yellow", "gray"]
    frames = [Image.new("RGB", (60, 60), colour) for colour in colours]
    strip = frame_strip(frames)
    side = strip.height
    middles = [strip.getpixel((place * (side + 4) + side // 2, side // 2)) for place in range(FRAMES)]
    assert middles == [(255, 0, 0), (0, 0, 255), (0, 0, 0), (128, 128, 128)]  # first, third, fifth, last
    assert frame_strip(frames[:1]).size == (side, side)
    pictures = Pictures("video")
    assert pictures.of(frames, "video 1") and pictures.of("no such file.mp4", "video 2") == ""


def test_pictures_stop_where_the_page_would_become_large() -> None:
    noise = np.random.default_rng(3).integers(0, 256, (40, 240, 320, 3), dtype=np.uint8)
    pictures = Pictures("image", thumbnails=200_000)
    shown = [pictures.of(array, "x") for array in noise]
    assert len(pictures.symbols()) < 210_000 and 0 < sum(map(bool, shown)) < 40
    assert pictures.left_out == sum(not one for one in shown)
    captions = [f"t{i}" for i in range(40)]
    own = system("A", captions, {"x": cell([i / 40 for i in range(40)])}, images=list(noise))
    html = page(Systems([own], [X]))
    assert len(stored(html)) == 8 and "left out, to keep" not in html


def test_drawings_have_room_of_their_own() -> None:
    def drawn(width: int) -> Image.Image:
        array = np.random.default_rng(0).integers(0, 256, (width, width, 3), dtype=np.uint8)
        return Image.fromarray(array)

    pictures = Pictures("image", drawings=900_000)
    assert pictures.drawing(drawn, 'with "quotes"').endswith('alt="with &quot;quotes&quot;">')
    assert pictures.drawing(drawn, "second") == "" and pictures.drawing(drawn, "third") == ""
    assert pictures.left_out == 2 and pictures.drawing(None, "nothing to draw") == ""
    assert pictures.left_out == 2
    assert pictures.of(Image.new("RGB", (9, 9)), "still a picture")
