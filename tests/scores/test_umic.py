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
from tests.support.seeded import made_up_boxes, uniter

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


def test_all_that_is_missing_or_broken_is_named_and_costs_its_own_captions(
    weights: str, features: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:
        load(weights, regions=str(features)).score(["a dog", "a cat", ""], ["0", "dog", "cat"])
    assert all(where in str(caught.value) for where in ("images[1]", "'dog'", "images[2]", "captions[2]"))
    found = load(weights, regions=str(features), on_error="nan").score(["a dog", "a cat"], ["0", "dog"])
    assert np.isfinite(found.scores).tolist() == [True, False] and "'dog'" in found.errors[1]
    broken = tmp_path / "broken.png"
    broken.write_bytes(Path(SCENES[0].image).read_bytes()[:200])
    wide = made_up_boxes(3, width=65)
    images = [SCENES[0].image, broken, wide, SCENES[0].image, broken, wide]
    found = load(weights, on_error="nan").score(["a dog"] * 3 + ["a cat"] * 3, images)
    assert np.isfinite(found.scores).tolist() == [True, False, False] * 2
    assert all(f"images[{row}]" in found.errors[row] for row in (1, 2, 4, 5))
    boxes = {**made_up_boxes(3), "features": np.full((3, 64), np.nan, dtype=np.float32)}
    with pytest.raises(ValueError, match=r"images\[0\].*features"):
        load(weights).score(["a dog"], [boxes])


def test_the_rule_of_selection_cuts_features_made_before(weights: str, features: Path) -> None:
    """lxmert36 keeps the first 36 boxes, bua10_100 10 to 100 above 0.2: here 40 of 50, and 10 of 12."""
    for confident, total, counts in ((40, 50, {"bua10_100": 40, "lxmert36": 36}), (3, 12, {"bua10_100": 10})):
        boxes = made_up_boxes(total)
        boxes["scores"] = np.concatenate([np.full(confident, 0.9), np.full(total - confident, 0.1)])
        for selection, count in counts.items():
            cut = {**boxes, **{name: boxes[name][:count] for name in ("boxes", "features", "scores")}}
            found = load(weights, selection=selection).score(
                ["a dog"] * 2, [boxes, {**cut, "selection": selection}]
            )
            assert found.scores[0] == pytest.approx(found.scores[1], abs=1e-6)
            chosen = {**boxes, "selection": selection}  # is not chosen again
            whole = load(weights, selection=selection).score(["a dog"] * 2, [boxes, chosen]).scores
            assert abs(whole[0] - whole[1]) > 1e-5
    with pytest.raises(ValueError, match=r"chosen as 'bua10_100': pass selection=\"bua10_100\""):
        load(weights, selection="lxmert36").score(["a dog"], [{**boxes, "selection": "bua10_100"}])
    with pytest.raises(ValueError, match=r"chosen as 'bua10_100': pass selection=\"bua10_100\""):
        load("weights that are not there", regions=str(features), selection="lxmert36")
