from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer

from capeval_core.cache import FeatureCache
from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.visual import InputImage
from capeval_core.phrases.chunks import chunks
from capeval_core.regions.colours import ColourRegions
from capeval_core.weights.catalogue import PROMPT
from capeval_core.weights.folder import TINY
from tools.scenes import COLOURS, SHAPES, draw, masks, sample_scene
from tools.tiny.alpha_clip import (
    GAIN,
    MASKED,
    TRAINING,
    UNMASKED,
    AlphaRecipe,
    build,
    folder_of,
    measure_regions,
    region_contrast,
    train,
)
from tools.tiny.clip_model import SIDE, CaptionCodec
from tools.tiny.command import Comparison
from tools.tiny.lessons import PHRASES, RegionLessons, make_region_lessons

SHORT = AlphaRecipe(scenes=48, steps=16, batch=8, warmup=3)


@pytest.fixture(scope="module")
def tiny() -> AlphaClipEncoder:
    return AlphaClipEncoder.from_pretrained("tiny")


@pytest.fixture(scope="module")
def lessons() -> RegionLessons:
    return make_region_lessons(40, np.random.default_rng(9), CaptionCodec(prompt=""), SIDE)


tokenizer = cache(SimpleTokenizer)


def words(ids: np.ndarray, length: int) -> str:
    return tokenizer().decode(ids[1 : length - 1].tolist()).strip()


def test_the_shipped_model_reads_regions_of_new_seeds(tiny: AlphaClipEncoder) -> None:
    comparisons = measure_regions(tiny, scenes=400, seed=4711)
    assert TRAINING.missed(comparisons) == []
    assert comparisons[MASKED].trials > 500
    assert comparisons[MASKED].right > comparisons[MASKED].wrong + 0.3


def test_the_shipped_model_is_small(tiny: AlphaClipEncoder) -> None:
    files = list(TINY.rglob("*.safetensors"))
    assert (TINY / "hices" / "model.safetensors").stat().st_size <= 8_000_000
    assert sum(file.stat().st_size for file in files) < 30_000_000


def test_the_shipped_model_reads_colour_segments_as_it_reads_masks(tiny: AlphaClipEncoder) -> None:
    scenes = [sample_scene(np.random.default_rng([6, index])) for index in range(30)]
    shown = [InputImage.of(draw(scene), where="scene") for scene in scenes]
    cache = FeatureCache(0)
    of_segments = tiny.encode_regions(shown, ColourRegions(), cache=cache)
    of_masks = tiny.encode_regions(shown, map(masks, scenes), cache=cache)
    for features, expected in zip(of_segments, of_masks, strict=True):
        a, b = (
            part / np.linalg.norm(part, axis=1, keepdims=True)
            for part in (features.regions, expected.regions)
        )
        assert len(a) == len(b) and (b @ a.T).max(axis=1).min() > 0.9


def test_a_short_tuning_lowers_the_loss_and_is_the_same_again() -> None:
    model, losses = train(SHORT, seed=3)
    again, losses_again = train(SHORT, seed=3)
    assert losses == losses_again
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True)
    )
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert model.visual.conv1_alpha.weight.abs().max() > 0


def test_it_starts_as_the_clip_that_it_is_tuned_from(tmp_path: Path) -> None:
    encoder = folder_of(build(0), "a test")
    encoder.save_pretrained(tmp_path)
    saved = AlphaClipEncoder.from_pretrained(tmp_path)
    scene = sample_scene(np.random.default_rng(1))
    shown = [InputImage.of(draw(scene, SIDE), where="scene")]  # at its own size nothing is resized
    (features,) = saved.encode_regions(shown, [masks(scene, SIDE)], cache=FeatureCache(0))
    (expected,) = ClipEncoder.from_pretrained("tiny").encode_images(shown)
    for row in (features.whole, *features.regions):
        np.testing.assert_allclose(row, expected.features[0], atol=1e-4)
    assert saved.config["source"]["licence"] == "apache-2.0"


def test_true_phrases_are_said_and_false_ones_are_not(lessons: RegionLessons) -> None:
    for row in range(len(lessons.pixels)):
        for slot, length in enumerate(lessons.phrase_lengths[row]):
            if length:
                text = words(lessons.phrases[row, slot], length)
                bits = int(lessons.kinds[row, slot])
                for shape_at, shape in enumerate(SHAPES):
                    named = bits >> shape_at * len(COLOURS) & 0xFF
                    assert (shape in text.replace("crosses", "cross")) == bool(named), text
                if slot < PHRASES:
                    assert bits & int(lessons.members[row]), text
    true, false = lessons.phrase_lengths[:, :PHRASES] > 0, lessons.phrase_lengths[:, PHRASES:] > 0
    assert true.any(axis=1).all() and false.any(axis=1).all()


def test_most_phrases_are_as_the_rules_word_them(lessons: RegionLessons) -> None:
    learnt = [
        words(lessons.phrases[row, slot], length)
        for row in range(len(lessons.pixels))
        for slot, length in enumerate(lessons.phrase_lengths[row])
        if length
    ]
    as_asked = sum(text in [chunk.text for chunk in chunks(f"there is {text}")] for text in learnt)
    assert as_asked > 0.6 * len(learnt)
    assert any(" is " in text for text in learnt), "some are worded as scene graphs are"


def test_masks_lie_on_their_objects(lessons: RegionLessons) -> None:
    colours = np.array(list(COLOURS.values()), dtype=float)
    for row in range(len(lessons.pixels)):
        for slot, bit in enumerate(lessons.objects[row]):
            covered = lessons.masks[row, slot] > 250
            if not bit:
                assert not covered.any()
            elif covered.any():
                colour = lessons.pixels[row][covered].mean(axis=0)
                nearest = int(np.abs(colours - colour).sum(axis=1).argmin())
                assert nearest == (int(bit).bit_length() - 1) % len(COLOURS)


def test_captions_carry_no_prompt(lessons: RegionLessons) -> None:
    caption = words(lessons.captions[0, 0, 0], lessons.lengths[0, 0, 0])
    assert caption and not caption.startswith(PROMPT.strip().lower())


def test_the_loss_of_regions() -> None:
    regions, true = torch.eye(2), torch.eye(2)
    untrue = torch.tensor([[0.0, 1.0]])
    fits, fits_untrue = torch.eye(2, dtype=torch.bool), torch.tensor([[False], [True]])
    wrong, right = np.exp(0.0), np.exp(2.0)
    plain = -np.log(right / (right + wrong))
    first = -np.log(right / (right + 2 * wrong))  # beside the other phrase a false one
    expected = 0.5 * ((first + plain) / 2 + plain)
    loss = region_contrast(regions, true, untrue, fits, fits_untrue, 2.0)
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    everything = torch.ones(2, 2, dtype=torch.bool)
    nothing = region_contrast(regions, true, untrue, everything, torch.ones(2, 1, dtype=torch.bool), 2.0)
    assert nothing.item() == pytest.approx(0)


def test_a_shortfall_is_named() -> None:
    row = Comparison.of([0.5, 0.5, 0.5], [0.5, 0.4, 0.6])
    comparisons = dict.fromkeys([*TRAINING.required, UNMASKED], row)
    missed = TRAINING.missed(comparisons)
    assert len(missed) == len(TRAINING.required) + 1 and f"required are {GAIN:.0%}" in missed[-1]
    assert "33.3%" in TRAINING.table(comparisons)
