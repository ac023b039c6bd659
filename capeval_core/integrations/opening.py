"""Metrics for doors that score batch after batch: by name, by name with options, or open already."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from capeval_core.cache import TEXT_BYTES, FeatureCache
from capeval_core.errors import Kind, Problem, Problems, at, described
from capeval_core.metric import CaptionMetric
from capeval_core.options import Options
from capeval_core.registry import metric_class
from capeval_core.result import Result

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

    options, media: of metrics given by name; a dict's own come first. cache: where a metric has no other.
    has_references: whether statistics can be made of references before a caption is encoded.
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
        found = f"{', '.join(options)}: the metrics are open already, pass options to capeval_core.load"
        problems.add(found, TypeError)
    problems.raise_if_any()
    chosen = [_chosen(one, options, cache, media) for one in listed]
    keys = [one.metric.key for one in chosen]
    for i, (key, one) in enumerate(zip(keys, chosen, strict=True)):
        if one.metric.relative:
            wrong(i, f"{one.metric.name} cannot be used during training: {one.metric.relative}", "", "")
        elif key in keys[:i]:
            wrong(i, f"{key} as metrics[{keys.index(key)}] does", "name each metric once", "gives")
    problems.raise_if_any()
    for one in chosen:  # statistics of references do not change with the captions
        if not (has_references and one.metric.corpus_texts == "references"):
            one.metric.check_separable(one.options, scores=False)
    return chosen


def open_one(metric: Any, options: Mapping[str, Any], door: str) -> CaptionMetric:
    """One metric, open, for a door that scores batch after batch; `options` may hold `media`."""
    own = dict(options)
    chosen = choose_metrics(metric, own, FeatureCache(text_bytes=TEXT_BYTES), media=own.pop("media", None))
    if len(chosen) != 1:
        raise ValueError(f"{door} takes one metric, found {len(chosen)}: make one {door} of each")
    return chosen[0].open()


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
        name, own_media = own.pop("name"), own.pop("media", None)
        # One on texts alone is the same for all media.
        about = media if own_media is None and metric_class(name).media else own_media
        class_ = metric_class(name, about)
        has_none = {*class_.Options.without, *(["weights"] if class_.default_weights is None else [])}
        shared = {option: value for option, value in options.items() if option not in has_none}
        chosen = class_.Options.of(name, {"empty": "score", **shared, **own})
    return ChosenMetric(
        class_, replace(chosen, cache=chosen.cache or cache, device=chosen.device or _own_device())
    )


def _own_device() -> str | None:
    """The GPU of this process where several share a machine, e.g. `cuda:1`; None: let the metric choose.

    It is read before the Trainer makes it the current one, which may be after the metrics are opened.
    """
    import torch

    number = int(os.environ.get("LOCAL_RANK", -1))  # as torchrun and accelerate set it
    if number < 0 or not torch.cuda.is_available():
        return None
    return f"cuda:{number % torch.cuda.device_count()}"  # each may be shown its own GPU only


def combine_tables(metric: CaptionMetric, tables: Iterable[pa.Table]) -> Result:
    """The result of tables whose rows follow each other, whatever indices they had where they were made."""
    rows = pa.concat_tables(table.cast(metric.ROW) for table in tables)
    return metric.combine(rows.set_column(0, metric.ROW.field(0), pa.array(range(len(rows)), pa.int64())))


def shown(metric: CaptionMetric) -> str:
    """An open metric in a log: its key, where it runs, and its signature, which names weights and options.

    >>> import capeval_core
    >>> shown(capeval_core.load("pacs", weights="tiny", device="cpu"))
    "pac_s on cpu: capeval:pacs|weights:tiny@...|dtype:float32|w:2|prompt:'A photo depicts '|v:0.1.0"
    """
    from capeval_core.models.device import resolve_device

    device = "" if metric.default_weights is None else f" on {resolve_device(metric.options.device)}"
    return f"{metric.key}{device}: {metric.signature()}"
