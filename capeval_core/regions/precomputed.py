"""Precomputed regions: masks or boxes by image id, from Python or from COCO's files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import FileError, Problem, Problems
from capeval_core.inputs.files import load_json
from capeval_core.inputs.images import ImageError, InputImage, image_error, within
from capeval_core.inputs.joining import Names
from capeval_core.regions import rle
from capeval_core.regions.regions import Regions, RegionSource

_SCORES = ("predicted_iou", "score")
_FORMS = (
    "expected a boolean array (h, w), run lengths {'size': [h, w], 'counts': ...}, or an annotation with "
    "'segmentation' or 'bbox' ([x, y, width, height])"
)


class PrecomputedRegions(RegionSource):
    """Regions from a file or from Python, by image id: a file name with or without folder and extension, or a
    COCO number.

    A region is a boolean array (h, w) of the image's size, COCO's run lengths `{"size": [h, w], "counts":
    [...] or "..."}`, or an annotation: such runs under `segmentation`, or a `bbox` ([x, y, width, height])
    alone, whose rectangle is the region. An annotation's `predicted_iou` or `score` is the region's quality,
    otherwise 1. Empty masks are dropped and counted; an image with an empty list has no regions.
    """

    def __init__(self, masks: Mapping[str, Sequence[Any]], *, name: str = "precomputed") -> None:
        problems = Problems()
        for key, entries in masks.items():
            is_text_or_mapping = isinstance(entries, (str, bytes, Mapping))
            if is_text_or_mapping or not isinstance(entries, (Sequence, np.ndarray)):
                problems.add(f"masks[{key!r}] is a {type(entries).__name__}: expected a list", kind=TypeError)
                continue
            for index, entry in enumerate(entries):
                problem = _entry_problem(entry)
                if problem is not None:
                    problems.add(f"masks[{key!r}][{index}] {problem}", kind=TypeError)
        problems.raise_if_any()
        self.name = name
        self._masks = {str(key): list(entries) for key, entries in masks.items()}
        self._names = Names(self._masks)
        self.fingerprint = f"precomputed-{_digest(self._masks)}"

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PrecomputedRegions:
        """Regions from a JSON file: `{image id: [regions]}`, COCO results, or a COCO annotation file, whose
        `images` name the file of each id."""
        path = Path(path)
        content = load_json(path)
        try:
            return cls(_by_image(content), name=f"precomputed:{path.name}")
        except (ValueError, TypeError) as error:
            raise FileError(f"{path}: {error}") from error

    def find(self, image: InputImage) -> Regions:
        entries = self._entries(image)
        width, height = image.load().size
        problems = Problems()
        runs: list[rle.Runs] = []
        qualities: list[float] = []
        boxes: list[Sequence[float]] = []
        # All masks are looked at first: one message names every one that does not fit.
        for index, entry in enumerate(entries):
            try:
                mask, quality, box = _mask_quality_box(entry, (height, width))
            except ValueError as error:
                problem = f"mask {index} of {image.name} {error}"
                problems.add(Problem(image.where, problem, kind=ImageError, sentence=True))
                continue
            runs.append(mask)
            qualities.append(quality)
            boxes.append(box)
        problems.raise_if_any()
        return Regions.of_runs(runs, (height, width), quality=qualities, boxes=boxes)

    def _entries(self, image: InputImage) -> list[Any]:
        """The entries of an image, by its path or the file name that PIL keeps."""
        source = image.source
        # PIL's own attribute: a data set that hands out opened files keeps their names so.
        path = getattr(source, "path", "") or getattr(getattr(source, "value", None), "filename", "")
        with within(image.where):
            if not path:
                fix = "pass its path, or set `image.filename`"
                raise image_error(f"there are no precomputed masks of {image.name}", fix, sentence=True)
            return self._masks[self._names.only(os.fsdecode(path), "precomputed masks")]


def _entry_problem(entry: object) -> str | None:
    """The reason why an entry cannot be a region, None where it can."""
    if isinstance(entry, np.ndarray):
        if entry.ndim == 2 and entry.dtype == np.bool_:
            return None
        return f"is an array {entry.dtype}{entry.shape}: {_FORMS}"
    if not isinstance(entry, Mapping):
        return f"is a {type(entry).__name__}: {_FORMS}"
    # COCO's annotations of things have polygons, whose pixels depend on who fills them.
    if isinstance(entry.get("segmentation"), list):
        return "is a polygon: write it as run lengths (pycocotools: mask.frPyObjects, then mask.merge)"
    runs = entry.get("segmentation", entry)
    if isinstance(runs, Mapping) and {"size", "counts"} <= set(runs):
        return None
    if "bbox" in entry and "segmentation" not in entry:
        return None
    return f"is unknown: {_FORMS}"


def _mask_quality_box(
    entry: NDArray[np.bool_] | Mapping[str, Any], size: tuple[int, int]
) -> tuple[rle.Runs, float, Sequence[float]]:
    """Runs, quality and box of one region; ValueError where they do not fit the image."""
    if isinstance(entry, np.ndarray):
        _check_size(entry.shape, size)
        runs = rle.encode(entry)
        return runs, 1.0, rle.bounding_box(runs, size)
    quality = _quality_of(entry)
    box = None
    if entry.get("bbox") is not None:
        x, y, width, height = _numbers("bbox", entry["bbox"], "[x, y, width, height]", 4)
        if min(width, height) < 0:
            raise ValueError(f"has the bbox {entry['bbox']}: expected [x, y, width, height]")
        box = (x, y, x + width, y + height)
    segmentation = entry.get("segmentation", entry)
    if box is not None and "counts" not in segmentation:
        return rle.of_box(box, size), quality, box
    height_and_width = _numbers("size", segmentation["size"], "[height, width]", 2)
    _check_size(tuple(map(int, height_and_width)), size)
    counts = segmentation["counts"]
    if isinstance(counts, bytes):  # as pycocotools gives them
        counts = counts.decode("ascii")
    if isinstance(counts, str):
        lengths: Sequence[float] = rle.decompress(counts)
    else:
        lengths = _numbers("counts", counts, "run lengths")
    # In 64 bits first: in 32 unsigned ones a negative or too large length would pass for another.
    wide = np.array(lengths, dtype=np.int64)
    if (wide < 0).any() or wide.sum() != size[0] * size[1]:
        raise ValueError(f"has damaged counts, of {wide.sum()} pixels, expected {size[0]} * {size[1]}")
    runs = wide.astype(np.uint32)
    return runs, quality, box or rle.bounding_box(runs, size)


def _quality_of(entry: Mapping[str, Any]) -> float:
    """The predicted IoU or the score of an annotation, else 1."""
    for key in _SCORES:
        if entry.get(key) is not None:
            (quality,) = _numbers(key, [entry[key]], "a number")
            return quality
    return 1.0


def _check_size(mask_size: tuple[int, ...], size: tuple[int, int]) -> None:
    """Raise ValueError unless a mask has the size of the image."""
    if mask_size != size:
        raise ValueError(
            f"is {mask_size[0]} high and {mask_size[1]} wide, but the image is {size[0]} high and {size[1]} "
            "wide: make it at that size, which is that of the image as it is scored"
        )


def _numbers(key: str, values: Any, expected: str, count: int | None = None) -> list[float]:
    """Finite numbers, so many of them if `count` is given; else a ValueError that names the key."""
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = [np.nan]
    if not np.isfinite(numbers).all() or count not in (None, len(numbers)):
        raise ValueError(f"has the {key} {str(values)[:60]!r}: expected {expected}")
    return numbers


def _by_image(content: object) -> dict[str, list[Any]]:
    """{image id: [regions]} of the content of a JSON file."""
    # A file of image ids cannot have one that is called so: it would be a file of COCO's annotations.
    if isinstance(content, dict) and "annotations" not in content:
        return content
    files: dict[Any, str] = {}
    if isinstance(content, dict):
        for index, image in enumerate(content.get("images", [])):
            if not isinstance(image, dict) or not {"id", "file_name"} <= image.keys():
                raise ValueError(f"images[{index}] has no id or no file_name")
            files[image["id"]] = image["file_name"]
        content = content["annotations"]
    if not isinstance(content, list):
        raise ValueError(f"it holds a {type(content).__name__}, expected a list of annotations")
    # An image that the file lists without an annotation has no regions, which is not an error.
    regions: dict[str, list[Any]] = {name: [] for name in files.values()}
    for index, entry in enumerate(content):
        if not isinstance(entry, dict) or "image_id" not in entry:
            raise ValueError(f"annotation {index} has no image_id")
        image_id = entry["image_id"]
        name = files.get(image_id, str(image_id))  # results have no `images`: their ids are the names
        regions.setdefault(name, []).append(entry)
    return regions


def _digest(masks: Mapping[str, Any]) -> str:
    """A digest of all masks by image id."""
    digest = hashlib.blake2b(digest_size=8)
    # In the order of ids, not of the file: the same masks are the same source.
    for key in sorted(masks):
        digest.update(key.encode())
        for entry in masks[key]:
            if isinstance(entry, np.ndarray):
                digest.update(repr(entry.shape).encode() + np.packbits(entry).tobytes())
            else:
                digest.update(json.dumps(entry, sort_keys=True, default=_plain).encode())
    return digest.hexdigest()


def _plain(value: object) -> Any:
    """Bytes and arrays as JSON can write them."""
    return value.decode("ascii") if isinstance(value, bytes) else np.asarray(value).tolist()
