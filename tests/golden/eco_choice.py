"""ECO after the consensus: filters, ensemble and final choice, by the paper's limits and as released."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from capeval_core.scores import eco_filters, eco_formulas
from tests.golden.comparison import Comparison, compare

TOLERANCE = 1e-9

FILES = ("filters", "ensemble", "final")
QUANTITIES = {
    "format_code_rule",
    "format_paper_rule",
    "format_filter_code",
    "itm_filter_code",
    "released_filters",
    "standardised",
    "ensemble_standardised",
    "total",
    "gap",
    "top2",
    "selected",
    "short_caption_changed_choice",
}


def run(case: dict[str, Any]) -> Iterator[Comparison]:
    """Every comparison of a case: the contents of its files by name, `pools` too."""
    yield from _filters(case)
    yield from _ensemble(case)
    yield from _final(case)


def _filters(case: dict[str, Any]) -> Iterator[Comparison]:
    found = case["filters"]
    for name, rules in (("code", eco_filters.RELEASED), ("paper", eco_filters.PAPER)):
        wrong = 0
        for entry in found["bad_format"]:
            ours = [eco_filters.bad_format(caption, rules) is None for caption in entry["input"]]
            wrong += ours != entry[f"kept_by_{name}_rule"]
        yield Comparison(f"format_{name}_rule", float(wrong), 0.0)
    wrong = 0
    for entry in found["bad_format"]:
        kept = [text for text in entry["input"] if eco_filters.bad_format(text, eco_filters.RELEASED) is None]
        wrong += (kept or entry["input"]) != entry["output"]
    yield Comparison("format_filter_code", float(wrong), 0.0)
    wrong = defined = 0
    for entry in found["itm"]:
        places = eco_filters.better_half(entry["scores"], "down")
        wrong += [entry["captions"][place] for place in places] != entry["output"]
    yield Comparison("itm_filter_code", float(wrong), 0.0)
    wrong = 0
    for entry in found["pipeline_itm_then_format"]:
        filtered = eco_filters.filter_pool(entry["captions"], entry["itm_scores"], eco_filters.RELEASED)
        defined += filtered.gave_way == "itm"  # where the original leaves nobody
        kept = [entry["captions"][place] for place in filtered.kept]
        wrong += sorted(kept) != sorted(entry["output"]) and filtered.gave_way != "itm"
    yield Comparison("released_filters", float(wrong), 0.0, defined)


def _ensemble(case: dict[str, Any]) -> Iterator[Comparison]:
    found = case["ensemble"]
    images = [pool["image"] for pool in case["pools"]]
    raw = {
        name: np.concatenate([scores[image]["scores"] for image in images])
        for name, scores in found["raw"].items()
    }
    ours = {name: eco_formulas.standardise(values) for name, values in raw.items()}
    theirs = {name: _flat([values[i] for i in images]) for name, values in found["standardised"].items()}
    yield compare("standardised", _flat(ours.values()), _flat(theirs[name] for name in ours), TOLERANCE)
    cosines = np.stack([raw[name] for name in found["models"]], axis=1)
    expected = _flat([found["ensemble_standardised"][image] for image in images])
    yield compare("ensemble_standardised", eco_formulas.ensemble(cosines), expected, TOLERANCE)


def _final(case: dict[str, Any]) -> Iterator[Comparison]:
    """Totals of the captions that the released filters leave, from raw scores on."""
    raw = case["ensemble"]["raw"]
    images = [pool["image"] for pool in case["pools"]]
    models = case["ensemble"]["models"]
    cosines = np.stack([np.concatenate([raw[m][i]["scores"] for i in images]) for m in models], axis=1)
    ensembled = iter(eco_formulas.ensemble(cosines))
    of_caption = {
        image: {caption: next(ensembled) for caption in raw[models[0]][image]["captions"]} for image in images
    }
    agreed = iter(eco_formulas.standardise(_flat([raw["consensus"][image]["scores"] for image in images])))
    consensus_of = {
        image: {caption: next(agreed) for caption in raw["consensus"][image]["captions"]} for image in images
    }
    ours: dict[str, list[Any]] = {"total": [], "gap": []}
    theirs: dict[str, list[Any]] = {"total": [], "gap": []}
    wrong = {"top2": 0, "selected": 0, "short_caption_changed_choice": 0}
    for setting in case["final"]:
        for place, entry in enumerate(setting["images"]):
            captions, image = entry["captions"], entry["image"]
            totals = eco_formulas.total(
                np.array([of_caption[image][caption] for caption in captions]),
                np.array([consensus_of[image][caption] for caption in captions]),
                setting["weight_clip"],
                setting["weight_consensus"],
            )
            order = np.argsort(-totals, kind="stable")[:2]
            chosen = captions[eco_formulas.choose(captions, totals.tolist(), setting["threshold"])]
            ours["total"] += totals.tolist()
            theirs["total"] += entry["total"]
            ours["gap"].append(totals[order[0]] - totals[order[-1]])
            theirs["gap"].append(entry["gap"])
            # Of equal totals the original's sort takes one by chance, so what counts is total and length.
            worth = {
                caption: (round(t, 9), len(caption.split()))
                for caption, t in zip(captions, totals, strict=True)
            }
            wrong["top2"] += [worth[captions[i]][0] for i in order] != [worth[c][0] for c in entry["top2"]]
            wrong["selected"] += worth[chosen] != worth[entry["selected"]]
            changed = worth[chosen] != worth[captions[order[0]]] and entry["gap"] > TOLERANCE
            wrong["short_caption_changed_choice"] += (
                changed != setting["short_caption_changed_choice"][place] and entry["gap"] > TOLERANCE
            )
    for name in ("total", "gap"):
        yield compare(name, ours[name], theirs[name], TOLERANCE)
    for name, count in wrong.items():
        yield Comparison(name, float(count), 0.0)


def _flat(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in values])
