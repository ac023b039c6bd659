"""The configuration of a CLIP: what it must hold."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from capeval_core.weights.catalogue import entry_of
from capeval_core.weights.folder import CONFIG, OPEN_CLIP_CONFIG, TINY

_PREPROCESSING = {"image_size", "mean", "std", "interpolation"}
_USUAL = 77  # token ids that CLIP reads; all listed weights do
_INTERPOLATIONS = ("bicubic", "bilinear")


def config_problems(config: dict[str, Any]) -> list[str]:
    """What is missing or of the wrong kind, in words; an empty list if all is well.

    Whether the architecture can be built and the tensors fit it is asked when they are loaded.
    """
    problems = _architecture(config.get("architecture"))
    activation = config.get("activation")
    if activation not in ("quick_gelu", "gelu"):
        problems.append(f"activation is {activation!r}, expected 'quick_gelu' or 'gelu'")
    problems += _preprocessing(config.get("preprocessing"))
    if not problems:
        built_for = config["architecture"]["vision"].get("image_size")
        size = config["preprocessing"]["image_size"]
        if built_for not in (None, size):
            problems.append(f"preprocessing.image_size is {size}, but architecture.vision's is {built_for}")
    prompt = _object(config.get("constants", {})).get("prompt", "")
    if not isinstance(prompt, str):
        problems.append(f"constants.prompt is {prompt!r}, expected a text")
    if "canary" in config and not _is_canary(config["canary"]):
        problems.append("canary does not hold (2, 3) cosines and a tolerance per dtype")
    return problems


def context_length(weights: str | os.PathLike[str], *, tiny: str) -> int | None:
    """How many token ids weights read, told by their config alone; None where only opening them tells."""
    name = os.fspath(weights)
    if entry_of(name.partition("@")[0]) is not None and not Path(name).is_dir():
        return _USUAL
    folder = TINY / tiny if name == "tiny" else Path(name).expanduser()
    for file in (OPEN_CLIP_CONFIG, CONFIG):
        try:
            config = json.loads((folder / file).read_text(encoding="utf-8"))
            ours = file == CONFIG
            text = config["architecture"]["text"] if ours else config["model_cfg"]["text_cfg"]
            length = text.get("context_length", _USUAL)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # whatever is wrong with it is said when the weights are opened
        return length if _is_size(length) else None
    return None


def mask_problems(found: Any) -> list[str]:
    """What is wrong with the scaling of masks in an Alpha-CLIP's config, in words."""
    mean, std = _object(found).get("mean"), _object(found).get("std")
    if _are_numbers([mean, std], 2) and isinstance(std, (int, float)) and std > 0:
        return []
    return [f"mask is {found!r}, expected the mean and the standard deviation (above 0) of masks"]


def _architecture(found: Any) -> list[str]:
    if not isinstance(found, dict):
        return ["architecture is missing"]
    problems = [
        f"architecture.{tower} is missing" for tower in ("vision", "text") if not _object(found.get(tower))
    ]
    if not _is_size(found.get("embed_dim")):
        problems.append(f"architecture.embed_dim is {found.get('embed_dim')!r}, expected a positive integer")
    return problems


def _preprocessing(found: Any) -> list[str]:
    if not isinstance(found, dict):
        return ["preprocessing is missing"]
    problems = []
    if not _is_size(found.get("image_size")):
        problems.append(
            f"preprocessing.image_size is {found.get('image_size')!r}, expected a positive integer"
        )
    for name, low in (("mean", -math.inf), ("std", 0)):
        values = found.get(name, (0.5, 0.5, 0.5))
        if not _are_numbers(values, 3) or min(values) <= low:
            problems.append(f"preprocessing.{name} is {values!r}, expected three numbers, one per channel")
    if found.get("interpolation", "bicubic") not in _INTERPOLATIONS:
        problems.append(
            f"preprocessing.interpolation is {found['interpolation']!r}, but only "
            f"{' and '.join(map(repr, _INTERPOLATIONS))} are known"
        )
    if unknown := sorted(found.keys() - _PREPROCESSING):
        problems.append(f"preprocessing has {', '.join(unknown)}, which is not known here")
    return problems


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _are_numbers(values: Any, count: int) -> bool:
    return (
        isinstance(values, (list, tuple))
        and len(values) == count
        and all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
    )


def _is_canary(canary: Any) -> bool:
    cosines, tolerance = _object(canary).get("cosines"), _object(canary).get("tolerance")
    return (
        isinstance(cosines, list)
        and len(cosines) == 2
        and all(_are_numbers(row, 3) for row in cosines)
        and isinstance(tolerance, dict)
        and _are_numbers([tolerance.get(dtype) for dtype in ("float32", "float16", "bfloat16")], 3)
    )
