"""CLIP's towers in bfloat16: pictures and texts a second, each way of running them, share of the matrix peak.

The share counts operations that are carried out (the last block runs for one row of each sequence); beside it
stands that of the whole tower, as others count it. Weights are seeded, of full size, drawn on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.cuda.agreement import Subject, agreement
from benchmarks.cuda.flops import ARCHITECTURES, text_flops, vision_flops
from benchmarks.cuda.measuring import Gpu, Row, failure, or_failure
from benchmarks.cuda.seeded import drawn, encoder_of
from benchmarks.workload import sentences
from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.cuda_blocks import PYTORCH, Kernels
from capeval_core.matching.cosine import paired_cosine
from capeval_core.models.device import exact_float32

GOALS = {"ViT-B-32": 0.6, "ViT-L-14": 0.7, "ViT-bigG-14": 0.8}
BATCHES = {"ViT-B-32": (256, 1024), "ViT-L-14": (256,), "ViT-bigG-14": (256,)}
TEXTS = 16_384
WAYS: dict[str, Kernels | None] = {
    "open_clip's steps": None,
    "PyTorch's steps, packed": PYTORCH,
    "our passes": Kernels(attention=False),
    "our passes and attention": Kernels(),
}


def measure(gpu: Gpu) -> Iterator[Row]:
    """Images and texts of each tower, agreement after the first; then what could become a default."""
    for name, goal in GOALS.items():
        clip = seeded_clip(gpu, name, "bfloat16")
        yield from or_failure(f"{name} images", partial(images, gpu, clip, name, goal))
        yield from or_failure(f"{name} texts", partial(texts, gpu, clip, name, goal))
        del clip
        if name == "ViT-B-32":
            yield from agreement(gpu, Subject(("pacs",), f"{name}, seeded"), cosines_of(gpu, name))
        if gpu.is_cuda:
            torch.cuda.empty_cache()
    for name in ("ViT-B-32", "ViT-L-14"):
        clip = seeded_clip(gpu, name, "bfloat16")
        yield from or_failure(f"{name}, candidates", partial(candidates, gpu, clip, name))


def seeded_clip(gpu: Gpu, name: str, dtype: str, device: str | None = None) -> ClipEncoder:
    """A CLIP of full size, drawn on the device that is measured; in a rehearsal with two narrow layers."""
    architecture = {tower: dict(part) for tower, part in _towers(name).items()}
    if gpu.small:
        for tower in ("vision", "text"):
            architecture[tower] |= {"layers": 2, "width": 64}
        architecture["vision"] |= {"head_width": 32, "image_size": 2 * architecture["vision"]["patch_size"]}
        architecture["text"] |= {"heads": 2}
    embed_dim = 64 if gpu.small else ARCHITECTURES[name]["embed_dim"]
    size = architecture["vision"]["image_size"]
    config = {
        "format": 1,
        "encoder": "clip",
        "architecture": {"embed_dim": embed_dim, **architecture},
        "activation": "gelu" if name == "ViT-bigG-14" else "quick_gelu",
        "preprocessing": {"image_size": size, "mean": [0.48] * 3, "std": [0.27] * 3},
    }
    tensors = drawn(gpu, ClipEncoder.empty(config))
    clip: ClipEncoder = encoder_of(gpu, ClipEncoder, config, tensors, dtype, device)
    return clip


def _towers(name: str) -> dict[str, dict[str, Any]]:
    return {tower: ARCHITECTURES[name][tower] for tower in ("vision", "text")}


def images(gpu: Gpu, clip: ClipEncoder, name: str, goal: float) -> Iterator[Row]:
    """Pictures a second of each way; the best of them against the goal."""
    peak, shares = gpu.peak(torch.bfloat16), {}
    performed, whole = (vision_flops(clip.config["architecture"], read=read) for read in (1, None))
    for batch in (2,) if gpu.small else BATCHES[name]:
        pixels = random_pixels(gpu, clip, batch)
        expected = run_images(clip, None, pixels[:2])
        for way, kernels in ways(gpu).items():
            if kernels == WAYS["our passes"]:
                continue  # an image tower has no causal attention
            what = f"{name} images, batch {batch}, {way}"
            try:
                features = run_images(clip, kernels, pixels)
                off = relative(features[:2], expected)
                equal = torch.equal(features, run_images(clip, kernels, pixels))
                seconds = gpu.device_seconds(partial(run_images, clip, kernels, pixels), repeats=7)
            except Exception as error:
                yield failure(what, error)
                continue
            share = performed * batch / seconds / peak
            shares[what] = share
            yield Row(
                what,
                f"{batch / seconds:,.0f} pictures/s, {share:.1%} of the peak (as the whole tower "
                f"{share * whole / performed:.1%}), {off:.1e} from open_clip's steps on two pictures, "
                f"two runs {'bit-equal' if equal else 'DIFFER'}",
            )
    if shares:
        best = max(shares, key=lambda way: shares[way])
        yield Row.at_least(f"{best} (best), share of the peak", shares[best], goal, "{:.1%}")


def texts(gpu: Gpu, clip: ClipEncoder, name: str, goal: float) -> Iterator[Row]:
    """Texts a second of each way, from token ids on the host to features on the host."""
    peak, shares = gpu.peak(torch.bfloat16), {}
    prompted = [f"A photo depicts {text}" for text in sentences(32 if gpu.small else TEXTS)]
    ids = sorted(set(clip.tokenizer.encode(prompted).ids), key=lambda row: (len(row), row))
    lengths = [len(row) for row in ids]
    flops = text_flops(clip.config["architecture"], lengths, shared=4)
    expected = None
    for way, kernels in ways(gpu).items():
        if kernels == WAYS["our passes, attention and product"] and gpu.small:
            continue
        what = f"{name} texts, {len(ids)}, {way}"
        try:
            features = run_texts(clip, kernels, ids)
            expected = features if expected is None else expected
            off = relative(torch.from_numpy(features), torch.from_numpy(expected))
            seconds = gpu.seconds(partial(run_texts, clip, kernels, ids), repeats=5)
        except Exception as error:
            yield failure(what, error)
            continue
        shares[what] = flops / seconds / peak
        yield Row(
            what,
            f"{len(ids) / seconds:,.0f} texts/s, {shares[what]:.1%} of the peak, {off:.1e} from open_clip's "
            f"steps",
        )
    if shares:
        best = max(shares, key=lambda way: shares[way])
        yield Row.at_least(f"{best} (best), share of the peak", shares[best], goal, "{:.1%}")
    seconds = gpu.seconds(lambda: clip.tokenizer.encode(prompted), repeats=1, warm_up=0)
    yield Row(f"{name} texts, tokenising alone", f"{len(prompted) / seconds:,.0f} texts/s on the host")


def candidates(gpu: Gpu, clip: ClipEncoder, name: str) -> Iterator[Row]:
    """Backends of attention, a graph, small batches: what could become a default."""
    batch = 2 if gpu.small else BATCHES[name][0]
    pixels = random_pixels(gpu, clip, batch)
    best = PYTORCH if gpu.small else Kernels()
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        if gpu.is_cuda:
            yield from timed_way(
                gpu, clip, f"{name} images, {backend.name}", pixels, best, sdpa_kernel(backend)
            )
    few = random_pixels(gpu, clip, 2 if gpu.small else 8)
    yield from timed_way(gpu, clip, f"{name} images, batch {len(few)}", few, best)
    if gpu.is_cuda:
        yield from or_failure(f"{name}, graph", partial(graph, gpu, clip, name, few, best))
    yield from or_failure(f"{name}, compiled", partial(compiled, gpu, clip, name, pixels))


def graph(gpu: Gpu, clip: ClipEncoder, name: str, pixels: Tensor, kernels: Kernels) -> Iterator[Row]:
    """A small batch as one CUDA graph: what launches cost."""
    expected, captured = run_images(clip, kernels, pixels), torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        features = run_images(clip, kernels, pixels)
    seconds = gpu.seconds(captured.replay)
    off = relative(features, expected)
    yield Row(
        f"{name} images, batch {len(pixels)}, as a graph",
        f"{len(pixels) / seconds:,.0f} pictures/s, {off:.1e} from one by one",
    )


def compiled(gpu: Gpu, clip: ClipEncoder, name: str, pixels: Tensor) -> Iterator[Row]:
    """PyTorch's steps of a block, compiled once for all blocks of the tower."""
    visual = clip.model.visual
    backend = "inductor" if gpu.is_cuda else "aot_eager"
    block = torch.compile(lambda layer, x: layer(x), backend=backend, dynamic=False)

    @torch.inference_mode()
    def run() -> Tensor:
        x = visual.conv1(clip.normalised(pixels.float() / 255).to(torch.bfloat16))
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([visual.class_embedding.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
        x = visual.ln_pre(x + visual.positional_embedding.to(x.dtype))
        for layer in visual.transformer.resblocks:
            x = block(layer, x)
        features: Tensor = visual.ln_post(x[:, 0]) @ visual.proj
        return features

    off = relative(run(), run_images(clip, None, pixels))
    seconds = gpu.device_seconds(run, repeats=7)
    share = vision_flops(clip.config["architecture"]) * len(pixels) / seconds / gpu.peak(torch.bfloat16)
    yield Row(
        f"{name} images, batch {len(pixels)}, open_clip's blocks compiled",
        f"{len(pixels) / seconds:,.0f} pictures/s, {share:.1%} of the peak, {off:.1e} from open_clip's steps",
    )


def timed_way(
    gpu: Gpu, clip: ClipEncoder, what: str, pixels: Tensor, kernels: Kernels, setting: Any = None
) -> Iterator[Row]:
    try:
        with setting or nullcontext():
            seconds = gpu.seconds(partial(run_images, clip, kernels, pixels), repeats=7)
    except Exception as error:
        yield failure(what, error)
        return
    yield Row(what, f"{len(pixels) / seconds:,.0f} pictures/s")


def ways(gpu: Gpu) -> dict[str, Kernels | None]:
    """Those that can run here: without CUDA, no kernels of ours."""
    return {way: kernels for way, kernels in WAYS.items() if gpu.is_cuda or kernels in (None, PYTORCH)}


@torch.inference_mode()
def run_images(clip: ClipEncoder, kernels: Kernels | None, pixels: Tensor) -> Tensor:
    """(n, d) features of pixels on the device, in one way."""
    clip.kernels = kernels
    with exact_float32(clip.device):
        return clip.run_images(pixels)


def run_texts(clip: ClipEncoder, kernels: Kernels | None, ids: list[Any]) -> np.ndarray:
    """(n, d) features of sorted token ids, in one way."""
    clip.kernels = kernels
    return np.concatenate([rows for _, rows in clip._run_texts(ids, None, every=False)])


def random_pixels(gpu: Gpu, clip: ClipEncoder, batch: int) -> Tensor:
    generator = torch.Generator(gpu.device).manual_seed(0)
    shape = (batch, 3, *(2 * (clip.preprocessing.image_size,)))
    return torch.randint(0, 256, shape, generator=generator, device=gpu.device, dtype=torch.uint8)


def cosines_of(gpu: Gpu, name: str) -> Callable[[str, str], dict[str, Any]]:
    """Features and cosines of the same pictures and texts on any device, in any dtype."""

    def run(device: str, dtype: str) -> dict[str, Any]:
        clip = seeded_clip(gpu, name, dtype, device)
        pixels = np.random.default_rng(0).integers(0, 256, (8 if gpu.small else 64, 12, 12, 3), np.uint8)
        size = clip.preprocessing.image_size
        large = torch.nn.functional.interpolate(torch.from_numpy(pixels).permute(0, 3, 1, 2).float(), size)
        of_images = run_images(clip, clip.kernels, large.byte().to(device)).float().cpu().numpy()
        prompted = [f"A photo depicts {text}" for text in sentences(len(pixels))]
        of_texts = clip.encode_texts(prompted, cache=FeatureCache(0)).features
        scores = 2 * np.maximum(paired_cosine(of_images, of_texts), 0)
        return {"images": of_images, "texts": of_texts, "scores": scores}

    return run


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest distance of two rows, relative to their length."""
    off = (found.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1)
    return float(off.max())
