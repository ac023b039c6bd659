"""Precomputed regions: masks or boxes from a file or from Python, by image."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from capeval_core.errors import FileError, Problem, Problems
from capeval_core.inputs.folder import Names
from capeval_core.inputs.images import InputImage
from capeval_core.inputs.text_files import load_json
from capeval_core.regions import rle
from capeval_core.regions.regions import Regions, RegionsError, RegionSource

_SCORES = ("predicted_iou", "score")
_EXPECTED = (
    "expected a boolean array (h, w), run lengths {'size': [h, w], 'counts': ...}, or an annotation with "
    "'segmentation' or 'bbox' ([x, y, width, height])"
)


_BY_CONTENT = (
    "images without a file name take theirs from PrecomputedRegions.of(images, masks), in "
    "capeval_core.regions.precomputed"
)


class PrecomputedRegions(RegionSource):
    """Regions from a file or from Python.

    Args:
        masks: image id -> its regions. An id is a file name with or without folder and extension, or a COCO
            number, as for captions. A region is a boolean array (h, w), COCO's run lengths
            `{"size": [h, w], "counts": [...] or "..."}`, or an annotation: such runs under `segmentation`,
            or a `bbox` ([x, y, width, height]) alone, which stands for its rectangle. An annotation's
            `predicted_iou` or `score` is the region's quality, otherwise 1.
        name: its name in the signature.

    Masks have the size of the image. Empty ones are dropped and counted; an image with an empty list has
    no regions; an image that is not among the ids is an error. Raises all problems with the masks at once.
    """

    def __init__(self, masks: Mapping[str, Sequence[Any]], *, name: str = "precomputed") -> None:
        problems = Problems()
        for key, entries in masks.items():
            if isinstance(entries, (str, bytes, Mapping)) or not isinstance(entries, (Sequence, np.ndarray)):
                problems.add(f"masks[{key!r}] is a {type(entries).__name__}: expected a list", kind=TypeError)
                continue
            for index, entry in enumerate(entries):
                if problem := _problem(entry):
                    problems.add(f"masks[{key!r}][{index}] {problem}", kind=TypeError)
        problems.raise_if_any()
        self.name = name
        self._masks = {str(key): list(entries) for key, entries in masks.items()}
        self._names = Names(self._masks)
        self.fingerprint = f"precomputed-{_digest(self._masks)}"

    @classmethod
    def of(cls, images: Sequence[Any], masks: Sequence[Sequence[Any]]) -> PrecomputedRegions:
        """Regions in a list parallel to the images, which are identified by their content."""
        if len(images) != len(masks):
            raise ValueError(f"len(masks)={len(masks)} but len(images)={len(images)}")
        by_key: dict[str, Sequence[Any]] = {}
        for index, (image, entries) in enumerate(zip(images, masks, strict=True)):
            key = InputImage.of(image, f"images[{index}]").key
            if _digest({"": by_key.setdefault(key, entries)}) != _digest({"": entries}):
                raise ValueError(f"masks[{index}] differ from those of an earlier, equal image")
        return cls(by_key)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> PrecomputedRegions:
        """Regions from a JSON file: `{image id: [regions]}`, COCO results or a COCO annotation file.

        COCO results are a list of `{"image_id", "segmentation" or "bbox", "score"}`. An annotation file's
        `images` name the file of each id; otherwise ids are matched with the names of the images.
        """
        path = Path(path)
        content = load_json(path, once="give all regions of an image in one list")
        try:
            return cls(_by_image(content), name=f"precomputed:{path.name}")
        except (ValueError, TypeError) as error:
            raise FileError(f"{path}: {error}") from error

    def find(self, image: InputImage) -> Regions:
        entries = self._entries(image)
        width, height = image.load().size
        problems, found = Problems(), []
        for index, entry in enumerate(entries):
            try:
                found.append(_read(entry, (height, width)))
            except ValueError as error:
                wrong = f"mask {index} of {image.name} {error}"
                problems.add(Problem(image.where, wrong, kind=RegionsError))
        problems.raise_if_any()
        runs, qualities, boxes = zip(*found, strict=True) if found else ((), (), ())
        return Regions.of_runs(runs, (height, width), quality=qualities, boxes=boxes)

    def _entries(self, image: InputImage) -> list[Any]:
        source = image.source
        path = getattr(source, "path", "") or getattr(getattr(source, "value", None), "filename", "")
        path = os.fsdecode(path)
        matches = self._names.find(path) or self._names.find(PurePath(path).name)
        if len(matches) > 1:
            found = f"{image.name} may mean any of the masks of {', '.join(matches[:3])}"
            raise RegionsError(Problem(image.where, found, "name them as the file is named"))
        if path and matches:
            return self._masks[matches[0]]
        if any(key.startswith(("file:", "pixels:")) for key in self._masks) and image.key in self._masks:
            return self._masks[image.key]
        ids = ", ".join(list(self._masks)[:3]) + (", ..." if len(self._masks) > 3 else "")
        known = f"there are masks of {len(self._masks)} images: {ids}"
        found = f"there are no precomputed masks of {image.name} ({known})"
        fix = "give it an empty list if it has no regions" if path else _BY_CONTENT
        raise RegionsError(Problem(image.where, found, fix))


def _problem(entry: Any) -> str | None:
    """Why an entry cannot be a region, None where it can."""
    if isinstance(entry, np.ndarray):
        is_mask = entry.ndim == 2 and entry.dtype == np.bool_
        return None if is_mask else f"is an array {entry.dtype}{entry.shape}: {_EXPECTED}"
    if not isinstance(entry, Mapping):
        return f"is a {type(entry).__name__}: {_EXPECTED}"
    if isinstance(entry.get("segmentation"), list):
        return "is a polygon: write it as run lengths (pycocotools: mask.frPyObjects, then mask.merge)"
    runs = entry.get("segmentation", entry)
    if isinstance(runs, Mapping) and {"size", "counts"} <= set(runs):
        return None
    return None if "bbox" in entry and "segmentation" not in entry else f"is unknown: {_EXPECTED}"


def _read(entry: Any, size: tuple[int, int]) -> tuple[rle.Runs, float, Sequence[float]]:
    """Runs, quality and box of one region; ValueError where they do not fit the image."""
    quality, box = 1.0, None
    own: tuple[int, ...] = size
    if isinstance(entry, np.ndarray):
        written, own = {}, entry.shape
    else:
        if score := next((key for key in _SCORES if entry.get(key) is not None), None):
            (quality,) = _numbers(score, [entry[score]], "a number")
        if entry.get("bbox") is not None:
            x, y, width, height = _numbers("bbox", entry["bbox"], "[x, y, width, height]", 4)
            if min(width, height) < 0:
                raise ValueError(f"has the bbox {entry['bbox']}: expected [x, y, width, height]")
            box = (x, y, x + width, y + height)
        written = entry.get("segmentation", entry)
        if "counts" in written:
            own = tuple(map(int, _numbers("size", written["size"], "[height, width]", 2)))
    if own != size:
        raise ValueError(
            f"is {own[0]} high and {own[1]} wide, but the image is {size[0]} high and {size[1]} wide: make "
            "it at the size of the image as it is stored, without its EXIF orientation"
        )
    if isinstance(entry, np.ndarray):
        runs = rle.encode(entry)
    elif "counts" not in written:
        assert box is not None
        runs = rle.of_box(box, size)
    else:
        counts = written["counts"]
        text = counts.decode("ascii") if isinstance(counts, bytes) else counts
        lengths = rle.decompress(text) if isinstance(text, str) else _numbers("counts", text, "run lengths")
        wide = np.array(lengths, dtype=np.int64)
        if (wide < 0).any() or wide.sum() != size[0] * size[1]:
            raise ValueError(f"has damaged counts, of {wide.sum()} pixels, expected {size[0]} * {size[1]}")
        runs = wide.astype(np.uint32)
    return runs, quality, box or rle.bounding_box(runs, size)


def _numbers(key: str, values: Any, expected: str, count: int | None = None) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        numbers = [np.nan]
    if not np.isfinite(numbers).all() or count not in (None, len(numbers)):
        raise ValueError(f"has the {key} {str(values)[:60]!r}: expected {expected}")
    return numbers


def _by_image(content: Any) -> dict[str, list[Any]]:
    """{image id: [regions]} of the content of a JSON file."""
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
    regions: dict[str, list[Any]] = {name: [] for name in files.values()}
    for index, entry in enumerate(content):
        if not isinstance(entry, dict) or "image_id" not in entry:
            raise ValueError(f"annotation {index} has no image_id")
        regions.setdefault(files.get(entry["image_id"], str(entry["image_id"])), []).append(entry)
    return regions


def _digest(masks: Mapping[str, Any]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for key in sorted(masks):
        digest.update(key.encode())
        for entry in masks[key]:
            if isinstance(entry, np.ndarray):
                digest.update(repr(entry.shape).encode() + np.packbits(entry).tobytes())
            else:
                digest.update(json.dumps(entry, sort_keys=True, default=_plain).encode())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """bytes, arrays and numbers of numpy as values that json can write."""
    return value.decode("ascii") if isinstance(value, bytes) else np.asarray(value).tolist()
