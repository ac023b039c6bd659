"""SAM prompted with boxes: the original checkpoint, converted, run by the project's own segmenter.

A case is a folder with config.json, manifest.json, scales.json, and image{i}.png with image{i}.npz.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.golden.case import Array, Case, Comparison, Place, compare, converted, opened, save

TOLERANCES = {
    "resized": 0.0, "pixel_values": 1e-6, "input_size": 0.0, "boxes_model": 1e-4, "image_embeddings": 1e-4,
    "dense_pe": 1e-6, "dense_embedding": 1e-6, "sparse_embeddings": 1e-4, "low_res_masks": 1e-4, "iou": 1e-4,
    "multi_low_res_masks_first3": 1e-4, "multi_iou": 1e-4, "mask_logits": 2e-3, "masks": 0.0, "areas": 0.0,
    "area_order": 0.0,
}  # fmt: skip
IGNORED = tuple(f"image{i}_{name}" for i in range(99) for name in ("boxes", "original_size"))
SURE = 2e-3
"""Where the original's logit is nearer to 0, a mask may differ."""


def run(case: Case) -> Iterator[Comparison]:
    preprocessing = {"mean": case.config["pixel_mean"], "std": case.config["pixel_std"]}
    with Place() as place:
        checkpoint, heads = save(case.tensors(scales="scales"), place / "original.pth"), case.config["heads"]
        change = {"preprocessing": preprocessing}
        sam = opened("sam", converted("sam", checkpoint, place / "weights", change, decoder_heads=heads))
        for i in range(case.images):
            with Image.open(case.path(f"image{i}.png")) as decoded:
                yield from of_image(case, sam, decoded, f"image{i}_")


def of_image(case: Case, sam: Any, decoded: Image.Image, prefix: str) -> Iterator[Comparison]:
    theirs = case.of(prefix)
    size = (int(theirs["original_size"][0]), int(theirs["original_size"][1]))
    height, width = sam.resized(size)
    with torch.inference_mode():
        pixels = sam.preprocess(decoded)
        mean, std = (torch.tensor(sam.config["preprocessing"][k]).view(3, 1, 1) for k in ("mean", "std"))
        boxes = torch.from_numpy(sam.scaled(theirs["boxes"], size)).to(sam.device)
        features = sam.embed(decoded)
        prompts, dense = sam.model.prompt_encoder(None, None, boxes[None], None)
        logits, quality = sam.decode(features, theirs["boxes"], size)
        several = sam.model(image_embeddings=features, input_boxes=boxes[None], multimask_output=True)
        regions = sam.segment(decoded, theirs["boxes"])
        first = len(theirs["multi_low_res_masks_first3"])
        ours = {
            "resized": (pixels * std + mean)[:, :height, :width].round().permute(1, 2, 0),
            "pixel_values": pixels[None],
            "input_size": (height, width),
            "boxes_model": boxes,
            "image_embeddings": features,
            "dense_pe": sam.model.get_image_wide_positional_embeddings(),
            "dense_embedding": dense.detach(),
            "sparse_embeddings": prompts[0],
            "low_res_masks": logits,
            "iou": quality[:, None],
            "multi_low_res_masks_first3": several.pred_masks[0, :first],
            "multi_iou": several.iou_scores[0],
            "mask_logits": sam.upsample(logits, size)[:, None],
        }
    yield from case.compare_all(ours, TOLERANCES.__getitem__, prefix)
    yield from of_masks(theirs, regions.masks(), prefix)


def of_masks(theirs: dict[str, Array], found: Array, prefix: str) -> Iterator[Comparison]:
    stored = np.unpackbits(theirs["masks"], axis=-1)[..., : int(theirs["original_size"][1])].astype(bool)
    sure = np.abs(theirs["mask_logits"][:, 0].astype(np.float32)) >= SURE
    masks = np.zeros_like(stored)  # empty ones are no regions
    masks[theirs["areas"] > 0] = found
    mine, original = ((each & sure).astype(int) for each in (masks, stored))
    yield compare(f"{prefix}masks", mine, original, TOLERANCES["masks"])
    doubtful = float((~sure).sum((1, 2)).max())
    areas = masks.sum((1, 2))
    yield compare(f"{prefix}areas", areas, theirs["areas"], TOLERANCES["areas"] + doubtful)
    # By the areas in that order: equal ones may change places.
    order = np.argsort(-areas, kind="stable")
    yield compare(f"{prefix}area_order", areas[order], areas[theirs["area_order"]], doubtful)
