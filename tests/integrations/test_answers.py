"""`Answers`: captions of models that generate their prompt again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import EvalPrediction

from capeval_core.integrations import Answers, CaptionMetrics
from tests.integrations.captioner import Scenes
from tests.integrations.chat_captioner import (
    QUESTION,
    Questions,
    blip_model,
    chat_model,
    chat_processor,
    tokenizer_of,
    trainer_of,
)

COUNT = 6


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return Scenes(COUNT)


@pytest.fixture(scope="module")
def processor(scenes: Scenes) -> Any:
    return chat_processor(tokenizer_of(scenes.captions))


def test_a_chat_captioner_is_scored_without_its_question(
    scenes: Scenes, processor: Any, tmp_path: Path, weights: str
) -> None:
    given: dict[str, Any] = {"images": scenes.images, "references": scenes.references, "weights": weights}
    metrics = CaptionMetrics(Answers(processor), **given)
    rows = Questions(scenes.images, scenes.captions, processor)
    model = chat_model(processor.tokenizer)
    trainer = trainer_of(model, rows, rows.chat_batch, tmp_path, metrics)
    metrics.watch(trainer)
    values = trainer.evaluate()
    generated = trainer.predict(rows).predictions
    length = rows.chat_batch([rows[0]])["input_ids"].shape[1]
    answers = processor.tokenizer.batch_decode(generated[:, length:], skip_special_tokens=True)
    assert metrics.captions == [answer.strip() for answer in answers] and any(metrics.captions)
    assert np.isfinite(values["eval_pac_s"])
    # Without it the question would be a part of each caption.
    plain = CaptionMetrics(processor, **given)
    trainer.compute_metrics = plain
    with pytest.raises(ValueError, match=r"predict_with_generate.*Answers"):
        plain.watch(trainer)
    with pytest.raises(ValueError, match=r"predictions.*Answers"):
        trainer.evaluate()
    nothing = np.zeros((0, 4), int)
    with pytest.raises(ValueError, match=f"0 captions, but there are {COUNT} images"):
        plain(EvalPrediction(nothing, nothing))


def test_a_captioner_like_blip_needs_it_for_a_prompt_only(scenes: Scenes, weights: str) -> None:
    import torch

    tokenizer = tokenizer_of([*scenes.captions, "a photo of"])
    model = blip_model(tokenizer)
    pixels = torch.rand(COUNT, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    given: dict[str, Any] = {"images": scenes.images, "metrics": "pacs", "weights": weights}
    labels = np.full((COUNT, 1), -100)
    free = model.generate(pixel_values=pixels).numpy()
    metrics = CaptionMetrics(tokenizer, **given)
    metrics(EvalPrediction(free, labels))
    assert metrics.captions == [
        text.strip() for text in tokenizer.batch_decode(free, skip_special_tokens=True)
    ]
    # BLIP leaves out the last id, which is the end of a text.
    prompt = torch.tensor([[0, *tokenizer("a photo of").input_ids, tokenizer.eos_token_id]] * COUNT)
    prompted = model.generate(pixel_values=pixels, input_ids=prompt).numpy()
    metrics = CaptionMetrics(Answers(tokenizer, after="a photo of"), **given)
    metrics(EvalPrediction(prompted, labels))
    rest = tokenizer.batch_decode(prompted[:, prompt.shape[1] - 1 :], skip_special_tokens=True)
    assert metrics.captions == [text.strip() for text in rest]


def test_the_prompt_is_cut_by_ids_and_only_once(scenes: Scenes, processor: Any) -> None:
    tokenizer = processor.tokenizer
    decoder = Answers(processor)
    assert decoder.after == "<|im_start|>assistant"
    turn = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    texts = {
        f"{turn}a dog<|im_end|>": "a dog",
        f"<|endoftext|><|endoftext|>{turn}the assistant\nof a dog<|im_end|>": "the assistant\nof a dog",
        f"{turn}a dog<|im_end|>\n{turn}a cat<|im_end|>": "a dog<...>",
        turn: "",
        "a label": "a label",
    }
    decoded = decoder.batch_decode([tokenizer(text).input_ids for text in texts])
    assert [decoded[0], decoded[1], decoded[3], decoded[4]] == [
        texts[text] for text in [*texts][:2] + [*texts][3:]
    ]
    # A captioner that goes on to talk to itself shows it; in a few-shot prompt the examples are cut off.
    assert decoded[2].startswith("a dog") and decoded[2].endswith("a cat")
    examples = Answers(processor, turns=2)
    assert examples.batch_decode([tokenizer([*texts][2]).input_ids]) == ["a cat"]


def test_a_processor_that_tells_no_prompt_needs_it_named(scenes: Scenes) -> None:
    with pytest.raises(ValueError, match="after"):
        Answers(scenes.tokenizer)
    with pytest.raises(ValueError, match="after"):
        Answers(scenes.tokenizer, after=" ")
    with pytest.raises(ValueError, match="turns"):
        Answers(scenes.tokenizer, after="ASSISTANT:", turns=0)
    with pytest.raises(TypeError, match="processor"):
        Answers("qwen")  # type: ignore[arg-type]
