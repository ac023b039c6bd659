"""Every network, small, on any device, and something to run it on."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from capeval_core.cache import FeatureCache
from capeval_core.encoders.open_clip import OpenClipEncoder
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.inputs.visual import InputImage
from capeval_core.models.model import CheckedModel
from capeval_core.regions.regions import Regions
from capeval_core.registry import network
from capeval_core.weights.folder import open_weights
from tests.golden import recipe
from tests.support import seeded
from tests.support.seeded import CASES, faster_rcnn_release, made_up_boxes

Floats = NDArray[np.float32]
Arrays = dict[str, Floats]
TEXTS = [
    "a dog",
    "two red circles on a green lawn",
    "a dog runs",
    "a cat",
    "",
    "the sea and a horse on a beach",
]


def on(kind: str, device: str, dtype: str = "float32") -> CheckedModel:
    """A network of this kind of the registry, with weights that are the same each time."""
    original = _original(kind)
    tensors = {name: tensor.clone() for name, tensor in original.model.state_dict().items()}
    return type(original)(original.config, tensors, device=device, dtype=dtype)


@cache
def _original(kind: str) -> CheckedModel:
    class_: Any = network(kind)
    if kind == "open_clip":
        with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
            made = seeded.open_clip_repository(Path(folder) / "timm")
            found = open_weights(str(made), metric="eco", tiny="")
            return OpenClipEncoder.open(found, device="cpu")
    if kind == "eva_clip":
        return seeded.eva()
    if kind == "x152":
        return seeded.x152()
    if kind == "faster_rcnn":
        found = faster_rcnn_release()
        return class_(found.config, found.tensors, device="cpu")
    if kind == "sam":
        with tempfile.TemporaryDirectory() as folder:
            seed = json.loads((CASES / "sam-boxes-tiny" / "config.json").read_text()).get("seed", 1)
            tensors = recipe.state_dict(CASES / "sam-boxes-tiny" / "manifest.json", seed)
            torch.save(
                {name: torch.from_numpy(each) for name, each in tensors.items()}, Path(folder) / "sam.pth"
            )
            found = class_.convert(Path(folder) / "sam.pth", decoder_heads=2)
            return class_(found.config, found.tensors, device="cpu")
    return class_.from_pretrained("tiny", device="cpu")


def run(encoder: Any, count: int) -> Arrays:
    """What it makes of some images, or box features, and two texts for each; in one batch if it has any."""
    options: dict[str, Any] = {"cache": FeatureCache(0), "batch_size": 64}
    return _RUNS[encoder.kind](encoder, count, options)


def _images(count: int) -> list[InputImage]:
    rng = np.random.default_rng(3)
    return [InputImage.of(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)) for _ in range(count)]


def _texts(count: int) -> list[list[str]]:
    return [[TEXTS[i % len(TEXTS)], TEXTS[(i + 1) % len(TEXTS)]] for i in range(count)]


def _joined(parts: Iterable[Any]) -> Floats:
    return np.concatenate([np.atleast_1d(part) for part in parts])


def _towers(encoder: Any, count: int, options: dict[str, Any]) -> Arrays:
    of_images = _joined(part.features for part in encoder.encode_images(_images(count), **options))
    return {"images": of_images, "texts": encoder.encode_texts(TEXTS[: 2 + count % 2], **options).features}


def _masked(encoder: Any, count: int, options: dict[str, Any]) -> Arrays:
    masks = np.zeros((3, 60, 80), dtype=bool)
    masks[0, 5:30, 10:40] = masks[1, 30:, :] = masks[2, :, 50:] = True
    parts = list(encoder.encode_regions(_images(count), [Regions.of(masks)] * count, **options))
    return {
        "regions": _joined(part.regions for part in parts),
        "images": _joined(part.whole for part in parts),
    }


def _matched(encoder: Any, count: int, options: dict[str, Any]) -> Arrays:
    found = list(encoder.match(_images(count), _texts(count), **options))
    return {
        name: _joined(getattr(each, name) for each in found)
        for name in ("queries", "text_features", "logits")
    }


def _ranked(encoder: Any, count: int, options: dict[str, Any]) -> Arrays:
    found = encoder.rank(_boxes(encoder, count), _texts(count), **options)
    return {"logits": _joined(each.logits for each in found)}


def _attended(encoder: Any, count: int, options: dict[str, Any]) -> Arrays:
    found = encoder.token_features(_boxes(encoder, count), _texts(count), **options)
    return {"tokens": _joined(rows for each in found for rows in each.features or [])}


def _boxes(encoder: Any, count: int) -> Sequence[InputBoxes]:
    return [InputBoxes.of(made_up_boxes(10, encoder.region_size, seed=seed)) for seed in range(count)]


def _detected(encoder: Any, count: int, options: dict[str, Any]) -> Arrays:
    found = [visual.load() for visual in encoder.encode_boxes(_images(count), **options)]
    return {name: _joined(getattr(each, name) for each in found) for name in ("boxes", "features")}


def _segmented(encoder: Any, count: int, options: dict[str, Any]) -> Arrays:
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (60, 80, 3), dtype=np.uint8))
    corners = np.array([[5, 5, 40, 50], [20, 0, 70, 30]], dtype=np.float32)[: 1 + count % 2]
    found = encoder.segment(image, corners)
    return {"masks": np.stack(list(found.masks())).astype(np.float32), "quality": found.quality}


_RUNS: dict[str, Callable[[Any, int, dict[str, Any]], Arrays]] = {
    "clip": _towers,
    "open_clip": _towers,
    "eva_clip": _towers,
    "alpha_clip": _masked,
    "blip2": _matched,
    "uniter": _ranked,
    "vilbert": _attended,
    "faster_rcnn": _detected,
    "x152": _detected,
    "scene_regions": _detected,
    "sam": _segmented,
}
KINDS = tuple(_RUNS)
