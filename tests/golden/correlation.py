"""Correlation coefficients and accuracies over pairs, against scipy's and the protocols' values.

A case is a folder with any of rank_correlation.json, annotator_mean.json, pairwise_accuracy.json and
foil_accuracy.json. Where the case has null, no coefficient exists, and a number of ours is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from capeval_core.judgements import correlation
from tests.golden.case import Case, Comparison, Json, compare
from tests.support.seams import resampled_correlations

COEFFICIENTS = {
    "kendall_tau_b": correlation.kendall_tau_b,
    "kendall_tau_c": correlation.kendall_tau_c,
    "spearman": correlation.spearman,
    "pearson": correlation.pearson,
}
TIES = {"accuracy_strict": "wrong", "accuracy_half_for_ties": "half"}
TOLERANCE, PERCENT, P_VALUES = 1e-12, 1e-10, 1e-9


def run(case: Case) -> Iterator[Comparison]:
    for file, part in PARTS.items():
        if case.path(f"{file}.json").exists():
            yield from part(case.json(file))


def same(
    quantity: str, ours: Sequence[float], theirs: Sequence[float | None], tolerance: float = TOLERANCE
) -> Comparison:
    """`compare`, but a number where none exists is an error."""
    expected = [math.nan if value is None else float(value) for value in theirs]
    if any(math.isnan(b) and not math.isnan(a) for a, b in zip(ours, expected, strict=True)):
        return Comparison(f"{quantity}: a number where none exists", math.inf, tolerance)
    return compare(quantity, ours, expected, tolerance)


def rank_correlation(content: Json) -> Iterator[Comparison]:
    cases, flat = content["cases"], content.get("flattened", {})
    names = ("one_row_per_judgement", "mean_rating")
    every = [*cases, *(flat[name] for name in names if name in flat)]
    p_values: list[tuple[float, float | None]] = []
    for name, coefficient in COEFFICIENTS.items():
        found = [coefficient(one["x"], one["y"]) for one in every]
        yield same(name, [one.value for one in found], [one[name] for one in every])
        pairs = zip(found, (one[f"{name}_p"] for one in every), strict=True)
        p_values += [(mine.p_value, theirs) for mine, theirs in pairs if theirs is not None]
    yield same("p_values", *zip(*p_values, strict=True), P_VALUES)
    taus = ("kendall_tau_b", "kendall_tau_c")
    counted = [resampled_correlations(one["x"], one["y"], np.ones(len(one["x"]), np.int64)) for one in cases]
    ours, theirs = ([one[name] for one in values for name in taus] for values in (counted, cases))
    yield same("counted_without_sorting", ours, theirs)
    scores, ratings = flat["scores"], flat["ratings"]
    rows = [(score, rating) for score, own in zip(scores, ratings, strict=True) for rating in own]
    inputs = (tuple(zip(*rows, strict=True)), (scores, np.mean(ratings, axis=1)))
    ours = [correlation.kendall_tau_b(*pair).value for pair in inputs]
    yield same("flattened", ours, [flat[name]["kendall_tau_b"] for name in names])


def annotator_mean(content: Json) -> Iterator[Comparison]:
    scores, ratings, exact = content["scores"], content["ratings"], content["without_rounding"]
    names = {name: COEFFICIENTS[name] for name in ("kendall_tau_b", "spearman")}
    means = [correlation.annotator_mean(own, scores, ratings) for own in names.values()]
    yield same("annotator_mean", means, [content[name] for name in names])
    rounded = np.round(scores, 4)
    each = [own(rounded, column).value for own in names.values() for column in np.transpose(ratings)]
    yield same("per_annotator", each, [value for name in names for value in content[f"per_annotator_{name}"]])
    means = [correlation.annotator_mean(own, scores, ratings, digits=None) for own in names.values()]
    yield same("annotator_mean_without_rounding", means, [exact[name] for name in names])


def pairwise_accuracy(content: Json) -> Iterator[Comparison]:
    pairs, draws, signs_of = content["pairs"], content["draws"], {"a": 1, "b": -1}
    signs = correlation.majority([pair["votes"] for pair in pairs])
    given = np.array([signs_of.get(label, 0) for label in content["majority"]])
    yield compare("majority", np.count_nonzero(signs != given), 0, 0.0)
    labels = np.array([[signs_of[label] for label in draw["labels"]] for draw in draws])
    yield compare("labels", np.count_nonzero((labels != signs) & (signs != 0)), 0, 0.0)
    categories = [pair["category"] for pair in pairs]
    means: list[float] = []
    for name, ties in TIES.items():
        ours, theirs = [], [[draw[name][key] for key in draws[0][name]] for draw in draws]
        for draw, own in zip(draws, labels, strict=True):
            sides = np.where(
                own > 0, (draw["scores_a"], draw["scores_b"]), (draw["scores_b"], draw["scores_a"])
            )
            won = pd.Series(correlation.won_pairs(*sides, ties=ties))  # type: ignore[arg-type]
            found = won.groupby(categories).mean()
            found["mean"] = found.mean()
            ours.append([100 * found[key] for key in draws[0][name]])
        yield same(f"pairwise_{name}", list(np.ravel(ours)), list(np.ravel(theirs)), PERCENT)
        means += np.mean(ours, axis=0).tolist()
    theirs = [value for name in TIES for value in content["mean_over_draws"][name].values()]
    yield same("mean_of_draws", means, theirs, PERCENT)


def foil_accuracy(content: Json) -> Iterator[Comparison]:
    cases, videos = content["cases"], content["video_paragraphs"]
    for name, ties in TIES.items():
        sides = [(one["true_scores"], one["foil_scores"]) for one in cases]
        ours = [100 * np.mean(correlation.won_pairs(*pair, ties=ties)) for pair in sides]  # type: ignore[arg-type]
        yield same(f"foil_{name}", ours, [one[name] for one in cases], PERCENT)
    paragraphs = [list(map(np.mean, videos[name])) for name in ("true_scores", "foil_scores")]
    accuracy = 100 * np.mean(correlation.won_pairs(*paragraphs))
    yield same("foil_paragraphs", [accuracy], [videos["accuracy_strict"]], PERCENT)


PARTS: dict[str, Callable[[Json], Iterator[Comparison]]] = {
    "rank_correlation": rank_correlation,
    "annotator_mean": annotator_mean,
    "pairwise_accuracy": pairwise_accuracy,
    "foil_accuracy": foil_accuracy,
}
