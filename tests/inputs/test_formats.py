"""Which formats of images are opened, and what the message for the others says."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import EpsImagePlugin, Image, features

from capeval_core.inputs.decoding import FORMATS, readable_formats
from capeval_core.inputs.visual import ImageError, InputImage
from tests.inputs.photographs import encoded, photograph


def complaint(value: Any) -> str:
    """What check and load say, which must be one thing."""
    image = InputImage.of(value, where="images[17]")
    found = set()
    for use in (image.check, image.load):
        with pytest.raises(ImageError) as caught:
            use()
        found.add(str(caught.value))
    assert len(found) == 1
    return found.pop()


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a stand-in for Ghostscript writes when Pillow starts it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    started = tmp_path / "started"
    program = folder / "gs"
    program.write_text(f"#!/bin/sh\necho started > '{started}'\n")  # and succeeds, without an image
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # look for it again
    with Image.open(io.BytesIO(encoded(photograph(), "EPS"))) as image, pytest.raises(OSError):
        image.load()
    assert started.exists(), "the stand-in is not what Pillow starts"
    started.unlink()
    return started


@pytest.mark.parametrize("name", ["x.eps", "x.png"])
@pytest.mark.parametrize("dos", [False, True])
def test_eps_is_refused_and_starts_no_program(
    tmp_path: Path, ghostscript: Path, name: str, dos: bool
) -> None:
    data = encoded(photograph(), "EPS")
    if dos:  # a binary header that says where in the file the PostScript begins
        data = b"\xc5\xd0\xd3\xc6" + (30).to_bytes(4, "little") + bytes(22) + data
    path = tmp_path / name
    path.write_bytes(data)
    for value in (path, data, {"bytes": data, "path": name}):
        assert " is in the format EPS, which is not opened: " in complaint(value)
    assert not ghostscript.exists()


def test_an_eps_that_pillow_has_opened_but_not_read(tmp_path: Path, ghostscript: Path) -> None:
    with Image.open(io.BytesIO(encoded(photograph(), "EPS"))) as image:
        message = complaint(image)
        with pytest.raises(ImageError):
            _ = InputImage.of(image).key
    assert message.startswith(
        "images[17]: the PIL image (RGB, 96x64) is in the format EPS, which is not opened: "
    )
    assert not ghostscript.exists()


def test_pixels_that_are_read_have_no_format() -> None:
    """Whoever opens such a file and reads its pixels, has decided that."""
    with Image.open(io.BytesIO(encoded(photograph(), "PCX"))) as image:
        assert "is in the format PCX, which is not opened: " in complaint(image)
        image.load()
        assert InputImage.of(image).load().size == (96, 64)


@pytest.mark.parametrize(
    "form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "MPO"]
)
def test_what_datasets_of_captions_hold_is_opened(form: str) -> None:
    options = {"save_all": True, "append_images": [photograph(seed=1)]} if form == "MPO" else {}
    if form == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    data = encoded(photograph(), form, **options)
    image = InputImage.of(data)
    image.check()
    with Image.open(io.BytesIO(data)) as expected:
        assert expected.format == form
        assert image.load().tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("PDF", encoded(photograph(), "PDF")),
        ("SVG", b'<?xml version="1.0"?>\n<!-- made by hand -->\n<svg xmlns="http://www.w3.org/2000/svg"/>'),
        ("SVG", b'\xef\xbb\xbf\n<svg width="5" height="5"></svg>'),
        ("HEIC", b"\0\0\0\x18ftypheic" + bytes(500)),
        ("HEIC", b"\0\0\0\x18ftypmif1" + bytes(500)),
        ("JPEG XL", b"\xff\x0a" + bytes(500)),
        ("JPEG XL", b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(500)),
        ("MP4", b"\0\0\0\x18ftypisom" + bytes(500)),
        ("PSD", b"8BPS\0\x01" + bytes(500)),
        ("ICO", encoded(photograph(), "ICO", sizes=[(64, 64)])),
        ("TGA", encoded(photograph(), "TGA")),
        ("DDS", encoded(photograph(), "DDS")),
        ("PCX", encoded(photograph(), "PCX")),
    ],
)
def test_other_formats_are_refused_by_name(tmp_path: Path, form: str, data: bytes) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(data)
    message = complaint(path)
    assert f"'{path}' is in the format {form}, which is not opened: " in message
    assert "JPEG, PNG, WebP" in message, "the mend names what is opened"


def test_only_registered_formats_are_asked_for() -> None:
    assert set(readable_formats()) <= set(FORMATS) & set(Image.OPEN)
    assert not {"EPS", "WMF", "TGA", "PSD"} & set(FORMATS)
