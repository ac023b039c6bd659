"""`capeval list`: the metrics, as their classes state them, and the weights."""

from __future__ import annotations

from typing import Any

from capeval_core.commands.terminal import Parser, paragraph, table
from capeval_core.description import describe_metric, licence_in_words
from capeval_core.metric import CaptionMetric
from capeval_core.registry import METRICS, metric_class
from capeval_core.result import json_text
from capeval_core.weights.catalogue import WEIGHTS
from capeval_core.weights.folder import TINY


def run(arguments: list[str]) -> int:
    parser = Parser(prog="capeval list", description="Show the metrics and the known weights.")
    parser.add_argument("--json", action="store_true", help="as JSON")
    if parser.read(arguments).json:
        print(json_text(catalogue()), end="")
        return 0
    metrics = [metric_class(name) for name in METRICS]
    print(_metrics_table(metrics))
    print("\n" + _weights_table(metrics))
    print("\n" + _papers(metrics))
    return 0


def catalogue() -> dict[str, Any]:
    """Everything that the list knows, in JSON's types."""
    return {
        "metrics": [_described(metric_class(name)) for name in METRICS],
        "weights": [vars(entry) for entry in WEIGHTS],
        "tiny": {name: metric_class(name).tiny for name in METRICS if _has_tiny(metric_class(name))},
    }


def _described(metric: type[CaptionMetric]) -> dict[str, Any]:
    return {
        "name": metric.name,
        "title": metric.title,
        "key": metric.key,
        "summary": metric.summary,
        "range": list(metric.range),
        "higher_is_better": metric.higher_is_better,
        "needs_references": metric.needs_references,
        "media": list(metric.media),
        "default_weights": metric.default_weights.repository,
        "licence": metric.default_weights.licence,
        "paper": metric.paper,
    }


def _metrics_table(metrics: list[type[CaptionMetric]]) -> str:
    rows = [["METRIC", "TITLE", "RANGE", "REFS", "MEDIA", "DEFAULT WEIGHTS"]]
    for m in metrics:
        told = describe_metric(m)
        needs = "yes" if m.needs_references else "no"
        extent = "-" if m.relative else told.range.replace(" to ", "-")
        rows.append([m.name, m.title, extent, needs, told.media, told.weights])
    return table(rows)


def _weights_table(metrics: list[type[CaptionMetric]]) -> str:
    rows = [["WEIGHTS", "LICENCE: WHAT"]]  # two columns, since ids on the Hub are long
    rows += [[entry.repository, f"{licence_in_words(entry)}: {entry.title}"] for entry in WEIGHTS]
    if any(_has_tiny(metric) for metric in metrics):
        rows.append(["tiny", "Apache-2.0: packaged, needs no network, knows drawn scenes only"])
    return table(rows)


def _papers(metrics: list[type[CaptionMetric]]) -> str:
    papers: dict[str, list[str]] = {}
    for metric in metrics:
        papers.setdefault(metric.paper, []).append(metric.name)
    told = [", ".join(names) + "\n" + paragraph(paper, indent="  ") for paper, names in papers.items()]
    return "\n".join(["PAPERS", *told])


def _has_tiny(metric: type[CaptionMetric]) -> bool:
    return (TINY / metric.tiny).is_dir()
