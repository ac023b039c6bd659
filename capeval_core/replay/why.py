"""`why`: which known variant of a metric gives somebody's number, or which ones remain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import combinations
from typing import Any

import numpy as np
from tqdm import tqdm

from capeval_core.errors import InputError, Problem
from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric, prepared
from capeval_core.registry import load
from capeval_core.replay.variants import ENCODED, KNOWN, NUMBER, SWITCHES, Case, Switch

_NOISE = 2e-6  # of a score: what other machines add
_PROBE, _SHOWN = 12, 10
_UNITS, _CHANCE = 500, 0.01  # how near other numbers are counted, and when one that agrees is no accident
Variant = tuple[Switch, ...]


class _Theirs:
    """A number of the set, as text or float, or one per caption, in order or by the image's id; as exact as
    their digits say, but no more than machines agree."""

    def __init__(self, given: Any, ids: Sequence[str]) -> None:
        self.of_set = isinstance(given, (str, int, float, np.number))
        listed = [given.get(one) for one in ids] if isinstance(given, Mapping) else [*np.atleast_1d(given)]
        if not self.of_set and len(listed) != len(ids):
            found = f"has {len(listed):,} scores for {len(ids):,} captions"
            raise InputError(Problem("theirs", found, "give one for each, None where it is unknown"))
        texts = [str(value) for value in listed if value is not None]
        digits = max((len(text.partition(".")[2]) for text in texts if "e" not in text), default=16)
        try:
            self.values = np.array([np.nan if value is None else value for value in listed], dtype=np.float64)
        except (ValueError, TypeError):
            raise InputError(Problem("theirs", "is no number", "give a mean, or one per caption")) from None
        if not np.isfinite(self.values).any():
            raise InputError(Problem("theirs", "has no score of these captions", "give ids as theirs are"))
        largest = np.nanmax(np.abs(self.values), initial=1.0)
        self.tolerance = max(0.5000001 * 10.0**-digits, _NOISE * float(largest))

    def beside(self, case: Case, rows: Any = slice(None)) -> dict[str, Any]:
        """The share of captions that agree, the median difference in units of the tolerance, the number, and
        what tells the scores from others."""
        own = np.array([case.mean]) if self.of_set else case.scores
        values = self.values if self.of_set else self.values[rows]
        units = np.nan_to_num(np.abs(own - values) / self.tolerance, nan=np.inf)[np.isfinite(values)]
        agree, scores = np.mean(units <= 1), np.round(own, 7).tobytes()
        return {"number": case.mean, "agree": agree, "units": np.median(units), "scores": scores}


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
        self.own, self._kept = Case(metric, samples, ids), dict[Variant, Case]()
        self.switches = [switch for switch in SWITCHES if switch.fits(metric)]
        for name in weights:
            change = partial(Case.by, weights=name)
            self.switches.insert(0, Switch(name, f"weights are {name}", change, ENCODED, "", "weights"))
        self.probe = np.linspace(0, len(samples) - 1, min(_PROBE, len(samples))).astype(int).tolist()

    def scored(self, variant: Variant, *, probe: bool = False) -> Case:
        """A variant's scores, of all captions or a few."""
        first = tuple(switch for switch in variant if switch.step == ENCODED)
        if (case := self._kept.get(first)) is None:
            case = reduce(lambda case, switch: switch.change(case), first, self.own)
            if probe:
                metric, few = prepared(case.metric, case.samples), case.samples.select(self.probe)
                case = replace(case, metric=metric, samples=few)
            case = case.encoded()
            if len(first) < 2:
                self._kept[first] = case
        return reduce(lambda case, switch: switch.change(case), variant[len(first) :], case)

    def explain(self, given: Any, *, most: int = 2, progress: bool = False) -> Explanation:
        """The variants of at most so many switches that make the given numbers; fewer switches go first."""
        import pandas as pd

        theirs, number = _Theirs(given, self.own.ids), self.scored(()).mean
        tried, untried = list[dict[str, Any]](), dict[str, str]()
        for level in self._levels(theirs, most, untried):
            for variant in tqdm(level, "variants", disable=None if progress else True):
                name = " + ".join(switch.name for switch in variant) or "capeval's own settings"
                try:
                    with np.errstate(all="ignore"):
                        tried.append({"variant": name, "made": variant, **self._beside(variant, theirs)})
                except (ValueError, TypeError, OSError, ImportError) as error:
                    untried[name] = str(error)
            table = pd.DataFrame(tried)
            if (table["agree"] == 1).any():
                break
        found = table[table["agree"] == 1]
        remaining = found.groupby("scores", sort=False)["variant"].agg(list).tolist()
        near = table.sort_values(["agree", "units"], ascending=[False, True], kind="stable")
        near = near.drop_duplicates("scores").head(_SHOWN)[["variant", "number", "agree"]]
        others = table["number"][table["units"] <= _UNITS].round(9).nunique()
        sure = others < _UNITS * _CHANCE if theirs.of_set else pd.Series(theirs.values).nunique() >= 5
        nearest = near["variant"].iloc[0]
        outcome = f"none of {len(tried):,} known variants makes them, the nearest is {nearest}"
        if len(remaining) == 1:
            what = "; ".join(one.sentence for one in found["made"].iloc[0]) or "nothing is done otherwise"
            more = f" (and {len(found) - 1} others that make the same)" * (len(found) > 1)
            outcome = f"{remaining[0][0]}{more}: {what}; one of {len(tried):,} variants that were tried"
            outcome += "" if sure else "; perhaps by accident, which a score for each caption would show"
        elif remaining:
            listed = "; ".join(names[0] for names in remaining)
            outcome = f"one of {len(remaining)} that make them, of {len(tried):,} that were tried: {listed}"
        failed = "".join(f"\n{name} could not be tried: {reason}" for name, reason in untried.items())
        own = f"{self.own.metric.title} of these {len(self.own.ids):,} captions is {number:.6g}"
        sentence = f"{own} by {self.own.metric.signature()}.\nThe other numbers: {outcome}.{failed}"
        only = remaining[0][0] if len(remaining) == 1 and sure else None
        return Explanation(only, remaining, len(tried), untried, near.to_dict("records"), sentence)

    def _levels(self, theirs: _Theirs, most: int, untried: Mapping[str, str]) -> Iterator[list[Variant]]:
        """Nothing and single switches, and what tools do; then pairs of those that could be tried."""
        usable = [switch for switch in self.switches if theirs.of_set or switch.step != NUMBER]
        tools = [names for _, metrics, names in KNOWN if self.own.metric.name in metrics.split()]
        yield [(), *combinations(usable, 1), *(tuple(s for s in usable if s.name in own) for own in tools)]
        if most > 1:
            pairs = combinations([switch for switch in usable if switch.name not in untried], 2)
            yield [(a, b) for a, b in pairs if a.group != b.group]

    def _beside(self, variant: Variant, theirs: _Theirs) -> dict[str, Any]:
        if len(variant) == 2 and variant[1].step == ENCODED and not theirs.of_set:  # a few captions first
            beside = theirs.beside(self.scored(variant, probe=True), self.probe)
            if beside["agree"] < 1:
                return {**beside, "agree": 0.0, "units": np.inf}
        return theirs.beside(self.scored(variant))


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
