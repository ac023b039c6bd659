"""Photographs that lie on their side by their EXIF orientation, and channels of 16 bits."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.demo import demo_set
from capeval_core.errors import InputError
from tests.support.seams import check

ORIENTATION = 0x0112


def scene() -> Image.Image:
    return Image.open(demo_set()[2].image).convert("RGB").crop((0, 0, 150, 96))


def lying(orientation: int) -> bytes:
    """A PNG that a viewer shows otherwise than it is stored."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    file = io.BytesIO()
    scene().save(file, "PNG", exif=exif)
    return file.getvalue()


def deep() -> bytes:
    """A PNG with colours of 16 bits, of which Pillow reads the upper 8."""
    pixels = np.asarray(scene()).astype(">u2") * 257
    height, width, _ = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def scored(images: list[Any], name: str = "pacs", **options: Any) -> Any:
    options = {"weights": "tiny", "device": "cpu", "cache": FeatureCache(0), **options}
    captions = [f"a red circle and {number} stars" for number in range(len(images))]
    return capeval_core.load(name, **options).score(captions, images)


def silently(images: list[Any], *others: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return scored(images, *others, **options)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("decoders", [None, 1])
def test_exif_turns_an_image_as_viewers_do(orientation: int, decoders: int | None) -> None:
    data = lying(orientation)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    turned = silently([data], exif="turn", decoders=decoders)
    assert turned.scores == pytest.approx(silently([upright]).scores, abs=1e-6)
    assert "|exif:turn|" in turned.signature


@pytest.mark.parametrize("name", ["hices", "umic"])
def test_regions_and_boxes_are_those_of_the_upright_image(name: str) -> None:
    regions = {"regions": "colours", "phrases": "chunks"} if name == "hices" else {"regions": "tiny"}
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(lying(6))))
    turned = silently([lying(6)], name, exif="turn", **regions)
    assert turned.scores == pytest.approx(silently([upright], name, **regions).scores, abs=1e-5)
    assert turned.scores != pytest.approx(scored([lying(8)], name, exif="turn", **regions).scores, abs=1e-4)


def test_turned_images_have_features_of_their_own(tmp_path: Path) -> None:
    """The same pixels under two orientations, beside the image as it is stored, from one cache."""
    pictures = [Image.open(io.BytesIO(lying(orientation))) for orientation in (1, 3, 6)]
    cache = FeatureCache()
    stored, turned = (scored(pictures, cache=cache, exif=exif) for exif in (None, "turn"))
    apart = [silently([ImageOps.exif_transpose(picture)]).scores[0] for picture in pictures]
    assert len(set(stored.groups)) == 1 and len(set(turned.groups)) == 3
    assert turned.scores[:1] == pytest.approx(apart[:1], abs=1e-6)
    paths = [tmp_path / f"{i}.png" for i in range(2)]
    for path, orientation in zip(paths, (1, 3), strict=True):
        path.write_bytes(lying(orientation))
    assert scored(paths, cache=cache, exif="turn").scores != scored(paths, cache=cache).scores


def test_images_of_samples_are_turned_or_as_stored_again_for_the_next_metric() -> None:
    """Checked images are handed from one metric to another, which may take them the other way."""
    pictures = [lying(6), lying(1), lying(6)]
    stored, turned = (check(["a"] * 3, pictures, upright=upright).images for upright in (False, True))
    keys = {upright: [image.key for image in images] for upright, images in ((False, stored), (True, turned))}
    assert keys[False] != keys[True]
    for images in (stored, turned):
        for upright in (False, True):
            again = check(["a"] * 3, images, upright=upright).images
            assert [image.key for image in again] == keys[upright]
            size = (96, 150) if upright else (150, 96)
            assert [image.load().size for image in again] == [size, (150, 96), size]
    shared = [stored[0], stored[1], stored[0]]
    first, _, last = check(["a"] * 3, shared, upright=True).images
    assert first.source is last.source  # read once, as before
    assert [image.where for image in check(["a"] * 2, turned[1:]).images] == ["images[0]", "images[1]"]


def test_kept_rows_are_of_one_setting(tmp_path: Path) -> None:
    images, rows = [lying(3), lying(1)], {"rows": tmp_path / "rows", "cache": None}
    first = scored(images, **rows)
    assert "exif" not in first.signature
    with pytest.raises(ValueError, match="exif"):
        scored(images, exif="turn", **rows)
    assert scored(images, **rows).scores == first.scores


@pytest.mark.parametrize("on_error", ["raise", "nan"])
@pytest.mark.parametrize("decoders", [None, 1])
def test_images_that_lie_on_their_side_are_noted_once(on_error: str, decoders: int | None) -> None:
    images = [lying(6), lying(1), lying(3), lying(3)]  # the last is the one before again
    with pytest.warns(capeval_core.Note) as caught:
        scored(images, on_error=on_error, decoders=decoders)
    assert len(caught) == 1 and "2 of 3 images" in str(caught[0].message)
    assert "exif='turn'" in str(caught[0].message)


def test_channels_of_16_bits_are_scored_by_their_upper_half_and_said() -> None:
    with pytest.warns(UserWarning, match="1 of 2 images have 16 bits") as caught:
        found = scored([deep(), scene()])
    assert len(caught) == 1 and caught[0].category is not capeval_core.Note
    with pytest.warns(UserWarning, match="16 bits"):
        both = scored([Image.open(io.BytesIO(deep())), scene()])
    expected = scored([scene(), scene()]).scores
    assert found.scores == pytest.approx(expected, abs=1e-6)
    assert both.scores == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("on_error", ["raise", "nan"])
def test_a_picture_of_16_bits_is_no_white_picture(on_error: str, tmp_path: Path) -> None:
    path = tmp_path / "radiograph.png"
    Image.fromarray(np.asarray(scene().convert("L")).astype("uint16") * 257).save(path)
    if on_error == "raise":
        with pytest.raises(InputError, match=r"images\[1\].*8 bits"):
            scored([scene(), path])
    else:
        result = scored([scene(), path], on_error="nan")
        assert [*result.errors] == [1] and "8 bits" in result.errors[1]
