"""Greedy matching: precision, recall and F of every pair, in every variant of the original.

A case is a folder with config.json (its pairs), inputs.npz (`<pair>_cand`, `<pair>_ref` and their `_idf`) and
outputs.npz (`<pair>_<variant>`: precision, recall, F).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from capeval_core.matching.greedy import greedy_match
from tests.golden.comparison import Comparison, UnreadableCaseError, compare

Array = NDArray[Any]

# The case states one tolerance for all variants: absolute, and relative where weights make scores exceed 1.
TOLERANCE = 2e-6

PADDED: dict[str, Any] = {"x_padded": True, "y_padded": True}
# Variant of the original -> what makes ours do the same.
VARIANTS: dict[str, dict[str, Any]] = {
    "orig_padded": PADDED,
    "orig_exact": {},
    "plain_f64": {},
    "orig_idf_padded": {"weighted_similarity": True, **PADDED},
    "orig_idf_exact": {"weighted_similarity": True},
    "plain_idf_f64": {},
}
PARTS = ("precision", "recall", "f")


def expected_quantities(folder: Path) -> set[str]:
    """Every part of every variant."""
    pairs, _, outputs = _read(folder)
    variants = {name.removeprefix(f"{pairs[0]}_") for name in outputs if name.startswith(f"{pairs[0]}_")}
    return {f"{variant}_{part}" for variant in variants for part in PARTS}


def run_case(folder: Path) -> Iterator[Comparison]:
    """Compare all variants: pairs of one width are matched in one call."""
    pairs, inputs, outputs = _read(folder)
    widths = sorted({inputs[f"{pair}_cand"].shape[1] for pair in pairs})
    for variant, options in VARIANTS.items():
        ours = {}
        for width in widths:
            chosen = [pair for pair in pairs if inputs[f"{pair}_cand"].shape[1] == width]
            ours.update(zip(chosen, _match(chosen, inputs, variant, options), strict=True))
        theirs = np.stack([outputs[f"{pair}_{variant}"] for pair in pairs]).astype(np.float64)
        # F of a precision or recall that is not positive: theirs is any number, ours is defined as 0.
        theirs[~np.all(theirs[:, :2] > 0, axis=1), 2] = np.nan
        size = 1 + np.abs(np.nan_to_num(theirs)) if "_idf" in variant else np.ones_like(theirs)
        mine = np.stack([ours[pair] for pair in pairs])
        for column, part in enumerate(PARTS):
            one, other = (side[:, column] / size[:, column] for side in (mine, theirs))
            yield compare(f"{variant}_{part}", one, other, TOLERANCE)


def _match(pairs: list[str], inputs: dict[str, Array], variant: str, options: dict[str, Any]) -> Array:
    """(pairs, 3) precision, recall and F."""
    sides = [[inputs[f"{pair}_{side}"] for pair in pairs] for side in ("cand", "ref")]
    x, y = (torch.from_numpy(np.concatenate(rows)) for rows in sides)
    weights = [np.concatenate([inputs[f"{pair}_{side}_idf"] for pair in pairs]) for side in ("cand", "ref")]
    if variant.endswith("_f64"):
        x, y = x.double(), y.double()
    if "_idf" in variant:
        options = {**options, "x_weights": weights[0], "y_weights": weights[1]}
    found = greedy_match(x, y, [len(rows) for rows in sides[0]], [len(rows) for rows in sides[1]], **options)
    return torch.stack([found.precision, found.recall, found.f], dim=1).numpy()


def _read(folder: Path) -> tuple[list[str], dict[str, Array], dict[str, Array]]:
    """Names of the pairs, inputs, outputs."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        pairs = [str(pair["pair"]) for pair in config["pairs"]]
        with np.load(folder / "inputs.npz") as inputs, np.load(folder / "outputs.npz") as outputs:
            given, expected = dict(inputs), dict(outputs)
        needed = {f"{pair}_{side}" for pair in pairs for side in ("cand", "ref", "cand_idf", "ref_idf")}
        wanted = {f"{pair}_{variant}" for pair in pairs for variant in VARIANTS}
        missing = sorted((needed - given.keys()) | (wanted - expected.keys()))
        if missing or not pairs:
            raise KeyError(missing[0] if missing else "a pair")
    except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
        what = (
            f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        )
        raise UnreadableCaseError(f"cannot be read: {what}") from error
    return pairs, given, expected
