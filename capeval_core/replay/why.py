"""`why`: which known variant of a metric gives somebody's number, or which ones remain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from capeval_core.errors import InputError, Problem
from capeval_core.inputs.samples import Samples
from capeval_core.metric import CaptionMetric, prepared
from capeval_core.registry import load
from capeval_core.replay import variants
from capeval_core.replay.variants import METRIC, Case, Scored, Switch
from capeval_core.rows import canonical

_NOISE = 2e-6  # of a score: what other machines add
_PROBE, _NEAR, _SHOWN = 12, 6, 10
_UNITS, _CHANCE = 500, 0.01  # how near other numbers are counted, and when one that agrees is no accident
Variant = tuple[Switch, ...]


class _Tried(NamedTuple):
    """A variant beside theirs: its number, the median difference in units of their tolerance, the share of
    captions within it, whether all are, and what tells its scores from others."""

    number: float
    units: float
    agree: float
    equal: bool
    scores: bytes


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

    def beside(self, scored: Scored, rows: Any = slice(None)) -> _Tried:
        own = np.array([scored.mean]) if self.of_set else scored.scores
        values = self.values if self.of_set else self.values[rows]
        units = np.nan_to_num(np.abs(own - values) / self.tolerance, nan=np.inf)[np.isfinite(values)]
        agree, scores = float(np.mean(units <= 1)), np.round(own, 7).tobytes()
        return _Tried(scored.mean, float(np.median(units)), agree, agree == 1, scores)

    def no_accident(self, tried: Sequence[_Tried]) -> bool:
        """Whether one that agrees hardly does so by chance, by the density of all numbers around it."""
        if not self.of_set:
            return len(np.unique(self.values[np.isfinite(self.values)])) >= 5
        return len({round(own.number, 9) for own in tried if own.units <= _UNITS}) < _UNITS * _CHANCE


@dataclass(frozen=True)
class Explanation:
    """Which variants of a metric give a number.

    variant: the known one that does; None if none or several do, or if it may be an accident. remaining: all
    that do, each with those that give the same scores. tried: how many were computed. table: the nearest,
    with number and share of captions that agree. sentence: all that in words.
    """

    variant: str | None
    remaining: list[list[str]]
    tried: int
    table: list[dict[str, Any]]
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class Search:
    """The variants of a metric on some samples, each encoded once."""

    def __init__(
        self, metric: Any, samples: Samples, ids: Sequence[str], weights: Sequence[str] = ()
    ) -> None:
        self.metric, self.samples, self.ids = metric, samples, ids
        switches = [switch for switch in variants.SWITCHES if switch.fits(metric)]
        for name in weights:
            change = variants.reopened(weights=name)
            switches.append(Switch(name, f"weights are {name}", change, variants.OPENED, "", "weights"))
        self.switches = sorted(switches, key=lambda switch: switch.step)
        self.probe = np.linspace(0, len(samples) - 1, min(_PROBE, len(samples))).astype(int).tolist()
        self._pictures: dict[tuple[int, str], Any] = {}
        self._cases: dict[Variant, Case] = {}

    def explain(self, given: Any, *, most: int = 2, progress: bool = False) -> Explanation:
        """The variants of at most so many switches that make the given numbers; fewer switches go first."""
        theirs, tried, found = _Theirs(given, self.ids), dict[Variant, _Tried](), list[Variant]()
        for level in self._levels(theirs, most, tried):
            for variant in tqdm(level, "variants", disable=None if progress else True):
                with suppress(ValueError, TypeError, KeyError, OSError), np.errstate(all="ignore"):
                    tried[variant] = self._tried(variant, theirs)
            if found := [variant for variant in level if variant in tried and tried[variant].equal]:
                break
        equal: dict[bytes, list[str]] = {}
        for variant in found:
            equal.setdefault(tried[variant].scores, []).append(title(variant))
        remaining, sure = [*equal.values()], theirs.no_accident([*tried.values()])
        near = sorted(tried, key=lambda own: (-tried[own].agree, tried[own].units, len(own)))
        near = list({tried[own].scores: own for own in reversed(near)}.values())[: -_SHOWN - 1 : -1]
        table = [
            {"variant": title(own), "number": tried[own].number, "agree": tried[own].agree} for own in near
        ]
        outcome = f"none of {len(tried):,} known variants makes them, the nearest is {table[0]['variant']}"
        if remaining:
            what = "; ".join(switch.sentence for switch in found[0]) or "nothing is done otherwise"
            more = f" (and {len(remaining[0]) - 1} others that make the same)" if remaining[0][1:] else ""
            outcome = f"{remaining[0][0]}{more}: {what}; one of {len(tried):,} variants that were tried"
            outcome += "" if sure else "; perhaps by accident, which a score for each caption would show"
        if len(remaining) > 1:
            listed = "; ".join(names[0] for names in remaining)
            outcome = f"one of {len(remaining)} that make them, of {len(tried):,} that were tried: {listed}"
        own = f"{self.metric.title} of these {len(self.samples):,} captions is {tried[()].number:.6g}"
        sentence = f"{own} by {self.metric.signature()}.\nThe other numbers: {outcome}."
        only = remaining[0][0] if len(remaining) == 1 and sure else None
        return Explanation(only, remaining, len(tried), table, sentence)

    def _levels(self, theirs: _Theirs, most: int, tried: Mapping[Variant, _Tried]) -> Iterator[list[Variant]]:
        """None; single ones and what tools do; pairs with one that came near; all other pairs."""
        usable = [switch for switch in self.switches if theirs.of_set or switch.step != variants.NUMBER]
        tools = [names for _, metrics, names in variants.KNOWN if self.metric.name in metrics.split()]
        singles = [
            *combinations(usable, 1),
            *(tuple(s for s in self.switches if s.name in own) for own in tools),
        ]
        if not theirs.of_set:  # a score for each caption shows it at once
            yield [()]
        yield [(), *singles]
        if most > 1:
            pairs = [(a, b) for a, b in combinations(usable, 2) if a.group != b.group]
            order = sorted((own for own in tried if len(own) == 1), key=lambda own: tried[own].units)
            near = {switch for own in order[: None if theirs.of_set else _NEAR] for switch in own}
            yield [pair for pair in pairs if near & {*pair}]
            yield [pair for pair in pairs if not near & {*pair}]

    def _tried(self, variant: Variant, theirs: _Theirs) -> _Tried:
        if len(variant) > 1 and variant[-1].step <= METRIC and not theirs.of_set:
            probe = Scored(
                self.case(variant, probe=True).values.scores
            )  # some captions may show that it is another
            if not (tried := theirs.beside(probe, self.probe)).equal:
                return tried._replace(agree=0.0, units=np.inf)
        return theirs.beside(self.scored(variant))

    def scored(self, variant: Variant) -> Scored:
        """The scores of a variant, and the number of the set."""
        case, number = self.case(tuple(switch for switch in variant if switch.step <= METRIC)), None
        if case.metric.formula is not None:
            number = case.metric.formula.values(np.asarray(case.values.summands))[case.metric.key]
        scored = Scored(case.values.scores, number)
        for switch in variant:
            scored = switch.change(scored, case) if switch.step > METRIC else scored
        return scored

    def case(self, variant: Variant, *, probe: bool = False) -> Case:
        """Rows of switches up to METRIC, of all captions or some; those of single switches are kept."""
        if variant in self._cases:
            return self._cases[variant]
        samples, metric = self.samples, self.metric
        for switch in variant:
            samples = self._changed(samples, switch)
            metric = switch.change(metric, samples) if switch.step in (variants.OPENED, METRIC) else metric
        metric = prepared(metric, samples)
        samples = samples.select(self.probe) if probe else samples
        rows = canonical(metric.encode_all(samples))
        case = Case(metric, samples, rows, metric.aggregate(rows), self.ids)
        if len(variant) < 2:
            self._cases[variant] = case
        return case

    def _changed(self, samples: Samples, switch: Switch) -> Samples:
        change = switch.change
        if switch.step == variants.SAMPLES:
            return change(samples)  # type: ignore[no-any-return]
        if switch.step == variants.IMAGES:
            return replace(samples, images=[self._picture(image, switch) for image in samples.images])
        if switch.step in (variants.CAPTIONS, variants.TEXTS):
            samples = replace(samples, captions=list(map(change, samples.captions)))
        if switch.step == variants.TEXTS and samples.references is not None:
            samples = replace(samples, references=[list(map(change, own)) for own in samples.references])
        return samples

    def _picture(self, image: Any, switch: Switch) -> Any:
        key = id(image.source), switch.name
        if key not in self._pictures:
            size = getattr(getattr(self.metric.encoder, "preprocessing", None), "image_size", 0)
            change = lambda picture: switch.change(picture, size)  # noqa: E731
            self._pictures[key] = image.changed(f"{switch.name} {size}", change)
        return self._pictures[key].at(image.where)


def title(variant: Variant) -> str:
    """The names of the switches of a variant."""
    return " + ".join(switch.name for switch in variant) or "capeval's own settings"


def why(
    theirs: Any,
    metric: str | CaptionMetric,
    captions: Sequence[str],
    images: Sequence[Any] | None = None,
    references: Sequence[Sequence[str] | str] | None = None,
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

    >>> import capeval_core
    >>> texts = ["A dog runs.", "Two cats sleep.", "A man eats.", "Snow falls.", "A boy sings well."]
    >>> references = [["a dog runs off"], ["Two cats"], ["a man eats."], ["snow!"], ["a boy sings"]]
    >>> theirs = [0.2785, 0.8299, 0.6667, 0.0, 0.5865]
    >>> capeval_core.why(theirs, "rougel", texts, references=references).variant
    'no tokenizer'
    """
    opened = metric if isinstance(metric, CaptionMetric) else load(metric, on_error="nan", **options)
    samples = opened.check(captions, images, references if opened.needs_references else None)
    names = [str(row) for row in range(len(samples))] if ids is None else list(ids)
    return Search(opened, samples, names, backbones).explain(theirs, most=most, progress=progress)
