"""Opens sources of regions by name, from a file, or from a mapping: masks or boxes made before, by image."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.errors import FileError, Problem, Problems, did_you_mean, expanded_path, wrong_option
from capeval_core.inputs.files import load_json
from capeval_core.inputs.images import ImageError, InputImage, refused, within
from capeval_core.inputs.joining import Names
from capeval_core.regions import rle
from capeval_core.regions.colours import ColourRegions
from capeval_core.regions.regions import WITHOUT, Regions, RegionSource

_NAMES = ("objects", "everything", "rectangles", "colours")
_EXPECTED = f"expected {', '.join(map(repr, _NAMES))}, or a JSON file of masks by image id"
_SETTING = re.compile(r"(?:(?P<weights>.+),)?(?P<setting>\w+)=(?P<value>[^,/]*)", re.DOTALL)


def region_opener(spec: Any) -> Callable[..., RegionSource]:
    """Check what the option `regions` of HICE-S names before any model is opened; the result opens it, with
    the keywords `device` and `dtype`. The threshold of boxes comes last:
    `"objects:mobilesamv2,threshold=0.2"`."""
    if isinstance(spec, (RegionSource, Mapping)):
        given = PrecomputedRegions(spec) if isinstance(spec, Mapping) else spec
        return lambda **settings: given
    if not isinstance(spec, str | os.PathLike):
        raise wrong_option("regions", spec, "", f"{_EXPECTED}, or a RegionSource", kind=TypeError)
    name = os.fspath(spec)
    if Path(name).suffix.lower() == ".json":
        source = PrecomputedRegions.read(expanded_path(name))
        return lambda **settings: source
    kind, colon, weights = name.partition(":")
    if kind not in _NAMES or (colon and (not weights or kind == "colours")):
        fix = _EXPECTED + did_you_mean(kind, _NAMES)
        raise wrong_option("regions", name, "", fix)
    if kind == "colours":
        return lambda **settings: ColourRegions()
    weights, threshold = _split_threshold(name, kind, weights)
    return partial(_open, kind, weights, threshold)


def region_models(spec: Any) -> list[str]:
    """The Hub repositories that a source of regions opens."""
    from capeval_core.regions.boxes import DETECTOR
    from capeval_core.regions.sam import SEGMENTER

    kind, _, weights = str(spec).partition(":") if isinstance(spec, str) else ("", "", "")
    if kind not in ("objects", "everything", "rectangles"):
        return []
    weights, _ = _split_threshold(str(spec), kind, weights)
    if kind == "rectangles":
        return [weights or DETECTOR]
    return [weights or SEGMENTER, *([DETECTOR] if kind == "objects" else [])]


def _split_threshold(name: str, kind: str, weights: str) -> tuple[str, float | None]:
    """The text behind the colon as weights and threshold of boxes."""
    match = _SETTING.fullmatch(weights)
    if match is None or expanded_path(weights).exists():
        return weights, None
    setting, value = match["setting"], match["value"]
    found, fix = "", f"expected a threshold from 0 to 1, as in '{kind}:threshold=0.2'"
    if setting != "threshold":
        found, fix = f"{kind} has no setting {setting!r}{did_you_mean(setting, ['threshold'])}", ""
    elif kind == "everything":
        found = "'everything' has no boxes that a threshold could drop"
        fix = "leave it out, or take 'objects' or 'rectangles'"
    else:
        with suppress(ValueError):
            if 0 <= float(value) <= 1:
                return match["weights"] or "", float(value)
    raise wrong_option("regions", name, found, fix)


def _open(
    kind: str, weights: str, threshold: float | None, device: str | None = None, dtype: str = "float32"
) -> RegionSource:
    from capeval_core.regions.boxes import DETECTOR, THRESHOLD, Owlv2Boxes, RectangleRegions
    from capeval_core.regions.sam import SEGMENTER, EverythingRegions, ObjectRegions, Sam
    from capeval_core.weights.folder import open_foreign_weights
    from capeval_core.weights.lock import hold

    def boxes(detector: str) -> Owlv2Boxes:
        least = THRESHOLD if threshold is None else threshold
        return Owlv2Boxes(detector, threshold=least, device=device, dtype=dtype)

    if kind == "rectangles":
        return RectangleRegions(boxes(weights or DETECTOR))
    weights = weights or SEGMENTER
    folder = open_foreign_weights(weights, "segmenter", "sam", default=SEGMENTER, without=WITHOUT)
    hold(folder.name, folder.revision, folder.tensor_file)
    sam = Sam.open(folder, device=device, dtype=dtype)
    label = folder.label(sam.fingerprint)
    if kind == "everything":
        return EverythingRegions(sam, name=label)
    return ObjectRegions(boxes(DETECTOR), sam, name=label)


# regions made before

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
    alone, which stands for its rectangle. An annotation's `predicted_iou` or `score` is the region's quality,
    otherwise 1. Empty masks are dropped and counted; an image with an empty list has no regions.
    """

    def __init__(self, masks: Mapping[str, Sequence[Any]], *, name: str = "precomputed") -> None:
        problems = Problems()
        for key, entries in masks.items():
            if isinstance(entries, (str, bytes, Mapping)) or not isinstance(entries, (Sequence, np.ndarray)):
                problems.add(f"masks[{key!r}] is a {type(entries).__name__}: expected a list", kind=TypeError)
                continue
            for index, entry in enumerate(entries):
                if problem := _wrong_entry(entry):
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
        problems, found = Problems(), []
        for index, entry in enumerate(entries):
            try:
                found.append(_read(entry, (height, width)))
            except ValueError as error:
                wrong = f"mask {index} of {image.name} {error}"
                problems.add(Problem(image.where, wrong, kind=ImageError))
        problems.raise_if_any()
        runs, qualities, boxes = zip(*found, strict=True) if found else ((), (), ())
        return Regions.of_runs(runs, (height, width), quality=qualities, boxes=boxes)

    def _entries(self, image: InputImage) -> list[Any]:
        source = image.source
        path = getattr(source, "path", "") or getattr(getattr(source, "value", None), "filename", "")
        with within(image.where):
            if not path:
                fix = "pass its path, or set `image.filename`"
                raise refused(f"there are no precomputed masks of {image.name}", fix)
            return self._masks[self._names.only(os.fsdecode(path), "precomputed masks")]


def _wrong_entry(entry: Any) -> str | None:
    """Why an entry cannot be a region, None where it can."""
    if isinstance(entry, np.ndarray):
        is_mask = entry.ndim == 2 and entry.dtype == np.bool_
        return None if is_mask else f"is an array {entry.dtype}{entry.shape}: {_FORMS}"
    if not isinstance(entry, Mapping):
        return f"is a {type(entry).__name__}: {_FORMS}"
    if isinstance(entry.get("segmentation"), list):
        return "is a polygon: write it as run lengths (pycocotools: mask.frPyObjects, then mask.merge)"
    runs = entry.get("segmentation", entry)
    if isinstance(runs, Mapping) and {"size", "counts"} <= set(runs):
        return None
    return None if "bbox" in entry and "segmentation" not in entry else f"is unknown: {_FORMS}"


def _read(entry: Any, size: tuple[int, int]) -> tuple[rle.Runs, float, Sequence[float]]:
    """Runs, quality and box of one region; ValueError where they do not fit the image."""
    if isinstance(entry, np.ndarray):
        _check_size(entry.shape, size)
        runs = rle.encode(entry)
        return runs, 1.0, rle.bounding_box(runs, size)
    quality, box = 1.0, None
    if score := next((key for key in _SCORES if entry.get(key) is not None), None):
        (quality,) = _numbers(score, [entry[score]], "a number")
    if entry.get("bbox") is not None:
        x, y, width, height = _numbers("bbox", entry["bbox"], "[x, y, width, height]", 4)
        if min(width, height) < 0:
            raise ValueError(f"has the bbox {entry['bbox']}: expected [x, y, width, height]")
        box = (x, y, x + width, y + height)
    written = entry.get("segmentation", entry)
    if box is not None and "counts" not in written:
        return rle.of_box(box, size), quality, box
    _check_size(tuple(map(int, _numbers("size", written["size"], "[height, width]", 2))), size)
    counts = written["counts"]
    text = counts.decode("ascii") if isinstance(counts, bytes) else counts
    lengths = rle.decompress(text) if isinstance(text, str) else _numbers("counts", text, "run lengths")
    wide = np.array(lengths, dtype=np.int64)
    if (wide < 0).any() or wide.sum() != size[0] * size[1]:
        raise ValueError(f"has damaged counts, of {wide.sum()} pixels, expected {size[0]} * {size[1]}")
    runs = wide.astype(np.uint32)
    return runs, quality, box or rle.bounding_box(runs, size)


def _check_size(own: tuple[int, ...], size: tuple[int, int]) -> None:
    if own != size:
        raise ValueError(
            f"is {own[0]} high and {own[1]} wide, but the image is {size[0]} high and {size[1]} wide: make "
            "it at that size, which is that of the image as it is scored"
        )


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
    return value.decode("ascii") if isinstance(value, bytes) else np.asarray(value).tolist()
