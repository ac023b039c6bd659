"""Pixels against torchvision's own steps, as the original CLIP code chains them; ids against open_clip's."""

from __future__ import annotations

from functools import cache

import numpy as np
import PIL
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor

from tests.support import seams
from tests.support.networks import opened
from tests.support.seeded import encoder

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


@cache
def chain() -> Compose:
    """What CLIP's own code does between a decoded file and the tensor."""
    settings = encoder().config["preprocessing"]
    size = settings["image_size"]
    return Compose(
        [
            Resize(size, interpolation=InterpolationMode.BICUBIC),
            CenterCrop(size),
            lambda image: image.convert("RGB"),
            ToTensor(),
            Normalize(settings["mean"], settings["std"]),
        ]
    )


@pytest.mark.skipif(
    int(PIL.__version__.split(".")[0]) >= 13, reason="this Pillow resizes otherwise than CLIP's did"
)
@given(st.sampled_from(MODES), st.integers(1, 150), st.integers(1, 150), st.integers(0, 99))
@example("RGB", 1, 1, 0)
@example("RGB", 1, 150, 0)
@example("L", 150, 1, 0)
@example("P", 64, 64, 0)
@example("LA", 64, 90, 0)
@example("RGB", 65, 64, 0)
@example("RGB", 64, 67, 0)
@settings(max_examples=100)
def test_pixels_are_torchvisions(mode: str, width: int, height: int, seed: int) -> None:
    image = drawn(mode, width, height, seed)
    before = image.tobytes()
    found = encoder().preprocess(image)
    assert found.dtype == np.float32 and torch.from_numpy(found).allclose(chain()(image), atol=1e-6)
    assert image.tobytes() == before


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["clip", "blip2"])
def test_pixels_are_normalised_in_float32(kind: str, dtype: str) -> None:
    """Subtracting the mean in 16 bits would round twice: only what the tower takes is rounded."""
    image, narrow, seen = drawn("RGB", 80, 60, 6), opened(kind, dtype), list[torch.Tensor]()
    convolution = next(
        part for part in narrow.model.modules() if isinstance(part, torch.nn.Conv2d) and part.in_channels == 3
    )
    hook = convolution.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    list(seams.encode(narrow, [image], [["a dog"]] if kind == "blip2" else None))
    hook.remove()
    expected = torch.from_numpy(opened(kind).preprocess(image)).to(seen[0].dtype)
    assert str(seen[0].dtype) == f"torch.{dtype}" and torch.equal(seen[0][0], expected)


# ---- ids

START, END = 49406, 49407


def ids(text: str) -> list[int]:
    return list(encoder().tokenizer.encode([text]).ids[0])


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("schÃ¶n", "schön"),  # mojibake
        ("salt &amp;amp; pepper", "salt & pepper"),  # escaped twice
        ("1 < 2 &amp;amp; 3", "1 < 2 & 3"),
        ("ﬁne “quoted”", 'fine "quoted"'),
        ("DON'T", "don't"),
        ("a\u00a0ｆｕｌｌ", "a full"),
    ],
)
def test_texts_are_repaired(text: str, same_as: str) -> None:
    assert ids(text) == ids(same_as)
