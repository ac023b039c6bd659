"""`capeval list`: the metrics, as their classes state them, and the weights."""

from __future__ import annotations

from typing import Any

from capeval_core.commands.terminal import paragraph, parser_of, table
from capeval_core.description import MetricDescription, licence_in_words
from capeval_core.metric import CaptionMetric
from capeval_core.registry import every_class, metric_classes
from capeval_core.result import json_text
from capeval_core.weights.catalogue import WEIGHTS
from capeval_core.weights.folder import TINY

_FACTS = (
    "name", "variant", "title", "key", "summary", "range", "needs_references", "media", "higher_is_better",
    "paper",
)  # fmt: skip


def run(arguments: list[str]) -> int:
    flags = parser_of("list").read(arguments)
    chosen = [name for name in ("metrics", "weights", "bibtex") if getattr(flags, name)]
    metrics = every_class()
    if flags.json:
        tiny = {metric.name: metric.tiny for metric in metric_classes().values() if _has_tiny(metric)}
        content: dict[str, Any] = {"metrics": [*map(_described, metrics)], "weights": [*map(vars, WEIGHTS)]}
        content |= {"tiny": tiny, "bibtex": _bibtex_of(metrics)}
        print(json_text({name: content[name] for name in chosen or ("metrics", "weights", "tiny")}), end="")
        return 0
    tables = {"metrics": _metrics_table, "weights": _weights_table, "bibtex": _bibtex_of, "papers": _papers}
    print("\n\n".join(tables[name](metrics) for name in chosen or ("metrics", "weights", "papers")))
    return 0


def _bibtex_of(metrics: list[type[CaptionMetric]]) -> str:
    """The papers of metrics as entries of BibTeX, each once; as a comment one that has no entry."""
    entries = [metric.bibtex.strip() or f"% {metric.name}: {metric.paper}" for metric in metrics]
    return "\n\n".join(dict.fromkeys(entries))


def _described(metric: type[CaptionMetric]) -> dict[str, Any]:
    weights = metric.default_weights
    facts = {name: getattr(metric, name) for name in _FACTS}
    return {
        **facts,
        "default_weights": weights and weights.repository,
        "licence": weights and weights.licence,
    }


def _metrics_table(metrics: list[type[CaptionMetric]]) -> str:
    rows = [["METRIC", "RANGE", "WITH", "TITLE"]]
    for metric in metrics:
        about = MetricDescription(metric)
        needs = [*filter(None, [about.visual]), *["refs"] * metric.needs_references]
        rows.append([metric.name, "-" if about.relative else about.range, "+".join(needs), metric.title])
    return table(rows)


def _weights_table(metrics: list[type[CaptionMetric]]) -> str:
    """Two lines each, since ids on the Hub are long."""
    lines = ["WEIGHTS"]
    for entry in WEIGHTS:
        names = dict.fromkeys(m.name for m in metrics if m.default_weights == entry)
        default = f" (default of {', '.join(names)})" if names else ""
        lines += [entry.repository, f"  {entry.title}; licence: {licence_in_words(entry)}{default}"]
    if any(_has_tiny(metric) for metric in metrics):
        lines += ["tiny", "  packaged, needs no network, knows drawn scenes only; licence: Apache-2.0"]
    return "\n".join(lines)


def _papers(metrics: list[type[CaptionMetric]]) -> str:
    papers: dict[str, dict[str, None]] = {}
    for metric in metrics:
        papers.setdefault(metric.paper, {})[metric.name] = None
    lines = [", ".join(names) + "\n" + paragraph(paper, "  ") for paper, names in papers.items()]
    return "\n".join(["PAPERS", *lines])


def _has_tiny(metric: type[CaptionMetric]) -> bool:
    return metric.tiny is not None and (TINY / metric.tiny).is_dir()
