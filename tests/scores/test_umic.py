"""UMIC: its formula, its sources of box features, what it refuses, and drawn scenes with what ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.cli import main
from capeval_core.demo import demo_set
from capeval_core.testing import count_forwards
from tests.support.seeded import uniter

SCENES = demo_set()[:4]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("umic") / "weights"
    uniter().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Box features of the demo's images, as the embedded region encoder makes them."""
    folder = tmp_path_factory.mktemp("features")
    images = folder / "images"
    images.mkdir()
    for index, scene in enumerate(SCENES):
        (images / f"{index}.png").write_bytes(Path(scene.image).read_bytes())
    words = ["regions", "--images", images, "--out", folder / "boxes", "--weights", "tiny", "--device", "cpu"]
    assert main(list(map(str, words))) == 0
    return folder / "boxes"


def load(weights: str, **options: Any) -> Any:
    return capeval_core.load("umic", weights=weights, device="cpu", cache=FeatureCache(), **options)


def test_words_are_parted_by_all_white_space_of_python(weights: str) -> None:
    """As in the release, which splits captions first; its tokenizer alone drops these characters."""
    marks = [" ", "\t", "\n", "\x0b", "\x0c", *map(chr, range(0x1C, 0x20)), "\x85", "\u2028", "\u3000"]
    found = load(weights).score([f"a red{mark}dog" for mark in marks], [SCENES[0].image] * len(marks))
    joined, kept = load(weights).score(["a reddog", "a red\x00dog"], [SCENES[0].image] * 2).scores
    assert found.scores == [found.scores[0]] * len(marks) and joined == kept != found.scores[0]


def test_features_made_before_score_as_their_images(weights: str, features: Path) -> None:
    captions = [scene.good for scene in SCENES] + [scene.unrelated for scene in SCENES]
    expected = load(weights).score(captions, [scene.image for scene in SCENES] * 2)
    metric = load(weights, regions=str(features))
    with count_forwards() as forwards:
        found = metric.score(captions, ["0", "1.jpg", 2, "somewhere/3.png"] * 2)
    assert found.scores == pytest.approx(expected.scores, abs=1e-6)
    assert len(set(np.round(found.scores, 3))) > 4
    assert forwards.items == 4 + 8  # each image once, each pair once; no image was opened
    assert found.groups[:4] == found.groups[4:] and found.signature != expected.signature
    direct = [{**np.load(features / f"{index}.npz")} for index in range(4)]
    for boxes in direct:
        boxes.update({"selection": "bua10_100"} if "selection" in boxes else {})
    assert load(weights).score(captions, direct * 2).scores == pytest.approx(expected.scores, abs=1e-6)


def test_another_selection_of_boxes_finds_no_scores_of_the_first(weights: str, features: Path) -> None:
    boxes = {name: array for name, array in np.load(features / "1.npz").items() if name != "selection"}
    boxes["scores"] = np.linspace(0.9, 0.21, 40)
    for name in ("boxes", "features"):
        boxes[name] = np.resize(boxes[name], (40, boxes[name].shape[1]))
    boxes = {name: boxes[name] for name in ("boxes", "features", "scores", "size")}
    cache = FeatureCache()

    def score(selection: str, cache: FeatureCache) -> list[float]:
        metric = capeval_core.load(
            "umic", weights=weights, device="cpu", cache=cache, selection=selection, regions="tiny"
        )
        return list(metric.score(["a red dog"], [boxes]).scores)

    first = score("bua10_100", cache)
    assert score("lxmert36", cache) == pytest.approx(score("lxmert36", FeatureCache()), abs=1e-6) != first


def test_an_error_names_the_row_of_its_own_image(weights: str, tmp_path: Path) -> None:
    """Equal images run once, and each of their captions has the error at its own place."""
    broken = Path(SCENES[1].image).read_bytes()[:200]
    images = [SCENES[0].image, broken, SCENES[2].image, broken, broken]
    result = load(weights, on_error="nan").score(["a dog"] * 4 + ["a cat"], images)
    places = {row: reason.partition(":")[0] for row, reason in result.errors.items()}
    assert places == {row: f"images[{row}]" for row in (1, 3, 4)}


def test_an_error_of_stored_boxes_names_the_row_of_its_own_image(weights: str, features: Path) -> None:
    boxes = dict(np.load(features / "1.npz"))
    boxes["selection"] = "lxmert36"
    boxes.pop("image", None)
    images = [SCENES[0].image, boxes, SCENES[2].image, boxes]
    result = load(weights, on_error="nan", selection="bua10_100").score(["a", "b", "c", "d"], images)
    places = {row: reason.partition(":")[0].split(" ")[0] for row, reason in result.errors.items()}
    assert places == {row: f"images[{row}]" for row in (1, 3)}
