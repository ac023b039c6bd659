"""`capeval score --explain`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import capeval_core
from tests.cli.conftest import CAPTIONS, REFERENCES, Ran, refuse_token

NAMES = ["42-1", "dog.1-1", "dog.1-2", "dog.2-1"]


@pytest.fixture
def explain(capeval: Callable[..., Ran], files: Path) -> Callable[..., Ran]:
    """`capeval score METRIC --explain out` on those files with the small weights; further arguments win."""

    def run(metric: str, *arguments: object) -> Ran:
        given = ["--candidates", files / "captions.json", "--images", files / "images", "--weights", "tiny"]
        given += ["--references", files / "references.json"] if metric == "refhices" else []
        return capeval("score", metric, *given, "--explain", files / "out", "--device", "cpu", *arguments)

    return run


@pytest.mark.parametrize("metric", ["hices", "refhices"])
def test_each_caption_gets_a_image_and_its_numbers(
    metric: str, explain: Callable[..., Ran], files: Path
) -> None:
    ran = explain(metric, "--json", files / "scored.json")
    assert ran.status == 0, ran.err
    assert ran.out.splitlines()[-1] == f"explained  4 captions in {files / 'out'}"
    kinds = [f"{name}.{kind}" for name in NAMES for kind in ("json", "png")]
    assert sorted(path.name for path in (files / "out").iterdir()) == kinds
    assert {Image.open(path).width for path in (files / "out").glob("*.png")} == {1280}

    evidence = json.loads((files / "scored.json").read_text(), parse_constant=refuse_token)["evidence"]
    found: list[dict[str, Any]] = [
        json.loads((files / "out" / f"{image_id}-{number + 1}.json").read_text(), parse_constant=refuse_token)
        for image_id, texts in CAPTIONS.items()
        for number in range(len(texts))
    ]
    assert [
        {"id": one["id"], "number": one["number"], **all} for one, all in zip(found, evidence, strict=True)
    ] == found
    assert {Path(one["image"]).name for one in found} == {
        "dog.1.jpg", "dog.2.png", "COCO_val2014_000000000042.png"
    }  # fmt: skip
    assert [one["caption"] for one in found] == [text for texts in CAPTIONS.values() for text in texts]
    if metric == "refhices":
        told = [note["reference"] for note in found[0]["compared"]]
        assert told == REFERENCES["dog.1"]


def test_a_image_that_fails_has_numbers_only(explain: Callable[..., Ran], files: Path) -> None:
    broken = files / "images" / "dog.1.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    ran = explain("hices", "--on-error", "nan")
    assert ran.status == 0
    assert ran.out.splitlines()[-1] == f"explained  2 of 4 captions in {files / 'out'}"
    assert sorted(path.stem for path in (files / "out").glob("*.png")) == ["42-1", "dog.2-1"]
    assert (
        "cannot decode"
        in json.loads((files / "out" / "dog.1-2.json").read_text(), parse_constant=refuse_token)["error"]
    )


def test_what_cannot_be_explained_is_refused_before_anything_is_scored(
    explain: Callable[..., Ran], files: Path
) -> None:
    classes = map(capeval_core.registry.metric_class, capeval_core.list_metrics())
    able = [metric.name for metric in classes if metric.plots]
    variants = capeval_core.registry.variant_classes().items()
    able += [f"{name} --media {medium}" for (name, medium), metric in variants if metric.plots]
    assert "hices" in able
    ran = explain("pacs")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        f"capeval: --explain: what explains pacs cannot be drawn, only that of {', '.join(able)}; "
        "--evidence with --json writes it as numbers\n"
    )
    assert not (files / "out").exists()


def test_a_place_that_will_not_do(explain: Callable[..., Ran], files: Path) -> None:
    used = files / "used"
    used.mkdir()
    (used / "mine.txt").write_text("mine")
    wrong = {
        used: "is not empty: name a new or an empty folder",
        files / "captions.json": "is a file: name a folder",
        files / "captions.json" / "x": "no folder can be made there",
    }
    for place, message in wrong.items():
        ran = explain("hices", "--explain", place)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith(f"capeval: --explain {place}") and message in ran.err
    assert (used / "mine.txt").read_text() == "mine"
    (used / "mine.txt").unlink()
    assert explain("hices", "--explain", used).status == 0
    assert explain("hices", "--explain", used).status == 2  # what a run wrote is not overwritten either
