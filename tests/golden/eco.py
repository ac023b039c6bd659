"""ECO: tokens, consensus of pools by CIDEr, CIDEr-D and the released TF-IDF cosine; filters and choice.

A case is a folder with pools.json, consensus_cider.json, consensus_tfidf.json, and filters.json,
ensemble.json and final.json. The document frequencies of Flickr8k's references need the judgement set
`data/flickr8k_expert` beside the golden folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

import capeval_core
from tests.golden.case import Array, Case, Comparison, Json, compare
from tests.support.seams import consensus, eco_ranking, ptb_tokens

TOLERANCE = 1e-9
KINDS = {"cider": "cider", "cider_d": "ciderd"}
FLICKR8K = "doc_image_flickr8k_1000"


def run(case: Case) -> Iterator[Comparison]:
    pools = case.json("pools")
    tokens = [[ptb_tokens(text) for text in pool["captions"]] for pool in pools]
    wrong = [
        " ".join(ours) != theirs
        for own, pool in zip(tokens, pools, strict=True)
        for ours, theirs in zip(own, pool["tokens"], strict=True)
    ]
    yield compare("tokens", sum(wrong), 0, 0.0)
    yield from cider(case, pools)
    yield from tfidf(case, pools)
    yield from filters(case.json("filters"))
    yield from standardised(case, pools)
    yield from choices(case, pools)


def cider(case: Case, pools: list[Json]) -> Iterator[Comparison]:
    """By every notion of a document; those of Flickr8k through the metrics, other captions as references."""
    stored = case.json("consensus_cider")
    path = case.folder.resolve().parents[1] / "data" / "flickr8k_expert" / "references.json"
    groups = list(json.loads(path.read_text()).values()) if path.is_file() else []
    given = {
        "full_pool": ([pool["captions"] for pool in pools], stored["full_pool"]),
        "filtered_pool": (stored["filtered_pool"]["captions"], stored["filtered_pool"]["scores"]),
    }
    for kind, metric in KINDS.items():
        for name, (captions, theirs) in given.items():
            tokens = [[ptb_tokens(text) for text in pool] for pool in captions]
            for notion, expected in theirs[kind].items():
                if notion != FLICKR8K:
                    ours = np.concatenate(consensus(tokens, kind, notion))
                elif groups:
                    ours = with_statistics(metric, captions, groups)
                else:
                    continue
                yield compare(f"{kind}_{name}_{notion}", ours, np.concatenate(expected), TOLERANCE)


def with_statistics(metric: str, pools: list[list[str]], groups: list[list[str]]) -> Array:
    """Each caption of a pool with the others as its references; alone in its pool it scores 0."""
    statistics = capeval_core.load(metric).prepare(groups)
    rows = [(text, [*pool[:i], *pool[i + 1 :]]) for pool in pools for i, text in enumerate(pool)]
    scored = [(text, others) for text, others in rows if others]
    captions, references = zip(*scored, strict=True)
    found = capeval_core.load(metric, statistics=statistics, empty="score").score(
        captions, references=references
    )
    scores = iter(found.scores)
    return np.array([next(scores) if others else 0.0 for _, others in rows])


def tfidf(case: Case, pools: list[Json]) -> Iterator[Comparison]:
    stored = case.json("consensus_tfidf")
    edges, filtered = stored["edge_cases"], case.json("consensus_cider")["filtered_pool"]["captions"]
    for name, captions, theirs in (
        ("full_pool", [pool["captions"] for pool in pools], stored["consensus_full_pool"]),
        ("filtered_pool", filtered, stored["consensus_filtered_pool"]),
        ("edge_cases", [edge["captions"] for edge in edges], [edge["scores"] for edge in edges]),
    ):
        ours = np.concatenate(consensus(captions, "tfidf"))
        yield compare(f"tfidf_{name}", ours, np.concatenate(theirs), TOLERANCE)


def filters(found: Json) -> Iterator[Comparison]:
    """Formats of captions by both rules, the better half by ITM, and both filters one after the other."""
    entries = found["bad_format"]
    for name, compat in (("code", "released"), ("paper", None)):
        kept = [[is_well_formed(text, compat) for text in entry["input"]] for entry in entries]
        wrong = [ours != entry[f"kept_by_{name}_rule"] for ours, entry in zip(kept, entries, strict=True)]
        yield compare(f"format_{name}_rule", sum(wrong), 0, 0.0)
        if compat:
            rule = kept
    wrong = []
    for ours, entry in zip(rule, entries, strict=True):
        left = [text for text, well in zip(entry["input"], ours, strict=True) if well]
        wrong.append((left or entry["input"]) != entry["output"])
    yield compare("format_filter_code", sum(wrong), 0, 0.0)
    wrong = []
    for entry in found["itm"]:
        plain = [f"a caption of the well formed kind {i}" for i in range(len(entry["captions"]))]
        ranking = ranked([plain], [entry["scores"]])
        order = sorted(range(len(plain)), key=lambda i: -entry["scores"][i])
        chosen = [i for i in order if ranking.dropped[i] is None and ranking.gave_way[0] != "itm"]
        wrong.append([entry["captions"][i] for i in chosen] != entry["output"])
    yield compare("itm_filter_code", sum(wrong), 0, 0.0)
    entries = found["pipeline_itm_then_format"]
    ranking = ranked([entry["captions"] for entry in entries], [entry["itm_scores"] for entry in entries])
    wrong = [
        gave_way != "itm" and sorted(survivors(ranking, rows)) != sorted(entry["output"])
        for entry, rows, gave_way in zip(entries, ranking.pools, ranking.gave_way, strict=True)
    ]
    # Where the original leaves nobody, ours is defined.
    yield Comparison("released_filters", float(sum(wrong)), 0.0, ranking.gave_way.count("itm"))


def ranked(
    pools: list[list[str]], itm: list[list[float]], cosines: Json | None = None, **options: Any
) -> Any:
    """What ECO makes of these pools, from raw values on; cosines by member."""
    members = cosines or {"none": [np.zeros(len(pool)) for pool in pools]}
    values = np.stack([flat(own) for own in members.values()], axis=1)
    return eco_ranking(
        pools, flat(itm), dict(zip(members, values.T, strict=True)), **{"compat": "released", **options}
    )


def is_well_formed(caption: str, compat: str | None) -> bool:
    """Alone in its pool a caption is chosen anyhow, and the filter that gave way is named."""
    return bool(ranked([[caption]], [[1.0]], compat=compat).gave_way != ["format"])


def survivors(ranking: Any, rows: range) -> dict[str, int]:
    """The captions of a pool that no filter dropped, with their rows."""
    return {ranking.captions[row]: row for row in rows if ranking.dropped[row] is None}


def of_pools(case: Case, pools: list[Json], **options: Any) -> Any:
    """The ranking of the pools by their raw scores."""
    raw, models = case.json("ensemble")["raw"], case.json("ensemble")["models"]
    cosines = {name: [raw[name][pool["image"]]["scores"] for pool in pools] for name in models}
    texts, itm = ([pool[name] for pool in pools] for name in ("captions", "itm_scores"))
    return ranked(texts, itm, cosines, **options)


def standardised(case: Case, pools: list[Json]) -> Iterator[Comparison]:
    found, ranking = case.json("ensemble"), of_pools(case, pools)
    images = [pool["image"] for pool in pools]
    ours = list(ranking.zscores.T)
    theirs = [flat([found["standardised"][name][image] for image in images]) for name in found["models"]]
    for rows, image in zip(ranking.pools, images, strict=True):
        row_of = {ranking.captions[row]: row for row in rows}
        captions = found["raw"]["consensus"][image]["captions"]
        ours.append(ranking.agreement[[row_of[caption] for caption in captions]])
        theirs.append(found["standardised"]["consensus"][image])
    yield compare("standardised", flat(ours), flat(theirs), TOLERANCE)
    expected = flat([found["ensemble_standardised"][image] for image in images])
    yield compare("ensemble_standardised", ranking.ensemble, expected, TOLERANCE)


def choices(case: Case, pools: list[Json]) -> Iterator[Comparison]:
    """Totals and choices of the captions that the released filters leave."""
    images, wrong = (
        [pool["image"] for pool in pools],
        {"top2": 0, "selected": 0, "short_caption_changed_choice": 0},
    )
    pairs: dict[str, list[tuple[float, float]]] = {"total": [], "gap": []}
    for setting in case.json("final"):
        weights = {"ensemble_weight": setting["weight_clip"], "consensus_weight": setting["weight_consensus"]}
        ranking = of_pools(case, pools, threshold=setting["threshold"], **weights)
        for place, entry in enumerate(setting["images"]):
            rows = ranking.pools[images.index(entry["image"])]
            own = {text: float(ranking.total[row]) for text, row in survivors(ranking, rows).items()}
            best = sorted(own.values(), reverse=True)
            chosen = ranking.captions[rows[ranking.choices[images.index(entry["image"])]]]
            totals = [own.get(caption, np.inf) for caption in entry["captions"]]
            pairs["total"] += zip(totals, entry["total"], strict=True)
            pairs["gap"].append((best[0] - best[:2][-1], entry["gap"]))
            # Of equal totals the original's sort takes one by chance, so what counts is total and length.
            worth = {caption: (round(total, 9), len(caption.split())) for caption, total in own.items()}
            top = [round(own.get(caption, np.inf), 9) for caption in entry["top2"]]
            wrong["top2"] += [round(total, 9) for total in best[:2]] != top
            wrong["selected"] += worth[chosen] != worth.get(entry["selected"])
            changed = worth[chosen][0] != round(best[0], 9)
            if entry["gap"] > TOLERANCE:
                expected = setting["short_caption_changed_choice"][place]
                wrong["short_caption_changed_choice"] += changed != expected
    for name, values in pairs.items():
        yield compare(name, *zip(*values, strict=True), TOLERANCE)
    for name, count in wrong.items():
        yield compare(name, count, 0, 0.0)


def flat(values: Any) -> Array:
    return np.concatenate([np.asarray(part, dtype=np.float64) for part in values])
