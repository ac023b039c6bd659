"""Attention within packed sequences; the kernels of CUDA, interpreted, beside PyTorch's steps."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

from capeval_core.cache import FeatureCache
from capeval_core.testing import count_forwards
from tests.support import seams
from tests.support.interpreter import like_a_gpu
from tests.support.networks import MASKS, arrays, distance, opened
from tests.support.seeded import encoder

LENGTHS = [2, 3, 3, 9, 10, 40]
OTHERS = [2, 5, 4, 12, 10, 41]
"""At least as long, each."""
HEADS, WIDTH = 2, 16
KERNELS = ["pytorch", pytest.param("triton", marks=seams.needs_triton)]
CASES = pytest.mark.parametrize("case", ["pacs-vit-tiny", "pacs-openclip-tiny"])
EVERY_WAY = pytest.mark.parametrize("kernels", KERNELS)
WORDS = ["a", "dog", "street", "running", "red", "hippopotamus", "café", "😺", "isn't", "1234"]


def rows(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, HEADS * WIDTH, generator=generator, dtype=torch.float64)


def one_by_one(
    query: Tensor, keys: Tensor, values: Tensor, own: Sequence[int], other: Sequence[int], causal: bool
) -> Tensor:
    """Attention a sequence at a time: a causal row sees those up to its place from the end."""
    attended, start, first = [], 0, 0
    for length, longer in zip(own, other, strict=True):
        ranges = ((query, start, length), (keys, first, longer), (values, first, longer))
        q, k, v = (part[at : at + n].view(n, HEADS, WIDTH).transpose(0, 1) for part, at, n in ranges)
        mask = torch.ones(length, longer, dtype=torch.bool).tril(longer - length) if causal else None
        attended.append(scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(0, 1).flatten(1))
        start, first = start + length, first + longer
    return torch.cat(attended)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("firsts", [False, True])
def test_attention_of_packed_sequences_is_that_of_each_alone(firsts: bool, causal: bool) -> None:
    own = [1] * len(LENGTHS) if firsts else LENGTHS
    query, keys, values = rows(sum(own), 0), rows(sum(OTHERS), 1), rows(sum(OTHERS), 2)
    with torch.inference_mode():
        found = seams.attend(query, keys, values, HEADS, LENGTHS, OTHERS, causal=causal, firsts=firsts)
    assert torch.allclose(found, one_by_one(query, keys, values, own, OTHERS, causal), atol=1e-12)


def test_attention_drops_weights_out() -> None:
    """With values of one, attention gives one: dropped weights take from it, the others are scaled up."""
    query, keys = rows(sum(LENGTHS), 0), rows(sum(LENGTHS), 1)
    torch.manual_seed(0)
    ones = torch.ones_like(keys)
    drawn = [seams.attend(query, keys, ones, HEADS, LENGTHS, LENGTHS, dropout=0.5) for _ in range(200)]
    assert (drawn[0] != drawn[1]).any()
    assert torch.stack(drawn).mean() == pytest.approx(1, abs=0.02)


# ---- CLIP's towers by the steps of CUDA


def texts(prompt: str, count: int = 10) -> list[str]:
    chance = random.Random(0)
    return [prompt + " ".join(chance.choices(WORDS, k=chance.randrange(60))) for _ in range(count)]


def features(clip: Any, captions: list[str], **more: Any) -> NDArray[np.float32]:
    return np.asarray(clip.encode_texts(captions, cache=FeatureCache(0), **more).features)


def noise(count: int) -> list[Any]:
    return list(np.random.default_rng(0).integers(0, 256, (count, 40, 56, 3), np.uint8))


def of_images(clip: Any, **more: Any) -> NDArray[np.float32]:
    return np.stack([each["features"] for each in seams.encode(clip, noise(3), **more)])


def off(found: Any, expected: Any) -> float:
    """Largest distance of two rows, relative to their length."""
    a, b = (np.asarray(rows, dtype=np.float64) for rows in (found, expected))
    return float((np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)).max())


@CASES
@EVERY_WAY
def test_towers_are_those_of_the_cpus_steps(case: str, kernels: str) -> None:
    usual, ours = encoder(case), seams.with_kernels(encoder(case), kernels)
    for captions in (texts("", 3), texts("A photo depicts ", 3)):
        assert off(features(ours, captions), features(usual, captions)) <= 1e-6
        found, expected = (clip.encode_tokens(captions, cache=FeatureCache(0)) for clip in (ours, usual))
        for rows, others in zip(found.features, expected.features, strict=True):
            assert off(rows, others) <= 2e-6
    assert off(of_images(ours), of_images(usual)) <= 1e-6


@EVERY_WAY
def test_regions_are_those_of_the_cpus_steps(kernels: str) -> None:
    usual = opened("alpha_clip")
    masks = [MASKS[:, :40, :56], MASKS[:1, :40, :56], MASKS[1:2, :40, :56]]
    found, expected = (
        list(seams.encode(each, noise(3), regions=masks))
        for each in (seams.with_kernels(usual, kernels), usual)
    )
    for one, other in zip(found, expected, strict=True):
        assert distance(arrays(one), arrays(other)) <= 2e-5


@seams.needs_triton
@pytest.mark.parametrize(("dtype", "most"), [("float16", 5e-3), ("bfloat16", 4e-2)])
def test_kernels_in_16_bits_are_as_near_to_float32_as_pytorch(dtype: str, most: float) -> None:
    wide, captions, found = encoder(), texts("A photo depicts ", 3), []
    narrow = encoder(dtype=dtype)
    with like_a_gpu():
        for clip in (wide, *(seams.with_kernels(narrow, way) for way in ("pytorch", "triton"))):
            found.append((features(clip, captions), of_images(clip)))
    for expected, plain, ours in zip(*found, strict=True):
        assert off(ours, expected) <= 1.5 * off(plain, expected) <= most


def test_texts_of_all_lengths_share_a_forward_and_do_not_depend_on_each_other() -> None:
    clip, captions = seams.with_kernels(encoder(), "pytorch"), texts("")
    with count_forwards() as count:
        together = features(clip, captions)
    assert (count.items, count.batches) == (10, 1)
    alone = np.concatenate([features(clip, [text]) for text in captions])
    assert off(together, alone) <= 1e-6 and off(features(clip, captions, batch_size=2), alone) <= 1e-6


@seams.needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_kernels_are_tried_before_they_are_used(dtype: torch.dtype) -> None:
    with like_a_gpu():
        assert seams.usable_kernels(dtype) == "triton"


@seams.needs_triton
@pytest.mark.parametrize(
    ("kernel", "use"),
    [("norm", "norm"), ("activate", "activation"),
     ("patches", "patches"), ("causal_attention", "attention")],
)  # fmt: skip
def test_one_kernel_that_is_wrong_takes_all_away(kernel: str, use: str) -> None:
    with pytest.warns(UserWarning, match=rf"kernels cannot be used on cpu in torch.float16.*\({use} is off"):
        assert seams.usable_kernels(torch.float16, broken=kernel) == "pytorch"


@seams.needs_triton
@pytest.mark.parametrize("width", [40, 768])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_and_activations_are_those_of_plain_torch(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, before = (torch.randn(37, width, generator=generator).to(dtype) for _ in range(2))
    weight, bias = ((torch.randn(width, generator=generator) + 1).to(dtype) for _ in range(2))
    wide = x.double(), before.double(), weight.double(), bias.double()
    bound = {"rtol": 2**-7 if dtype == torch.bfloat16 else 1e-6, "atol": 1e-6}
    found = seams.kernel("norm")(x, before, weight, bias, 1e-12)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), layer_norm(wide[0] + wide[1], (width,), *wide[2:], 1e-12), **bound)
    active = seams.kernel("activate")(x.clone(), False)
    assert torch.allclose(active.double(), gelu(x.double()), **bound)
