"""The formulas of operations, by which shares of the peak are stated, are what PyTorch counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.blip2 import config_of
from benchmarks.cuda.flops import alpha_clip_flops, blip2_flops
from benchmarks.cuda.hice import SMALL, alpha_config
from benchmarks.cuda.measuring import Gpu
from benchmarks.cuda.seeded import drawn, encoder_of
from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.inputs.visual import InputImage

CPU = Gpu("cpu", small=True)
VISION = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
QFORMER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}


def counted(run: Any) -> int:
    # PyTorch counts attention by its products, which the kernel for the CPU does not show.
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        FlopCounterMode(display=False) as count,
    ):
        run()
    return int(count.get_total_flops())


def images(count: int) -> list[InputImage]:
    random = np.random.default_rng(0)
    return [InputImage.of(random.integers(0, 256, (50, 60, 3), dtype=np.uint8)) for _ in range(count)]


def test_alpha_clip_runs_as_many_operations_as_its_formula_says() -> None:
    config = alpha_config(SMALL)
    encoder = encoder_of(CPU, AlphaClipEncoder, config, drawn(CPU, AlphaClipEncoder.empty(config)), "float32")
    masks = np.random.default_rng(1).random((3, 50, 60)) < 0.5

    def run() -> None:
        assert len(list(encoder.encode_regions(images(2), [masks] * 2, cache=FeatureCache(0)))) == 2

    assert counted(run) == alpha_clip_flops(SMALL, images=2, rows=8)


@pytest.mark.parametrize("captions", [["word1 word2", "word3 word4", "word5 word1"], []])
def test_blip2_runs_as_many_operations_as_its_formula_says(captions: list[str]) -> None:
    config = config_of({**VISION, "image_size": 28, "patch_size": 14})
    config["architecture"]["qformer"] |= QFORMER
    encoder = encoder_of(CPU, Blip2Encoder, config, drawn(CPU, Blip2Encoder.empty(config)), "float32")
    texts = captions or ["word1"]
    cache = FeatureCache()
    encoder.encode_texts(texts, cache=cache)  # once for all images, and not counted

    def run() -> None:
        if captions:
            assert len(list(encoder.match(images(2), [captions] * 2, cache=cache))) == 2
        else:
            assert len(list(encoder.encode_images(images(2), cache=cache))) > 0

    lengths = [len(ids) for ids in encoder.tokenizer.encode(captions).ids]
    assert counted(run) == 2 * blip2_flops(config["architecture"], lengths)
