"""BERT's layers on CUDA, on the CPU: a sum and its norm in one kernel, interpreted, and who takes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from capeval_core.encoders import bert, cuda_blocks
from capeval_core.encoders.cuda_blocks import Kernels
from capeval_core.models.device import triton_version
from tests.support.seeded import uniter

pytestmark = pytest.mark.skipif(triton_version() is None, reason="triton is not installed")


@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("width", [40, 768, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_of_a_sum_is_that_of_plain_torch(rows: int, width: int, dtype: torch.dtype) -> None:
    from capeval_core.encoders.cuda_kernels import add_norm

    generator = torch.Generator().manual_seed(0)
    x, before = (torch.randn(rows, width, generator=generator).to(dtype) for _ in range(2))
    weight, bias = ((torch.randn(width, generator=generator) + 1).to(dtype) for _ in range(2))
    found = add_norm(x, before, weight, bias, 1e-12)
    exact = torch.nn.functional.layer_norm(
        x.double() + before.double(), (width,), weight.double(), bias.double(), 1e-12
    )
    assert found.dtype == dtype
    assert torch.allclose(found.double(), exact, rtol=2**-7 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)


class OnCuda:
    """A tensor's stand-in that says it is on CUDA."""

    def __init__(self, values: Tensor) -> None:
        self.values, self.device, self.dtype = values, torch.device("cuda"), values.dtype


def test_only_layers_that_learn_nothing_take_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    output: Any = uniter().model.layers[0].output
    generator = torch.Generator().manual_seed(0)
    rows, before = (torch.randn(5, width, generator=generator) for width in (64, 32))
    monkeypatch.setattr(cuda_blocks, "usable_kernels", lambda *_: Kernels())
    ran: list[str] = []

    class Output:
        """The module, on either device."""

        dense, LayerNorm, training = (lambda _, rows: output.dense(rows.values)), output.LayerNorm, False

        def __call__(self, rows: OnCuda, before: Tensor) -> Tensor:
            ran.append("module")
            return output(rows.values, before)

    ours = Output()
    with torch.inference_mode():
        kernel = bert.merge(ours, OnCuda(rows), before)
        assert not ran
        ours.training = True
        module = bert.merge(ours, OnCuda(rows), before)
    assert ran == ["module"] and torch.allclose(kernel, module, atol=1e-6)
    ours.training = False
    with torch.enable_grad():
        bert.merge(ours, OnCuda(rows), before)
    assert ran == ["module"] * 2
