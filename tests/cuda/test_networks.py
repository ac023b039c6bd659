"""Every network on CUDA: all it computes with is there, the host rarely waits, and values are the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capeval_core.registry import NETWORKS
from tests.cuda.fake import fake_cuda
from tests.cuda.networks import KINDS, Arrays, on, run

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
WITHOUT = pytest.mark.skipif(torch.cuda.is_available(), reason="stands in for a GPU, and here is one")
EVERY = pytest.mark.parametrize("kind", KINDS)
PER_IMAGE = {"faster_rcnn": 2, "x152": 4}
"""How often the host may wait for each image: detectors keep as many boxes as there are."""
PER_RUN = 9
DEVICES, NARROW = 1e-5, {"bfloat16": 0.06, "float16": 0.01}
"""Differences relative to the largest value: of two devices, and of a narrow type from float32."""


def test_every_network_is_here() -> None:
    assert set(KINDS) == set(NETWORKS)


@WITHOUT
@EVERY
@pytest.mark.filterwarnings("ignore:Triton kernels cannot be used")
def test_everything_is_on_the_device_and_the_host_waits_per_batch(kind: str) -> None:
    expected = {count: run(on(kind, "cpu"), count) for count in (2, 6)}
    with fake_cuda() as gpu:
        encoder = on(kind, "cuda")
        assert {tensor.device.type for tensor in encoder.model.state_dict().values()} == {"cuda"}
        waits = {}
        for count in expected:
            gpu.clear()
            close(run(encoder, count), expected[count], DEVICES)
            waits[count] = gpu.waits
        assert gpu.launches > 10
    assert len(waits[2]) <= PER_RUN + 2 * PER_IMAGE.get(kind, 0), waits[2]
    assert len(waits[6]) - len(waits[2]) <= 4 * PER_IMAGE.get(kind, 0), waits[6]


@GPU
@EVERY
def test_float32_is_that_of_the_cpu_and_repeats(kind: str) -> None:
    encoder = on(kind, "cuda")
    first, second = run(encoder, 6), run(encoder, 6)
    for name, array in first.items():
        assert np.array_equal(array, second[name], equal_nan=True), f"{name} differs in a second run"
    close(first, run(on(kind, "cpu"), 6), DEVICES)


@GPU
@EVERY
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_types_are_near(kind: str, dtype: str) -> None:
    narrow, wide = (run(on(kind, "cuda", each), 6) for each in (dtype, "float32"))
    if kind in ("faster_rcnn", "x152", "sam"):  # which of nearly equal boxes or masks are kept is rounding
        assert {name: array.shape[1:] for name, array in narrow.items()} == {
            name: array.shape[1:] for name, array in wide.items()
        }
        assert all(np.isfinite(array).all() for array in narrow.values())
        return
    close(narrow, wide, NARROW[dtype])


def close(found: Arrays, expected: Arrays, tolerance: float) -> None:
    """Hold arrays against each other, relative to the largest value of each."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].shape == array.shape, name
        largest = np.abs(found[name] - array).max(initial=0.0) / np.abs(array).max(initial=1e-9)
        assert largest <= tolerance, f"{name} differs by {largest:.1e} of its largest value"
