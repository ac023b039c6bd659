"""ECO over a whole set: filters of each pool, consensus of the survivors, totals, and the choice per image.

The paper's section "Consensus score" describes the filters of format and of image-text matching (ITM); its
released code has other limits and another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from capeval_core.errors import at
from capeval_core.phrases.ngrams import consensus, tfidf_consensus
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.scores.eco.formulas import choose, ensemble, is_flat, standardise, total

if TYPE_CHECKING:
    from capeval_core.scores.eco.metric import EcoOptions

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Filter = Literal["format", "itm"]

NO_IMAGE = "its image could not be read"
NO_VALUE = "a member has no finite value for it"
FAR_BELOW = 0.5
"""A choice is doubtful if its ITM is that much below the best of its pool. ITM is the probability of
one of two answers, so with such a distance BLIP-2 answers no for the choice and yes for the other caption."""
NAMED_CHOICES = 3
"""Doubtful choices that a warning gives the numbers of."""


@dataclass(frozen=True)
class Rules:
    """The filters: what a candidate must fulfil to be chosen.

    words: the fewest, parted by white space. commas, periods: the most.
    half: of an odd pool, whether the better half by ITM is rounded `up` or `down`.
    order: which filter comes first; the second one filters what the first leaves.
    """

    words: int
    commas: int
    periods: int
    half: Literal["up", "down"]
    order: tuple[Filter, Filter]


PAPER = Rules(words=5, commas=3, periods=2, half="up", order=("format", "itm"))
RELEASED = Rules(words=6, commas=2, periods=1, half="down", order=("itm", "format"))


def bad_format(caption: str, rules: Rules = PAPER) -> str | None:
    """Why the format filter drops a caption, None if it does not.

    >>> bad_format("a dog"), bad_format("a dog runs on the beach")
    ('2 words, expected 5 or more', None)
    """
    words, commas, periods = len(caption.split()), caption.count(","), caption.count(".")
    if words < rules.words:
        return f"{words} words, expected {rules.words} or more"
    if commas > rules.commas:
        return f"{commas} commas, expected {rules.commas} or fewer"
    if periods > rules.periods:
        return f"{periods} periods, expected {rules.periods} or fewer"
    return None


def better_half(itm: Sequence[float], half: Literal["up", "down"] = "up") -> list[int]:
    """Positions of the better half by probability of a match, best first; of equal ones the earlier.

    >>> better_half([0.1, 0.9, 0.5]), better_half([0.1, 0.9, 0.5], "down")
    ([1, 2], [1])
    """
    return best_first(itm)[: (len(itm) + (half == "up")) // 2]


def best_first(values: Sequence[float]) -> list[int]:
    """Positions of values, the largest first; of equal ones the earlier."""
    return [int(i) for i in np.argsort(-np.asarray(values, dtype=np.float64), kind="stable")]


def filter_pool(
    captions: Sequence[str], itm: Sequence[float], rules: Rules = PAPER
) -> tuple[list[str | None], Filter | Literal[""]]:
    """Per candidate why it is dropped, None if it is not; and a filter that was not applied, '' if both were.

    A filter that would leave no candidate of the pool is not applied.

    >>> filter_pool(["a dog", "a dog runs on the beach", "a cat sits on the grass"], [0.9, 0.8, 0.1])[0][1:]
    [None, 'ITM 0.100, rank 2 of 2: not in the better half']
    """
    dropped: list[str | None] = [None] * len(captions)
    gave_way: Filter | Literal[""] = ""
    for rule in rules.order:
        left = [i for i, reason in enumerate(dropped) if reason is None]
        reasons: dict[int, str] = {}
        if rule == "format":
            reasons = {i: reason for i in left if (reason := bad_format(captions[i], rules))}
        else:
            values = [itm[i] for i in left]
            kept = len(better_half(values, rules.half))
            for rank, position in enumerate(best_first(values)[kept:], kept + 1):
                reason = f"ITM {values[position]:.3f}, rank {rank} of {len(left)}: not in the better half"
                reasons[left[position]] = reason
        if left and len(reasons) == len(left):
            gave_way = rule
            continue
        for i, reason in reasons.items():
            dropped[i] = reason
    return dropped, gave_way


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
    """The scores of n candidates and the choice of each pool.

    pools: per image its rows. chosen: per image the position of the choice in its pool, -1 if there is none.
    zscores: (n, members). ensemble: (n,). consensus, agreement: (n,) consensus and its z-score, NaN where a
    candidate was dropped, and total likewise. dropped: why, None for survivors. gave_way: per image the
    filter that was not applied, or ''. flat: names of the values without variance.
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
            [pool[max(i, 0)] for pool, i in zip(self.pools, self.chosen, strict=True)], dtype=np.int64
        )

    @property
    def scores(self) -> Doubles:
        """(images,) totals of the chosen; NaN where there is no choice."""
        return self._of_chosen(self.total)

    @property
    def best_matches(self) -> Integers:
        """(images,) the row with the best ITM of each pool, whether or not filters dropped it."""
        itm = np.nan_to_num(self.candidates.itm.astype(np.float64), nan=-1.0)
        return np.array([pool[int(itm[pool.start : pool.stop].argmax())] for pool in self.pools], np.int64)

    @property
    def doubtful(self) -> Flags:
        """(images,) whether the ITM of the choice is more than `FAR_BELOW` below the best of its pool."""
        itm = self.candidates.itm.astype(np.float64)
        return np.asarray(itm[self.best_matches] - self._of_chosen(itm) > FAR_BELOW)

    def parts(self) -> dict[str, Any]:
        """Per image the choice and its scores; under `candidates` the scores of every candidate."""
        return {
            "choice": list(self.chosen),
            "caption": [
                self.candidates.captions[row] if position >= 0 else ""
                for row, position in zip(self.rows.tolist(), self.chosen, strict=True)
            ],
            "ensemble": self._of_chosen(self.ensemble),
            "consensus": self._of_chosen(self.agreement),
            "itm": self._of_chosen(self.candidates.itm.astype(np.float64)),
            "gave_way": list(self.gave_way),
            "doubtful": self.doubtful.tolist(),
            "candidates": [self._table(pool) for pool in self.pools],
        }

    def _of_chosen(self, values: Doubles) -> Doubles:
        return np.where(np.asarray(self.chosen, dtype=np.int64) >= 0, values[self.rows], np.nan)

    def _table(self, pool: range) -> list[dict[str, Any]]:
        order = best_first(np.nan_to_num(self.total[pool.start : pool.stop], nan=-np.inf).tolist())
        ranks = {pool[i]: rank for rank, i in enumerate(order, 1) if self.dropped[pool[i]] is None}
        columns = {
            "ensemble": self.ensemble,
            "cider": self.consensus,
            "consensus": self.agreement,
            "itm": self.candidates.itm,
            "total": self.total,
        }
        return [
            {
                "caption": self.candidates.captions[row],
                "members": dict(zip(self.members, map(_plain, self.zscores[row]), strict=True)),
                **{name: _plain(column[row]) for name, column in columns.items()},
                "rank": ranks.get(row),
                "dropped": self.dropped[row],
            }
            for row in pool
        ]

    def doubtful_choices(self) -> str | None:
        """The number of doubtful choices, and the scores of the first few; None if there are none."""
        images = np.flatnonzero(self.doubtful).tolist()
        if not images:
            return None
        itm, examples = self.candidates.itm, list[str]()
        for image in images[:NAMED_CHOICES]:
            chosen, best, start = self.rows[image], self.best_matches[image], self.pools[image].start
            reason = self.dropped[best]
            examples.append(
                f"{at('captions', (image, chosen - start))} is chosen with an ITM of {itm[chosen]:.3f}, "
                f"{at('captions', (image, best - start))} has {itm[best]:.3f} "
                f"({f'dropped: {reason}' if reason else 'its total is lower'})"
            )
        more = len(images) - NAMED_CHOICES
        return (
            f"in {len(images):,} of {len(self.pools):,} pools the ITM of the chosen caption is more than "
            f"{FAR_BELOW} below the best of its pool, so it may well be wrong (see `doubtful`): "
            f"{'; '.join(examples)}{f'; and {more:,} more' if more > 0 else ''}"
        )


def rank(candidates: Candidates, members: Sequence[str], options: EcoOptions) -> Ranking:
    """The ranking of a set, by the options' rules."""
    n = len(candidates.captions)
    starts = np.flatnonzero(np.diff(candidates.pool, prepend=-1)).tolist() if n else []
    pools = [range(a, b) for a, b in zip(starts, [*starts[1:], n], strict=False)]
    cosines = np.where(candidates.failed[:, None], np.nan, candidates.cosines.astype(np.float64))
    counted = _counted(candidates, pools, cosines, options)
    zscores = standardise(cosines, counted)
    ensembled = ensemble(zscores, counted)
    dropped, gave_way = _filtered(candidates, pools, options)
    raw = _consensus(candidates, pools, dropped, options)
    agreement = standardise(raw, _counted(candidates, pools, raw[:, None], options))
    totals = total(ensembled, agreement, options.ensemble_weight, options.consensus_weight)
    flat = [name for name, yes in zip(members, is_flat(cosines), strict=True) if yes]
    if not flat and is_flat(zscores.sum(axis=1)[:, None])[0]:
        flat.append("the ensemble")
    flat += ["consensus"] if is_flat(raw[:, None])[0] else []
    return Ranking(
        candidates=candidates,
        members=members,
        pools=pools,
        chosen=[_choice(candidates.captions, totals, dropped, pool, options.threshold) for pool in pools],
        zscores=zscores,
        ensemble=ensembled,
        consensus=raw,
        agreement=agreement,
        total=totals,
        dropped=dropped,
        gave_way=gave_way,
        flat=flat,
    )


def _counted(candidates: Candidates, pools: list[range], values: Doubles, options: EcoOptions) -> Integers:
    """(n,) the row that counts for each row in z-scores of values (n, k), see `standardise`.

    The released code keeps values by text, so that of copies in a pool only the last one's value is left.
    Its filters and its consensus come before that, and take all of them.
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
    """(n,) why each candidate is dropped, and per pool the filter that was not applied."""
    rules = RELEASED if options.compat == "released" else PAPER
    scored = np.isfinite(candidates.cosines).all(axis=1) & np.isfinite(candidates.itm) & ~candidates.failed
    dropped = [
        None if valid else NO_IMAGE if failed else NO_VALUE
        for valid, failed in zip(scored.tolist(), candidates.failed.tolist(), strict=True)
    ]
    gave_way: list[str] = []
    for pool in pools:
        rows = [row for row in pool if scored[row]]
        reasons, not_applied = filter_pool(
            [candidates.captions[row] for row in rows], candidates.itm[rows].tolist(), rules
        )
        gave_way.append(not_applied)
        for row, reason in zip(rows, reasons, strict=True):
            dropped[row] = reason
    return dropped, gave_way


def _consensus(
    candidates: Candidates, pools: list[range], dropped: list[str | None], options: EcoOptions
) -> Doubles:
    """(n,) consensus of the survivors, each against the other survivors of its pool; NaN of the others."""
    kept = [[row for row in pool if dropped[row] is None] for pool in pools]
    kept = [rows for rows in kept if rows]
    texts = [[candidates.captions[row] for row in rows] for rows in kept]
    formula = options.consensus_formula
    if formula == "tfidf":
        scores = tfidf_consensus(texts)
    else:
        tokens = {text: ptb_tokens(text) for pool in texts for text in pool}
        pools_of_tokens = [[tokens[text] for text in pool] for pool in texts]
        scores = consensus(pools_of_tokens, documents=options.consensus_documents, kind=formula)
    values = np.full(len(candidates.captions), np.nan)
    if kept:
        values[np.concatenate(kept)] = np.concatenate(scores)
    return values


def _choice(
    captions: list[str], totals: Doubles, dropped: list[str | None], pool: range, threshold: float
) -> int:
    """Position of the choice in its pool, -1 where no candidate is left."""
    kept = [row for row in pool if dropped[row] is None]
    if not kept:
        return -1
    best = choose([captions[row] for row in kept], totals[kept].tolist(), threshold)
    return kept[best] - pool.start


def _plain(value: np.floating[Any]) -> float | None:
    """A number, None for NaN."""
    return None if np.isnan(value) else float(value)
