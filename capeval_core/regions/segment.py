"""From what a user calls regions to where they come from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capeval_core.regions.colours import ColourRegions
from capeval_core.regions.precomputed import PrecomputedRegions
from capeval_core.regions.source import RegionSource
from capeval_core.suggestion import did_you_mean

SOURCES = {
    "objects": "masks of what OWLv2 takes for objects, by SAM (or the segmenter after a colon)",
    "everything": "SAM's masks at a grid of points (or those of the segmenter after a colon)",
    "rectangles": "the boxes of OWLv2 (or of the OWLv2 after a colon)",
    "colours": "patches of one colour, for drawn scenes; no model",
}
"""Name of a source -> what it gives."""

RegionSpec = str | os.PathLike[str] | Mapping[str, Sequence[Any]] | RegionSource


def open_regions(
    spec: RegionSpec = "objects", *, device: str | None = None, dtype: str = "float32"
) -> RegionSource:
    """The source of regions that a user means.

    Args:
        spec: a name of `SOURCES`; for the first three also with weights, as in
            `"objects:facebook/sam-vit-base"` or `"objects:mobilesamv2"`, a Hub id (`@revision` pins it) or a
            folder; a JSON file of masks or boxes (`PrecomputedRegions.read`); a mapping from picture id
            to masks; or a source of one's own.
        device: torch device name; None: CUDA where there is a GPU.
        dtype: "float32", "bfloat16" or "float16", of the picture encoders.

    Raises:
        WeightsError: a model cannot be had, read or trusted; says what to install and how to do without.
        ValueError, TypeError: anything else that `spec` cannot mean.

    >>> open_regions("colours").name
    'colours'
    """
    if isinstance(spec, RegionSource):
        return spec
    if isinstance(spec, Mapping):
        return PrecomputedRegions(spec)
    if not isinstance(spec, str | os.PathLike):
        raise TypeError(f"regions={spec!r}: expected {_expected()}")
    name = os.fspath(spec)
    if Path(name).suffix.lower() == ".json":
        return PrecomputedRegions.read(Path(name).expanduser())
    kind, colon, weights = name.partition(":")
    if kind not in SOURCES or (colon and (not weights or kind == "colours")):
        raise ValueError(f"regions={name!r}: expected {_expected()}{did_you_mean(kind, SOURCES)}")
    if kind == "colours":
        return ColourRegions()
    return _open(kind, weights or None, device, dtype)


def _open(kind: str, weights: str | None, device: str | None, dtype: str) -> RegionSource:
    from capeval_core.regions.models import DETECTOR, SEGMENTER, needs_transformers, open_model

    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise needs_transformers("source of regions", error) from error
    from capeval_core.regions.everything import EverythingRegions
    from capeval_core.regions.objects import ObjectRegions
    from capeval_core.regions.owlv2 import Owlv2Boxes
    from capeval_core.regions.rectangles import RectangleRegions
    from capeval_core.regions.sam import Sam

    if kind == "rectangles":
        return RectangleRegions(Owlv2Boxes(weights or DETECTOR, device=device, dtype=dtype))
    folder = open_model(weights or SEGMENTER, what="segmenter", model_type="sam", default=SEGMENTER)
    sam = Sam.open(folder, device=device, dtype=dtype)
    label = folder.label(sam.fingerprint)
    if kind == "everything":
        return EverythingRegions(sam, name=label)
    return ObjectRegions(Owlv2Boxes(DETECTOR, device=device, dtype=dtype), sam, name=label)


def _expected() -> str:
    names = ", ".join(map(repr, SOURCES))
    return f"{names}, a JSON file of masks by picture id, or a RegionSource"
