"""ViLBERT against a padded computation of its own, and its properties; golden cases pin its numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.vilbertscore import padded_pass
from capeval_core.cache import FeatureCache
from capeval_core.encoders.packed import rows_of_sequences
from capeval_core.encoders.vilbert import VilbertEncoder, located
from capeval_core.inputs.boxes import BoxFeatures, InputBoxes
from capeval_core.models.batching import count_forwards
from capeval_core.weights.folder import WeightsError
from tests.support.seeded import LETTERS, WORDS, made_up_boxes, vilbert, write_config

TEXTS = ["a red dog", "dog", "", "a dog on a red lawn and a red dog on it", "red red dog", "red"]


def visuals(*counts: int) -> list[InputBoxes]:
    return [InputBoxes.of(made_up_boxes(count, seed=count), f"images[{i}]") for i, count in enumerate(counts)]


def features(
    encoder: VilbertEncoder, boxes: list[Any], texts: list[list[str]], **more: Any
) -> list[list[np.ndarray]]:
    found = encoder.token_features(boxes, texts, cache=FeatureCache(0), **more)
    return [each.features or [] for each in found]


def test_sequences_without_padding_agree_with_padded_ones() -> None:
    encoder, counts = vilbert(), [1, 7, 7, 36, 100]
    boxes = visuals(*counts)
    found = features(encoder, boxes, [TEXTS] * len(counts))
    ids = encoder.tokenizer.encode(TEXTS).ids
    for image, own in zip(boxes, found, strict=True):
        inputs = encoder.prepare_visual(image.load())
        with torch.inference_mode():
            parts = [torch.from_numpy(inputs.features), torch.from_numpy(inputs.locations)]
            expected = padded_pass(encoder.model, parts, ids).numpy()
        for rows, padded, text in zip(own, expected, ids, strict=True):
            assert rows.shape == (len(text) + 1, 32)
            assert np.abs(rows - padded[: len(rows)]).max() < 1e-5


def test_every_block_can_be_read_and_the_last_one_is_the_default() -> None:
    encoder, boxes = vilbert(), visuals(5, 9)
    first, last = (features(encoder, boxes, [TEXTS, TEXTS], layer=layer) for layer in (0, 1))
    for name, expected in ((-2, first), (-1, last)):
        found = features(encoder, boxes, [TEXTS, TEXTS], layer=name)
        assert all(
            (a == b).all() for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True)
        )
    assert np.abs(first[0][0] - last[0][0]).max() > 0.1
    tokens = encoder.tokenizer.encode(TEXTS).ids
    with torch.inference_mode():
        regions = encoder.region_states([encoder.prepare_visual(each.load()) for each in boxes])
        lower = encoder.text_states(tokens, FeatureCache(0), None)
        pairs = [(text, image) for image in (0, 1) for text in range(len(TEXTS))]
        both = list(encoder.model.states(lower, regions, pairs))
    assert len(both) == 3  # two blocks, and what follows the last one
    for (text, _), expected in zip(both, (first, last), strict=False):
        flat = [rows for own in expected for rows in own]
        assert all(np.abs(a.numpy() - b).max() < 1e-5 for a, b in zip(text, flat, strict=True))


def test_nothing_runs_that_the_texts_do_not_depend_on() -> None:
    model, ran = vilbert().model, []
    parts = {
        f"{number}.{stream}": getattr(block, stream).output
        for number, block in enumerate(model.co_layers)
        for stream in ("text", "visual")
    }
    parts |= {f"text {number}": layer for number, layer in enumerate(model.text_layers)}
    hooks = [
        (part.output if hasattr(part, "output") else part).register_forward_hook(
            lambda *_, name=name: ran.append(name)
        )
        for name, part in parts.items()
    ]
    try:
        features(vilbert(), visuals(5), [["a dog"]])
    finally:
        for hook in hooks:
            hook.remove()
    # The boxes' side of the last block, and the layer behind it, stay out.
    assert ran == ["text 0", "0.visual", "0.text", "text 1", "text 2", "1.text"]


@pytest.mark.parametrize("layer", [2, -3])
def test_a_block_that_is_not_there_is_refused(layer: int) -> None:
    with pytest.raises(ValueError, match=f"layer={layer}: these weights have 2 co-attention blocks"):
        vilbert().token_features(visuals(3), [["dog"]], layer=layer)


@settings(max_examples=6)
@given(st.permutations(range(6)), st.sampled_from([None, 1, 2, 7]))
def test_order_batch_and_company_do_not_matter(order: list[int], batch_size: int | None) -> None:
    boxes = visuals(3, 12, 12, 40, 1, 20)
    straight = features(vilbert(), boxes, [[text, "a"] for text in TEXTS])
    shuffled = features(
        vilbert(), [boxes[i] for i in order], [[TEXTS[i], "a"] for i in order], batch_size=batch_size
    )
    for position, i in enumerate(order):
        for own, expected in zip(shuffled[position], straight[i], strict=True):
            assert np.abs(own - expected).max() < 1e-5


def test_texts_run_once_for_all_images_and_boxes_once_for_all_texts() -> None:
    cache, encoder = FeatureCache(), vilbert()
    boxes = [*visuals(5, 9), InputBoxes.of(made_up_boxes(5, seed=5))]
    texts = [["dog", "red", "dog"], ["dog", "red dog"], ["dog", "red"]]
    with count_forwards() as forwards:
        first = list(encoder.token_features(boxes, texts, cache=cache))
    assert forwards.items == 2 + 3 + 4  # images, texts, texts with an image
    assert first[0].key == first[2].key != first[1].key
    with count_forwards() as forwards:
        again = list(encoder.token_features(visuals(5, 9), [["red"], ["dog"]], cache=cache))
    assert forwards.items == 0
    assert first[0].features is not None and again[0].features is not None
    assert (again[0].features[0] == first[0].features[1]).all()
    with count_forwards() as forwards:  # another block is another feature, but the texts' layers are kept
        list(encoder.token_features(visuals(5), [["red"]], layer=0, cache=cache))
    assert forwards.items == 1 + 1


def test_every_number_of_a_box_counts() -> None:
    usual = made_up_boxes(6)
    ((expected,),) = features(vilbert(), [InputBoxes.of(usual)], [["a red dog"]])
    for name, change in (("features", 0.5), ("boxes", 3.0), ("size", None)):
        moved = {**usual, name: (330, 240) if change is None else usual[name] + np.float32(change)}
        ((other,),) = features(vilbert(), [InputBoxes.of(moved)], [["a red dog"]])
        assert np.abs(other - expected).max() > 1e-4, name


def test_the_whole_image_comes_first() -> None:
    boxes = BoxFeatures(
        np.float32([[10, 20, 110, 70], [0, 0, 50, 50]]), np.float32([[1], [4]]), size=(200, 100)
    )
    found = located(boxes)
    assert found.features.tolist() == [[2.5], [1], [4]]
    assert found.locations[0].tolist() == [0, 0, 1, 1, 1]
    assert found.locations[1].tolist() == pytest.approx([0.05, 0.2, 0.55, 0.7, 0.25])


def test_boxes_that_do_not_fit_cost_their_own_row() -> None:
    sizeless = {key: value for key, value in made_up_boxes(4).items() if key != "size"}
    values = [made_up_boxes(4, width=65), made_up_boxes(4), sizeless]
    boxes = [InputBoxes.of(each, f"images[{i}]") for i, each in enumerate(values)]
    found = list(vilbert().token_features(boxes, [["dog"]] * 3, cache=FeatureCache(0)))
    assert [each.features is not None for each in found] == [False, True, False]
    assert "images[0]" in str(found[0].error) and "65 numbers" in str(found[0].error)
    assert "images[2]" in str(found[2].error) and "size" in str(found[2].error)


def test_a_long_text_loses_its_end_and_words_are_found() -> None:
    encoder = vilbert()
    texts = [" ".join(LETTERS + LETTERS), "a b", ""]
    tokens = encoder.tokenizer.encode(texts)
    assert tokens.truncated == [52 + 2 - 37, 0, 0]
    assert [ids[-1] == encoder.tokenizer.end for ids in tokens.ids] == [False, True, True]
    assert [len(encoder.word_ids(ids)) for ids in tokens.ids] == [36, 2, 0]
    assert [encoder.words(ids) for ids in tokens.ids] == [slice(2, 38), slice(2, 4), slice(2, 2)]
    assert vilbert(None).words(tokens.ids[1]) == slice(1, 3)
    (found,) = features(encoder, visuals(3), [texts])
    assert [len(rows) for rows in found] == [38, 5, 3]
    first, other = (" ".join([*"a" * 35, word, *LETTERS]) for word in ("red", "dog"))  # differ in the last
    (cut,) = features(encoder, visuals(3), [[first, other]])
    assert np.abs(cut[0][-1] - cut[1][-1]).max() > 0.01


def test_the_task_moves_the_features_and_a_model_without_has_no_such_token() -> None:
    seventh = vilbert()
    config = {**seventh.config, "task": 3}
    third = VilbertEncoder(config, seventh.model.state_dict(), device="cpu")
    assert third.fingerprint != seventh.fingerprint
    one, other = (features(encoder, visuals(3), [["a dog"]])[0][0] for encoder in (seventh, third))
    assert np.abs(one - other).max() > 0.01
    assert len(features(vilbert(None), visuals(3), [["a dog"]])[0][0]) == len(one) - 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_are_close(dtype: str) -> None:
    wide = vilbert()
    narrow = VilbertEncoder(wide.config, wide.model.state_dict(), device="cpu", dtype=dtype)
    for found, expected in zip(
        features(narrow, visuals(5, 30), [TEXTS, TEXTS]),
        features(wide, visuals(5, 30), [TEXTS, TEXTS]),
        strict=True,
    ):
        assert all(np.abs(a - b).max() < 0.25 for a, b in zip(found, expected, strict=True))


def test_weights_come_back(tmp_path: Path) -> None:
    vilbert().save_pretrained(tmp_path / "saved")
    opened = VilbertEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    for own, expected in zip(
        features(opened, visuals(5), [TEXTS])[0], features(vilbert(), visuals(5), [TEXTS])[0], strict=True
    ):
        assert (own == expected).all()


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("text", {"hidden_size": 30}, "text: hidden_size 30 is no multiple of the 4 heads"),
        ("visual", {"region_size": None}, "architecture.visual lacks region_size"),
        ("text", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ("architecture", {"text_layers_before": [3, 1]}, "text_layers_before is .3, 1., expected rising"),
        ("architecture", {"text_layers_before": [1, 5]}, "expected rising whole numbers up to 4"),
        ("architecture", {"visual_layers_before": [1]}, "visual_layers_before has 1 numbers"),
        ("architecture", {"tasks": 0}, "task is 7, but there are 0 task embeddings"),
        ("", {"task": None}, "task is None, but there are 20 task embeddings"),
        ("", {"context_length": 41}, "context_length is 41, expected a whole number from 3 to 40"),
    ],
)
def test_a_wrong_config_is_refused(
    tmp_path: Path, section: str, change: dict[str, Any], message: str
) -> None:
    vilbert().save_pretrained(tmp_path / "weights")
    config = json.loads((tmp_path / "weights" / "config.json").read_text())
    architecture = config["architecture"]
    target = {"": config, "architecture": architecture}.get(section)
    (architecture[section] if target is None else target).update(change)
    write_config(tmp_path / "weights", config)
    with pytest.raises(WeightsError, match=message):
        VilbertEncoder.from_pretrained(tmp_path / "weights", device="cpu")


def test_a_vocabulary_larger_than_the_model_is_refused() -> None:
    encoder = vilbert()
    config = {**encoder.config, "vocabulary": [*WORDS, "cat"]}
    with pytest.raises(WeightsError, match=f"{len(WORDS) + 1} words, but the model knows {len(WORDS)}"):
        VilbertEncoder(config, encoder.model.state_dict(), device="cpu")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_chosen_sequences_keep_their_rows(lengths: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=8))
    owner = np.repeat(np.arange(len(lengths)), lengths)
    found = rows_of_sequences(lengths, chosen).tolist()
    expected = [row for index in chosen for row in np.flatnonzero(owner == index).tolist()]
    assert found == expected
