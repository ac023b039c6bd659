"""Folders of the repository that a wheel installs inside the package: modules of `evaluate`, and cards."""

from __future__ import annotations

from pathlib import Path


def module_path(name: str) -> str:
    """The folder of a metric's `evaluate` module in this installation, or in this checkout.

    Args:
        name: one of `list_metrics()`.

    Raises:
        ValueError: there is no such metric, or another package declares it, which has no module here.

    >>> import evaluate
    >>> metric = evaluate.load(module_path("pacs"), weights="tiny")
    >>> metric.name
    'pacs'
    """
    from capeval_core.registry import METRICS, metric_class

    metric = metric_class(name)
    if name not in METRICS:
        raise ValueError(
            f"{name} has no folder of a module: {metric.__module__.partition('.')[0]} declares it, open its "
            f"evaluate module by capeval_core.module({name!r})"
        )
    return str(shipped("hub_metrics", "metrics") / name)


def shipped(package: str, folder: str) -> Path:
    """A folder that lies inside an installed package, and beside the package in a checkout.

    >>> shipped("hub_cards", "hub_cards").name
    'hub_cards'
    """
    root = Path(__file__).parent
    return root / package if (root / package).is_dir() else root.parent / folder
