"""UMIC's formula, its sources of box features, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.demo import demo_set
from capeval_core.encoders.scene_regions import SceneRegionEncoder
from capeval_core.errors import FileError, InputError
from capeval_core.inputs.visual import InputImage
from capeval_core.models.batching import count_forwards
from capeval_core.regions.features import BoxVisual
from capeval_core.scores.umic import umic_score
from capeval_core.weights.folder import WeightsError
from tests.support.seeded import made_up_boxes, uniter, write_config

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
    encoder = SceneRegionEncoder.from_pretrained("tiny", device="cpu")
    for index, found in enumerate(encoder.encode_boxes([InputImage.of(scene.image) for scene in SCENES])):
        boxes = found.load()
        np.savez(
            folder / f"{index}.npz",
            boxes=boxes.boxes,
            features=boxes.features,
            size=np.array(boxes.size),
            scores=boxes.scores,
        )
    return folder


def load(weights: str, **options: Any) -> Any:
    return capeval_core.load("umic", weights=weights, device="cpu", cache=FeatureCache(), **options)


def test_the_score_is_the_sigmoid_of_the_logit() -> None:
    assert umic_score(np.array([0.0, 2.0, -2.0])) == pytest.approx(
        [0.5, 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))]
    )
    with np.errstate(all="raise"):
        assert umic_score(np.array([1000.0, -1000.0])).tolist() == [1.0, 0.0]
    assert np.isnan(umic_score(np.array([np.nan]))).all()


def test_words_are_parted_by_all_white_space_of_python(weights: str) -> None:
    """As in the release, which splits captions first; its tokenizer alone drops these characters."""
    marks = [" ", "\t", "\n", "\x0b", "\x0c", *map(chr, range(0x1C, 0x20)), "\x85", "\u2028", "\u3000"]
    found = load(weights).score([f"a red{mark}dog" for mark in marks], [SCENES[0].image] * len(marks))
    joined, kept = load(weights).score(["a reddog", "a red\x00dog"], [SCENES[0].image] * 2).scores
    assert found.scores == [found.scores[0]] * len(marks) and joined == kept != found.scores[0]


def test_features_made_before_score_as_their_images(weights: str, features: Path) -> None:
    captions = [scene.good for scene in SCENES] + [scene.unrelated for scene in SCENES]
    images = [scene.image for scene in SCENES] * 2
    expected = load(weights).score(captions, images)
    metric = load(weights, regions=str(features))
    with count_forwards() as forwards:
        found = metric.score(captions, ["0", "1.jpg", 2, "somewhere/3.png"] * 2)
    assert found.scores == pytest.approx(expected.scores, abs=1e-6)
    assert len(set(np.round(found.scores, 3))) > 4
    assert forwards.items == 4 + 8  # each image once, each pair once; no image was opened
    assert found.groups[:4] == found.groups[4:]
    assert found.signature != expected.signature
    direct = [{**np.load(features / f"{index}.npz")} for index in range(4)]
    assert load(weights).score(captions, direct * 2).scores == pytest.approx(expected.scores, abs=1e-6)


def test_all_missing_ids_are_named_at_once(weights: str, features: Path) -> None:
    metric = load(weights, regions=str(features))
    with pytest.raises(InputError) as caught:
        metric.score(["a dog", "a cat", ""], ["0", "dog", "cat"])
    message = str(caught.value)
    assert "images[1]" in message and "'dog'" in message
    assert "images[2]" in message and "'cat'" in message and "captions[2] is empty" in message
    found = load(weights, regions=str(features), on_error="nan").score(["a dog", "a cat"], ["0", "dog"])
    assert np.isfinite(found.scores[0]) and np.isnan(found.scores[1]) and "'dog'" in found.errors[1]


def test_a_broken_image_costs_its_own_captions_each_named(weights: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(Path(SCENES[0].image).read_bytes()[:200])
    images = [SCENES[0].image, broken, SCENES[0].image, broken]
    found = load(weights, on_error="nan").score(["a dog", "a dog", "a cat", "a cat"], images)
    assert np.isfinite(found.scores).tolist() == [True, False, True, False]
    assert "images[1]" in found.errors[1] and "images[3]" in found.errors[3]
    boxes = {**made_up_boxes(3), "features": np.full((3, 64), np.nan, dtype=np.float32)}
    with pytest.raises(InputError, match=r"images\[0\].*features"):
        load(weights).score(["a dog"], [boxes])


def test_equal_box_features_that_fail_are_named_each(weights: str) -> None:
    wide = made_up_boxes(3, width=65)
    found = load(weights, on_error="nan").score(["a", "b", "c"], [wide, made_up_boxes(3), wide])
    assert "images[0]" in found.errors[0] and "images[2]" in found.errors[2]


@pytest.mark.parametrize(
    ("regions", "error", "message"),
    [
        ("missing.tsv", FileError, "there is no such file or folder"),
        ("no such thing", WeightsError, "neither a folder, nor a Hub id"),
        (7, TypeError, "regions"),
    ],
)
def test_a_wrong_source_is_refused_before_weights(regions: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        capeval_core.load("umic", weights="weights that are not there", regions=regions)


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ("", "regions='' is empty: expected weights of a region encoder"),
        ("x" * 5_000, "xxx...' is no path that can be looked up (File name too long)"),
        ("~nobody of that name/x", "is neither a folder, nor a Hub id"),
        ("no such thing", "regions='no such thing' is neither a folder, nor a Hub id"),
    ],
)
def test_a_source_that_is_no_path_is_named(weights: str, regions: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(weights, regions=regions)
    assert message in str(caught.value) and len(str(caught.value)) < 1_000


def test_a_region_encoder_that_breaks_its_contract(weights: str) -> None:
    class Few:
        fingerprint: Any = "few"

        def encode_boxes(self, images: Any, **_: Any) -> Any:
            return iter(())

    with pytest.raises(ValueError, match=r"the region encoder Few@.* gave boxes of fewer images than it was"):
        load(weights, regions=Few()).score(["a dog"], [SCENES[0].image])

    class Odd(Few):
        fingerprint = "odd"

        def encode_boxes(self, images: Any, **_: Any) -> Any:
            return (5 for _ in images)

    with pytest.raises(TypeError, match=r"the region encoder Odd@.* gave the number 5, expected a BoxVisual"):
        load(weights, regions=Odd()).score(["a dog"], [SCENES[0].image])
    Few.fingerprint = 5
    with pytest.raises(TypeError, match="whose fingerprint is the number 5: expected a text"):
        load(weights, regions=Few())


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (np.full((1, 69), 40.0), r"images\[0\]: the detector found no box in"),
        (np.full((3, 69), np.nan), r"images\[0\]: features of .* are not finite"),
    ],
)
def test_no_caption_is_scored_without_boxes(weights: str, packed: Any, message: str) -> None:
    """The network would read the caption alone, and give a number."""

    class Encoder:
        fingerprint = "none"

        def encode_boxes(self, images: Any, **_: Any) -> Any:
            for image in images:
                yield BoxVisual(image.where, image.name, image.key, None, "key", packed.astype(np.float32))

    with pytest.raises(InputError, match=message):
        load(weights, regions=Encoder()).score(["a dog"], [SCENES[0].image])


@pytest.mark.parametrize("constants", [[], {"regions": 5}, {"regions": None}, {"regions": "FEATURES"}])
def test_weights_that_name_no_region_encoder(constants: Any, features: Path, tmp_path: Path) -> None:
    if constants == {"regions": "FEATURES"}:
        constants = {"regions": str(features)}
    uniter().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    write_config(tmp_path, {**config, "constants": constants})
    with pytest.raises(WeightsError, match=r"in the config, constants\.regions names no weights of a region"):
        load(str(tmp_path))


def test_weights_that_find_no_boxes_are_refused(weights: str) -> None:
    with pytest.raises(ValueError, match="finds no boxes"):
        load(weights, regions=weights)


def test_the_rule_of_selection_cuts_features_made_before(weights: str) -> None:
    """lxmert36 keeps the first 36 boxes, bua10_100 those above 0.2: here 40 of 50."""
    boxes = made_up_boxes(50)
    boxes["scores"] = np.concatenate([np.full(40, 0.9), np.full(10, 0.1)]).astype(np.float32)
    for selection, count in (("bua10_100", 40), ("lxmert36", 36)):
        cut = {**boxes, **{name: boxes[name][:count] for name in ("boxes", "features", "scores")}}
        found = load(weights, selection=selection).score(["a dog", "a dog"], [boxes, cut])
        assert found.scores[0] == pytest.approx(found.scores[1], abs=1e-6)
        usual = load(weights).score(["a dog"] * 2, [boxes, cut]).scores
        assert (usual[0] == pytest.approx(usual[1], abs=1e-6)) is (selection == "bua10_100")


def test_an_explanation_outlines_the_boxes(weights: str, features: Path) -> None:
    found = load(weights, evidence=True).score([SCENES[0].good], [SCENES[0].image]).explain(0)
    assert 10 <= len(found["boxes"]) <= 13 and np.isfinite(found["logit"])
    plain = np.asarray(InputImage.of(SCENES[0].image).load().convert("RGB").resize((880, 880)))
    drawn = np.asarray(found.plot(880))
    assert (
        drawn.shape == (880, 880, 3)
        and 0.01 < (np.abs(drawn.astype(int) - plain).max(axis=2) > 60).mean() < 0.2
    )
    alone = load(weights, evidence=True, regions=str(features)).score(["a dog"], ["0"]).explain(0)
    with pytest.raises(ValueError, match="no image to draw"):
        alone.plot()
