"""`why`: which known variant of a metric reproduces a given score, or which ones remain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import combinations, groupby, product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from capeval_core.errors import InputError, Problem
from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric, prepared
from capeval_core.models.rounding import OF_FORMULAS, UNIT, rounding
from capeval_core.registry import load
from capeval_core.replay.variants import COST_OF_WEIGHTS, KNOWN, SWITCHES, Case, Step, Switch

if TYPE_CHECKING:
    from torch import nn

_PROBE = 4  # captions on which a variant is tried first
_TABLE_LENGTH = 10  # variants in the table
_UNITS = 500  # tolerances within which other numbers are near
_MAX_NEAR = 1  # other numbers that may be near if one is to be sure
_DISTINCT = 5  # so many different scores do not agree by accident
_NEGLIGIBLE = 0.05  # units, a difference that says nothing
_COARSE = ("float16", "bfloat16")
_ACCIDENT = 0.2  # of scores of 16 bits, far more than those that are a float32 network's by accident
_CANNOT_RUN = (ValueError, TypeError, OSError, ImportError)
"""Errors of a variant that this metric, its weights or this machine do not allow."""
Variant = tuple[Switch, ...]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class _Comparison:
    """A variant's numbers, compared with the given ones."""

    number: float | None  # of the set; None where only a few captions were computed
    agree: float  # share of captions that agree in float32
    shares: Mapping[str, float]  # those that agree to 16 bits, by dtype
    units: float  # the median difference in tolerances
    scores: NDArray[np.float64]  # NaN where none is compared


@dataclass(frozen=True)
class _Trial(_Comparison):
    """A variant that was computed and compared."""

    variant: Variant = field(kw_only=True)

    @property
    def name(self) -> str:
        return _name(self.variant)

    @property
    def agrees(self) -> bool:
        return self.agree == 1

    def agrees_in(self, dtype: str) -> bool:
        """All captions agree to the 16 bits of a dtype."""
        return self.number is not None and self.shares[dtype] == 1


class _GivenScores:
    """A number of the set, as text or float, or one per caption, in order or by the image's id; as exact as
    their digits say, but no more than processors agree on the scores of a network."""

    def __init__(self, given_scores: object, ids: Sequence[str], network: nn.Module | None) -> None:
        self.of_set = isinstance(given_scores, (str, int, float, np.number))
        # A search asks some thousand times, and a network has some hundred weights.
        self.rounding: dict[str, float] = {}
        for dtype in ("float32", *_COARSE):
            self.rounding[dtype] = rounding(network, dtype)
        listed: list[Any]
        if isinstance(given_scores, Mapping):
            listed = [given_scores.get(image_id) for image_id in ids]
        else:
            listed = [*np.atleast_1d(np.asarray(given_scores))]
        if not self.of_set and len(listed) != len(ids):
            problem = f"has {len(listed):,} scores for {len(ids):,} captions"
            raise InputError(Problem("theirs", problem, "give one for each, None where it is unknown"))
        values = []
        lengths = []
        for value in listed:
            values.append(np.nan if value is None else value)
            text = str(value)
            # Of 1e-05 the digits after the point say nothing.
            if value is not None and "e" not in text:
                lengths.append(len(text.partition(".")[2]))
        # The longest counts: floats leave trailing zeros out, 0.5 may stand for 0.5000.
        digits = max(lengths, default=16)
        # A little more than a half, since 0.5225 itself may be rounded either way.
        self.half_digit = 0.5000001 * 10.0**-digits
        try:
            self.values = np.array(values, dtype=np.float64)
        except (ValueError, TypeError):
            raise InputError(Problem("theirs", "is no number", "give a mean, or one per caption")) from None
        self.is_given = np.isfinite(self.values)
        if not self.is_given.any():
            raise InputError(Problem("theirs", "has no score of these captions", "give ids as theirs are"))
        self.largest = float(np.nanmax(np.abs(self.values), initial=1.0))
        self.varied = len(np.unique(self.values[self.is_given])) >= _DISTINCT

    def tolerance(self, dtype: str = "float32") -> float:
        """The largest difference of these scores from ours if both are computed alike, in a dtype."""
        return max(self.half_digit, self.noise(dtype))

    def noise(self, dtype: str) -> float:
        """The largest difference of scores of two processors."""
        noise = self.rounding[dtype]
        if dtype == "float32":
            # Whoever computed numbers of texts alone may have stored them in float32.
            noise = max(OF_FORMULAS * noise, 4 * UNIT["float32"])
        return noise * self.largest

    def compare(self, case: Case, computed: Flags) -> _Comparison:
        """Compare the numbers of a case. computed: (captions,) whether a score is compared."""
        compared = self.is_given if self.of_set else self.is_given & computed
        ours = np.array([case.mean]) if self.of_set else np.asarray(case.scores, dtype=np.float64)
        # A caption without a score of ours is as far from theirs as can be.
        difference = np.nan_to_num(np.abs(ours - self.values)[compared], nan=np.inf)
        exact = self.tolerance()
        shares = {}
        for dtype in _COARSE:
            shares[dtype] = float(np.mean(difference <= self.tolerance(dtype)))
        return _Comparison(
            number=case.mean,
            agree=float(np.mean(difference <= exact)),
            shares=shares,
            # The median, which a few captions with another text or image do not move.
            units=float(np.median(difference)) / exact,
            scores=np.where(compared, ours, np.nan),
        )


@dataclass(frozen=True)
class Explanation:
    """The variants of a metric that give a number.

    variant: the known one that does; None if none or several do, or if it may be an accident. remaining: all
    that do, each with those that give the same scores. tried: how many were computed. untried: which could
    not, and why. table: the nearest, with number and share of captions that agree. sentence: that in words.
    """

    variant: str | None
    remaining: list[list[str]]
    tried: int
    untried: dict[str, str]
    table: list[dict[str, Any]]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class Search:
    """The variants of a metric on some samples; rows of single switches are kept."""

    def __init__(
        self, metric: CaptionMetric, samples: Samples, ids: Sequence[str], weights: Sequence[str] = ()
    ) -> None:
        self.case = Case(metric, samples, ids)
        self.network = getattr(getattr(metric, "encoder", None), "model", None)
        self._encoded: dict[tuple[Variant, bool], Case] = {}  # by switches before encoding, and of the probe
        self.switches = [switch for switch in SWITCHES if switch.fits(metric)]
        # Other weights go first in a variant: they are opened anew, and what follows changes the new metric.
        for name in weights:
            change = partial(Case.with_options, weights=name)
            switch = Switch(name, f"weights are {name}", change, Step.ENCODED, "", "weights", COST_OF_WEIGHTS)
            self.switches.insert(0, switch)
        self.probe: list[int] = []

    def scored(self, variant: Variant, *, probe: bool = False) -> Case:
        """A variant's scores; with `probe` of a few captions, and NaN for all others."""
        first = _before_encoding(variant)
        case = self._encoded.get((first, probe))
        if case is None:
            case = reduce(lambda case, switch: switch.change(case), first, self.case)
            if probe:
                metric = prepared(case.metric, case.samples)
                case = replace(case, metric=metric, samples=case.samples.select(self.probe))
            case = case.encoded()
            # Single switches come again in pairs with changes of scores; pairs before encoding never do, and
            # there are some thousand of them.
            if len(first) < 2:
                self._encoded[first, probe] = case
        return self._finished(case, variant[len(first) :], probe)

    def _finished(self, case: Case, switches: Variant, probe: bool) -> Case:
        """The case after changes of its scores. A change of their order needs all places."""
        scattered = not probe
        for switch in switches:
            if not scattered and switch.group == "order":
                case = self._scattered(case)
                scattered = True
            case = switch.change(case)
        return case if scattered else self._scattered(case)

    def _scattered(self, case: Case) -> Case:
        """Scores of the probe in their places among all captions."""
        scores = np.full(len(self.case.ids), np.nan)
        scores[self.probe] = case.scores
        return case.with_scores(scores)

    def explain(self, given_scores: object, *, most: int = 2, progress: bool = False) -> Explanation:
        """The variants of at most so many switches that make the given numbers; fewer switches go first, and
        of as many those that are computed fastest."""
        theirs = _GivenScores(given_scores, self.case.ids, self.network)
        number = self.scored(()).mean
        self._choose_probe(theirs)
        tried: list[_Trial] = []
        untried: dict[str, str] = {}
        for variants in self._levels(theirs, most, untried):
            bar = tqdm(total=len(variants), desc="variants", disable=None if progress else True)
            for _, equally_dear in groupby(sorted(variants, key=_cost), key=_cost):
                for variant in equally_dear:
                    bar.update()
                    try:
                        tried.append(self._trial(variant, theirs))
                    except _CANNOT_RUN as error:
                        untried[_name(variant)] = str(error)
                if self._is_found(theirs, tried):
                    break  # another variant that makes the same scores would do so by accident
            bar.close()
            if self._is_explained(theirs, tried):
                break
        if theirs.of_set:
            tried += self._extended(theirs, tried, most)
        return self._explanation(theirs, number, tried, untried)

    def _extended(self, theirs: _GivenScores, tried: list[_Trial], most: int) -> list[_Trial]:
        """Pairs that make a mean as well as a single switch does: a second one may move it by less than its
        digits show. Of networks those that take no further encoding."""
        if most < 2:
            return []
        singles = []
        for trial in tried:
            if trial.agrees and len(trial.variant) == 1:
                singles.append(trial.variant[0])
        extended = []
        for first, second in product(singles, self.switches):
            is_free = self.network is None or second.cost == 0
            if first.group == second.group or second.dtype is not None or not is_free:
                continue
            # A variant combines its switches in the order of the table, in which a pipeline has its steps.
            variant = tuple(sorted((first, second), key=self.switches.index))
            try:
                trial = self._trial(variant, theirs)
            except _CANNOT_RUN:
                continue
            if trial.agrees:
                extended.append(trial)
        return extended

    def _choose_probe(self, theirs: _GivenScores) -> None:
        """Choose a few captions with scores other than 0, if networks run and there are many captions."""
        ours = self.scored(()).scores
        # A mean is of all captions, and without a network all of them take no longer than a few.
        probe: list[int] = []
        if self.network is not None and not theirs.of_set:
            usable = np.flatnonzero(theirs.is_given & np.isfinite(ours) & (ours != 0))
            if len(usable) >= 2 * _PROBE:
                probe = usable[np.linspace(0, len(usable) - 1, _PROBE).astype(int)].tolist()
        if probe != self.probe:
            for key in list(self._encoded):
                _, of_probe = key
                if of_probe:  # of other captions
                    del self._encoded[key]
        self.probe = probe

    @staticmethod
    def _is_found(theirs: _GivenScores, tried: list[_Trial]) -> bool:
        return not theirs.of_set and theirs.varied and any(trial.agrees for trial in tried)

    @staticmethod
    def _is_explained(theirs: _GivenScores, tried: list[_Trial]) -> bool:
        """A variant makes the numbers; for a mean, one of fewer switches than pairs have."""
        # Pairs are so many that some hit a mean of few digits by accident.
        most = 1 if theirs.of_set else 2
        return any(trial.agrees and len(trial.variant) <= most for trial in tried)

    def _levels(self, theirs: _GivenScores, most: int, untried: Mapping[str, str]) -> Iterator[list[Variant]]:
        """Nothing, single switches and the tools' variants; then pairs of those that could be tried."""
        usable = []
        for switch in self.switches:
            # A change of the number of the set leaves scores of captions as they are.
            if theirs.of_set or switch.step != Step.NUMBER:
                usable.append(switch)
        variants: list[Variant] = [(), *combinations(usable, 1)]
        for _, metrics, names in KNOWN:
            if self.case.metric.name in metrics.split():
                variants.append(tuple(switch for switch in usable if switch.name in names))
        yield variants
        if most < 2:
            return
        # Read after the singles were tried: what failed alone fails in a pair.
        pairs: list[Variant] = []
        for first, second in combinations(usable, 2):
            is_tried = first.name not in untried and second.name not in untried
            if is_tried and first.group != second.group:
                pairs.append((first, second))
        yield pairs

    def _trial(self, variant: Variant, theirs: _GivenScores) -> _Trial:
        """Compute a variant and compare it: the probe, and all captions if it passes."""
        with np.errstate(all="ignore"):  # other tools' formulas divide by 0 and overflow, as the tools do
            comparison = self._compared_probe(variant, theirs)
            if comparison is None:
                comparison = self._compared(variant, theirs)
        return _Trial(**vars(comparison), variant=variant)

    def _compared(self, variant: Variant, theirs: _GivenScores) -> _Comparison:
        """The comparison of all captions."""
        return theirs.compare(self.scored(variant), np.ones(len(self.case.ids), dtype=bool))

    def _compared_probe(self, variant: Variant, theirs: _GivenScores) -> _Comparison | None:
        """The comparison of the probe if it fails; None if all captions are to be compared."""
        if not self.probe or (_before_encoding(variant), False) in self._encoded:
            return None
        computed = self._probed(variant)
        if not (theirs.is_given & computed).any():
            return None
        comparison = theirs.compare(self.scored(variant, probe=True), computed)
        dtype = self._dtype(variant)
        if comparison.agree == 1 or (dtype is not None and comparison.shares[dtype] == 1):
            return None
        return replace(comparison, number=None)

    def _probed(self, variant: Variant) -> Flags:
        """(captions,) the places of the probe's scores after changes of order."""
        places = self.case.with_scores(np.isin(np.arange(len(self.case.ids)), self.probe))
        for switch in variant:
            if switch.group == "order":
                places = switch.change(places)
        return np.asarray(places.scores, dtype=np.bool_)

    def _dtype(self, variant: Variant) -> str | None:
        """The dtype of 16 bits that scores of a variant went through."""
        # Metrics of n-grams have no option `dtype`.
        dtypes = {getattr(self.case.metric.options, "dtype", None)}
        for switch in variant:
            dtypes.add(switch.dtype)
        for dtype in reversed(_COARSE):  # of both the coarser one counts
            if dtype in dtypes:
                return dtype
        return None

    def _explanation(
        self, theirs: _GivenScores, number: float, tried: list[_Trial], untried: dict[str, str]
    ) -> Explanation:
        groups, dtype = self._agreeing(theirs, tried)
        sure = len(groups) == 1 and self._is_sure(theirs, tried, groups[0], dtype)
        remaining = []
        names = []  # of the first variant of each group
        for group in groups:
            remaining.append([trial.name for trial in group])
            names.append(group[0].name)
        nearest = self._nearest(theirs, tried, complete=not groups)
        if not groups:
            outcome = f"none of {len(tried):,} known variants makes them, the nearest is {nearest[0].name}"
        elif len(groups) == 1:
            outcome = _outcome(groups[0], len(tried), dtype)
            if not sure:
                outcome += self._doubt(theirs, dtype)
        else:
            listed = "; ".join(names)
            outcome = f"one of {len(remaining)} that make them, of {len(tried):,} that were tried: {listed}"
        metric = self.case.metric
        ours = f"{metric.title} of these {len(self.case.ids):,} captions is {number:.6g}"
        sentence = f"{ours} by {metric.signature()}.\nThe other numbers: {outcome}."
        for name, reason in untried.items():
            sentence += f"\n{name} could not be tried: {reason}"
        table = []
        for trial in nearest:
            table.append({"variant": trial.name, "number": trial.number, "agree": trial.agree})
        return Explanation(
            variant=remaining[0][0] if sure else None,
            remaining=remaining,
            tried=len(tried),
            untried=untried,
            table=table,
            sentence=sentence,
        )

    @staticmethod
    def _doubt(theirs: _GivenScores, dtype: str | None) -> str:
        if dtype is not None and not theirs.of_set:
            return ", and so may be another change that is as small"
        return "; perhaps by accident, which a score for each caption would show"

    def _agreeing(self, theirs: _GivenScores, tried: list[_Trial]) -> tuple[list[list[_Trial]], str | None]:
        """The variants that make the numbers, grouped by equal scores; else those that make them but for the
        rounding of 16 bits, grouped by their variant in float32, and the dtype."""
        exact = [trial for trial in tried if trial.agrees]
        if exact:
            groups = _alike(exact, theirs.noise("float32"))
            return [_simplest_first(group) for group in groups], None
        for dtype in _COARSE:
            rounded = []
            for trial in tried:
                if self._dtype(trial.variant) == dtype and trial.agrees_in(dtype):
                    rounded.append(trial)
            if rounded:
                # The rounding hides small changes, so that only the simplest explanations are named.
                bases: dict[Variant, list[_Trial]] = {}
                for trial in sorted(rounded, key=lambda trial: trial.units):
                    bases.setdefault(_in_float32(trial.variant), []).append(trial)
                fewest = min(map(len, bases))
                return [trials for base, trials in bases.items() if len(base) == fewest], dtype
        return [], None

    def _is_sure(
        self, theirs: _GivenScores, tried: list[_Trial], group: list[_Trial], dtype: str | None
    ) -> bool:
        """The only variants that make the numbers do so by more than accident."""
        if theirs.of_set:
            # Where many variants lie around a mean of few digits, one of them hits it by accident.
            numbers = set()
            for trial in tried:
                if trial.units <= _UNITS:
                    numbers.add(round(trial.number or 0.0, 9))
            return dtype is None and len(numbers) <= 1 + _MAX_NEAR
        if dtype is None:
            return theirs.varied
        # bfloat16 is so coarse that changes which nobody knows pass for it. Of float16 scores hardly one is
        # that of float32, and all together they are nearer to ours in float16 than to those in float32.
        compared = theirs.is_given & (theirs.values != 0)
        if dtype != "float16" or not theirs.varied or not compared.any():
            return False
        in_float32 = self.scored(_in_float32(group[0].variant)).scores
        from_float32 = np.abs(in_float32 - theirs.values)[compared]
        from_float16 = np.abs(group[0].scores - theirs.values)[compared]
        accidental = float(np.mean(from_float32 <= theirs.tolerance()))
        return accidental <= _ACCIDENT and bool(np.mean(from_float16**2) < np.mean(from_float32**2))

    def _nearest(self, theirs: _GivenScores, tried: list[_Trial], *, complete: bool) -> list[_Trial]:
        """The nearest variants with other scores each; of the probe alone where not `complete`."""
        ordered = sorted(tried, key=_distance)
        nearest = [group[0] for group in _alike(ordered, 1e-7, most=_TABLE_LENGTH)]
        # Variants that failed at the probe have no number yet; only those of the table get one.
        if complete:
            for place, trial in enumerate(nearest):
                if trial.number is None:
                    comparison = self._compared(trial.variant, theirs)
                    nearest[place] = _Trial(**vars(comparison), variant=trial.variant)
            nearest.sort(key=_distance)
        return nearest


def _outcome(group: Sequence[_Trial], tried: int, dtype: str | None) -> str:
    """The sentence about the only variant that makes the numbers."""
    changes = "; ".join(switch.sentence for switch in group[0].variant) or "nothing is done otherwise"
    more = f" (and {len(group) - 1} others that make the same)" if len(group) > 1 else ""
    outcome = f"{group[0].name}{more}: {changes}; one of {tried:,} variants that were tried"
    if dtype is not None:
        outcome += f"; as near as {dtype} is on different processors"
    return outcome


def _name(variant: Variant) -> str:
    return " + ".join(switch.name for switch in variant) or "capeval's own settings"


def _cost(variant: Variant) -> int:
    """The cost of computing a variant: that of its dearest switch."""
    return max((switch.cost for switch in variant), default=0)


def _distance(trial: _Trial) -> tuple[float, float]:
    """A key that sorts the nearest first."""
    return -trial.agree, trial.units


def _before_encoding(variant: Variant) -> Variant:
    return tuple(switch for switch in variant if switch.step == Step.ENCODED)


def _in_float32(variant: Variant) -> Variant:
    return tuple(switch for switch in variant if switch.dtype is None)


def _simplest_first(group: list[_Trial]) -> list[_Trial]:
    """The trials that are nearest but for float32's noise in their order, before all others."""
    near = max(2 * min(trial.units for trial in group), _NEGLIGIBLE)
    return sorted(group, key=lambda trial: bool(trial.units > near))


def _alike(variants: Sequence[_Trial], tolerance: float, most: int | None = None) -> list[list[_Trial]]:
    """Variants in groups that make the same scores, at most so many groups."""
    groups: list[list[_Trial]] = []
    for trial in variants:
        alike = None
        for group in groups:
            if np.allclose(group[0].scores, trial.scores, 0, tolerance, True):  # NaN equals NaN here
                alike = group
                break
        if alike is not None:
            alike.append(trial)
        elif most is not None and len(groups) == most:
            break
        else:
            groups.append([trial])
    return groups


def why(
    theirs: object,
    metric: str | CaptionMetric,
    captions: object,
    images: object = None,
    references: object = None,
    *,
    ids: Sequence[str] | None = None,
    backbones: Sequence[str] = (),
    most: int = 2,
    progress: bool = False,
    **options: Any,
) -> Explanation:
    """Find the known variant of a metric that reproduces a score reported elsewhere for the same captions.

    Args:
        theirs: the mean as text, with the digits that are printed ("0.522"); or, which says far more, a score
            for each caption: a list in order, or by image id. None where one is unknown.
        metric: a name, with its `options`, or an open metric.
        captions, images, references: as for `metric.score`; `images` may be videos.
        ids: of images, by which `theirs` may be.
        backbones: other weights to try.
        most: how many switches a variant has at most, 1 or 2.
    """
    # "nan": one broken image must not end a search of hours.
    opened = metric if isinstance(metric, CaptionMetric) else load(metric, on_error="nan", **options)
    samples = opened.check(captions, images, references if opened.needs_references else None)
    names = [str(row) for row in range(len(samples))] if ids is None else list(ids)
    return Search(opened, samples, names, backbones).explain(theirs, most=most, progress=progress)
