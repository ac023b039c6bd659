"""The report of every metric: its captions, where their scores come from, its pictures."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.demo import demo_set
from capeval_core.description import describe_metric
from capeval_core.evidence import Evidence
from capeval_core.metric import CaptionMetric
from capeval_core.registry import MEDIA_VARIANTS, METRICS, metric_class, titles_of_parts
from capeval_core.reports.explanations import number
from capeval_core.reports.html import page
from capeval_core.reports.systems import Cell, Column, System, Systems
from capeval_core.reranking import Reranker
from capeval_core.result import Result
from tests.reports.pages import Parsed
from tests.reports.test_html_pictures import stored

CASES = [*METRICS, *(f"{name}:{medium}" for name, medium in MEDIA_VARIANTS)]
SHOWN = {
    "hices": ["Phrases, the region that fits each best", "Regions, the phrase that fits each best"],
    "refhices": ["How the caption fits each reference"],
    "umic": ["boxes with the objects"],
    "vilbertscore": ["words with words", "Mean of the references"],
    "bleu": ["BLEU-1", "BLEU-3"],
    "eco": ["Captions, best first"],
    "refpacs": ["Cosine with each reference"],
    "pacs:video": ["the frame that it fits best"],
    "refpacs:video": ["How the caption fits each reference"],
}
"""What explains a score, of metrics that have more than parts."""
DRAWN = {"hices": 1, "refhices": 1, "umic": 1, "pacs:video": 2, "refpacs:video": 2}
"""Most pictures that explain a caption: the image, or frames."""
ITEMS = demo_set()[:2]


def scored(case: str) -> tuple[CaptionMetric, Result, System, Column]:
    """Two captions of the packaged pictures, or pools of them, as the command line would report them."""
    class_ = metric_class(*case.split(":"))
    weights: Any = {"weights": "tiny"} if class_.default_weights else {}
    metric = capeval_core.load(case.split(":")[0], media=class_.variant, **weights)
    captions: list[Any] = [item.good for item in ITEMS]
    if isinstance(metric, Reranker):
        captions = [[item.good, item.subtly_wrong, item.unrelated] for item in ITEMS]
    images: list[Any] = [item.image for item in ITEMS]
    if metric.media == ("video",):
        images = [[item.image, ITEMS[0].image] for item in ITEMS]
    references = [list(item.references) for item in ITEMS] if metric.needs_references else None
    samples = metric.check(captions, images if metric.media else None, references)
    rows = metric.prepared(samples).encode_all(samples)
    result = metric.combine(rows)
    about = describe_metric(class_)
    column = Column(metric.name, metric.title, metric.key, metric.range, True, metric.relative, about.summary)
    cell = Cell(
        result.mean, None, result.scores, result.parts, result.errors, result.signature,
        evidence=Evidence(metric, samples, rows, result),
    )  # fmt: skip
    texts = result.parts["caption"] if isinstance(metric, Reranker) else captions
    system = System("A", ["1", "2"], texts, images if metric.media else None, references, {metric.name: cell})
    return metric, result, system, column


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_metric_has_its_report(case: str) -> None:
    metric, result, system, column = scored(case)
    visual = "video" if metric.media == ("video",) else "image"
    html = page(Systems([system], [column], visual=visual, titles=titles_of_parts()))
    parsed = Parsed(html)
    assert metric.title in parsed.text and result.signature in parsed.text
    for caption, score in zip(system.captions, result.scores, strict=True):
        assert caption in parsed.text and number(score) in parsed.text
    for words in SHOWN.get(case, []):
        assert words in parsed.text
    drawings = len(parsed.named("img"))
    assert bool(drawings) == (case in DRAWN) and drawings <= 2 * DRAWN.get(case, 0)
    assert len(stored(html)) - drawings == (2 if metric.media else 0)
    assert str(Path(ITEMS[0].image).parent) not in html
    for reference in system.references[0] if system.references else []:
        assert reference in parsed.text


def test_an_image_that_is_gone_costs_its_explanation_alone(tmp_path: Path) -> None:
    paths = [Path(shutil.copy(item.image, tmp_path)) for item in ITEMS]
    metric = capeval_core.load("hices", weights="tiny", cache=FeatureCache())
    samples = metric.check([item.good for item in ITEMS], paths)
    rows = metric.encode_all(samples)
    result = metric.combine(rows)
    cell = Cell(result.mean, None, result.scores, result.parts, {}, "s")
    cell = replace(cell, evidence=Evidence(metric, samples, rows, result))
    column = Column("hices", "HICE-S", "hice_s", metric.range)
    paths[0].unlink()
    system = System("A", ["1", "2"], [item.good for item in ITEMS], paths, None, {"hices": cell})
    html = page(Systems([system], [column]))
    assert html.count("<symbol ") == 1 and html.count("<img ") == 1
    assert all(item.good in html for item in ITEMS)


@pytest.mark.parametrize("case", ["hices", "pacs:video", "refpacs:video", "cider"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_evidence_of_one_caption_is_that_of_all(case: str) -> None:
    """Also where the idf table is of all captions."""
    _, _, system, _ = scored(case)
    lazy = next(iter(system.cells.values())).evidence
    assert isinstance(lazy, Evidence) and len(lazy) == 2 and lazy.get(2) is None
    metric = lazy._metric
    every = metric.evidence_of(lazy._samples, lazy._rows, lazy._result.parts)
    for index in range(2):
        assert rounded(lazy[index]) == rounded(every[index])


def rounded(value: Any) -> Any:
    """The same with numbers of eight digits: features of one text and of several differ in the last ones."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return pytest.approx(value, abs=1e-5) if isinstance(value, float) else value


def test_evidence_of_a_file_is_shown_without_drawings() -> None:
    _, _, system, column = scored("hices")
    (cell,) = system.cells.values()
    assert cell.evidence is not None
    plain = {i: dict(cell.evidence[i]) for i in range(2)}
    without = replace(system, images=None, cells={"hices": replace(cell, evidence=plain)})
    html = page(Systems([without], [column]))
    assert "Phrases, the region" in html and not stored(html)
    assert len(re.findall('<svg class="sign', html)) > 4
