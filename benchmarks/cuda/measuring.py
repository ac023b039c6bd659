"""A CUDA device under measurement: times, memory, its own ceilings; and the rows of the table."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from capeval_core._version import __version__
from capeval_core.models.device import exact_float32


@dataclass(frozen=True)
class Row:
    """One line of the table.

    quantity: what was measured, with its setting. measured: number and unit, or a sentence. goal: what it
    should reach, '' where there is none. met: whether it does; None without a goal.
    """

    quantity: str
    measured: str
    goal: str = ""
    met: bool | None = None

    @classmethod
    def at_least(cls, quantity: str, value: float, goal: float, form: str = "{:.2f}") -> Row:
        return cls(quantity, form.format(value), f"at least {form.format(goal)}", value >= goal)

    @classmethod
    def at_most(cls, quantity: str, value: float, goal: float, form: str = "{:.2g}") -> Row:
        return cls(quantity, form.format(value), f"at most {form.format(goal)}", value <= goal)


def failure(what: str, error: Exception) -> Row:
    """The row of something that did not run."""
    return Row(what, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", "runs", False)


def or_failure(what: str, rows: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """The rows; an error becomes the last one, so that what a part measures next is measured nevertheless."""
    failed = None
    try:
        yield from rows()
    except Exception as error:
        traceback.print_exc()
        failed = failure(what, error)
    if failed is not None:  # by now nothing holds the tensors of what failed
        yield failed


class Gpu:
    """The device that parts are measured on.

    small: a rehearsal, on the CPU too: sizes are small, and the numbers say nothing.
    """

    def __init__(self, device: str, *, small: bool) -> None:
        self.device = torch.device(device)
        self.small = small

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @cached_property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.is_cuda else "CPU (rehearsal)"

    def machine(self) -> dict[str, str]:
        """What its numbers depend on: device, versions, commit."""
        facts = {"device": self.name}
        if self.is_cuda:
            properties = torch.cuda.get_device_properties(self.device)
            facts |= {"memory": f"{properties.total_memory / 2**30:.0f} GiB"}
            facts |= {"driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")}
        facts |= {"processors": str(os.cpu_count()), "Python": platform.python_version()}
        for package in ("torch", "triton", "transformers"):
            with suppress(PackageNotFoundError):
                facts[package] = version(package)
        facts["capeval"] = __version__  # which need not be installed
        return {**facts, "commit": _output("git", "describe", "--always", "--dirty", "--exclude=*")}

    def wait(self) -> None:
        """Until everything that was launched is done."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def seconds(self, run: Callable[[], Any], *, repeats: int = 10, warm_up: int = 2) -> float:
        """Median seconds of a run, by the clock of the host, launches included; the device is idle before."""
        for _ in range(1 if self.small else warm_up):
            run()
        found = []
        for _ in range(1 if self.small else repeats):
            self.wait()
            start = time.perf_counter()
            run()
            self.wait()
            found.append(time.perf_counter() - start)
        return statistics.median(found)

    def device_seconds(self, run: Callable[[], Any], *, repeats: int = 10, warm_up: int = 2) -> float:
        """Median seconds of a run on the device alone, by its events; on the CPU as `seconds`.

        The device is kept busy while the host launches a run of up to 50 ms, so that gaps between launches
        count only where a run waits for the device itself.
        """
        if not self.is_cuda:
            return self.seconds(run, repeats=repeats, warm_up=warm_up)
        launching = 0.0
        for _ in range(1 if self.small else warm_up):
            self.wait()
            start = time.perf_counter()
            run()
            launching = time.perf_counter() - start
        pairs = []
        for _ in range(1 if self.small else repeats):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int(2e9 * 1.5 * min(launching, 0.05)))  # clock cycles, of at most 2 GHz
            begin.record()
            run()
            end.record()
            pairs.append((begin, end))
        self.wait()
        return statistics.median(begin.elapsed_time(end) / 1e3 for begin, end in pairs)

    def memory(self, run: Callable[[], Any]) -> float:
        """Bytes that a run holds at its peak beyond what was there before; 0 on the CPU."""
        if not self.is_cuda:
            run()
            return 0.0
        self.wait()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        run()
        self.wait()
        return float(torch.cuda.max_memory_allocated(self.device) - before)

    def random(self, *shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
        """Standard normal numbers, drawn on the device."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return torch.randn(*shape, generator=generator, device=self.device).to(dtype)

    @cached_property
    def bandwidth(self) -> float:
        """Bytes per second of a large copy, read and written ones counted."""
        source = self.random(1 << (20 if self.small else 29))
        target = torch.empty_like(source)
        return 2 * source.nbytes / self.device_seconds(lambda: target.copy_(source))

    def peak(self, dtype: torch.dtype) -> float:
        """Floating-point operations per second of the best of three matrix products; float32 without TF32."""
        if dtype not in self._peaks:
            sizes = (256,) if self.small else (8192, 4096, 12288)
            self._peaks[dtype] = max(self._rate(size, dtype) for size in sizes)
        return self._peaks[dtype]

    def _rate(self, size: int, dtype: torch.dtype) -> float:
        a, b = self.random(size, size, dtype=dtype), self.random(size, size, dtype=dtype, seed=1)
        with exact_float32(self.device):
            return 2 * size**3 / self.device_seconds(lambda: a @ b, warm_up=20)  # until the clocks have risen

    @cached_property
    def _peaks(self) -> dict[torch.dtype, float]:
        return {}


def _output(*command: str) -> str:
    """What a command prints; 'unknown' where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip().partition("\n")[0] or "unknown"
