"""12-in-1's ResNeXt-152 FPN detector: the original checkpoint, converted, run by the project's own encoder.

A case is a folder with config.json, manifest.json, scales.json, overrides.npz, image{i}.png with
image{i}.npz, batch.npz, and where it is there full_manifest_inferred.json. Which class a box shows is off by
one box in the original (`objects_as_written`): it is compared with the classes of the next box.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from tests.golden.case import Array, Case, Comparison, Json, Place, compare, converted, opened, save
from tests.support.device import device
from tests.support.seams import layout_problems, network, visual

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


def run(case: Case) -> Iterator[Comparison]:
    def limits(stem: str) -> Callable[[str], float]:
        theirs = case.of(stem)
        return lambda name: tolerance(name, theirs[name])

    with Place() as place:
        config = case.config
        detections = {
            "most": config["num_features"],
            "overlap": config["nms_for_selection"],
            "threshold": 0.0,
        }
        preprocessing = {"shortest_side": config["min_size"], "longest_side": config["max_size"]}
        preprocessing["mean"] = config["pixel_mean_bgr"]
        change = {"preprocessing": preprocessing, "detections": detections}
        released = opened("x152", converted("x152", write_checkpoint(case, place), place / "weights", change))
    yield compare("anchors", anchors(config), released.model.head.anchors, 0.0)
    for i in range(case.images):
        yield from case.compare_all(of_image(case, i, released), limits(f"image{i}_"), f"image{i}_")
    images = [Image.open(case.path(f"image{i}.png")) for i in range(len(case.outputs["batch_im_scales"]))]
    yield from case.compare_all(of_batch(released, images), limits("batch_"), "batch_")
    if case.path("full_manifest_inferred.json").exists():
        header = case.json("full_manifest_inferred").items()
        tensors = {f"module.{name}": torch.empty(shape, device="meta") for name, shape in header}
        yield compare("full_tensors", len(layout_problems("x152", tensors)), 0, 0.0)


def tolerance(name: str, theirs: Array) -> float:
    kind = re.sub("^(conf_)?(out._)?", "", name) or name
    largest = float(np.nanmax(np.abs(theirs)))
    return TOLERANCES[kind] * (max(1.0, largest) if kind.startswith(RELATIVE) else 1.0)


def write_checkpoint(case: Case, place: Path) -> Path:
    """The seeded checkpoint as it is released, without the constants of the script, which no file holds."""
    tensors, config = case.tensors(scales="scales"), case.config
    tensors |= {name: torch.from_numpy(values) for name, values in case.npz("overrides").items()}
    tensors |= {f"roi_heads.box.predictor.{name}": torch.ones(shape) for name, shape in ATTRIBUTES.items()}
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
    content = {f"module.{name}": tensor for name, tensor in tensors.items()}
    return save({"model": content, "iteration": 1}, place / "detectron_model.pth")


def anchors(config: Json) -> Array:
    """Anchors by the strides, sizes and ratios of the config, made and rounded as in the first Detectron."""
    levels = zip(config["anchor_strides"], config["anchor_sizes"], strict=True)
    return np.array([[anchor(*level, ratio) for ratio in config["aspect_ratios"]] for level in levels])


def anchor(stride: int, size: int, ratio: float) -> Array:
    width = np.round(np.sqrt(stride * stride / ratio))
    sides = np.array([width, np.round(width * ratio)]) * size / stride - 1
    centre = (stride - 1) / 2
    return np.concatenate([centre - sides / 2, centre + sides / 2])


def of_image(case: Case, number: int, released: Any) -> Json:
    inner, path, theirs = released.model, case.path(f"image{number}.png"), case.of(f"image{number}_")
    threshold = float(theirs["conf"])
    with Image.open(path) as decoded, torch.inference_mode():
        pixels, scale = released.preprocess(decoded)
        pixels = pixels.to(released.device)
        found, maps = released.propose(pixels), inner.feature_maps(pixels[None])
        logits, deltas = inner.head(maps[2])
        detections = {**released.config["detections"], "threshold": threshold}
        config = {**released.config, "detections": detections}
        strict = network("x152", config, inner.state_dict(), device=device())
        confident = kept("conf_out0_", strict, found, scale, decoded.size)
        ours = {
            "network_input": pixels[None],
            "image_sizes": [pixels.shape[1:]],
            "im_scales": [scale],
            **{f"fpn{level}": map_ for level, map_ in enumerate(maps)},
            "rpn_logits_2": logits,
            "rpn_deltas_2": deltas,
            **proposed([found]),
            "pooled_first4": inner.pooled(maps, found.boxes[: len(theirs["pooled_first4"])]),
            "fc6": found.features,
            "fc7": inner.heads(found.features)[0],
            "scores_logits": found.class_logits,
            **kept("out0_", released, found, scale, decoded.size),
            "conf": threshold,
            **confident,
        }
    # Boxes without confidence come in an order that the original leaves open.
    for name in confident:
        if np.ndim(theirs.get(name)):
            values = theirs[name].astype(np.float64)
            values[int(theirs["conf_out0_num_boxes"]) :] = np.nan
            case.outputs[f"image{number}_{name}"] = values
    (shown,) = released.encode_boxes([visual("image", path)])
    streamed = shown.load()
    return ours | {"out0_bbox": streamed.boxes, "out0_features": streamed.features}


def proposed(found: list[Any]) -> Json:
    return {
        "proposals": torch.cat([each.boxes for each in found]),
        "objectness": torch.cat([each.objectness for each in found]),
        "proposals_per_image": [len(each.boxes) for each in found],
    }


@torch.inference_mode()
def kept(prefix: str, released: Any, found: Any, scale: float, size: tuple[int, int]) -> Json:
    """What the original returns of one image of (width, height)."""
    boxes, chosen = released.select(found, scale, size)
    scores = found.class_logits.softmax(dim=1)[chosen]
    ours = {
        "features": boxes.features,
        "bbox": boxes.boxes,
        "num_boxes": np.count_nonzero(boxes.scores),
        "cls_prob": scores,
        # Arg-max with the background, of all boxes but the first.
        "objects_as_written": scores[1:].argmax(dim=1),
        "image_wh": boxes.size,
    }
    return {prefix + name: values for name, values in ours.items()}


def of_batch(released: Any, images: list[Image.Image]) -> Json:
    """Images in one padded batch: the network on their pixels with a larger margin; no door pads more."""
    prepared = [released.preprocess(image) for image in images]
    height, width = np.max([pixels.shape[1:] for pixels, _ in prepared], axis=0).tolist()
    margins = [(0, width - own.shape[2], 0, height - own.shape[1]) for own, _ in prepared]
    found = [
        released.propose(functional.pad(own.to(released.device), margin))
        for (own, _), margin in zip(prepared, margins, strict=True)
    ]
    scales = [scale for _, scale in prepared]
    ours = {"image_sizes": [(height, width)] * len(images), "im_scales": scales, **proposed(found)}
    for i, (proposals, scale, image) in enumerate(zip(found, scales, images, strict=True)):
        ours |= kept(f"out{i}_", released, proposals, scale, image.size)
    return ours
