"""Notes on captions: one sentence with a count, never another number."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import capeval_core
from capeval_core.integrations import reward

DOGS = ["a dog", "two dogs on grass", "a brown dog in the snow", "a dog with a ball"]
REFERENCES = [["a dog runs"], ["dogs on grass"], ["a dog in snow"], ["a dog plays"]]


def notes_of(name: str, captions: list[str], **given: Any) -> list[str]:
    """The notes of a run, whose score is that of a run without them; other warnings are an error."""
    metric = capeval_core.load(name, **({} if "references" in given else {"weights": "tiny"}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = metric.score(captions, **given)
    assert all(one.category is capeval_core.Note for one in caught)
    assert found.scores == metric.combine(metric.encode_all(metric.check(captions, *_of(given)))).scores
    return [str(one.message) for one in caught]


def _of(given: dict[str, Any]) -> tuple[Any, Any]:
    return given.get("images"), given.get("references")


def of_words(captions: list[str], references: Any = REFERENCES) -> list[str]:
    return notes_of("rougel", captions, references=references)


def test_usual_captions_have_none() -> None:
    assert not of_words(DOGS)
    assert not of_words(["Café Zoë <3", "1 < 2", "x [sic] y", "the assistant: a man helps"])


def test_one_text_for_all() -> None:
    (note,) = of_words(["a man on a street"] * 4)
    assert "4 captions" in note and "same" in note and "'a man on a street'" in note
    assert not of_words(["a dog"] * 2, REFERENCES[:2])


@pytest.mark.parametrize(
    "mark",
    [
        "a dog<|im_end|>", "a dog</s>", "<think>a pet</think> a dog", "assistant: a dog", "ASSISTANT: a dog",
        "a dog [unused0]", "assistant\na dog", "USER: <image> ASSISTANT: a dog", "[INST] hi [/INST] a dog",
        "a dog<end_of_turn>", "a dog <|endoftext|>", "```a dog```", "▁a▁dog", "aĠdog", "<0x0A>a dog",
    ],
)  # fmt: skip
def test_remains_of_chat_templates(mark: str) -> None:
    (note,) = of_words([mark, *DOGS[1:]])
    assert "1 of 4 captions" in note


def test_all_marks_are_one_note() -> None:
    (note,) = of_words([f"{text}<|im_end|></s>" for text in DOGS])
    assert "4 of 4" in note and "<|im_end|>" in note and "</s>" in note


CHINESE = ["一个男人骑着一匹马在草地上", "两只狗在雪地里奔跑玩耍", "一条小河穿过绿色的森林"]
SEGMENTED = [
    "一个 男人 骑着 一匹 马 在 草地 上",
    "两只 狗 在 雪地 里 奔跑 玩耍",
    "一条 小河 穿过 绿色 的 森林",
]
JAPANESE = ["男の人が馬に乗って草原を走っています", "二匹の犬が雪の中で遊んでいる", "緑の森を流れる小さな川"]
THAI = ["ผู้ชายขี่ม้าบนทุ่งหญ้า", "สุนัขสองตัววิ่งเล่นบนหิมะ", "แม่น้ำสายเล็กไหลผ่านป่าเขียว"]


@pytest.mark.parametrize("captions", [CHINESE, JAPANESE, THAI])
def test_texts_without_blanks_under_metrics_of_words(captions: list[str]) -> None:
    (note,) = of_words(captions, [[text] for text in captions[::-1]])
    assert "3 of 3 captions and 3 of 3 references" in note and "ROUGE-L" in note
    (note,) = of_words(SEGMENTED, [[text] for text in captions])
    assert "3 of 3 references" in note and "captions" not in note.partition(",")[0]


def test_segmented_texts_have_no_note() -> None:
    assert not of_words(SEGMENTED, [[text] for text in SEGMENTED])
    assert not of_words(["a dog 犬", "漢字 kanji", "寿司 sushi"], REFERENCES[:3])


@pytest.mark.parametrize(
    "captions", [CHINESE, ["собака бежит", "две собаки", "река"], ["كلب يجري", "نهر", "قط"]]
)
def test_other_scripts_under_an_english_encoder(captions: list[str], grey: Any) -> None:
    (note,) = notes_of("pacs", captions, images=[grey] * 3)
    assert "3 of 3 captions" in note and "PAC-S" in note and "English" in note


def test_other_latin_languages_and_other_encoders_have_no_note(grey: Any) -> None:
    assert not notes_of(
        "pacs", ["ein Hund läuft", "một con chó chạy", "il était une fois"], images=[grey] * 3
    )
    multilingual = capeval_core.load("pacs", weights="tiny")
    multilingual.__class__ = type("Multilingual", (type(multilingual),), {"languages": ()})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        multilingual.score(CHINESE, [grey] * 3)


def test_evaluate_notes_all_batches_once(grey: Any) -> None:
    module = capeval_core.module("pacs", weights="tiny")
    for text in ("a dog</s>", "a cat", "a cow</s>"):
        module.add_batch(predictions=[text], images=[grey])
    with pytest.warns(capeval_core.Note, match="2 of 3 captions") as caught:
        module.compute()
    assert len(caught) == 1
    module.add_batch(predictions=["a dog"], images=[grey])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.compute()


def test_a_reward_has_no_notes(grey: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reward("pacs", weights="tiny")(["a dog</s>"] * 4, [grey] * 4)


def test_counts_of_notes_are_those_of_captions_and_of_marks() -> None:
    captions = ["a dog</s></s>", "a cat</s><|im_end|>", "a cow", "[INST] x [/INST]"]
    (note,) = of_words(captions)
    assert "3 of 4 captions hold" in note
    assert "'</s>' in 2" in note and "'<|im_end|>' in 1" in note and "'[INST]' in 1" in note
    many = [f"a dog <loc_{number}>" for number in range(7)]
    (note,) = of_words(many, REFERENCES[:1] * 7)[-1:]
    assert note.count(" in 1") == 0 or note.count("<loc_") == 5


def test_equal_texts_are_noted_from_three_on_and_blanks_around_them_do_not_count() -> None:
    references = [["x y"], ["v w"], ["p q"]]
    (note,) = of_words(["a dog", " a dog ", "a dog"], references)
    assert "all 3 captions are the same text, 'a dog'" in note
    assert not of_words(["a dog", "a dog", "a dogs"], references)
    (note,) = of_words(DOGS[:3], [["x y"], ["x y"], [" x y"]])
    assert "all 3 references are the same text, 'x y'" in note
    long = "word " * 13
    (note,) = of_words([long] * 3, references)
    assert f"'{long[:57]}...'" in note


def test_other_scripts_are_noted_where_most_letters_are_theirs(grey: Any) -> None:
    captions = ["дом ab", "дом abc", "дом abcd", "ＡＢＣ", "ở đây", "123 !", "犬 dog"]
    (note,) = notes_of("pacs", captions, images=[grey] * 7)
    assert "1 of 7 captions are in another script" in note


def test_texts_without_blanks_are_those_of_eight_letters_a_word() -> None:
    references = [["x y"], ["v w"], ["p q"]]
    (note,) = of_words(
        ["一二三四五六七八", "一二三四五六七", "一二三四五六七八九十一二三四五 六"], references
    )
    assert "2 of 3 captions" in note and "references" not in note.partition(",")[0]
