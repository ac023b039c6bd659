"""Helpers of the integrations that score batch after batch: metrics by name or open, and warnings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from capeval_core.cache import TEXT_BYTES, FeatureCache
from capeval_core.errors import Problem, Problems, at, described, noting, warn
from capeval_core.metric import CaptionMetric, CommonOptions
from capeval_core.registry import metric_class
from capeval_core.result import Result

MetricSpec = str | Mapping[str, Any] | CaptionMetric
"""A metric of a door's user: its name, its name and options (`{"name": "pacs", "w": 2.5}`), or open."""


def choose_metrics(
    metrics: MetricSpec | Sequence[MetricSpec],
    options: Mapping[str, Any],
    *,
    cache: FeatureCache | None = None,
    media: str | None = None,
    has_references: bool = False,
) -> list[tuple[type[CaptionMetric], CommonOptions]]:
    """Metrics, not open yet, each with `empty="score"`: a young captioner may write nothing.

    cache: shared by all. has_references: whether statistics can be made of references before captions come.
    """
    cache = FeatureCache(text_bytes=TEXT_BYTES) if cache is None else cache
    is_single = isinstance(metrics, str) or not isinstance(metrics, Sequence)
    specs: Sequence[MetricSpec] = [metrics] if is_single else metrics  # type: ignore[assignment, list-item]
    problems = Problems()
    if not specs:
        problems.add(Problem("metrics", "is empty", "name at least one"))
    # Shared options are for those given by name, of which there is none: they would be dropped.
    elif options and all(isinstance(spec, CaptionMetric) for spec in specs):
        problem = f"{', '.join(options)}: the metrics are open already, pass options to capeval_core.load"
        problems.add(problem, TypeError)
    classes: list[tuple[type[CaptionMetric], CommonOptions]] = []
    place_of_key: dict[str, str] = {}
    for i, spec in enumerate(specs):
        where = at("metrics", None if is_single else i)
        with noting(problems):
            metric, options_of_metric = _class_and_options(spec, where, options, cache, media)
            classes.append((metric, options_of_metric))
            # Logs and results go by the key, under which the second would replace the first.
            first = place_of_key.setdefault(metric.key, where)
            if metric.relative:
                problems.add(f"{where}: {metric.name} cannot be used during training: {metric.relative}")
            elif first != where:
                problems.add(Problem(where, f"gives {metric.key} as {first} does", "name each metric once"))
            elif not (has_references and metric.corpus_texts == "references"):  # whose statistics stay
                metric.check_separable(options_of_metric, scores=False)
    problems.raise_if_any()
    return classes


def open_one(metric: MetricSpec, options: Mapping[str, Any], door: str) -> CaptionMetric:
    """One metric, open, for a door that scores batch after batch; `options` may hold `media`."""
    options = dict(options)
    media = options.pop("media", None)
    classes = choose_metrics(metric, options, media=media)
    if len(classes) != 1:
        raise ValueError(f"{door} takes one metric, found {len(classes)}: make one {door} of each")
    class_, options_of_metric = classes[0]
    return class_(options_of_metric)


def _class_and_options(
    spec: object, where: str, options: Mapping[str, Any], cache: FeatureCache, media: str | None
) -> tuple[type[CaptionMetric], CommonOptions]:
    """The class and the options of a metric that is named, described by a dict, or open."""
    if isinstance(spec, CaptionMetric):
        # Opened anew, which shares the loaded encoder: the user's own metric stays as it is.
        class_ = type(spec)
        options_of_metric = replace(spec.options, empty="score")
    elif isinstance(spec, str) or (isinstance(spec, Mapping) and "name" in spec):
        keywords = {"name": spec} if isinstance(spec, str) else dict(spec)
        name = keywords.pop("name")
        medium = keywords.pop("media", None)
        if medium is None and metric_class(name).media:  # one on texts alone is the same for all media
            medium = media
        class_ = metric_class(name, medium)
        # One option for several metrics reaches those that have it: `weights` is nothing to BLEU.
        lacking = set(class_.Options.without)
        if class_.default_weights is None:
            lacking.add("weights")
        all_options: dict[str, Any] = {"empty": "score"}
        for option, value in options.items():
            if option not in lacking:
                all_options[option] = value
        all_options |= keywords  # a metric's own win over those for all
        options_of_metric = class_.Options.of(name, all_options)
    else:
        problem = 'has no "name"' if isinstance(spec, Mapping) else f"is {described(spec)}"
        fix = 'expected a name ("pacs"), a dict ({"name": "pacs", "w": 2.5}) or a metric of load(...)'
        kind = ValueError if isinstance(spec, Mapping) else TypeError
        raise Problems([Problem(where, problem, fix, kind)]).error()
    cache_of_metric = options_of_metric.cache or cache
    return class_, replace(options_of_metric, cache=cache_of_metric, device=_device(options_of_metric))


def _device(options: CommonOptions) -> str | None:
    """The device of a metric: with several processes on GPUs, each has its own."""
    rank = int(os.environ.get("LOCAL_RANK", -1))  # as torchrun and accelerate set it
    if options.device is not None or rank < 0:
        return options.device
    import torch

    if not torch.cuda.is_available():
        return None
    # Read before the Trainer makes a GPU of several the current one.
    return f"cuda:{rank % torch.cuda.device_count()}"


def combine_tables(metric: CaptionMetric, tables: Iterable[pa.Table]) -> Result:
    """The result of tables whose rows follow each other, whatever indices they had where they were made."""
    rows = pa.concat_tables([table.cast(metric.ROW) for table in tables])
    return metric.combine(rows.set_column(0, metric.ROW.field(0), pa.array(range(len(rows)), pa.int64())))


def warn_ignored(metric: type[CaptionMetric], names: Iterable[str]) -> None:
    """Warn of arguments that a metric does not need, and other metrics do."""
    for name in names:
        why = "needs no references: they" if name == "references" else f"compares texts alone: {name}"
        warn(f"{metric.name} {why} are ignored")


def warn_failed(result: Result, row: str, list_of_all: str) -> None:
    """Warn of captions without a score; `row`: the door's name of a row; `list_of_all`: where all are."""
    if result.counts.failed:
        index, reason = next(iter(result.errors.items()))
        warn(
            f"{result.metric}: {result.counts.failed:,} of {result.counts.captions:,} captions have no score "
            f"and are left out of the mean; the first is {row.format(index)} ({reason}), {list_of_all} all"
        )
