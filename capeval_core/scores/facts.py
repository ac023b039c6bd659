"""What metrics are called, which papers they are from, and what these report: `papers.toml`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from capeval_core.metric import CaptionMetric
from capeval_core.registry import FACTS
from capeval_core.weights.catalogue import listed

Metric = TypeVar("Metric", bound=type[CaptionMetric])


def facts(name: str) -> Callable[[Metric], Metric]:
    """Give a metric's class the facts under `metrics.<name>`."""
    stated = FACTS["metrics"][name]
    paper = FACTS["papers"][stated["paper"]]
    optional: dict[str, Any] = {"relative": None, "network": None, "tiny": None}
    optional |= {"part_titles": {}, "advice": {}, "published": {}}
    values = {
        **{fact: stated.get(fact, default) for fact, default in optional.items()},
        **{fact: stated[fact] for fact in ("title", "key", "summary")},
        "name": stated.get("name", name),
        "paper": paper["cite"],
        "bibtex": paper["bibtex"],
        "range": tuple(stated["range"]),
        "default_weights": listed(stated["weights"]) if "weights" in stated else None,
    }

    def give(metric: Metric) -> Metric:
        for fact, value in values.items():
            setattr(metric, fact, value)
        return metric

    return give
