"""What doors that score batch after batch share: metrics by name or open already, and their warnings."""

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


def choose_metrics(
    metrics: Any,
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
    single = isinstance(metrics, str) or not isinstance(metrics, Sequence)
    listed = [metrics] if single else metrics
    problems, keys = Problems(), dict[str, str]()
    chosen: list[tuple[type[CaptionMetric], CommonOptions]] = []
    if not listed:
        problems.add(Problem("metrics", "is empty", "name at least one"))
    elif options and all(isinstance(one, CaptionMetric) for one in listed):
        found = f"{', '.join(options)}: the metrics are open already, pass options to capeval_core.load"
        problems.add(found, TypeError)
    for i, one in enumerate(listed):
        where = at("metrics", None if single else i)
        with noting(problems):
            metric, own = _chosen(one, where, options, cache, media)
            chosen.append((metric, own))
            if metric.relative:
                problems.add(f"{where}: {metric.name} cannot be used during training: {metric.relative}")
            elif (first := keys.setdefault(metric.key, where)) != where:
                problems.add(Problem(where, f"gives {metric.key} as {first} does", "name each metric once"))
            elif not (has_references and metric.corpus_texts == "references"):  # whose statistics stay
                metric.check_separable(own, scores=False)
    problems.raise_if_any()
    return chosen


def open_one(metric: Any, options: Mapping[str, Any], door: str) -> CaptionMetric:
    """One metric, open, for a door that scores batch after batch; `options` may hold `media`."""
    own = dict(options)
    chosen = choose_metrics(metric, own, media=own.pop("media", None))
    if len(chosen) != 1:
        raise ValueError(f"{door} takes one metric, found {len(chosen)}: make one {door} of each")
    return chosen[0][0](chosen[0][1])


def _chosen(
    metric: Any, where: str, options: Mapping[str, Any], cache: FeatureCache, media: str | None
) -> tuple[type[CaptionMetric], CommonOptions]:
    if isinstance(metric, CaptionMetric):
        # Opened anew, which shares the loaded encoder: the user's own metric stays as it is.
        class_, chosen = type(metric), replace(metric.options, empty="score")
    elif isinstance(metric, str) or (isinstance(metric, Mapping) and "name" in metric):
        own = {"name": metric} if isinstance(metric, str) else dict(metric)
        name, own_media = own.pop("name"), own.pop("media", None)
        # One on texts alone is the same for all media.
        class_ = metric_class(name, media if own_media is None and metric_class(name).media else own_media)
        has_none = {*class_.Options.without, *(["weights"] if class_.default_weights is None else [])}
        shared = {option: value for option, value in options.items() if option not in has_none}
        chosen = class_.Options.of(name, {"empty": "score", **shared, **own})
    else:
        found = 'has no "name"' if isinstance(metric, Mapping) else f"is {described(metric)}"
        fix = 'expected a name ("pacs"), a dict ({"name": "pacs", "w": 2.5}) or a metric of load(...)'
        kind = ValueError if isinstance(metric, Mapping) else TypeError
        raise Problems([Problem(where, found, fix, kind)]).error()
    device, rank = chosen.device, int(os.environ.get("LOCAL_RANK", -1))  # as torchrun and accelerate set it
    if device is None and rank >= 0:
        import torch

        if torch.cuda.is_available():  # read before the Trainer makes a GPU of several the current one
            device = f"cuda:{rank % torch.cuda.device_count()}"
    return class_, replace(chosen, cache=chosen.cache or cache, device=device)


def combine_tables(metric: CaptionMetric, tables: Iterable[pa.Table]) -> Result:
    """The result of tables whose rows follow each other, whatever indices they had where they were made."""
    rows = pa.concat_tables(table.cast(metric.ROW) for table in tables)
    return metric.combine(rows.set_column(0, metric.ROW.field(0), pa.array(range(len(rows)), pa.int64())))


def warn_ignored(metric: type[CaptionMetric], names: Iterable[str]) -> None:
    """Warn of arguments that a metric does not need, and other metrics do."""
    for name in names:
        why = "needs no references: they" if name == "references" else f"compares texts alone: {name}"
        warn(f"{metric.name} {why} are ignored")


def warn_failed(result: Result, row: str, others: str) -> None:
    """Warn of captions without a score; `row`: what the door calls the first; `others`: where all are."""
    if result.counts.failed:
        index, reason = next(iter(result.errors.items()))
        warn(
            f"{result.metric}: {result.counts.failed:,} of {result.counts.captions:,} captions have no score "
            f"and are left out of the mean; the first is {row.format(index)} ({reason}), {others} all"
        )
