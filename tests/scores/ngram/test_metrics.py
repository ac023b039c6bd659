"""What metrics of n-grams do beyond their formulas: corpus numbers, tables of frequencies, wrong input."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import capeval_core
from capeval_core.result import Result
from capeval_core.statistics import NoTestError
from tools.captions import describe, foils
from tools.scenes import sample_scene


def bleu_of_sums(sums: Any) -> Any:
    """BLEU-4, 1, 2 and 3 of matches and n-grams for each n, length and reference length."""
    precisions = (sums[..., :4] + 1e-15) / (sums[..., 4:8] + 1e-9)
    length, reference = sums[..., 8] + 1e-15, sums[..., 9] + 1e-9
    penalty = np.exp(np.minimum(1 - 1 / (length / reference), 0))
    values = np.exp(np.cumsum(np.log(precisions), axis=-1) / np.arange(1, 5)) * penalty[..., None]
    return values[..., [3, 0, 1, 2]]


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
    assert bleu_of_sums(summands.sum(axis=0)) == pytest.approx(list(result.numbers.values()), abs=1e-12)
    alone = np.array([result.scores, result.parts["bleu_1"]])
    assert np.allclose(bleu_of_sums(summands)[:, :2].T, alone, rtol=0, atol=1e-12)
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


def test_captions_of_one_image_are_resampled_together(scenes: Any) -> None:
    captions, _, references = scenes
    metric = capeval_core.load("bleu")
    twice = metric.score([*captions, *captions], references=[*references, *references])
    once = metric.score(captions, references=references)
    assert twice.mean == pytest.approx(once.mean, abs=1e-9)  # what is added to counts moves the 12th digit
    assert twice.interval().images == 60 and twice.interval().low == pytest.approx(
        once.interval().low, abs=1e-9
    )


METEOR = {
    "the red dog runs ||| the red dog runs": "4 4 1 1 3 3 1 1 0 0 0 0 0 0 0 0 0 0 0 0 1 4 4",
    "the red dog runs ||| runs dog red the": "4 4 1 1 3 3 1 1 0 0 0 0 0 0 0 0 0 0 0 0 4 4 4",
    "the red dog runs ||| the red dogs ran here": "5 4 1 1 1 1 1 1 1 1 0 0 1 1 0 0 0 0 0 0 1 4 4",
    "a cat ||| zebra": "1 2 0 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
    "a cat ||| zebra cat here": "3 2 0 1 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 1 1",
    "a cat ||| a big cat ||| a big dog": "3 3 1 1 1 1 1 1 0 0 0 0 0 0 0 0 0 0 0 0 1 2 2",
}
"""Lines that METEOR 1.5 reads, references before the caption, and the counts that it answers."""


@pytest.fixture
def recorded_meteor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `java` that answers for METEOR's program, in its folder, what that answered."""
    pytest.importorskip("pycocoevalcap.meteor.meteor")
    (tmp_path / "answers.json").write_text(json.dumps(METEOR))
    program = f"""#!{sys.executable}
import json, os, sys
folder = {str(tmp_path)!r}
jar = sys.argv[3]
if not os.path.isfile(jar):
    sys.exit(f"no {{jar}}")
answers = json.load(open(os.path.join(folder, "answers.json")))
for line in sys.stdin.read().splitlines():
    print(answers[line.removeprefix("SCORE ||| ")])
"""
    (tmp_path / "java").write_text(program)
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def test_meteor_is_made_of_what_its_program_counts(recorded_meteor: Path) -> None:
    """Numbers of pycocoevalcap for these captions, with the program itself."""
    lines = [line.split(" ||| ") for line in METEOR]
    captions, references = [line[-1] for line in lines], [line[:-1] for line in lines]
    metric = capeval_core.load("meteor")
    result = metric.score(captions, references=references)
    # Its own words in another order are as many fragments as words: 1 - 0.6. One fragment has no penalty
    # only where it is all of both.
    expected = [1.0, 0.4, 0.42787916233343737, 0.0, 0.25263157894736843, 0.272954092584186]
    assert result.scores == pytest.approx(expected, abs=1e-12)
    assert result.mean == pytest.approx(0.3705956730164515, abs=1e-12)
    # An answer too many would move all that follow to another caption.
    answers = {**METEOR, "a cat ||| zebra": "\n".join([METEOR["a cat ||| zebra"]] * 2)}
    (recorded_meteor / "answers.json").write_text(json.dumps(answers))
    with pytest.raises(ValueError, match="METEOR's program"):
        metric.score(captions, references=references)
