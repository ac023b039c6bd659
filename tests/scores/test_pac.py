"""The formulas of PAC-S and RefPAC-S, and what is special to these two and to CLIP-S."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.inputs.samples import check_samples
from capeval_core.registry import metric_class
from capeval_core.scores.pac import pac_score, ref_pac_score
from capeval_core.weights.catalogue import ALPHA_L14, CLIP_B32, PACS_B32
from capeval_core.weights.folder import WeightsError
from tests.support.seams import LIMITS
from tests.support.seeded import write_config

COSINES = st.floats(-1, 1)


@given(COSINES, st.floats(0, 10))
def test_eq_1(cosine: float, w: float) -> None:
    (score,) = pac_score(np.array([cosine]), w)
    assert score == w * max(cosine, 0)
    assert 0 <= score <= w


@given(COSINES, COSINES, st.floats(0.1, 10))
def test_eq_4(cosine: float, reference: float, w: float) -> None:
    pac = pac_score(np.array([cosine]), w)
    (score,) = ref_pac_score(pac, np.array([reference]))
    a, b = float(pac[0]), max(reference, 0)
    low = 1e-150  # whose product is too small for a double
    assert score == pytest.approx(2 * a * b / (a + b) if min(a, b) > low else 0, abs=1e-140)
    assert 0 <= score <= 2 * w / (w + 1) + 1e-12
    assert min(a, b) - 1e-12 <= score <= max(a, b) + 1e-12 or score == pytest.approx(0, abs=1e-140)


def test_as_released_is_without_the_maximum() -> None:
    pac, nearest = np.array([0.8, 0.8, 0.0, 0.3]), np.array([0.5, -0.2, -0.2, -0.2])
    found = ref_pac_score(pac, nearest, released=True)
    assert found == pytest.approx([2 * 0.8 * 0.5 / 1.3, -0.32 / 0.6, 0, -0.12 / 0.1])
    assert ref_pac_score(pac, nearest) == pytest.approx([found[0], 0, 0, 0])


def test_zero_by_zero_is_defined_and_silent() -> None:
    with np.errstate(all="raise"):
        for released in (False, True):
            found = ref_pac_score(np.array([0.0, 0.0]), np.array([0.0, -0.0]), released=released)
            assert found.tolist() == [0, 0]


def test_failures_stay_failures() -> None:
    assert math.isnan(pac_score(np.array([math.nan]))[0])
    assert math.isnan(ref_pac_score(np.array([math.nan]), np.array([0.5]))[0])


def load(name: str, weights: str, **options: Any) -> Any:
    return capeval_core.load(name, weights=weights, device="cpu", cache=FeatureCache(), **options)


def test_clip_s_is_pac_s_with_another_w(weights: str, images: list[Path]) -> None:
    captions, references = ["a dog", "two red circles"], [["a cat", "a dog runs"], ["circles"]]
    pac = load("pacs", weights).score(captions, images[:2])
    clip = load("clips", weights).score(captions, images[:2])
    assert clip.scores == pytest.approx([score * 1.25 for score in pac.scores])
    assert load("clips", weights, w=2.0).score(captions, images[:2]).scores == pac.scores
    ref_pac = load("refpacs", weights).score(captions, images[:2], references)
    ref_clip = load("refclips", weights, w=2.0).score(captions, images[:2], references)
    assert ref_clip.scores == ref_pac.scores and ref_clip.key != ref_pac.key


def test_the_nearest_reference_counts(weights: str, images: list[Path]) -> None:
    metric = load("refpacs", weights, evidence=True)
    references = ["a cat sits", "two red circles on white", "a man"]
    result = metric.score(["two red circles"], images[:1], [references])
    alone = [metric.score(["two red circles"], images[:1], [one]) for one in references]
    cosines = [single.parts["reference_cosine"][0] for single in alone]
    assert result.parts["reference_cosine"][0] == pytest.approx(max(cosines), abs=1e-6)
    assert result.explain(0)["references"] == {
        text: pytest.approx(cosine, abs=1e-6) for text, cosine in zip(references, cosines, strict=True)
    }
    pac = load("pacs", weights).score(["two red circles"], images[:1])
    assert result.parts["pac_s"][0] == pytest.approx(pac.scores[0], abs=1e-6)


def test_a_caption_as_its_own_reference_has_cosine_one(weights: str, images: list[Path]) -> None:
    result = load("refpacs", weights).score(["a dog runs"], images[:1], [["a cat", "a dog runs"]])
    assert result.parts["reference_cosine"] == [pytest.approx(1, abs=1e-6)]


def test_the_prompt_is_the_weights_own_unless_one_is_given(
    seeded_weights: Path, images: list[Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(seeded_weights, tmp_path / "weights"))
    config = json.loads((folder / "config.json").read_text())
    own, usual = "two red circles and ", config["constants"]["prompt"]
    config["constants"]["prompt"] = own
    write_config(folder, config)
    with_own = load("refpacs", str(folder))
    result = with_own.score(["a dog"], images[:1], [["a cat"]])
    assert f"|prompt:{own.strip()}" in result.signature or repr(own) in result.signature
    scores = {
        prompt: load("refpacs", str(folder), prompt="").score(
            [f"{prompt}a dog"], images[:1], [[f"{prompt}a cat"]]
        )
        for prompt in (own, usual, "")
    }
    for part in ("cosine", "reference_cosine"):
        assert result.parts[part] == pytest.approx(scores[own].parts[part], abs=1e-6)
        for other in (usual, ""):
            assert abs(result.parts[part][0] - scores[other].parts[part][0]) > 1e-4
    given = load("refpacs", str(folder), prompt=usual).score(["a dog"], images[:1], [["a cat"]])
    assert given.parts["cosine"] == pytest.approx(scores[usual].parts["cosine"], abs=1e-6)
    assert load("refpacs", str(folder), prompt=own).signature() == with_own.signature()


def test_references_take_the_prompt_too(weights: str, images: list[Path]) -> None:
    metric, bare = load("refpacs", weights), load("refpacs", weights, prompt="")
    prompt = metric.options.prompt
    with_it = metric.score(["a dog"], images[:1], [["a cat"]])
    by_hand = bare.score([f"{prompt}a dog"], images[:1], [[f"{prompt}a cat"]])
    assert by_hand.parts["reference_cosine"] == pytest.approx(with_it.parts["reference_cosine"], abs=1e-6)


def test_windows_of_texts_change_nothing(
    weights: str, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    captions = ["a dog", "a cat", "two circles", "a man", "shapes"]
    references = [["one"], ["one", "two", "three", "four"], ["one"], ["a", "b"], ["c"]]
    usual = load("refpacs", weights).score(captions, images[:5], references)
    for texts in (1, 3, 4):
        monkeypatch.setattr(LIMITS, "texts", texts)
        found = load("refpacs", weights).score(captions, images[:5], references)
        assert found.scores == pytest.approx(usual.scores, abs=1e-6)
        assert found.groups == usual.groups


def test_unknown_weights_are_an_error_and_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    for weights in ("tinny", "Tiny", "pacs-clip-vit-b-32"):
        with pytest.raises(WeightsError, match="did you mean"):
            capeval_core.load("pacs", weights=weights)


@pytest.mark.parametrize(
    ("metric", "names", "repository"),
    [
        ("clips", ("ViT-B-32", "ViT-B/32", "openai/clip-vit-base-patch32"), CLIP_B32.repository),
        ("refclips", ("ViT-L/14", "openai/clip-vit-large-patch14"), "timm/vit_large_patch14_clip_224.openai"),
        ("clips", ("RN50",), "timm/resnet50_clip.openai"),
        ("pacs", ("ViT-B-32", "ViT-B/32", "openai/clip-vit-base-patch32"), PACS_B32.repository),
        ("hices", ("ViT-L/14", "openai/clip-vit-large-patch14"), ALPHA_L14.repository),
    ],
)
def test_names_of_the_field_lead_to_the_weights_of_the_metric(
    metric: str, names: tuple[str, ...], repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in names:
        with pytest.raises(WeightsError, match=re.escape(f"did you mean {repository!r}?")):
            capeval_core.load(metric, weights=name)


def test_each_paper_has_its_own_prompt(
    seeded_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(seeded_weights, tmp_path / "weights"))
    config = json.loads((folder / "config.json").read_text())
    del config["constants"]
    write_config(folder, config)
    metrics = ("pacs", "refpacs", "clips", "refclips")
    assert {load(name, str(folder)).options.prompt for name in metrics} == {"A photo depicts "}
    for name, other in (("pacs", "clips"), ("clips", "pacs")):
        monkeypatch.setattr(metric_class(name), "PROMPT", f"by {name}: ")
        assert load(name, str(folder)).options.prompt == f"by {name}: "
        assert load(other, str(folder)).options.prompt != f"by {name}: "


@pytest.mark.parametrize(("name", "free"), [("refpacs", "pac_s"), ("refclips", "clip_s")])
def test_the_reference_free_part_has_its_own_name(
    name: str, free: str, weights: str, images: list[Path]
) -> None:
    result = load(name, weights).score(["two red circles"], images[:1], ["a dog"])
    assert list(result.parts) == ["cosine", free, "reference_cosine"]
    alone = load(free.replace("_", ""), weights).score(["two red circles"], images[:1])
    assert result.parts[free] == pytest.approx(alone.scores, abs=1e-6)


def test_evidence_goes_with_its_row_in_whatever_order_samples_come(weights: str, images: list[Path]) -> None:
    metric = load("refpacs", weights, evidence=True)
    samples = check_samples(
        ["one", "two", "three"], images[:3], [["a"], ["b"], ["c"]], needs_references=True
    ).select([2, 0, 1])
    result = metric.combine(metric.encode_all(samples), samples=samples)
    for i, (caption, reference) in enumerate([("one", "a"), ("two", "b"), ("three", "c")]):
        shown = result.explain(i)
        assert shown["caption"] == caption and list(shown["references"]) == [reference]
        assert shown["cosine"] == result.parts["cosine"][i]


def test_equal_tensors_with_another_activation_sign_differently(seeded_weights: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(seeded_weights, tmp_path / seeded_weights.name))
    config = json.loads((other / "config.json").read_text())
    config["activation"] = "gelu"
    del config["canary"]  # as a folder made by other means would be
    write_config(other, config)
    signatures = [
        capeval_core.load("pacs", weights=path, device="cpu").signature() for path in (seeded_weights, other)
    ]
    assert signatures[0] != signatures[1]
    for signature in signatures:
        assert re.search(r"\|weights:weights@[0-9a-f]{8}\|", signature)


def test_a_prompt_that_leaves_no_room_is_refused(weights: str) -> None:
    with pytest.raises(ValueError, match="leaves no room for a caption"):
        load("pacs", weights, prompt="x " * 100)
