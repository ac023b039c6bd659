"""UNITER and ViLBERT against padded computations of their own, and what they read of boxes and texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.vilbertscore import padded_pass
from tests.support import seams
from tests.support.seeded import made_up_boxes, uniter, vilbert

TEXTS = ["a red dog", "dog", "", "a dog on a red lawn and a red dog on it", "red red dog", "red"]
COUNTS = [1, 7, 7, 36, 100]


def boxes(*counts: int) -> list[dict[str, Any]]:
    return [made_up_boxes(count, seed=count) for count in counts]


def ranked(given: Any, texts: Any, of: Any = None, **more: Any) -> list[Any]:
    return [each["logits"] for each in seams.encode(of or uniter(), given, texts, **more)]


def features(given: Any, texts: Any, of: Any = None, **more: Any) -> list[Any]:
    return [each["features"] for each in seams.encode(of or vilbert(), given, texts, **more)]


def prepared(network: Any, given: dict[str, Any]) -> list[Tensor]:
    """What a network takes of boxes, as tensors."""
    found = network.prepare_visual(seams.visual("boxes", given).load())
    parts = vars(found) if hasattr(found, "__dict__") else found._asdict()
    return [torch.from_numpy(np.asarray(array, dtype=np.float32)) for array in parts.values()]


def padded_logit(model: Any, regions: Tensor, ids: tuple[int, ...]) -> Tensor:
    """The logit of one pair, through transformers' own layers."""
    states = torch.cat([model.embed_texts(torch.tensor(ids), torch.arange(len(ids))), regions])[None]
    for layer in model.layers:
        attention = layer.attention.self
        query, keys, values = (
            part(states).view(1, states.shape[1], model.heads, -1).transpose(1, 2)
            for part in (attention.query, attention.key, attention.value)
        )
        weights = (query @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
        attended = (weights @ values).transpose(1, 2).flatten(2)
        states = layer.feed_forward_chunk(layer.attention.output(attended, states))
    logit: Tensor = model.ranking_head(torch.tanh(model.pooler(states[0, 0])))
    return logit


@torch.no_grad()
def test_uniters_sequences_without_padding_agree_with_one_at_a_time() -> None:
    network, texts = uniter(), [TEXTS] * len(COUNTS)
    ids = network.tokenizer.encode(TEXTS).ids
    for given, own in zip(boxes(*COUNTS), ranked(boxes(*COUNTS), texts), strict=True):
        regions = network.model.embed_regions(*prepared(network, given))
        expected = torch.cat([padded_logit(network.model, regions, each) for each in ids])
        assert np.abs(own - expected.numpy()).max() < 1e-5


@torch.no_grad()
def test_vilberts_sequences_without_padding_agree_with_padded_ones() -> None:
    network, texts = vilbert(), [TEXTS] * len(COUNTS)
    ids = network.tokenizer.encode(TEXTS).ids
    for given, own in zip(boxes(*COUNTS), features(boxes(*COUNTS), texts), strict=True):
        expected = padded_pass(network.model, prepared(network, given), ids).numpy()
        for rows, padded, text in zip(own, expected, ids, strict=True):
            assert rows.shape == (len(text) + 1, 32)
            assert np.abs(rows - padded[: len(rows)]).max() < 1e-5


def test_what_is_taken_of_boxes() -> None:
    given = {
        "boxes": np.float32([[10, 20, 110, 53.3]]),
        "features": np.full((1, 64), 0.1, np.float32),
        "size": (333, 77),
    }
    rows, positions = (part.numpy() for part in prepared(uniter(), given))
    relative = np.float32([10 / 333, 20 / 77, 110 / 333, 53.3 / 77, 100 / 333, 33.3 / 77])
    rounded = relative.astype(np.float16).astype(np.float32)
    assert positions[0, :6].tolist() == rounded.tolist() and positions[0, 6] == rounded[4] * rounded[5]
    assert rows[0, 0] == float(np.float16(0.1))
    two = np.repeat(np.float32([[1], [4]]), 64, axis=1)
    given = {"boxes": np.float32([[10, 20, 110, 70], [0, 0, 50, 50]]), "features": two, "size": (200, 100)}
    # The whole image comes first.
    rows, places = (part.numpy() for part in prepared(vilbert(), given))
    assert rows[:, 0].tolist() == [2.5, 1, 4] and places[0].tolist() == [
        0,
        0,
        1,
        1,
        1,
    ]
    assert places[1].tolist() == pytest.approx([0.05, 0.2, 0.55, 0.7, 0.25])
    huge = {**made_up_boxes(4), "features": np.full((4, 64), 1e6, dtype=np.float32)}
    (found,) = seams.encode(uniter(), [huge], [["dog"]])
    assert "float16" in found["error"]


def test_nothing_runs_that_the_texts_of_vilbert_do_not_depend_on() -> None:
    model, ran = vilbert().model, []
    parts = {
        f"{number}.{stream}": getattr(block, stream).output
        for number, block in enumerate(model.co_layers)
        for stream in ("text", "visual")
    }
    parts |= {f"text {number}": layer.output for number, layer in enumerate(model.text_layers)}
    hooks = [
        part.register_forward_hook(lambda *_, name=name: ran.append(name)) for name, part in parts.items()
    ]
    features(boxes(5), [["a dog"]])
    for hook in hooks:
        hook.remove()
    # The boxes' side of the last block, and the layer behind it, stay out.
    assert ran == ["text 0", "0.visual", "0.text", "text 1", "text 2", "1.text"]
