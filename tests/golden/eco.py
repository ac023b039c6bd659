"""ECO: tokens, the consensus of pools by CIDEr, CIDEr-D and the released TF-IDF cosine; see `eco_choice`.

A case is a folder with pools.json, consensus_cider.json, consensus_tfidf.json, and filters.json,
ensemble.json and final.json. The document frequencies of
Flickr8k's references need the judgement set `data/flickr8k_expert` beside the golden folder.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np

from capeval_core.phrases import consensus as module
from capeval_core.phrases.consensus import Documents, Kind, consensus, tfidf_consensus
from capeval_core.phrases.ptb import ptb_text, ptb_tokens
from tests.golden import eco_choice
from tests.golden.comparison import Comparison, UnreadableCaseError, compare

TOLERANCE = 1e-9
FLICKR8K = "doc_image_flickr8k_1000"


def expected_quantities(folder: Path) -> set[str]:
    """What a run must have compared."""
    notions = [*get_args(Documents), *([FLICKR8K] if _flickr8k(folder) else [])]
    tfidf = {"tokens", "tfidf_full_pool", "tfidf_filtered_pool", "tfidf_edge_cases"}
    return (
        tfidf
        | eco_choice.QUANTITIES
        | {
            f"{kind}_{pool}_{notion}"
            for kind in get_args(Kind)
            for pool in ("full_pool", "filtered_pool")
            for notion in notions
        }
    )


def run_case(folder: Path) -> Iterator[Comparison]:
    pools, cider, tfidf = (
        _read(folder / name) for name in ("pools.json", "consensus_cider.json", "consensus_tfidf.json")
    )
    further = {name: _read(folder / f"{name}.json") for name in eco_choice.FILES}
    try:
        yield _tokens(pools)
        yield from _cider(folder, pools, cider)
        yield from _tfidf(pools, cider, tfidf)
        yield from eco_choice.run({"pools": pools, **further})
    except (KeyError, TypeError) as error:
        raise UnreadableCaseError(f"{folder}: {error!r} is missing or of another kind") from error


def _tokens(pools: list[dict[str, Any]]) -> Comparison:
    wrong = sum(
        ours != theirs
        for pool in pools
        for ours, theirs in zip(ptb_text(pool["captions"]), pool["tokens"], strict=True)
    )
    return Comparison("tokens", float(wrong), 0.0)


def _cider(folder: Path, pools: list[dict[str, Any]], cider: dict[str, Any]) -> Iterator[Comparison]:
    full = [[text.split() for text in pool["tokens"]] for pool in pools]
    filtered = [[ptb_tokens(text) for text in pool] for pool in cider["filtered_pool"]["captions"]]
    references = _flickr8k(folder)
    rarity = _rarity(_read(references).values()) if references else {}
    given = {"full_pool": cider["full_pool"], "filtered_pool": cider["filtered_pool"]["scores"]}
    for kind in get_args(Kind):
        for name, tokens in (("full_pool", full), ("filtered_pool", filtered)):
            ours = {notion: consensus(tokens, documents=notion, kind=kind) for notion in get_args(Documents)}
            if references:
                words = [word for pool in tokens for caption in pool for word in caption]
                with mock.patch.object(module, "_idf", partial(_idf_in, words, rarity)):
                    ours[FLICKR8K] = consensus(tokens, documents="doc_image_all_pools", kind=kind)
            for notion, scores in ours.items():
                theirs = np.concatenate(given[name][kind][notion])
                yield compare(f"{kind}_{name}_{notion}", np.concatenate(scores), theirs, TOLERANCE)


def _rarity(groups: Collection[list[str]]) -> dict[tuple[str, ...], float]:
    """ln(groups / groups that hold it) of each n-gram of a corpus; () stands for one that is in none."""
    held: Counter[tuple[str, ...]] = Counter({(): 1})
    for captions in map(ptb_text, groups):
        words = [tuple(text.split()) for text in captions]
        held.update({c[k : k + n] for n in (1, 2, 3, 4) for c in words for k in range(len(c) - n + 1)})
    return {gram: float(np.log(len(groups) / count)) for gram, count in held.items()}


def _idf_in(words: list[str], rarity: dict[tuple[str, ...], float], _: Any, grams: Any, __: Any) -> Any:
    """In place of the consensus's own: how rare n-grams are in another corpus."""
    spelt = (tuple(words[start : start + grams.n]) for start in grams.start)
    return np.array([rarity.get(gram, rarity[()]) for gram in spelt])


def _tfidf(pools: list[dict[str, Any]], cider: dict[str, Any], tfidf: dict[str, Any]) -> Iterator[Comparison]:
    edges = tfidf["edge_cases"]
    for name, captions, theirs in (
        ("full_pool", [pool["captions"] for pool in pools], tfidf["consensus_full_pool"]),
        ("filtered_pool", cider["filtered_pool"]["captions"], tfidf["consensus_filtered_pool"]),
        ("edge_cases", [edge["captions"] for edge in edges], [edge["scores"] for edge in edges]),
    ):
        ours = np.concatenate(tfidf_consensus(captions))
        yield compare(f"tfidf_{name}", ours, np.concatenate(theirs), TOLERANCE)


def _flickr8k(folder: Path) -> Path | None:
    """The references of Flickr8k, where the judgement sets lie beside the golden cases."""
    path = folder.resolve().parents[1] / "data" / "flickr8k_expert" / "references.json"
    return path if path.is_file() else None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableCaseError(f"{path}: {error}") from error
