"""Greedy matching against the padded way of BERTScore and EMScore, and against a loop over pairs.

    python -m benchmarks.matching [--pairs 1000] [--width 512 768] [--dtype float32]

The padded way takes 64 pairs at once, pads both sides to the longest, normalises, multiplies with bmm and
masks, as the scripts do; the loop normalises and multiplies pair after pair. All ways run in turn, and the
least time of each counts. Peak memory is what one run adds to its inputs, in a process of its own (Linux).
Notes: benchmarks/matching.md. On CUDA: `python -m benchmarks.cuda --part matching`.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from benchmarks.workload import in_own_process
from capeval_core.matching.greedy import greedy_match

BATCH = 64


@dataclass(frozen=True)
class Shape:
    """Lengths of x and y sets, drawn evenly; `partners` pairs share an x set, and `readers` a y set."""

    x: tuple[int, int]
    y: tuple[int, int]
    partners: int = 1
    readers: int = 1


SHAPES = {
    "5-100": Shape((5, 100), (5, 100)),
    "3-20": Shape((3, 20), (3, 20)),
    "uniform 32": Shape((32, 32), (32, 32)),
    "words x frames": Shape((5, 25), (3, 40), partners=1, readers=10),  # captions of one video
    "tokens x tokens": Shape((7, 30), (7, 30), partners=5),  # a caption and its references
    "phrases x regions": Shape((2, 8), (5, 30), partners=1, readers=5),  # captions of one image
    "all with all": Shape((7, 30), (7, 30), partners=100, readers=100),  # captions with each other
}


@dataclass(frozen=True)
class Workload:
    x: Tensor
    y: Tensor
    x_lengths: Tensor
    y_lengths: Tensor
    x_of_pair: Tensor
    y_of_pair: Tensor

    @classmethod
    def of(cls, shape: Shape, pairs: int, width: int, device: str, dtype: torch.dtype) -> Workload:
        rng = np.random.default_rng(0)
        number = np.arange(pairs)
        group = shape.partners * shape.readers
        x_of_pair = number // group * shape.readers + number % group // shape.partners
        y_of_pair = number // group * shape.partners + number % shape.partners
        sizes = [
            rng.integers(low, high + 1, int(chosen.max()) + 1)
            for (low, high), chosen in ((shape.x, x_of_pair), (shape.y, y_of_pair))
        ]
        # Not around 0: where all cosines are positive, padding does not change the maxima.
        rows = (
            torch.randn(int(lengths.sum()), width, device=device, dtype=dtype).add_(1) for lengths in sizes
        )
        return cls(*rows, *(torch.from_numpy(values) for values in (*sizes, x_of_pair, y_of_pair)))

    def sets(self) -> tuple[list[Tensor], list[Tensor]]:
        """The rows of both sides of each pair, none of them copied."""
        x, y = self.x.split(self.x_lengths.tolist()), self.y.split(self.y_lengths.tolist())
        return [x[i] for i in self.x_of_pair.tolist()], [y[j] for j in self.y_of_pair.tolist()]

    def operations(self) -> float:
        cells = self.x_lengths[self.x_of_pair] * self.y_lengths[self.y_of_pair]
        return 2.0 * int(cells.sum()) * self.x.shape[1]


def padded(work: Workload) -> Tensor:
    """(pairs, 3) as the scripts do it; padding is all ones, since an all-zero row would give NaN there."""
    found = []
    x, y = work.sets()
    for start in range(0, len(x), BATCH):
        sides, masks = [], []
        for rows in (x[start : start + BATCH], y[start : start + BATCH]):
            side = pad_sequence(rows, batch_first=True, padding_value=1.0)
            sides.append(side.div_(torch.norm(side, dim=-1).unsqueeze(-1)))
            lengths = torch.tensor([len(row) for row in rows], device=side.device)
            masks.append((torch.arange(side.shape[1], device=side.device) < lengths[:, None]).to(side.dtype))
        similarity = torch.bmm(sides[0], sides[1].transpose(1, 2))
        similarity = similarity * torch.bmm(masks[0].unsqueeze(2), masks[1].unsqueeze(1))
        weights = [mask / mask.sum(dim=1, keepdim=True) for mask in masks]
        precision = (similarity.max(dim=2)[0] * weights[0]).sum(dim=1)
        recall = (similarity.max(dim=1)[0] * weights[1]).sum(dim=1)
        found.append(torch.stack([precision, recall, 2 * precision * recall / (precision + recall)], dim=1))
    return torch.cat(found)


def loop(work: Workload) -> Tensor:
    found = []
    for x, y in zip(*work.sets(), strict=True):
        similarity = normalize(x, dim=1) @ normalize(y, dim=1).T
        precision, recall = similarity.amax(1).mean(), similarity.amax(0).mean()
        found.append(torch.stack([precision, recall, 2 * precision * recall / (precision + recall)]))
    return torch.stack(found)


def ours(work: Workload) -> Tensor:
    lengths = work.x_lengths, work.y_lengths
    found = greedy_match(work.x, work.y, *lengths, x_of_pair=work.x_of_pair, y_of_pair=work.y_of_pair)
    return torch.stack([found.precision, found.recall, found.f], dim=1)


WAYS: dict[str, Callable[[Workload], Tensor]] = {"padded": padded, "loop": loop, "ours": ours}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--width", type=int, nargs="+", default=[512, 768])
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--alone", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    for width in arguments.width:
        for name in arguments.shape:
            work = Workload.of(SHAPES[name], arguments.pairs, width, "cpu", dtype)
            if arguments.alone:
                few = Workload.of(SHAPES[name], 8, width, "cpu", dtype)
                print(peak(WAYS[arguments.alone], few, work))
            else:
                report(name, work, arguments)


def report(name: str, work: Workload, arguments: argparse.Namespace) -> None:
    width = work.x.shape[1]
    ways = WAYS if len(work.x_of_pair) <= 10_000 else {name: WAYS[name] for name in ("padded", "ours")}
    difference = float((ours(work) - padded(work)).abs().max())
    seconds = least_times(list(ways.values()), work, arguments.repeats)
    times = dict(zip(ways, seconds, strict=True))
    same = ["--pairs", str(arguments.pairs), "--dtype", arguments.dtype]
    same += ["--shape", name, "--width", str(width)]
    memory = {
        way: float(in_own_process("benchmarks.matching", "--alone", way, *same)) for way in ("padded", "ours")
    }
    line = f"{name:18} D {width}: ours {times['ours'] / len(work.x_of_pair) * 1e6:7.2f} us a pair; padded"
    line += f" {times['padded'] / times['ours']:5.2f} times that"
    line += f", loop {times['loop'] / times['ours']:5.2f}" if "loop" in times else ""
    line += f"; memory {memory['ours']:.1f} MB of {memory['padded']:.1f}; |difference| {difference:.0e}"
    print(line, flush=True)


def least_times(ways: list[Callable[[Workload], Tensor]], work: Workload, repeats: int) -> list[float]:
    """The least seconds of each way; they take turns, so that a busy machine is busy for all."""
    found: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for times, way in zip(found, ways, strict=True):
            start = time.perf_counter()
            way(work)
            times.append(time.perf_counter() - start)
    return [min(times) for times in found]


def peak(way: Callable[[Workload], Tensor], few: Workload, work: Workload) -> float:
    """MB that one run holds besides its inputs; a run of a few pairs has loaded what a first run loads."""
    way(few)
    ctypes.CDLL(None).malloc_trim(0)  # memory that was used before is not to be had for nothing
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again from here
    before = resident("VmRSS")
    way(work)
    return (resident("VmHWM") - before) / 1024


def resident(kind: str) -> int:
    """Resident kilobytes, now (VmRSS) or at most (VmHWM)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(kind))


if __name__ == "__main__":
    main()
