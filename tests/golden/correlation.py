"""Correlation coefficients and accuracies over pairs, against scipy's and the protocols' values.

A case is a folder with any of rank_correlation.json, annotator_mean.json, pairwise_accuracy.json and
foil_accuracy.json. Where the case has null, no coefficient exists, and a number of ours is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capeval_core.judgements.correlation import (
    Coefficient,
    accuracy_by_category,
    annotator_mean,
    kendall_tau_b,
    kendall_tau_c,
    majority,
    pairwise_accuracy,
    paragraph_means,
    pearson,
    spearman,
)
from capeval_core.judgements.resampling import WeightedRows
from tests.golden.comparison import Comparison, UnreadableCaseError, compare

COEFFICIENTS: dict[str, Callable[..., Coefficient]] = {
    "kendall_tau_b": kendall_tau_b,
    "kendall_tau_c": kendall_tau_c,
    "spearman": spearman,
    "pearson": pearson,
}
TIES = {"accuracy_strict": "wrong", "accuracy_half_for_ties": "half"}
FILES = ("rank_correlation", "annotator_mean", "pairwise_accuracy", "foil_accuracy")
TOLERANCE = 1e-12
P_TOLERANCE = 1e-9


def expected_quantities(folder: Path) -> set[str]:
    """What a run must have compared."""
    return {
        quantity
        for file in FILES
        if (folder / f"{file}.json").exists()
        for quantity in {
            "rank_correlation": {*COEFFICIENTS, "p_values", "counted_without_sorting", "flattened"},
            "annotator_mean": {"annotator_mean", "per_annotator", "annotator_mean_without_rounding"},
            "pairwise_accuracy": {
                "majority",
                "labels",
                *(f"pairwise_{name}" for name in TIES),
                "mean_of_draws",
            },
            "foil_accuracy": {*(f"foil_{name}" for name in TIES), "foil_paragraphs"},
        }[file]
    }


def run_case(folder: Path) -> Iterator[Comparison]:
    runs = {
        "rank_correlation": _rank_correlation,
        "annotator_mean": _annotator_mean,
        "pairwise_accuracy": _pairwise_accuracy,
        "foil_accuracy": _foil_accuracy,
    }
    found = [file for file in FILES if (folder / f"{file}.json").exists()]
    if not found:
        raise UnreadableCaseError(f"{folder} has none of {', '.join(f'{file}.json' for file in FILES)}")
    for file in found:
        path = folder / f"{file}.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            yield from runs[file](content)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnreadableCaseError(f"{path}: {type(error).__name__} {error}") from error


def _same(
    quantity: str, ours: Sequence[float], theirs: Sequence[float | None], tolerance: float
) -> Comparison:
    """`compare`, but a number where none exists is an error."""
    expected = [math.nan if value is None else float(value) for value in theirs]
    invented = [a for a, b in zip(ours, expected, strict=True) if math.isnan(b) and not math.isnan(a)]
    if invented:
        return Comparison(f"{quantity}: a number where none exists", math.inf, tolerance)
    return compare(quantity, ours, expected, tolerance)


def _rank_correlation(content: Mapping[str, Any]) -> Iterator[Comparison]:
    cases = content["cases"]
    flattened = content.get("flattened", {})
    nested = [flattened[name] for name in ("one_row_per_judgement", "mean_rating") if name in flattened]
    p_values: list[tuple[float, float | None]] = []
    for name, coefficient in COEFFICIENTS.items():
        found = [coefficient(case["x"], case["y"]) for case in [*cases, *nested]]
        expected = [case[name] for case in [*cases, *nested]]
        yield _same(name, [one.value for one in found], expected, TOLERANCE)
        p_values += [
            (one.p_value, case[f"{name}_p"])
            for one, case in zip(found, [*cases, *nested], strict=True)
            if case[f"{name}_p"] is not None
        ]
    ours, theirs = zip(*p_values, strict=True)
    yield _same("p_values", ours, theirs, P_TOLERANCE)
    counted = [_counted(case["x"], case["y"]) for case in cases]
    values = [value for case in cases for value in (case["kendall_tau_b"], case["kendall_tau_c"])]
    yield _same("counted_without_sorting", [value for pair in counted for value in pair], values, TOLERANCE)
    scores, ratings = flattened["scores"], flattened["ratings"]
    rows = [(score, rating) for score, own in zip(scores, ratings, strict=True) for rating in own]
    yield _same(
        "flattened",
        [
            kendall_tau_b(*zip(*rows, strict=True)).value,
            kendall_tau_b(scores, np.mean(ratings, axis=1)).value,
        ],
        [flattened[name]["kendall_tau_b"] for name in ("one_row_per_judgement", "mean_rating")],
        TOLERANCE,
    )


def _counted(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    taus = WeightedRows(x, y).taus(np.ones(len(x), dtype=np.int64))
    return taus.b, taus.c


def _annotator_mean(content: Mapping[str, Any]) -> Iterator[Comparison]:
    scores, ratings = content["scores"], content["ratings"]
    names = ("kendall_tau_b", "spearman")
    means = [annotator_mean(COEFFICIENTS[name], scores, ratings) for name in names]
    yield _same("annotator_mean", means, [content[name] for name in names], TOLERANCE)
    each = [
        COEFFICIENTS[name](np.round(scores, 4), own).value for name in names for own in np.transpose(ratings)
    ]
    expected = [value for name in names for value in content[f"per_annotator_{name}"]]
    yield _same("per_annotator", each, expected, TOLERANCE)
    exact = [annotator_mean(COEFFICIENTS[name], scores, ratings, digits=None) for name in names]
    theirs = [content["without_rounding"][name] for name in names]
    yield _same("annotator_mean_without_rounding", exact, theirs, TOLERANCE)


def _pairwise_accuracy(content: Mapping[str, Any]) -> Iterator[Comparison]:
    pairs, draws = content["pairs"], content["draws"]
    signs = majority([pair["votes"] for pair in pairs])
    names = {"a": 1, "b": -1}
    given = np.array([names.get(label, 0) for label in content["majority"]])
    yield Comparison("majority", float(np.count_nonzero(signs != given)), 0.0)
    wrong = sum(
        bool(sign) and names[label] != sign
        for draw in draws
        for label, sign in zip(draw["labels"], signs, strict=True)
    )
    yield Comparison("labels", float(wrong), 0.0)
    categories = [pair["category"] for pair in pairs]
    means: list[float] = []
    for name, ties in TIES.items():
        found = []
        for draw in draws:
            first = np.array([label == "a" for label in draw["labels"]])
            a, b = np.array(draw["scores_a"]), np.array(draw["scores_b"])
            better, worse = np.where(first, a, b), np.where(first, b, a)
            found.append(accuracy_by_category(better, worse, categories, ties=ties))  # type: ignore[arg-type]
        keys = list(draws[0][name])
        ours = [100 * accuracies[key] for accuracies in found for key in keys]
        yield _same(f"pairwise_{name}", ours, [draw[name][key] for draw in draws for key in keys], 1e-10)
        means += [100 * float(np.mean([accuracies[key] for accuracies in found])) for key in keys]
    theirs = [value for name in TIES for value in content["mean_over_draws"][name].values()]
    yield _same("mean_of_draws", means, theirs, 1e-10)


def _foil_accuracy(content: Mapping[str, Any]) -> Iterator[Comparison]:
    for name, ties in TIES.items():
        ours = [
            100 * pairwise_accuracy(case["true_scores"], case["foil_scores"], ties=ties)  # type: ignore[arg-type]
            for case in content["cases"]
        ]
        yield _same(f"foil_{name}", ours, [case[name] for case in content["cases"]], 1e-10)
    paragraphs = content["video_paragraphs"]
    sides = [paragraph_means(paragraphs[name]) for name in ("true_scores", "foil_scores")]
    accuracy = 100 * pairwise_accuracy(*sides)
    yield _same("foil_paragraphs", [accuracy], [paragraphs["accuracy_strict"]], 1e-10)
