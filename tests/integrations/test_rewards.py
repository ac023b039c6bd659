"""`reward`: a metric as the reward of a policy that writes captions."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.errors import ProblemsError
from capeval_core.integrations import reward
from capeval_core.testing import count_forwards
from tools.scenes import draw, sample_scene

CAPTIONS = ["a red circle", "two blue squares", "a star", "hearts"]


@contextmanager
def watched() -> Iterator[list[str]]:
    """Whatever touches the disk: files that are opened, folders that are made."""
    touched: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event in ("open", "os.mkdir", "sqlite3.connect"):
            touched.append(f"{event} {arguments[0]}")

    sys.addaudithook(watch)  # for good: nothing takes a hook away
    try:
        yield touched
    finally:
        watching = False


@pytest.fixture(scope="module")
def drawn() -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [draw(sample_scene(rng), 64) for _ in CAPTIONS]


def as_tensor(images: list[Image.Image]) -> torch.Tensor:
    return torch.stack([torch.tensor(np.asarray(image)) for image in images]).permute(0, 3, 1, 2)


# What it gives


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


def test_an_error_names_the_row_of_the_whole_input(drawn: list[Image.Image], weights: str) -> None:
    """Rows without an image are left out before the others are scored."""
    references = [["a circle"], ["squares"], ["a star"], []]
    with pytest.raises(ProblemsError) as caught:
        reward("refpacs", weights=weights)(CAPTIONS, [None, *drawn[1:]], references)
    assert [problem.where for problem in caught.value.problems] == ["references[3]"]


def test_messages_name_rows_and_arguments_of_the_call(drawn: list[Image.Image], weights: str) -> None:
    rewards = reward("pacs", weights=weights)
    asked = [{"role": "system", "content": "x"}, {"role": "user", "content": "What is it?"}]
    with pytest.raises(ProblemsError) as caught:
        rewards([CAPTIONS[0], asked, CAPTIONS[2], asked], drawn)
    assert [problem.where for problem in caught.value.problems] == ["captions[1]", "captions[3]"]
    assert "roles: system, user" in str(caught.value)
    with pytest.raises(ValueError) as several:
        rewards(CAPTIONS, [[image] for image in drawn[:2]] + [drawn[:3], drawn[:2]])
    assert "images[2] has 3 images" in str(several.value) and "images[3] has 2 images" in str(several.value)
    with pytest.raises(TypeError, match="images or image, not both"):
        rewards(CAPTIONS, drawn, image=drawn)
    with pytest.raises(TypeError, match="reward_inputs is a list"):
        rewards.compute_score(CAPTIONS)
    with pytest.raises(ValueError, match="reward takes one metric, found 3"):
        reward(["rougel", "bleu", "pacs"])
    assert rewards(CAPTIONS[:2], [None, []]) == [None, None]  # there is nothing to score
    assert rewards(CAPTIONS[:2], [None, drawn[1]])[0] is None


def test_nothing_touches_the_disk(drawn: list[Image.Image], weights: str) -> None:
    rewards = reward("pacs", weights=weights)
    rewards(CAPTIONS, as_tensor(drawn))  # what is imported late is imported now
    with watched() as opened:
        rewards([caption + " again" for caption in CAPTIONS], 255 - as_tensor(drawn))
    assert opened == []


# What it keeps


def test_ever_new_texts_push_no_image_out(drawn: list[Image.Image], weights: str) -> None:
    images_only = FeatureCache(text_bytes=0)
    reward("pacs", weights=weights, cache=images_only)(CAPTIONS, as_tensor(drawn))
    cache = FeatureCache(max_bytes=images_only.nbytes, text_bytes=5_000)  # no room for one text more
    rewards = reward("pacs", weights=weights, cache=cache)
    with count_forwards() as forwards:
        for turn in range(10):
            rewards([f"{caption} {turn} times" for caption in CAPTIONS], as_tensor(drawn))
            assert images_only.nbytes < cache.nbytes <= images_only.nbytes + 5_000
    assert forwards.items == len(drawn) + 10 * len(CAPTIONS)


def test_statistics_are_made_as_the_message_says() -> None:
    with pytest.raises(ValueError, match="statistics") as caught:
        reward("ciderd")
    made = str(caught.value).partition("statistics=")[2]
    references = [["a red circle", "a disc"], ["two squares"]]
    statistics = eval(made, {"capeval_core": capeval_core, "references": references})
    assert reward("ciderd", statistics=statistics)(["a red circle"], references=references[:1])[0] > 0


# ---- other trainers


def test_verl_asks_for_one_row_or_for_many(drawn: list[Image.Image], weights: str) -> None:
    rewards = reward("pacs", weights=weights)
    expected = rewards(CAPTIONS, drawn)
    for call in (rewards, rewards.compute_score):
        for caption, image, score in zip(CAPTIONS, drawn, expected, strict=True):
            row = {
                "data_source": "captions",
                "solution_str": caption,
                "ground_truth": "",
                "extra_info": {"image": image},
            }
            assert call(**row) == pytest.approx(score, abs=1e-6)
        many = {"data_sources": ["captions"] * 4, "solution_strs": CAPTIONS, "ground_truths": [""] * 4}
        found = call(**many, extra_infos=[{"images": [image]} for image in drawn])
        assert found == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="row 0 has no image"):
        rewards.compute_score(data_source="captions", solution_str="a dog", ground_truth="a dog")


def test_easyr1_asks_for_dicts(drawn: list[Image.Image], weights: str) -> None:
    rewards = reward("pacs", weights=weights)
    expected = rewards(CAPTIONS, drawn)
    rows = [
        {"response": text, "ground_truth": "", "image": image}
        for text, image in zip(CAPTIONS, drawn, strict=True)
    ]
    for call in (rewards, rewards.compute_score):
        found = call(rows)
        assert [own["overall"] for own in found] == pytest.approx(expected, abs=1e-6)
        assert all(own == {"overall": own["overall"], "pac_s": own["overall"]} for own in found)
        assert call(rows[0])["overall"] == pytest.approx(expected[0], abs=1e-6)
    with pytest.raises(ValueError, match="row 1 has no image"):
        rewards([rows[0], {"response": "a dog", "ground_truth": "a dog"}])


def test_a_ground_truth_is_the_references_or_holds_them() -> None:
    rewards = reward("rougel")
    expected = rewards(["a dog", "a cat"], references=[["a dog runs"], ["two cats", "a cat"]])
    truths: list[Any] = ["a dog runs", ["two cats", "a cat"]]
    rows = [
        {"response": text, "ground_truth": truth}
        for text, truth in zip(["a dog", "a cat"], truths, strict=True)
    ]
    assert [own["overall"] for own in rewards.compute_score(rows)] == expected
    written = '{"references": ["two cats", "a cat"]}'
    assert rewards.compute_score(solution_str="a cat", ground_truth=written) == pytest.approx(expected[1])
