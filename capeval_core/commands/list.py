"""`capeval list`: the metrics, as their classes state them, and the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from capeval_core.commands.terminal import help_texts, paragraph, parser_of, table
from capeval_core.metric import CaptionMetric, Reranker
from capeval_core.metric_text import MetricDescription, licence_in_words
from capeval_core.registry import every_class, metric_classes
from capeval_core.result import json_text
from capeval_core.weights.catalogue import WEIGHTS, WeightsEntry, restriction_of

_FACTS = "name variant title key summary range needs_references media higher_is_better paper"
_HAVE = ("images", "videos", "references", "licence", "cpu", "long")


def run(arguments: list[str]) -> int:
    flags = parser_of("list", known=",".join(_HAVE)).read(arguments)
    if flags.advise is not None:
        header = ["METRIC", "WITH", "TOKENS", "SECONDS", "TAU-C", "PAIRS", "BLIND TO"]
        rows = [[*row[:6], row[-1]] for row in advice(flags.advise)]
        texts = help_texts()["list --advise"]
        print(f"{table([header, *rows])}\n\n{paragraph(texts['note'])}")
        if "cpu" in flags.advise:
            print(f"\n{paragraph(texts['dtype'])}")
        return 0
    parts = [name for name in ("metrics", "weights", "bibtex") if getattr(flags, name)]
    metrics = every_class()
    if flags.json:
        tiny: dict[str, str] = {}
        for name, metric in metric_classes().items():
            if metric.tiny:
                tiny[name] = metric.tiny
        content: dict[str, Any] = {
            "metrics": [*map(_described, metrics)],
            "weights": [*map(_entry_described, WEIGHTS)],
            "tiny": tiny,
            "bibtex": _bibtex_of(metrics),
        }
        # For programs, which have the papers with each metric already.
        selected_parts = parts or ["metrics", "weights", "tiny"]
        print(json_text({name: content[name] for name in selected_parts}), end="")
        return 0
    tables = {"metrics": _metrics_table, "weights": _weights_table, "bibtex": _bibtex_of, "papers": _papers}
    selected_parts = parts or ["metrics", "weights", "papers"]
    print("\n\n".join(tables[name](metrics) for name in selected_parts))
    return 0


def _bibtex_of(metrics: list[type[CaptionMetric]]) -> str:
    """The papers of metrics as entries of BibTeX, each once; as a comment one that has no entry."""
    entries = []
    for metric in metrics:
        entries.append(metric.bibtex.strip() or f"% {metric.name}: {metric.paper}")
    # PAC-S and RefPAC-S are of one paper, and a key that comes twice is an error to BibTeX.
    return "\n\n".join(dict.fromkeys(entries))


def _described(metric: type[CaptionMetric]) -> dict[str, Any]:
    weights = metric.default_weights
    content = {name: getattr(metric, name) for name in _FACTS.split()}
    content["default_weights"] = weights and weights.name
    content["licence"] = weights and weights.licence
    return content


def _entry_described(entry: WeightsEntry) -> dict[str, Any]:
    return {"name": entry.name, **vars(entry), "files": [*map(vars, entry.files)]}


def advice(have: Sequence[str] = ()) -> list[list[str]]:
    """The metrics that fit what someone has: name, needs, tokens, cost, agreement, use, blind spots."""
    from capeval_core.judgements.tables import published

    rows = []
    media = {medium for medium in ("image", "video") if f"{medium}s" in have}
    columns = help_texts()["list --advise"]["agreement"].items()
    for metric in every_class():
        facts = metric.advice
        if not facts or not _fits(metric, have, media):
            continue
        agreement = []
        for set_name, column in columns:
            cell = published(set_name, metric.title, column)
            # The judged sets are of images: what is published there does not hold for videos.
            agreement.append(f"{cell.value:.1f}" if cell and not metric.variant else "-")
        name = metric.name if metric.variant is None else f"{metric.name} ({metric.variant})"
        cost = f"{facts['seconds']:,}" if "seconds" in facts else "-"
        rows.append([name, _needs(metric), facts["reads"], cost, *agreement, facts["for"], facts["blind"]])
    return rows


def _fits(metric: type[CaptionMetric], have: Sequence[str], media: set[str]) -> bool:
    """True for a metric that can be used, and is advised, with what someone has."""
    visual = MetricDescription(metric).visual
    lacks_visual = visual is not None and visual not in media
    lacks_references = metric.needs_references and "references" not in have
    # Without any input named, the advice is about all metrics.
    if (media or "references" in have) and (lacks_visual or lacks_references):
        return False
    # A metric without weights is code of this package alone; weights without a licence allow nothing.
    weights = metric.default_weights
    licence = weights.licence if weights else "MIT"
    if "licence" in have and (not licence or restriction_of(licence)):
        return False
    # A long caption is one that ViLBERTScore's 37 and CLIP's 77 tokens would cut.
    if "long" in have and metric.advice["reads"] in ("37", "77"):
        return False
    return not ("cpu" in have and metric.advice.get("slow"))


def _needs(metric: type[CaptionMetric]) -> str:
    needs = [MetricDescription(metric).visual or ""]
    needs += ["refs"] if metric.needs_references else []
    needs += ["pool"] if issubclass(metric, Reranker) else []  # several captions of each image
    return "+".join(filter(None, needs))


def _metrics_table(metrics: list[type[CaptionMetric]]) -> str:
    rows = [["METRIC", "RANGE", "WITH", "TITLE"]]
    for metric in metrics:
        about = MetricDescription(metric)
        extent = "-" if about.relative else about.range  # z-scores within a set have no ends
        rows.append([metric.name, extent, _needs(metric), metric.title])
    return table(rows)


def _weights_table(metrics: list[type[CaptionMetric]]) -> str:
    """Two lines each, since ids on the Hub are long."""
    lines = ["WEIGHTS"]
    for entry in WEIGHTS:
        names: list[str] = []
        for metric in metrics:
            # A metric on images and on videos is in the list twice, with the same weights.
            if metric.default_weights == entry and metric.name not in names:
                names.append(metric.name)
        default = f" (default of {', '.join(names)})" if names else ""
        lines += [entry.name, f"  {entry.title}; licence: {licence_in_words(entry)}{default}"]
    lines += ["tiny", "  packaged, needs no network, knows drawn scenes only; licence: Apache-2.0"]
    return "\n".join(lines)


def _papers(metrics: list[type[CaptionMetric]]) -> str:
    """The paper of every metric, once, under the names of its metrics."""
    papers: dict[str, list[str]] = {}
    for metric in metrics:
        names = papers.setdefault(metric.paper, [])
        if metric.name not in names:
            names.append(metric.name)
    lines = ["PAPERS"]
    for paper, names in papers.items():
        lines += [", ".join(names), paragraph(paper, "  ")]
    return "\n".join(lines)
