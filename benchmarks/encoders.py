"""Encoders on a GPU: pairs a second, share of the bfloat16 peak, and agreement of bfloat16 with float32.

    python -m benchmarks.encoders [--device cuda] [--pairs 4096] [--peak TFLOPS]

The peak is measured in the same run (a large bfloat16 matrix product) unless it is given. Weights are seeded,
so agreement is that of the arithmetic, on features less spread than real ones.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import capeval_core
from benchmarks.workload import ARCHITECTURES, make_weights, make_workload
from capeval_core.cache import FeatureCache
from capeval_core.inputs.visual import InputImage

NOTHING = FeatureCache(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pairs", type=int, default=4096)
    parser.add_argument("--peak", type=float, help="bfloat16 TFLOP/s to compare with; default: measured here")
    arguments = parser.parse_args()
    peak = arguments.peak or matmul_peak(arguments.device)
    print(f"{arguments.device}: bfloat16 peak {peak:.0f} TFLOP/s")
    with tempfile.TemporaryDirectory() as folder:
        for name in ARCHITECTURES:
            report(name, Path(folder), arguments.device, arguments.pairs, peak)


def report(name: str, folder: Path, device: str, pairs: int, peak: float) -> None:
    weights = make_weights(name, folder)
    workload = make_workload(folder, pairs / 5664, references=0)
    captions = workload.captions[:pairs]
    files = [workload.images[i] for i in workload.owner[:pairs]]
    low = capeval_core.load("pacs", weights=weights, device=device, dtype="bfloat16", cache=NOTHING)
    pixels = np.stack([low.encoder.preprocessing.pixels(Image.open(path)) for path in workload.images[:64]])
    arrays = [
        InputImage.of(np.roll(pixels[i % len(pixels)].transpose(1, 2, 0), i, axis=0)) for i in range(pairs)
    ]

    seconds = timed(lambda: [None for _ in low.encoder.encode_images(arrays, cache=NOTHING)], device)
    words = [f"A photo depicts {caption}" for caption in captions]
    text_seconds = timed(lambda: low.encoder.encode_texts(words, cache=NOTHING), device)
    flops = image_flops(name) * pairs
    print(
        f"{name}: images {pairs / seconds:8.0f}/s ({flops / seconds / peak / 1e12:5.1%} of the peak)  "
        f"captions {len(words) / text_seconds:8.0f}/s  pairs {pairs / (seconds + text_seconds):8.0f}/s"
    )
    from_files = timed(lambda: low.score(captions, files), device)
    print(f"{name}: from JPEG, checked first, {len(captions) / from_files:8.0f} pairs/s")
    full = capeval_core.load("pacs", weights=weights, device=device, cache=NOTHING).score(captions, files)
    half = low.score(captions, files)
    a, b = np.array(full.scores), np.array(half.scores)
    agreement = f"|difference| {np.abs(a - b).max():.4f}, tau {kendall(a, b):.4f}"
    print(f"{name}: bfloat16 to float32: {agreement}")


def timed(run: object, device: str) -> float:
    run()  # type: ignore[operator]  # warm-up
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()  # type: ignore[operator]
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start


def matmul_peak(device: str) -> float:
    """TFLOP/s of the best bfloat16 matrix product found here."""
    size = 8192 if device.startswith("cuda") else 1024
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    return max(2 * size**3 * 10 / timed(lambda: [a @ a for _ in range(10)], device) / 1e12 for _ in range(3))


def image_flops(name: str) -> float:
    """Floating-point operations of one image through the whole tower, the skipped ones included."""
    vision = ARCHITECTURES[name]["vision"]
    width, layers = vision["width"], vision["layers"]
    tokens = (vision["image_size"] // vision["patch_size"]) ** 2 + 1
    patches = 2 * (tokens - 1) * 3 * vision["patch_size"] ** 2 * width
    return patches + layers * (24 * tokens * width**2 + 4 * tokens**2 * width)


def kendall(a: np.ndarray, b: np.ndarray) -> float:
    from scipy.stats import kendalltau

    return float(kendalltau(a, b).statistic)


if __name__ == "__main__":
    main()
