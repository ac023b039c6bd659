"""Networks on CUDA: all they compute with is there, and values are the CPU's; what a program has set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from capeval_core import load
from capeval_core.cache import FeatureCache
from capeval_core.integrations import reward
from tests.cuda.fake import fake_cuda
from tests.support.networks import KINDS, distance, folder, items, on, run, together
from tests.support.seams import network

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
WITHOUT = pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for a GPU, and here is one")
EVERY = pytest.mark.parametrize("kind", KINDS)
DEVICES, NARROW = 1e-5, {"bfloat16": 0.06, "float16": 0.01}
"""Differences relative to the largest value: of two devices, and of a narrow type from float32."""
pytestmark = pytest.mark.filterwarnings("ignore:Triton kernels cannot be used")


@WITHOUT
@EVERY
def test_everything_is_on_the_device(kind: str) -> None:
    given = items(kind, 4)
    expected = together(run(on(kind), given))
    with fake_cuda():
        moved = on(kind, "cuda")
        assert {tensor.device.type for tensor in moved.model.state_dict().values()} == {"cuda"}
        assert distance(together(run(moved, given)), expected) < DEVICES


@WITHOUT
def test_tensors_of_both_devices_do_not_mix() -> None:
    with fake_cuda(), torch.inference_mode():
        here, there = torch.ones(2, device="cuda"), torch.ones(2)
        for wrong in (lambda: here + there, lambda: torch.nn.functional.linear(here, there[None])):
            with pytest.raises(RuntimeError, match="several devices"):
                wrong()
        with pytest.raises(TypeError, match="can't convert cuda:0"):
            here.numpy()
        assert (here + torch.tensor(1.0)).cpu().tolist() == [2.0, 2.0]  # a single number may lie anywhere
        made: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: made.append(torch.ones(1).cuda()))
        thread.start()
        thread.join()
        assert made[0].is_cuda


@WITHOUT
def test_a_network_is_opened_once_for_a_gpu_and_its_number() -> None:
    with fake_cuda():
        one = network("uniter", folder("uniter"), device="cuda")
        assert one.device == torch.device("cuda", 0)
        assert one is network("uniter", folder("uniter"), device="cuda:0")
        assert one is network("uniter", folder("uniter"), device=None)


@WITHOUT
def test_images_of_a_reward_may_lie_on_the_device() -> None:
    drawn = [torch.rand(3, 40 + i, 50) for i in range(6)]
    pacs = reward("pacs", weights="tiny", device="cpu")
    with fake_cuda():
        scores = pacs(["a star"] * 6, [image.to("cuda") for image in drawn])
    assert scores == pacs(["a star"] * 6, drawn)


@contextmanager
def default(set_default: Any, value: Any, before: Any) -> Iterator[None]:
    set_default(value)
    try:
        yield
    finally:
        set_default(before)


SURROUNDINGS: dict[str, Any] = {
    "autocast": lambda: torch.autocast("cuda", torch.bfloat16),
    "inference": torch.inference_mode,
    "default device": lambda: default(torch.set_default_device, "cuda", None),
    "default dtype": lambda: default(torch.set_default_dtype, torch.bfloat16, torch.float32),
}


@WITHOUT
@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_what_a_training_switches_on_moves_no_score(surroundings: str) -> None:
    images = items("clip", 4)
    captions = [f"a {colour} circle" for colour in ("red", "green", "blue", "pink")]

    def scores() -> list[float]:
        metric = load("refpacs", weights="tiny", device="cuda", cache=FeatureCache(0))
        return metric.score(captions, images, [[f"the {text}"] for text in captions]).scores

    with fake_cuda():
        # Else it is opened anew, within the surroundings.
        kept = load("refpacs", weights="tiny", device="cuda") if surroundings == "inference" else None
        expected = scores()
        with SURROUNDINGS[surroundings]():
            assert scores() == expected
        del kept


# ---- on a GPU


@GPU
@EVERY
def test_float32_is_that_of_the_cpu_and_repeats(kind: str) -> None:
    moved, given = on(kind, "cuda"), items(kind, 6)
    first, second = together(run(moved, given)), together(run(moved, given))
    for name, array in first.items():
        assert np.array_equal(array, second[name], equal_nan=True), f"{name} differs in a second run"
    assert distance(first, together(run(on(kind), given))) < DEVICES


@GPU
@EVERY
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_types_are_near(kind: str, dtype: str) -> None:
    narrow, wide = (together(run(on(kind, "cuda", each), items(kind, 6))) for each in (dtype, "float32"))
    if kind in ("faster_rcnn", "x152", "sam"):  # which of nearly equal boxes or masks are kept is rounding
        assert all(np.isfinite(array).all() for array in narrow.values())
    else:
        assert distance(narrow, wide) < NARROW[dtype] * (2 if kind == "uniter" else 1)
