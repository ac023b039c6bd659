"""ECO's filters, ensemble and final choice, as `rank` makes them of raw values by the released rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from capeval_core.scores.eco.metric import EcoOptions
from capeval_core.scores.eco.ranking import (
    PAPER,
    RELEASED,
    Candidates,
    Ranking,
    bad_format,
    better_half,
    rank,
)
from tests.golden.comparison import Comparison, compare

TOLERANCE = 1e-9
Array = np.ndarray[Any, np.dtype[np.float64]]

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


def ranked(
    pools: list[list[str]], itm: list[list[float]], cosines: dict[str, Array], **options: Any
) -> Ranking:
    """What ECO makes of these pools by the released rules, from raw values on; cosines by member."""
    sizes = [len(pool) for pool in pools]
    return rank(
        Candidates(
            pool=np.repeat(np.arange(len(pools)), sizes),
            captions=[caption for pool in pools for caption in pool],
            cosines=np.stack(list(cosines.values()), axis=1),
            itm=_flat(itm),
            failed=np.zeros(sum(sizes), dtype=np.bool_),
        ),
        list(cosines),
        EcoOptions(compat="released", **options),
    )


def _filters(case: dict[str, Any]) -> Iterator[Comparison]:
    found = case["filters"]
    for name, rules in (("code", RELEASED), ("paper", PAPER)):
        wrong = 0
        for entry in found["bad_format"]:
            ours = [bad_format(caption, rules) is None for caption in entry["input"]]
            wrong += ours != entry[f"kept_by_{name}_rule"]
        yield Comparison(f"format_{name}_rule", float(wrong), 0.0)
    wrong = 0
    for entry in found["bad_format"]:
        kept = [text for text in entry["input"] if bad_format(text, RELEASED) is None]
        wrong += (kept or entry["input"]) != entry["output"]
    yield Comparison("format_filter_code", float(wrong), 0.0)
    wrong = defined = 0
    for entry in found["itm"]:
        places = better_half(entry["scores"], "down")
        wrong += [entry["captions"][place] for place in places] != entry["output"]
    yield Comparison("itm_filter_code", float(wrong), 0.0)
    wrong = 0
    entries = found["pipeline_itm_then_format"]
    pools, itm = [entry["captions"] for entry in entries], [entry["itm_scores"] for entry in entries]
    ranking = ranked(pools, itm, {"none": np.zeros(sum(map(len, pools)))})
    for entry, rows, gave_way in zip(entries, ranking.pools, ranking.gave_way, strict=True):
        defined += gave_way == "itm"  # where the original leaves nobody
        kept = [ranking.candidates.captions[row] for row in rows if ranking.dropped[row] is None]
        wrong += sorted(kept) != sorted(entry["output"]) and gave_way != "itm"
    yield Comparison("released_filters", float(wrong), 0.0, defined)


def _of_pools(case: dict[str, Any], **options: Any) -> Ranking:
    """The ranking of a case's pools by its raw scores."""
    images = [pool["image"] for pool in case["pools"]]
    raw = case["ensemble"]["raw"]
    return ranked(
        [pool["captions"] for pool in case["pools"]],
        [pool["itm_scores"] for pool in case["pools"]],
        {name: _flat(raw[name][image]["scores"] for image in images) for name in case["ensemble"]["models"]},
        **options,
    )


def _ensemble(case: dict[str, Any]) -> Iterator[Comparison]:
    found = case["ensemble"]
    images = [pool["image"] for pool in case["pools"]]
    ranking = _of_pools(case)
    ours = [ranking.zscores[:, column] for column in range(len(found["models"]))]
    theirs = [_flat(found["standardised"][name][image] for image in images) for name in found["models"]]
    for rows, image in zip(ranking.pools, images, strict=True):
        row_of = {ranking.candidates.captions[row]: row for row in rows}
        survivors = [row_of[caption] for caption in found["raw"]["consensus"][image]["captions"]]
        ours.append(ranking.agreement[survivors])
        theirs.append(_flat([found["standardised"]["consensus"][image]]))
    yield compare("standardised", _flat(ours), _flat(theirs), TOLERANCE)
    expected = _flat([found["ensemble_standardised"][image] for image in images])
    yield compare("ensemble_standardised", ranking.ensemble, expected, TOLERANCE)


def _final(case: dict[str, Any]) -> Iterator[Comparison]:
    """Totals and choices of the captions that the released filters leave."""
    images = [pool["image"] for pool in case["pools"]]
    ours: dict[str, list[Any]] = {"total": [], "gap": []}
    theirs: dict[str, list[Any]] = {"total": [], "gap": []}
    wrong = {"top2": 0, "selected": 0, "short_caption_changed_choice": 0}
    for setting in case["final"]:
        ranking = _of_pools(
            case,
            ensemble_weight=setting["weight_clip"],
            consensus_weight=setting["weight_consensus"],
            threshold=setting["threshold"],
        )
        for place, entry in enumerate(setting["images"]):
            at = images.index(entry["image"])
            rows = ranking.pools[at]
            own = {
                ranking.candidates.captions[row]: float(ranking.total[row])
                for row in rows
                if ranking.dropped[row] is None
            }
            totals = [own.get(caption, np.inf) for caption in entry["captions"]]
            best = sorted(own.values(), reverse=True)
            chosen = ranking.candidates.captions[rows[ranking.chosen[at]]]
            ours["total"] += totals
            theirs["total"] += entry["total"]
            ours["gap"].append(best[0] - best[:2][-1])
            theirs["gap"].append(entry["gap"])
            # Of equal totals the original's sort takes one by chance, so what counts is total and length.
            worth = {caption: (round(total, 9), len(caption.split())) for caption, total in own.items()}
            top = [round(own.get(caption, np.inf), 9) for caption in entry["top2"]]
            wrong["top2"] += [round(total, 9) for total in best[:2]] != top
            wrong["selected"] += worth[chosen] != worth.get(entry["selected"])
            changed = worth[chosen][0] != round(best[0], 9) and entry["gap"] > TOLERANCE
            wrong["short_caption_changed_choice"] += (
                changed != setting["short_caption_changed_choice"][place] and entry["gap"] > TOLERANCE
            )
    for name in ("total", "gap"):
        yield compare(name, ours[name], theirs[name], TOLERANCE)
    for name, count in wrong.items():
        yield Comparison(name, float(count), 0.0)


def _flat(values: Any) -> Array:
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in values])
