"""Every network, small, on any device, and something to run it on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capeval_core.registry import NETWORKS
from tests.golden import recipe
from tests.support import seams, seeded

Floats = NDArray[np.float32]
Arrays = dict[str, Floats]
TEXTS = ["a dog", "two red circles on a green lawn", "a dog runs", "a cat", "", "the sea and a horse"]
DETECTORS = ("faster_rcnn", "x152", "scene_regions")
BOXES = ("uniter", "vilbert")
KINDS = tuple(NETWORKS)
MASKS = np.zeros((3, 60, 80), dtype=bool)
MASKS[0, 5:30, 10:40] = MASKS[1, 30:, :] = MASKS[2, :, 20:50] = True
CORNERS = np.array([[5, 5, 40, 50], [20, 0, 70, 30]], dtype=np.float32)


def on(kind: str, device: str = "cpu", dtype: str = "float32") -> Any:
    """A network of this kind of the registry, with weights that are the same each time."""
    original = opened(kind)
    tensors = {name: tensor.clone() for name, tensor in original.model.state_dict().items()}
    return seams.network(kind, original.config, tensors, device=device, dtype=dtype)


@cache
def opened(kind: str, dtype: str = "float32") -> Any:
    """A network of `folder`, on the CPU; treat it as read-only."""
    return seams.network(kind, folder(kind), dtype=dtype)


def folder(kind: str) -> Path:
    """A weights folder of a kind of network, made once for all tests; not to be changed."""
    return seeded.kept(f"folder-{kind}", lambda place: _write(kind, place))


def _write(kind: str, place: Path) -> None:
    if kind == "open_clip":
        with torch.random.fork_rng():
            seeded.open_clip_repository(place)
        return
    found: Any
    if kind == "siglip":
        with torch.random.fork_rng():
            original = seeded.siglip_repository(place.with_name("original"))
        found = seams.network(kind, original)
    elif kind == "sam":
        case = seeded.CASES / "sam-boxes-tiny"
        seed = json.loads((case / "config.json").read_text()).get("seed", 1)
        tensors = recipe.state_dict(case / "manifest.json", seed)
        path = place.with_suffix(".pth")
        torch.save({name: torch.from_numpy(each) for name, each in tensors.items()}, path)
        release = seams.convert(kind, path, decoder_heads=2)
        found = seams.network(kind, release.config, release.tensors)
    else:
        found = _SEEDED.get(kind, lambda: seams.network(kind, "tiny"))()
    found.save_pretrained(place)


_SEEDED: dict[str, Callable[[], Any]] = {
    "clip": seeded.encoder,
    "eva_clip": seeded.eva,
    "alpha_clip": seeded.alpha_encoder,
    "uniter": seeded.uniter,
    "vilbert": seeded.vilbert,
    "faster_rcnn": seeded.faster_rcnn,
    "x152": seeded.x152,
}


def items(kind: str, count: int, seed: int = 0) -> list[Any]:
    """Distinct images, or box features."""
    if kind in BOXES:
        width = opened(kind).region_size
        return [seeded.made_up_boxes(4 + 3 * i, width, seed=seed + i) for i in range(count)]
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (60, 80, 3), dtype=np.uint8) for _ in range(count)]


def run(network: Any, given: Sequence[Any], extras: Sequence[int] | None = None, **options: Any) -> list[Any]:
    """What it makes of each item, with the texts or regions whose numbers are `extras`, as `seams.encode`."""
    numbers = range(len(given)) if extras is None else extras
    more: dict[str, Any] = {}
    if network.kind in (*BOXES, "blip2"):
        more["texts"] = [[TEXTS[i % 6], TEXTS[(i + 1) % 6]] for i in numbers]
    elif network.kind in ("alpha_clip", "sam"):
        regions = MASKS if network.kind == "alpha_clip" else CORNERS
        more["regions"] = [regions[: 1 + i % len(regions)] for i in numbers]
    if network.kind == "sam":
        options.pop("batch_size", None)
    return list(seams.encode(network, given, **more, **options))


def arrays(found: dict[str, Any]) -> Arrays:
    """The arrays of an item by name, rows of several texts one after another."""
    values = {name: value for name, value in found.items() if name not in ("key", "error", "on_device")}
    joined = {
        name: np.concatenate(value) if isinstance(value, list) and name == "features" else value
        for name, value in values.items()
    }
    return {name: np.asarray(value) for name, value in joined.items() if value is not None}


def together(found: Sequence[dict[str, Any]]) -> Arrays:
    """The arrays of all items, one after another."""
    parts = [arrays(each) for each in found]
    return {name: np.concatenate([np.atleast_1d(part[name]) for part in parts]) for name in parts[0]}


def distance(found: Arrays, expected: Arrays) -> float:
    """The largest difference, relative to the largest value of each array."""
    assert found.keys() == expected.keys()
    most = 0.0
    for name, array in expected.items():
        if array.dtype.kind != "f":
            assert np.array_equal(found[name], array), name
            continue
        assert found[name].shape == array.shape, name
        scale = float(np.abs(array).max(initial=1e-9))
        most = max(most, float(np.abs(found[name] - array).max(initial=0.0)) / scale)
    return most
