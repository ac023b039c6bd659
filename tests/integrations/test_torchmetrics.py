"""`CaptionScore`: a metric as a `torchmetrics.Metric`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import capeval_core
from capeval_core.metric import CaptionMetric
from capeval_core.registry import metric_class

torchmetrics = pytest.importorskip("torchmetrics")

from capeval_core.integrations.torchmetrics import CaptionScore  # noqa: E402

CAPTIONS = ["a red circle", "two blue squares", "", "a red circle", "hearts", "nothing"]
REFERENCES = [["a circle", "a red disc"], "blue squares", ["a star"], ["one"], ["a", "b", "c"], "nothing"]
"""Metrics that score captions, and the medium of their variants."""


def chosen(metric: CaptionMetric) -> dict[str, Any]:
    """The options of an opened metric, with a cache of its own."""
    names = [*metric.Options.describe()]
    return {**{name: getattr(metric.options, name) for name in names}, "cache": None}


def options(name: str, medium: str | None = None) -> dict[str, Any]:
    """`tiny`, and statistics for metrics that need those of the whole corpus."""
    metric = metric_class(name, medium)
    chosen: dict[str, Any] = {} if metric.default_weights is None else {"weights": "tiny"}
    if medium is not None:
        return {**chosen, "media": medium, "idf": False}
    if name in ("cider", "ciderd"):
        chosen["statistics"] = capeval_core.load(name).prepare([[text] for text in CAPTIONS if text])
    return chosen


def batch(given: dict[str, Any], *rows: int) -> dict[str, Any]:
    return {name: [values[row] for row in rows] for name, values in given.items()}


@pytest.fixture
def score(images: list[Path]) -> Any:
    made = CaptionScore("refpacs", weights="tiny")
    made.update(CAPTIONS[:4], images[:4], REFERENCES[:4])
    return made


def test_a_collection_scores_once_for_metrics_with_equal_rows(images: list[Path]) -> None:
    made = {
        "pacs": CaptionScore("pacs", weights="tiny"),
        "w1": CaptionScore("pacs", weights="tiny", w=1.0),
        "refpacs": CaptionScore("refpacs", weights="tiny"),
        "bleu": CaptionScore("bleu"),
    }
    collection = torchmetrics.MetricCollection(made)
    for rows in ((0, 1), (2, 3), (4, 5)):
        collection.update(
            **batch({"captions": CAPTIONS, "images": images, "references": REFERENCES}, *rows), preds=None
        )
    assert sorted(map(sorted, collection.compute_groups.values())) == [["bleu"], ["pacs", "w1"], ["refpacs"]]
    values = {name: float(value) for name, value in collection.compute().items()}
    assert values == {
        name: pytest.approx(
            capeval_core.load(one.metric.name, **chosen(one.metric))
            .score(
                CAPTIONS,
                images if one.metric.media else None,
                REFERENCES if one.metric.needs_references else None,
            )
            .mean,
            abs=1e-6,
        )
        for name, one in made.items()
    }
    assert values["pacs"] == pytest.approx(2 * values["w1"])
