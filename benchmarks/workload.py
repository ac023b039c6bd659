"""The seeded workload that benchmarks share: full-size CLIP weights, JPEGs, captions with references."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

ARCHITECTURES = {
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
    """captions[i] belongs to pictures[owner[i]], and references[owner[i]] are its references."""

    captions: list[str]
    owner: list[int]
    pictures: list[Path]
    references: list[list[str]]


def make_weights(name: str, folder: Path) -> Path:
    """A seeded full-size CLIP as a weights folder."""
    import torch
    from open_clip.model import CLIP

    from capeval_core.encoders.clip import ClipEncoder
    from capeval_core.weights.constants import CLIP_MEAN, CLIP_STD

    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = CLIP(architecture["embed_dim"], architecture["vision"], architecture["text"], quick_gelu=True)
    config = {
        "format": 1,
        "encoder": "clip",
        "architecture": architecture,
        "activation": "quick_gelu",
        "preprocessing": {"image_size": 224, "mean": CLIP_MEAN, "std": CLIP_STD, "interpolation": "bicubic"},
    }
    ClipEncoder(config, model.state_dict(), device="cpu").save_pretrained(folder / name)
    return folder / name


def make_workload(folder: Path, fraction: float, references: int = 5) -> Workload:
    """5,664 distinct captions over 1,000 JPEGs of 500x375 with 5 references each, or a fraction of that."""
    rng = np.random.default_rng(0)
    count, files = max(8, round(5664 * fraction)), max(2, round(1000 * fraction))
    pictures = [_draw(folder / f"{i}.jpg", rng) for i in range(files)]
    texts = _sentences(count + references * files, rng)
    groups = [texts[count + references * i : count + references * (i + 1)] for i in range(files)]
    return Workload(texts[:count], [int(i) for i in rng.integers(0, files, count)], pictures, groups)


def _sentences(count: int, rng: np.random.Generator) -> list[str]:
    """Distinct captions of 5 to 25 words, 11.8 on average, as in Flickr8k."""
    vocabulary = _WORDS.split()
    found: dict[str, None] = {}
    while len(found) < count:
        words = 5 + min(20, rng.poisson(6.8))
        found[" ".join(rng.choice(vocabulary, words)) + " ."] = None
    return list(found)


def _draw(path: Path, rng: np.random.Generator) -> Path:
    coarse = rng.integers(0, 256, size=(12, 16, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(6):
        x, y, size = rng.integers(0, 450), rng.integers(0, 325), rng.integers(20, 120)
        draw.ellipse((x, y, x + size, y + size), fill=tuple(int(c) for c in rng.integers(0, 256, 3)))
    noise = rng.integers(-12, 13, size=(375, 500, 3))
    noisy = np.clip(np.asarray(picture).astype(int) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(path, quality=90)
    return path


def peak_memory() -> float:
    """Peak resident memory of this process so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


def in_own_process(module: str, *arguments: str) -> str:
    """Standard output of one side of a comparison, which runs alone so that its peak memory is its own."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return done.stdout
