"""HICE-S beside a forward per mask and caption, on a seeded Alpha-CLIP ViT-L/14 with given masks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from benchmarks.workload import make_alpha_weights, make_workload
from capeval_core.cache import FeatureCache
from capeval_core.inputs.images import InputImage
from capeval_core.regions import rle
from capeval_core.regions.regions import Regions, RegionSource
from capeval_core.scores.hice import HiceOptions, HiceS

MODEL = "ViT-L-14"
MASKS = 30


def terms_of(rows: Any) -> list[list[float]]:
    """g, P and R of each row: raw cosines and means of maxima."""
    return [
        [row["cosine"], _mean(row["phrase_maxima"]), _mean(row["region_maxima"])] for row in rows.to_pylist()
    ]


class PlainLoop:
    """As one would write it with open_clip's towers: a forward for each mask and each caption."""

    def __init__(self, architecture: dict[str, Any], tensors: dict[str, Any], metric: Any) -> None:
        self.encoder = metric.encoder
        self.source = metric.regions
        self.phrases = metric.phrases
        model, self._tokenize = _open_clip(architecture, dict(tensors))
        self.model = model.eval().to(self.encoder.device)

    def image(self, pixels: NDArray[np.float32], mask: NDArray[np.float32]) -> Any:
        channels = torch.from_numpy(np.concatenate([pixels, mask])[None]).to(self.encoder.device)
        return self.model.encode_image(channels, normalize=True)[0]

    def text(self, text: str) -> Any:
        return self.model.encode_text(self._tokenize([text]).to(self.encoder.device), normalize=True)[0]

    def prepared(self, path: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Pixels (3, s, s) and masks (1 + n, 1, s, s) of an image, the full one first."""
        image = Image.open(path)
        full_mask = np.ones((1, image.height, image.width), np.bool_)
        masks = np.concatenate([full_mask, self.source.find(InputImage.of(path)).masks()])
        return self.encoder.preprocess(image), self.encoder.preprocess_masks(masks)

    @torch.inference_mode()
    def terms(self, path: Path, caption: str) -> list[float]:
        """g, P and R of a caption with its image."""
        pixels, masks = self.prepared(path)
        full_image, *regions = [self.image(pixels, mask) for mask in masks]
        phrases = [self.text(phrase) for phrase in self.phrases.phrases([caption])[0].phrases]
        cosines = torch.stack(phrases) @ torch.stack(regions).T
        global_term = float(full_image @ self.text(caption))
        return [global_term, float(cosines.amax(1).mean()), float(cosines.amax(0).mean())]


class Ellipses(RegionSource):
    """The same masks in every image of a size."""

    name = fingerprint = "ellipses"

    def find(self, image: InputImage) -> Regions:
        regions: Regions = ellipses(*image.load().size)
        return regions


@cache
def ellipses(width: int, height: int) -> Regions:
    """Ellipses in the middle of every image of this size."""
    rng = np.random.default_rng(0)
    x = np.arange(width)
    runs = []
    for _ in range(MASKS):
        across, down = rng.uniform(0.3, 0.7, 2) * (width, height)
        wide, high = rng.uniform(0.05, 0.25, 2) * (width, height)
        columns = x[np.abs(x - across) <= wide]
        half = high * np.sqrt(1 - ((columns - across) / wide) ** 2)
        top = np.ceil(down - half).astype(np.int64)
        bottom = np.floor(down + half).astype(np.int64) + 1
        some = top < bottom
        starts, ends = (columns * height + row for row in (top, bottom))
        runs.append(rle.of_intervals(starts[some], ends[some], (height, width)))
    return Regions.of_runs(runs, (height, width))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _open_clip(architecture: dict[str, Any], tensors: dict[str, Any]) -> tuple[Any, Any]:
    """open_clip's own model and tokenizer; its first layer takes a fourth channel, the mask."""
    from open_clip.model import CLIP
    from open_clip.tokenizer import SimpleTokenizer

    class Both(torch.nn.Module):
        def __init__(self, image: torch.nn.Module, mask: torch.nn.Module) -> None:
            super().__init__()
            self.image = image
            self.mask = mask

        def forward(self, channels: torch.Tensor) -> torch.Tensor:
            summed: torch.Tensor = self.image(channels[:, :3]) + self.mask(channels[:, 3:])
            return summed

    with torch.device("meta"):
        model = CLIP(architecture["embed_dim"], architecture["vision"], architecture["text"], quick_gelu=True)
    kernel = tensors.pop("visual.conv1_alpha.weight")
    model.load_state_dict(tensors, assign=True)
    length = architecture["text"].get("context_length", 77)
    model.attn_mask = torch.full((length, length), float("-inf"), device=kernel.device).triu_(1)
    mask = torch.nn.Conv2d(1, len(kernel), kernel.shape[-1], stride=kernel.shape[-1], bias=False)
    mask.load_state_dict({"weight": kernel})
    model.visual.conv1 = Both(model.visual.conv1, mask)
    return model, SimpleTokenizer()


def case(folder: Path, device: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """g, P and R of an image with 4 captions and 30 masks."""
    weights = make_alpha_weights(MODEL, folder)
    work = make_workload(folder, 0.001, references=0)
    captions = [f"{work.captions[0]} number {i}" for i in range(4)]
    images = [work.images[0]] * 4
    architecture = json.loads((weights / "config.json").read_text())["architecture"]

    def metric() -> Any:
        settings: dict[str, Any] = {"weights": weights, "regions": Ellipses(), "phrases": "chunks"}
        return HiceS(HiceOptions(**settings, device=device, cache=FeatureCache()))

    def ours() -> Any:
        hices = metric()
        return np.array(terms_of(hices.encode_all(hices.check(captions, images))))

    def plain() -> Any:
        hices = metric()
        loop = PlainLoop(architecture, hices.encoder.model.state_dict(), hices)
        return np.array([loop.terms(*pair) for pair in zip(images, captions, strict=True)])

    return ours, plain
