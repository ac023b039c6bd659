"""What metrics are called, which papers they are from, and what these report: `papers.toml`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from capeval_core.metric import CaptionMetric
from capeval_core.registry import FACTS
from capeval_core.result import Published
from capeval_core.weights.catalogue import listed

Metric = TypeVar("Metric", bound=type[CaptionMetric])


def facts(name: str) -> Callable[[Metric], Metric]:
    """Give a metric's class the facts under `metrics.<name>`."""
    stated = FACTS["metrics"][name]
    paper = FACTS["papers"][stated["paper"]]
    reported = stated.get("published", {})
    weights = listed(stated["weights"]) if "weights" in stated else None
    of_mean = {"dataset": reported.get("dataset"), "source": reported.get("source")}
    of_mean |= {"settings": reported.get("settings", ""), "weights": weights.repository if weights else ""}
    means = reported.get("means", {}).items()
    optional: dict[str, Any] = {
        "relative": None,
        "part_titles": {},
        "advice": {},
        "network": None,
        "tiny": None,
    }
    values = {
        **{fact: stated.get(fact, default) for fact, default in optional.items()},
        **{fact: stated[fact] for fact in ("title", "key", "summary")},
        "name": stated.get("name", name),
        "paper": paper["cite"],
        "bibtex": paper["bibtex"],
        "range": tuple(stated["range"]),
        "default_weights": weights,
        "published": tuple(Published(captions=captions, value=mean, **of_mean) for captions, mean in means),
    }

    def give(metric: Metric) -> Metric:
        for fact, value in values.items():
            setattr(metric, fact, value)
        return metric

    return give
