"""`CaptionScore`: a metric as a `torchmetrics.Metric`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import capeval_core
from capeval_core.metric import CaptionMetric, Reranker
from capeval_core.options import describe_options
from capeval_core.registry import MEDIA_VARIANTS, METRICS, metric_class

torchmetrics = pytest.importorskip("torchmetrics")

from capeval_core.integrations.torchmetrics import CaptionScore  # noqa: E402

CAPTIONS = ["a red circle", "two blue squares", "", "a red circle", "hearts", "nothing"]
REFERENCES = [["a circle", "a red disc"], "blue squares", ["a star"], ["one"], ["a", "b", "c"], "nothing"]
EACH = [
    *((name, None) for name in METRICS if not issubclass(metric_class(name), Reranker)),
    *MEDIA_VARIANTS,
]
"""Metrics that score captions, and the medium of their variants."""


def chosen(metric: CaptionMetric) -> dict[str, Any]:
    """The options of an opened metric, with a cache of its own."""
    names = [one.name for one in describe_options(metric.Options)]
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


def shown(name: str, medium: str | None, images: list[Path]) -> dict[str, Any]:
    """The images of all captions, or videos of two frames each, under their argument."""
    if medium is not None:
        return {"videos": [[path, path] for path in images]}
    return {"images": images} if metric_class(name).media else {}


@pytest.mark.parametrize(("name", "medium"), EACH)
def test_an_empty_batch_adds_nothing(name: str, medium: str | None, images: list[Path]) -> None:
    needed = {"references": REFERENCES} if metric_class(name, medium).needs_references else {}
    given = {"captions": CAPTIONS, **shown(name, medium, images), **needed}
    alone, among = (CaptionScore(name, **options(name, medium)) for _ in range(2))
    for score, batches in ((alone, [range(2)]), (among, [(), range(2), ()])):
        for rows in batches:
            score.update(**batch(given, *rows))
    assert among.compute() == alone.compute()
    assert f"capeval:{name}|" in repr(among)
    if medium or metric_class(name).media:
        with pytest.raises(ValueError, match=re.escape("len(captions)=0")):
            among.update([], **batch(shown(name, medium, images), 0), references=[])


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
    assert sorted(map(sorted, collection.compute_groups.values())) == [
        ["bleu"],
        ["pacs", "w1"],
        ["refpacs"],
    ]
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


def test_tensors_of_a_loader_are_images(weights: str) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (2, 40, 50, 3), dtype=np.uint8)
    score = CaptionScore("pacs", weights=weights)
    score.update(CAPTIONS[:2], torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)
    expected = capeval_core.load("pacs", weights=weights).score(
        CAPTIONS[:2], [Image.fromarray(array) for array in pixels]
    )
    assert float(score.compute()) == pytest.approx(expected.mean, abs=1e-6)
