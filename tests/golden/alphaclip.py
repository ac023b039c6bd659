"""Alpha-CLIP: the original checkpoints, converted, encoded through the public doors.

A case is a folder with config.json, manifest.json (the base CLIP), manifest_alpha.json (the image tower),
inputs/pairs.json with its images, inputs/masks.npz, and outputs.npz.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from capeval_core.cache import FeatureCache
from tests.golden.case import Array, Case, Comparison, Place, converted, cosine, opened, padded, save
from tests.support.seams import mask_regions, visual

TRANSFORMS = {
    "released": ("", ""),
    "released_no_antialias": ("_mask_no_antialias", "_no_antialias"),
    "square_crop": ("_square_crop", "_square_crop"),
}
"""Mask transform -> ends of the names of features, and of prepared masks."""
PLAIN = "image_features_plain_clip_zero_alpha_kernel"
IGNORED = ("debug_", "row_image")


class Row(NamedTuple):
    """What the image tower takes."""

    pixels: torch.Tensor
    alpha: torch.Tensor


class Given:
    """Images, captions, and rows: the number of an image, and a mask."""

    def __init__(self, case: Case) -> None:
        inputs, masks = case.json("pairs"), case.npz("masks")
        names = list(inputs["images"])
        self.images = [visual("image", case.path(name)) for name in names]
        self.rows = [(names.index(row["image"]), masks[row["mask"]].astype(bool)) for row in inputs["rows"]]
        self.texts = [case.config["score"]["prefix"] + caption for caption in inputs["captions"]]


def run(case: Case) -> Iterator[Comparison]:
    given, model = Given(case), case.config["model"]
    usual = model["text_heads"] == model["text_width"] // 64
    heads = {} if usual else {"text_heads": model["text_heads"]}
    with Place() as place:
        base = save(case.tensors(), place / "base.pth")
        alpha = save(case.tensors("manifest_alpha"), place / "alpha.pth")
        encoder = opened("alpha_clip", converted("alpha_clip", alpha, place / "tuned", base=base, **heads))
        plain = opened("alpha_clip", converted("alpha_clip", base, place / "plain", zero_mask=True, **heads))
    if theirs := case.of("input_ids"):
        yield case.compare(
            "input_ids", padded(encoder.tokenizer.encode(given.texts).ids, theirs[""].shape[1]), 0
        )
    texts = encoder.encode_texts(given.texts).features
    yield from case.compare_all({"text_features": texts}, lambda _: case.tolerance("features"))
    for transform in TRANSFORMS:
        yield from images(case, given, encoder, transform, texts)
    ours = {PLAIN: features(given, plain, "released")}
    yield from case.compare_all(ours, lambda _: case.tolerance("features"))


def images(case: Case, given: Given, encoder: Any, transform: str, texts: Array) -> Iterator[Comparison]:
    """Pixels, masks, features of every row and their cosines; then the same by regions."""
    end, masks = TRANSFORMS[transform]
    name, found = f"image_features{end}", features(given, encoder, transform)
    cosines = cosine(found[:, None], texts[None])
    ours = {f"alpha{masks}": alphas(given, encoder, transform), name: found, f"cosine{end}": cosines}
    if transform != "released_no_antialias":
        ours["pixels" if transform == "released" else "pixels_square_crop"] = pixels(
            given, encoder, transform
        )

    def tolerance(quantity: str) -> float:
        kind = next(
            kind for kind in ("alpha", "cosine", "pixels", "image_features") if quantity.startswith(kind)
        )
        return case.tolerance(quantity if kind == "pixels" else kind.removeprefix("image_"))

    yield from case.compare_all(ours, tolerance)
    if transform == "released":
        scale = float(encoder.model.logit_scale.exp())
        logits = {"logits_per_image": scale * cosines}
        yield from case.compare_all(logits, lambda _: scale * case.tolerance("cosine"))
    if name in case.outputs:
        yield regions(case, given, encoder, transform, name)


def features(given: Given, encoder: Any, transform: str) -> Array:
    """Of every row, also under masks without a pixel."""
    shown, masks = (torch.from_numpy(kind(given, encoder, transform)) for kind in (pixels, alphas))
    rows = [Row(shown[image], mask) for (image, _), mask in zip(given.rows, masks, strict=True)]
    return np.asarray(encoder.run_rows(rows))


def pixels(given: Given, encoder: Any, transform: str) -> Array:
    return np.stack([encoder.preprocess(image.load(), transform) for image in given.images])


def alphas(given: Given, encoder: Any, transform: str) -> Array:
    return np.concatenate([encoder.preprocess_masks(mask[None], transform) for _, mask in given.rows])


def regions(case: Case, given: Given, encoder: Any, transform: str, name: str) -> Comparison:
    """Rows whose masks have a pixel that the image tower sees, by `encode_regions`."""
    rows: dict[int, list[int]] = {}
    for row, (image, mask) in enumerate(given.rows):
        if mask.any():
            rows.setdefault(image, []).append(row)
    shown = [given.images[image] for image in rows]
    masks = [mask_regions([given.rows[row][1] for row in own]) for own in rows.values()]
    found = list(encoder.encode_regions(shown, masks, mask_transform=transform, cache=FeatureCache(0)))
    kept = [
        own[index] for own, part in zip(rows.values(), found, strict=True) for index in part.region_indices
    ]
    ours = np.concatenate([part.regions for part in found])
    return case.compare(f"{name} by regions", ours, case.tolerance("features"), np.array(kept), output=name)
