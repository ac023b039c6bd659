"""Bottom-up attention's Faster R-CNN: the original checkpoint, converted, run by the project's own encoder.

A case is a folder with config.json (in place of the release's config.yaml), manifest.json, scales.json,
overrides.npz, meta.json, resize_800_1333.json, image{i}.png with image{i}.npz, batch.npz, and where they are
there full_manifest.json and full_config.json. What a local file gives in the original (`local_*`, in red,
green, blue) is not reproduced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from tests.golden.case import Array, Case, Comparison, Json, Place, compare, on_host, opened, padded, save
from tests.support.device import device
from tests.support.seams import convert, layout_problems, network, visual

TOLERANCES = {
    "pre": 1e-4, "sizes": 0.0, "scales_yx": 0.0, "stem": 1e-4, "res4": 1e-4, "rpn_logits": 1e-3,
    "rpn_deltas": 1e-3, "proposals": 1e-2, "proposal_logits": 1e-3, "pooled_first3": 1e-4,
    "feature_pooled": 1e-4, "obj_logits": 1e-3, "attr_logits": 1e-3, "box_deltas": 1e-3,
    "obj_ids": 0.0, "obj_probs": 1e-4, "attr_ids": 0.0, "attr_probs": 1e-4, "boxes": 1e-2,
    "normalized_boxes": 1e-4, "roi_features": 1e-4, "preds_per_image": 0.0, "pre_shape": 0.0,
}  # fmt: skip
IGNORED = tuple(f"image{i}_local_" for i in range(99))


def write_checkpoint(folder: Path, place: Path) -> Path:
    """The seeded checkpoint of a case, in its original naming, with its config.yaml beside it in `place`."""
    case = Case(folder)
    tensors = case.tensors(seed=case.json("meta")["seed"], scales="scales")
    tensors |= {name: torch.from_numpy(values) for name, values in case.npz("overrides").items()}
    for name in [name for name in tensors if name.endswith(".running_var")]:
        tensors[name.replace("running_var", "num_batches_tracked")] = torch.tensor(0)
    (place / "config.yaml").write_text(json.dumps(case.config))  # YAML reads JSON
    return save(tensors, place / "pytorch_model.bin")


def run(case: Case) -> Iterator[Comparison]:
    meta = case.json("meta")
    with Place() as place:
        release = convert("faster_rcnn", write_checkpoint(case.folder, place))
        network("faster_rcnn", release.config, release.tensors, device=device()).save_pretrained(
            place / "ours"
        )
        released = opened("faster_rcnn", place / "ours")
    variants = {name: variant(release, values) for name, values in meta["variants"].items()}
    yield compare("anchors", anchors(case.config), release.tensors["head.anchors"], 1e-4)
    images = [Image.open(case.path(image["file"])) for image in meta["images"]]
    for i in range(case.images):
        path = case.path(f"image{i}.png")
        ours = {f"image{i}_{name}": values for name, values in of_image(case, i, released, path).items()}
        for name, own in variants.items():
            found = of_variant(own, path, case.outputs[f"image{i}_{name}_obj_ids"].shape[1])
            ours |= {f"image{i}_{name}_{quantity}": values for quantity, values in found.items()}
        yield from case.compare_all(ours, tolerance)
    yield from of_batch(case, released, images)
    yield resized(case, release)
    yield too_few(release, images[0])
    if case.path("full_manifest.json").exists():
        yield full(case)


def tolerance(quantity: str) -> float:
    """By the end of its name."""
    return next(limit for name, limit in sorted(TOLERANCES.items(), key=longest) if quantity.endswith(name))


def longest(entry: tuple[str, float]) -> int:
    return -len(entry[0])


def variant(release: Any, values: Json) -> Any:
    """The network with other thresholds of its last suppression."""
    detections = {"overlaps": values["nms"], "least": values["mind"], "most": values["maxd"]}
    detections = {**release.config["detections"], **detections}
    return network(
        "faster_rcnn", {**release.config, "detections": detections}, release.tensors, device=device()
    )


def anchors(config: Json) -> Array:
    """Anchors by the sizes and ratios of the config: sizes first, then ratios."""
    shapes = config["anchor_generator"]
    sides = [
        (size / ratio**0.5, size * ratio**0.5)
        for size in shapes["sizes"][0]
        for ratio in shapes["aspect_ratios"][0]
    ]
    return np.array([(-w / 2, -h / 2, w / 2, h / 2) for w, h in sides])


def of_image(case: Case, number: int, released: Any, image: Path) -> Json:
    """Every state of the network."""
    inner = released.model
    with Image.open(image) as decoded, torch.inference_mode():
        pixels = released.preprocess(decoded)[0].to(released.device)
        found, map_ = released.propose(pixels), inner.feature_maps(pixels[None])[0]
        logits, deltas = inner.head(map_)
        first = len(case.outputs[f"image{number}_pooled_first3"])
        return {
            "pre": pixels[None],
            "sizes": [pixels.shape[1:]],
            "scales_yx": [np.divide(decoded.size[::-1], pixels.shape[1:], dtype=np.float32)],
            "stem": inner.backbone["stem"](pixels[None]),
            "res4": map_,
            "rpn_logits": logits,
            "rpn_deltas": deltas,
            "proposals": found.boxes,
            "proposal_logits": found.objectness,
            "pooled_first3": inner.pool(map_, [found.boxes[:first]]),
            "feature_pooled": found.features,
            "obj_logits": found.class_logits,
            "attr_logits": inner.predictor.attribute_logits(found.features, found.class_logits.argmax(1)),
            "box_deltas": inner.predictor.bbox_pred(found.features),
        }


def of_variant(encoder: Any, image: Path, rows: int) -> Json:
    """What the original returns of an image; features as the engine streams them."""
    with Image.open(image) as decoded:
        pixels, size = encoder.preprocess(decoded)
        ours = detected(encoder, encoder.propose(pixels), size, decoded.size, rows)
    (shown,) = encoder.selecting("lxmert36").encode_boxes([visual("image", image)])
    streamed = shown.load()
    assert np.array_equal(padded([streamed.boxes], rows), ours["boxes"], equal_nan=True)
    return ours | {"sizes": [size], "roi_features": padded([streamed.features], rows)}


@torch.inference_mode()
def detected(encoder: Any, found: Any, scale: Any, size: tuple[int, int], rows: int) -> Json:
    """What the original returns of one image of (width, height)."""
    boxes, kept = encoder.selecting("lxmert36").select(found, scale, size)
    features, classes = found.features[kept], found.class_logits[kept]
    attributes = encoder.model.predictor.attribute_logits(features, classes.argmax(1))[:, :-1].softmax(1)
    values = {
        "obj_ids": classes[:, :-1].argmax(1),
        "obj_probs": boxes.scores,
        "attr_ids": attributes.argmax(1),
        "attr_probs": attributes.max(1).values,
        "boxes": boxes.boxes,
        "normalized_boxes": boxes.boxes / np.tile(size, 2),
        "roi_features": boxes.features,
    }
    ours = {name: padded([on_host(own)], rows) for name, own in values.items()}
    return {**ours, "preds_per_image": [len(kept)]}


def of_batch(case: Case, released: Any, images: list[Image.Image]) -> Iterator[Comparison]:
    """Images in one padded batch: the network on their pixels with a margin; no door pads.

    Normalized boxes mix the widths of both images in the original, and are defined here.
    """
    pixels = [released.preprocess(image)[0].to(released.device) for image in images]
    sizes = np.array([own.shape[1:] for own in pixels])
    height, width = sizes.max(axis=0).tolist()
    rows, found = case.outputs["batch_A_obj_ids"].shape[1], []
    for image, own in zip(images, pixels, strict=True):
        size = (own.shape[1], own.shape[2])
        margin = functional.pad(own, (0, width - size[1], 0, height - size[0]))
        found.append(detected(released, released.propose(margin, size), size, image.size, rows))
    ours: Json = {f"A_{name}": np.concatenate([each[name] for each in found]) for name in found[0]}
    raw = np.array([image.size[::-1] for image in images])
    ours |= {"pre_shape": (len(images), 3, height, width), "sizes": sizes, "A_sizes": sizes}
    ours["scales_yx"] = np.divide(raw, sizes, dtype=np.float32)
    case.outputs["batch_A_normalized_boxes"] = np.full_like(case.outputs["batch_A_normalized_boxes"], np.nan)
    yield from case.compare_all(ours, tolerance, "batch_")


def resized(case: Case, release: Any) -> Comparison:
    """The size that images get at the full configuration's sides."""
    sides = {"shortest_side": 800, "longest_side": 1333}
    config = {**release.config, "preprocessing": {**release.config["preprocessing"], **sides}}
    full_size = network("faster_rcnn", config, release.tensors, device=device())
    cases = case.json("resize_800_1333")
    ours = [full_size.resized(tuple(one["hw"])) for one in cases]
    return compare("resized_hw", ours, [one["resized_hw"] for one in cases], 0.0)


def too_few(release: Any, image: Image.Image) -> Comparison:
    """Boxes where no threshold leaves enough: the original fails, here the last one's are kept."""
    settings = ({"nms": [0.05, 0.3], "mind": 1000, "maxd": 1000}, {"nms": [0.3], "mind": 1, "maxd": 1000})
    shown = visual("image", image)
    encoders = [variant(release, values) for values in settings]
    ours, expected = (
        next(encoder.selecting("lxmert36").encode_boxes([shown])).load().boxes for encoder in encoders
    )
    assert len(ours) and np.array_equal(ours, expected)
    return compare("too_few", ours, np.full_like(ours, np.nan), 0.0)


def full(case: Case) -> Comparison:
    """Names and shapes of the full network, built by what the converter reads off them; no tensor is made."""
    types = {"float32": torch.float32}
    header = {
        name: torch.empty(spec["shape"], dtype=types.get(spec["dtype"], torch.int64), device="meta")
        for name, spec in case.json("full_manifest").items()
    }
    with Place() as place:
        (place / "config.yaml").write_text(json.dumps(case.json("full_config")))
        problems = layout_problems("faster_rcnn", header, release_config=place / "config.yaml")
    return compare("full_tensors", len(problems), 0, 0.0)
