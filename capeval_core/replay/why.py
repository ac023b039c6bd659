"""`why`: which known variant of a metric gives somebody's number, or which ones remain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import combinations, groupby, product
from typing import Any

import numpy as np
from tqdm import tqdm

from capeval_core.errors import InputError, Problem
from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric, prepared
from capeval_core.models.rounding import OF_FORMULAS, UNIT, rounding
from capeval_core.registry import load
from capeval_core.replay.variants import COST_OF_WEIGHTS, ENCODED, KNOWN, NUMBER, SWITCHES, Case, Switch

_PROBE, _SHOWN = 4, 10  # captions on which a variant is tried first; variants in the table
_UNITS, _OTHERS = 500, 1  # how near other numbers are counted, and how many leave no doubt of one
_DISTINCT = 5  # so many different scores do not agree by accident
_NEAR = 0.05  # units, a difference that says nothing
_COARSE = ("float16", "bfloat16")
_ACCIDENT = 0.2  # of scores of 16 bits, far more than those that are a float32 network's by accident
Variant = tuple[Switch, ...]


class _Theirs:
    """A number of the set, as text or float, or one per caption, in order or by the image's id; as exact as
    their digits say, but no more than processors agree on the scores of a network."""

    def __init__(self, given: Any, ids: Sequence[str], network: Any) -> None:
        self.of_set = isinstance(given, (str, int, float, np.number))
        self.has_network = network is not None
        # A search asks some thousand times, and a network has some hundred weights.
        self.rounding = {dtype: rounding(network, dtype) for dtype in ("float32", *_COARSE)}
        listed = [given.get(one) for one in ids] if isinstance(given, Mapping) else [*np.atleast_1d(given)]
        if not self.of_set and len(listed) != len(ids):
            found = f"has {len(listed):,} scores for {len(ids):,} captions"
            raise InputError(Problem("theirs", found, "give one for each, None where it is unknown"))
        texts = [str(value) for value in listed if value is not None]
        digits = max((len(text.partition(".")[2]) for text in texts if "e" not in text), default=16)
        self.half_digit = 0.5000001 * 10.0**-digits
        try:
            self.values = np.array([np.nan if value is None else value for value in listed], dtype=np.float64)
        except (ValueError, TypeError):
            raise InputError(Problem("theirs", "is no number", "give a mean, or one per caption")) from None
        self.known = np.isfinite(self.values)
        if not self.known.any():
            raise InputError(Problem("theirs", "has no score of these captions", "give ids as theirs are"))
        self.largest = float(np.nanmax(np.abs(self.values), initial=1.0))
        self.varied = len(np.unique(self.values[self.known])) >= _DISTINCT

    def tolerance(self, dtype: str = "float32") -> float:
        """How far their scores may be from ours if both are computed alike, in networks of a dtype."""
        return max(self.half_digit, self.noise(dtype))

    def noise(self, dtype: str) -> float:
        """How far scores of two processors may be."""
        noise = self.rounding[dtype]
        if dtype == "float32":
            # Whoever computed numbers of texts alone may have stored them in float32.
            noise = max(OF_FORMULAS * noise, 4 * UNIT["float32"])
        return noise * self.largest

    def beside(self, case: Case, computed: Any) -> dict[str, Any]:
        """The number; the share of captions that agree in float32, and by dtype to 16 bits; and the median
        difference in units of the tolerance. computed: (captions,) whether a score is compared."""
        compared = self.known if self.of_set else self.known & computed
        ours = np.array([case.mean]) if self.of_set else np.asarray(case.scores, dtype=np.float64)
        difference = np.nan_to_num(np.abs(ours - self.values)[compared], nan=np.inf)
        exact = self.tolerance()
        shares = {dtype: float(np.mean(difference <= self.tolerance(dtype))) for dtype in _COARSE}
        return {
            "number": case.mean,
            "agree": float(np.mean(difference <= exact)),
            "shares": shares,
            "units": float(np.median(difference)) / exact,
            "scores": np.where(compared, ours, np.nan),
        }


@dataclass(frozen=True)
class Explanation:
    """Which variants of a metric give a number.

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
        self, metric: Any, samples: Samples, ids: Sequence[str], weights: Sequence[str] = ()
    ) -> None:
        self.own = Case(metric, samples, ids)
        self.network = getattr(getattr(metric, "encoder", None), "model", None)
        self._kept = dict[tuple[Variant, bool], Case]()
        self.switches = [switch for switch in SWITCHES if switch.fits(metric)]
        for name in weights:
            change = partial(Case.by, weights=name)
            switch = Switch(name, f"weights are {name}", change, ENCODED, "", "weights", COST_OF_WEIGHTS)
            self.switches.insert(0, switch)
        self.probe: list[int] = []

    def scored(self, variant: Variant, *, probe: bool = False) -> Case:
        """A variant's scores; with `probe` of a few captions, and NaN for all others."""
        first = tuple(switch for switch in variant if switch.step == ENCODED)
        case = self._kept.get((first, probe))
        if case is None:
            case = reduce(lambda case, switch: switch.change(case), first, self.own)
            if probe:
                metric = prepared(case.metric, case.samples)
                case = replace(case, metric=metric, samples=case.samples.select(self.probe))
            case = case.encoded()
            if len(first) < 2:
                self._kept[first, probe] = case
        return self._finished(case, variant[len(first) :], probe)

    def _finished(self, case: Case, switches: Variant, probe: bool) -> Case:
        """The case after changes of its scores. What changes their order needs all places."""
        scattered = not probe
        for switch in switches:
            if not scattered and switch.group == "order":
                case, scattered = self._scattered(case), True
            case = switch.change(case)
        return case if scattered else self._scattered(case)

    def _scattered(self, case: Case) -> Case:
        """Scores of the probe in their places among all captions."""
        scores = np.full(len(self.own.ids), np.nan)
        scores[self.probe] = case.scores
        return case.to(scores)

    def explain(self, given: Any, *, most: int = 2, progress: bool = False) -> Explanation:
        """The variants of at most so many switches that make the given numbers; fewer switches go first, and
        of as many those that are computed fastest."""
        theirs = _Theirs(given, self.own.ids, self.network)
        number = self.scored(()).mean
        self._choose_probe(theirs)
        tried, untried = list[dict[str, Any]](), dict[str, str]()
        for level, variants in enumerate(self._levels(theirs, most, untried)):
            bar = tqdm(total=len(variants), desc="variants", disable=None if progress else True)
            for _, equally_dear in groupby(sorted(variants, key=_cost), key=_cost):
                for variant in equally_dear:
                    bar.update()
                    try:
                        with np.errstate(all="ignore"):
                            beside = self._beside(variant, theirs)
                    except (ValueError, TypeError, OSError, ImportError) as error:
                        untried[_name(variant)] = str(error)
                    else:
                        tried.append({"variant": _name(variant), "made": variant, "level": level, **beside})
                if self._is_found(theirs, tried):
                    break  # another variant that makes the same scores would do so by accident
            bar.close()
            if self._is_explained(theirs, tried):
                break
        extended = self._extended(theirs, tried, most) if theirs.of_set else []
        return self._explanation(theirs, number, tried + extended, untried)

    def _extended(self, theirs: _Theirs, tried: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
        """Pairs that make a mean as well as a single switch does: a second one may move it by less than its
        digits show. Of networks those that take no further encoding."""
        singles = [one["made"][0] for one in tried if one["agree"] == 1 and len(one["made"]) == 1]
        extended = []
        for first, second in product(singles if most > 1 else [], self.switches):
            is_free = self.network is None or second.cost == 0
            if first.group == second.group or second.dtype is not None or not is_free:
                continue
            variant = tuple(switch for switch in self.switches if switch in (first, second))
            try:
                with np.errstate(all="ignore"):
                    beside = self._beside(variant, theirs)
            except (ValueError, TypeError, OSError, ImportError):
                continue
            if beside["agree"] == 1:
                extended.append({"variant": _name(variant), "made": variant, "level": 1, **beside})
        return extended

    def _choose_probe(self, theirs: _Theirs) -> None:
        """A few captions with scores other than 0, if networks run and there are many captions."""
        ours = self.scored(()).scores
        probe = list[int]()
        if self.network is not None and not theirs.of_set:
            usable = np.flatnonzero(theirs.known & np.isfinite(ours) & (ours != 0))
            if len(usable) >= 2 * _PROBE:
                probe = usable[np.linspace(0, len(usable) - 1, _PROBE).astype(int)].tolist()
        if probe != self.probe:
            self._kept = {key: case for key, case in self._kept.items() if not key[1]}
        self.probe = probe

    @staticmethod
    def _is_found(theirs: _Theirs, tried: list[dict[str, Any]]) -> bool:
        return not theirs.of_set and theirs.varied and any(one["agree"] == 1 for one in tried)

    @staticmethod
    def _is_explained(theirs: _Theirs, tried: list[dict[str, Any]]) -> bool:
        """Whether a variant makes the numbers; for a mean, one of fewer switches than pairs have."""
        agreeing = [one for one in tried if one["agree"] == 1]
        return any(len(one["made"]) <= 1 for one in agreeing) if theirs.of_set else bool(agreeing)

    def _levels(self, theirs: _Theirs, most: int, untried: Mapping[str, str]) -> Iterator[list[Variant]]:
        """Nothing and single switches, and what tools do; then pairs of those that could be tried."""
        usable = [switch for switch in self.switches if theirs.of_set or switch.step != NUMBER]
        tools = [names for _, metrics, names in KNOWN if self.own.metric.name in metrics.split()]
        yield [(), *combinations(usable, 1), *(tuple(s for s in usable if s.name in own) for own in tools)]
        if most > 1:
            pairs = combinations([switch for switch in usable if switch.name not in untried], 2)
            yield [(a, b) for a, b in pairs if a.group != b.group]

    def _beside(self, variant: Variant, theirs: _Theirs) -> dict[str, Any]:
        """Their numbers beside a variant's: of the probe, and of all captions if it passes."""
        first = tuple(switch for switch in variant if switch.step == ENCODED)
        if self.probe and (first, False) not in self._kept:
            computed = self._probed(variant)
            if (theirs.known & computed).any():
                few = theirs.beside(self.scored(variant, probe=True), computed)
                dtype = self._dtype(variant)
                if few["agree"] < 1 and (dtype is None or few["shares"][dtype] < 1):
                    return {**few, "number": None}
        return theirs.beside(self.scored(variant), np.ones(len(self.own.ids), dtype=bool))

    def _probed(self, variant: Variant) -> Any:
        """(captions,) where the probe's scores stand after changes of order."""
        places = self.own.to(np.isin(np.arange(len(self.own.ids)), self.probe))
        reordering = [switch for switch in variant if switch.group == "order"]
        return reduce(lambda case, switch: switch.change(case), reordering, places).scores

    def _dtype(self, variant: Variant) -> str | None:
        """The dtype of 16 bits that scores of a variant went through."""
        dtypes = {switch.dtype for switch in variant} | {getattr(self.own.metric.options, "dtype", None)}
        return next((dtype for dtype in reversed(_COARSE) if dtype in dtypes), None)

    def _explanation(
        self, theirs: _Theirs, number: float, tried: list[dict[str, Any]], untried: dict[str, str]
    ) -> Explanation:
        groups, dtype = self._agreeing(theirs, tried)
        sure = len(groups) == 1 and self._is_sure(theirs, tried, groups[0], dtype)
        remaining = [[one["variant"] for one in group] for group in groups]
        nearest = self._nearest(theirs, tried, complete=not groups)
        outcome = f"none of {len(tried):,} known variants makes them, the nearest is {nearest[0]['variant']}"
        if len(groups) == 1:
            first, *others = groups[0]
            what = "; ".join(one.sentence for one in first["made"]) or "nothing is done otherwise"
            more = f" (and {len(others)} others that make the same)" if others else ""
            outcome = f"{first['variant']}{more}: {what}; one of {len(tried):,} variants that were tried"
            outcome += f"; as near as {dtype} is on different processors" if dtype else ""
            outcome += "" if sure else self._doubt(theirs, dtype)
        elif groups:
            listed = "; ".join(names[0] for names in remaining)
            outcome = f"one of {len(remaining)} that make them, of {len(tried):,} that were tried: {listed}"
        failed = "".join(f"\n{name} could not be tried: {reason}" for name, reason in untried.items())
        own = f"{self.own.metric.title} of these {len(self.own.ids):,} captions is {number:.6g}"
        sentence = f"{own} by {self.own.metric.signature()}.\nThe other numbers: {outcome}.{failed}"
        only = remaining[0][0] if sure else None
        return Explanation(only, remaining, len(tried), untried, nearest, sentence)

    @staticmethod
    def _doubt(theirs: _Theirs, dtype: str | None) -> str:
        if dtype is not None and not theirs.of_set:
            return ", and so may be another change that is as small"
        return "; perhaps by accident, which a score for each caption would show"

    def _agreeing(
        self, theirs: _Theirs, tried: list[dict[str, Any]]
    ) -> tuple[list[list[dict[str, Any]]], str | None]:
        """The variants that make the numbers, those together that make the same; else those that make them
        but for the rounding of 16 bits, those together that are one variant in float32, and the dtype."""
        exact = [one for one in tried if one["agree"] == 1]
        if exact:
            return [_simplest_first(group) for group in _alike(exact, theirs.noise("float32"))], None
        for dtype in _COARSE:
            of_dtype = [one for one in tried if self._dtype(one["made"]) == dtype]
            rounded = [one for one in of_dtype if one["number"] is not None and one["shares"][dtype] == 1]
            if rounded:
                fewest = min(len(_in_float32(one["made"])) for one in rounded)
                bases = dict[Variant, list[dict[str, Any]]]()
                for one in sorted(rounded, key=lambda one: one["units"]):
                    base = _in_float32(one["made"])
                    if len(base) == fewest:
                        bases.setdefault(base, []).append(one)
                return list(bases.values()), dtype
        return [], None

    def _is_sure(
        self, theirs: _Theirs, tried: list[dict[str, Any]], group: list[dict[str, Any]], dtype: str | None
    ) -> bool:
        """Whether the only variants that make the numbers do so by no accident."""
        if theirs.of_set:
            near = [round(one["number"], 9) for one in tried if one["units"] <= _UNITS]
            return dtype is None and len(set(near)) <= 1 + _OTHERS
        if dtype is None:
            return theirs.varied
        # bfloat16 is so coarse that changes which nobody knows pass for it. Of float16 scores hardly one is
        # that of float32, and all together they are nearer to ours in float16 than to those in float32.
        compared = theirs.known & (theirs.values != 0)
        if dtype != "float16" or not theirs.varied or not compared.any():
            return False
        plain = np.abs(self.scored(_in_float32(group[0]["made"])).scores - theirs.values)[compared]
        half = np.abs(group[0]["scores"] - theirs.values)[compared]
        accidental = float(np.mean(plain <= theirs.tolerance()))
        return accidental <= _ACCIDENT and bool(np.mean(half**2) < np.mean(plain**2))

    def _nearest(
        self, theirs: _Theirs, tried: list[dict[str, Any]], *, complete: bool
    ) -> list[dict[str, Any]]:
        """The nearest variants with other scores each; of the probe alone where not `complete`."""
        ordered = sorted(tried, key=lambda one: (-one["agree"], one["units"]))
        first = [group[0] for group in _alike(ordered, 1e-7, most=_SHOWN)]
        if complete:
            every = np.ones(len(self.own.ids), dtype=bool)
            for place, one in enumerate(first):
                if one["number"] is None:
                    first[place] = {**one, **theirs.beside(self.scored(one["made"]), every)}
            first.sort(key=lambda one: (-one["agree"], one["units"]))
        return [{name: one[name] for name in ("variant", "number", "agree")} for one in first]


def _name(variant: Variant) -> str:
    return " + ".join(switch.name for switch in variant) or "capeval's own settings"


def _cost(variant: Variant) -> int:
    """What computing it costs, by the dearest of its switches."""
    return max((switch.cost for switch in variant), default=0)


def _in_float32(variant: Variant) -> Variant:
    return tuple(switch for switch in variant if switch.dtype is None)


def _simplest_first(group: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are nearest but for float32's noise in their order, before all others."""
    near = max(2 * min(one["units"] for one in group), _NEAR)
    return sorted(group, key=lambda one: bool(one["units"] > near))


def _alike(
    variants: Sequence[dict[str, Any]], tolerance: float, most: int | None = None
) -> list[list[dict[str, Any]]]:
    """Variants in groups that make the same scores, at most so many groups."""
    groups = list[list[dict[str, Any]]]()
    for one in variants:
        like = [
            group for group in groups if np.allclose(group[0]["scores"], one["scores"], 0, tolerance, True)
        ]
        if like:
            like[0].append(one)
        elif most is None or len(groups) < most:
            groups.append([one])
        else:
            break
    return groups


def why(
    theirs: Any,
    metric: str | CaptionMetric,
    captions: Any,
    images: Any = None,
    references: Any = None,
    *,
    ids: Sequence[str] | None = None,
    backbones: Sequence[str] = (),
    most: int = 2,
    progress: bool = False,
    **options: Any,
) -> Explanation:
    """Find the known variant of a metric that gives somebody else's number for the same captions.

    Args:
        theirs: the mean as text, with the digits that are printed ("0.522"); or, which says far more, a score
            for each caption: a list in order, or by image id. None where one is unknown.
        metric: a name, with its `options`, or an open metric.
        captions, images, references: as for `metric.score`; `images` may be videos.
        ids: of images, by which `theirs` may be.
        backbones: other weights to try.
        most: how many switches a variant has at most, 1 or 2.
    """
    opened = metric if isinstance(metric, CaptionMetric) else load(metric, on_error="nan", **options)
    samples = opened.check(captions, images, references if opened.needs_references else None)
    names = [str(row) for row in range(len(samples))] if ids is None else list(ids)
    return Search(opened, samples, names, backbones).explain(theirs, most=most, progress=progress)
