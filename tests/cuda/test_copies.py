"""Copies from and to a GPU while it computes: nothing is overwritten or read too early."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capeval_core.models.batching import BatchSize
from capeval_core.models.copies import Arriving, stacked_on_device, to_host

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
CUDA = torch.device("cuda")


def test_batches_in_flight_keep_their_values() -> None:
    """The device is kept busy, so that every copy would come too early where nothing waits for it."""
    rng = np.random.default_rng(0)
    busy = torch.randn(4096, 4096, device=CUDA)

    def forward(units: list[int]) -> Arriving:
        arrays = [rng.integers(0, 256, (3, 224, 224), dtype=np.uint8) for _ in units]
        sums.extend(int(array.sum()) for array in arrays)
        for _ in range(10):
            busy.copy_(busy @ busy / 64)
        return to_host(stacked_on_device(CUDA, arrays).double().sum((1, 2, 3))[:, None] / 2**10)

    sums: list[int] = []
    running = [values for _, values in BatchSize(16, automatic=True).run(list(range(640)), forward)]
    found = np.concatenate([values.values() for values in running])[:, 0]
    assert np.allclose(found * 2**10, sums, rtol=1e-6)


def test_a_batch_that_does_not_fit_is_launched_smaller_while_others_run() -> None:
    free, _ = torch.cuda.mem_get_info()
    each = max(free, torch.cuda.memory_reserved()) // 10

    def forward(units: list[int]) -> Arriving:
        large = torch.empty(len(units) * each, dtype=torch.uint8, device=CUDA)
        return to_host(large[: len(units), None].fill_(1).float())

    size = BatchSize(64, automatic=True)
    running = list(size.run(list(range(64)), forward))
    assert sum(len(values.values()) for _, values in running) == 64 and 1 <= size.size < 64
