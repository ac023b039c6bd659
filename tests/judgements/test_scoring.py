"""Metrics over judged sets: scored once and aggregated again, kept rows, missing images, pools."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import capeval_core
from capeval_core.judgements.judged_set import Items, Scoring
from capeval_core.judgements.judging import Judged
from capeval_core.judgements.scoring import SetScorer, joined_signature, labels_of, with_references
from capeval_core.judgements.sets import load_set
from capeval_core.judgements.visuals import find_visuals
from capeval_core.metric import CaptionMetric
from capeval_core.registry import metric_class
from tests.judgements.data import (
    write_expert,
    write_foil,
    write_json,
    write_lines,
    write_pascal,
)
from tools.scenes import Scene, SceneObject, draw


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    circle = SceneObject("circle", "red", "large", (0.5, 0.5), 0.35)
    stars = [SceneObject("star", "blue", "large", (x, 0.5), 0.3) for x in (0.3, 0.7)]
    for name, objects in (("a.png", [circle]), ("b.png", stars)):
        draw(Scene(tuple(objects), "white"), 96).save(folder / name)
    return folder


def plain_scores(metric: CaptionMetric, judged: Any, visuals: dict[str, Any], scoring: int) -> list[float]:
    """What the metric's own `score` gives for the references of a scoring."""
    chosen = judged.scorings[scoring]
    paths = [visuals[image] for image in chosen.items.images] if metric.media else None
    references = chosen.references() if metric.needs_references else None
    return metric.score(chosen.items.captions, paths, references).scores


@pytest.mark.parametrize("name", ["refpacs", "refhices", "vilbertscore", "pacs", "ciderd", "bleu"])
def test_every_draw_is_what_the_metric_gives_for_its_references(
    name: str, images: Path, tmp_path: Path
) -> None:
    judged = load_set("pascal50s", write_pascal(tmp_path / "set"))
    class_ = metric_class(name)
    metric = capeval_core.load(name, **({} if class_.default_weights is None else {"weights": "tiny"}))
    visuals = find_visuals(images, judged.image_ids)
    runs = SetScorer(judged, visuals).score(metric)[class_.title]
    for number, run in enumerate(runs):
        expected = plain_scores(metric, judged, visuals, number)
        assert run.scores.tolist() == pytest.approx(expected, abs=1e-7)
    if metric.needs_references:
        assert runs[0].scores.tolist() != runs[1].scores.tolist()


@pytest.mark.parametrize("name", ["pacs", "refpacs"])
def test_captions_are_encoded_once_for_all_draws(
    name: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = load_set("pascal50s", write_pascal(tmp_path / "set"))
    encode, batches = metric_class(name).encode, []

    def counted(self: Any, batch: Any) -> Any:
        batches.append(len(batch))
        return encode(self, batch)

    monkeypatch.setattr(metric_class(name), "encode", counted)
    visuals = find_visuals(images, judged.image_ids)
    for _ in range(2):  # the second run finds all rows
        SetScorer(judged, visuals, rows=tmp_path / "rows").score(capeval_core.load(name, weights="tiny"))
    assert batches == [6]


def test_signatures_are_those_of_the_results_joined_where_draws_differ(tmp_path: Path) -> None:
    judged = load_set("pascal50s", write_pascal(tmp_path / "set"))
    metric = capeval_core.load("ciderd")
    runs = SetScorer(judged).score(metric)["CIDEr-D"]
    results = [
        metric.score(scoring.items.captions, references=scoring.references()) for scoring in judged.scorings
    ]
    assert [run.signature for run in runs] == [result.signature for result in results]
    fingerprints, counts = (
        [field.partition(":")[2] for r in results for field in r.signature.split("|") if field.startswith(n)]
        for n in ("statistics:", "refs:")
    )
    assert len(set(fingerprints)) == 2 and counts == ["2", "1"]
    fields = (joined_signature(runs) or "").split("|")
    assert f"statistics:{','.join(fingerprints)}" in fields and "refs:2,1" in fields


def test_systems_keep_rows_apart(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "set" / "reference_captions.json", {"a.png": ["x"], "b.png": ["y"]})
    write_json(tmp_path / "set" / "one.json", {"a.png": "a red circle", "b.png": "stars"})
    write_json(tmp_path / "set" / "two.json", {"a.png": "a star", "b.png": "two stars"})
    judged = load_set("coco_systems", tmp_path / "set")
    visuals = find_visuals(images, judged.image_ids)
    metric = capeval_core.load("pacs", weights="tiny")
    first = SetScorer(judged, visuals, rows=tmp_path / "rows").score(metric)["PAC-S"]
    monkeypatch.setattr(type(metric), "encode", lambda self, batch: pytest.fail("rows are there"))
    again = SetScorer(judged, visuals, rows=tmp_path / "rows").score(
        capeval_core.load("pacs", weights="tiny")
    )["PAC-S"]
    assert [run.scores.tolist() for run in again] == [run.scores.tolist() for run in first]
    assert first[0].scores.tolist() != first[1].scores.tolist()


def test_a_run_that_was_stopped_goes_on(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = load_set("foil", write_foil(tmp_path / "set"))
    whole = SetScorer(judged).score(capeval_core.load("bleu"))
    metric = capeval_core.load("bleu")
    encode, calls = type(metric).encode, []

    def stopped(self: Any, batch: Any) -> Any:
        calls.append(len(batch))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return encode(self, batch)

    monkeypatch.setattr(type(metric), "encode", stopped)
    with pytest.raises(KeyboardInterrupt):
        SetScorer(judged, rows=tmp_path / "rows").score(metric)
    assert calls == [6, 6]  # the first scoring was done
    resumed = SetScorer(judged, rows=tmp_path / "rows").score(capeval_core.load("bleu"))
    assert calls == [6, 6, 6]  # and is not encoded again
    for run, expected in zip(resumed["BLEU-4"], whole["BLEU-4"], strict=True):
        assert run.scores.tolist() == expected.scores.tolist()


def test_captions_of_missing_images_have_no_score(images: Path, tmp_path: Path) -> None:
    judged = load_set("flickr8k_expert", write_expert(tmp_path / "set"))
    (images / "b.png").unlink()
    visuals = find_visuals(images, judged.image_ids)
    metric = capeval_core.load("pacs", weights="tiny", on_error="nan")
    (run,) = SetScorer(judged, visuals).score(metric)["PAC-S"]
    assert np.isfinite(run.scores).tolist() == [True, True, False, False]
    cells = judged.cells([run], None)
    assert cells["tau_b"].rows == 6
    (images / "a.png").write_bytes(b"no image")
    (broken,) = SetScorer(judged, visuals).score(metric)["PAC-S"]
    assert np.isnan(broken.scores).all()
    assert judged.cells([broken], None)["tau_b"].undefined == "there are no rows, and a correlation needs two"
    (images / "a.png").unlink()
    (images / "z.png").touch()
    with pytest.raises(
        ValueError, match=r"none of the 2 ids \('a.png', 'b.png'\) has a file here; it has 'z.png'"
    ):
        find_visuals(images, judged.image_ids)


def test_images_are_needed_where_a_metric_looks_at_them(tmp_path: Path) -> None:
    judged = load_set("flickr8k_expert", write_expert(tmp_path / "set"))
    with pytest.raises(ValueError, match="visuals is missing: pacs needs the images of flickr8k_expert"):
        SetScorer(judged).score(capeval_core.load("pacs", weights="tiny"))


def test_a_constant_metric_has_no_correlation(tmp_path: Path) -> None:
    judged = load_set("flickr8k_expert", write_expert(tmp_path / "set"))
    from capeval_core.judgements.judged_set import Scored

    cells = Judged(judged, {"flat": [Scored(np.full(4, 0.5))]}).cells["flat"]
    assert all(
        math.isnan(cell.value) and cell.undefined == "all 9 scores are equal" for cell in cells.values()
    )


def test_rows_keep_the_references_that_are_chosen() -> None:
    schema = pa.schema(
        [("index", pa.int64()), ("references", pa.int32()), ("nested", pa.list_(pa.list_(pa.float32())))]
    )
    rows = pa.table(
        {
            "index": [2, 0, 1],
            "references": [2, 3, 2],
            "nested": [[[1.0], [2.0, 3.0]], [[4.0], [], [5.0]], None],
        },
        schema=schema,
    )
    chosen = with_references(rows, ["nested"], [[2, 0], [0], [1]])
    assert chosen["nested"].to_pylist() == [[[2.0, 3.0]], [[5.0], [4.0]], None]
    assert chosen["references"].to_pylist() == [1, 2, 1]
    assert chosen.schema == schema and rows["references"].to_pylist() == [2, 3, 2]


@pytest.mark.filterwarnings("ignore:eco")  # of pools so small
def test_the_chosen_candidate_of_a_reranker_has_the_score(images: Path, tmp_path: Path) -> None:
    pools = {
        "a.png": ["a red circle", "two blue stars on the left"],
        "b.png": ["a green heart", "stars", "x y"],
    }
    write_json(tmp_path / "set" / "pools.json", pools)
    write_json(tmp_path / "set" / "references.json", {name: ["a red circle"] for name in pools})
    judged = load_set("nice_pools", tmp_path / "set")
    visuals = find_visuals(images, judged.image_ids)
    metric = capeval_core.load("eco", weights="tiny")
    result = metric.score(list(pools.values()), list(visuals.values()))
    chosen = [pool[choice] for pool, choice in zip(pools.values(), result.parts["choice"], strict=True)]
    items = judged.scorings[0].items
    apart = [0, 2, 1, 4, 3]  # pools whose candidates do not stand together
    mixed = Items(*([column[row] for row in apart] for column in (items.captions, items.images)))
    for own in (items, mixed):
        found = replace(judged, scored=Scoring("", own))  # type: ignore[call-arg]
        (run,) = SetScorer(found, visuals).score(metric)["ECO"]
        best = [own.captions[row] for row in np.flatnonzero(np.isfinite(run.scores))]
        assert sorted(best) == sorted(chosen)


def test_bleu_has_four_rows() -> None:
    assert list(labels_of(metric_class("bleu")).values()) == ["bleu_1", "bleu_2", "bleu_3", "bleu_4"]
    assert labels_of(metric_class("ciderd")) == {"CIDEr-D": "cider_d"}


def test_a_system_has_the_corpus_value_and_not_a_mean_of_rows(tmp_path: Path) -> None:
    references = {"a.png": ["a red circle on the left of a star"], "b.png": ["two blue stars and a heart"]}
    write_json(tmp_path / "reference_captions.json", references)
    write_json(tmp_path / "one.json", {"a.png": "a red circle", "b.png": "two blue stars and a big heart"})
    judged = load_set("coco_systems", tmp_path)
    metric = capeval_core.load("bleu")
    scores = SetScorer(judged).score(metric)
    items = judged.scorings[0].items
    numbers = metric.score(items.captions, references=items.references).numbers
    for label, runs in scores.items():
        value = judged.cells(runs, None)["one"].value
        assert value == numbers[label.lower().replace("-", "_")] != float(np.mean(runs[0].scores))


def test_captions_of_videos_are_scored_by_the_metrics_for_videos(tmp_path: Path) -> None:
    texts = ["a red circle", "two blue stars", "a green heart"]
    rows = [{"video": f"v{i}", "candidate": text, "ratings": [i, i + 1]} for i, text in enumerate(texts)]
    write_lines(tmp_path / "judgements.jsonl", rows)
    references = {f"v{i}": [f"{text} {j}" for j in range(9)] for i, text in enumerate(texts)}
    write_json(tmp_path / "references.json", references)
    judged = load_set("vatex_eval", tmp_path)
    rng = np.random.default_rng(0)
    visuals = {f"v{i}": rng.integers(0, 255, (3, 40, 40, 3), dtype=np.uint8) for i in range(3)}
    for name, label in (("pacs", "PAC-S for videos"), ("refpacs", "RefPAC-S for videos")):
        metric = capeval_core.load(name, media="video", weights="tiny")
        runs = SetScorer(judged, visuals).score(metric)[label]
        for scoring, run in zip(judged.scorings, runs, strict=True):
            if name == "refpacs" and scoring.name == "no reference":
                assert np.isnan(run.scores).all()
                continue
            given = scoring.references() if name == "refpacs" else None
            expected = metric.score(texts, videos=list(visuals.values()), references=given).scores
            assert run.scores.tolist() == pytest.approx(expected, abs=1e-7)
        entries = {entry.column: entry for entry in Judged(judged, {label: runs}, draws=0).entries()}
        assert (entries["tau_b no reference"].published is None) == (name == "refpacs")
        assert (entries["tau_b 1 reference"].published is None) == (name == "pacs")
