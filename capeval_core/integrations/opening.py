"""Metrics for training, by name, by name with options, or open already; empty captions are allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capeval_core.cache import TEXT_BYTES, FeatureCache
from capeval_core.errors import Kind, Problem, Problems, at
from capeval_core.integrations.processes import own_device
from capeval_core.metric import CaptionMetric
from capeval_core.options import Options
from capeval_core.registry import metric_class
from capeval_core.values import described

OF_REFERENCES = "references"
"""The `corpus_texts` of metrics whose statistics do not change with the captions."""
_WAYS = 'a name ("pacs"), a dict ({"name": "pacs", "w": 2.5}) or a metric of capeval_core.load(...)'


@dataclass(frozen=True)
class ChosenMetric:
    """A metric with its options, whose weights are not open yet."""

    metric: type[CaptionMetric]
    options: Options

    def open(self) -> CaptionMetric:
        return self.metric(self.options)


def choose_metrics(
    metrics: Any,
    options: Mapping[str, Any],
    cache: FeatureCache,
    *,
    media: str | None = None,
    has_references: bool = False,
) -> list[ChosenMetric]:
    """Metrics in their order, each with `empty="score"`: a young captioner may write nothing.

    metrics: a name, a dict with `name` and options, a metric that is open already, or a list of those.
    options: of every metric that is given by name, weights of those that have any; a dict's own come first.
    cache: for the metrics that have no other one.
    media: of the metrics that are given by name and are about visuals, unless a dict has its own `media`.
    has_references: whether all references will be at hand before a caption is encoded, so that statistics can
        be made of them for the metrics that need any.
    """
    single = isinstance(metrics, str) or not isinstance(metrics, Sequence)
    listed = [metrics] if single else metrics
    problems = Problems()

    def wrong(i: int, found: str, fix: str, verb: str = "is", kind: Kind = ValueError) -> None:
        problems.add(Problem(at("metrics", None if single else i), f"{verb} {found}".strip(), fix, kind))

    if not listed:
        problems.add(Problem("metrics", "is empty", "name at least one"))
    for i, one in enumerate(listed):
        if not isinstance(one, (str, Mapping, CaptionMetric)):
            wrong(i, described(one), f"expected {_WAYS}", kind=TypeError)
        elif isinstance(one, Mapping) and "name" not in one:
            wrong(i, 'no "name"', f"expected {_WAYS}", "has")
    if options and listed and all(isinstance(one, CaptionMetric) for one in listed):
        problems.add(
            f"{', '.join(options)}: the metrics are open already, pass options to capeval_core.load",
            TypeError,
        )
    problems.raise_if_any()
    for i, one in enumerate(listed):
        metric = type(one) if isinstance(one, CaptionMetric) else _class_of(one, media)
        if metric.relative:
            wrong(i, f"{metric.name} cannot be used during training: {metric.relative}", "", "")
    problems.raise_if_any()
    chosen = [_chosen(one, options, cache, media) for one in listed]
    for one in chosen:
        if not (has_references and one.metric.corpus_texts == OF_REFERENCES):
            one.metric.check_separable(one.options, scores=False)
    keys = [one.metric.key for one in chosen]
    for i, key in enumerate(keys):
        if key in keys[:i]:
            wrong(i, f"{key} as metrics[{keys.index(key)}] does", "name each metric once", "gives")
    problems.raise_if_any()
    return chosen


def open_one(metric: Any, options: Mapping[str, Any], door: str) -> CaptionMetric:
    """One metric, open, for a door that scores batch after batch; `options` may hold `media`.

    Raises:
        TypeError, ValueError: as `choose_metrics`, or a list of several metrics.
    """
    own = dict(options)
    chosen = choose_metrics(metric, own, FeatureCache(text_bytes=TEXT_BYTES), media=own.pop("media", None))
    if len(chosen) != 1:
        raise ValueError(f"{door} takes one metric, found {len(chosen)}: make one {door} of each")
    return chosen[0].open()


def _class_of(metric: str | Mapping[str, Any], media: str | None) -> type[CaptionMetric]:
    """The class of a metric that is given by name; one on texts alone is the same for all media."""
    name, own = (metric, None) if isinstance(metric, str) else (metric["name"], metric.get("media"))
    if own is None and not metric_class(name).media:
        return metric_class(name)
    return metric_class(name, media if own is None else own)


def _chosen(
    metric: str | Mapping[str, Any] | CaptionMetric,
    options: Mapping[str, Any],
    cache: FeatureCache,
    media: str | None,
) -> ChosenMetric:
    if isinstance(metric, CaptionMetric):
        # Opened anew, which shares the loaded encoder: the user's own metric stays as it is.
        class_, chosen = type(metric), replace(metric.options, empty="score")
    else:
        own = {"name": metric} if isinstance(metric, str) else dict(metric)
        class_, name = _class_of(metric, media), own.pop("name")
        own.pop("media", None)
        has_none = {*class_.Options.without, *(["weights"] if class_.default_weights is None else [])}
        shared = {option: value for option, value in options.items() if option not in has_none}
        chosen = class_.Options.of(name, {"empty": "score", **shared, **own})
    defaults = {"cache": cache, "device": own_device()}
    missing: dict[str, Any] = {
        name: value for name, value in defaults.items() if getattr(chosen, name) is None
    }
    return ChosenMetric(class_, replace(chosen, **missing))
