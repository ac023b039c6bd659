"""Greedy matching: precision, recall and F of every pair, in every variant of the original.

A case is a folder with config.json (its pairs), inputs.npz (`<pair>_cand`, `<pair>_ref` and their `_idf`) and
outputs.npz (`<pair>_<variant>`: precision, recall, F).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from tests.golden.case import Array, Case, Comparison, compare
from tests.support.seams import greedy_match

TOLERANCE = 2e-6
"""The case states one for all variants: absolute, and relative where weights make scores exceed 1."""
PADDED: dict[str, Any] = {"x_padded": True, "y_padded": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "orig_padded": PADDED,
    "orig_exact": {},
    "plain_f64": {},
    "orig_idf_padded": {"weighted_similarity": True, **PADDED},
    "orig_idf_exact": {"weighted_similarity": True},
    "plain_idf_f64": {},
}
"""Variant of the original -> what makes ours do the same."""
IGNORED = ("",)
"""Pairs of a variant are compared together."""


def run(case: Case) -> Iterator[Comparison]:
    """All variants: pairs of one width are matched in one call."""
    pairs = [str(pair["pair"]) for pair in case.config["pairs"]]
    width = {pair: case.inputs[f"{pair}_cand"].shape[1] for pair in pairs}
    for variant, options in VARIANTS.items():
        ours: dict[str, Array] = {}
        for size in sorted(set(width.values())):
            chosen = [pair for pair in pairs if width[pair] == size]
            ours |= zip(chosen, match(case.inputs, chosen, variant, options), strict=True)
        theirs = np.stack([case.outputs[f"{pair}_{variant}"] for pair in pairs]).astype(np.float64)
        # F of a precision or recall that is not positive: theirs is any number, ours is defined as 0.
        theirs[~np.all(theirs[:, :2] > 0, axis=1), 2] = np.nan
        scale = 1 + np.abs(np.nan_to_num(theirs)) if "_idf" in variant else np.ones_like(theirs)
        mine = np.stack([ours[pair] for pair in pairs])
        for column, part in enumerate(("precision", "recall", "f")):
            one, other = (side[:, column] / scale[:, column] for side in (mine, theirs))
            yield compare(f"{variant}_{part}", one, other, TOLERANCE)


def match(given: dict[str, Array], pairs: list[str], variant: str, options: dict[str, Any]) -> Array:
    """(pairs, 3) precision, recall and F."""
    sides = [[given[f"{pair}_{side}"] for pair in pairs] for side in ("cand", "ref")]
    x, y = (torch.from_numpy(np.concatenate(rows)) for rows in sides)
    if variant.endswith("_f64"):
        x, y = x.double(), y.double()
    if "_idf" in variant:
        names = {"x_weights": "cand_idf", "y_weights": "ref_idf"}
        weights = {k: np.concatenate([given[f"{pair}_{own}"] for pair in pairs]) for k, own in names.items()}
        options = {**options, **weights}
    found = greedy_match(x, y, *([len(rows) for rows in side] for side in sides), **options)
    return torch.stack([found.precision, found.recall, found.f], dim=1).numpy()
