"""From JPEG files of 500x375 to PAC-S in bfloat16, against its two ceilings, measured in the same run.

One ceiling is decoding alone: a process on each core that reads, decodes and resizes, and does nothing else.
The other is the image tower alone, on pixels that are on the device. Every file has another content, nothing
is cached, and `score` checks each file before anything is encoded, which counts here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cuda.measuring import Gpu, Row, or_failure
from benchmarks.workload import make_workload, sentences

FILES = {"ViT-B-32": 10_000, "ViT-L-14": 6_000}
DISTINCT = 256
GOAL = 0.8


def measure(gpu: Gpu) -> Iterator[Row]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        files = make_files(
            Path(folder), 24 if gpu.small else max(FILES.values()), 8 if gpu.small else DISTINCT
        )
        alone = decoding_rate(files, cores)
        yield Row(f"decoding and resizing alone, {cores} cores", f"{alone:,.0f} pictures/s")
        for name, count in FILES.items():
            yield from or_failure(name, partial(_from_files, gpu, name, files[:count], alone, cores))


def _from_files(gpu: Gpu, name: str, files: Sequence[str], alone: float, cores: int) -> Iterator[Row]:
    import torch

    import capeval_core
    from benchmarks.cuda.towers import random_pixels, seeded_clip
    from capeval_core.cache import FeatureCache
    from capeval_core.inputs.visual import InputImage
    from capeval_core.models.copies import stacked_on_device

    clip = seeded_clip(gpu, name, "bfloat16")
    batch = 4 if gpu.small else 256
    size = clip.images_per_batch(batch if gpu.small else None).size
    pixels = random_pixels(gpu, clip, size)
    tower = size / gpu.device_seconds(partial(torch.inference_mode()(clip.run_images), pixels))
    yield Row(f"{name}: image tower alone, batches of {size}", f"{tower:,.0f} pictures/s")
    ceiling, bound = min((alone, "decoding"), (tower, "tower"))
    yield Row(f"{name}: ceiling", f"{ceiling:,.0f} pictures/s, {bound}")
    host = list(pixels.cpu().numpy())
    copied = size / gpu.seconds(lambda: stacked_on_device(gpu.device, host))
    yield Row(f"{name}: pixels collated in pinned memory and copied", f"{copied:,.0f} pictures/s")

    captions = sentences(len(files))
    scores: dict[str, list[float]] = {}
    ways: list[tuple[str, int | None]] = [("threads", None), (f"{cores} processes", cores)]
    for way, decoders in ways:
        options: dict[str, Any] = {"decoders": decoders}
        metric: Any = capeval_core.load(
            "pacs", weights="tiny", device=str(gpu.device), cache=FeatureCache(0), **options
        )
        metric.encoder = clip

        def encoded(options: dict[str, Any] = options) -> None:
            for _ in clip.encode_images(map(InputImage.of, files), cache=FeatureCache(0), **options):
                pass

        def scored(metric: Any = metric, way: str = way) -> None:
            scores[way] = metric.score(captions, files).scores

        for what, run in (("features of files", encoded), ("files to scores", scored)):
            before = time.process_time()
            run()  # for the first time: kernels are compiled, processes started
            busy = (time.process_time() - before) / len(files)
            rate = len(files) / gpu.seconds(run, repeats=2, warm_up=0)
            own = f"{rate:,.0f} pictures/s, {busy * 1e6:.0f} us of this process each at first"
            yield Row(f"{name}, {way}: {what}", own)
            yield Row.at_least(f"{name}, {way}: {what}, share of the ceiling", rate / ceiling, GOAL, "{:.1%}")
        if way == "threads":
            checked = gpu.seconds(lambda metric=metric: metric.check(captions, files), repeats=1, warm_up=0)
            texts = gpu.seconds(
                lambda: clip.encode_texts(captions, cache=FeatureCache(0)), repeats=1, warm_up=0
            )
            for what, seconds in (("checks", checked), ("texts", texts)):
                each = seconds / len(files)
                yield Row(
                    f"{name}, {way}: {what}, which come before the images",
                    f"{1e6 * each:.0f} us each, {each * rate:.1%} of the time",
                )
    first, *others = (np.array(each) for each in scores.values())
    off = max(float(np.abs(first - other).max()) for other in others)
    yield Row.at_most(f"{name}: scores of all ways from those with threads", off, 0.0)


def make_files(folder: Path, count: int, distinct: int) -> list[str]:
    """Paths of JPEGs of which no two have the same bytes: the pictures differ, or a comment in them."""
    drawn = make_workload(folder, distinct / 1000, references=0).images
    contents = [path.read_bytes() for path in drawn]
    paths = []
    for number in range(count):
        content = contents[number % len(contents)]
        path = folder / f"file-{number}.jpg"
        path.write_bytes(content[:2] + b"\xff\xfe\x00\x0a%08d" % number + content[2:])
        paths.append(str(path))
    return paths


def decoding_rate(files: Sequence[str], cores: int) -> float:
    """Pictures a second that processes on all cores decode and resize, without their start and their end."""
    command = [sys.executable, "-m", "benchmarks.cuda.jpeg", files[0]]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(cores)
    ]
    for process in processes:  # all are ready before any begins
        assert process.stdout is not None
        process.stdout.readline()
    outputs = []
    start = time.perf_counter()
    for number, process in enumerate(processes):
        assert process.stdin is not None
        process.stdin.write("\n".join(files[number::cores]))
        process.stdin.close()
    for process in processes:
        assert process.stdout is not None
        outputs.append(int(process.stdout.readline() or 0))
    seconds = time.perf_counter() - start
    for process in processes:  # which takes as long as a second, and is no decoding
        process.wait()
    if sum(outputs) != len(files):
        raise RuntimeError(f"{len(files)} files, but {sum(outputs)} were decoded")
    return len(files) / seconds


def main() -> None:
    """Decode the file that is named, say so, then those named on stdin, and resize them."""
    from PIL import Image

    from capeval_core.inputs.decoding import square_pixels
    from capeval_core.inputs.visual import InputImage

    def decode(path: str) -> None:
        square_pixels(InputImage.of(path).load(), 224, Image.Resampling.BICUBIC)

    decode(sys.argv[1])  # what is imported late, and a first time
    print("ready", flush=True)
    decoded = 0
    for path in sys.stdin.read().split("\n"):
        if path:
            decode(path)
            decoded += 1
    print(decoded, flush=True)


if __name__ == "__main__":
    main()
