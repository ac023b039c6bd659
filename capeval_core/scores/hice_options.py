"""Options of HICE-S and RefHICE-S: the choices that the paper leaves open, with defaults and reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

from capeval_core.options import Options as CommonOptions
from capeval_core.options import option
from capeval_core.phrases.source import PhraseSource
from capeval_core.regions.source import RegionSource


@dataclass(frozen=True, kw_only=True)
class HiceOptions(CommonOptions):
    """Options of HICE-S."""

    w: float = option(
        2.5,
        "scale of cosines between image and text; the ranking by HICE-S does not depend on it",
        sign="w",
        minimum=0,
    )
    regions: str | PathLike[str] | Mapping[str, Any] | RegionSource | None = option(
        None,
        "what finds regions: `objects`, `everything`, `rectangles` (each also with weights after a colon; "
        "`objects:threshold=0.2` sets how sure of a box OWLv2 must be, 0.1 unless set), `colours`, masks by "
        "image id (a JSON file or a mapping), or a source of your own; None: what the weights name, else "
        "`objects`",
    )
    max_regions: int | None = option(
        None,
        "regions of an image at most, the best ones; None: all",
        sign="max_regions",
        encodes=True,
        minimum=1,
    )
    phrases: str | PathLike[str] | Mapping[str, Any] | PhraseSource | None = option(
        None,
        "what finds phrases: `factual`, another parser of its kind, `chunks`, phrases by caption (a JSON "
        "file or a mapping), or a source of your own; None: what the weights name, else `factual`",
    )
    style: Literal["triplet", "soft-spice"] = option(
        "triplet",
        "how a scene graph becomes phrases: the paper's `triplet`s, or as Soft-SPICE does",
        encodes=True,
    )
    geometry: Literal["square_crop", "released", "released_no_antialias"] = option(
        "square_crop",
        "how images and masks are cropped: alike, or as Alpha-CLIP's documented usage, where they do not "
        "line up (`no_antialias`: with torchvision before 0.17)",
        sign="geometry",
        encodes=True,
    )
    include_whole: bool = option(
        False,
        "appendix A's reading: the whole image is one more region; then every phrase can match it",
        sign="include_whole",
    )


@dataclass(frozen=True, kw_only=True)
class RefHiceOptions(HiceOptions):
    """Options of RefHICE-S."""

    w: float = option(
        2.5,
        "scale of cosines between image and text, those between texts have none; it moves the ranking",
        sign="w",
        minimum=0,
    )
    several: Literal["joint", "best", "mean", "pooled"] = option(
        "joint",
        "of several references: the one with the best harmonic mean of gTTC and lTTC (`joint`), the `best` "
        "of each term, their `mean`, or all their phrases `pooled` and the best gTTC",
        sign="several",
    )
