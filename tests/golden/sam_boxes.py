"""SAM prompted with boxes: the original checkpoint, converted, run by the project's own segmenter.

A case is a folder with config.json, manifest.json, scales.json, and image{i}.png with image{i}.npz.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from capeval_core.regions.sam import Sam
from tests.golden import recipe
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.support.device import device

Array = NDArray[Any]

TOLERANCES = {
    "resized": 0.0, "pixel_values": 1e-6, "input_size": 0.0, "boxes_model": 1e-4, "image_embeddings": 1e-4,
    "dense_pe": 1e-6, "dense_embedding": 1e-6, "sparse_embeddings": 1e-4, "low_res_masks": 1e-4, "iou": 1e-4,
    "multi_low_res_masks_first3": 1e-4, "multi_iou": 1e-4, "mask_logits": 2e-3, "masks": 0.0, "areas": 0.0,
    "area_order": 0.0,
}  # fmt: skip
INPUTS = ("boxes", "original_size")
SURE = 2e-3
"""Where the original's logit is nearer to 0, a mask may differ."""


def expected_quantities(folder: Path) -> set[str]:
    """What a run must have compared."""
    return {f"image{i}_{name}" for i, outputs in _outputs(folder) for name in outputs if name not in INPUTS}


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins."""
    try:
        config = json.loads((folder / "config.json").read_text())
        manifest = json.loads((folder / "manifest.json").read_text())
        scales = json.loads((folder / "scales.json").read_text())
        cases = list(_outputs(folder))
        seed, heads = int(config["seed"]), int(config["heads"])
        preprocessing = {"mean": config["pixel_mean"], "std": config["pixel_std"]}
    except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
        raise UnreadableCaseError(f"cannot be read: {' '.join(str(error).split())}") from error
    with tempfile.TemporaryDirectory(prefix="golden-") as place:
        weights = convert(Path(place), manifest, seed, scales, heads, preprocessing)
        sam = Sam.from_pretrained(weights, device=device())
        for index, outputs in cases:
            for found in _compare(sam, folder / f"image{index}.png", outputs):
                yield Comparison(
                    f"image{index}_{found.quantity}", found.error, found.tolerance, found.defined
                )


def convert(
    place: Path,
    manifest: dict[str, Any],
    seed: int,
    scales: dict[str, float],
    heads: int,
    preprocessing: dict[str, Any],
) -> Path:
    """A weights folder in `place`, of a seeded checkpoint with the names of a manifest."""
    tensors = {
        name: torch.from_numpy(x * np.float32(scales.get(name, 1)))
        for name, x in recipe.state_dict(manifest, seed).items()
    }
    torch.save(tensors, place / "original.pth")
    release = Sam.convert(place / "original.pth", decoder_heads=heads)
    config = {**release.config, "preprocessing": preprocessing}
    Sam(config, release.tensors, device=device()).save_pretrained(place / "weights")
    return place / "weights"


def _outputs(folder: Path) -> Iterator[tuple[int, dict[str, Array]]]:
    files = sorted(folder.glob("image*.npz"))
    if not files:
        raise UnreadableCaseError("there is no image0.npz")
    for file in files:
        with np.load(file) as stored:
            yield int(file.stem.removeprefix("image")), dict(stored)


def _compare(sam: Sam, image: Path, theirs: dict[str, Array]) -> Iterator[Comparison]:
    model: Any = sam.model
    size = (int(theirs["original_size"][0]), int(theirs["original_size"][1]))
    height, width = sam.resized(size)
    with Image.open(image) as decoded, torch.inference_mode():
        pixels = sam.preprocess(decoded)
        mean, std = (torch.tensor(sam.config["preprocessing"][k]).view(3, 1, 1) for k in ("mean", "std"))
        boxes = torch.from_numpy(sam.scaled(theirs["boxes"], size)).to(sam.device)
        features = sam.embed(decoded)
        prompts, dense = model.prompt_encoder(None, None, boxes[None], None)
        logits, quality = sam.decode(features, theirs["boxes"], size)
        several = model(image_embeddings=features, input_boxes=boxes[None], multimask_output=True)
        regions = sam.segment(decoded, theirs["boxes"])
        first = len(theirs["multi_low_res_masks_first3"])
        ours = {
            "resized": (pixels * std + mean)[:, :height, :width].round().permute(1, 2, 0),
            "pixel_values": pixels[None],
            "input_size": (height, width),
            "boxes_model": boxes,
            "image_embeddings": features,
            "dense_pe": model.get_image_wide_positional_embeddings(),
            "dense_embedding": dense.detach(),
            "sparse_embeddings": prompts[0],
            "low_res_masks": logits,
            "iou": quality[:, None],
            "multi_low_res_masks_first3": several.pred_masks[0, :first],
            "multi_iou": several.iou_scores[0],
            "mask_logits": sam.upsample(logits, size)[:, None],
        }
    for name, values in ours.items():
        yield compare(name, values, theirs[name], TOLERANCES[name])
    stored = np.unpackbits(theirs["masks"], axis=-1)[..., : size[1]].astype(bool)
    sure = np.abs(theirs["mask_logits"][:, 0].astype(np.float32)) >= SURE
    masks = np.zeros_like(stored)  # empty ones are no regions
    masks[theirs["areas"] > 0] = regions.masks()
    yield compare("masks", (masks & sure).astype(int), (stored & sure).astype(int), TOLERANCES["masks"])
    doubtful = float((~sure).sum((1, 2)).max())
    areas = masks.sum((1, 2))
    yield compare("areas", areas, theirs["areas"], TOLERANCES["areas"] + doubtful)
    # By the areas in that order: equal ones may change places.
    order = np.argsort(-areas, kind="stable")
    yield compare("area_order", areas[order], areas[theirs["area_order"]], doubtful)
