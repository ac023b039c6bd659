"""The seeded workload that benchmarks share: full-size CLIP weights, JPEGs, captions with references."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

if TYPE_CHECKING:
    import torch

ARCHITECTURES: dict[str, dict[str, Any]] = {
    # Quick, with features of 32 KB each, so that caches that are bounded in bytes fill within minutes.
    "wide": {
        "embed_dim": 8192,
        "vision": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1},
    },
    "ViT-B-32": {
        "embed_dim": 512,
        "vision": {"image_size": 224, "layers": 12, "width": 768, "patch_size": 32},
        "text": {"context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12},
    },
    "ViT-L-14": {
        "embed_dim": 768,
        "vision": {"image_size": 224, "layers": 24, "width": 1024, "patch_size": 14},
        "text": {"context_length": 77, "vocab_size": 49408, "width": 768, "heads": 12, "layers": 12},
    },
    "ViT-bigG-14": {
        "embed_dim": 1280,
        "vision": {
            "image_size": 224,
            "layers": 48,
            "width": 1664,
            "head_width": 104,
            "mlp_ratio": 4.9231,
            "patch_size": 14,
        },
        "text": {"context_length": 77, "vocab_size": 49408, "width": 1280, "heads": 20, "layers": 32},
    },
}

# Words of every length in tokens, so that captions are as long as people write them.
_WORDS = (
    "a the two three man woman dog child people girl boy group young old red blue white black brown large "
    "small wooden standing sitting running holding wearing riding playing jumping looking walking through "
    "grass street water beach snow field table kitchen bench horse bicycle skateboard umbrella mountain "
    "building train motorcycle surfboard frisbee with in on of near next to while over under behind and "
    "giraffes photographer cobblestone windsurfing marketplace"
)


@dataclass(frozen=True)
class Workload:
    """captions[i] belongs to images[owner[i]], and references[owner[i]] are its references."""

    captions: list[str]
    owner: list[int]
    images: list[Path]
    references: list[list[str]]


def make_weights(name: str, folder: Path) -> Path:
    """A seeded full-size CLIP as a weights folder."""
    from capeval_core.encoders.clip import ClipEncoder

    config = {**_config(name), "encoder": "clip"}
    ClipEncoder(config, _seeded(name).state_dict(), device="cpu").save_pretrained(folder / name)
    return folder / name


def make_alpha_weights(name: str, folder: Path) -> Path:
    """A seeded full-size Alpha-CLIP as a weights folder."""
    import torch

    from capeval_core.encoders.alpha_clip import AlphaClipEncoder
    from capeval_core.weights.catalogue import MASK_MEAN, MASK_STD

    tensors = _seeded(name).state_dict()
    kernel = tensors["visual.conv1.weight"]
    tensors["visual.conv1_alpha.weight"] = torch.randn_like(kernel[:, :1]) * kernel.std()
    config = {**_config(name), "encoder": "alpha_clip", "mask": {"mean": MASK_MEAN, "std": MASK_STD}}
    AlphaClipEncoder(config, tensors, device="cpu").save_pretrained(folder / f"alpha-{name}")
    return folder / f"alpha-{name}"


def _seeded(name: str) -> torch.nn.Module:
    import torch
    from open_clip.model import CLIP

    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    return CLIP(architecture["embed_dim"], architecture["vision"], architecture["text"], quick_gelu=True)


def _config(name: str) -> dict[str, Any]:
    from capeval_core.weights.catalogue import CLIP_MEAN, CLIP_STD

    size = ARCHITECTURES[name]["vision"]["image_size"]
    scaling = {"image_size": size, "mean": CLIP_MEAN, "std": CLIP_STD, "interpolation": "bicubic"}
    return {
        "format": 1,
        "architecture": ARCHITECTURES[name],
        "activation": "quick_gelu",
        "preprocessing": scaling,
    }


def make_workload(folder: Path, fraction: float, references: int = 5) -> Workload:
    """5,664 distinct captions over 1,000 JPEGs of 500x375 with 5 references each, or a fraction of that."""
    rng = np.random.default_rng(0)
    count = max(8, round(5664 * fraction))
    files = max(2, round(1000 * fraction))
    images = [_draw(folder / f"{i}.jpg", rng) for i in range(files)]
    texts = sentences(count + references * files, rng)
    groups = [texts[count + references * i : count + references * (i + 1)] for i in range(files)]
    return Workload(texts[:count], [int(i) for i in rng.integers(0, files, count)], images, groups)


def sentences(count: int, rng: np.random.Generator | None = None) -> list[str]:
    """Distinct captions of 5 to 25 words, 11.8 on average, as in Flickr8k."""
    rng = np.random.default_rng(0) if rng is None else rng
    vocabulary = _WORDS.split()
    captions: dict[str, None] = {}
    while len(captions) < count:
        words = 5 + min(20, rng.poisson(6.8))
        captions[" ".join(rng.choice(vocabulary, words)) + " ."] = None
    return list(captions)


def _draw(path: Path, rng: np.random.Generator) -> Path:
    coarse = rng.integers(0, 256, size=(12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x = rng.integers(0, 450)
        y = rng.integers(0, 325)
        size = rng.integers(20, 120)
        draw.ellipse((x, y, x + size, y + size), fill=tuple(int(c) for c in rng.integers(0, 256, 3)))
    noise = rng.integers(-12, 13, size=(375, 500, 3))
    noisy = np.clip(np.asarray(image).astype(int) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(path, quality=90)
    return path
