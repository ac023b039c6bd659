"""PAC-S, RefPAC-S, CLIP-S and RefCLIP-S: their formulas, prompts, and what weights say of themselves."""

from __future__ import annotations

import json
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
from capeval_core.scores.pac import pac_score, ref_pac_score
from tests.support.seeded import write_config

COSINES = st.floats(-1, 1)


@given(COSINES, COSINES, st.floats(0.1, 10))
def test_eq_1_and_4(cosine: float, reference: float, w: float) -> None:
    pac = pac_score(np.array([cosine]), w)
    assert pac[0] == w * max(cosine, 0)
    (score,) = ref_pac_score(pac, np.array([reference]))
    a, b = float(pac[0]), max(reference, 0)
    low = 1e-150  # whose product is too small for a double
    assert score == pytest.approx(2 * a * b / (a + b) if min(a, b) > low else 0, abs=1e-140)
    assert 0 <= score <= 2 * w / (w + 1) + 1e-12
    assert min(a, b) - 1e-12 <= score <= max(a, b) + 1e-12 or score == pytest.approx(0, abs=1e-140)


def load(name: str, weights: str, **options: Any) -> Any:
    return capeval_core.load(name, weights=weights, device="cpu", cache=FeatureCache(), **options)


def test_the_nearest_reference_counts(weights: str, images: list[Path]) -> None:
    metric = load("refpacs", weights, evidence=True)
    references = ["a cat sits", "two red circles on white", "two red circles"]
    result = metric.score(["two red circles"], images[:1], [references])
    alone = [metric.score(["two red circles"], images[:1], [one]) for one in references]
    cosines = [single.parts["reference_cosine"][0] for single in alone]
    assert result.parts["reference_cosine"][0] == pytest.approx(max(cosines), abs=1e-6)
    assert max(cosines) == pytest.approx(1, abs=1e-6)  # a caption as its own reference
    expected = {
        text: pytest.approx(cosine, abs=1e-6) for text, cosine in zip(references, cosines, strict=True)
    }
    assert result.explain(0)["references"] == expected


def changed(seeded_weights: Path, folder: Path, **changes: Any) -> str:
    """A copy of the weights with another config."""
    path = Path(shutil.copytree(seeded_weights, folder / "weights"))
    config = json.loads((path / "config.json").read_text())
    write_config(path, {name: value for name, value in {**config, **changes}.items() if value is not None})
    return str(path)


def test_the_prompt_is_the_weights_own_unless_one_is_given(
    seeded_weights: Path, images: list[Path], tmp_path: Path
) -> None:
    own, usual = "two red circles and ", "A photo depicts "
    weights = changed(seeded_weights, tmp_path, constants={"prompt": own})
    with_own = load("refpacs", weights)
    result = with_own.score(["a dog"], images[:1], [["a cat"]])
    scores = {
        prompt: load("refpacs", weights, prompt="").score(
            [f"{prompt}a dog"], images[:1], [[f"{prompt}a cat"]]
        )
        for prompt in (own, usual, "")
    }
    for part in ("cosine", "reference_cosine"):  # references take the prompt, too
        assert result.parts[part] == pytest.approx(scores[own].parts[part], abs=1e-6)
        for other in (usual, ""):
            assert abs(result.parts[part][0] - scores[other].parts[part][0]) > 1e-4
    given = load("refpacs", weights, prompt=usual).score(["a dog"], images[:1], [["a cat"]])
    assert given.parts["cosine"] == pytest.approx(scores[usual].parts["cosine"], abs=1e-6)
    assert load("refpacs", weights, prompt=own).signature() == with_own.signature()
    without = changed(seeded_weights, tmp_path / "without", constants=None)
    assert all(
        load(name, without).options.prompt == usual for name in ("pacs", "refpacs", "clips", "refclips")
    )


@pytest.mark.parametrize(
    ("metric", "names", "repository"),
    [
        ("clips", ("ViT-B-32", "openai/clip-vit-base-patch32"), "timm/vit_base_patch32_clip_224.openai"),
        ("refclips", ("ViT-L/14", "openai/clip-vit-large-patch14"), "timm/vit_large_patch14_clip_224.openai"),
        ("clips", ("RN50",), "timm/resnet50_clip.openai"),
        ("pacs", ("tinny", "Tiny"), "tiny"),
    ],
)
def test_names_of_the_field_lead_to_the_weights_of_the_metric(
    metric: str, names: tuple[str, ...], repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in names:
        with pytest.raises(ValueError, match=re.escape(f"did you mean {repository!r}?")):
            capeval_core.load(metric, weights=name)
