"""UNITER and ViLBERT on CUDA: operations that the measurements count, and what crosses to the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cuda.flops import uniter_flops, vilbert_flops
from capeval_core.cache import FeatureCache
from capeval_core.inputs.boxes import InputBoxes
from tests.cuda.fake import fake_cuda
from tests.cuda.networks import on
from tests.support.seeded import made_up_boxes, uniter, vilbert

TEXTS, BOXES = [(2, 5, 6, 3), (2, 7, 8, 3)], 9
"""Of one length, since padding would be counted."""


def counted(run: Any) -> float:
    with torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())


def test_operations_of_uniter_are_those_that_torch_counts() -> None:
    encoder = uniter()
    prepared = [encoder.prepare_visual(InputBoxes.of(made_up_boxes(BOXES, seed=i)).load()) for i in (0, 1)]

    def run() -> None:
        states = encoder.states(prepared)
        encoder.model.ranking_logits([states[0], states[1], states[1]], [*TEXTS, TEXTS[0]])

    expected = uniter_flops(encoder.config["architecture"], [BOXES] * 2, [4 + BOXES] * 3)
    assert counted(run) == expected


def test_operations_of_vilbert_are_those_that_torch_counts() -> None:
    encoder = vilbert()
    prepared = [encoder.prepare_visual(InputBoxes.of(made_up_boxes(BOXES, seed=i)).load()) for i in (0, 1)]
    pairs = [(0, 0), (1, 0), (0, 1), (1, 1)]

    def run() -> None:
        lower = encoder.model.lower_texts(TEXTS, 7)
        encoder.model.text_states(lower, encoder.region_states(prepared), pairs, 1)

    expected = vilbert_flops(encoder.config["architecture"], [5, 5], [BOXES + 1] * 2, pairs)
    assert counted(run) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is no stand-in")
@pytest.mark.filterwarnings("ignore:Triton kernels cannot be used")
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_features_cross_to_the_host_once_and_stay_where_they_were_made() -> None:
    cache, texts = FeatureCache(), [["a dog", "a red dog"], ["a dog", "two cats"]]
    boxes = [InputBoxes.of(made_up_boxes(5 + i, seed=i)) for i in (0, 1)]
    with fake_cuda() as gpu:
        encoder: Any = on("vilbert", "cuda")
        gpu.clear()
        found = list(encoder.token_features(boxes, texts, cache=cache))
        to_host = [each for each in gpu.transfers if each.direction == "to host"]
        features = [array for image in found for array in image.features]
        assert [each.bytes for each in to_host] == [sum(array.nbytes for array in features)]
        for image in found:
            for array, rows in zip(image.features, image.on_device, strict=True):
                assert rows.device.type == "cuda" and np.array_equal(rows.cpu().numpy(), array)
        gpu.clear()
        again = list(encoder.token_features(boxes, texts, cache=cache))
        assert not gpu.transfers and all(rows is None for image in again for rows in image.on_device)
