"""Pillow's resize from its taps and weights alone, against Pillow itself."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from capeval_core.inputs.decoding import square_pixels
from capeval_core.inputs.resampling import (
    BITS,
    Taps,
    Unresized,
    packed_pixels,
    unpacked_pixels,
    unresized_pixels,
)

METHODS = [Image.Resampling.BICUBIC, Image.Resampling.BILINEAR]
ODD_SIZES = [(2, 2), (2, 200), (200, 2), (24, 24), (24, 60), (60, 24), (23, 24), (300, 299), (3, 5)]
NO_LIMIT = 1 << 40


def drawn(rng: np.random.Generator, size: tuple[int, int], mode: str) -> Image.Image:
    """Noise, or black and white, which the bicubic filter overshoots."""
    pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels if rng.random() < 0.5 else (pixels > 127).astype(np.uint8) * 255).convert(
        mode
    )


def summed(pixels: NDArray[np.uint8], taps: Taps) -> NDArray[np.uint8]:
    """One pass along the first axis."""
    total = np.full((len(taps.starts), *pixels.shape[1:]), 1 << (BITS - 1), dtype=np.int64)
    for tap, weights in enumerate(taps.weights):
        total += weights[:, None, None] * pixels[np.minimum(taps.starts + tap, len(pixels) - 1)]
    assert np.abs(total).max() < 2**31  # so that a kernel may sum in 32 bits
    return np.clip(total >> BITS, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_sums_of_taps_are_pillows_pixels(mode: str, method: Image.Resampling) -> None:
    rng = np.random.default_rng(len(mode) + method)
    sides = np.exp(rng.uniform(np.log(2), np.log(500), (120, 2))).astype(int).tolist()
    for width, height in [*ODD_SIZES, *sides]:
        if max(width, height) > 50 * min(width, height) and (width, height) not in ODD_SIZES:
            continue
        image, size = drawn(rng, (width, height), mode), int(rng.choice([5, 24, 65]))
        part = unresized_pixels(image, size, method, NO_LIMIT)
        assert isinstance(part, Unresized)
        columns, rows = part.taps(size, method)
        wide = summed(part.part.transpose(1, 0, 2), columns)
        found = summed(wide.transpose(1, 0, 2), rows).transpose(2, 0, 1)
        expected = square_pixels(image, size, method)
        assert np.array_equal(np.broadcast_to(found, expected.shape), expected), (width, height, size)


def test_only_what_the_square_needs_is_kept() -> None:
    part = unresized_pixels(Image.new("RGB", (500, 375)), 224, METHODS[0], NO_LIMIT)
    assert isinstance(part, Unresized)
    assert part.part.shape == (375, 380, 3) and part.size == (500, 375)


@pytest.mark.parametrize("mode", ["RGBA", "P", "CMYK", "I", "1", "LA"])
def test_other_modes_are_resized_at_once(mode: str) -> None:
    image = drawn(np.random.default_rng(0), (40, 30), "RGB").convert("L").convert(mode)
    found = unresized_pixels(image, 24, METHODS[0], NO_LIMIT)
    assert np.array_equal(found, square_pixels(image, 24, METHODS[0]))  # type: ignore[arg-type]


def test_large_images_are_resized_at_once() -> None:
    image = Image.new("RGB", (30, 30))
    assert isinstance(unresized_pixels(image, 24, METHODS[0], 2700), Unresized)
    assert not isinstance(unresized_pixels(image, 24, METHODS[0], 2699), Unresized)


def test_pixels_pass_through_a_pipe() -> None:
    image = drawn(np.random.default_rng(0), (40, 30), "L")
    for most in (0, NO_LIMIT):
        pixels = unresized_pixels(image, 24, METHODS[0], most)
        found = unpacked_pixels(bytearray(packed_pixels(pixels)))
        if isinstance(pixels, Unresized):
            assert isinstance(found, Unresized) and found.size == pixels.size
            pixels, found = pixels.part, found.part
        assert np.array_equal(found, pixels)  # type: ignore[arg-type]
