"""PAC-S for videos on CUDA: frames of ViT-B/32 in bfloat16, and words matched with frames.

Frames come from arrays, and from files where PyAV is installed. Matching is that of 1,000 videos of 300
frames with 30 words each, against padded bmm on the same GPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import capeval_core
from benchmarks.cuda.agreement import Subject, agreement
from benchmarks.cuda.flops import vision_flops
from benchmarks.cuda.measuring import Gpu, Row, or_failure
from benchmarks.cuda.towers import random_pixels, seeded_clip
from benchmarks.video import BATCH, ours, padded_match
from benchmarks.video_memory import draw, streamed
from benchmarks.workload import sentences
from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.videos import InputFrames
from capeval_core.matching.greedy import greedy_match
from capeval_core.models.copies import rows_on_device
from capeval_core.models.device import exact_float32

VIDEOS, FRAMES, WORDS = 1000, 300, 30
CLIPS, SIZE = 16, (240, 320)
"""Videos whose frames are encoded, and their height and width."""


def measure(gpu: Gpu) -> Iterator[Row]:
    clip = seeded_clip(gpu, "ViT-B-32", "bfloat16")
    yield from or_failure("encoding", partial(encoding, gpu, clip))
    for ragged in (False, True):
        yield from or_failure("matching", partial(matching, gpu, ragged))
    yield from or_failure("matching of features of the host", partial(from_host, gpu))
    videos, captions = clips(gpu, 2 if gpu.small else 8, 5 if gpu.small else 60), sentences(8, _rng())

    def run(device: str, dtype: str) -> dict[str, Any]:
        metric = metric_of(seeded_clip(gpu, "ViT-B-32", dtype, device))
        (part,) = [list(metric.videos(map(InputFrames.of, videos), {"cache": FeatureCache(0)}))]
        features = [frames for found in part for frames in found.features]
        return {"frames": features, "scores": metric.score(captions[: len(videos)], videos=videos).scores}

    yield from agreement(gpu, Subject(("pacs video",), "ViT-B-32, seeded"), run, dtypes=["bfloat16"])
    if find_spec("av") is not None:
        yield from or_failure("video files", partial(files, gpu, clip))


def encoding(gpu: Gpu, clip: ClipEncoder) -> Iterator[Row]:
    """Frames a second: the tower alone, and from arrays to features; the metric; memory by frames."""
    batch = clip.images_per_batch(None).size if gpu.is_cuda else 4
    pixels = random_pixels(gpu, clip, batch)
    flops = vision_flops(clip.config["architecture"]) * batch

    @torch.inference_mode()
    def tower() -> Tensor:
        with exact_float32(clip.device):
            return clip.run_images(pixels)

    seconds = gpu.seconds(tower)
    share = flops / seconds / gpu.peak(torch.bfloat16)
    yield Row(
        f"tower, {clip.dtype}, batches of {batch}: frames/s",
        f"{batch / seconds:,.0f} ({share:.1%} of the peak)",
    )
    length = 5 if gpu.small else FRAMES
    videos = clips(gpu, 2 if gpu.small else CLIPS, length)
    count = len(videos) * length
    setting = f"{len(videos)} arrays of {length} frames, {SIZE[1]}x{SIZE[0]}"
    whole = gpu.seconds(lambda: encoded(clip, videos), repeats=3, warm_up=1)
    yield Row(f"encode_videos, {setting}: frames/s", f"{count / whole:,.0f}")
    metric, captions = metric_of(clip), sentences(len(videos), _rng())
    scored = gpu.seconds(lambda: metric.score(captions, videos=videos), repeats=3, warm_up=1)
    yield Row(f"PAC-S for videos, {setting}: frames/s", f"{count / scored:,.0f}")
    held = [gpu.memory(lambda n=n: encoded(clip, clips(gpu, 1, n))) for n in (length, 10 * length)]
    if gpu.is_cuda:
        yield Row("memory on the device, a video of 300 frames", f"{held[0] / 1e6:.0f} MB")
        # Both are longer than a batch or not: what counts is that ten batches hold no more than one.
        most = gpu.memory(tower) + batch * pixels[0].nbytes
        yield Row.at_most("memory of 3,000 frames over that of a batch", held[1] / most, 1.5, "{:.2f}")


def matching(gpu: Gpu, ragged: bool) -> Iterator[Row]:
    """Features on the device: greedy matching in one call against padded bmm, 64 pairs at a time."""
    videos, frames, words = (8, 20, 5) if gpu.small else (VIDEOS, FRAMES, WORDS)
    lengths = "lengths of a half to one and a half" if ragged else "equal lengths"
    for dtype in (torch.float32, torch.bfloat16):
        rng = _rng()
        of_words, of_frames = (sizes(rng, mean, videos, ragged) for mean in (words, frames))
        # Not around 0: where all cosines are positive, padding does not change the maxima.
        x, y = (
            (gpu.random(sum(own), 512, seed=seed) + 1).to(dtype)
            for seed, own in enumerate((of_words, of_frames))
        )
        setting = f"{videos} videos of {frames} frames, {words} words, {str(dtype)[6:]}, {lengths}"

        def greedy(x: Tensor = x, y: Tensor = y, of_words: Any = of_words, of_frames: Any = of_frames) -> Any:
            found = greedy_match(x, y, of_words, of_frames, return_maxima=True)
            return found.precision, found.recall

        def baseline(
            x: Tensor = x, y: Tensor = y, of_words: Any = of_words, of_frames: Any = of_frames
        ) -> Any:
            sides = list(torch.split(x, of_words)), list(torch.split(y, of_frames))
            parts = [slice(start, start + BATCH) for start in range(0, videos, BATCH)]
            with exact_float32(x.device):
                found = [padded_match(sides[0][part], sides[1][part])[:2] for part in parts]
            return [torch.cat(values) for values in zip(*found, strict=True)]

        once, padded = (gpu.seconds(run, repeats=5) for run in (greedy, baseline))
        yield Row(f"matching, {setting}: videos/s", f"{videos / once:,.0f}")
        yield Row.at_least("padded bmm, the same: time over ours", padded / once, 2, "{:.1f}")
        held = [gpu.memory(run) / 1e6 for run in (greedy, baseline)]
        row = f"memory of matching beside the features, {held[0]:.0f} MB, over {held[1]:.0f} MB of padded bmm"
        if gpu.is_cuda:
            yield Row.at_most(row, held[0] / held[1], 0.25, "{:.2f}")
        off = max(
            float((a.double() - b.double()).abs().max()) for a, b in zip(greedy(), baseline(), strict=True)
        )
        yield Row.at_most("largest difference from padded bmm", off, 1e-5 if dtype is torch.float32 else 0.02)


def from_host(gpu: Gpu) -> Iterator[Row]:
    """Features on the host, as the cache keeps them: matched there, or copied to the device and matched."""
    count, frames, words = (4, 20, 5) if gpu.small else (BATCH, FRAMES, WORDS)
    rng = _rng()
    texts, videos = (
        [rng.standard_normal((mean, 512), np.float32) + 1 for _ in range(count)] for mean in (words, frames)
    )

    def copied() -> Any:
        x, y = (rows_on_device(gpu.device, side) for side in (texts, videos))
        sizes = ([len(rows) for rows in side] for side in (texts, videos))
        return greedy_match(x, y, *sizes, return_maxima=True).to("cpu")

    ways: dict[str, Callable[[], Any]] = {
        "on the host": lambda: ours(texts, videos),
        "copied to the device": copied,
    }
    for name, way in ways.items():
        seconds = gpu.seconds(way, repeats=5)
        yield Row(
            f"matching of features of the host, {count} videos, {name}: videos/s", f"{count / seconds:,.0f}"
        )


def files(gpu: Gpu, clip: ClipEncoder) -> Iterator[Row]:
    """From H.264 to features."""
    count, frames = (2, 10) if gpu.small else (16, 250)
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(draw(Path(folder) / f"{i}.mp4", frames, (640, 360), 25, seed=i)) for i in range(count)]
        seconds = gpu.seconds(lambda: streamed(clip, paths), repeats=3, warm_up=1)
    yield Row(
        f"encode_videos, {count} files of {frames} frames, 640x360: frames/s",
        f"{count * frames / seconds:,.0f}",
    )


def clips(gpu: Gpu, count: int, frames: int) -> list[Any]:
    """Videos as arrays of bytes: one field of noise that moves, each in its own way."""
    noise = _rng().integers(0, 256, (*SIZE, 3), np.uint8)
    return [
        np.stack([np.roll(noise, (i + 1) * frame, axis=1) for frame in range(frames)]) for i in range(count)
    ]


def encoded(clip: ClipEncoder, videos: Sequence[Any]) -> None:
    for _ in clip.encode_videos([InputFrames.of(video) for video in videos], cache=FeatureCache(0)):
        pass


def metric_of(clip: ClipEncoder) -> Any:
    """PAC-S for videos with this encoder instead of that of the embedded weights."""
    metric = capeval_core.load("pacs", media="video", weights="tiny", device="cpu", cache=FeatureCache(0))
    metric.encoder = clip
    return metric


def sizes(rng: np.random.Generator, mean: int, count: int, ragged: bool) -> list[int]:
    drawn: list[int] = rng.integers(mean // 2, mean + mean // 2 + 1, count).tolist()
    return drawn if ragged else [mean] * count


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)
