"""PAC-S for videos: matching of words with frames against padded bmm, time and memory.

    python -m benchmarks.video [--videos 1000] [--words 30] [--frames 300] [--width 512] [--repeats 3]

Features are random, made a few videos at a time as an encoder gives them, which is not timed. Both ways take
the same videos in turn: `ours` is `Pairs`, with which the metric makes its rows; `padded` is what EMScore's
released script does with 64 pairs at once: it pads both sides to the longest, with similarity 0, normalises,
multiplies with bmm and takes maxima. Lengths are all equal, where padding costs nothing, and then drawn
evenly from a half to one and a half of that. Best cosines of words, recalls and cosines of whole videos are
checked to agree to 1e-5. Memory is what a process of its own holds besides the features, at its peak (Linux).
On a GPU the same is measured by `python -m benchmarks.cuda --part video`.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from benchmarks.matching import resident
from benchmarks.workload import in_own_process
from capeval_core.ragged import Ragged
from capeval_core.scores.video_rows import Pairs, video_feature

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

BATCH = 64
"""Pairs that the released script pads together, and here also those that come from the encoder together."""


@dataclass(frozen=True)
class Workload:
    """Captions of `words` tokens, videos of `frames` frames; ragged: from a half to one and a half of it."""

    videos: int
    words: int
    frames: int
    width: int
    ragged: bool

    def parts(self) -> Iterator[tuple[list[Floats], list[Floats]]]:
        """Token features of captions and frame features of their videos, 64 of each at a time."""
        rng = np.random.default_rng(0)
        for start in range(0, self.videos, BATCH):
            count = min(BATCH, self.videos - start)
            # Not around 0: where all cosines are positive, padding does not change the maxima.
            yield (
                [
                    rng.standard_normal((n, self.width), np.float32) + 1
                    for n in self.lengths(rng, self.words, count)
                ],
                [
                    rng.standard_normal((n, self.width), np.float32) + 1
                    for n in self.lengths(rng, self.frames, count)
                ],
            )

    def lengths(self, rng: np.random.Generator, mean: int, count: int) -> list[int]:
        if not self.ragged:
            return [mean] * count
        drawn: list[int] = rng.integers(mean // 2, mean + mean // 2 + 1, count).tolist()
        return drawn


@dataclass(frozen=True)
class Found:
    """Of n pairs: the sum of the best cosines of words, the recall and the cosine of the whole, (n,) each."""

    precision: Doubles
    recall: Doubles
    cosine: Doubles

    def off(self, other: Found) -> float:
        return max(
            float(np.abs(a - b).max()) for a, b in zip(vars(self).values(), vars(other).values(), strict=True)
        )


def ours(captions: list[Floats], videos: list[Floats]) -> Found:
    pairs = Pairs(video_feature)
    for number, (words, frames) in enumerate(zip(captions, videos, strict=True)):
        pairs.add(number, words, number, frames)
    found = pairs.matched()
    return Found(Ragged.of(found.x_maxima).mean(), np.asarray(found.recall), np.asarray(found.cosine))


def padded(captions: list[Floats], videos: list[Floats]) -> Found:
    sides = ([torch.from_numpy(rows) for rows in side] for side in (captions, videos))
    return Found(*(values.double().numpy() for values in padded_match(*sides)))


def padded_match(captions: Sequence[Tensor], videos: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(n,) precisions, recalls and cosines of the whole, of n pairs on any device."""
    sides, masks = [], []
    for rows in (captions, videos):
        side = pad_sequence([normalize(own, dim=1) for own in rows], batch_first=True)
        lengths = torch.tensor([len(own) for own in rows]).to(side.device)
        sides.append(side)
        masks.append((torch.arange(side.shape[1], device=side.device) < lengths[:, None]).to(side.dtype))
    similarity = torch.bmm(sides[0], sides[1].transpose(1, 2))
    similarity = similarity * torch.bmm(masks[0].unsqueeze(2), masks[1].unsqueeze(1))
    weights = [mask / mask.sum(dim=1, keepdim=True) for mask in masks]
    precision = (similarity.max(dim=2)[0] * weights[0]).sum(dim=1)
    recall = (similarity.max(dim=1)[0] * weights[1]).sum(dim=1)
    whole = normalize((sides[1] * weights[1][..., None]).sum(dim=1), dim=1)
    ends = torch.stack([normalize(own[-1], dim=0) for own in captions])
    return precision, recall, (ends * whole).sum(dim=1)


WAYS: dict[str, Callable[[list[Floats], list[Floats]], Found]] = {"ours": ours, "padded": padded}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--videos", type=int, default=1000)
    parser.add_argument("--words", type=int, default=30)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ragged", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--alone", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    work = Workload(given.videos, given.words, given.frames, given.width, given.ragged)
    if given.alone:
        print(peak(WAYS[given.alone], work))
        return
    for ragged in (False, True):
        report(Workload(given.videos, given.words, given.frames, given.width, ragged), given.repeats)


def report(work: Workload, repeats: int) -> None:
    times, off = compare(work, repeats)
    lengths = "lengths of a half to one and a half" if work.ragged else "equal lengths"
    print(
        f"{work.videos:,} videos of {work.frames} frames, {work.words} words, {work.width} numbers, {lengths}"
    )
    for way, seconds in times.items():
        memory = {videos: alone(way, work, videos) for videos in (work.videos // 4, work.videos)}
        held = ", ".join(f"{megabytes:.0f} MB of {videos:,} videos" for videos, megabytes in memory.items())
        print(f"  {way:6}  {1000 * seconds / work.videos:6.3f} ms a video; at most {held}")
    print(f"  {times['padded'] / times['ours']:.2f} times faster; values agree to {off:.0e}", flush=True)
    if not off <= 1e-5:
        raise SystemExit("values differ by more than 1e-5")


def compare(work: Workload, repeats: int) -> tuple[dict[str, float], float]:
    """The seconds of each way over all videos, and how far their values differ.

    Each part is taken by both in turn, several times, of which the least counts.
    """
    totals, off = dict.fromkeys(WAYS, 0.0), 0.0
    for captions, videos in work.parts():
        found: dict[str, Found] = {}
        least = dict.fromkeys(WAYS, float("inf"))
        for _ in range(repeats):
            for way, run in WAYS.items():
                start = time.perf_counter()
                found[way] = run(captions, videos)
                least[way] = min(least[way], time.perf_counter() - start)
        totals = {way: total + least[way] for way, total in totals.items()}
        off = max(off, found["ours"].off(found["padded"]))
    return totals, off


def alone(way: str, work: Workload, videos: int) -> float:
    """`peak` in a process of its own."""
    sizes = {"videos": videos, "words": work.words, "frames": work.frames, "width": work.width}
    flags = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    return float(in_own_process("benchmarks.video", "--alone", way, *flags, *["--ragged"] * work.ragged))


def peak(way: Callable[[list[Floats], list[Floats]], Found], work: Workload) -> float:
    """MB that matching holds besides the features of a part; the first part loads what a first run loads."""
    most, parts = 0.0, work.parts()
    way(*next(parts))
    for captions, videos in parts:
        ctypes.CDLL(None).malloc_trim(0)  # memory that was used before is not to be had for nothing
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again from here
        before = resident("VmRSS")
        way(captions, videos)
        most = max(most, (resident("VmHWM") - before) / 1024)
    return most


if __name__ == "__main__":
    main()
