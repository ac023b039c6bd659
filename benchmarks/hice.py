"""HICE-S beside a forward per mask and caption, on a seeded Alpha-CLIP ViT-L/14 with given masks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.workload import Workload, make_alpha_weights, make_workload

MODEL = "ViT-L-14"
CAPTIONS, MASKS = 4, 30
FEW, MANY = 64, 1024
"""Masks of one image, to see whether memory grows with them; from two full batches on."""
"""Height and width of that image: its many masks would take 3 GB."""


def terms_of(rows: Any) -> list[list[float]]:
    """g, P and R of each row: raw cosines and means of maxima."""
    return [
        [row["cosine"], _mean(row["phrase_maxima"]), _mean(row["region_maxima"])] for row in rows.to_pylist()
    ]


class PlainLoop:
    """As one would write it with the authors' model: open_clip's towers, a forward for each mask and caption.

    Args:
        architecture, tensors: of the weights, `visual.conv1_alpha.weight` among the tensors.
        metric: whose preprocessing and sources are used, and whose device and type.
    """

    def __init__(self, architecture: dict[str, Any], tensors: dict[str, Any], metric: Any) -> None:
        from capeval_core.models.device import DTYPES

        self.encoder, self.source, self.phrases = metric.encoder, metric.regions, metric.phrases
        self.device, self.dtype = self.encoder.device, DTYPES[self.encoder.dtype]
        model, self._tokenize = _open_clip(architecture, dict(tensors))
        self.model = model.eval().to(self.device, self.dtype)
        self.model.attn_mask = self.model.attn_mask.to(self.dtype)
        self.rows = 0

    def image(self, pixels: NDArray[np.float32], mask: NDArray[np.float32]) -> Any:
        return self.images(np.concatenate([pixels, mask])[None])[0]

    def images(self, both: NDArray[np.float32]) -> Any:
        """(n, d) of pixels with their masks, (n, 4, s, s), in one forward."""
        import torch

        self.rows += len(both)
        with torch.inference_mode():
            given = torch.from_numpy(both).to(self.device, self.dtype)
            return self.model.encode_image(given, normalize=True).float()

    def text(self, text: str) -> Any:
        import torch

        with torch.inference_mode():
            return self.model.encode_text(self._tokenize([text]).to(self.device), normalize=True)[0].float()

    def prepared(self, path: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Pixels (3, s, s) and masks (1 + n, 1, s, s) of an image, the full one first."""
        from PIL import Image

        from capeval_core.inputs.images import InputImage

        image = Image.open(path)
        found = self.source.find(InputImage.of(path)).masks()
        every = np.concatenate([np.ones((1, image.height, image.width), np.bool_), found])
        return self.encoder.preprocess(image), self.encoder.preprocess_masks(every)

    def terms(self, path: Path, caption: str) -> list[float]:
        """g, P and R of a caption with its image."""
        import torch

        pixels, masks = self.prepared(path)
        whole, *regions = [self.image(pixels, mask) for mask in masks]
        phrases = [self.text(phrase) for phrase in self.phrases.phrases([caption])[0].phrases]
        cosines = torch.stack(phrases) @ torch.stack(regions).T
        global_term = float(whole @ self.text(caption))
        return [global_term, float(cosines.amax(1).mean()), float(cosines.amax(0).mean())]


def make_captions(folder: Path, images: int) -> Workload:
    """The first images of the common workload, with four captions each."""
    made = make_workload(folder, images / 1000, references=0)
    count = images * CAPTIONS
    captions = [f"{text} number {i}" for i, text in enumerate((made.captions * count)[:count])]
    return Workload(captions, [i // CAPTIONS for i in range(count)], made.images[:images], [])


def _weights(folder: Path) -> Path:
    return folder / f"alpha-{MODEL}"


def hice_metric(weights: Path | str, masks: int, **options: Any) -> Any:
    """HICE-S with so many given masks of each image, and phrases by rules."""
    from capeval_core.cache import FeatureCache
    from capeval_core.inputs.images import InputImage
    from capeval_core.regions.regions import Regions, RegionSource
    from capeval_core.scores.hice import HiceOptions, HiceS

    class Ellipses(RegionSource):
        name, fingerprint = "ellipses", f"ellipses-{masks}"

        def find(self, image: InputImage) -> Regions:
            regions: Regions = ellipses(masks, *image.load().size)
            return regions

    own = {"weights": weights, "regions": Ellipses(), "phrases": "chunks", "cache": FeatureCache()}
    return HiceS(HiceOptions(**{**own, **options}))


@cache
def ellipses(count: int, width: int, height: int) -> Any:
    """So many ellipses in the middle of every image of this size."""
    from capeval_core.regions import rle
    from capeval_core.regions.regions import Regions

    rng = np.random.default_rng(0)
    x, found = np.arange(width), []
    for _ in range(count):
        across, down = rng.uniform(0.3, 0.7, 2) * (width, height)
        wide, high = rng.uniform(0.05, 0.25, 2) * (width, height)
        columns = x[np.abs(x - across) <= wide]
        half = high * np.sqrt(1 - ((columns - across) / wide) ** 2)
        top, bottom = np.ceil(down - half).astype(np.int64), np.floor(down + half).astype(np.int64) + 1
        some = top < bottom
        starts, ends = (columns * height + row for row in (top, bottom))
        found.append(rle.of_intervals(starts[some], ends[some], (height, width)))
    return Regions.of_runs(found, (height, width))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _open_clip(architecture: dict[str, Any], tensors: dict[str, Any]) -> tuple[Any, Any]:
    """open_clip's own model and tokenizer; its first layer takes a fourth channel, the mask."""
    import torch
    from open_clip.model import CLIP
    from open_clip.tokenizer import SimpleTokenizer

    class Both(torch.nn.Module):
        def __init__(self, image: torch.nn.Module, mask: torch.nn.Module) -> None:
            super().__init__()
            self.image, self.mask = image, mask

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            summed: torch.Tensor = self.image(given[:, :3]) + self.mask(given[:, 3:])
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
    weights, work = make_alpha_weights(MODEL, folder), make_captions(folder, 1)
    shown = [work.images[i] for i in work.owner]
    architecture = json.loads((weights / "config.json").read_text())["architecture"]

    def ours() -> Any:
        metric = hice_metric(weights, MASKS, device=device)
        return np.array(terms_of(metric.encode_all(metric.check(work.captions, shown))))

    def plain() -> Any:
        metric = hice_metric(weights, MASKS, device=device)
        loop = PlainLoop(architecture, metric.encoder.model.state_dict(), metric)
        return np.array([loop.terms(*pair) for pair in zip(shown, work.captions, strict=True)])

    return ours, plain
