"""Towers of CLIP on a GPU: the bare model of open_clip, eager and compiled, and ours; then JPEG to score.

Goals: ours computes at 60, 70 and 80% (B/32, L/14, bigG) of the device's own rate of products in the same
dtype, and end to end at least 0.85 times as fast as the bare compiled tower, whose tensors are at hand.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

import capeval_core
from benchmarks.cuda.agreement import Gpu, Row
from benchmarks.workload import ARCHITECTURES, make_weights, sentences
from capeval_core.cache import FeatureCache
from capeval_core.integrations.shards import score_shard

GOALS = {"ViT-B-32": 0.6, "ViT-L-14": 0.7, "ViT-bigG-14": 0.8}
"""The share of the device's rate of products that a tower is to reach."""
PAIRS_A_SECOND = {"ViT-B-32": 10_000, "ViT-L-14": 2_800, "ViT-bigG-14": 450}
"""On an H100 or H200 with 16 cores, from JPEGs of 480 lines."""
OF_COMPILED = 0.85
OF_SLOWEST = 0.8
"""Of the smaller one of what decodes and what computes."""
DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Sizes:
    """How much is measured: a rehearsal measures little."""

    names: Sequence[str]
    images: int
    texts: int
    batch: int
    product: int
    seconds: float

    @staticmethod
    def of(gpu: Gpu) -> Sizes:
        if gpu.small:
            return Sizes(["ViT-B-32"], 8, 32, 4, 256, 0.2)
        return Sizes([*GOALS], 4_096, 16_384, 256, 8_192, 3.0)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Callable[[], Any], device: torch.device, least: float) -> float:
    """The best time of a run, of as many as fit so many seconds; the first one warms up."""
    run()
    synchronise(device)
    best = float("inf")
    until = time.perf_counter() + least
    while best == float("inf") or time.perf_counter() < until:
        started = time.perf_counter()
        run()
        synchronise(device)
        best = min(best, time.perf_counter() - started)
    return best


def product_rate(device: torch.device, dtype: torch.dtype, sizes: Sizes) -> float:
    """Operations per second of the device's own product of two square matrices."""
    first, second = torch.randn(2, sizes.product, sizes.product, device=device, dtype=dtype)
    seconds = seconds_of(lambda: first @ second, device, sizes.seconds / 3)
    return 2 * sizes.product**3 / seconds


def operations_of(run: Callable[[], Any]) -> int:
    """Multiplications and additions of the products of matrices of a run."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    operations: int = counter.get_total_flops()
    return operations


def bare(name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """open_clip's own model with seeded weights."""
    from open_clip.model import CLIP

    sizes = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = CLIP(sizes["embed_dim"], sizes["vision"], sizes["text"], quick_gelu=True)
    return model.eval().to(device, dtype)


@dataclass(frozen=True)
class Setting:
    """A tower in a dtype on a device. rate: operations per second of the device's own products."""

    gpu: Gpu
    sizes: Sizes
    name: str
    dtype: str
    rate: float

    def row(self, what: str, a_second: float, operations: float, more: str = "", **goal: Any) -> Row:
        """A row of items a second, each of so many operations."""
        share = operations * a_second / self.rate
        measured = f"{a_second:,.0f} a second, {share:.0%} of the rate{more}"
        return Row(f"{self.name} {self.dtype} {what}", measured, **goal)


@torch.inference_mode()
def towers(gpu: Gpu) -> Iterator[Row]:
    """Images and texts a second of a bare tower, eager and compiled, and of ours."""
    sizes = Sizes.of(gpu)
    with tempfile.TemporaryDirectory() as folder:
        for name in sizes.names:
            weights = make_weights(name, Path(folder))
            for dtype in DTYPES if gpu.is_cuda else ("float32",):
                rate = product_rate(gpu.device, getattr(torch, dtype), sizes)
                size = f"{sizes.product} x {sizes.product}"
                yield Row(f"{dtype}: product of {size}", f"{rate / 1e12:.1f} TFLOP/s")
                yield from _of_tower(Setting(gpu, sizes, name, dtype, rate), weights)


def _of_tower(setting: Setting, weights: Path) -> Iterator[Row]:
    """A tower's rows: bare and eager, compiled, and ours."""
    device = setting.gpu.device
    batch = setting.sizes.batch
    model = bare(setting.name, device, getattr(torch, setting.dtype))
    pixels = torch.randn(batch, 3, 224, 224, device=device, dtype=getattr(torch, setting.dtype))
    tokens = torch.randint(1, 49_000, (batch, 77), device=device)
    tokens[:, -1] = 49_407  # the end of a text

    def images() -> Any:
        return model.encode_image(pixels)

    def texts() -> Any:
        return model.encode_text(tokens)

    operations = {}
    compiled = {}
    for side, run in (("images", images), ("texts", texts)):
        operations[side] = operations_of(run) / batch
        eager = batch / seconds_of(run, device, setting.sizes.seconds)
        yield setting.row(f"{side}, eager", eager, operations[side])
        try:
            compiled[side] = batch / seconds_of(torch.compile(run), device, setting.sizes.seconds)
        except Exception as error:  # no compiler on this machine
            compiled[side] = eager
            yield Row(f"{setting.name} {setting.dtype} {side}, compiled", f"not run: {type(error).__name__}")
        else:
            yield setting.row(f"{side}, compiled", compiled[side], operations[side])
    yield from _ours(setting, weights, operations, compiled)


def _ours(
    setting: Setting, weights: Path, operations: Mapping[str, float], compiled: Mapping[str, float]
) -> Iterator[Row]:
    """Texts as strings and images as decoded pixels, end to end."""
    sizes = setting.sizes
    device = setting.gpu.device
    rng = np.random.default_rng(0)
    options: Any = {"weights": weights, "device": str(device), "dtype": setting.dtype}
    metric: Any = capeval_core.load("clips", **options, cache=FeatureCache(0))
    texts = sentences(max(sizes.texts, sizes.images), rng)
    captions = texts[: sizes.images]
    visuals = drawn(sizes.images, rng)

    def encode() -> Any:
        return metric.encoder.encode_texts(texts, cache=FeatureCache(0))

    def score() -> Any:
        return metric.score(captions, visuals)

    a_second = len(texts) / seconds_of(encode, device, sizes.seconds)
    more = f", {a_second / compiled['texts']:.2f} of compiled"
    yield setting.row("texts, ours", a_second, operations["texts"], more)
    a_second = len(visuals) / seconds_of(score, device, sizes.seconds)
    share = operations["images"] * a_second / setting.rate
    met = None
    if setting.gpu.is_cuda:
        met = share >= GOALS[setting.name] or a_second >= OF_COMPILED * compiled["images"]
    more = f", {a_second / compiled['images']:.2f} of compiled"
    goal = f"{GOALS[setting.name]:.0%} of the rate, or {OF_COMPILED} of compiled"
    yield setting.row("images, ours", a_second, operations["images"], more, goal=goal, met=met)


def drawn(count: int, rng: np.random.Generator) -> list[Image.Image]:
    """Images of the size that a tower takes, all of them others."""
    arrays = [rng.integers(0, 256, (224, 224, 3), dtype=np.uint8) for _ in range(count)]
    return [Image.fromarray(array) for array in arrays]


def jpegs(gpu: Gpu) -> Iterator[Row]:
    """Pairs a second from a shard of JPEGs to a file of scores, beside decoding alone and computing alone."""
    sizes = Sizes.of(gpu)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [_photograph(rng) for _ in range(min(sizes.images, 512))]
        contents = [files[number % len(files)] for number in range(sizes.images)]
        rows: dict[str, Any] = {
            "uid": [str(number) for number in range(sizes.images)],
            "caption": sentences(sizes.images, rng),
            # Distinct bytes, so that no image is recognised: what follows the end of a JPEG is not read.
            "image": [data + str(number).encode() for number, data in enumerate(contents)],
        }
        pq.write_table(pa.table(rows), folder / "0.parquet", row_group_size=1_024)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            started = time.perf_counter()
            list(threads.map(_decoded, rows["image"]))
            decoding = sizes.images / (time.perf_counter() - started)
        yield Row("JPEGs of 640 x 480 decoded and scaled, all cores", f"{decoding:,.0f} a second")
        for tower in sizes.names:
            yield from _of_shard(gpu, sizes, tower, folder, rows["caption"], decoding)


def _of_shard(
    gpu: Gpu, sizes: Sizes, tower: str, folder: Path, captions: Sequence[str], decoding: float
) -> Iterator[Row]:
    """A tower's pairs a second with all at hand, and from a shard."""
    dtype = "bfloat16" if gpu.is_cuda else "float32"
    weights = make_weights(tower, folder)
    options: Any = {"weights": weights, "device": str(gpu.device), "dtype": dtype}
    metric: Any = capeval_core.load("clips", **options, cache=FeatureCache(0))
    visuals = drawn(sizes.images, np.random.default_rng(1))

    def score() -> Any:
        return metric.score(captions, visuals)

    computing = sizes.images / seconds_of(score, gpu.device, 0.0)
    yield Row(f"{tower} {dtype}, images and captions at hand", f"{computing:,.0f} pairs a second")
    started = time.perf_counter()
    score_shard(folder / "0.parquet", folder / f"{tower}.parquet", metric)
    pairs = sizes.images / (time.perf_counter() - started)
    slowest = min(decoding, computing)
    met = None
    if gpu.is_cuda:
        met = pairs >= PAIRS_A_SECOND[tower] and pairs >= OF_SLOWEST * slowest
    measured = f"{pairs:,.0f} pairs a second, {pairs / slowest:.0%} of the slower part"
    goal = f"{PAIRS_A_SECOND[tower]:,} a second, {OF_SLOWEST:.0%} of the slower part"
    yield Row(f"{tower} {dtype}, shard of JPEGs to scores", measured, goal, met)


def _photograph(rng: np.random.Generator) -> bytes:
    """A JPEG of 640 x 480 with as much detail as a photograph."""
    coarse = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8))
    Image.Image.save(
        coarse.resize((640, 480), Image.Resampling.BICUBIC), file := io.BytesIO(), "JPEG", quality=85
    )
    return file.getvalue()


def _decoded(data: bytes) -> Any:
    return np.asarray(
        Image.open(io.BytesIO(data)).convert("RGB").resize((298, 224), Image.Resampling.BICUBIC)
    )
