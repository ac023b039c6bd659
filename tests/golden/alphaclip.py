"""Alpha-CLIP: the original checkpoints, converted, encoded through the public doors.

A case is a folder with config.json, manifest.json (the base CLIP), manifest_alpha.json (the image tower),
inputs/pairs.json with its images, inputs/masks.npz, and outputs.npz.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import AlphaClipEncoder, Row
from capeval_core.encoders.preprocessing import MaskTransform
from capeval_core.inputs.visual import InputImage
from capeval_core.models.canary import cosines
from tests.golden import recipe
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.support.device import device

Array = NDArray[Any]

# Mask transform -> ends of the names of features, cosines and prepared masks.
TRANSFORMS: dict[MaskTransform, tuple[str, str, str]] = {
    "released": ("", "", ""),
    "released_no_antialias": ("_mask_no_antialias", "_mask_no_antialias", "_no_antialias"),
    "square_crop": ("_square_crop", "_square_crop", "_square_crop"),
}
PLAIN = "image_features_plain_clip_zero_alpha_kernel"

# Inputs rather than outputs, or states inside the original that no public door shows.
NOT_COMPARED = ("debug_", "row_image")


@dataclass(frozen=True)
class Case:
    """What a golden folder holds. rows: per row the index of its image, and its mask."""

    folder: Path
    config: dict[str, Any]
    checkpoints: dict[str, dict[str, Any]]
    images: list[str]
    captions: list[str]
    rows: list[tuple[int, NDArray[np.bool_]]]
    outputs: dict[str, Array]

    @classmethod
    def read(cls, folder: Path) -> Case:
        try:
            config, base, alpha, inputs = (
                json.loads((folder / name).read_text(encoding="utf-8"))
                for name in ("config.json", "manifest.json", "manifest_alpha.json", "inputs/pairs.json")
            )
            with np.load(folder / "outputs.npz") as stored, np.load(folder / "inputs/masks.npz") as masks:
                outputs = dict(stored)
                images = list(inputs["images"])
                rows = [
                    (images.index(row["image"]), masks[row["mask"]].astype(np.bool_))
                    for row in inputs["rows"]
                ]
            missing = [name for name in images if not (folder / "inputs" / name).is_file()]
            if missing:
                raise UnreadableCaseError(f"inputs/ lacks {', '.join(missing)}")
            checkpoints = {"base": base, "alpha": alpha}
            case = cls(folder, config, checkpoints, images, list(inputs["captions"]), rows, outputs)
            _ = (int(config["seed"]), case.texts, case.heads)
            for name in ("pixels", "pixels_square_crop", "alpha", "features", "cosine"):
                case.tolerance(name)
        except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
            missing_key = isinstance(error, KeyError)
            what = f"{error.args[0]!r} is missing" if missing_key else " ".join(str(error).split())
            raise UnreadableCaseError(f"cannot be read: {what}") from error
        return case

    def tolerance(self, name: str) -> float:
        return float(self.config["tolerance"][f"{name}_atol"])

    @property
    def texts(self) -> list[str]:
        return [self.config["score"]["prefix"] + caption for caption in self.captions]

    @property
    def heads(self) -> dict[str, Any]:
        """What the tensors of the base cannot tell, where it differs from the usual."""
        model = self.config["model"]
        usual = model["text_heads"] == model["text_width"] // 64
        return {} if usual else {"text_heads": model["text_heads"]}

    def checkpoint(self, name: str, place: Path) -> Path:
        """The original's file, its tensors in the order of the manifest."""
        tensors = recipe.state_dict(self.checkpoints[name], int(self.config["seed"]))
        path = place / f"{name}.pth"
        torch.save({key: torch.from_numpy(array) for key, array in tensors.items()}, path)
        return path


def expected_quantities(folder: Path) -> set[str]:
    """The quantities that a run of this folder must compare."""
    return {name for name in Case.read(folder).outputs if not name.startswith(NOT_COMPARED)}


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins."""
    case = Case.read(folder)
    with tempfile.TemporaryDirectory(prefix="golden-") as place:
        base, alpha = (case.checkpoint(name, Path(place)) for name in ("base", "alpha"))
        encoder = _opened(alpha, Path(place) / "tuned", base=base, **case.heads)
        plain = _opened(base, Path(place) / "plain", zero_mask=True, **case.heads)
    yield from _texts(case, encoder)
    for transform in TRANSFORMS:
        yield from _images(case, encoder, transform)
    if PLAIN in case.outputs:
        found = _features(case, plain, "released")
        yield compare(PLAIN, found, case.outputs[PLAIN], case.tolerance("features"))


def _opened(checkpoint: Path, folder: Path, **settings: Any) -> AlphaClipEncoder:
    """The checkpoint, converted, saved as a weights folder, and loaded from there."""
    release = AlphaClipEncoder.convert(checkpoint, **settings)
    AlphaClipEncoder(release.config, release.tensors, device=device()).save_pretrained(folder)
    return AlphaClipEncoder.from_pretrained(folder, device=device())


def _texts(case: Case, encoder: AlphaClipEncoder) -> Iterator[Comparison]:
    if "input_ids" in case.outputs:
        theirs = case.outputs["input_ids"]
        padded = np.zeros((len(case.texts), theirs.shape[1]), dtype=np.int64)
        for row, ids in enumerate(encoder.tokenizer.encode(case.texts).ids):
            padded[row, : len(ids)] = ids
        yield compare("input_ids", padded, theirs, 0)
    if "text_features" in case.outputs:
        found = encoder.encode_texts(case.texts).features
        yield compare("text_features", found, case.outputs["text_features"], case.tolerance("features"))


def _images(case: Case, encoder: AlphaClipEncoder, transform: MaskTransform) -> Iterator[Comparison]:
    """Pixels, masks, features of every row and their cosines; then the same by regions."""
    features, end, masks = TRANSFORMS[transform]
    image_features = _features(case, encoder, transform)
    cosine = cosines(image_features, encoder.encode_texts(case.texts).features)
    ours = {
        f"alpha{masks}": (np.concatenate([_alpha(row, encoder, transform) for row in case.rows]), "alpha"),
        f"image_features{features}": (image_features, "features"),
        f"cosine{end}": (cosine, "cosine"),
    }
    if transform != "released_no_antialias":
        pixels = "pixels" + ("" if transform == "released" else "_square_crop")
        ours[pixels] = (_pixels(case, encoder, transform), pixels)
    for name, (found, tolerance) in ours.items():
        if name in case.outputs:
            yield compare(name, found, case.outputs[name], case.tolerance(tolerance))
    if transform == "released" and "logits_per_image" in case.outputs:
        scale = float(encoder.model.logit_scale.exp())
        theirs = case.outputs["logits_per_image"]
        yield compare("logits_per_image", scale * cosine, theirs, scale * case.tolerance("cosine"))
    if f"image_features{features}" in case.outputs:
        yield _regions(case, encoder, transform, f"image_features{features}")


def _features(case: Case, encoder: AlphaClipEncoder, transform: MaskTransform) -> Array:
    """Of every row, also under masks without a pixel."""
    alphas = np.concatenate([_alpha(row, encoder, transform) for row in case.rows])
    pixels = list(torch.from_numpy(_pixels(case, encoder, transform)))
    masked = zip(case.rows, torch.from_numpy(alphas), strict=True)
    return encoder.run_rows([Row(pixels[image], alpha) for (image, _), alpha in masked])


def _pixels(case: Case, encoder: AlphaClipEncoder, transform: MaskTransform) -> Array:
    return np.stack([encoder.preprocess(image.load(), transform) for image in _shown(case)])


def _alpha(row: tuple[int, NDArray[np.bool_]], encoder: AlphaClipEncoder, transform: MaskTransform) -> Array:
    return encoder.preprocess_masks(row[1][None], transform)


def _shown(case: Case) -> list[InputImage]:
    return [InputImage.of(case.folder / "inputs" / name, where=name) for name in case.images]


def _regions(case: Case, encoder: AlphaClipEncoder, transform: MaskTransform, name: str) -> Comparison:
    """Rows whose masks have a pixel that the image tower sees, by `encode_regions`."""
    rows: dict[int, list[int]] = {}
    for row, (image, mask) in enumerate(case.rows):
        if mask.any():
            rows.setdefault(image, []).append(row)
    images = _shown(case)
    found = list(
        encoder.encode_regions(
            [images[image] for image in rows],
            [np.stack([case.rows[row][1] for row in own]) for own in rows.values()],
            mask_transform=transform,
            cache=FeatureCache(0),
        )
    )
    kept = [own[index] for own, part in zip(rows.values(), found, strict=True) for index in part.kept]
    ours = np.concatenate([part.regions for part in found])
    return compare(f"{name} by regions", ours, case.outputs[name][kept], case.tolerance("features"))
