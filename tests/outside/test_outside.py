"""A metric of another package, installed: listed, loaded, scored, on the command line and on a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import capeval_core
from capeval_core import authoring
from capeval_core.demo import demo_set
from capeval_core.integrations.shards import score_shard
from capeval_core.registry import METRICS, list_metrics, metric_class, metric_classes
from capeval_core.testing import check_metric
from tests.outside import NAME, installed


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(tmp_path_factory.mktemp("outside")) as folder:
        yield folder


def test_a_metric_of_another_package_is_listed_loaded_and_scored(outside: Path) -> None:
    assert list_metrics() == capeval_core.list_metrics() == [*METRICS, NAME, "wordf"]
    assert list(metric_classes()) == [*METRICS, NAME, "wordf"]
    metric = capeval_core.load(NAME)
    items = demo_set()
    result = metric.score([item.good for item in items], [item.image for item in items])
    assert result.signature.startswith(f"capeval:{NAME}|package:capeval-colours@1.2|")
    assert result.metric == NAME and all(0 <= score <= 1 for score in result.scores)
    assert (
        metric.score(["a red dog"], [items[0].image]).scores != metric.score(["dog"], [items[0].image]).scores
    )
    with pytest.raises(ValueError, match=f"unknown metric 'colour': did you mean '{NAME}'"):
        capeval_core.load("colour")
    for option in ("w", "weights", "dtype", "batch_size"):
        with pytest.raises(TypeError, match=f"colours has no option '{option}'.*options: rows"):
            capeval_core.load(NAME, **{option: "tiny"})


def test_rows_and_scores_of_another_version_are_not_reused(
    outside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = demo_set()[0]
    given: Any = (["a red dog"], [item.image])
    first = capeval_core.load(NAME).score(*given, rows=tmp_path / "rows")
    shard = tmp_path / "shard.jsonl"
    shard.write_text(json.dumps({"uid": "a", "caption": "a red dog", "image": str(item.image)}))
    score_shard(shard, tmp_path / "scores.parquet", NAME)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(outside)])
    with installed(tmp_path / "new", ('"1.2"', '"1.3"'), ("(216, 38, 38)", "(38, 216, 38)")):
        metric = capeval_core.load(NAME)
        package = "package: 'capeval-colours@1.2' there, 'capeval-colours@1.3' now"
        with pytest.raises(ValueError, match=f"of other settings.*{package}"):
            metric.score(*given, rows=tmp_path / "rows")
        with pytest.raises(ValueError, match=r"holds other scores.*signature"):
            score_shard(shard, tmp_path / "scores.parquet", NAME)
        result = metric.score(*given)
        assert result.scores != first.scores and "|package:capeval-colours@1.3|" in result.signature
        with pytest.raises(ValueError, match="signature"):
            result.compare(first)


def test_check_metric_passes_what_keeps_its_promises(outside: Path) -> None:
    check_metric(metric_class(NAME))
    check_metric(metric_class("wordf"), weights="tiny")


@dataclass(frozen=True, kw_only=True)
class Shifted(authoring.Options):
    """Options, one of which neither rows nor signature know."""

    without = ("weights", "device", "dtype", "compat")
    shift: float = authoring.option(0.0, "added to scores")


RUNS = count()
TERMS: dict[str, Callable[[Any, pa.Table], Any]] = {
    "check_batches: another order moves score": lambda metric, rows: np.arange(len(rows)),
    "check_batches: batch_size=3 moves score": lambda metric, rows: metric.options.batch_size == 3,
    r"check_batches: captions\[0\] alone": lambda metric, rows: len(rows),
    "check_repeats: score": lambda metric, rows: np.arange(len(rows)),
    "check_pickling": lambda metric, rows: next(RUNS),
    "check_rows: scores": lambda metric, rows: next(RUNS),
    "check_range": lambda metric, rows: -2,
    "check_broken_images: the score of row 0": lambda metric, rows: len(rows) > rows["error"].null_count,
    "check_empty_captions": lambda metric, rows: np.where(rows["empty"], np.nan, 0),
    "check_options: shift moves scores": lambda metric, rows: metric.options.shift,
}
"""What scores have more, and the promise that they break by it."""


@pytest.mark.parametrize("promise", TERMS)
def test_check_metric_names_the_broken_promise(
    outside: Path, monkeypatch: pytest.MonkeyPatch, promise: str
) -> None:
    metric = metric_class(NAME)
    usual: Any = metric.aggregate

    def changed(metric: Any, rows: pa.Table) -> authoring.Values:
        return authoring.Values(usual(metric, rows).scores + TERMS[promise](metric, rows), {})

    monkeypatch.setattr(metric, "aggregate", changed)
    monkeypatch.setattr(metric, "Options", Shifted)
    with pytest.raises(AssertionError, match=promise):
        check_metric(metric)


def test_check_metric_compares_scores_with_the_formula_of_their_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = metric_class("bleu")
    usual: Any = metric.aggregate

    def halved(metric: Any, rows: pa.Table) -> authoring.Values:
        values = usual(metric, rows)
        return replace(values, scores=values.scores / 2)

    monkeypatch.setattr(metric, "aggregate", halved)
    with pytest.raises(AssertionError, match=r"check_batches: captions\[2\] alone has the number"):
        check_metric(metric)


def test_words_weigh_as_in_the_references_that_are_scored_or_as_prepared(outside: Path) -> None:
    items = demo_set()
    captions, images = [item.good for item in items], [item.image for item in items]
    references = [[*item.references] for item in items]
    metric = capeval_core.load("wordf", weights="tiny")
    found, table = metric.score(captions, images, references), metric.prepare(references)
    assert f"|statistics:{table.fingerprint}|" in found.signature
    opened = capeval_core.load("wordf", weights="tiny", statistics=table)
    alone = opened.score(captions[:1], images[:1], references[:1])
    assert alone.scores == pytest.approx(found.scores[:1], abs=1e-6)
    own = opened.score(captions, images, [[caption] for caption in captions])
    assert own.parts["reference_f"] == pytest.approx([1] * len(captions), abs=1e-6)
    with pytest.raises(TypeError, match=r"statistics=.*make them by prepare"):
        capeval_core.load("wordf", weights="tiny", statistics=authoring.CorpusStatistics())
