"""12-in-1's ResNeXt-152 FPN detector: the original checkpoint, converted, run by the project's own encoder.

A case is a folder with config.json, manifest.json, scales.json, overrides.npz, image{i}.png with
image{i}.npz, batch.npz, and where it is there full_manifest_inferred.json. Which class a box shows is off by
one box in the original (`objects_as_written`): it is compared with the classes of the next box.
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
from torch.nn import functional

from capeval_core.encoders.x152 import X152, Detections
from capeval_core.encoders.x152_model import Proposals
from capeval_core.inputs.visual import InputImage
from capeval_core.regions.features import RegionEncoder
from capeval_core.scores.box_source import box_source_opener
from capeval_core.weights.conversion import Release, rename, tensor_problems
from capeval_core.weights.x152 import X152Conversion
from tests.golden import recipe
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.support.device import device

Array = NDArray[Any]
Json = dict[str, Any]

FILES = ("config.json", "manifest.json", "scales.json")
FULL = "full_manifest_inferred.json"
TOLERANCES = {
    "network_input": 1e-4, "image_sizes": 0.0, "im_scales": 1e-12, "rpn_logits_2": 1e-4, "rpn_deltas_2": 1e-4,
    "proposals": 1e-2, "objectness": 1e-4, "proposals_per_image": 0.0, "pooled_first4": 1e-4, "fc6": 1e-4,
    "fc7": 1e-4, "scores_logits": 1e-4, "features": 1e-4, "bbox": 1e-2, "num_boxes": 0.0, "cls_prob": 1e-4,
    "objects_as_written": 0.0, "image_wh": 0.0, "conf": 0.0,
    **{f"fpn{level}": 1e-4 for level in range(5)},
}  # fmt: skip
RELATIVE = ("fpn", "pooled", "fc6", "fc7", "scores", "features", "rpn")
"""Quantities whose differences count as shares of the largest number."""
ATTRIBUTES = {"cls_embed.weight": (21, 8), "attr_linear1.weight": (16, 32), "attr_linear1.bias": (16,)}
"""What the released file may hold beside: heads of attributes, which no feature depends on."""


def expected_quantities(folder: Path) -> set[str]:
    """What a run must have compared."""
    names = {f"image{i}_{name}" for i, outputs in _outputs(folder) for name in outputs}
    with np.load(folder / "batch.npz") as batch:
        names |= {f"batch_{name}" for name in batch.files}
    return names | ({"full_tensors"} if (folder / FULL).is_file() else set()) | {"anchors"}


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins."""
    try:
        config, manifest, scales = (json.loads((folder / name).read_text()) for name in FILES)
        cases = list(_outputs(folder))
        with np.load(folder / "overrides.npz") as stored:
            overrides = dict(stored)
        with np.load(folder / "batch.npz") as stored:
            batch = dict(stored)
        images = [folder / f"image{i}.png" for i in range(len(batch["im_scales"]))]
        if missing := [image.name for image in images if not image.is_file()]:
            raise UnreadableCaseError(f"there is no {missing[0]}")
    except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
        raise UnreadableCaseError(f"cannot be read: {' '.join(str(error).split())}") from error
    with tempfile.TemporaryDirectory(prefix="golden-") as place:
        release = convert(Path(place), config, manifest, scales, overrides)
        X152(release.config, release.tensors, device=device()).save_pretrained(Path(place) / "weights")
        released = X152.from_pretrained(Path(place) / "weights", device=device())
        source = box_source_opener(Path(place) / "weights")(
            selection="bua10_100", device=device(), dtype="float32"
        )
    assert source.encoder is not None
    yield compare("anchors", _anchors(config), released.network.head.anchors, 0.0)
    for index, outputs in cases:
        for found in _compare(released, source.encoder, folder / f"image{index}.png", outputs):
            yield Comparison(f"image{index}_{found.quantity}", found.error, found.tolerance, found.defined)
    for found in _compare_batch(released, images, batch):
        yield Comparison(f"batch_{found.quantity}", found.error, found.tolerance, found.defined)
    if (folder / FULL).is_file():
        yield _compare_full(folder)


def convert(
    place: Path, config: Json, manifest: Json, scales: dict[str, float], overrides: dict[str, Array]
) -> Release:
    """The release of a seeded checkpoint with the names of a manifest, written to `place` as it is released.

    The script's own constants, which no file holds, are set in the config.
    """
    arrays = {
        name: x * np.float32(scales.get(name, 1))
        for name, x in recipe.state_dict(manifest, config["seed"]).items()
    }
    arrays |= overrides
    arrays |= {f"roi_heads.box.predictor.{name}": np.ones(shape, "f") for name, shape in ATTRIBUTES.items()}
    tensors = {f"module.{name}": torch.from_numpy(x) for name, x in arrays.items()}
    torch.save({"model": tensors, "iteration": 1}, place / "detectron_model.pth")
    rpn = {
        "PRE_NMS_TOP_N_TEST": config["pre_nms_top_n_per_level"],
        "POST_NMS_TOP_N_TEST": config["post_nms_top_n_per_level"],
        "FPN_POST_NMS_TOP_N_TEST": config["fpn_post_nms_top_n"],
        "NMS_THRESH": config["rpn_nms_thresh"],
        "MIN_SIZE": config["rpn_min_size"],
        "ANCHOR_STRIDE": str(tuple(config["anchor_strides"])),
    }
    pooling = {
        "POOLER_RESOLUTION": config["pooler_resolution"],
        "POOLER_SCALES": str(tuple(config["pooler_scales"])),
        "POOLER_SAMPLING_RATIO": config["pooler_sampling_ratio"],
    }
    resnets = {"STRIDE_IN_1X1": config["stride_in_1x1"]}
    settings = {"MODEL": {"RPN": rpn, "ROI_BOX_HEAD": pooling, "RESNETS": resnets}}
    (place / "detectron_config.yaml").write_text(json.dumps(settings))  # YAML reads JSON
    release = X152.convert(place / "detectron_model.pth")
    preprocessing = {
        "shortest_side": config["min_size"],
        "longest_side": config["max_size"],
        "mean": config["pixel_mean_bgr"],
    }
    detections = {"most": config["num_features"], "overlap": config["nms_for_selection"], "threshold": 0.0}
    changed = {**release.config, "preprocessing": preprocessing, "detections": detections}
    return Release(changed, release.tensors, release.notes)


def _outputs(folder: Path) -> Iterator[tuple[int, dict[str, Array]]]:
    files = sorted(folder.glob("image*.npz"))
    if not files:
        raise UnreadableCaseError("there is no image0.npz")
    for file in files:
        with np.load(file) as stored:
            yield int(file.stem.removeprefix("image")), dict(stored)


def _anchors(config: Json) -> Array:
    """Anchors by the strides, sizes and ratios of the config, made and rounded as in the first Detectron."""
    return np.array(
        [
            [_anchor(stride, size, ratio) for ratio in config["aspect_ratios"]]
            for stride, size in zip(config["anchor_strides"], config["anchor_sizes"], strict=True)
        ]
    )


def _anchor(stride: int, size: int, ratio: float) -> Array:
    width = np.round(np.sqrt(stride * stride / ratio))
    sides = np.array([width, np.round(width * ratio)]) * size / stride - 1
    centre = (stride - 1) / 2
    return np.concatenate([centre - sides / 2, centre + sides / 2])


def _compared(name: str, ours: Any, theirs: Array) -> Comparison:
    """The comparison of one output of an image."""
    kind = name.removeprefix("conf_").removeprefix("out0_").removeprefix("out1_")
    tolerance = TOLERANCES[kind]
    if kind.startswith(RELATIVE):
        tolerance *= max(1.0, float(np.nanmax(np.abs(theirs))))
    return compare(name, ours, theirs, tolerance)


def _compare(
    released: X152, encoder: RegionEncoder, image: Path, theirs: dict[str, Array]
) -> Iterator[Comparison]:
    network = released.network
    with Image.open(image) as decoded, torch.inference_mode():
        pixels, scale = released.preprocess(decoded)
        pixels = pixels.to(released.device)
        found = released.propose(pixels)
        maps = network.feature_maps(pixels[None])
        logits, deltas = network.head(maps[2])
        ours = {
            "network_input": pixels[None],
            "image_sizes": [pixels.shape[1:]],
            "im_scales": [scale],
            **{f"fpn{level}": map_ for level, map_ in enumerate(maps)},
            "rpn_logits_2": logits,
            "rpn_deltas_2": deltas,
            **_proposed([found]),
            "pooled_first4": network.pooled(maps, found.boxes[: len(theirs["pooled_first4"])]),
            "fc6": found.features,
            "fc7": found.hidden,
            "scores_logits": found.class_logits,
            **_kept("out0_", released.detect(decoded)),
        }
        for name, values in ours.items():
            yield _compared(name, values, theirs[name])
        detections = {**released.config["detections"], "threshold": float(theirs["conf"])}
        strict = X152({**released.config, "detections": detections}, network.state_dict(), device=device())
        yield _compared("conf", detections["threshold"], theirs["conf"])
        yield from _confident(strict.detect(decoded), theirs)
    (visual,) = encoder.encode_boxes([InputImage.of(image)])
    streamed = visual.load()
    kept = {"bbox": streamed.boxes, "features": streamed.features, "image_wh": streamed.size}
    for name, values in kept.items():
        yield _compared(f"out0_{name}", values, theirs[f"out0_{name}"])


def _proposed(found: list[Proposals]) -> dict[str, Any]:
    return {
        "proposals": torch.cat([each.boxes for each in found]),
        "objectness": torch.cat([each.objectness for each in found]),
        "proposals_per_image": [len(each.boxes) for each in found],
    }


def _kept(prefix: str, kept: Detections) -> dict[str, Any]:
    """What the original returns of one image."""
    ours = {
        "features": kept.features,
        "bbox": kept.boxes,
        "num_boxes": np.count_nonzero(kept.scores),
        "cls_prob": kept.class_scores,
        # Arg-max with the background, of all boxes but the first.
        "objects_as_written": kept.class_scores[1:].argmax(axis=1),
        "image_wh": kept.size,
    }
    return {prefix + name: values for name, values in ours.items()}


def _confident(kept: Detections, theirs: dict[str, Array]) -> Iterator[Comparison]:
    """The same with a threshold. Boxes without confidence come in an order that the original leaves open."""
    count = int(theirs["conf_out0_num_boxes"])
    for name, values in _kept("conf_out0_", kept).items():
        if name in theirs:
            expected = theirs[name].astype(np.float64)
            if expected.ndim:
                expected[count:] = np.nan
            yield _compared(name, values, expected)


def _compare_batch(released: X152, images: list[Path], theirs: dict[str, Array]) -> Iterator[Comparison]:
    """Images in one padded batch: the network on their pixels with a larger margin; no door pads more."""
    decoded = [Image.open(image) for image in images]
    prepared = [released.preprocess(image) for image in decoded]
    height, width = np.max([pixels.shape[1:] for pixels, _ in prepared], axis=0).tolist()
    found = [
        released.propose(
            functional.pad(own.to(released.device), (0, width - own.shape[2], 0, height - own.shape[1]))
        )
        for own, _ in prepared
    ]
    ours = {
        "image_sizes": [(height, width)] * len(images),
        "im_scales": [scale for _, scale in prepared],
        **_proposed(found),
    }
    for i, (proposals, (_, scale), image) in enumerate(zip(found, prepared, decoded, strict=True)):
        ours |= _kept(f"out{i}_", released.select(proposals, scale, image.size))
    for name in theirs:
        yield _compared(name, ours[name], theirs[name])


def _compare_full(folder: Path) -> Comparison:
    """Names and shapes of the full network, built by what the converter reads off them; no tensor is made."""
    manifest = json.loads((folder / FULL).read_text())
    header = {f"module.{name}": torch.empty(shape, device="meta") for name, shape in manifest.items()}
    conversion, notes = X152Conversion(), list[str]()
    plain = {name.removeprefix("module."): tensor for name, tensor in header.items()}
    used = {name: tensor for name, tensor in plain.items() if not _is_unused(name)}
    renamed = rename(used, conversion.names)
    levels = [renamed.pop(f"rpn.anchor_generator.cell_anchors.{level}") for level in range(5)]
    renamed["head.anchors"] = torch.stack(levels)
    shapes = {name: tuple(tensor.shape) for name, tensor in renamed.items()}
    config = conversion.config(shapes, renamed, notes)
    problems = tensor_problems(X152.empty(config).state_dict(), renamed)
    problems += X152.config_problems(config)
    described = X152.describe(config)
    if described != "Faster R-CNN, ResNeXt 3-8-36-3, 32x8d, FPN 512; 1600 classes; 2048 dimensions":
        problems.append(described)
    return compare("full_tensors", len(problems) + abs(len(used) - (len(manifest) - 2)), 0, 0.0)


def _is_unused(name: str) -> bool:
    return name.startswith("roi_heads.box.predictor.bbox_pred.")
