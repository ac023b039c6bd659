"""HICE-S on CUDA: 64 images with 30 masks and 4 captions each, Alpha-CLIP ViT-L/14.

Against a forward per mask and caption (open_clip's towers, the plain loop of `benchmarks.hice`), by images of
which it is timed on few and scaled; its share of the peak; memory by masks; agreement of devices and types.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cuda.agreement import Outputs, Subject, compare_devices, compare_dtypes, repeats_equal
from benchmarks.cuda.flops import alpha_clip_flops
from benchmarks.cuda.measuring import Gpu, Row, or_failure
from benchmarks.cuda.seeded import drawn, encoder_of
from benchmarks.hice import CAPTIONS, MASKS, SIZE, PlainLoop, hice_metric, make_captions, terms_of
from benchmarks.workload import ARCHITECTURES, peak_memory

IMAGES = 64
NUMBERS = (30, 64, 1024)
"""Masks of one image, by which memory shall not grow."""
BATCH = 32
"""Rows per forward pass there, so that the fewest masks fill one."""
SMALL = {
    "embed_dim": 32,
    "vision": {"image_size": 28, "layers": 2, "width": 128, "patch_size": 14},
    "text": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}


def measure(gpu: Gpu) -> Iterator[Row]:
    import torch

    from capeval_core.encoders.alpha_clip import AlphaClipEncoder

    architecture = SMALL if gpu.small else ARCHITECTURES["ViT-L-14"]
    images, masks = (4, 5) if gpu.small else (IMAGES, MASKS)
    config = alpha_config(architecture)
    tensors = drawn(gpu, AlphaClipEncoder.empty(config))

    def metric(dtype: str, device: str | None = None, **options: Any) -> Any:
        options = {"masks": masks, **options}
        made = hice_metric("tiny", cache=_nothing(), device=device or str(gpu.device), **options)
        made.encoder = encoder_of(gpu, AlphaClipEncoder, config, tensors, dtype, device)
        return made

    with tempfile.TemporaryDirectory() as folder:
        workload = make_captions(Path(folder), images)
        files = [workload.images[i] for i in workload.owner]
        low = metric("bfloat16")
        peak = gpu.peak(torch.bfloat16)
        flops = alpha_clip_flops(architecture, images, images * (1 + masks))
        setting = f"{images} JPEGs of 500x375, {masks} masks"

        encoding = gpu.seconds(lambda: _regions(low, workload.images), repeats=3, warm_up=1)
        rows = images * (1 + masks) / encoding
        yield Row(f"region encoder, bf16, {setting}: rows/s", f"{rows:.0f}")
        yield Row.at_least("region encoder: share of the bf16 peak", flops / encoding / peak, 0.5)
        scoring = gpu.seconds(lambda: low.score(workload.captions, files), repeats=3, warm_up=1)
        yield Row(f"HICE-S, bf16, {setting}, {CAPTIONS} captions: pairs/s", f"{len(files) / scoring:.0f}")
        yield Row.at_least(
            "HICE-S: share of the bf16 peak, the image tower's operations alone", flops / scoring / peak, 0.5
        )
        few = 1 if gpu.small else 2
        loop = PlainLoop(architecture, low.encoder.model.state_dict(), low)
        pairs = list(zip(files, workload.captions, strict=True))[: few * CAPTIONS]
        each = gpu.seconds(lambda: [loop.terms(*pair) for pair in pairs], repeats=1, warm_up=1) / few * images
        name = f"a forward per mask and caption, by {few} of {images} images"
        yield Row.at_least(f"{name}: time over ours", each / scoring, 4, "{:.1f}")
        batch = np.concatenate([*map(_stacked, [loop.prepared(files[0])])])
        together = gpu.seconds(lambda: loop.images(batch)) * CAPTIONS * images
        yield Row(
            f"one forward of {len(batch)} rows per caption, preprocessing and texts left out: time over ours",
            f"{together / scoring:.1f}",
        )
        yield from or_failure("memory by masks", partial(memory, gpu, metric))
        yield from or_failure("agreement", partial(agreements, gpu, metric, workload.captions, files))


def memory(gpu: Gpu, metric: Callable[..., Any]) -> Iterator[Row]:
    """Peak memory with one large image by its masks, of the device and of the host."""
    numbers = (5, 70) if gpu.small else NUMBERS
    image = np.zeros((150, 200, 3) if gpu.small else (*SIZE, 3), np.uint8)
    on_device, on_host = [], []
    for count in (numbers[0], *numbers):  # the first time warms up
        one = metric("bfloat16", masks=count, batch_size=BATCH)
        one.region_source.segment(image)  # made beforehand, and kept
        _reset_peak_memory()
        before = peak_memory()
        on_device.append(gpu.memory(lambda one=one: one.score(["a red circle"], [image])) / 1e6)
        on_host.append(peak_memory() - before)
        if len(on_device) > 1:
            yield Row(
                f"memory, batches of {BATCH}, an image of {image.shape[1]}x{image.shape[0]}, {count} masks",
                f"device {on_device[-1]:.0f} MB, host {on_host[-1]:.0f} MB",
            )
    if gpu.is_cuda:
        ratio = on_device[-1] / on_device[-2]
        yield Row.at_most(f"device memory, {numbers[-1]} masks over {numbers[-2]}", ratio, 1.05, "{:.2f}")


def agreements(gpu: Gpu, metric: Callable[..., Any], captions: list[str], files: list[Any]) -> Iterator[Row]:
    """g, P, R and scores: the device against the CPU, bfloat16 and float16 against float32, two runs."""

    def terms(images: int, device: str, dtype: str) -> Outputs:
        chosen = slice(images * CAPTIONS)
        one = metric(dtype, device)
        found = one.encode_all(one.check(captions[chosen], files[chosen]))
        terms = np.array(terms_of(found))
        return {"scores": one.aggregate(found).scores, "g": terms[:, 0], "P": terms[:, 1], "R": terms[:, 2]}

    subject = Subject(("hices",), "tiny shapes, seeded" if gpu.small else "Alpha-CLIP ViT-L/14, seeded")
    few, some = partial(terms, 1), cache(partial(terms, 4 if gpu.small else 16))
    yield from compare_devices(gpu, subject, few)
    yield from repeats_equal(gpu, subject, partial(terms, 4), dtype="bfloat16")
    yield from compare_dtypes(gpu, subject, some)


def alpha_config(architecture: dict[str, Any]) -> dict[str, Any]:
    """The config of an Alpha-CLIP of this architecture."""
    from capeval_core.weights.catalogue import CLIP_MEAN, CLIP_STD, MASK_MEAN, MASK_STD

    size = architecture["vision"]["image_size"]
    return {
        "format": 1,
        "encoder": "alpha_clip",
        "architecture": architecture,
        "activation": "quick_gelu",
        "preprocessing": {"image_size": size, "mean": CLIP_MEAN, "std": CLIP_STD, "interpolation": "bicubic"},
        "mask": {"mean": MASK_MEAN, "std": MASK_STD},
    }


def _regions(metric: Any, files: list[Path]) -> None:
    from capeval_core.inputs.visual import InputImage

    shown = [InputImage.of(path) for path in files]
    for _ in metric.encoder.encode_regions(shown, metric.region_source, cache=_nothing()):
        pass


def _nothing() -> Any:
    from capeval_core.cache import FeatureCache

    return FeatureCache(0)


def _stacked(prepared: tuple[Any, Any]) -> Any:
    pixels, masks = prepared
    return np.concatenate([np.broadcast_to(pixels, (len(masks), *pixels.shape)), masks], axis=1)


def _reset_peak_memory() -> None:
    """Let the peak of resident memory be the present one, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
