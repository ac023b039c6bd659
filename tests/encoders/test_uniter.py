"""UNITER against a padded computation of its own, and its properties; golden cases pin its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.encoders.packed import groups_of
from capeval_core.encoders.uniter import UniterEncoder, region_input
from capeval_core.encoders.uniter_model import Uniter
from capeval_core.inputs.boxes import BoxFeatures, InputBoxes
from capeval_core.models.batching import count_forwards
from capeval_core.weights.folder import WeightsError
from tests.support.seeded import LETTERS, WORDS, made_up_boxes, uniter, write_config

TEXTS = ["a red dog", "dog", "", "a dog on a red lawn and a red dog on it", "dog", "red"]


def visuals(*counts: int) -> list[InputBoxes]:
    return [InputBoxes.of(made_up_boxes(count, seed=count), f"images[{i}]") for i, count in enumerate(counts)]


def ranked(encoder: UniterEncoder, boxes: list[Any], texts: list[list[str]], **more: Any) -> list[Any]:
    return [r.logits.tolist() for r in encoder.rank(boxes, texts, cache=FeatureCache(0), **more)]


def padded_logits(model: Uniter, regions: list[Tensor], texts: list[tuple[int, ...]]) -> Tensor:
    """The same logits one pair at a time, through transformers' own layers."""
    logits = []
    for boxes, ids in zip(regions, texts, strict=True):
        tokens = model.embed_texts(torch.tensor(ids), torch.arange(len(ids)))
        states = torch.cat([tokens, boxes])[None]
        for layer in model.layers:
            attention = layer.attention.self
            query, keys, values = (
                part(states).view(1, states.shape[1], model.heads, -1).transpose(1, 2)
                for part in (attention.query, attention.key, attention.value)
            )
            weights = (query @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
            attended = (weights @ values).transpose(1, 2).flatten(2)
            states = layer.feed_forward_chunk(layer.attention.output(attended, states))
        logits.append(model.ranking_head(torch.tanh(model.pooler(states[0, 0]))))
    return torch.cat(logits)


def test_sequences_without_padding_agree_with_one_at_a_time() -> None:
    model = uniter().model
    boxes = [InputBoxes.of(made_up_boxes(count, seed=count)).load() for count in (1, 7, 7, 36, 100)]
    inputs = [region_input(each) for each in boxes]
    with torch.inference_mode():
        regions = [
            model.embed_regions(torch.from_numpy(i.features).float(), torch.from_numpy(i.positions))
            for i in inputs
        ]
        texts = uniter().tokenizer.encode(TEXTS[:5]).ids
        expected = padded_logits(model, regions, texts)
        assert torch.allclose(model.ranking_logits(regions, texts), expected, atol=1e-5)
        states = model.states(regions, texts)
        first = np.cumsum([0, *(len(i) + len(r) for i, r in zip(texts, regions, strict=True))])[:-1]
        pooled = torch.tanh(model.pooler(states[-1][first]))
        assert torch.allclose(pooled, model.pooled(regions, texts), atol=1e-5)


@given(st.lists(st.integers(2, 140), min_size=1, max_size=40))
def test_groups_cover_sorted_lengths_with_little_padding(lengths: list[int]) -> None:
    lengths.sort()
    groups = groups_of(lengths)
    assert [i for part in groups for i in range(part.start, part.stop)] == list(range(len(lengths)))
    assert all(lengths[part.stop - 1] <= 1.15 * lengths[part.start] for part in groups)


@settings(max_examples=15)
@given(st.permutations(range(6)), st.sampled_from([None, 1, 2, 7]))
def test_order_batch_and_company_do_not_matter(order: list[int], batch_size: int | None) -> None:
    counts = [3, 12, 12, 40, 1, 20]
    straight = ranked(uniter(), visuals(*counts), [[text, "a"] for text in TEXTS])
    boxes = visuals(*counts)
    shuffled = ranked(
        uniter(), [boxes[i] for i in order], [[TEXTS[i], "a"] for i in order], batch_size=batch_size
    )
    for position, i in enumerate(order):
        assert shuffled[position] == pytest.approx(straight[i], abs=1e-6)


def test_equal_boxes_and_captions_run_once_and_logits_are_kept() -> None:
    cache = FeatureCache()
    boxes = visuals(5, 9)
    again = [InputBoxes.of(made_up_boxes(5, seed=5))]
    with count_forwards() as forwards:
        first = list(
            uniter().rank([*boxes, *again], [["dog", "red", "dog"], ["dog"], ["dog", "red"]], cache=cache)
        )
    assert forwards.items == 2 + 3  # images, then pairs
    assert first[0].logits[0] == first[0].logits[2] == first[2].logits[0]
    assert first[0].key == first[2].key != first[1].key
    with count_forwards() as forwards:
        second = list(uniter().rank(boxes, [["red"], ["dog"]], cache=cache))
    assert forwards.items == 0
    assert second[0].logits[0] == first[0].logits[1]


def test_every_number_of_a_box_counts() -> None:
    """Features, corners, and the area, which is that of the rounded width and height."""
    given_boxes = made_up_boxes(6)
    (usual,) = ranked(uniter(), [InputBoxes.of(given_boxes)], [["a red dog"]])
    for name, change in (("features", 0.5), ("boxes", 3.0)):
        moved = {**given_boxes, name: given_boxes[name] + np.float32(change)}
        (other,) = ranked(uniter(), [InputBoxes.of(moved)], [["a red dog"]])
        assert abs(other[0] - usual[0]) > 1e-5, name


def test_positions_are_those_of_float16() -> None:
    boxes = BoxFeatures(np.float32([[10, 20, 110, 53.3]]), np.float32([[0.1]]), size=(333, 77))
    found = region_input(boxes)
    relative = np.float32([10 / 333, 20 / 77, 110 / 333, 53.3 / 77, 100 / 333, 33.3 / 77])
    rounded = relative.astype(np.float16).astype(np.float32)
    assert found.positions[0, :6].tolist() == rounded.tolist()
    assert found.positions[0, 6] == rounded[4] * rounded[5]
    assert found.features.tolist() == [[float(np.float16(0.1))]]


def test_boxes_that_do_not_fit_cost_their_own_row() -> None:
    wide = made_up_boxes(4, width=65)
    huge = {**made_up_boxes(4), "features": np.full((4, 64), 1e6, dtype=np.float32)}
    sizeless = {key: value for key, value in made_up_boxes(4).items() if key != "size"}
    values = [
        InputBoxes.of(each, f"images[{i}]") for i, each in enumerate([wide, made_up_boxes(4), huge, sizeless])
    ]
    results = list(uniter().rank(values, [["dog"]] * 4, cache=FeatureCache(0)))
    assert [bool(np.isfinite(each.logits[0])) for each in results] == [False, True, False, False]
    assert "images[0]" in results[0].error and "65 numbers" in results[0].error and "64" in results[0].error
    assert "images[2]" in results[2].error and "float16" in results[2].error
    assert "images[3]" in results[3].error and "size" in results[3].error


def test_a_long_caption_is_truncated_to_the_positions_and_counted() -> None:
    text = " ".join(LETTERS + LETTERS)
    assert uniter().tokenizer.encode([text, "a"]).truncated == [52 + 2 - 40, 0]
    (found,) = ranked(uniter(), visuals(3), [[text]])
    assert np.isfinite(found[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_are_close(dtype: str) -> None:
    wide = uniter()
    narrow = UniterEncoder(wide.config, wide.model.state_dict(), device="cpu", dtype=dtype)
    expected = ranked(wide, visuals(5, 30), [TEXTS, TEXTS[:2]])
    for row, own in zip(ranked(narrow, visuals(5, 30), [TEXTS, TEXTS[:2]]), expected, strict=True):
        assert row == pytest.approx(own, abs=0.15)


def test_weights_come_back_with_their_tokenizer(tmp_path: Path) -> None:
    uniter().save_pretrained(tmp_path / "saved")
    opened = UniterEncoder.from_pretrained(tmp_path / "saved", device="cpu")
    assert opened.tokenizer.encode(TEXTS).ids == uniter().tokenizer.encode(TEXTS).ids
    assert ranked(opened, visuals(5), [TEXTS])[0] == pytest.approx(
        ranked(uniter(), visuals(5), [TEXTS])[0], abs=1e-6
    )
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "saved" / "tokenizer.json"))
    assert theirs("a red dog", add_special_tokens=False).input_ids == list(
        opened.tokenizer.encode(["a red dog"]).ids[0][1:-1]
    )


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("architecture", {"hidden_size": 30}, "hidden_size 30 is no multiple of the 4 heads"),
        ("architecture", {"region_size": None}, "architecture lacks region_size"),
        ("architecture", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ("", {"context_length": 41}, "context_length is 41, expected a whole number from 3 to 40"),
        ("", {"vocabulary": {"file": "tokenizer.json", "sha256": "0"}}, "is not the one that these weights"),
        ("", {"vocabulary": "words.txt"}, "vocabulary is 'words.txt', expected words, or file and sha256"),
        ("", {"lowercase": "no"}, "lowercase is 'no', expected true or false"),
        ("", {"lowercase": None}, None),
    ],
)
def test_a_wrong_config_is_refused(
    tmp_path: Path, section: str, change: dict[str, Any], message: str | None
) -> None:
    import json

    folder = tmp_path / "weights"
    uniter().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    target = config[section] if section else config
    target |= change
    if message is None:
        del config["lowercase"]
        message = "the config lacks lowercase"
    write_config(folder, config)
    with pytest.raises(WeightsError, match=message):
        UniterEncoder.from_pretrained(folder, device="cpu")


def test_a_vocabulary_larger_than_the_model_is_refused() -> None:
    encoder = uniter()
    config = {**encoder.config, "vocabulary": [*WORDS, "cat"]}
    with pytest.raises(WeightsError, match=f"{len(WORDS) + 1} words, but the model knows {len(WORDS)}"):
        UniterEncoder(config, encoder.model.state_dict(), device="cpu")


def test_captions_must_be_lists_of_texts() -> None:
    with pytest.raises(ValueError, match=r"captions\[0\] is one text, expected a list of texts"):
        list(uniter().rank(visuals(2), ["dog"]))
    with pytest.raises(ValueError, match="give every image its captions"):
        list(uniter().rank(visuals(2, 3), [["dog"]]))
