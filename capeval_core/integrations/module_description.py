"""Descriptions of a metric as a module of `evaluate`: inputs, result, an example that runs, options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from capeval_core.description import describe_metric
from capeval_core.metric import CaptionMetric
from capeval_core.options import describe_options


def module_description(metric: type[CaptionMetric]) -> str:
    """What the metric is, what a user passes, and an example."""
    usage = _sections({"Inputs:": _inputs(metric), "Example:": _example(metric)})
    return f"{describe_metric(metric)}\n\n{usage}"


def module_usage(metric: type[CaptionMetric]) -> str:
    """Inputs, result, example and options, which evaluate puts below the docstring of `compute`."""
    described = describe_metric(metric)
    result = [
        f"{metric.key}: mean over all {described.mean}.",
        "with per_caption=True also per_caption, signature, and counts: captions, failed, truncated "
        "(longer than the text encoder reads, references too), empty.",
    ]
    options = [
        f"{option.name} ({option.type}, default {option.default!r}): {option.help}"
        for option in describe_options(metric.Options)
        if option.name != "evidence"
    ]
    return _sections(
        {
            "Inputs:": _inputs(metric),
            "Result:": result,
            "Example:": _example(metric),
            "Options, keywords of `evaluate.load`:": options,
        }
    )


def _inputs(metric: type[CaptionMetric]) -> list[str]:
    return [f"{name}: {meaning}" for name, meaning in describe_metric(metric).inputs.items()]


def _example(metric: type[CaptionMetric]) -> list[str]:
    """Lines that run wherever the package is installed, as a doctest with `ELLIPSIS`."""
    described = describe_metric(metric)
    values = {
        "predictions": "[item.good, item.unrelated, *item.references]" if metric.relative else "item.good",
        "images": "item.image",
        "videos": "[item.image, item.image]",
        "references": "item.references",
    }
    of_package = metric.__module__.startswith("capeval_core.")
    path = f'evaluate.load(capeval_core.module_path("{metric.name}")'
    path = path if of_package else f'capeval_core.module("{metric.name}"'
    configuration = "" if metric.variant is None else f', "{metric.variant}"'
    weights = "" if metric.tiny is None else ', weights="tiny"'
    inputs = [f"{name}=[{values[name]} for item in items]" for name in described.inputs if name in values]
    return [
        ">>> import capeval_core, capeval_core.demo, evaluate",
        ">>> items = capeval_core.demo.demo_set()",
        f">>> metric = {path}{configuration}{weights})",
        ">>> metric.compute(",
        *(f"...     {line}," for line in inputs),
        "... )",
        f"{{{metric.key!r}: ...}}",
    ]


def _sections(sections: Mapping[str, Sequence[str]]) -> str:
    return "\n\n".join(
        "\n".join([title, *(f"    {line}" for line in lines)]) for title, lines in sections.items()
    )
