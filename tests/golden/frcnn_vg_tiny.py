"""Bottom-up attention's Faster R-CNN: the original checkpoint, converted, run by the project's own encoder.

A case is a folder with config.json (in place of the release's config.yaml), manifest.json, scales.json,
overrides.npz, meta.json, resize_800_1333.json, image{i}.png with image{i}.npz, batch.npz, and where they are
there full_manifest.json and full_config.json. What a local file gives in the original (`local_*`, in red,
green, blue) is not reproduced.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional

from capeval_core.encoders.faster_rcnn import Detections, FasterRcnn
from capeval_core.inputs.visual import InputImage
from capeval_core.weights.conversion import Release, rename, tensor_problems
from capeval_core.weights.faster_rcnn import FasterRcnnConversion
from tests.golden import recipe
from tests.golden.comparison import Comparison, UnreadableCaseError, compare
from tests.support.device import device

Array = NDArray[Any]
Json = dict[str, Any]

TOLERANCES = {
    "pre": 1e-4, "sizes": 0.0, "scales_yx": 0.0, "stem": 1e-4, "res4": 1e-4, "rpn_logits": 1e-3,
    "rpn_deltas": 1e-3, "proposals": 1e-2, "proposal_logits": 1e-3, "pooled_first3": 1e-4,
    "feature_pooled": 1e-4, "obj_logits": 1e-3, "attr_logits": 1e-3, "box_deltas": 1e-3,
    "obj_ids": 0.0, "obj_probs": 1e-4, "attr_ids": 0.0, "attr_probs": 1e-4, "boxes": 1e-2,
    "normalized_boxes": 1e-4, "roi_features": 1e-4, "preds_per_image": 0.0, "pre_shape": 0.0,
}  # fmt: skip
FILES = ("config.json", "manifest.json", "scales.json", "meta.json", "resize_800_1333.json")
FULL = ("full_config.json", "full_manifest.json")


def expected_quantities(folder: Path) -> set[str]:
    """What a run must have compared."""
    images = {
        f"image{i}_{name}" for i, outputs in _outputs(folder) for name in outputs if name[:6] != "local_"
    }
    with np.load(folder / "batch.npz") as batch:
        images |= {f"batch_{name}" for name in batch.files}
    full = {"full_tensors"} if all((folder / name).is_file() for name in FULL) else set()
    return images | full | {"resized_hw", "too_few", "anchors"}


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare everything that the case pins."""
    try:
        config, _, _, meta, resized = (json.loads((folder / name).read_text()) for name in FILES)
        cases = list(_outputs(folder))
        with np.load(folder / "batch.npz") as stored:
            batch = dict(stored)
        variants = dict(meta["variants"])
        images = [folder / str(image["file"]) for image in meta["images"]]
        if missing := [image.name for image in images if not image.is_file()]:
            raise UnreadableCaseError(f"there is no {missing[0]}")
    except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
        raise UnreadableCaseError(f"cannot be read: {' '.join(str(error).split())}") from error
    with tempfile.TemporaryDirectory(prefix="golden-") as place:
        release = FasterRcnn.convert(write_checkpoint(folder, Path(place)))
        networks = {name: _variant(release, values) for name, values in variants.items()}
        FasterRcnn(release.config, release.tensors, device=device()).save_pretrained(Path(place) / "weights")
        released = FasterRcnn.from_pretrained(Path(place) / "weights", device=device())
    yield compare("anchors", _anchors(config), release.tensors["head.anchors"], 1e-4)
    for index, outputs in cases:
        for found in _compare(released, networks, folder / f"image{index}.png", outputs):
            yield Comparison(f"image{index}_{found.quantity}", found.error, found.tolerance, found.defined)
    for found in _compare_batch(released, images, batch):
        yield Comparison(f"batch_{found.quantity}", found.error, found.tolerance, found.defined)
    yield _compare_sizes(release, resized)
    yield _too_few(release, images[0])
    if all((folder / name).is_file() for name in FULL):
        yield _compare_full(folder)


def write_checkpoint(folder: Path, place: Path) -> Path:
    """The seeded checkpoint of a case, in its original naming, with its config.yaml beside it in `place`."""
    config, manifest, scales, meta, _ = (json.loads((folder / name).read_text()) for name in FILES)
    arrays = {
        name: x * np.float32(scales.get(name, 1))
        for name, x in recipe.state_dict(manifest, int(meta["seed"])).items()
    }
    with np.load(folder / "overrides.npz") as overrides:
        arrays |= dict(overrides)
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    for name in [name for name in tensors if name.endswith(".running_var")]:
        tensors[name.replace("running_var", "num_batches_tracked")] = torch.tensor(0)
    torch.save(tensors, place / "pytorch_model.bin")
    (place / "config.yaml").write_text(json.dumps(config))  # YAML reads JSON
    return place / "pytorch_model.bin"


def _outputs(folder: Path) -> Iterator[tuple[int, dict[str, Array]]]:
    files = sorted(folder.glob("image*.npz"))
    if not files:
        raise UnreadableCaseError("there is no image0.npz")
    for file in files:
        with np.load(file) as stored:
            yield int(file.stem.removeprefix("image")), dict(stored)


def _variant(release: Release, values: Json) -> FasterRcnn:
    """The network with other thresholds of its last suppression."""
    detections = {"overlaps": values["nms"], "least": values["mind"], "most": values["maxd"]}
    detections = {**release.config["detections"], **detections}
    return FasterRcnn({**release.config, "detections": detections}, release.tensors, device=device())


def _anchors(config: Json) -> Array:
    """Anchors by the sizes and ratios of the config: sizes first, then ratios."""
    shapes = config["anchor_generator"]
    sides = [
        (size / ratio**0.5, size * ratio**0.5)
        for size in shapes["sizes"][0]
        for ratio in shapes["aspect_ratios"][0]
    ]
    return np.array([(-w / 2, -h / 2, w / 2, h / 2) for w, h in sides])


def _compare(
    released: FasterRcnn, networks: Mapping[str, FasterRcnn], image: Path, theirs: dict[str, Array]
) -> Iterator[Comparison]:
    network = released.network
    with Image.open(image) as decoded, torch.inference_mode():
        pixels = released.preprocess(decoded).to(released.device)
        height, width = pixels.shape[1:]
        found = released.propose(pixels)
        map_ = network.feature_map(pixels[None])
        logits, deltas = network.head(map_)
        ours = {
            "pre": pixels[None],
            "sizes": [(height, width)],
            "scales_yx": [np.divide(decoded.size[::-1], (height, width), dtype=np.float32)],
            "stem": network.backbone["stem"](pixels[None]),
            "res4": map_,
            "rpn_logits": logits,
            "rpn_deltas": deltas,
            "proposals": found.boxes,
            "proposal_logits": found.logits,
            "pooled_first3": network.pooled(map_, found.boxes[: len(theirs["pooled_first3"])]),
            "feature_pooled": found.features,
            "obj_logits": found.class_logits,
            "attr_logits": found.attribute_logits,
            "box_deltas": found.deltas,
        }
        for name, values in ours.items():
            yield compare(name, values, theirs[name], TOLERANCES[name])
        for variant, encoder in networks.items():
            kept = encoder.detect(decoded, "lxmert36")
            (visual,) = encoder.encode_boxes([InputImage.of(image)], selection="lxmert36")
            streamed = visual.load()
            if not np.array_equal(streamed.boxes, kept.boxes):
                yield Comparison(f"{variant}_boxes differ in the engine", float("inf"), 0.0)
            rows = theirs[f"{variant}_obj_ids"].shape[1]
            ours = _padded(kept, rows) | {"sizes": [(height, width)]}
            ours["roi_features"] = _rows(streamed.features, rows)
            for name, values in ours.items():
                yield compare(f"{variant}_{name}", values, theirs[f"{variant}_{name}"], TOLERANCES[name])


def _rows(values: Array, count: int) -> Array:
    """(1, count, ...) with zeros behind the values."""
    padded = np.zeros((1, count, *values.shape[1:]), dtype=values.dtype)
    padded[0, : len(values)] = values
    return padded


def _padded(kept: Detections, count: int) -> dict[str, Any]:
    """What the original returns of one image."""
    return {
        "obj_ids": _rows(kept.classes, count),
        "obj_probs": _rows(kept.scores, count),
        "attr_ids": _rows(kept.attributes, count),
        "attr_probs": _rows(kept.attribute_scores, count),
        "boxes": _rows(kept.boxes, count),
        "normalized_boxes": _rows(kept.boxes / np.tile(kept.size, 2), count),
        "roi_features": _rows(kept.features, count),
        "preds_per_image": [len(kept)],
    }


def _compare_batch(
    released: FasterRcnn, images: list[Path], theirs: dict[str, Array]
) -> Iterator[Comparison]:
    """Images in one padded batch: the network on their pixels with a margin; no door pads.

    Normalized boxes mix the widths of both images in the original, and are defined here.
    """
    decoded = [Image.open(image) for image in images]
    pixels = [released.preprocess(image).to(released.device) for image in decoded]
    sizes = np.array([image.shape[1:] for image in pixels])
    height, width = sizes.max(axis=0).tolist()
    rows = theirs["A_obj_ids"].shape[1]
    ours: list[dict[str, Any]] = []
    for image, own in zip(decoded, pixels, strict=True):
        size = (own.shape[1], own.shape[2])
        margin = functional.pad(own, (0, width - size[1], 0, height - size[0]))
        kept = released.select(released.propose(margin, size), size, image.size, "lxmert36")
        ours.append(_padded(kept, rows))
    raw = np.array([image.size[::-1] for image in decoded])
    yield compare("pre_shape", (len(images), 3, height, width), theirs["pre_shape"], 0.0)
    yield compare("sizes", sizes, theirs["sizes"], 0.0)
    yield compare("scales_yx", np.divide(raw, sizes, dtype=np.float32), theirs["scales_yx"], 0.0)
    yield compare("A_sizes", sizes, theirs["A_sizes"], 0.0)
    for name in ours[0]:
        values = np.concatenate([each[name] for each in ours])
        expected = theirs[f"A_{name}"].astype(np.float64)
        if name == "normalized_boxes":
            expected = np.full_like(expected, np.nan)
        yield compare(f"A_{name}", values, expected, TOLERANCES[name])


def _compare_sizes(release: Release, resized: list[dict[str, Any]]) -> Comparison:
    """The size that images get at the full configuration's sides."""
    sides = {"shortest_side": 800, "longest_side": 1333}
    config = {**release.config, "preprocessing": {**release.config["preprocessing"], **sides}}
    full = FasterRcnn(config, release.tensors, device=device())
    ours = [full.resized(tuple(case["hw"])) for case in resized]
    return compare("resized_hw", ours, [case["resized_hw"] for case in resized], 0.0)


def _too_few(release: Release, image: Path) -> Comparison:
    """Boxes where no threshold leaves enough: the original fails, here the last one's are kept."""
    network = _variant(release, {"nms": [0.05, 0.3], "mind": 1000, "maxd": 1000})
    plain = _variant(release, {"nms": [0.3], "mind": 1, "maxd": 1000})
    with Image.open(image) as decoded:
        ours, expected = (each.detect(decoded, "lxmert36").boxes for each in (network, plain))
    if not len(ours) or not np.array_equal(ours, expected):
        return Comparison("too_few", float("inf"), 0.0)
    return compare("too_few", ours, np.full_like(ours, np.nan), 0.0)


def _compare_full(folder: Path) -> Comparison:
    """Names and shapes of the full network, built by what the converter reads off them; no tensor is made."""
    config, manifest = (json.loads((folder / name).read_text()) for name in FULL)
    header = {
        name: torch.empty(
            spec["shape"], dtype=torch.float32 if spec["dtype"] == "float32" else torch.int64, device="meta"
        )
        for name, spec in manifest.items()
    }
    with tempfile.TemporaryDirectory(prefix="golden-") as place:
        (Path(place) / "config.yaml").write_text(json.dumps(config))
        conversion = FasterRcnnConversion(release_config=Path(place) / "config.yaml")
        renamed = rename(header, conversion.names)
        shapes = {name: tuple(tensor.shape) for name, tensor in renamed.items()}
        settings = conversion.config(shapes, renamed, [])
    problems = tensor_problems(FasterRcnn.empty(settings).state_dict(), renamed)
    return compare("full_tensors", len(problems) + abs(len(renamed) - len(manifest)), 0, 0.0)
