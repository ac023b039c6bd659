from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from capeval_core.demo import demo_set
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.tokenizers import ClipTokenizer
from capeval_core.inputs.visual import InputImage
from capeval_core.weights.catalogue import PROMPT
from tools.captions import KINDS, describe
from tools.scenes import draw, sample_scene
from tools.tiny.clip import TRAINING, TinyRecipe, folder_of, measure_encoder, train
from tools.tiny.clip_model import CELLS, SIDE, CaptionCodec, build, normalised, text_tokens
from tools.tiny.lessons import make_lessons, shrink

SHORT = TinyRecipe(scenes=64, steps=24, batch=16, warmup=4)


@pytest.fixture(scope="module")
def tiny() -> ClipEncoder:
    return ClipEncoder.from_pretrained("tiny")


def test_the_shipped_model_reads_scenes_of_new_seeds(tiny: ClipEncoder) -> None:
    comparisons = measure_encoder(tiny, scenes=600, seed=4711)
    assert TRAINING.missed(comparisons) == []
    assert comparisons["relation"].trials > 50
    right, unrelated = comparisons["another scene"].right, comparisons["another scene"].wrong
    assert right > 0.75, "right captions score clearly high"
    assert unrelated < 0.25, "those of other scenes clearly low"
    assert comparisons["wording"].accuracy > 0.98


def test_the_shipped_model_is_small() -> None:
    folder = Path(__file__).parents[2] / "capeval_core" / "weights" / "tiny" / "pacs"
    assert (folder / "model.safetensors").stat().st_size <= 8_000_000


@pytest.mark.parametrize("size", [64, 96, 256])
def test_the_size_of_the_image_matters_little(tiny: ClipEncoder, size: int) -> None:
    scenes = [sample_scene(np.random.default_rng([5, index])) for index in range(40)]

    def see(pixels: int) -> np.ndarray:
        images = [InputImage.of(draw(scene, pixels), where="scene") for scene in scenes]
        features = np.concatenate([part.features for part in tiny.encode_images(images)])
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    assert (see(size) * see(192)).sum(1).min() > 0.9


def test_the_shipped_model_orders_nearly_all_of_the_demo(tiny: ClipEncoder) -> None:
    right = apart = 0
    for item in demo_set():
        image = next(iter(tiny.encode_images([InputImage.of(item.image, where=item.id)]))).features[0]
        texts = tiny.encode_texts(
            [PROMPT + text for text in (item.good, item.subtly_wrong, item.unrelated)]
        ).features
        good, wrong, unrelated = texts @ image / np.linalg.norm(texts, axis=1)
        right += bool(good > wrong)
        apart += bool(wrong > unrelated + 0.3)
        assert good > unrelated + 0.3
    assert min(right, apart) >= 11, "the scenes were drawn by lot: the model may err on one of the twelve"


def test_a_short_training_lowers_the_loss_and_is_the_same_again() -> None:
    model, losses = train(SHORT, seed=3)
    again, losses_again = train(SHORT, seed=3)
    assert losses == losses_again
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True)
    )
    assert np.mean(losses[-4:]) < np.mean(losses[:4])
    assert train(SHORT, seed=4)[1] != losses


def test_a_saved_model_scores_as_the_rounded_one(tmp_path: Path) -> None:
    encoder = folder_of(build(0), "a test")
    encoder.save_pretrained(tmp_path)
    texts = [PROMPT + "a red star", PROMPT + "two small blue hearts at the top"]
    saved = ClipEncoder.from_pretrained(str(tmp_path))
    np.testing.assert_array_equal(saved.encode_texts(texts).features, encoder.encode_texts(texts).features)
    assert saved.config["source"]["licence"] == "apache-2.0"


def test_training_sees_what_the_encoder_sees() -> None:
    """The training's own short cuts (words from memory, cut padding, prepared pixels) change nothing."""
    model, codec = build(1), CaptionCodec()
    encoder = folder_of(model, "a test")
    rng = np.random.default_rng(0)
    scenes = [sample_scene(rng) for _ in range(8)]
    captions = [describe(scene, rng) for scene in scenes]
    ids = [codec(caption) for caption in captions]
    tokens = ClipTokenizer().encode([PROMPT + caption for caption in captions])
    assert [tuple(row) for row in ids] == tokens.ids
    with torch.no_grad():
        model.load_state_dict({name: t.half().float() for name, t in model.state_dict().items()})
        lengths = np.array([len(row) for row in ids])
        padded = np.array([row + [0] * (40 - len(row)) for row in ids])
        ends = text_tokens(model, model.token_embedding.weight, padded, lengths, parts=3)
        texts = (ends @ model.text_projection).numpy()
    expected = encoder.encode_texts([PROMPT + caption for caption in captions]).features
    np.testing.assert_allclose(texts, expected, atol=1e-4)
    image = draw(scenes[0], 192)
    pixels = normalised(shrink(image, SIDE)[None])[0].numpy()
    np.testing.assert_allclose(pixels, encoder.preprocess(image), atol=1e-6)


def test_lessons_say_what_is_in_the_scene() -> None:
    lessons = make_lessons(20, np.random.default_rng(9), CaptionCodec(), SIDE, CELLS)
    assert (lessons.lengths[:, :, 0] > 0).all()
    assert (lessons.lengths[:, :, 1 + KINDS.index("colour")] > 0).all()
    there = lessons.objects[:, :, 0] >= 0
    assert (there.sum(1) >= lessons.groups).all()
    for tokens, length in zip(lessons.tokens.reshape(-1, 48), lessons.lengths.reshape(-1), strict=True):
        assert (tokens[:length] > 0).all()
        assert (tokens[length:] == 0).all()
    facts = lessons.facts[:, None] > 0
    assert (facts | ~lessons.stated[:, :, 0]).all(), "captions state what is true"
    position = lessons.lengths[:, :, 1 + KINDS.index("position")] > 0
    false = lessons.stated[:, :, 1 + KINDS.index("position")] & ~facts
    assert (false.any(-1) == position).all(), "a foil states what is false"
    assert [bin(members).count("1") for members in lessons.members] == lessons.groups.tolist()
