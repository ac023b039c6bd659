"""Metrics for training: opened from whatever a user names them by, empty captions allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capeval_core.cache import FeatureCache
from capeval_core.errors import Problems, described
from capeval_core.integrations.processes import own_device
from capeval_core.metric import CaptionMetric
from capeval_core.options import Options
from capeval_core.registry import metric_class

_WAYS = 'a name ("pacs"), a dict ({"name": "pacs", "w": 2.5}) or a metric of capeval_core.load(...)'


@dataclass(frozen=True)
class ChosenMetric:
    """A metric with its options, whose weights are not open yet."""

    metric: type[CaptionMetric]
    options: Options

    def open(self) -> CaptionMetric:
        return self.metric(self.options)


def choose_metrics(given: Any, options: Mapping[str, Any], cache: FeatureCache) -> list[ChosenMetric]:
    """Metrics in the order of `given`, each with `empty="score"`: a young captioner may say nothing.

    Args:
        given: a name, a dict with `name` and options, a metric that is open already, or a list of those.
        options: of every metric that is given by name; a dict's own come first.
        cache: for the metrics that are told no other one.

    Raises:
        TypeError, ValueError: none is given, or something else; two give the same key; one's scores are
            relative to their set; one has no such option.
    """
    listed = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    problems = Problems()
    if not listed:
        problems.add("metrics is empty: name at least one")
    for i, one in enumerate(listed):
        if not isinstance(one, (str, Mapping, CaptionMetric)):
            problems.add(f"metrics[{i}] is {described(one)}: expected {_WAYS}", TypeError)
        elif isinstance(one, Mapping) and "name" not in one:
            problems.add(f'metrics[{i}] has no "name": expected {_WAYS}')
    if options and listed and all(isinstance(one, CaptionMetric) for one in listed):
        problems.add(
            f"{', '.join(options)}: the metrics are open already, pass options to capeval_core.load",
            TypeError,
        )
    problems.raise_if_any()
    for i, one in enumerate(listed):
        if isinstance(one, CaptionMetric):
            found = type(one)
        else:
            found = metric_class(one if isinstance(one, str) else one["name"])
        if found.relative is not None:
            problems.add(f"metrics[{i}]: {found.name} is no measure of training, {found.relative}")
    problems.raise_if_any()
    chosen = [_chosen(one, options, cache) for one in listed]
    keys = [one.metric.key for one in chosen]
    for i, key in enumerate(keys):
        if key in keys[:i]:
            problems.add(
                f"metrics[{i}] gives {key} as metrics[{keys.index(key)}] does: name each metric once"
            )
    problems.raise_if_any()
    return chosen


def _chosen(
    given: str | Mapping[str, Any] | CaptionMetric, options: Mapping[str, Any], cache: FeatureCache
) -> ChosenMetric:
    if isinstance(given, CaptionMetric):
        # Opened anew, which shares the loaded encoder: the user's own metric stays as it is.
        kept = given.options
        return ChosenMetric(
            type(given),
            replace(
                kept,
                empty="score",
                cache=cache if kept.cache is None else kept.cache,
                device=own_device() if kept.device is None else kept.device,
            ),
        )
    own = {"name": given} if isinstance(given, str) else dict(given)
    name = own.pop("name")
    told: dict[str, Any] = {"empty": "score", **options, **own}
    for option, default in (("cache", cache), ("device", own_device())):
        if told.get(option) is None:
            told[option] = default
    metric = metric_class(name)
    return ChosenMetric(metric, metric.Options.of(name, told))
