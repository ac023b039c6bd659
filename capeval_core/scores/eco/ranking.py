"""ECO's formulas: z-scores of an ensemble and of consensus, filters, and the choice in each pool.

The paper's section "Consensus score" describes the filters of format and of image-text matching (ITM); its
released code has other limits and another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capeval_core.errors import at
from capeval_core.phrases.ngrams import consensus, tfidf_consensus
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.result import plain

if TYPE_CHECKING:
    from capeval_core.scores.eco.metric import EcoOptions

Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

ENSEMBLE_WEIGHT = 3.52
CONSENSUS_WEIGHT = 1.0
"""Table 1, row (d). One sentence of the paper has them the other way round, against its table."""
THRESHOLD = 0.39
"""Gap below which the shorter of the top two is chosen (the paper's ablation of short caption selection)."""
FAR_BELOW = 0.5
"""A choice is doubtful if its ITM is that much below the best of its pool. ITM is the probability of
one of two answers, so with such a distance BLIP-2 answers no for the choice and yes for the other caption."""


def standardise(values: Doubles) -> Doubles:
    """z-scores over the first axis, with the population's deviation; 0 where all are equal, NaN of NaN."""
    finite = np.isfinite(values)
    count = np.maximum(finite.sum(axis=0), 1)  # 1: no division by 0 where nothing is finite
    mean = np.where(finite, values, 0).sum(axis=0) / count
    spread = np.where(finite, values - mean, 0)
    deviation = np.sqrt((spread**2).sum(axis=0) / count)  # of the population, as numpy's in the released code
    flat = _is_flat(values)  # the mean of equal numbers can be rounded, and then differs from them
    scaled: Doubles = np.where(flat, 0, spread) / np.where(flat, 1, deviation)
    return np.where(finite, scaled, np.nan)


def _is_flat(values: Doubles) -> Flags:
    """Columns in which all finite values are equal, or there are none."""
    low = np.where(np.isfinite(values), values, np.inf).min(axis=0, initial=np.inf)
    high = np.where(np.isfinite(values), values, -np.inf).max(axis=0, initial=-np.inf)
    return np.asarray(low >= high)


def total_score(
    ensemble: Doubles,
    agreement: Doubles,
    ensemble_weight: float = ENSEMBLE_WEIGHT,
    consensus_weight: float = CONSENSUS_WEIGHT,
) -> Doubles:
    """Section "Score combination": weighted sum of the ensemble's and the consensus's z-scores."""
    return ensemble_weight * ensemble + consensus_weight * agreement


def choose_caption(captions: Sequence[str], totals: Sequence[float], threshold: float = THRESHOLD) -> int:
    """Position of the chosen caption: the best, or the runner-up where it is close and has fewer words.

    The runner-up is the best one with another text: a copy of the best is not an alternative to it.
    """
    order = sorted(range(len(captions)), key=lambda position: -totals[position])
    best = order[0]
    second = best
    for position in reversed(order):
        if captions[position] != captions[best]:
            second = position  # at last the best one of these
    is_close = totals[best] - totals[second] < threshold
    is_shorter = len(captions[second].split()) < len(captions[best].split())
    return second if is_close and is_shorter else best


class Rules(NamedTuple):
    """The filters: the fewest words, parted by white space, the most commas and periods; whether the better
    half of an odd pool is rounded up or down; and the order: the second one filters what the first leaves."""

    words: int
    commas: int
    periods: int
    half: Literal["up", "down"]
    order: tuple[str, str]


PAPER = Rules(words=5, commas=3, periods=2, half="up", order=("format", "itm"))
RELEASED = Rules(words=6, commas=2, periods=1, half="down", order=("itm", "format"))


def bad_format(caption: str, rules: Rules) -> str | None:
    """The reason why the format filter drops a caption, None if it does not."""
    # Counted as the released code does, by white space and signs: a tokenizer would count otherwise.
    words = len(caption.split())
    commas = caption.count(",")
    periods = caption.count(".")
    if words < rules.words:
        return f"{words} words, expected {rules.words} or more"
    if commas > rules.commas:
        return f"{commas} commas, expected {rules.commas} or fewer"
    if periods > rules.periods:
        return f"{periods} periods, expected {rules.periods} or fewer"
    return None


def _best_first(values: ArrayLike) -> list[int]:
    """Positions of values, the largest first; of equal ones the earlier."""
    positions: list[int] = np.argsort(-np.asarray(values, dtype=np.float64), kind="stable").tolist()
    return positions


def _badly_formatted(captions: Sequence[str], survivors: Sequence[int], rules: Rules) -> dict[int, str]:
    """The survivors that the format filter drops, with reasons."""
    reasons = {}
    for position in survivors:
        reason = bad_format(captions[position], rules)
        if reason is not None:
            reasons[position] = reason
    return reasons


def _worse_half(itm: Sequence[float], survivors: Sequence[int], rules: Rules) -> dict[int, str]:
    """The survivors that the ITM filter drops, with reasons: those not in the better half."""
    probabilities = [itm[position] for position in survivors]
    ranked = [survivors[place] for place in _best_first(probabilities)]
    # Half of those that are left by now, not of the pool: the filters are applied one after the other.
    half = len(survivors) // 2
    if rules.half == "up":
        half = (len(survivors) + 1) // 2
    reasons = {}
    for rank, position in enumerate(ranked[half:], half + 1):
        reasons[position] = (
            f"ITM {itm[position]:.3f}, rank {rank} of {len(survivors)}: not in the better half"
        )
    return reasons


def _filter_pool(
    captions: Sequence[str], itm: Sequence[float], rules: Rules = PAPER
) -> tuple[list[str | None], str]:
    """Per candidate why it is dropped, None if it is not; and a filter that would leave no candidate of the
    pool, which is not applied, '' if both were."""
    dropped: list[str | None] = [None] * len(captions)
    skipped_filter = ""
    for rule in rules.order:
        survivors = [position for position, reason in enumerate(dropped) if reason is None]
        if rule == "format":
            reasons = _badly_formatted(captions, survivors, rules)
        else:
            reasons = _worse_half(itm, survivors, rules)
        # An image needs a caption: a pool of bad ones has its least bad one chosen.
        if survivors and len(reasons) == len(survivors):
            skipped_filter = rule
            continue
        for position, reason in reasons.items():
            dropped[position] = reason
    return dropped, skipped_filter


class Ranking:
    """The scores of n candidates of a set, pool after pool, and the choice of each pool.

    choices: per image the position of the choice in its pool, -1 if there is none. rows: (images,) their
    rows; the first of a pool that has no choice. ensemble: (n,), eq. 3. consensus, agreement: (n,) consensus
    and its z-score, NaN where a candidate was dropped, and total likewise. dropped: why, None for survivors.
    gave_way: per image the filter that was not applied, or ''.
    """

    def __init__(
        self,
        pool: Integers,
        captions: list[str],
        cosines: Mapping[str, ArrayLike],
        itm: ArrayLike,
        failed: Flags,
        options: EcoOptions,
    ) -> None:
        self.captions = captions
        self.options = options
        self.members = list(cosines)
        self.itm = np.asarray(itm, dtype=np.float64)
        starts = np.flatnonzero(np.diff(pool, prepend=-1)).tolist()
        self.pools = [range(start, stop) for start, stop in pairwise([*starts, len(captions)])]
        self._texts = [*zip(pool.tolist(), captions, strict=True)]  # equal for copies within a pool

        columns = [np.asarray(values, dtype=np.float64) for values in cosines.values()]
        values = np.where(failed[:, None], np.nan, np.stack(columns, axis=1))  # (n, members)
        # First of all: z-scores are over all captions, but the consensus is of survivors alone.
        self._filter(values, failed)
        # Each member is standardised over all captions of all images; negative cosines stay as they are.
        self.zscores = self._standardised(values)
        sum_of_members = self.zscores.sum(axis=1)
        self.ensemble = self._standardised(sum_of_members)
        self.consensus = self._consensus()
        self.agreement = self._standardised(self.consensus)
        self.total = total_score(
            self.ensemble, self.agreement, options.ensemble_weight, options.consensus_weight
        )

        self.choices: list[int] = []
        rows_of_choices = []
        self._best_itm: list[int] = []  # per image the row that BLIP-2 prefers, dropped or not
        itm_or_less = np.nan_to_num(self.itm, nan=-1.0)
        for rows in self.pools:
            position = self._choice(rows)
            self.choices.append(position)
            rows_of_choices.append(rows[max(position, 0)])
            self._best_itm.append(rows[int(itm_or_less[rows].argmax())])
        self.rows: Integers = np.array(rows_of_choices, dtype=np.int64)
        self.doubtful = np.asarray(self.itm[self._best_itm] - self.of_choices(self.itm) > FAR_BELOW)
        self._flat = self._flat_names(values, sum_of_members)

    def _flat_names(self, values: Doubles, sum_of_members: Doubles) -> list[str]:
        """The values that do not distinguish the captions."""
        names: list[str] = np.array(self.members, dtype=object)[_is_flat(values)].tolist()
        # Members that vary may still cancel out.
        if not names and _is_flat(sum_of_members):
            names.append("the ensemble")
        if _is_flat(self.consensus):
            names.append("consensus")
        return names

    def _filter(self, values: Doubles, failed: Flags) -> None:
        """Set why candidates are dropped, and of each pool the filter that was not applied."""
        rules = RELEASED if self.options.compat == "released" else PAPER
        # A candidate that lacks a value has no z-score, and takes no part in those of the others.
        scored = np.isfinite(values).all(axis=1) & np.isfinite(self.itm)
        reasons = np.where(failed, "its image could not be read", "a member has no finite value for it")
        self.dropped: list[str | None] = np.where(scored, np.array(None), reasons).tolist()
        self.gave_way: list[str] = []
        for pool in self.pools:
            rows = self._survivors(pool)
            texts = [self.captions[row] for row in rows]
            dropped, skipped_filter = _filter_pool(texts, self.itm[rows].tolist(), rules)
            self.gave_way.append(skipped_filter)
            for row, reason in zip(rows, dropped, strict=True):
                self.dropped[row] = reason

    def _standardised(self, values: Doubles) -> Doubles:
        """z-scores of values (n,) or (n, members). The released code keeps values by text, after filters and
        consensus: of copies in a pool only the last one's value is left."""
        counted = np.arange(len(values))  # the row whose value counts for each row
        if self.options.compat == "released":
            valued = np.flatnonzero(np.isfinite(values.reshape(len(values), -1)).all(axis=1)).tolist()
            last = {self._texts[row]: row for row in valued}  # a later row replaces an earlier one
            counted[valued] = [last[self._texts[row]] for row in valued]
        # A text counts once in mean and deviation; its copies get its z-score.
        once = values.copy()
        once[counted != np.arange(len(values))] = np.nan
        return standardise(once)[counted]

    def _survivors(self, pool: range) -> list[int]:
        return [row for row in pool if self.dropped[row] is None]

    def _consensus(self) -> Doubles:
        """(n,) consensus of each survivor with the other survivors of its pool; NaN of those dropped."""
        survivors = []
        texts = []
        for pool in self.pools:
            rows = self._survivors(pool)
            if rows:
                survivors.append(rows)
                texts.append([self.captions[row] for row in rows])
        formula = self.options.consensus_formula
        if formula == "tfidf":
            scores = tfidf_consensus(texts)  # whose words are scikit-learn's, not the Penn Treebank's
        else:
            tokens = []
            for texts_of_pool in texts:
                tokens.append([ptb_tokens(text) for text in texts_of_pool])
            scores = consensus(tokens, documents=self.options.consensus_documents, kind=formula)
        values = np.full(len(self.captions), np.nan)
        for rows, pool_scores in zip(survivors, scores, strict=True):
            values[rows] = pool_scores
        return values

    def _choice(self, pool: range) -> int:
        survivors = self._survivors(pool)
        if not survivors:  # the image could not be read: only then no filter gives way
            return -1
        texts = [self.captions[row] for row in survivors]
        position = choose_caption(texts, self.total[survivors].tolist(), self.options.threshold)
        return survivors[position] - pool.start

    def of_choices(self, values: Doubles) -> Doubles:
        """(images,) values of the choices; NaN where there is none."""
        return np.where(np.asarray(self.choices, dtype=np.int64) >= 0, values[self.rows], np.nan)

    def parts(self) -> dict[str, Any]:
        """Per image the choice and its scores; under `candidates` the scores of every candidate."""
        captions = []
        for row, position in zip(self.rows.tolist(), self.choices, strict=True):
            captions.append(self.captions[row] if position >= 0 else "")
        return {
            "choice": self.choices,
            "caption": captions,
            "ensemble": self.of_choices(self.ensemble),
            "consensus": self.of_choices(self.agreement),
            "itm": self.of_choices(self.itm),
            "gave_way": self.gave_way,
            "doubtful": self.doubtful.tolist(),
            "candidates": [self._table(pool) for pool in self.pools],
        }

    def _table(self, pool: range) -> list[dict[str, Any]]:
        """A line for each candidate of a pool."""
        survivors = self._survivors(pool)
        ranks = {}
        for rank, place in enumerate(_best_first(self.total[survivors]), start=1):
            ranks[survivors[place]] = rank
        table = []
        for row in pool:
            line: dict[str, Any] = {"caption": self.captions[row]}
            line["members"] = dict(zip(self.members, map(plain, self.zscores[row]), strict=True))
            line["ensemble"] = plain(self.ensemble[row])
            line["cider"] = plain(self.consensus[row])
            line["consensus"] = plain(self.agreement[row])
            line["itm"] = plain(self.itm[row])
            line["total"] = plain(self.total[row])
            line["rank"] = ranks.get(row)
            line["dropped"] = self.dropped[row]
            table.append(line)
        return table

    def warnings(self) -> Iterator[str]:
        """Warnings of values that are all equal, and of choices that may well be wrong."""
        # Where no pool has a choice, nothing was compared.
        if self._flat and np.isfinite(self.of_choices(self.total)).any():
            yield (
                f"{', '.join(self._flat)} cannot tell these captions apart, all values are equal: such "
                "z-scores are 0 (within a pool, CIDEr is 0 where the filters leave two captions or fewer: "
                "see `consensus_documents`)"
            )
        images = np.flatnonzero(self.doubtful).tolist()
        if images:
            examples = [self._doubt(image) for image in images[:3]]
            if len(images) > 3:
                examples.append(f"and {len(images) - 3:,} more")
            yield (
                f"in {len(images):,} of {len(self.pools):,} pools the ITM of the chosen caption is more than "
                f"{FAR_BELOW} below the best of its pool, so it may well be wrong (see `doubtful`): "
                f"{'; '.join(examples)}"
            )

    def _doubt(self, image: int) -> str:
        """The choice of an image next to the caption that BLIP-2 prefers."""
        start = self.pools[image].start
        row = self.rows[image]
        best = self._best_itm[image]
        reason = self.dropped[best]
        why = f"dropped: {reason}" if reason else "its total is lower"
        return (
            f"{at('captions', (image, row - start))} is chosen with an ITM of "
            f"{self.itm[row]:.3f}, {at('captions', (image, best - start))} has {self.itm[best]:.3f} "
            f"({why})"
        )
