"""CLIP's towers as they run on CUDA, on the CPU: packed rows, sums inside products, kernels interpreted."""

from __future__ import annotations

import copy
import importlib
import random

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from capeval_core.cache import FeatureCache
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.cuda_blocks import PYTORCH, Causal, Kernels, usable_kernels
from capeval_core.models.batching import BatchSize, count_forwards
from capeval_core.models.device import triton_version
from tests.encoders.test_clip import WORDS
from tests.support.interpreter import like_a_gpu
from tests.support.seeded import encoder

Floats = NDArray[np.float32]
NOTHING = FeatureCache(0)
WITH_TRITON = pytest.mark.skipif(triton_version() is None, reason="triton is not installed")
CASES = pytest.mark.parametrize("case", ["pacs-vit-tiny", "pacs-openclip-tiny"])
WAYS = pytest.mark.parametrize(
    "kernels", [pytest.param(PYTORCH, id="pytorch"), pytest.param(Kernels(), id="triton", marks=WITH_TRITON)]
)


def on_cuda_path(case: str, kernels: Kernels, dtype: str = "float32") -> ClipEncoder:
    clip = copy.copy(encoder(case, dtype))
    clip.kernels = kernels
    return clip


def texts(prompt: str, count: int = 10) -> list[str]:
    rng = random.Random(0)
    return [prompt + " ".join(rng.choices(WORDS, k=rng.randrange(60))) for _ in range(count)]


def off(found: Floats | Tensor, expected: Floats | Tensor) -> float:
    """Largest distance of two rows, relative to their length."""
    a, b = (torch.as_tensor(np.asarray(t)).double() for t in (found, expected))
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1)).max())


@pytest.mark.parametrize(
    ("case", "prompt"), [("pacs-vit-tiny", ""), ("pacs-openclip-tiny", "A photo depicts ")]
)
@WAYS
def test_packed_texts_are_those_of_one_length_per_batch(case: str, kernels: Kernels, prompt: str) -> None:
    usual, ours, captions = encoder(case), on_cuda_path(case, kernels), texts(prompt, 3)
    found, expected = (clip.encode_texts(captions, cache=NOTHING).features for clip in (ours, usual))
    assert off(found, expected) <= 1e-6
    of_tokens, usual_tokens = (clip.encode_tokens(captions, cache=NOTHING) for clip in (ours, usual))
    for rows, others in zip(of_tokens.features, usual_tokens.features, strict=True):
        assert off(rows, others) <= 2e-6
    assert [len(rows) for rows in of_tokens.features] == [len(ids) for ids in usual_tokens.ids]


@CASES
@WAYS
def test_images_are_those_of_open_clips_steps(case: str, kernels: Kernels) -> None:
    usual, ours = encoder(case), on_cuda_path(case, kernels)
    size = usual.preprocessing.image_size
    pixels = list(np.random.default_rng(0).integers(0, 256, (3, 3, size, size), np.uint8))
    assert off(ours._image_forward(pixels), usual._image_forward(pixels)) <= 1e-6


@WAYS
@pytest.mark.parametrize("bias", [True, False])
def test_blip2s_images_are_those_of_transformers_steps(kernels: Kernels, bias: bool) -> None:
    usual = Blip2Encoder.from_pretrained("tiny", device="cpu")
    size = usual.config["preprocessing"]["image_size"]
    pixels = list(np.random.default_rng(0).integers(0, 256, (3, 3, size, size), np.uint8))
    for layer in usual.model.vision_model.encoder.layers:
        if not bias:
            layer.self_attn.qkv.bias = None
    with torch.inference_mode():
        expected, ours = usual.states(pixels), copy.copy(usual)
        assert usual.kernels is None
        ours.kernels = kernels
        assert off(ours.states(pixels).flatten(0, 1), expected.flatten(0, 1)) <= 1e-6
        usual.model.vision_model.config.hidden_act = "gelu_new"  # which only transformers' steps have
        assert torch.equal(ours.states(pixels), usual.states(pixels))


@WITH_TRITON
@pytest.mark.parametrize(("dtype", "most"), [("float16", 5e-3), ("bfloat16", 4e-2)])
def test_kernels_in_16_bits_are_as_near_to_float32_as_pytorch(dtype: str, most: float) -> None:
    full, captions = encoder("pacs-vit-tiny"), texts("A photo depicts ", 3)
    size = full.preprocessing.image_size
    pixels = list(np.random.default_rng(0).integers(0, 256, (2, 3, size, size), np.uint8))
    found = []
    with like_a_gpu():
        for clip in (full, *(on_cuda_path("pacs-vit-tiny", way, dtype) for way in (PYTORCH, Kernels()))):
            of_texts = clip.encode_texts(captions, cache=NOTHING).features
            found.append((of_texts, clip._image_forward(pixels)))
    for expected, *low in zip(*found, strict=True):
        plain, ours = (off(features, expected) for features in low)
        assert ours <= 1.5 * plain <= most


def test_a_text_does_not_depend_on_the_others_of_its_batch() -> None:
    clip, captions = on_cuda_path("pacs-vit-tiny", PYTORCH), texts("A photo depicts ")
    together = clip.encode_texts(captions, cache=NOTHING).features
    alone = np.concatenate([clip.encode_texts([text], cache=NOTHING).features for text in captions])
    in_twos = clip.encode_texts(captions, cache=NOTHING, batch_size=2).features
    assert off(together, alone) <= 1e-6
    assert off(in_twos, alone) <= 1e-6


def test_texts_of_all_lengths_share_a_forward_as_far_as_tokens_go() -> None:
    clip, captions = on_cuda_path("pacs-vit-tiny", PYTORCH), texts("")
    with count_forwards() as count:
        clip.encode_texts(captions, cache=NOTHING)
    assert (count.items, count.batches) == (10, 1)
    lengths = sorted(len(ids) for ids in clip.encode_tokens(captions, cache=NOTHING).ids)
    clip._automatic_texts = BatchSize(sum(lengths) - lengths[-1], automatic=True)
    with count_forwards() as count:
        clip.encode_texts(captions, cache=NOTHING)
    assert (count.items, count.batches) == (10, 2)


def test_batches_of_different_costs_are_halved_when_memory_runs_out() -> None:
    sizes: list[int] = []

    def forward(items: list[int]) -> int:
        sizes.append(sum(items))
        if sum(items) > 6:
            raise torch.OutOfMemoryError
        return sum(items)

    items = [1, 2, 3, 4, 5]
    parts = list(BatchSize(10, automatic=True).run(items, forward, cost=items))
    assert sizes == [10, 3, 3, 4, 5]
    assert [items[part] for part, _ in parts] == [[1, 2], [3], [4], [5]]


@WITH_TRITON
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("prefix", [0, 5])
def test_attention_of_short_sequences(prefix: int, last: bool) -> None:
    from capeval_core.encoders import cuda_kernels

    lengths, heads, width = [1, 2, 16, 17, 33], 2, 40
    rows = prefix + sum(lengths)
    draw = torch.Generator().manual_seed(0)
    query, keys, values = torch.randn(rows, 3 * width, generator=draw).chunk(3, dim=1)
    query[:, 20:] *= 40  # so that a weight would overflow without the highest score of both parts,
    keys[:prefix, 20:] *= 10  # of which the prefix has the higher one
    like = torch.empty(0, dtype=torch.float16)
    layout = Causal(lengths, prefix, heads, Kernels(), like)
    asked = query[layout.ends] if last else query
    found = cuda_kernels.causal_attention(
        asked, keys, values, heads, layout.firsts, layout.sizes, layout.runs, prefix, last
    )
    row = prefix
    for i, length in enumerate(lengths):
        own = torch.cat([torch.arange(prefix), torch.arange(row, row + length)])
        q, k, v = (t[own].view(1, -1, heads, 20).transpose(1, 2) for t in (query, keys, values))
        expected = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        expected = expected.transpose(1, 2).reshape(-1, width)[prefix:]
        ours, theirs = (found[i : i + 1], expected[-1:]) if last else (found[row : row + length], expected)
        assert torch.allclose(ours, theirs, atol=1e-4)
        row += length


@WITH_TRITON
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_kernels_are_tried_before_they_are_used(dtype: torch.dtype) -> None:
    with like_a_gpu():
        assert usable_kernels.__wrapped__(torch.device("cpu"), dtype) == Kernels()


@WITH_TRITON
@pytest.mark.parametrize(
    ("kernel", "use"),
    [
        ("cuda_kernels.norm", "norm"),
        ("cuda_kernels.add_norm", "norm of a sum"),
        ("cuda_kernels.embed", "embedding"),
        ("cuda_kernels.activate", "activation"),
        ("cuda_kernels.patches", "patches"),
        ("cuda_kernels.causal_attention", "attention"),
    ],
)
def test_one_kernel_that_is_wrong_takes_all_away(
    kernel: str, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, name = kernel.split(".")
    module = importlib.import_module(f"capeval_core.encoders.{room}")
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: right(*given) * 1.1)
    with pytest.warns(
        UserWarning, match=rf"kernels cannot be used on cpu in torch.float16.*\({use} is off by"
    ):
        assert usable_kernels.__wrapped__(torch.device("cpu"), torch.float16) == PYTORCH


@WITH_TRITON
@pytest.mark.parametrize(
    ("error", "raised"), [(RuntimeError("a\nb"), False), (torch.OutOfMemoryError(), True)]
)
def test_kernels_that_do_not_run_are_not_used_but_memory_may_come_back(
    error: Exception, raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capeval_core.encoders import cuda_kernels

    def fail(*_: object) -> Tensor:
        raise error

    monkeypatch.setattr(cuda_kernels, "norm", fail)
    with (
        pytest.raises(torch.OutOfMemoryError)
        if raised
        else pytest.warns(UserWarning, match="RuntimeError: a")
    ):
        assert usable_kernels.__wrapped__(torch.device("cpu"), torch.float32) == PYTORCH


@pytest.mark.parametrize(("longest", "ours"), [(128, True), (129, False)])
def test_sequences_too_long_for_a_tile_are_pytorchs(longest: int, ours: bool) -> None:
    if ours and triton_version() is None:
        pytest.skip("triton is not installed")
    assert Causal([3, longest], 0, 2, Kernels(), torch.empty(0).half()).ours == ours
