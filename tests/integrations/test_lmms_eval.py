"""The tasks for lmms-eval: their files as it reads them, and its steps from documents to numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

import capeval_core
from capeval_core.integrations.coco import CocoScores
from capeval_core.integrations.lmms_eval import TASKS, TEXT_NUMBERS
from capeval_core.registry import METRICS, metric_class
from capeval_core.reranking import Reranker

CAPTIONS = ["a red circle", "two blue squares", "", "a red circle"]
REFERENCES = [["a circle", "a red disc"], ["blue squares"], ["a star"], ["one", "two", "three"]]
NAMES = [
    name for name in METRICS if metric_class(name).media and not issubclass(metric_class(name), Reranker)
]
COLUMNS = {
    "capeval_coco2014_val": "answer",
    "capeval_coco2017_val": "answer",
    "capeval_nocaps_val": "annotations_captions",
    "capeval_flickr30k_test": "caption",
}
"""Each task, and the column of its data set that holds the references."""


class Loader(yaml.SafeLoader):
    """YAML with `!function module.name`, as lmms-eval reads it."""


def function(loader: Any, node: Any) -> Any:
    module, _, name = loader.construct_scalar(node).rpartition(".")
    return getattr(import_module(module), name)


Loader.add_constructor("!function", function)


def task_of(path: Path) -> dict[str, Any]:
    """A task with what its file includes, as lmms-eval merges them."""
    own = yaml.load(path.read_text(), Loader)
    included = yaml.load((path.parent / own.pop("include")).read_text(), Loader)
    return {**included, **own}


def numbers(task: dict[str, Any], images: list[Path], column: str) -> dict[str, float]:
    """Documents to items, items of two processes through JSON as into its logs, items to numbers."""
    items: dict[str, list[Any]] = {}
    for path, caption, references in zip(images, CAPTIONS, REFERENCES, strict=False):
        doc = {"image": Image.open(path), column: references}
        (shown,) = task["doc_to_visual"](doc)
        assert shown.mode == "RGB"
        for name, item in task["process_results"](doc, [caption]).items():
            items.setdefault(name, []).append(json.loads(json.dumps(item)))
    aggregations = {one["metric"]: one["aggregation"] for one in task["metric_list"]}
    return {name: aggregations[name](values) for name, values in items.items()}


@pytest.mark.parametrize("name", COLUMNS)
def test_texts_are_scored_without_weights(
    name: str, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAPEVAL_METRICS", raising=False)
    task = task_of(TASKS / f"{name}.yaml")
    assert task["task"] == name and task["process_results_use_image"] is True
    expected = CocoScores(dict(enumerate(REFERENCES)), {i: [text] for i, text in enumerate(CAPTIONS)}).eval
    assert numbers(task, images, COLUMNS[name]) == pytest.approx(expected, abs=1e-9)


def test_metrics_that_see_the_image_give_the_number_of_the_whole(
    images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPEVAL_METRICS", ",".join(NAMES))
    monkeypatch.setenv("CAPEVAL_WEIGHTS", "tiny")
    found = numbers(task_of(TASKS / "capeval_nocaps_val.yaml"), images[:2], "annotations_captions")
    assert list(found) == [*TEXT_NUMBERS, *(metric_class(name).key for name in NAMES)]
    for name in NAMES:
        metric = capeval_core.load(name, weights="tiny", empty="score")
        references = REFERENCES[:2] if metric.needs_references else None
        expected = metric.score(CAPTIONS[:2], images[:2], references).mean
        assert found[metric.key] == pytest.approx(expected, abs=1e-6), name


def test_every_number_has_its_aggregation() -> None:
    assert {path.stem for path in TASKS.glob("*.yaml")} == COLUMNS.keys()
    for path in TASKS.glob("*.yaml"):
        task = task_of(path)
        keys = [metric_class(name).key for name in NAMES]
        assert [one["metric"] for one in task["metric_list"]] == [*TEXT_NUMBERS, *keys]
        assert task["doc_to_target"] == COLUMNS[path.stem]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("pasc", "unknown metric 'pasc': did you mean 'pacs'"),
        ("rougel", "CAPEVAL_METRICS='rougel': rougel compares texts alone: BLEU, ROUGE-L and CIDEr-D are"),
        ("eco", "during training"),
    ],
)
def test_wrong_metrics_are_refused_at_the_first_document(
    names: str, message: str, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPEVAL_METRICS", names)
    with pytest.raises(ValueError, match=re.escape(message)):
        numbers(task_of(TASKS / "capeval_coco2017_val.yaml"), images, "answer")


@pytest.mark.system
def test_the_folder_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "capeval_core.integrations.lmms_eval"], capture_output=True, text=True
    )
    assert Path(done.stdout.strip()) == TASKS, done.stderr
