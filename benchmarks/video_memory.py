"""Encoding frames of videos: peak memory against their length, and speed against decoding all frames first.

    python -m benchmarks.video_memory [--minutes 1 60] [--clips 12] > benchmarks/video_memory.md

Videos are drawn and written by PyAV as H.264, and encoded by the embedded small weights. Memory: a video of
the first length and one of the second, 160x120 at ten frames a second, each in a process of its own; for the
baseline all frames are decoded into a list, prepared and encoded, up to ten minutes of them. Speed: clips of
ten seconds, 640x360 at 25 frames a second, by `encode_videos` and by that baseline, in turns in one process.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.extras import needed
from benchmarks.workload import in_own_process, peak_memory

BASELINE_MINUTES = 10
SIZE, RATE = (160, 120), 10
CLIP_SIZE, CLIP_RATE, CLIP_SECONDS = (640, 360), 25, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=int, nargs=2, default=(1, 60))
    parser.add_argument("--clips", type=int, default=12)
    parser.add_argument("--alone", nargs=2, metavar=("WAY", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        way, file = arguments.alone
        print(*peak_of(way, file))
        return
    print("# Memory and speed of encoding frames\n")
    print(f"{datetime.date.today()}, Python {platform.python_version()}, {os.cpu_count()} CPUs, ", end="")
    print(
        f"`python -m benchmarks.video_memory --minutes {arguments.minutes[0]} {arguments.minutes[1]}", end=""
    )
    print(f" --clips {arguments.clips}`\n")
    with tempfile.TemporaryDirectory() as folder:
        report_memory(Path(folder), arguments.minutes)
        report_speed(Path(folder), arguments.clips)


def report_memory(folder: Path, minutes: tuple[int, int]) -> None:
    print("| way | minutes | frames | features, MB | peak, MB | above an imported encoder, MB |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    empty = 0.0
    peaks: dict[tuple[str, int], float] = {}
    shortest = draw(folder / "frame.mp4", 1, SIZE, RATE, seed=0)
    for way, length in (
        ("streamed", 0),
        ("streamed", minutes[0]),
        ("streamed", minutes[1]),
        ("all at once", minutes[0]),
        ("all at once", min(BASELINE_MINUTES, minutes[1])),
    ):
        file = shortest
        if length:
            file = folder / f"{length}.mp4"
            if not file.is_file():
                draw(file, length * 60 * RATE, SIZE, RATE, seed=length)
        peak, frames, size = in_own_process("benchmarks.video_memory", "--alone", way, str(file)).split()
        empty = empty or float(peak)
        peaks[way, length] = float(peak) - empty
        row = [
            way,
            length or "one frame",
            f"{int(frames):,}",
            f"{int(size) / 2**20:.1f}",
            f"{float(peak):.0f}",
        ]
        print("|", " | ".join(map(str, [*row, f"{peaks[way, length]:.0f}"])), "|", flush=True)
    few, many = (peaks["streamed", length] for length in minutes)
    print(
        f"\n{minutes[1] // minutes[0]} times the length took {many / few:.2f} times the memory.\n", flush=True
    )


def peak_of(way: str, file: str) -> tuple[float, int, int]:
    """Peak memory in MB of encoding a video in this process, its frames, and bytes of its features."""
    from capeval_core.encoders.clip import ClipEncoder

    clip = ClipEncoder.from_pretrained("tiny", device="cpu")
    features = streamed(clip, [file])[0] if way == "streamed" else at_once(clip, [file])[0]
    return peak_memory(), len(features), features.nbytes


def streamed(clip: Any, files: list[str]) -> list[Any]:
    """Features of the frames of each file, by `encode_videos`."""
    from capeval_core.cache import FeatureCache
    from capeval_core.inputs.videos import InputFrames

    parts = clip.encode_videos([InputFrames.of(file) for file in files], cache=FeatureCache(0))
    return [features for part in parts for features in part.features]


def at_once(clip: Any, files: list[str]) -> list[Any]:
    """The same for each file by itself: all of its frames decoded, then prepared, then encoded in batches."""
    with needed("video"):
        import av

    found = []
    for file in files:
        with av.open(file) as container:
            images = [frame.to_image() for frame in container.decode(video=0)]
        pixels = [clip.preprocessing.pixels(image) for image in images]
        size = clip.images_per_batch(None).size
        parts = [clip._image_forward(pixels[i : i + size]) for i in range(0, len(pixels), size)]
        found.append(np.concatenate(parts))
    return found


def report_speed(folder: Path, count: int) -> None:
    from capeval_core.encoders.clip import ClipEncoder

    clip = ClipEncoder.from_pretrained("tiny", device="cpu")
    frames = CLIP_RATE * CLIP_SECONDS
    files = [str(draw(folder / f"clip{i}.mp4", frames, CLIP_SIZE, CLIP_RATE, seed=i)) for i in range(count)]
    ways = {"decoded first": at_once, "read ahead": streamed}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    found: dict[str, list[Any]] = {}
    for _ in range(3):
        for way, encode in ways.items():
            start = time.perf_counter()
            found[way] = encode(clip, files)
            seconds[way].append(time.perf_counter() - start)
    apart = max(np.abs(a - b).max() for a, b in zip(*found.values(), strict=True))
    print(f"{count} clips of {frames} frames, 640x360, fastest of three turns;", end=" ")
    print(f"features differ by {apart:.1e}.\n")
    print("| way | frames a second | against decoding first |")
    print("| --- | --- | --- |")
    first = min(seconds["decoded first"])
    for way, each in seconds.items():
        print(f"| {way} | {count * frames / min(each):.0f} | {first / min(each):.2f} |")


def draw(path: Path, frames: int, size: tuple[int, int], rate: int, *, seed: int) -> Path:
    """A video of a field with a block that moves and a wave of light."""
    with needed("video"):
        import av

    rng = np.random.default_rng(seed)
    width, height = size
    field = rng.integers(60, 190, (height // 8, width // 8, 3)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=rate, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(frames):
            image = field + np.uint8(i % 60)
            left, top = (3 * i + seed) % (width - 32), (2 * i) % (height - 32)
            image[top : top + 32, left : left + 32] = (220, 30 + i % 200, 30)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        file.mux(stream.encode())
    return path


if __name__ == "__main__":
    main()
