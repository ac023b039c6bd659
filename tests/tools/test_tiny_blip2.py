from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from capeval_core.cache import FeatureCache
from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.blip2_model import image_states
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.tokenizers import UNKNOWN
from capeval_core.inputs.visual import InputImage
from capeval_core.weights.folder import TINY
from tools.captions import KINDS, describe, foils, holds
from tools.scenes import draw, sample_scene
from tools.tiny.blip2 import (
    FIRST,
    PROBABLE,
    REQUIRED,
    TRAINING,
    Blip2Recipe,
    choose_texts,
    folder_of,
    measure_matching,
    train,
)
from tools.tiny.blip2_model import VISION_LAYERS, Codec, build, vocabulary
from tools.tiny.clip_model import CELLS, SIDE, normalised
from tools.tiny.command import Comparison
from tools.tiny.lessons import LONGEST, Captions, Lessons, make_lessons, shrink

SHORT = Blip2Recipe(scenes=40, steps=14, batch=6, warmup=3)


@pytest.fixture(scope="module")
def tiny() -> Blip2Encoder:
    return Blip2Encoder.from_pretrained("tiny")


@pytest.fixture(scope="module")
def lessons() -> Lessons:
    return make_lessons(60, np.random.default_rng(9), Codec(vocabulary()), SIDE, CELLS)


def test_the_shipped_model_reads_scenes_of_new_seeds(tiny: Blip2Encoder) -> None:
    comparisons = measure_matching(tiny, scenes=300, seed=4711)
    assert [name for name in REQUIRED if comparisons[name].accuracy < REQUIRED[name] - 0.03] == [], (
        TRAINING.table(comparisons)
    )
    assert comparisons[PROBABLE].accuracy > 0.8
    assert comparisons["another scene"].right > comparisons["another scene"].wrong + 0.5


def test_the_shipped_model_is_small(tiny: Blip2Encoder) -> None:
    files = list(TINY.rglob("*.safetensors"))
    assert (TINY / "blip2" / "model.safetensors").stat().st_size <= 6_000_000
    assert sum(file.stat().st_size for file in files) < 30_000_000
    assert tiny.config["source"]["licence"] == "apache-2.0"


def test_an_unknown_word_or_disorder_makes_a_caption_less_probable(tiny: Blip2Encoder) -> None:
    rng = np.random.default_rng(12)
    worlds = [sample_scene(rng) for _ in range(40)]
    pools = []
    for world in worlds:
        words = describe(world, rng).replace(",", " ,").split()
        disorder = " ".join(rng.permutation(words))
        pools.append([" ".join(words), disorder, "a man rides a horse on the beach"])
    shown = [InputImage.of(draw(world)) for world in worlds]
    probabilities = np.stack([part.itm for part in tiny.match(shown, pools, cache=FeatureCache(0))])
    assert (probabilities[:, :1] > probabilities[:, 1:]).mean(axis=0).min() > 0.8


def test_a_short_training_lowers_the_loss_and_is_the_same_again() -> None:
    model, words, losses = train(SHORT, seed=3)
    again, words_again, losses_again = train(SHORT, seed=3)
    assert (losses, words) == (losses_again, words_again)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True)
    )
    assert np.mean(losses[-4:]) < np.mean(losses[:4])


def test_the_image_tower_starts_as_that_of_tiny() -> None:
    clip = ClipEncoder.from_pretrained("tiny", device="cpu")
    rng = np.random.default_rng(3)
    drawn = np.stack([shrink(draw(sample_scene(rng), 128), SIDE) for _ in range(20)])
    visual = clip.model.visual
    with torch.inference_mode():
        expected = visual.embed(normalised(drawn))
        for block in list(visual.transformer.resblocks)[:VISION_LAYERS]:
            expected = block(expected)
        states = image_states(build(vocabulary(), 0), normalised(drawn))
    assert (
        functional.cosine_similarity(states, expected - expected.mean(-1, keepdim=True), dim=-1).mean() > 0.98
    )


def test_the_folder_opens_as_it_was_saved(tmp_path: Path) -> None:
    words = vocabulary()
    encoder = folder_of(build(words, 0), words, "a test")
    encoder.save_pretrained(tmp_path)
    saved = Blip2Encoder.from_pretrained(tmp_path)
    assert (
        saved.tokenizer.encode(["A red circle, a dog."]).ids
        == encoder.tokenizer.encode(["a red circle , a dog ."]).ids
    )
    assert len(words) < 100 and all(word == word.lower() for word in words[4:])


def test_every_word_of_captions_and_foils_is_known() -> None:
    tokenizer, rng = Blip2Encoder.from_pretrained("tiny").tokenizer, np.random.default_rng(77)
    unknown = vocabulary().index(UNKNOWN)
    for _ in range(200):
        world = sample_scene(rng)
        caption = describe(world, rng)
        texts = [caption, *(text for kind in KINDS for text in foils(world, caption, kind))]
        tokens = tokenizer.encode(texts)
        assert not any(unknown in ids for ids in tokens.ids) and not any(tokens.truncated)


def test_the_texts_of_a_step(lessons: Lessons) -> None:
    words = vocabulary()
    rows, rng = np.arange(12), np.random.default_rng(4)
    captions = Captions.choose(lessons, rows, 0, 4, rng)
    texts = choose_texts(lessons, captions, words, 0.5, rng)
    assert texts.true.sum(axis=1).tolist() == [2] * 12 and texts.ids.shape == (12, 8, LONGEST)
    for row in range(12):
        caption = texts.ids[row, 0]
        assert (lessons.tokens[rows[row], 0, 0] == caption).all()
        for slot in range(2, 6):
            if texts.lengths[row, slot]:
                false = texts.false_words[row, slot]
                assert false.sum() == 1 and (texts.ids[row, slot] != caption).tolist() == false.tolist()
            else:
                assert not texts.false_words[row, slot].any()
        spoilt = texts.ids[row, -2]
        assert sorted(spoilt) == sorted(caption) or words[spoilt[texts.false_words[row, -2]][0]] == UNKNOWN
        if texts.lengths[row, -1]:
            there = [place for place in rows if (lessons.tokens[place, 0, 0] == texts.ids[row, -1]).all()]
            assert there and not captions.alike[row, there[0]]


def test_the_report_counts_fairly() -> None:
    class Knowing:
        """Knows every scene, by the judge."""

        def match(self, images, pools, cache):  # type: ignore[no-untyped-def]
            from capeval_core.encoders.blip2 import Matches

            rng = np.random.default_rng([1, 6])
            for world, pool in zip([sample_scene(rng) for _ in range(60)], pools, strict=True):
                true = np.array([holds(world, text, margin=0.0) for text in pool])
                logits = np.stack([np.zeros(len(true)), np.where(true, 2.0, -2.0)], 1).astype(np.float32)
                texts = np.stack([true, ~true], 1).astype(np.float32)  # its cosine with the query is 1 or 0
                yield Matches(np.float32([[1, 0]]), texts, logits, "", None, [0] * len(pool))

    comparisons = measure_matching(Knowing(), scenes=60, seed=1)  # type: ignore[arg-type]
    assert all(row.accuracy == 1 for row in comparisons.values()) and TRAINING.missed(comparisons) == []
    assert comparisons[FIRST].trials == 60 and comparisons["another scene"].trials == 720
    comparisons["colour"] = Comparison(0.5, 10, 0.5, 0.5)
    assert TRAINING.missed(comparisons) == ["colour: 50.0% is below the required 97%"]
    assert "| one-word foil: colour | 50.0% | 97% | 10 | 0.500 | 0.500 |" in TRAINING.table(comparisons)
