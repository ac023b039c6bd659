"""What metrics of n-grams do beyond their formulas: corpus numbers, tables of frequencies, wrong input."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capeval_core
from capeval_core.inputs.samples import check_samples
from capeval_core.phrases.ptb import ptb_tokens
from capeval_core.registry import load
from capeval_core.result import Result
from capeval_core.scores.idf import TokenIdf
from capeval_core.scores.ngram.bleu import bleu_of_sums
from capeval_core.scores.ngram.frequencies import DocumentFrequencies
from capeval_core.scores.ngram.together import score_together
from capeval_core.statistics import Interval, NoTestError
from tests.support.seams import LIMITS
from tools.captions import describe, foils
from tools.scenes import sample_scene

NAMES = ("bleu", "rougel", "cider", "ciderd")


@pytest.fixture(scope="module")
def scenes() -> tuple[list[str], list[str], list[list[str]]]:
    """True captions, the same with a word changed in every second one, and three references."""
    rng = np.random.default_rng(4)
    drawn = [sample_scene(rng) for _ in range(60)]
    good = [describe(scene, rng) for scene in drawn]
    foiled = [foils(scene, caption, "colour") for scene, caption in zip(drawn, good, strict=True)]
    worse = [f[0] if i % 2 else c for i, (c, f) in enumerate(zip(good, foiled, strict=True))]
    return good, worse, [[describe(scene, rng) for _ in range(3)] for scene in drawn]


def test_bleu_is_of_summed_counts_and_its_interval_of_resampled_ones(scenes: Any) -> None:
    captions, _, references = scenes
    result = capeval_core.load("bleu").score(captions, references=references)
    assert list(result.numbers) == ["bleu_4", "bleu_1", "bleu_2", "bleu_3"]
    assert result.mean == result.numbers["bleu_4"] != pytest.approx(np.mean(result.scores), abs=0.01)
    summands = np.array(result.summands)
    assert bleu_of_sums(summands.sum(axis=0)).tolist() == list(result.numbers.values())
    assert [result.parts["bleu_1"], result.scores] == bleu_of_sums(summands)[:, [1, 0]].T.tolist()
    # A bootstrap of the images agrees on centre and width.
    rng = np.random.default_rng(0)
    draws = bleu_of_sums(rng.multinomial(60, np.full(60, 1 / 60), 4000) @ summands)[:, 0]
    interval = result.interval()
    low, high = np.quantile(draws, [0.025, 0.975])
    assert interval.images == 60 and interval.low < result.mean < interval.high
    assert interval.high - interval.low == pytest.approx(high - low, rel=0.15)
    assert (interval.low + interval.high) / 2 == pytest.approx((low + high) / 2, abs=0.1 * (high - low))


def test_systems_are_compared_by_resampled_counts(scenes: Any) -> None:
    captions, worse, references = scenes
    metric = capeval_core.load("bleu")
    good, bad = (metric.score(texts, references=references) for texts in (captions, worse))
    test = good.compare(bad)
    assert test.means == (good.mean, bad.mean) and test.images == 60
    assert test.difference == good.mean - bad.mean > 0
    rng = np.random.default_rng(0)
    weights = rng.multinomial(60, np.full(60, 1 / 60), 4000)
    one, other = (bleu_of_sums(weights @ np.array(each.summands))[:, 0] for each in (good, bad))
    width = np.diff(np.quantile(one - other, [0.025, 0.975]))[0]
    assert test.interval.high - test.interval.low == pytest.approx(width, rel=0.15)
    same = good.compare(good)
    assert (same.difference, same.p_value, same.interval.low, same.interval.high) == (0, 1, 0, 0)
    # Only the images that both have, with the number of those alone.
    part = metric.score(worse[:20], references=references[:20])
    assert good.compare(part).means == (
        metric.score(captions[:20], references=references[:20]).mean,
        part.mean,
    )
    assert good.compare(part).left_out == 40


APART = [f"a red dog {word} there" for word in ("runs", "sits", "lies", "eats", "jumps", "sleeps")]
"""Captions; those of `ALIKE` have no more than three words in a row in common with them."""
ALIKE = [[f"one red dog {word} here", f"the {word} there of a red dog"] for word in "abcdef"]


def test_bleu_without_four_words_in_a_row_has_a_warning_and_no_test() -> None:
    """Its number is what COCO's evaluation adds to counts, of which differences mean nothing."""
    metric = capeval_core.load("bleu")
    with pytest.warns(UserWarning, match="no caption has four words in a row of a reference"):
        none = metric.score(APART, references=ALIKE)
    with pytest.warns(UserWarning):
        longer = metric.score([f"{caption} now" for caption in APART], references=ALIKE)
    some = metric.score([*APART[1:], "the f there of a cat"], references=ALIKE)
    assert 0 < none.mean < 1e-3 < some.mean and none.mean != longer.mean
    for first, second in ((none, longer), (none, some), (some, none)):
        with pytest.raises(NoTestError) as caught:
            first.compare(second)
        assert caught.value.means == (first.mean, second.mean)
        assert (caught.value.images, caught.value.left_out) == (6, 0)
    with pytest.raises(ValueError, match="bleu_4 has no interval"):
        none.interval()
    assert some.interval().high > some.mean


@pytest.mark.parametrize("matches", [1, 2, 5])
def test_an_interval_of_few_matches_lies_within_the_range(matches: int) -> None:
    """Of 20 captions, of which one has four words in a row, it would reach below 0."""
    rest = 20 - matches
    captions = ["a red dog runs off"] * matches + [f"one dog {i} sits down" for i in range(rest)]
    references = [[f"a red dog runs {i}"] for i in range(matches)]
    references += [[f"a dog {i} sits up here"] for i in range(rest)]
    result = capeval_core.load("bleu").score(captions, references=references)
    for level in (0.5, 0.95, 0.999):
        interval = result.interval(level)
        assert 0 <= interval.low <= result.mean <= interval.high <= 1
    again = Result.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again.range == (0, 1) and again.interval() == result.interval()


def test_the_reference_itself_scores_no_more_than_the_range(scenes: Any) -> None:
    captions, _, _ = scenes
    for name in ("cider", "ciderd"):
        result = capeval_core.load(name).score(captions, references=[[caption] for caption in captions])
        assert 9.999 < max(result.scores) <= 10.0


def test_captions_with_equal_counts_have_an_interval() -> None:
    references = [[f"a dog runs in the park {i}"] for i in range(6)]
    result = capeval_core.load("bleu").score(["a dog runs in the park"] * 6, references=references)
    assert result.interval() == Interval(result.mean, result.mean, 0.95, 6)


def test_captions_of_one_image_are_resampled_together(scenes: Any) -> None:
    captions, _, references = scenes
    metric = capeval_core.load("bleu")
    twice = metric.score([*captions, *captions], references=[*references, *references])
    once = metric.score(captions, references=references)
    assert twice.mean == pytest.approx(once.mean, abs=1e-9)  # what is added to counts moves the 12th digit
    assert twice.interval().images == 60 and twice.interval().low == pytest.approx(
        once.interval().low, abs=1e-9
    )


def test_a_saved_result_is_the_same_result(scenes: Any) -> None:
    captions, _, references = scenes
    result = capeval_core.load("bleu").score(captions, references=references)
    saved = json.loads(json.dumps(result.to_dict()))
    again = Result.from_dict(saved)
    assert again == result == pickle.loads(pickle.dumps(result))
    assert again.interval() == result.interval() and again.compare(result).difference == 0
    rouge = capeval_core.load("rougel").score(captions, references=references).to_dict()
    assert "summands" not in rouge
    broken = [
        ({"summands": saved["summands"][1:]}, "59 summands"),
        ({"summands": "x"}, "equally many numbers"),
        ({"summands": [[1.0], [1.0, 2.0]]}, "equally many numbers"),
        ({"summands": [[-1.0] * 10] * 60}, "equally many numbers"),
        ({"metric": "rougel"}, "rougel has no formula of sums"),
        ({"metric": "blue"}, "did you mean 'bleu'"),
        ({"summands": [row[1:] for row in saved["summands"]]}, "9 numbers"),
        ({"summands": None}, "summands"),
    ]
    for change, message in broken:
        with pytest.raises((TypeError, ValueError), match=message):
            Result.from_dict(saved | change)


@pytest.mark.parametrize("name", NAMES)
def test_signatures_name_the_tokenizer_and_rows_resume(name: str, scenes: Any, tmp_path: Path) -> None:
    captions, _, references = scenes
    table = capeval_core.load("cider").prepare(references)
    options = {"statistics": table} if "cider" in name else {}
    metric = capeval_core.load(name, **options)
    result = metric.score(captions, references=references, rows=tmp_path)
    given = f"statistics:{table.fingerprint}|" if options else ""
    assert result.signature == f"capeval:{name}|tokenizer:ptb@1|{given}refs:3|v:{capeval_core.__version__}"
    assert metric.score(captions, references=references, rows=tmp_path) == result
    assert metric.score(captions[:9], references=references[:9], rows=tmp_path).scores == result.scores[:9]
    if options:  # a table of the same references gives the same result; another one refuses these rows
        own = capeval_core.load(name)
        assert own.score(captions, references=references) == result
        with pytest.raises(ValueError, match=r"other settings.*statistics"):
            own.score(captions[:9], references=references[:9], rows=tmp_path)


def test_together_is_as_alone(scenes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    captions, _, references = scenes
    samples = check_samples(captions, None, references, needs_references=True, media=())
    alone = [load(name).score(captions, references=references) for name in NAMES]
    assert score_together([load(name) for name in NAMES], samples) == alone  # type: ignore[misc]
    monkeypatch.setattr(LIMITS, "texts", 20)
    for some, whole in zip(score_together([load(name) for name in NAMES], samples), alone, strict=True):  # type: ignore[misc]
        assert some.scores == pytest.approx(whole.scores, abs=1e-12) and some.signature == whole.signature
    monkeypatch.undo()
    table = capeval_core.load("cider").prepare(references[:30])
    given = [load("cider", statistics=table), load("ciderd")]
    held = load("cider", statistics=table).score(captions, references=references)
    assert score_together(given, samples) == [held, alone[3]]  # type: ignore[arg-type]


def test_statistics_of_another_corpus_move_the_scores(scenes: Any) -> None:
    captions, _, references = scenes
    metric = capeval_core.load("ciderd")
    own = metric.score(captions, references=references)
    table = metric.prepare([*references, *[["a photograph of something else"]] * 60])
    other = capeval_core.load("ciderd", statistics=table).score(captions, references=references)
    assert other.mean != pytest.approx(own.mean, abs=1e-3) and other.signature != own.signature
    part = metric.score(captions[:30], references=references[:30])
    for result in (other, part):  # rarity was measured in other references
        with pytest.raises(ValueError, match="not comparable"):
            own.compare(result)
    # Bare strings are documents of one reference.
    assert metric.prepare(["a dog", "a cat"]) == metric.prepare([["a dog"], ["a cat"]])


@pytest.mark.parametrize("name", ["cider", "ciderd"])
def test_one_image_alone_gives_nothing_and_says_so(name: str) -> None:
    metric = capeval_core.load(name)
    with pytest.warns(UserWarning, match=r"one image's references give every n-gram the weight log\(1\) = 0"):
        result = metric.score(["a dog runs"], references=[["a dog runs"]])
    assert result.scores == [0.0]


@pytest.mark.parametrize("name", NAMES)
def test_wrong_input_is_refused_whole(name: str) -> None:
    metric = capeval_core.load(name)
    with pytest.raises(ValueError) as caught:
        metric.score(["a dog", "", None], references=[[], ["a"], ["b", " "]])
    for part in ("captions[1] is empty", "captions[2] is None", "references[0] is empty", "references[2][1]"):
        assert part in str(caught.value)
    with pytest.raises(ValueError, match="references is missing"):
        metric.score(["a dog"])
    with pytest.raises(TypeError, match=f"{name} has no option 'weights'"):
        capeval_core.load(name, weights="tiny")
    with pytest.warns(UserWarning, match=f"{name} compares texts alone: images are ignored"):
        metric.score(["a dog", "a cat"], ["x.jpg", "y.jpg"], [["a dog"], ["two cats"]])


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_caption_scores_zero_and_is_counted(name: str) -> None:
    metric = capeval_core.load(name, empty="score")
    result = metric.score(["", "two cats", "a dog"], references=[["a dog"], ["two cats", ""], ["a dog"]])
    assert result.counts.empty == 1 and result.scores[0] == 0 < result.scores[1]


def test_wrong_tables_are_refused() -> None:
    with pytest.raises(TypeError, match=r"statistics=.*is a TokenIdf: make them by prepare\(references\)"):
        capeval_core.load("ciderd", statistics=TokenIdf({1: 1.0}, unseen=1.0))
    metric = capeval_core.load("cider")
    with pytest.raises(ValueError, match=r"references\[1\] is empty"):
        metric.prepare([["a"], []])
    with pytest.raises(ValueError, match="there is no text to count n-grams in"):
        metric.prepare([])
    samples = metric.check(["a"], None, [["a"]])
    with pytest.raises(ValueError, match=r"prepare\(references\) and pass statistics=..."):
        metric.encode_all(samples)
    for counts, documents, message in (
        ({"a": 3}, 2, r"counts\['a'\]=3: expected a whole number from 1 to 2"),
        ({"a": 0}, 2, "from 1 to 2"),
        ({"a": 1.5}, 2, "from 1 to 2"),
        ({"a": "x"}, 2, "expected a whole number"),
        ({"a": float("nan")}, 2, "expected a whole number"),
        ({"a": 1}, 0, "documents=0: expected a whole number of at least 1"),
        ({"a b c d e": 1}, 2, "n-gram of 1 to 4 words"),
        ({"": 1}, 2, "n-gram of 1 to 4 words"),
        ({7: 1}, 2, "n-gram of 1 to 4 words"),
        ({("a", 7): 1}, 2, "n-gram of 1 to 4 words"),
        ({("a dog", "runs"): 1}, 2, "n-gram of 1 to 4 words"),
        ({"a": 1, ("a",): 2}, 2, "the n-gram comes twice"),
        ({"a": True}, 2, "expected a whole number"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            DocumentFrequencies.of_counts(counts, documents)  # type: ignore[arg-type]
    # What is not counted stands in no document: the longer n-gram counts without its beginning.
    table = DocumentFrequencies.of_counts({"a dog": 2}, 3)
    assert table.counts() == {"a dog": 2} and len(table) == 1


def test_words_are_those_of_the_treebank() -> None:
    result = capeval_core.load("rougel").score(["It's A dog , RUNNING !"], references=["it 's a dog running"])
    assert result.scores == [1.0] and ptb_tokens("It's a dog") == ["it", "'s", "a", "dog"]
