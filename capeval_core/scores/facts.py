"""What metrics are called, which papers they are from, and what these report: `papers.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from capeval_core.metric import CaptionMetric
from capeval_core.result import Published
from capeval_core.weights.catalogue import listed

_FILE = tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))
Metric = TypeVar("Metric", bound=type[CaptionMetric])


def facts(name: str) -> Callable[[Metric], Metric]:
    """Give a metric's class the facts under `metrics.<name>`."""
    stated = _FILE["metrics"][name]
    paper = _FILE["papers"][stated["paper"]]
    reported = stated.get("published", {})
    weights = listed(stated["weights"]) if "weights" in stated else None
    values = {
        "name": stated.get("name", name),
        "title": stated["title"],
        "key": stated["key"],
        "summary": stated["summary"],
        "paper": paper["cite"],
        "bibtex": paper["bibtex"],
        "range": tuple(stated["range"]),
        "relative": stated.get("relative"),
        "part_titles": stated.get("part_titles", {}),
        "default_weights": weights,
        "network": stated.get("network"),
        "tiny": stated.get("tiny"),
        "published": tuple(
            Published(
                captions,
                mean,
                reported["dataset"],
                weights.repository if weights else "",
                reported["source"],
                reported.get("settings", ""),
            )
            for captions, mean in reported.get("means", {}).items()
        ),
    }

    def give(metric: Metric) -> Metric:
        for fact, value in values.items():
            setattr(metric, fact, value)
        return metric

    return give
