"""A JPEG is checked without its scan, and the verdict is that of decoding it whole."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capeval_core.inputs import decoding
from capeval_core.inputs.decoding import Refused, decode, refuse_crowded, without_scan

_WAYS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "grey": {"mode": "L"},
    "restarts": {"restart_marker_blocks": 2},
    "optimised": {"optimize": True, "subsampling": 0},
    "progressive": {"progressive": True},
    "cmyk": {"mode": "CMYK"},
}


def jpeg(rng: np.random.Generator, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    pixels = rng.integers(0, 256, (45, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(file, "JPEG", quality=85, **options)
    return file.getvalue()


def damaged(data: bytes, rng: np.random.Generator, way: int) -> bytes:
    start, most = int(rng.integers(2, len(data))), len(data)
    if way == 0:  # flipped bits
        changed = bytearray(data)
        for place in rng.integers(start, most, 4):
            changed[place] ^= 1 << int(rng.integers(8))
        return bytes(changed)
    if way == 1:  # cut off
        return data[:start]
    if way == 2:  # a marker of any kind where none belongs
        return data[:start] + bytes([0xFF, int(rng.integers(1, 256)), 0, 4, 1, 2]) + data[start:]
    if way == 3:  # a hole
        return data[:start] + data[start + int(rng.integers(1, 200)) :]
    return data[:start] + rng.bytes(20) + data[start + 20 :]


def fails(data: bytes, reduced: bool) -> bool:
    try:
        decode(data, "it", reduced)
    except Refused:
        return True
    return False


@pytest.mark.parametrize("kind", _WAYS)
def test_the_verdict_is_that_of_decoding_it_whole(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    verdicts: Counter[tuple[bool, bool]] = Counter()
    for round in range(250):
        data = damaged(jpeg(rng, **_WAYS[kind]), rng, round % 5)
        short = data.startswith(b"\xff\xd8") and without_scan(data, refuse_crowded(data, "it")) is not None
        verdict = fails(data, reduced=True)
        assert verdict == fails(data, reduced=False)
        verdicts[short, verdict] += 1
    assert verdicts[False, True] > 20  # what was cut off
    assert (verdicts[True, False] > 20) == (kind != "progressive"), verdicts


def test_what_is_left_out_is_the_scan() -> None:
    data = jpeg(np.random.default_rng(0))
    short = without_scan(data, refuse_crowded(data, "it"))
    assert short is not None and len(short) < 700 < 2500 < len(data) and data.startswith(short[:-2])
    with_film = data + b"\x00\x00ftypmp42" + data
    assert without_scan(with_film, refuse_crowded(with_film, "it")) == short


@pytest.mark.parametrize(
    "markers, left_out",
    [
        ([0xC0, 0xDA, 0xD9], True),
        ([0xC1, 0xDA, 0xD9], True),
        ([0xC2, 0xDA, 0xD9], False),  # progressive
        ([0xC9, 0xDA, 0xD9], False),  # arithmetic
        ([0xC0, 0xC2, 0xDA, 0xD9], False),
        ([0xC0, 0xDA, 0xDA, 0xD9], False),
        ([0xC0, 0xDA, 0xC4, 0xD9], False),  # libjpeg fails by what is written behind a scan, too
        ([0xC0, 0xDA], False),
    ],
)
def test_only_the_one_scan_of_a_sequential_image_is_left_out(markers: list[int], left_out: bool) -> None:
    ends = [(marker, 4 * place) for place, marker in enumerate(markers, 1)]
    assert (without_scan(bytes(40), ends) is not None) == left_out


def test_further_images_in_the_file_are_not_left_out() -> None:
    rng, file = np.random.default_rng(0), io.BytesIO()
    frames = [Image.fromarray(rng.integers(0, 256, (45, 60, 3), dtype=np.uint8)) for _ in range(2)]
    frames[0].save(file, "MPO", save_all=True, append_images=frames[1:])
    data = file.getvalue()
    assert without_scan(data, refuse_crowded(data, "it")) is None and not fails(data, reduced=True)


def test_markers_end_where_libjpeg_ends_them() -> None:
    """Fill bytes before a marker, restart markers within the scan, bytes behind the image."""
    data = b"\xff\xd8\xff\xff\xe0\x00\x04ab\xff\xda\x00\x02\x11\xff\x00\xff\xd0\x22\xff\xff\xd9\xff\xda"
    assert list(decoding._jpeg_markers(data)) == [(0xE0, 9), (0xDA, 13), (0xD9, 22)]
