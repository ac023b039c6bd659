"""Opens sources of regions by name, from a file, or from a mapping."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from capeval_core.errors import did_you_mean, expanded_path, wrong_option
from capeval_core.regions.colours import ColourRegions
from capeval_core.regions.precomputed import PrecomputedRegions
from capeval_core.regions.regions import RegionSource

_NAMES = ("objects", "everything", "rectangles", "colours")
_EXPECTED = f"expected {', '.join(map(repr, _NAMES))}, or a JSON file of masks by image id"
RegionSpec = str | os.PathLike[str] | Mapping[str, Sequence[Any]] | RegionSource


def region_opener(spec: RegionSpec) -> Callable[..., RegionSource]:
    """Check a source of regions before any model is opened; the result opens it.

    It takes the keywords `device` (None: CUDA where there is a GPU) and `dtype`, "float32", "bfloat16" or
    "float16", of the image encoders.

    Args:
        spec: `"objects"`, SAM's masks of the boxes of OWLv2; `"everything"`, SAM's masks at a grid of points;
            `"rectangles"`, the boxes of OWLv2; or `"colours"`, patches of one colour, for drawn scenes. The
            first three also take weights, as in `"objects:facebook/sam-vit-base"` or `"objects:mobilesamv2"`,
            a Hub id (`@revision` pins it) or a folder; those with boxes also the objectness that a box needs,
            last, as in `"objects:threshold=0.2"` or `"objects:mobilesamv2,threshold=0.2"`; a JSON file of
            masks or boxes (`PrecomputedRegions.read`); a mapping from image id to masks; or a `RegionSource`.
    """
    if isinstance(spec, (RegionSource, Mapping)):
        given = PrecomputedRegions(spec) if isinstance(spec, Mapping) else spec
        return lambda **settings: given
    if not isinstance(spec, str | os.PathLike):
        raise wrong_option("regions", spec, "", f"{_EXPECTED}, or a RegionSource", verb="", kind=TypeError)
    name = os.fspath(spec)
    if Path(name).suffix.lower() == ".json":
        source = PrecomputedRegions.read(expanded_path(name))
        return lambda **settings: source
    kind, colon, weights = name.partition(":")
    if kind not in _NAMES or (colon and (not weights or kind == "colours")):
        fix = _EXPECTED + did_you_mean(kind, _NAMES)
        raise wrong_option("regions", name, "", fix, verb="")
    if kind == "colours":
        return lambda **settings: ColourRegions()
    weights, threshold = _split_threshold(name, kind, weights)
    return partial(_open, kind, weights, threshold)


_SETTING = re.compile(r"(?:(?P<weights>.+),)?(?P<setting>\w+)=(?P<value>[^,/]*)", re.DOTALL)


def _split_threshold(name: str, kind: str, weights: str) -> tuple[str, float | None]:
    """The text behind the colon as weights ("" by default) and threshold of boxes (None by default)."""
    match = _SETTING.fullmatch(weights)
    if match is None or expanded_path(weights).exists():
        return weights, None
    found, fix = "", ""
    try:
        threshold = float(match["value"])
    except ValueError:
        threshold = -1.0
    if match["setting"] != "threshold":
        found = f"{kind} has no setting {match['setting']!r}{did_you_mean(match['setting'], ['threshold'])}"
    elif kind == "everything":
        found = "'everything' has no boxes that a threshold could drop"
        fix = "leave it out, or take 'objects' or 'rectangles'"
    elif not 0 <= threshold <= 1:
        fix = f"expected a threshold from 0 to 1, as in '{kind}:threshold=0.2'"
    if found or fix:
        raise wrong_option("regions", name, found, fix, verb="")
    return match["weights"] or "", threshold


def _open(
    kind: str, weights: str, threshold: float | None, device: str | None = None, dtype: str = "float32"
) -> RegionSource:
    from capeval_core.regions.boxes import DETECTOR, THRESHOLD, Owlv2Boxes, RectangleRegions
    from capeval_core.regions.sam import SEGMENTER, EverythingRegions, ObjectRegions, open_sam

    def boxes(detector: str) -> Owlv2Boxes:
        least = THRESHOLD if threshold is None else threshold
        return Owlv2Boxes(detector, threshold=least, device=device, dtype=dtype)

    if kind == "rectangles":
        return RectangleRegions(boxes(weights or DETECTOR))
    sam, label = open_sam(weights or SEGMENTER, device=device, dtype=dtype)
    if kind == "everything":
        return EverythingRegions(sam, name=label)
    return ObjectRegions(boxes(DETECTOR), sam, name=label)
