"""Trying kernels before they are used: a GPU, driver or version that nobody tested may get them wrong."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from capeval_core.errors import warn
from capeval_core.models.device import exact_float32


def kernels_agree(
    kernels: str, device: torch.device, dtype: torch.dtype, cases: Iterator[tuple[str, Tensor, Tensor]]
) -> bool:
    """Whether kernels give what plain PyTorch gives; warns where they do not, or do not run at all.

    cases: what is tried, the kernels' result, PyTorch's; of numbers of about 1, computed as they are asked
    for. Memory that runs out says nothing about kernels, and is raised.

    >>> one = torch.ones(1)
    >>> kernels_agree("Kernels", one.device, one.dtype, iter([("norm", one, one)]))
    True
    """
    bound = 1e-5 if dtype == torch.float32 else 0.02
    try:
        with torch.no_grad(), exact_float32(device):
            for name, ours, expected in cases:
                off = float((ours.double() - expected.double()).abs().max())
                if not off <= bound:  # nor if it is no number
                    reason = f"{name} is off by {off:.1e}"
                    break
            else:
                return True
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler that is missing, a driver that is too old, in any words
        reason = f"{type(error).__name__}: {error}".split("\n", 1)[0]
    warn(f"{kernels} cannot be used on {device} in {dtype}, which is slower ({reason})")
    return False
