"""Which device to run on."""

from __future__ import annotations

import torch

from capeval_core.suggestion import did_you_mean


def resolve_device(name: str | None) -> torch.device:
    """The device that a user means: its name, or by default CUDA where there is a GPU, else the CPU.

    Raises:
        ValueError: unknown name, or a device that this machine does not have.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        meant = "cuda" if name.lower().startswith("gpu") else name
        hint = did_you_mean(meant, ["cpu", "cuda", "cuda:0", "mps", "xpu"])
        raise ValueError(f"device={name!r} is not a device{hint}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f'device={name!r}, but no CUDA GPU can be used here: pass device="cpu"')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={name!r}, but there are {torch.cuda.device_count()} CUDA GPUs here")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError(f'device={name!r}, but this machine has no Apple GPU: pass device="cpu"')
    if device.type == "xpu" and not torch.xpu.is_available():
        raise ValueError(f'device={name!r}, but this machine has no Intel GPU: pass device="cpu"')
    if device.type not in ("cpu", "cuda", "mps", "xpu"):
        raise ValueError(f"device={name!r} cannot run the encoders: use cpu, cuda, mps or xpu")
    return device
