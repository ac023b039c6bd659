from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from capeval_core.encoders.tokenizers import UNKNOWN
from capeval_core.encoders.uniter import UniterEncoder
from capeval_core.weights.folder import TINY
from tools.captions import describe, read
from tools.scenes import sample_scene
from tools.sets import HELD_OUT, has_held_out, is_held_out_template, split_caption, split_scene
from tools.tiny.region_training import vocabulary, write_scenes
from tools.tiny.umic import UmicRecipe, make_trials, train


@pytest.fixture(scope="module")
def tiny() -> UniterEncoder:
    return UniterEncoder.from_pretrained("tiny", device="cpu")


def test_the_shipped_models_are_small() -> None:
    files = [file for name in ("umic", "scene-regions") for file in (TINY / name).iterdir()]
    assert sum(file.stat().st_size for file in files) < 6_000_000
    assert sum(file.stat().st_size for file in TINY.rglob("*") if file.is_file()) < 30_000_000


def test_no_english_word_is_unknown(tiny: UniterEncoder) -> None:
    texts = [
        "A man's e-mail: 42% off (naïve café)!",
        "zyzzyva_#1 @ $3.50 [x] {y} ~ ^ | \\ `",
        "the Quick brown",
    ]
    unknown = tiny.config["vocabulary"].index(UNKNOWN)
    for text, ids in zip(texts, tiny.tokenizer.encode(texts).ids, strict=True):
        assert unknown not in ids, text
    red, star = (tiny.tokenizer.encode([text]).ids[0] for text in ("a red star", "A RED STAR"))
    assert red == star and len(red) == 5


def test_the_words_of_scenes_are_whole() -> None:
    words = set(vocabulary())
    rng = np.random.default_rng(8)
    for _ in range(300):
        assert {word.strip(",") for word in describe(sample_scene(rng), rng).split()} <= words


def test_the_training_has_no_held_out_pair_or_template(tmp_path: Path) -> None:
    write_scenes(tmp_path, 40, seed=3)
    rows = [json.loads(line) for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    captions = [caption for row in rows for caption in row["captions"]]
    assert len(captions) == 80 and not any(map(is_held_out_template, captions))
    pairs = {(phrase.shape, phrase.colour) for caption in captions for phrase in read(caption)[0]}
    assert pairs and not pairs & HELD_OUT


def test_the_trials_have_them() -> None:
    trials = make_trials(12, seed=6)
    assert all(map(has_held_out, trials.scenes))
    assert sum(is_held_out_template(group.captions[0]) for group in trials.groups) == 6
    again = make_trials(12, seed=6)
    assert trials.groups == again.groups and trials.groups != make_trials(12, seed=7).groups


def test_scenes_and_captions_keep_to_their_side_of_the_split() -> None:
    rng = np.random.default_rng(1)
    for held_out in (True, False):
        scenes = [split_scene(rng, held_out) for _ in range(5)]
        assert [has_held_out(scene) for scene in scenes] == [held_out] * 5
        captions = [split_caption(scene, rng, held_out) for scene in scenes]
        assert [is_held_out_template(caption) for caption in captions] == [held_out] * 5


def test_a_short_training_goes_through_the_command(tmp_path: Path) -> None:
    flags = ("--batch-size", "2", "--accumulation", "1", "--warmup", "1")
    recipe = UmicRecipe(scenes=8, word_steps=2, matching_steps=2, steps=2, flags=flags)
    encoder = train(recipe, seed=3, folder=tmp_path)
    assert encoder.config["training"]["data"] == "drawn scenes"
    assert encoder.config["constants"] == {"regions": "tiny"}
    assert (tmp_path / "run" / "curves.png").is_file()
