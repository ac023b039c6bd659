"""Pixels against torchvision's own steps, as the original CLIP code chains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.preprocessing import CLIP_MEAN, CLIP_STD, Preprocessing
from capeval_core.inputs.visual import InputImage
from tests.support.seeded import encoder

TINY = Path(capeval_core.__file__).parent / "weights" / "tiny"

MODES = ["RGB", "L", "RGBA", "LA", "P", "1", "CMYK", "YCbCr", "HSV", "I", "F", "I;16", "PA", "RGBX"]


def drawn(mode: str, width: int, height: int, seed: int) -> Image.Image:
    """Noise of a mode; palettes, also with transparency, are made by Pillow's own quantiser."""
    rng = np.random.default_rng(seed)
    noise = Image.fromarray(rng.integers(0, 256, (height, width, 4), dtype=np.uint8), "RGBA")
    if mode in ("P", "PA"):
        palette = noise.quantize(16)
        return palette if mode == "P" else palette.convert("PA")
    if mode in ("I", "F", "I;16"):
        wide = rng.integers(0, 60_000, (height, width))
        kind = {"I": np.int32, "F": np.float32, "I;16": np.uint16}[mode]
        return Image.fromarray(wide.astype(kind))
    return noise.convert("RGB").convert(mode) if mode not in ("RGBA", "LA") else noise.convert(mode)


def chain(size: int) -> Compose:
    """What CLIP's own code does between a decoded file and the tensor, without its last step."""
    return Compose(
        [Resize(size, interpolation=InterpolationMode.BICUBIC), CenterCrop(size), lambda x: x.convert("RGB")]
    )


@pytest.mark.skipif(
    int(PIL.__version__.split(".")[0]) >= 13,
    reason="this Pillow resizes otherwise than CLIP's did",
)
@given(
    mode=st.sampled_from(MODES),
    width=st.integers(1, 150),
    height=st.integers(1, 150),
    size=st.sampled_from([7, 32, 64]),
    seed=st.integers(0, 99),
)
@example(mode="RGB", width=1, height=1, size=32, seed=0)
@example(mode="RGB", width=1, height=150, size=32, seed=0)
@example(mode="L", width=150, height=1, size=32, seed=0)
@example(mode="P", width=64, height=64, size=64, seed=0)
@example(mode="RGBA", width=7, height=7, size=7, seed=0)
@example(mode="LA", width=32, height=90, size=32, seed=0)
@example(mode="RGB", width=65, height=64, size=64, seed=0)
@example(mode="RGB", width=64, height=67, size=64, seed=0)
@settings(max_examples=150)
def test_pixels_are_torchvisions(mode: str, width: int, height: int, size: int, seed: int) -> None:
    image = drawn(mode, width, height, seed)
    expected = np.asarray(chain(size)(image)).transpose(2, 0, 1)
    before = image.tobytes()
    found = Preprocessing(size).pixels(image)
    assert found.dtype == np.uint8 and found.shape == (3, size, size) and found.flags.c_contiguous
    assert np.array_equal(found, expected)
    assert image.tobytes() == before


@pytest.mark.parametrize("mode", MODES)
def test_what_the_tower_sees_is_torchvisions(mode: str) -> None:
    image = drawn(mode, 91, 77, 5)
    expected = Compose([chain(64), ToTensor(), Normalize(CLIP_MEAN, CLIP_STD)])(image)
    found = encoder().preprocess(image)
    assert found.dtype == np.float32
    assert torch.from_numpy(found).allclose(expected, atol=1e-6)


def opened(network: str, dtype: str) -> Any:
    if network == "clip":
        return encoder(dtype=dtype)
    if network == "alpha_clip":
        return AlphaClipEncoder.from_pretrained(TINY / "hices", device="cpu", dtype=dtype)
    return Blip2Encoder.from_pretrained(TINY / "blip2", device="cpu", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("network", ["clip", "alpha_clip", "blip2"])
def test_pixels_are_normalised_in_float32(network: str, dtype: torch.dtype) -> None:
    """Subtracting the mean in 16 bits would round twice: only what the tower takes is rounded."""
    image = drawn("RGB", 91, 77, 6)
    wide, narrow = (opened(network, name) for name in ("float32", str(dtype).removeprefix("torch.")))
    seen: list[torch.Tensor] = []
    convolution = next(
        part for part in narrow.model.modules() if isinstance(part, torch.nn.Conv2d) and part.in_channels == 3
    )
    hook = convolution.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    shown = [InputImage.of(image)]
    if network == "alpha_clip":
        list(narrow.encode_regions(shown, [np.ones((1, 77, 91), dtype=np.bool_)], cache=FeatureCache(0)))
    else:
        list(narrow.encode_images(shown, cache=FeatureCache(0)))
    hook.remove()
    (first, *_) = seen
    assert first.dtype == dtype
    assert torch.equal(first[0], torch.from_numpy(wide.preprocess(image)).to(dtype))


def test_a_photograph_is_not_turned_upright() -> None:
    image = drawn("RGB", 90, 60, 1)
    image.getexif()[0x0112] = 6
    turned = image.copy()
    turned.info.clear()
    assert np.array_equal(Preprocessing(32).pixels(image), Preprocessing(32).pixels(turned))


def test_another_interpolation_is_refused() -> None:
    with pytest.raises(ValueError, match="bilinear"):
        Preprocessing(64, interpolation="lanczos")
