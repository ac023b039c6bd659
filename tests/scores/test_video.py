"""PAC-S for videos: a second way of computing, idf as a statistic of all rows, videos that fail."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.result import Result
from tests.inputs import video_writing
from tests.support.seams import LIMITS, visual
from tests.support.seeded import encoder
from tools.scenes import Scene, SceneObject, draw

CLOSE = 1e-6
CAPTIONS = [
    "a red dog!",
    "a cat sits",
    "",
    "a dog runs after a dog",
    "two cats and a bird in the snow",
    "a red dog!",
]
REFERENCES = [
    ["a dog", "the red dog runs"],
    ["a cat sits"],
    ["", "snow", "a bird"],
    ["dogs run", "a dog and a cat", "a red dog"],
    ["birds in snow", "a cat"],
    ["a dog", "the red dog runs"],
]
FLAT = [text for own in REFERENCES for text in own]
VIDEO_OF = [0, 1, 2, 3, 4, 0]
FRAMES = [1, 4, 2, 7, 3]
SEED = 5
"""Of frames; with it some means are negative, with and without idf."""
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def videos() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(SEED)
    return [rng.integers(0, 256, (frames, 24, 32, 3), dtype=np.uint8) for frames in FRAMES]


def opened(name: str, weights: Path, **options: Any) -> Any:
    settings = {"weights": weights, "device": "cpu", "cache": FeatureCache(), "empty": "score", **options}
    return capeval_core.load(name, media="video", **settings)


def score(metric: Any, videos: Sequence[Any], only: Sequence[int] | None = None, **more: Any) -> Result:
    chosen = range(len(CAPTIONS)) if only is None else only
    references = [REFERENCES[i] for i in chosen] if metric.needs_references else None
    own = [videos[VIDEO_OF[i]] for i in chosen]
    return metric.score([CAPTIONS[i] for i in chosen], videos=own, references=references, **more)


NAMES = pytest.mark.parametrize("name", ["pacs", "refpacs"])


# A second way of computing: float64, one pair after another.


def unit64(rows: Any) -> Array:
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def idf_by_hand(texts: Sequence[str]) -> Any:
    """EMScore's dictionary, of ids padded to 77."""
    tokenizer = encoder().tokenizer
    documents = [list(ids) + [0] * (77 - len(ids)) for ids in tokenizer.encode(texts).ids]
    counts = Counter(index for ids in documents for index in set(ids))
    table = {index: math.log((len(texts) + 1) / (count + 1)) for index, count in counts.items()}
    table[tokenizer.end] = sum(table.values()) / len(table)
    return lambda index: table.get(index, math.log(len(texts) + 1))


def mean(values: Array, weights: Any) -> float:
    weights = np.array(weights) if any(weights) else np.ones(len(weights))
    return float((values * weights).sum() / weights.sum())


def f1(p: float, r: float, released: bool) -> float:
    if released:
        return 2 * p * r / (p + r) if p + r else 0.0
    return 2 * p * r / (p + r) if p > 0 and r > 0 else 0.0


def by_hand(
    videos: Sequence[Any], *, idf: Sequence[str] | None, released: bool = False, references: bool = False
) -> list[float]:
    clip, off = encoder(), FeatureCache(0)
    weight = idf_by_hand(idf) if idf else lambda index: 1.0
    texts = [*CAPTIONS, *FLAT]
    features = clip.encode_tokens(texts, cache=off).features
    tokens = {text: unit64(rows) for text, rows in zip(texts, features, strict=True)}
    weights = lambda text: [weight(i) for i in clip.tokenizer.encode([text]).ids[0]]  # noqa: E731
    scores = []
    for caption, own, number in zip(CAPTIONS, REFERENCES, VIDEO_OF, strict=True):
        images = [visual("image", frame) for frame in videos[number]]
        frames = unit64(np.concatenate([part.features for part in clip.encode_images(images, cache=off)]))
        words = tokens[caption]
        whole = unit64(frames.mean(axis=0))
        similarity = words @ frames.T
        p, r = mean(similarity.max(axis=1), weights(caption)), float(similarity.max(axis=0).mean())
        score = (words[-1] @ whole + f1(p, r, released)) / 2
        if references:
            fine, coarse = [], []
            for text in own:
                similarity = words @ tokens[text].T
                p = mean(similarity.max(axis=1), weights(caption))
                r = mean(similarity.max(axis=0), weights(text))
                fine.append(f1(p, r, released))
                coarse.append(words[-1] @ tokens[text][-1])
            best = max(fine) + max(coarse) if released else max(map(sum, zip(fine, coarse, strict=True)))
            score = (score + best / 2) / 2
        scores.append(float(score))
    return scores


@pytest.mark.parametrize("idf", [True, False])
@pytest.mark.parametrize("compat", [None, "released"])
@NAMES
def test_scores_are_those_of_a_plain_computation(
    name: str, compat: str | None, idf: bool, seeded_weights: Path, videos: list[Any]
) -> None:
    found = score(opened(name, seeded_weights, idf=idf, compat=compat), videos)
    corpus = (FLAT if name == "refpacs" else CAPTIONS) if idf else None
    expected = by_hand(videos, idf=corpus, released=compat is not None, references=name == "refpacs")
    assert found.scores == pytest.approx(expected, abs=CLOSE, rel=1e-4)
    assert np.std(found.scores) > 0.01 and found.counts.empty == 1 and found.errors == {}
    # Both signs of means must have been met, or the definition of F was not tested.
    precision, recall = np.array(found.parts["precision"]), np.array(found.parts["recall"])
    assert (precision * recall < 0).any() and (precision * recall > 0).any()


# What a score does not depend on.


# Inverse document frequencies.


@NAMES
def test_the_idf_is_that_of_the_rows(name: str, seeded_weights: Path, videos: list[Any]) -> None:
    own = opened(name, seeded_weights)
    corpus = FLAT if own.needs_references else CAPTIONS
    table = own.prepare(corpus)
    expected = idf_by_hand(corpus)
    assert table.of(range(600)) == pytest.approx([expected(index) for index in range(600)])
    ends = (own.encoder.tokenizer.start, own.encoder.tokenizer.end)
    assert table.of(ends) == pytest.approx([0, expected(ends[1])]) and table.of(ends)[1] > 0
    samples = own.check(CAPTIONS, [videos[i] for i in VIDEO_OF], REFERENCES)
    assert own.prepare(own.corpus(samples)) == table
    found = score(own, videos)
    given = score(opened(name, seeded_weights, statistics=table), videos)
    assert given == found and f"|idf:True|statistics:{table.fingerprint}|" in found.signature
    other = score(opened(name, seeded_weights, statistics=own.prepare(["dog", "a bird", "a cat"])), videos)
    plain = score(opened(name, seeded_weights, idf=False), videos)
    assert len({tuple(result.scores) for result in (found, other, plain)}) == 3
    assert "|idf:False|" in plain.signature and "statistics" not in plain.signature


@NAMES
def test_a_corpus_of_one_text_has_no_idf(name: str, seeded_weights: Path, videos: list[Any]) -> None:
    metric, plain = opened(name, seeded_weights), opened(name, seeded_weights, idf=False)
    references = [["a dog sits"]] if metric.needs_references else None
    texts = 2 if references else 1
    with pytest.warns(UserWarning, match=rf"no idf for {texts} texts?,") as caught:
        found = metric.score(["a dog"], videos=videos[1:2], references=references)
    assert caught[0].filename == __file__
    even = plain.score(["a dog"], videos=videos[1:2], references=references)
    assert found.scores == even.scores and np.isfinite(found.scores).all()
    assert found.parts["unweighted_texts"] == [texts] and even.parts["unweighted_texts"] == [0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        more = references and [*references, ["a cat"]]
        assert metric.score(["a dog", "a cat"], videos=videos[1:3], references=more).scores != even.scores


# Bad input.


@NAMES
def test_of_a_damaged_video_the_beginning_is_compared_and_it_is_said(name: str, seeded_weights: Path) -> None:
    pytest.importorskip("av")
    whole = video_writing.video("mkv")
    cut = whole[: len(whole) * 2 // 3]
    metric = opened(name, seeded_weights, evidence=True)
    captions, references = ["a dog", "a cat", "snow"], [["a cat"], ["a dog"], ["a bird"]]
    given: dict[str, Any] = {"references": references} if metric.needs_references else {}
    with pytest.warns(
        UserWarning, match=r"1 caption is .* damaged video; videos\[1\]: frames end after"
    ) as caught:
        found = metric.score(captions, videos=[whole, cut, whole], **given)
    assert caught[0].filename == __file__ and found.errors == {}
    frames = len(found.explain(1)["frame_cosines"])
    assert f"frames end after {frames:,}: " in found.explain(1)["incomplete"]
    assert len(found.explain(0)["frame_cosines"]) == 12 > frames and found.explain(0)["incomplete"] is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        beginning = metric.score(captions, videos=[whole, video_writing.drawn()[:frames], whole], **given)
    assert found.scores == pytest.approx(beginning.scores, abs=CLOSE)


# Explanations.


@NAMES
def test_explanations_show_frames_and_words(name: str, weights: str) -> None:
    def shown(shape: str, colour: str) -> Any:
        return draw(Scene((SceneObject(shape, colour, "large", (0.5, 0.5), 0.3),), "white"), 96)

    frames = [shown("circle", "red"), shown("star", "blue"), shown("star", "blue"), shown("heart", "green")]
    options = {"weights": weights, "device": "cpu", "evidence": True, "idf": False}
    metric = capeval_core.load(name, media="video", **options)
    references = [["a large green heart", "a circle"], ["a star"]] if metric.needs_references else None
    captions = ["a large green heart", "a blue star"]
    found = metric.score(captions, videos=[frames, frames], references=references)
    note = found.explain(0)
    assert note["caption"] == captions[0] and len(note["frame_cosines"]) == 4
    assert int(np.argmax(note["frame_cosines"])) == 3
    words = {match["word"]: match for match in note["words"]}
    assert words["heart"]["frame"] == words["green"]["frame"] == 3
    assert int(np.argmax(found.explain(1)["frame_cosines"])) in (1, 2)
    best = [match["cosine"] for match in note["words"]]
    assert found.parts["precision"][0] == pytest.approx(np.mean(best), abs=CLOSE)
    assert {match["weight"] for match in note["words"]} == {1.0} and note["incomplete"] is None
    assert note.plot().width > 300 and "error" not in note
    if references:
        assert [each["reference"] for each in note["references"]] == references[0]
        assert note["references"][0]["score"] == pytest.approx(1, abs=CLOSE)
        assert found.parts["reference_score"][0] == note["references"][0]["score"]


@NAMES
def test_explanations_belong_to_their_rows(
    name: str, seeded_weights: Path, videos: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several windows, and of rows with different numbers of references."""
    whole = score(opened(name, seeded_weights, evidence=True), videos)
    monkeypatch.setattr(LIMITS, "video_texts", 7)  # windows of two rows and of one
    found = score(opened(name, seeded_weights, evidence=True), videos)
    for row, number in enumerate(VIDEO_OF):
        note, expected = found.explain(row), whole.explain(row)
        assert note["caption"] == CAPTIONS[row] and len(note["frame_cosines"]) == FRAMES[number]
        assert len(note["words"]) == len(encoder().tokenizer.encode(CAPTIONS[row : row + 1]).ids[0])
        cosines, weights = ([match[key] for match in note["words"]] for key in ("cosine", "weight"))
        assert found.parts["precision"][row] == pytest.approx(np.average(cosines, weights=weights), abs=1e-5)
        assert note["frame_cosines"] == pytest.approx(expected["frame_cosines"], abs=CLOSE)
        assert max(note["frame_cosines"]) == cosines[-1]  # of the end token, which is the whole caption
        best = [each["score"] for each in note.get("references", [])]
        assert [each["reference"] for each in note.get("references", [])] == (REFERENCES[row] if best else [])
        assert not best or max(best) == found.parts["reference_score"][row]
