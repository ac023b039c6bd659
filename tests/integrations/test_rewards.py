"""`reward`: a metric as the reward of a policy that writes captions."""

from __future__ import annotations

import io
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.errors import InputError
from capeval_core.integrations import reward
from tests.support.counting import counted, watched
from tools.captions import describe, foils
from tools.scenes import draw, sample_scene

CAPTIONS = ["a red circle", "two blue squares", "a star", "hearts"]


@pytest.fixture(scope="module")
def drawn() -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [draw(sample_scene(rng), 64) for _ in CAPTIONS]


def as_tensor(images: list[Image.Image]) -> torch.Tensor:
    return torch.stack([torch.tensor(np.asarray(image)) for image in images]).permute(0, 3, 1, 2)


# What it gives


def test_images_of_any_make_have_one_score(drawn: list[Image.Image], weights: str) -> None:
    rewards = reward("pacs", weights=weights)
    files = []
    for image in drawn:
        file = io.BytesIO()
        image.save(file, format="png")
        files.append(file.getvalue())
    expected = capeval_core.load("pacs", weights=weights).score(CAPTIONS, files).scores
    tensor = as_tensor(drawn)
    for images in (
        drawn,
        [[image] for image in drawn],
        tensor,
        list(tensor),
        tensor.float() / 255,
        (tensor.double() / 255).requires_grad_(),
        list(tensor.float() / 255),
    ):
        scores = rewards(CAPTIONS, images)
        assert all(type(value) is float for value in scores)
        assert scores == pytest.approx(expected, abs=1e-6)


def test_it_is_called_as_trl_calls_it(drawn: list[Image.Image], weights: str) -> None:
    rewards = reward("refpacs", weights=weights)
    references = [["a circle", "a red disc"], ["squares"], ["a star"], ["one"]]
    expected = capeval_core.load("refpacs", weights=weights).score(CAPTIONS, drawn, references).scores
    rest: dict[str, Any] = {
        "prompts": ["Describe the image."] * 4,
        "completion_ids": [[1], [2], [3], [4]],
        "references": references,
        "trainer_state": None,
        "log_metric": print,
    }
    conversations = [[{"role": "assistant", "content": caption}] for caption in CAPTIONS]
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": caption}]}] for caption in CAPTIONS]
    for completions in (CAPTIONS, conversations, parts):
        assert rewards(completions=completions, image=drawn, **rest) == pytest.approx(expected, abs=1e-6)
        images = [[image] for image in drawn]
        assert rewards(completions=completions, images=images, **rest) == pytest.approx(expected, abs=1e-6)
    assert rewards.__name__ == "refpacs"
    again = pickle.loads(pickle.dumps(rewards))
    assert again.__name__ == "refpacs"
    assert again(CAPTIONS, drawn, references) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("role", [None, "tool", "user"])
def test_the_last_message_of_the_assistant_is_the_caption(
    role: str | None, drawn: list[Image.Image], weights: str
) -> None:
    rewards = reward("pacs", weights=weights)
    asked = {"role": "user", "content": "What is it? A star, or hearts?"}
    draft = {"role": "assistant", "content": "two blue squares, I think"}
    behind = [] if role is None else [{"role": role, "content": "two yellow hearts"}]
    conversations = [[asked, draft, {"role": "assistant", "content": text}, *behind] for text in CAPTIONS]
    assert rewards(conversations, drawn) == pytest.approx(rewards(CAPTIONS, drawn), abs=1e-6)


def test_conversations_without_an_answer_are_refused(drawn: list[Image.Image], weights: str) -> None:
    asked, called = {"role": "user", "content": "What?"}, {"role": "tool", "content": CAPTIONS[3]}
    completions = [*CAPTIONS[:2], [asked, called], [called]]
    with pytest.raises(ValueError, match="2 problems") as raised:
        reward("pacs", weights=weights)(completions, drawn)
    assert isinstance(raised.value, InputError)
    assert [(one.argument, one.index) for one in raised.value.problems] == [
        ("captions", 2),
        ("captions", 3),
    ]


def test_reasoning_is_no_part_of_a_caption(drawn: list[Image.Image], weights: str) -> None:
    rewards = reward("pacs", weights=weights)
    thought = "<think>Two blue squares, or is it a star?</think>\n"
    reasoned = [
        f"{thought}{CAPTIONS[0]}",
        f"a star, so </think>{CAPTIONS[1]} ",  # the beginning is in the prompt
        [{"role": "assistant", "content": f"{thought}<think>Again.</think>{CAPTIONS[2]}"}],
        "<think>hearts, I am sure that these are",  # cut off
        f"{thought}a star?</think>{CAPTIONS[3]}",  # ended twice: what comes last is the caption
    ]
    captions, images = [*CAPTIONS[:3], "", CAPTIONS[3]], [*drawn, drawn[0]]
    expected = rewards(captions, images)
    assert expected[4] and rewards(reasoned, images) == pytest.approx(expected, abs=1e-6)


def test_a_row_without_an_image_has_no_reward(drawn: list[Image.Image], weights: str) -> None:
    rewards = reward("refpacs", weights=weights)
    references = [["a circle"], ["squares"], ["a star"], ["one"]]
    whole = rewards(CAPTIONS, drawn, references)
    for absent in (None, []):
        images = [absent, drawn[1], absent, [drawn[3]]]
        scores = rewards(CAPTIONS, images=images, references=references)
        assert scores == [None, pytest.approx(whole[1], abs=1e-6), None, pytest.approx(whole[3], abs=1e-6)]
        assert rewards(CAPTIONS, images=[absent] * 4, references=references) == [None] * 4
    assert reward("rougel")(CAPTIONS, image=[None] * 4, references=references) == (
        capeval_core.load("rougel").score(CAPTIONS, references=references).scores
    )


def test_an_empty_caption_is_scored(drawn: list[Image.Image], weights: str) -> None:
    rewards = reward(capeval_core.load("pacs", weights=weights))
    expected = capeval_core.load("pacs", weights=weights, empty="score").score(["", "  "], drawn[:2]).scores
    assert rewards(["", "  "], drawn[:2]) == pytest.approx(expected, abs=1e-6)


def test_nothing_touches_the_disk(drawn: list[Image.Image], weights: str) -> None:
    rewards = reward("pacs", weights=weights)
    rewards(CAPTIONS, as_tensor(drawn))  # what is imported late is imported now
    with watched() as opened:
        rewards([caption + " again" for caption in CAPTIONS], 255 - as_tensor(drawn))
    assert opened == []


def test_a_log_tells_what_it_is(weights: str) -> None:
    rewards = reward({"name": "pacs", "w": 2.5}, weights=weights, device="cpu")
    repr(rewards)  # what is imported late is imported now
    with watched() as opened, counted(rewards.metric.encoder) as counts:  # type: ignore[attr-defined]
        text = repr(rewards)
    assert text == f"Reward(pac_s on cpu: {rewards.metric.signature()})"
    assert f"|weights:{Path(weights).name}@" in text and "|w:2.5|" in text
    assert opened == [] and counts.texts == counts.images == 0
    assert repr(pickle.loads(pickle.dumps(rewards))) == text


@pytest.mark.parametrize(
    ("captions", "images", "message"),
    [
        (CAPTIONS, None, "images is missing"),
        (CAPTIONS, "three", "len(captions)=4 but len(images)=3"),
        ("a star", "three", "captions is a single string"),
        ([None, "a", "b"], "three", "captions[0] is None"),
        (["a"], [["x.png", "y.png"]], "images[0] has 2 images"),
        (["a", None, "b"], [None, "x.png", None], "captions[1] is None"),
        (["a", "b"], [None, "x.png"], "images[1]: there is no file 'x.png'"),
        (["a", "b"], [None], "len(captions)=2 but len(images)=1"),
        (["a"], torch.randn(1, 3, 8, 8), "pass the pixels as they were before normalisation"),
        (["a"], torch.zeros(3, 8, 8), "images is a single image"),
    ],
)
def test_wrong_input_is_refused(
    captions: Any, images: Any, message: str, drawn: list[Image.Image], weights: str
) -> None:
    images = drawn[:3] if isinstance(images, str) else images
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        reward("pacs", weights=weights)(captions, images)


def test_references_that_a_metric_does_not_need_are_left_out_in_silence(
    weights: str, drawn: list[Image.Image]
) -> None:
    rewards = reward("pacs", weights=weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = rewards(CAPTIONS, drawn, [["a dog"]] * len(CAPTIONS))
    assert scores == rewards(CAPTIONS, drawn)


def test_wrong_calls_are_refused(drawn: list[Image.Image], weights: str) -> None:
    with pytest.raises(TypeError, match="pass images or image, not both"):
        reward("pacs", weights=weights)(CAPTIONS, drawn, image=drawn)
    with pytest.raises(ValueError, match="references is missing"):
        reward("refpacs", weights=weights)(CAPTIONS, drawn)
    with pytest.raises(ValueError, match="one metric, found 2"):
        reward(["pacs", "refpacs"], weights=weights)
    with pytest.raises(TypeError, match="no option 'wights'"):
        reward("pacs", wights="tiny")


# What it keeps


def test_ever_new_texts_push_no_image_out(drawn: list[Image.Image], weights: str) -> None:
    images_only = FeatureCache(text_bytes=0)
    reward("pacs", weights=weights, cache=images_only)(CAPTIONS, as_tensor(drawn))
    cache = FeatureCache(max_bytes=images_only.nbytes, text_bytes=5_000)  # no room for one text more
    rewards = reward("pacs", weights=weights, cache=cache)
    encoder: Any = rewards.metric.encoder  # type: ignore[attr-defined]
    with counted(encoder) as counts:
        for turn in range(10):
            rewards([f"{caption} {turn} times" for caption in CAPTIONS], as_tensor(drawn))
            assert images_only.nbytes < cache.nbytes <= images_only.nbytes + 5_000
    assert counts.images == len(drawn)
    assert counts.texts >= 10 * len(CAPTIONS)


def test_references_and_captions_are_both_texts(drawn: list[Image.Image], weights: str) -> None:
    for name in ("pacs", "refpacs", "clips"):
        cache = FeatureCache(max_bytes=1 << 20, text_bytes=0)
        rewards = reward(name, weights=weights, cache=cache)
        with counted(rewards.metric.encoder) as counts:  # type: ignore[attr-defined]
            for _ in range(2):
                rewards(CAPTIONS, drawn, CAPTIONS)
        assert counts.images == len(drawn), name


def test_the_cache_of_a_copy_is_as_large(tmp_path: Path) -> None:
    copy = pickle.loads(pickle.dumps(FeatureCache(5, text_bytes=7)))
    assert (copy.max_bytes, copy.text_bytes) == (5, 7)


# What it is for


def test_a_policy_learns_what_the_metric_prefers() -> None:
    """REINFORCE with the greedy caption as baseline, over one true and some false captions of each scene."""
    rng = np.random.default_rng(11)
    scenes = [sample_scene(rng, groups=1) for _ in range(6)]
    images = as_tensor([draw(scene, 64) for scene in scenes])
    choices: list[list[str]] = []
    for scene in scenes:
        true = describe(scene, rng)
        false = [text for kind in ("colour", "shape") for text in foils(scene, true, kind)]
        choices.append([*false[:5], true])
    rewards = reward("pacs", weights="tiny")
    logits = torch.zeros(len(scenes), 6, requires_grad=True)
    optimiser = torch.optim.SGD([logits], lr=4.0)
    generator = torch.Generator().manual_seed(0)

    def scored(chosen: torch.Tensor) -> torch.Tensor:
        captions = [texts[i] for texts, i in zip(choices, chosen.tolist(), strict=True)]
        return torch.tensor(rewards(captions, images))

    def expected() -> float:
        each = torch.stack([scored(torch.full((len(scenes),), i)) for i in range(6)], dim=1)
        return float((logits.softmax(-1).detach() * each).sum(-1).mean())

    before = expected()
    for _ in range(60):
        policy = logits.log_softmax(-1)
        sampled = torch.multinomial(policy.detach().exp(), 1, generator=generator)[:, 0]
        advantage = scored(sampled) - scored(logits.argmax(-1))
        loss = -(advantage * policy.gather(1, sampled[:, None])[:, 0]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert expected() > before + 0.2
