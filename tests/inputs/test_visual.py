from __future__ import annotations

import io
import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, features

from capeval_core.inputs.visual import ImageError, InputImage
from tests.inputs.photographs import encoded, photograph, turned


def complaint(value: Any, where: str = "images[17]") -> str:
    """What check says; load and check must agree, so that on_error="nan" and "raise" do."""
    image = InputImage.of(value, where=where)
    with pytest.raises(ImageError) as checked:
        image.check()
    with pytest.raises(ImageError) as loaded:
        image.load()
    assert str(checked.value) == str(loaded.value)
    return str(checked.value)


def refusal(value: Any) -> str:
    with pytest.raises((ImageError, TypeError)) as caught:
        InputImage.of(value, where="images[17]")
    return str(caught.value)


def written(folder: Path, data: bytes, name: str = "x.jpg") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


# ---- equal contents, equal keys


def test_a_file_has_one_key_however_it_is_handed_in(tmp_path: Path, jpeg: bytes) -> None:
    path = written(tmp_path, jpeg)
    copy = written(tmp_path, jpeg, "copy.png")
    values = [str(path), path, copy, jpeg, bytearray(jpeg), memoryview(jpeg)]
    values += [{"bytes": jpeg, "path": None}, {"bytes": None, "path": str(path)}, {"path": path}]
    images = [InputImage.of(value) for value in values]
    assert len({image.key for image in images}) == 1
    assert len({image.load().tobytes() for image in images}) == 1


def test_other_contents_have_other_keys(jpeg: bytes) -> None:
    again = encoded(photograph(seed=1))
    assert InputImage.of(jpeg).key != InputImage.of(again).key
    assert InputImage.of(jpeg).key != InputImage.of(jpeg + b"\0").key


@pytest.mark.parametrize("length", [2**12, 2**16, 2**20, 3 * 2**21])
def test_large_files_that_differ_only_at_the_end(tmp_path: Path, jpeg: bytes, length: int) -> None:
    """As panoramas do whose sky is the same, or a file with its comment at the end."""
    data = [jpeg + bytes(length) + end for end in (b"a", b"b")]
    paths = [written(tmp_path, content, f"{i}.jpg") for i, content in enumerate(data)]
    for values in (data, paths):
        assert len({InputImage.of(value).key for value in values}) == 2
    checked = [InputImage.of(path) for path in paths]
    for image in checked:
        image.check()
    assert checked[0].key != checked[1].key and checked[0].key == InputImage.of(data[0]).key


def test_large_arrays_that_differ_only_at_the_end() -> None:
    array = np.zeros((1500, 1500, 3), "uint8")
    other = array.copy()
    other[-1, -1, -1] = 1
    assert InputImage.of(array).key != InputImage.of(other).key


def test_decoded_images_are_keyed_by_their_pixels() -> None:
    image = photograph()
    array = np.asarray(image)
    tensor = torch.tensor(array)
    same = [image, image.copy(), array, array[:, ::-1][:, ::-1], tensor, tensor.permute(2, 0, 1)]
    same += [array.astype("float32") / 255, array / 255, tensor.permute(2, 0, 1).float() / 255]
    assert len({InputImage.of(value).key for value in same}) == 1
    other = array.copy()
    other[5, 5, 1] ^= 1
    assert InputImage.of(other).key != InputImage.of(array).key


def test_shape_mode_and_palette_are_part_of_the_key() -> None:
    grey = np.arange(24, dtype="uint8")
    assert InputImage.of(grey.reshape(4, 6)).key != InputImage.of(grey.reshape(6, 4)).key
    assert InputImage.of(grey.reshape(4, 6)).key == InputImage.of(grey.reshape(4, 6, 1)).key
    palettes = []
    for colours in ([0, 0, 0, 255, 0, 0], [0, 0, 0, 0, 255, 0]):
        image = Image.new("P", (4, 4), 1)
        image.putpalette(colours)
        palettes.append(InputImage.of(image).key)
    assert palettes[0] != palettes[1]
    image.info["transparency"] = 1  # the same pixels, seen through
    assert InputImage.of(image).key != palettes[1]


def test_the_key_of_a_file_survives_without_its_bytes(tmp_path: Path, jpeg: bytes) -> None:
    path = written(tmp_path, jpeg)
    image = InputImage.of(path)
    key = image.key
    path.unlink()
    assert image.key == key
    with pytest.raises(ImageError, match="there is no file"):
        image.load()


def test_checking_a_file_settles_its_key(tmp_path: Path, jpeg: bytes) -> None:
    path = written(tmp_path, jpeg)
    image = InputImage.of(path)
    image.check()
    path.unlink()
    assert image.key == InputImage.of(jpeg).key


# ---- loading


def test_exif_orientation_is_ignored() -> None:
    image = InputImage.of(turned())
    image.check()
    assert image.load().size == (96, 64)
    assert image.load().tobytes() == Image.open(io.BytesIO(turned())).tobytes()


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        ("RGB", "JPEG"),
        ("L", "JPEG"),
        ("CMYK", "JPEG"),
        ("RGB", "PNG"),
        ("RGBA", "PNG"),
        ("LA", "PNG"),
        ("P", "PNG"),
        ("1", "PNG"),
        ("I;16", "PNG"),
        ("P", "GIF"),
        ("RGB", "WEBP"),
        ("RGB", "BMP"),
        ("F", "TIFF"),
    ],
)
def test_a_image_keeps_its_mode(mode: str, form: str) -> None:
    if mode == "I;16":
        decoded = Image.fromarray((np.arange(64 * 96).reshape(64, 96) * 9).astype("uint16"))
    else:
        decoded = photograph().convert(mode)
    data = encoded(decoded, form)
    image = InputImage.of(data)
    image.check()
    with Image.open(io.BytesIO(data)) as expected:
        loaded = image.load()
        assert loaded.mode == expected.mode == mode
        assert loaded.tobytes() == expected.tobytes()
        assert loaded.convert("RGB").tobytes() == expected.convert("RGB").tobytes()
    assert InputImage.of(loaded).load().mode == mode


def test_palette_transparency_is_kept() -> None:
    image = photograph().convert("P")
    data = encoded(image, "PNG", transparency=3)
    expected = Image.open(io.BytesIO(data)).convert("RGBA").tobytes()
    assert InputImage.of(data).load().convert("RGBA").tobytes() == expected
    assert InputImage.of(Image.open(io.BytesIO(data))).load().convert("RGBA").tobytes() == expected


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_tensors_of_every_dtype(dtype: str, layout: str) -> None:
    array = np.asarray(photograph())
    tensor = torch.tensor(array)
    if dtype != "uint8":
        tensor = (tensor.double() / 255).to(getattr(torch, dtype))
    if layout == "CHW":
        tensor = tensor.permute(2, 0, 1)
    image = InputImage.of(tensor.requires_grad_() if dtype == "float32" else tensor)
    image.check()
    difference = np.asarray(image.load()).astype(int) - array
    assert np.abs(difference).max() <= (1 if dtype == "bfloat16" else 0)


def test_grey_arrays_and_tensors() -> None:
    grey = np.asarray(photograph().convert("L"))
    tensor = torch.tensor(grey)
    for value in (grey, grey[:, :, None], tensor, tensor[None], tensor[:, :, None]):
        loaded = InputImage.of(value).load()
        assert loaded.mode == "L"
        assert (np.asarray(loaded) == grey).all()


def test_rgba_arrays() -> None:
    image = photograph().convert("RGBA")
    assert InputImage.of(np.asarray(image)).load().mode == "RGBA"
    assert InputImage.of(np.asarray(image)).key == InputImage.of(image).key


def test_floats_are_rounded_and_tiny_overshoot_is_forgiven() -> None:
    array = np.array([[0.0, 0.5, 1.0], [0.4999 / 255, 0.5001 / 255, 1.000001]])
    assert np.asarray(InputImage.of(array).load()).tolist() == [[0, 128, 255], [0, 1, 255]]


def test_loading_gives_a_image_of_ones_own() -> None:
    decoded = photograph()
    image = InputImage.of(decoded)
    key = InputImage.of(decoded).key
    image.load().paste((0, 0, 0), (0, 0, 96, 64))
    assert image.key == key


def test_a_lazy_pil_image_is_read_when_needed(tmp_path: Path, jpeg: bytes) -> None:
    with Image.open(written(tmp_path, jpeg)) as lazy:
        image = InputImage.of(lazy)
        image.check()
        assert image.load().tobytes() == InputImage.of(jpeg).load().tobytes()
    assert image.load().size == (96, 64)


def test_images_can_be_pickled(tmp_path: Path, jpeg: bytes) -> None:
    batch = torch.zeros(50, 3, 40, 40)
    for value in (written(tmp_path, jpeg), jpeg, photograph(), np.zeros((5, 6, 3), "uint8"), batch[7]):
        image = InputImage.of(value, where="images[3]")
        again = pickle.loads(pickle.dumps(image))
        assert (again.key, again.where, again.name) == (image.key, "images[3]", image.name)
    assert len(pickle.dumps(InputImage.of(batch[7]))) < 2 * batch[7].nbytes


def test_many_threads_agree(tmp_path: Path) -> None:
    paths = [written(tmp_path, encoded(photograph(seed=i)), f"{i}.jpg") for i in range(24)]
    expected = [Image.open(path).tobytes() for path in paths]
    images = [InputImage.of(path) for path in paths]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(InputImage.check, images))
        assert [image.tobytes() for image in pool.map(InputImage.load, images)] == expected


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_no_file_stays_open(tmp_path: Path, jpeg: bytes) -> None:
    good, bad = written(tmp_path, jpeg), written(tmp_path, jpeg[:900], "bad.jpg")
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept: list[Any] = []
    for _ in range(20):
        image = InputImage.of(good)
        kept += [image, image.key, image.load()]
        with pytest.raises(ImageError):
            InputImage.of(bad).check()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# ---- what cannot be used


def test_missing_empty_and_other_files(tmp_path: Path, jpeg: bytes) -> None:
    path = tmp_path / "no.jpg"
    assert complaint(path) == f"images[17]: there is no file '{path}'"
    assert complaint(written(tmp_path, jpeg) / "below.jpg").startswith("images[17]: there is no file")
    assert complaint("~/no.jpg") == (
        "images[17]: there is no file '~/no.jpg': ~ is not expanded, write the whole path"
    )
    path = written(tmp_path, b"", "zero.jpg")
    assert complaint(path) == f"images[17]: '{path}' is empty (zero bytes)"
    assert complaint(b"") == "images[17]: the bytes object of length 0 is empty (zero bytes)"
    assert complaint({"bytes": b"", "path": "a.jpg"}) == "images[17]: 'a.jpg' is empty (zero bytes)"
    assert complaint(tmp_path) == f"images[17]: '{tmp_path}' is a folder: pass the path of one image"
    assert complaint("a\0b").startswith("images[17]: cannot read 'a\\x00b' (")
    assert complaint("x" * 5000).endswith("(File name too long)")
    assert len(complaint("x" * 5000)) < 250


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jpg"
    os.mkfifo(pipe)
    assert complaint(pipe) == f"images[17]: '{pipe}' is not a regular file"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path, jpeg: bytes) -> None:
    path = written(tmp_path, jpeg)
    path.chmod(0)
    assert complaint(path) == f"images[17]: cannot read '{path}' (permission denied)"


def test_a_file_longer_than_any_image(tmp_path: Path) -> None:
    path = tmp_path / "film.jpg"
    with path.open("wb") as file:
        file.truncate(2**30 + 1)  # sparse: takes no room
    assert complaint(path).endswith("has 1,073,741,825 bytes: too many for one image")


@pytest.mark.parametrize("form", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_truncated_files(tmp_path: Path, form: str, share: float) -> None:
    data = encoded(photograph(), form)
    path = written(tmp_path, data[: int(share * len(data))])
    assert complaint(path) == f"images[17]: cannot decode '{path}' (truncated)"


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_every_kind_of_jpeg_truncated_anywhere(progressive: bool, mode: str) -> None:
    data = encoded(photograph().convert(mode), progressive=progressive)
    InputImage.of(data).check()
    for length in range(2, len(data) - 1, max(1, len(data) // 40)):
        message = complaint(data[:length])
        assert "truncated" in message or "not an image" in message


@pytest.mark.parametrize("form", ["WEBP", *(["AVIF"] if features.check("avif") else [])])
def test_truncated_forms_that_fail_at_once(form: str) -> None:
    data = encoded(photograph(), form)
    assert "truncated" in complaint(data[: len(data) // 2])


def test_damage_is_told_apart() -> None:
    data = bytearray(encoded(photograph(), "PNG"))
    at = data.index(b"IDAT") + 4
    data[at : at + 200] = bytes(200)
    assert complaint(bytes(data)).startswith(
        f"images[17]: cannot decode the bytes object of length {len(data)} (truncated or damaged: "
    )
    assert "its header is truncated" in complaint(b"\xff\xd8\xff\xe0")


@pytest.mark.parametrize("data", [b"<!DOCTYPE html><html>404</html>", b"hello\n", b"version https://git-lfs"])
def test_what_is_not_a_image(tmp_path: Path, data: bytes) -> None:
    path = written(tmp_path, data)
    assert complaint(path) == (
        f"images[17]: '{path}' is not an image that Pillow can read, or its header is truncated"
    )


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_animations(form: str) -> None:
    frames = [photograph(seed=i) for i in range(3)]
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:])
    message = complaint({"bytes": data, "path": "x.gif"})
    assert message == "images[17]: 'x.gif' has more than one frame: save one of them as an image"
    with Image.open(io.BytesIO(data)) as opened:
        assert "has more than one frame: save one of them as an image" in complaint(opened)
        opened.seek(1)
        InputImage.of(opened.copy()).check()


def test_a_photograph_with_a_preview_is_no_animation() -> None:
    data = encoded(photograph(), "MPO", save_all=True, append_images=[photograph(seed=1)])
    image = InputImage.of(data)
    image.check()
    assert image.load().tobytes() == Image.open(io.BytesIO(data)).tobytes()


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1)])
def test_a_side_of_one_pixel(size: tuple[int, int]) -> None:
    end = f"is {size[0]}x{size[1]} pixels: an image needs at least 2 on each side"
    assert complaint(encoded(Image.new("RGB", size), "PNG")).endswith(end)
    assert complaint(Image.new("RGB", size)).endswith(end)
    assert complaint(np.zeros((size[1], size[0], 3), "uint8")).endswith(end)


def test_an_extreme_aspect_ratio() -> None:
    InputImage.of(Image.new("RGB", (400, 2))).check()
    message = complaint(encoded(Image.new("L", (1209, 6)), "PNG"))
    assert message.endswith("is 1209x6 pixels: one side is more than 200 times the other, crop it")


def png_header(width: int, height: int) -> bytes:
    """A small PNG whose header claims any size."""
    import struct
    import zlib

    data = encoded(Image.new("L", (8, 8)), "PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


@pytest.mark.parametrize("side", [9_500, 20_000, 2_000_000])
def test_a_decompression_bomb_is_refused_by_its_header(side: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        message = complaint(png_header(side, side))
    assert "decompression bomb" in message and ". " not in message
    assert str(side * side) in message.replace(",", "")
    assert message.endswith("scale it down, or raise PIL.Image.MAX_IMAGE_PIXELS if you trust the image")


def test_the_limit_is_pillows_own(monkeypatch: pytest.MonkeyPatch, jpeg: bytes) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 96 * 64 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        assert "the limit is 6,143" in complaint(jpeg)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 96 * 64)
    InputImage.of(jpeg).check()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    InputImage.of(jpeg).check()


def test_closed_pil_images(tmp_path: Path, jpeg: bytes) -> None:
    path = written(tmp_path, jpeg)
    with Image.open(path) as image:
        pass
    assert complaint(image) == (
        f"images[17]: the PIL image of '{path}' (RGB, 96x64) is closed: pass its path, or .load() it in time"
    )
    with path.open("rb") as file:
        image = Image.open(file)
    assert "is closed" in complaint(image)
    image = photograph()
    image.close()
    assert "is closed" in complaint(image)


def test_a_truncated_lazy_pil_image(tmp_path: Path, jpeg: bytes) -> None:
    with Image.open(written(tmp_path, jpeg[:900])) as decoded:
        image = InputImage.of(decoded, where="images[2]")
        with pytest.raises(ImageError, match=r"images\[2\]: cannot decode the PIL image.*\(truncated\)"):
            image.check()


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_floats_that_are_no_pixels(kind: str) -> None:
    def of(array: np.ndarray[Any, Any]) -> Any:
        return array if kind == "array" else torch.tensor(array)

    start = f"images[17]: the {kind} of floats has "
    zeros = np.zeros((4, 5, 3), "float32")
    for value, found in ((np.nan, "NaN"), (np.inf, "infinite values"), (-np.inf, "infinite values")):
        broken = zeros.copy()
        broken[1, 2, 0] = value
        assert complaint(of(broken)) == f"{start}{found}: expected values in [0, 1]"
    assert complaint(of(zeros + 200)) == (f"{start}values from 200 to 200: expected [0, 1]; divide by 255")
    assert complaint(of(zeros - 2.125)).endswith("; pass the pixels as they were before normalisation")


@pytest.mark.parametrize(
    ("dtype", "mend"),
    [
        ("bool", "for a mask of black and white pass it as uint8 times 255"),
        ("int64", "if the values are 0 to 255, convert it to uint8"),
        ("uint16", "divide by 65535 to get floats"),
        ("complex64", "convert it"),
    ],
)
def test_other_dtypes(dtype: str, mend: str) -> None:
    array = np.zeros((4, 5, 3), dtype)
    end = f"has dtype {dtype}: expected uint8, or float in [0, 1]; {mend}"
    assert refusal(array) == f"images[17]: the numpy array {end}"
    assert refusal(torch.tensor(array)) == f"images[17]: the tensor {end}"


@pytest.mark.parametrize(
    ("shape", "mend"),
    [
        ((3, 40, 50), "; this looks like channels first: pass array.transpose(1, 2, 0)"),
        ((2, 40, 50, 3), "; this looks like a batch: pass array[0]"),
        ((40, 50, 2), ""),
        ((7,), ""),
    ],
)
def test_array_shapes(shape: tuple[int, ...], mend: str) -> None:
    assert refusal(np.zeros(shape, "uint8")) == (
        f"images[17]: the numpy array has shape {shape}: "
        f"expected (H, W), (H, W, 1), (H, W, 3) or (H, W, 4){mend}"
    )


def test_tensor_shapes() -> None:
    assert "can be read as (C, H, W) and as (H, W, C)" in refusal(torch.zeros(3, 50, 3))
    assert refusal(torch.zeros(2, 3, 5, 5)).endswith("; this looks like a batch: pass tensor[0]")
    assert "has shape (2, 5, 5): expected (3, H, W)" in refusal(torch.zeros(2, 5, 5))
    assert "has no pixels" in refusal(torch.zeros(3, 0, 5))
    assert "has no pixels" in refusal(np.zeros((0, 5, 3), "uint8"))


def test_values_that_are_never_images() -> None:
    accepted = (
        "expected a path (str or PathLike), bytes, a PIL image, a numpy array, a torch tensor or "
        'a datasets dict {"bytes": ..., "path": ...}'
    )
    for value, found in (
        (3, "the number 3"),
        (2.5, "the number 2.5"),
        (True, "the bool True"),
        ([1, 2], "a list of length 2"),
        (object(), "an object"),
        (np.float64(3), "the number 3.0"),
    ):
        with pytest.raises(TypeError) as caught:
            InputImage.of(value, where="images[2]")
        assert str(caught.value) == f"images[2] is {found}: {accepted}"


def test_values_that_lack_a_image() -> None:
    assert refusal(None) == "images[17] is None: every caption needs an image"
    assert refusal("") == "images[17]: the path is empty"
    assert refusal({"path": None, "bytes": None}) == 'images[17]: both "bytes" and "path" are None'
    assert refusal({"image": 1}) == ('images[17]: a dict needs the keys "bytes" and "path", found \'image\'')
    assert refusal({"bytes": "abc"}) == ('images[17]["bytes"] is a str of length 3: expected bytes or None')
    assert refusal({"path": 5}) == 'images[17]["path"] is the number 5: expected a str or None'


@pytest.mark.parametrize("url", ["http://a.b/x.jpg", "https://a.b/x.jpg", "s3://bucket/x.jpg", "hf://x/y"])
def test_urls_are_never_fetched(url: str) -> None:
    end = f"'{url}' is a URL, and images are never fetched; download it first"
    assert refusal(url) == f"images[17]: {end}"
    assert refusal({"bytes": None, "path": url}) == f"images[17]: {end}"


def test_file_urls_get_their_own_mend() -> None:
    assert refusal("file:///a/x.jpg").endswith("; pass the path without file://")


def test_the_name_is_the_path_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, encoded(photograph())[:900])
    monkeypatch.chdir(tmp_path)
    assert complaint("x.jpg") == "images[17]: cannot decode 'x.jpg' (truncated)"
    assert InputImage.of("x.jpg").name == "'x.jpg'"
