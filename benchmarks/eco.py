"""Consensus of many pools: here in one pass over all of them, beside one scikit-learn fit per pool.

    python -m benchmarks.eco [--pools 300] [--captions 60]

Both make the released code's consensus, a TF-IDF cosine, of the same pools; they must agree. Then CIDEr, the
paper's, is timed, and what all of it takes for the 20,000 pools of the NICE challenge. Needs scikit-learn
(`pip install ".[dev]"`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.extras import needed
from capeval_core.phrases.consensus import consensus, tfidf_consensus
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.scores.eco.metric import EcoOptions
from capeval_core.scores.eco.ranking import Candidates, rank
from tools.captions import describe, foil
from tools.scenes import sample_scene

CHALLENGE = 20_000 * 60
"""Captions of NICE 2024: 20,000 images with about 60 each."""
Doubles = NDArray[np.float64]


def pools_of(count: int, size: int, seed: int = 0) -> list[list[str]]:
    """Pools of synthetic captions: most are true of a scene, some have a word changed."""
    rng = np.random.default_rng(seed)
    pools = []
    for _ in range(count):
        scene = sample_scene(rng)
        captions = [describe(scene, rng) for _ in range(size)]
        for place in range(0, size, 5):
            try:
                captions[place] = foil(scene, captions[place], "colour", rng)
            except ValueError:  # it names no colour that can be changed
                continue
        pools.append(captions)
    return pools


def with_scikit_learn(pools: list[list[str]]) -> list[Doubles]:
    """The released way: a vectoriser fitted on every pool, and each row's mean cosine with the others."""
    with needed("dev"):
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.metrics.pairwise import cosine_similarity

    scores = []
    for pool in pools:
        cosines = cosine_similarity(TfidfVectorizer(ngram_range=(1, 2)).fit_transform(pool))
        scores.append((cosines.sum(axis=1) - 1) / (len(pool) - 1))
    return scores


def timed(work: Callable[[], Any], repeats: int = 3) -> tuple[float, Any]:
    """The shortest of some runs, in seconds, and what it gave."""
    seconds, given = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        given = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), given


def candidates_of(pools: list[list[str]], members: int = 5) -> Candidates:
    """Candidates with values by lot."""
    rng = np.random.default_rng(1)
    sizes = np.array([len(pool) for pool in pools])
    n = int(sizes.sum())
    return Candidates(
        pool=np.repeat(np.cumsum(sizes) - sizes, sizes),
        captions=[caption for pool in pools for caption in pool],
        cosines=rng.normal(0.25, 0.05, (n, members)),
        itm=rng.random(n),
        failed=np.zeros(n, dtype=bool),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eco", description=__doc__.splitlines()[0])
    parser.add_argument("--pools", type=int, default=300)
    parser.add_argument("--captions", type=int, default=60)
    given = parser.parse_args()
    pools = pools_of(given.pools, given.captions)
    print(f"{given.pools} pools of {given.captions} captions")
    fitted, theirs = timed(lambda: with_scikit_learn(pools))
    ours, found = timed(lambda: tfidf_consensus(pools))
    difference = max(float(np.abs(a - b).max()) for a, b in zip(theirs, found, strict=True))
    print(f"TF-IDF, one scikit-learn fit per pool  {fitted:8.3f} s")
    print(f"TF-IDF, all pools in one pass          {ours:8.3f} s   {fitted / ours:.1f} times faster")
    print(f"largest difference                     {difference:.1e}")
    parted, tokens = timed(lambda: [[ptb_tokens(text) for text in pool] for pool in pools], 1)
    cider, _ = timed(lambda: consensus(tokens))
    print(f"CIDEr: words                           {parted:8.3f} s")
    print(f"CIDEr: its consensus                   {cider:8.3f} s   {fitted / (parted + cider):.1f} times")
    candidates = candidates_of(pools)
    whole, ranking = timed(lambda: rank(candidates, ["a", "b", "c", "d", "e"], EcoOptions()))
    told, _ = timed(ranking.parts)
    scale = CHALLENGE / (given.pools * given.captions) / 60
    print(f"filters, consensus, totals and choice  {whole:8.3f} s   {whole * scale:.1f} minutes of 20,000")
    print(f"what is told of every candidate        {told:8.3f} s   {told * scale:.1f} minutes")


if __name__ == "__main__":
    main()
