"""The CUDA device without a GPU refuses and records what a real one would."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.cuda.fake import fake_cuda


def test_values_are_those_of_the_cpu() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with fake_cuda() as gpu:
        moved = x.to("cuda")
        product = moved @ moved.T
        product += torch.ones(2, 2, device="cuda")
        assert product.device == torch.device("cuda", 0)
        assert product.cpu().equal(x @ x.T + 1)
        assert moved[:, 1:].is_contiguous() is False
    assert gpu.launches > 3


def test_tensors_of_both_devices_do_not_mix() -> None:
    with fake_cuda(), torch.inference_mode():
        here, there = torch.ones(2, device="cuda"), torch.ones(2)
        with pytest.raises(RuntimeError, match="several devices"):
            here + there
        with pytest.raises(RuntimeError, match="several devices"):
            torch.nn.functional.linear(here, there[None])
        with pytest.raises(TypeError, match="can't convert cuda:0"):
            here.numpy()
        assert (here + torch.tensor(1.0)).cpu().tolist() == [2.0, 2.0]  # a single number may lie anywhere


@pytest.mark.parametrize("grad", [True, False])
def test_what_the_host_waits_for_is_recorded(grad: bool) -> None:
    with fake_cuda() as gpu, torch.inference_mode(not grad):
        x = torch.arange(4.0, device="cuda")
        mask = x > 1
        assert gpu.waits == []
        for run in (
            lambda: x.sum().item(),
            lambda: bool(x.sum() > 1),
            lambda: x.tolist(),
            lambda: x[mask],
            lambda: mask.nonzero(),
            lambda: x[torch.tensor([1, 2])],
            lambda: torch.tensor([1.0, 2.0], device="cuda"),
            lambda: torch.zeros(2).cuda(),
            lambda: x.repeat_interleave(mask.int()),
            lambda: torch.cuda.synchronize(),
            lambda: torch.zeros(4).copy_(x),
        ):
            gpu.clear()
            run()
            assert len(gpu.waits) == 1 and "test_fake.py" in gpu.waits[0], gpu.waits
        gpu.clear()
        x[torch.tensor([1, 2], device="cpu").pin_memory().to("cuda", non_blocking=True)]
        x.to("cpu", non_blocking=True)
        torch.where(mask, x, 0.0).to(torch.float16)
        assert gpu.waits == [] and [each.direction for each in gpu.transfers] == ["to device", "to host"]
        assert [each.bytes for each in gpu.transfers] == [16, 16]


def test_it_is_there_in_all_threads_and_gone_afterwards() -> None:
    made = []
    with fake_cuda():
        assert torch.cuda.is_available()
        thread = threading.Thread(target=lambda: made.append(torch.ones(1).cuda()))
        thread.start()
        thread.join()
        assert made[0].is_cuda
        linear = torch.nn.Linear(2, 2).to("cuda")
        assert all(parameter.is_cuda for parameter in linear.parameters())
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError)):
            torch.ones(1).cuda()
