"""Which device to run on."""

from __future__ import annotations

import torch

from capeval_core.errors import Setting, did_you_mean, wrong_option


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
        raise wrong_option("device", name, f"not a device{hint}") from error
    on_cpu = Setting("device", "cpu", "pass ")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise wrong_option("device", name, "no CUDA GPU can be used here", on_cpu, verb="")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = f"there are {torch.cuda.device_count()} CUDA GPUs here"
        raise wrong_option("device", name, found, verb="")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise wrong_option("device", name, "this machine has no Apple GPU", on_cpu, verb="")
    if device.type == "xpu" and not torch.xpu.is_available():
        raise wrong_option("device", name, "this machine has no Intel GPU", on_cpu, verb="")
    if device.type not in ("cpu", "cuda", "mps", "xpu"):
        fix = "use cpu, cuda, mps or xpu"
        raise wrong_option("device", name, "the encoders", fix, verb="cannot run")
    return device
