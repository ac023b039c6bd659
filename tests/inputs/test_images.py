"""Images in any form: their content keys, their pixels, and what is no image."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image, features

import capeval_core
from capeval_core.errors import InputError
from tests.inputs.photographs import encoded, photograph, turned
from tests.support.seams import resized, visual

image = partial(visual, "image")

PIXELS = np.asarray(photograph())


def refused(value: Any) -> bool:
    """Whether an image is refused: check and load must agree, so that on_error="raise" and "nan" do."""
    given, found = image(value), []
    for use in (given.check, given.load):
        try:
            use()
            found.append("")
        except InputError as error:
            found.append(str(error))
    assert len({*found}) == 1, found
    return bool(found[0])


def written(folder: Path, data: bytes, name: str = "x.jpg") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("shape", [(3, 20, 24), (1, 20, 24), (2, 20, 24), (20, 24), (20, 24, 3), (3, 20, 3)])
def test_what_a_message_about_one_array_advises_is_taken(shape: tuple[int, ...]) -> None:
    """`images=[array]` of three grey images was advised, and refused in its turn."""
    metric = capeval_core.load("clips", weights="tiny", device="cpu")
    array = np.zeros(shape, dtype=np.uint8)
    if shape == (2, 20, 24):  # two grey images
        assert len(metric.score(["a", "b"], array).scores) == 2
        return
    with pytest.raises((TypeError, ValueError)) as refusal:
        metric.score(["a"] * shape[0], array)
    if "images=[image]" in str(refusal.value):
        assert len(metric.score(["a"], [array]).scores) == 1
    else:
        assert "pass a list, each (H, W)" in str(refusal.value)
        assert len(metric.score(["a"] * shape[0], list(array)).scores) == shape[0]


# ---- equal contents, equal keys


def test_a_file_has_one_key_however_it_is_handed_in(tmp_path: Path, jpeg: bytes) -> None:
    path, copy = written(tmp_path, jpeg), written(tmp_path, jpeg, "copy.png")
    values = [str(path), path, copy, jpeg, bytearray(jpeg), memoryview(jpeg)]
    values += [{"bytes": jpeg, "path": None}, {"bytes": None, "path": str(path)}, {"path": path}]
    values.append({"bytes": jpeg, "path": "https://a.b/x.jpg"})  # from where somebody else fetched it
    assert len({image(value).key for value in values}) == 1
    assert len({image(value).load().tobytes() for value in values}) == 1
    others = [encoded(photograph(seed=1)), jpeg + b"\0", jpeg + bytes(3 << 21), jpeg + bytes(3 << 21) + b"a"]
    assert len({image(value).key for value in [jpeg, *others]}) == 5


def test_decoded_images_are_keyed_by_their_pixels() -> None:
    tensor = torch.tensor(PIXELS)
    same = [photograph(), photograph().copy(), PIXELS, PIXELS[:, ::-1][:, ::-1], tensor]
    same += [tensor.permute(2, 0, 1), PIXELS.astype("float32") / 255, PIXELS / 255]
    same += [tensor.permute(2, 0, 1).float() / 255, np.ma.masked_array(PIXELS, mask=False)]
    assert len({image(value).key for value in same}) == 1
    other = PIXELS.copy()
    other[-1, -1, -1] ^= 1
    assert image(other).key != image(PIXELS).key
    rgba = photograph().convert("RGBA")
    assert image(np.asarray(rgba)).key == image(rgba).key != image(PIXELS).key


def test_shape_mode_and_palette_are_part_of_the_key() -> None:
    grey = np.arange(24, dtype="uint8")
    assert image(grey.reshape(4, 6)).key != image(grey.reshape(6, 4)).key
    assert image(grey.reshape(4, 6)).key == image(grey.reshape(4, 6, 1)).key
    palettes = []
    for colours in ([0, 0, 0, 255, 0, 0], [0, 0, 0, 0, 255, 0]):
        painted = Image.new("P", (4, 4), 1)
        painted.putpalette(colours)
        palettes.append(image(painted).key)
    painted.info["transparency"] = 1  # the same pixels, seen through
    assert len({*palettes, image(painted).key}) == 3


@pytest.mark.parametrize("use", ["key", "check"])
def test_a_key_stays_when_the_file_goes(tmp_path: Path, jpeg: bytes, use: str) -> None:
    path = written(tmp_path, jpeg)
    given = image(path)
    _ = given.key if use == "key" else given.check()
    path.unlink()
    assert given.key == image(jpeg).key
    with pytest.raises(InputError):
        given.load()


def test_keys_are_those_that_kept_rows_have(jpeg: bytes) -> None:
    assert image(b"GIF89a").key == "file:" + hashlib.blake2b(b"GIF89a", digest_size=16).hexdigest()
    assert image(np.arange(24, dtype="uint8").reshape(4, 6)).key == "pixels:6c72ae7ad48c9fe8ce82ec3d05194d50"


def test_a_path_of_half_a_character_is_refused() -> None:
    assert refused("a\ud800.png")


# ---- pixels


def test_exif_orientation_is_ignored() -> None:
    assert image(turned()).load().tobytes() == Image.open(io.BytesIO(turned())).tobytes()
    assert image(turned()).load().size == (96, 64)


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        *[(mode, "PNG") for mode in ("RGB", "RGBA", "LA", "P", "1")],
        *[(mode, "JPEG") for mode in ("RGB", "L", "CMYK")],
        *[("RGB", form) for form in ("WEBP", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF", "MPO")],
        ("P", "GIF"),
    ],
)
def test_files_are_decoded_as_pillow_decodes_them(mode: str, form: str) -> None:
    if form == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    options = {"save_all": True, "append_images": [photograph(seed=1)]} if form == "MPO" else {}
    data = encoded(photograph().convert(mode), form, **options)
    assert not refused(data)
    loaded = image(data).load()
    with Image.open(io.BytesIO(data)) as expected:
        assert loaded.mode == expected.mode == mode and expected.format == form
        assert loaded.tobytes() == expected.tobytes()
        assert loaded.convert("RGB").tobytes() == expected.convert("RGB").tobytes()
        assert image(expected).load().tobytes() == expected.tobytes()


@pytest.mark.parametrize("form", ["PNG", "TIFF", "JPEG2000", "PPM"])
@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32"])
def test_pixels_that_do_not_fit_8_bits_are_refused(dtype: str, form: str) -> None:
    """Pillow would clip them at 255, so that a picture is white, or black where floats are up to 1."""
    pixels = Image.fromarray((np.arange(64 * 96).reshape(64, 96) * 9).astype(dtype))
    assert refused(pixels)
    with suppress(OSError):  # a mode that the format cannot hold
        assert refused(encoded(pixels, form))
        assert refused(Image.open(io.BytesIO(encoded(pixels, form))))


def test_palette_transparency_is_kept() -> None:
    data = encoded(photograph().convert("P"), "PNG", transparency=3)
    expected = Image.open(io.BytesIO(data)).convert("RGBA").tobytes()
    for value in (data, Image.open(io.BytesIO(data))):
        assert image(value).load().convert("RGBA").tobytes() == expected


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_tensors_of_every_dtype(dtype: str, layout: str) -> None:
    tensor = torch.tensor(PIXELS)
    if dtype != "uint8":
        tensor = (tensor.double() / 255).to(getattr(torch, dtype))
    if layout == "CHW":
        tensor = tensor.permute(2, 0, 1)
    given = image(tensor.requires_grad_() if dtype == "float32" else tensor)
    given.check()
    difference = np.asarray(given.load()).astype(int) - PIXELS
    assert np.abs(difference).max() <= (1 if dtype == "bfloat16" else 0)


# ---- what is no image


_WAYS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "grey": {"mode": "L"},
    "restarts": {"restart_marker_blocks": 2},
    "optimised": {"optimize": True, "subsampling": 0},
    "progressive": {"progressive": True},
    "cmyk": {"mode": "CMYK"},
}


def damaged(data: bytes, rng: np.random.Generator, way: int) -> bytes:
    start = int(rng.integers(2, len(data)))
    if way == 0:  # flipped bits
        changed = bytearray(data)
        for place in rng.integers(start, len(data), 4):
            changed[place] ^= 1 << int(rng.integers(8))
        return bytes(changed)
    if way == 1:  # cut off
        return data[:start]
    if way == 2:  # a marker of any kind where none belongs
        return data[:start] + bytes([0xFF, int(rng.integers(1, 256)), 0, 4, 1, 2]) + data[start:]
    if way == 3:  # a hole
        return data[:start] + data[start + int(rng.integers(1, 200)) :]
    return data[:start] + rng.bytes(20) + data[start + 20 :]


@pytest.mark.parametrize("kind", _WAYS)
def test_a_damaged_jpeg_is_refused_before_the_run_or_never(kind: str) -> None:
    """The quick check before the run gives the verdict of decoding the file whole."""
    rng, options = np.random.default_rng(len(kind)), dict(_WAYS[kind])
    mode, verdicts = options.pop("mode", "RGB"), []
    for place in range(250):
        pixels = rng.integers(0, 256, (45, 60, 3), dtype=np.uint8)
        data = encoded(Image.fromarray(pixels).convert(mode), quality=85, **options)
        verdicts.append(refused(damaged(data, rng, place % 5)))
    assert 20 < sum(verdicts) < 250


def test_a_photograph_with_bytes_behind_it_is_whole(jpeg: bytes) -> None:
    """Phones put a film there, and thumbnails and metadata hold what looks like markers."""
    false = b"\xff\xda\0\x08" * 10_000
    for data in (jpeg, encoded(photograph(), progressive=True)):
        inside = b"\xff\xfe" + (len(false) + 2).to_bytes(2, "big") + false
        whole = data[:2] + inside + data[2:] + b"\0\0ftypmp42" + data + false
        assert not refused(whole)
        assert image(whole).load().tobytes() == image(data).load().tobytes()


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a stand-in for Ghostscript writes when Pillow starts it."""
    folder, started = tmp_path / "bin", tmp_path / "started"
    folder.mkdir()
    program = folder / "gs"
    program.write_text(f"#!/bin/sh\necho started > '{started}'\n")  # and succeeds, without an image
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # look for it again
    with Image.open(io.BytesIO(encoded(photograph(), "EPS"))) as opened, pytest.raises(OSError):
        opened.load()
    assert started.exists(), "the stand-in is not what Pillow starts"
    started.unlink()
    return started


def test_eps_starts_no_program(tmp_path: Path, ghostscript: Path) -> None:
    data = encoded(photograph(), "EPS")
    dos = b"\xc5\xd0\xd3\xc6" + (30).to_bytes(4, "little") + bytes(22) + data
    for content in (data, dos):
        assert refused(content) and refused(written(tmp_path, content, "x.png"))
    with Image.open(io.BytesIO(data)) as opened:
        assert refused(opened)
        with pytest.raises(InputError):
            _ = image(opened).key
    assert not ghostscript.exists()


# ---- the same pixels with every version of Pillow

SHAPES = [(30, 160), (160, 30), (7, 200), (33, 34), (1, 90)]
SIZES = [(20, 20), (64, 21), (5, 150), (40, 200)]
MODES = ["RGB", "L", "RGBA", "LA", "P", "1", "CMYK", "I", "F"]
METHODS = [Image.Resampling.BICUBIC, Image.Resampling.BILINEAR]


def noise(mode: str, width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(width + height)
    drawn = Image.fromarray(rng.integers(0, 256, (height, width, 4), dtype=np.uint8), "RGBA")
    return drawn if mode == "RGBA" else drawn.convert("LA" if mode == "LA" else "L").convert(mode)


def each(check: Callable[[Image.Image, tuple[int, int], Image.Resampling], None], mode: str) -> None:
    for shape in SHAPES:
        for size in SIZES:
            for method in METHODS:
                check(noise(mode, *shape), size, method)


def test_pixels_are_pinned_for_every_version() -> None:
    digest = hashlib.sha256()
    for mode in ("RGB", "RGBA", "L"):
        each(lambda drawn, size, method: digest.update(resized(drawn, size, method).tobytes()), mode)
    assert digest.hexdigest()[:16] == "8cc45cdc03c41957"


@pytest.mark.parametrize("mode", MODES)
def test_a_box_is_a_part_of_the_whole(mode: str) -> None:
    rng = np.random.default_rng(len(mode))

    def part(drawn: Image.Image, size: tuple[int, int], method: Image.Resampling) -> None:
        for width, height in (size, (size[0], drawn.height), (drawn.width, size[1]), drawn.size):
            xs, ys = (sorted(rng.choice(n + 1, 2, replace=False).tolist()) for n in (width, height))
            box = xs[0], ys[0], xs[1], ys[1]
            cut = resized(drawn, (width, height), method, box)
            whole = resized(drawn, (width, height), method).crop(box)
            assert (cut.mode, cut.size, cut.tobytes()) == (whole.mode, whole.size, whole.tobytes())

    each(part, mode)


def test_bytes_are_named_by_their_length() -> None:
    assert visual("image", b"abc").name == "the bytes object of length 3"
    with pytest.raises(InputError, match="is empty"):
        visual("image", b"").load()
