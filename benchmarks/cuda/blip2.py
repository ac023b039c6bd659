"""BLIP-2 on CUDA: ViT-g at 364 pixels and the Q-Former, 60 captions an image, as ECO matches them.

Against transformers' own forward for each caption (`benchmarks.blip2`), which is timed over few and
multiplied; its share of the peak; memory by captions; agreement of devices and types; and the memory of an
ensemble of ECO, whose models come one after another.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.blip2 import VISION, config_of, drawn_pairs, loop, repeat, values_of
from benchmarks.cuda.agreement import Outputs, Subject, compare_devices, compare_dtypes, repeats_equal
from benchmarks.cuda.flops import blip2_flops
from benchmarks.cuda.measuring import Gpu, Row, or_failure
from benchmarks.cuda.seeded import drawn, encoder_of
from benchmarks.cuda.towers import ways
from benchmarks.workload import ARCHITECTURES

IMAGES, CAPTIONS = 32, 60
LOOPED = 4
"""Captions of one image that the plain loop is timed over."""
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2} | {
    "image_size": 28,
    "patch_size": 14,
}


def measure(gpu: Gpu) -> Iterator[Row]:
    import torch

    from capeval_core.cache import FeatureCache
    from capeval_core.encoders.blip2 import Blip2Encoder

    count, captions = (2, 5) if gpu.small else (IMAGES, CAPTIONS)
    config = config_of(SMALL if gpu.small else VISION["release"])
    tensors = drawn(gpu, Blip2Encoder.empty(config))
    images, texts = drawn_pairs(count, captions)

    def match(encoder: Any, images: list[Any], texts: list[list[str]]) -> Any:
        return np.stack([values_of(found) for found in encoder.match(images, texts, cache=FeatureCache(0))])

    low = encoder_of(gpu, Blip2Encoder, config, tensors, "bfloat16")
    peak = gpu.peak(torch.bfloat16)
    lengths = [[len(ids) for ids in low.tokenizer.encode(own).ids] for own in texts]
    flops = sum(blip2_flops(config["architecture"], own) for own in lengths)
    seconds = gpu.seconds(lambda: match(low, images, texts), repeats=3, warm_up=1)
    setting = f"bf16, {count} images of 640x480, {captions} captions each"
    rates = f"{count / seconds:.1f} images/s, {count * captions / seconds:.0f} pairs/s"
    yield Row(f"match, {setting}", rates)
    yield Row("match: share of the bf16 peak, padding not counted", f"{flops / seconds / peak:.2f}")
    yield from tower(gpu, low, images)
    few = texts[0][:LOOPED]
    with torch.inference_mode():
        looped = gpu.seconds(lambda: loop(low, images[0], few), repeats=3, warm_up=1) / len(few) * captions
        repeated = gpu.seconds(lambda: repeat(low, images[0], texts[0]), repeats=3, warm_up=1)
        plain = loop(low, images[0], few)
    each = seconds / count
    yield Row(f"a forward each, over {len(few)} captions: time over ours", f"{looped / each:.1f}")
    yield Row("an image's states repeated for its captions: time over ours", f"{repeated / each:.1f}")
    ours = match(low, images[:1], texts[:1])[0]
    off = float(np.abs(ours[: len(few)] - plain).max())
    yield Row.at_most("bf16, to a forward each: largest difference of ITC and ITM", off, 0.02)
    yield from or_failure("memory by captions", lambda: memory(gpu, lambda *pairs: match(low, *pairs)))
    yield from or_failure("agreement", lambda: agreements(gpu, config, tensors, match, images, texts))
    yield from or_failure("ECO", lambda: ensemble(gpu))


def memory(gpu: Gpu, match: Any) -> Iterator[Row]:
    """Peak memory by the captions of an image."""
    for number in (2, 4) if gpu.small else (4, 60, 240):
        more = drawn_pairs(8, number)
        used = gpu.memory(lambda more=more: match(*more)) / 1e6
        yield Row(f"memory of 8 images, {number} captions each", f"{used:.0f} MB")


def tower(gpu: Gpu, low: Any, images: list[Any]) -> Iterator[Row]:
    """The image tower alone, by transformers' steps and in the other ways that can run here."""
    pixels = [low.prepare_visual(image.load()) for image in images]
    for way, kernels in ways(gpu).items():
        other = copy.copy(low)
        other.kernels = kernels
        seconds = gpu.seconds(partial(other.states, pixels), repeats=3, warm_up=1)
        name = "transformers' steps" if kernels is None else way
        yield Row(f"image tower, bf16, {name}", f"{len(pixels) / seconds:.1f} images/s")


def agreements(
    gpu: Gpu, config: Any, tensors: Any, match: Any, images: list[Any], texts: list[list[str]]
) -> Iterator[Row]:
    """ITC and ITM: the device against the CPU, bfloat16 and float16 against float32, two runs."""
    from capeval_core.encoders.blip2 import Blip2Encoder

    def values(count: int, captions: int, device: str, dtype: str) -> Outputs:
        encoder = encoder_of(gpu, Blip2Encoder, config, tensors, dtype, device)
        found = match(encoder, images[:count], [own[:captions] for own in texts[:count]]).reshape(-1, 2)
        return {"scores": found[:, 0], "ITM": found[:, 1]}  # ECO's value is the ITC, its filter the ITM

    subject = Subject(("eco",), "tiny shapes, seeded" if gpu.small else "BLIP-2 ViT-g, seeded")
    some = (2, 5) if gpu.small else (8, 60)
    yield from compare_devices(gpu, subject, partial(values, 1, LOOPED))
    yield from repeats_equal(gpu, subject, partial(values, *some), dtype="bfloat16")
    yield from compare_dtypes(gpu, subject, cache(partial(values, *some)))


def ensemble(gpu: Gpu) -> Iterator[Row]:
    """Device memory while ECO's members run one after another, and what each leaves behind."""
    import capeval_core

    with tempfile.TemporaryDirectory() as folder:
        weights, members = ("tiny", "tiny") if gpu.small else ensemble_weights(gpu, Path(folder))
        options = {"device": str(gpu.device), "dtype": "bfloat16"}
        eco: Any = capeval_core.load("eco", weights=weights, members=members, **options)
        peaks: dict[str, float] = {}
        run_member = eco._member_rows

        def measured(member: Any, *given: Any) -> Any:
            tables = []
            peaks[member.name] = gpu.memory(lambda: tables.append(run_member(member, *given))) / 1e6
            return tables[0]

        eco._member_rows = measured
        images, texts = drawn_pairs(*((2, 3) if gpu.small else (16, 10)))
        before = _allocated(gpu)
        eco.score(texts, [image.load() for image in images])
        parts = ", ".join(f"{name} {used:.0f}" for name, used in peaks.items())
        yield Row("ECO, device memory of each member at its peak, MB", parts)
        left = (_allocated(gpu) - before) / 1e6
        yield Row.at_most("ECO, device memory left behind by all members, MB", left, 32, "{:.0f}")


def ensemble_weights(gpu: Gpu, folder: Path) -> tuple[str, str]:
    """Folders of a BLIP-2 with ViT-B, of CLIP ViT-L/14 and of ViT-B/32, all drawn: weights and members."""
    from benchmarks.cuda.hice import alpha_config
    from capeval_core.encoders.blip2 import Blip2Encoder
    from capeval_core.encoders.clip import ClipEncoder

    configs: dict[str, tuple[Any, dict[str, Any]]] = {
        "blip2": (Blip2Encoder, {**config_of(VISION["base"]), "encoder": "blip2", "format": 1})
    }
    for name, architecture in ARCHITECTURES.items():
        configs[name] = (ClipEncoder, {**alpha_config(architecture), "encoder": "clip"})
    for name, (kind, config) in configs.items():
        tensors = drawn(gpu, kind.empty(config))
        encoder_of(gpu, kind, config, tensors, "float32").save_pretrained(folder / name)
    paths = {name: str(folder / name) for name in configs}
    return paths.pop("blip2"), ",".join(["blip2-itc", *paths.values()])


def _allocated(gpu: Gpu) -> float:
    import torch

    return float(torch.cuda.memory_allocated(gpu.device)) if gpu.is_cuda else 0.0
