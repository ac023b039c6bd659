"""The list of metrics, and the door to them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from capeval_core.errors import did_you_mean
from capeval_core.metric import CaptionMetric

METRICS: dict[str, str] = {
    "pacs": "capeval_core.scores.pac:PacS",
    "refpacs": "capeval_core.scores.pac:RefPacS",
    "clips": "capeval_core.scores.clips:ClipS",
    "refclips": "capeval_core.scores.clips:RefClipS",
    "hices": "capeval_core.scores.hice:HiceS",
    "refhices": "capeval_core.scores.hice:RefHiceS",
    "eco": "capeval_core.scores.eco:Eco",
}
"""Every metric's name and class. To add a metric is to add its score file, module, card and a line here."""


def metric_class(name: str) -> type[CaptionMetric]:
    """The class of a metric by name; an unknown name is an error with the nearest known one."""
    if not isinstance(name, str) or name not in METRICS:
        known = ", ".join(METRICS)
        raise ValueError(f"unknown metric {name!r}{did_you_mean(str(name), METRICS)} (known: {known})")
    module, _, class_name = METRICS[name].partition(":")
    found: type[CaptionMetric] = getattr(import_module(module), class_name)
    return found


def load(name: str, **options: Any) -> CaptionMetric:
    """Open a metric with its weights.

    Args:
        name: one of `list_metrics()`.
        **options: see `metric_class(name).Options`: `weights`, `device`, `dtype`, ...

    Raises:
        ValueError: unknown metric or device, weights that cannot be had or read.
        TypeError: unknown option, or a value of the wrong type.

    >>> metric = load("pacs", weights="tiny")
    >>> metric.signature()
    "capeval:pacs|weights:tiny@...|dtype:float32|w:2|prompt:'A photo depicts '|v:0.1.0"
    """
    found = metric_class(name)
    return found(found.Options.of(name, options))


def list_metrics() -> list[str]:
    """Names of all metrics.

    >>> list_metrics()
    ['pacs', 'refpacs', 'clips', 'refclips', 'hices', 'refhices', 'eco']
    """
    return list(METRICS)
