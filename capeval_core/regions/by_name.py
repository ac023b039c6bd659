"""Sources of regions by name (`"objects:mobilesamv2,threshold=0.2"`), from a file or from a mapping."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from capeval_core.errors import did_you_mean, expanded_path, wrong_option
from capeval_core.regions.colour_patches import ColourRegions
from capeval_core.regions.precomputed import PrecomputedRegions
from capeval_core.regions.regions import WITHOUT, RegionSource

_NAMES = ("objects", "everything", "rectangles", "colours")
_EXPECTED = f"expected {', '.join(map(repr, _NAMES))}, or a JSON file of masks by image id"
_SETTING = re.compile(r"(?:(?P<weights>.+),)?(?P<setting>\w+)=(?P<value>[^,/]*)", re.DOTALL)


def region_opener(spec: object) -> Callable[..., RegionSource]:
    """Check what the option `regions` of HICE-S names before any model is opened.

    Returns a function that opens the source, with the keywords `device`, `dtype` and `later`: whether its
    networks are opened at the first image. The threshold of boxes comes last:
    `"objects:mobilesamv2,threshold=0.2"`.
    """
    if isinstance(spec, RegionSource):
        return lambda **settings: spec
    if isinstance(spec, Mapping):
        masks = PrecomputedRegions(spec)  # read here, so that wrong masks are an error before weights
        return lambda **settings: masks
    if not isinstance(spec, str | os.PathLike):
        raise wrong_option("regions", spec, "", f"{_EXPECTED}, or a RegionSource", kind=TypeError)
    name = os.fspath(spec)
    if Path(name).suffix.lower() == ".json":
        masks = PrecomputedRegions.read(expanded_path(name))
        return lambda **settings: masks
    kind, colon, weights = name.partition(":")  # at the first one: weights may be a path of Windows
    takes_weights = kind != "colours"
    if kind not in _NAMES or (colon and not (takes_weights and weights)):
        raise wrong_option("regions", name, "", _EXPECTED + did_you_mean(kind, _NAMES))
    if kind == "colours":
        return lambda **settings: ColourRegions()
    weights, threshold = _split_threshold(name, kind, weights)
    return partial(_open, kind, weights, threshold)


def region_models(spec: object) -> list[str]:
    """The Hub repositories that a source of regions opens."""
    from capeval_core.regions.boxes import DETECTOR
    from capeval_core.regions.sam import SEGMENTER

    if not isinstance(spec, str):
        return []
    kind, _, weights = spec.partition(":")
    if kind not in ("objects", "everything", "rectangles"):
        return []
    weights, _ = _split_threshold(spec, kind, weights)
    if kind == "rectangles":
        return [weights or DETECTOR]
    if kind == "objects":
        return [weights or SEGMENTER, DETECTOR]
    return [weights or SEGMENTER]


def _split_threshold(name: str, kind: str, weights: str) -> tuple[str, float | None]:
    """The text behind the colon as weights and threshold of boxes."""
    match = _SETTING.fullmatch(weights)
    if match is None or expanded_path(weights).exists():  # a folder's own name may hold such text
        return weights, None
    setting = match["setting"]
    if setting != "threshold":
        problem = f"{kind} has no setting {setting!r}{did_you_mean(setting, ['threshold'])}"
        raise wrong_option("regions", name, problem, "", sentence=True)
    if kind == "everything":
        problem = "'everything' has no boxes that a threshold could drop"
        raise wrong_option(
            "regions", name, problem, "leave it out, or take 'objects' or 'rectangles'", sentence=True
        )
    try:
        threshold = float(match["value"])
    except ValueError:
        threshold = -1.0  # refused below, with what is expected
    if not 0 <= threshold <= 1:  # nor NaN, which `float` reads
        expected = f"expected a threshold from 0 to 1, as in '{kind}:threshold=0.2'"
        raise wrong_option("regions", name, "", expected)
    return match["weights"] or "", threshold


def _open(
    kind: str,
    weights: str,
    threshold: float | None,
    device: str | None = None,
    dtype: str = "float32",
    later: bool = False,
) -> RegionSource:
    """The source of a kind, with its models."""
    from capeval_core.models.model import OpenedLater
    from capeval_core.regions.boxes import DETECTOR, THRESHOLD, Owlv2Boxes, RectangleRegions
    from capeval_core.regions.sam import SEGMENTER, EverythingRegions, ObjectRegions, Sam
    from capeval_core.weights.folder import open_foreign_weights
    from capeval_core.weights.lock import hold

    settings: dict[str, Any] = {"device": device, "dtype": dtype, "later": later}
    settings["threshold"] = THRESHOLD if threshold is None else threshold
    if kind == "rectangles":
        return RectangleRegions(Owlv2Boxes(weights or DETECTOR, **settings))
    weights = weights or SEGMENTER
    folder = open_foreign_weights(weights, "segmenter", "sam", default=SEGMENTER, without=WITHOUT)
    hold(folder.name, folder.revision, folder.tensor_file)
    # Features in the cache are found by it, without opening SAM at all.
    fingerprint = Sam.fingerprint_of(folder)
    sam = OpenedLater(lambda: Sam.open(folder, device=device, dtype=dtype))
    if not later:
        _ = sam.model
    naming = {"name": folder.label(fingerprint), "fingerprint": f"{fingerprint}-{dtype}"}
    if kind == "everything":
        return EverythingRegions(sam, **naming)
    return ObjectRegions(Owlv2Boxes(DETECTOR, **settings), sam, **naming)
