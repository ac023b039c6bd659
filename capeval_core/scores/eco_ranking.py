"""ECO over a whole set: filters, consensus of the survivors, totals, and the choice for every image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capeval_core.phrases.consensus import consensus, tfidf_consensus
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.scores import eco_formulas
from capeval_core.scores.eco_filters import PAPER, RELEASED, best_first, filter_pool
from capeval_core.scores.eco_options import EcoOptions

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

NO_IMAGE = "its image could not be read"
NO_VALUE = "a member has no finite value for it"
FAR_BELOW = 0.5
"""A choice is doubtful if its match is that much below the best of its pool. The match is the probability of
one of two answers, so with such a distance BLIP-2 answers no for the choice and yes for the other caption."""


@dataclass(frozen=True)
class Candidates:
    """n candidates of a set, pool after pool.

    pool: (n,) a number that the candidates of one image share. captions: their texts.
    cosines: (n, members). itm: (n,) probabilities of a match. failed: (n,) whether the image could not
    be read.
    """

    pool: Integers
    captions: list[str]
    cosines: NDArray[np.floating[Any]]
    itm: NDArray[np.floating[Any]]
    failed: Flags


@dataclass(frozen=True)
class Ranking:
    """What ECO makes of n candidates.

    pools: per image its rows. chosen: per image the place of the choice in its pool, -1 if there is none.
    zscores: (n, members). ensemble: (n,). consensus, agreement: (n,) CIDEr and its z-score, NaN where a
    candidate was dropped, and total likewise. dropped: why, None for survivors. gave_way: per image the
    filter that was not applied, or ''. flat: names of what had no variance.
    """

    candidates: Candidates
    members: Sequence[str]
    pools: list[range]
    chosen: list[int]
    zscores: Doubles
    ensemble: Doubles
    consensus: Doubles
    agreement: Doubles
    total: Doubles
    dropped: list[str | None]
    gave_way: list[str]
    flat: list[str]

    @property
    def rows(self) -> Integers:
        """(images,) the chosen rows; the first of a pool that has no choice."""
        return np.array(
            [pool[max(place, 0)] for pool, place in zip(self.pools, self.chosen, strict=True)], dtype=np.int64
        )

    @property
    def scores(self) -> Doubles:
        """(images,) totals of the chosen; NaN where there is no choice."""
        return self._of_chosen(self.total)

    @property
    def best_matches(self) -> Integers:
        """(images,) the row with the best match of each pool, whether or not filters dropped it."""
        known = np.nan_to_num(self.candidates.itm.astype(np.float64), nan=-1.0)
        return np.array([pool[int(known[pool.start : pool.stop].argmax())] for pool in self.pools], np.int64)

    @property
    def doubtful(self) -> Flags:
        """(images,) whether the match of the choice is more than `FAR_BELOW` below the best of its pool."""
        itm = self.candidates.itm.astype(np.float64)
        return np.asarray(itm[self.best_matches] - self._of_chosen(itm) > FAR_BELOW)

    def parts(self) -> dict[str, Any]:
        """Per image the choice and where it comes from; under `candidates` all that is known of each."""
        return {
            "choice": list(self.chosen),
            "caption": [
                self.candidates.captions[row] if place >= 0 else ""
                for row, place in zip(self.rows.tolist(), self.chosen, strict=True)
            ],
            "ensemble": self._of_chosen(self.ensemble),
            "consensus": self._of_chosen(self.agreement),
            "itm": self._of_chosen(self.candidates.itm.astype(np.float64)),
            "gave_way": list(self.gave_way),
            "doubtful": self.doubtful.tolist(),
            "candidates": [self._told(pool) for pool in self.pools],
        }

    def _of_chosen(self, values: Doubles) -> Doubles:
        return np.where(np.asarray(self.chosen, dtype=np.int64) >= 0, values[self.rows], np.nan)

    def _told(self, pool: range) -> list[dict[str, Any]]:
        part = slice(pool.start, pool.stop)
        order = best_first(np.nan_to_num(self.total[part], nan=-np.inf).tolist())
        ranks = {place: rank for rank, place in enumerate(order, 1) if self.dropped[pool[place]] is None}
        columns = [
            _plain(values[part])
            for values in (self.ensemble, self.consensus, self.agreement, self.candidates.itm, self.total)
        ]
        return [
            {
                "caption": self.candidates.captions[row],
                "members": dict(zip(self.members, _plain(self.zscores[row]), strict=True)),
                "ensemble": columns[0][place],
                "cider": columns[1][place],
                "consensus": columns[2][place],
                "itm": columns[3][place],
                "total": columns[4][place],
                "rank": ranks.get(place),
                "dropped": self.dropped[row],
            }
            for place, row in enumerate(pool)
        ]


def rank(candidates: Candidates, members: Sequence[str], options: EcoOptions) -> Ranking:
    """The ranking of a set, by the options' rules."""
    n = len(candidates.captions)
    starts = np.flatnonzero(np.diff(candidates.pool, prepend=-1)).tolist() if n else []
    pools = [range(a, b) for a, b in zip(starts, [*starts[1:], n], strict=False)]
    cosines = np.where(candidates.failed[:, None], np.nan, candidates.cosines.astype(np.float64))
    counted = _counted(candidates, pools, cosines, options)
    zscores = eco_formulas.standardise(cosines, counted)
    ensemble = eco_formulas.ensemble(zscores, counted)
    dropped, gave_way = _filtered(candidates, pools, options)
    raw = _consensus(candidates, pools, dropped, options)
    agreement = eco_formulas.standardise(raw, _counted(candidates, pools, raw[:, None], options))
    total = eco_formulas.total(ensemble, agreement, options.ensemble_weight, options.consensus_weight)
    flat = [name for name, yes in zip(members, eco_formulas.is_flat(cosines), strict=True) if yes]
    if not flat and eco_formulas.is_flat(zscores.sum(axis=1)[:, None])[0]:
        flat.append("the ensemble")
    flat += ["consensus"] if eco_formulas.is_flat(raw[:, None])[0] else []
    return Ranking(
        candidates=candidates,
        members=members,
        pools=pools,
        chosen=[_choice(candidates.captions, total, dropped, pool, options.threshold) for pool in pools],
        zscores=zscores,
        ensemble=ensemble,
        consensus=raw,
        agreement=agreement,
        total=total,
        dropped=dropped,
        gave_way=gave_way,
        flat=flat,
    )


def _counted(candidates: Candidates, pools: list[range], values: Doubles, options: EcoOptions) -> Integers:
    """(n,) the row that counts for each row in z-scores of values (n, k), see `eco_formulas.standardise`.

    The released code keeps values by text, so that of copies in a pool only the last one's value is left.
    Its filters and its consensus come before that, and see all of them.
    """
    counted = np.arange(len(candidates.captions))
    if options.compat == "released":
        valued = np.asarray(np.isfinite(values).all(axis=1))
        for pool in pools:
            rows = [row for row in pool if valued[row]]
            last = {candidates.captions[row]: row for row in rows}
            counted[rows] = [last[candidates.captions[row]] for row in rows]
    return counted


def _filtered(
    candidates: Candidates, pools: list[range], options: EcoOptions
) -> tuple[list[str | None], list[str]]:
    rules = RELEASED if options.compat == "released" else PAPER
    scored = np.isfinite(candidates.cosines).all(axis=1) & np.isfinite(candidates.itm) & ~candidates.failed
    dropped: list[str | None] = []
    gave_way: list[str] = []
    for pool in pools:
        left = [row for row in pool if scored[row]]
        found = filter_pool([candidates.captions[row] for row in left], candidates.itm[left].tolist(), rules)
        told = dict(zip(left, found.dropped, strict=True))
        dropped += [told.get(row, NO_IMAGE if candidates.failed[row] else NO_VALUE) for row in pool]
        gave_way.append(found.gave_way)
    return dropped, gave_way


def _consensus(
    candidates: Candidates, pools: list[range], dropped: list[str | None], options: EcoOptions
) -> Doubles:
    """(n,) consensus of the survivors, each against the other survivors of its pool; NaN of the others."""
    kept = [[row for row in pool if dropped[row] is None] for pool in pools]
    kept = [rows for rows in kept if rows]
    texts = [[candidates.captions[row] for row in rows] for rows in kept]
    if options.comparison == "tfidf":
        found = tfidf_consensus(texts)
    else:
        tokens = {text: ptb_tokens(text) for pool in texts for text in pool}
        pools_of_tokens = [[tokens[text] for text in pool] for pool in texts]
        found = consensus(pools_of_tokens, documents=options.documents, kind=options.comparison)
    values = np.full(len(candidates.captions), np.nan)
    if kept:
        values[np.concatenate(kept)] = np.concatenate(found)
    return values


def _choice(
    captions: list[str], total: Doubles, dropped: list[str | None], pool: range, threshold: float
) -> int:
    """Place of the choice in its pool, -1 where nobody is left."""
    kept = [row for row in pool if dropped[row] is None]
    if not kept:
        return -1
    best = eco_formulas.choose([captions[row] for row in kept], total[kept].tolist(), threshold)
    return kept[best] - pool.start


def _plain(values: NDArray[np.floating[Any]]) -> list[float | None]:
    """Numbers, None where there is none."""
    return [value if value == value else None for value in values.tolist()]
