"""`CaptionScore`: a metric as a `torchmetrics.Metric`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import capeval_core
from capeval_core.errors import ProblemsError
from capeval_core.metric import CaptionMetric
from capeval_core.registry import metric_class
from tests.support.seams import network

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


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_rows_count_once_until_they_are_forgotten() -> None:
    score = CaptionScore("rougel", empty="error")
    with pytest.raises(ValueError, match="captions is empty"):
        score.compute()
    score.update([], references=[])
    given = {"captions": CAPTIONS, "references": REFERENCES}
    score.update(**batch(given, 0, 1))
    for captions, references, where in (
        (["a dog", ""], [["a"], ["b"]], "captions[1]"),
        (["a dog", "a cat"], [["a"], []], "references[1]"),
    ):
        with pytest.raises(ProblemsError) as refused:
            score.update(captions, references=references)
        assert [problem.where for problem in refused.value.problems] == [where]
    score.update(**batch(given, 3, 4, 5))
    rows = [0, 1, 3, 4, 5]
    expected = capeval_core.load("rougel").score(
        [CAPTIONS[i] for i in rows], references=[REFERENCES[i] for i in rows]
    )
    assert float(score.compute()) == pytest.approx(expected.mean, abs=1e-7)
    assert score.result is not None and score.result.scores == expected.scores
    assert score.result.signature == expected.signature
    score.reset()
    with pytest.raises(ValueError, match="captions is empty"):
        score.compute()
    assert score.higher_is_better and not CaptionScore("chair", synonyms="tiny").higher_is_better
    # A network whose device is named stays there, and a metric without one has nothing to move.
    for fixed in (CaptionScore("pacs", weights="tiny", device="cpu"), score):
        metric = fixed.metric
        assert fixed.to("meta").metric is metric
    with pytest.raises(ValueError, match="CaptionScore takes one metric, found 2"):
        CaptionScore(["rougel", "bleu"])


@pytest.mark.parametrize("other", [{"prompt": "An image of "}, {"weights": "clone"}])
@pytest.mark.parametrize("way", ["merge_state", "load_state_dict"])
def test_rows_of_other_settings_are_refused(
    other: dict[str, Any], way: str, images: list[Path], tmp_path: Path
) -> None:
    if "weights" in other:
        other = {"weights": changed_weights(tmp_path)}
    ours, theirs = (CaptionScore("pacs", **{"weights": "tiny", **own}) for own in ({}, other))
    equal = CaptionScore("pacs", weights="tiny", w=1.0)  # which rows do not depend on
    for score in (ours, theirs, equal):
        score.persistent(True)
        score.update(CAPTIONS[:2], images[:2])
    if way == "merge_state":
        equal.merge_state(ours)
        assert len(equal.rows) == 2
    else:
        equal.load_state_dict(ours.state_dict())
    assert float(ours.compute()) == pytest.approx(2 * float(equal.compute()))
    getattr(ours, way)(theirs if way == "merge_state" else theirs.state_dict())
    ours.update(CAPTIONS[2:3], images[2:3])  # what was computed before is forgotten
    with pytest.raises(ValueError, match=next(iter(other))):
        ours.compute()


def changed_weights(folder: Path) -> Path:
    """The tiny weights with one number changed, by a conversion's own way of writing them."""
    encoder = network("clip", "tiny")
    tensors = {name: own.clone() for name, own in encoder.model.state_dict().items()}
    name = next(name for name, own in tensors.items() if own.ndim == 2)
    tensors[name][0, 0] += 0.5
    config = {key: value for key, value in encoder.config.items() if key not in ("canary", "checksum")}
    type(encoder)(config, tensors, device="cpu").save_pretrained(folder / "changed")
    return folder / "changed"


def test_rows_of_all_processes_count(images: list[Path]) -> None:
    """torchmetrics gathers the rows of processes as one tensor, in which streams stand behind each other."""
    other = CaptionScore("pacs", weights="tiny")
    other.update(CAPTIONS[2:4], images[2:4])
    other.update(CAPTIONS[4:5], images[4:5])
    gathered = torch.cat(other.rows)
    score = CaptionScore(
        "pacs",
        weights="tiny",
        sync={
            "dist_sync_fn": lambda tensor, group=None: [tensor, gathered],
            "distributed_available_fn": lambda: True,
        },
    )
    score.update(CAPTIONS[:2], images[:2])
    expected = capeval_core.load("pacs", weights="tiny", empty="score").score(CAPTIONS[:5], images[:5])
    assert float(score.compute()) == pytest.approx(expected.mean, abs=1e-6)
    assert score.result is not None and score.result.scores == pytest.approx(expected.scores, abs=1e-6)
