"""PAC-S for videos: formulas, a second way of computing, idf as a statistic of all rows."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.inputs.visual import InputImage
from capeval_core.judgements.scoring import with_references
from capeval_core.models.batching import count_forwards
from capeval_core.result import Result
from capeval_core.scores.idf import TokenIdf, token_weights
from capeval_core.scores.video import VideoPacS
from capeval_core.scores.video_formulas import Components, fine_score
from capeval_core.scores.video_rows import Pairs, text_feature, video_feature
from tests.inputs import video_writing
from tests.support.seams import LIMITS
from tests.support.seeded import encoder

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


@pytest.fixture(scope="module")
def tables(seeded_weights: Path, videos: list[Any]) -> dict[str, tuple[VideoPacS, pa.Table]]:
    """Each metric with the rows of all captions."""
    made = {}
    for name in ("pacs", "refpacs"):
        metric = opened(name, seeded_weights)
        references = REFERENCES if metric.needs_references else None
        samples = metric.check(CAPTIONS, [videos[i] for i in VIDEO_OF], references)
        made[name] = metric, metric.encode_all(samples)
    return made


def opened(name: str, weights: Path, **options: Any) -> VideoPacS:
    settings = {"weights": weights, "device": "cpu", "cache": FeatureCache(), "empty": "score", **options}
    metric = capeval_core.load(name, media="video", **settings)
    assert isinstance(metric, VideoPacS)
    return metric


def score(metric: VideoPacS, videos: Sequence[Any], only: Sequence[int] | None = None, **more: Any) -> Result:
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
        images = [InputImage.of(frame) for frame in videos[number]]
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


def test_a_negative_mean_counts_as_zero_unless_as_released() -> None:
    p, r = np.array([0.5, -0.5, -0.5, 0.25, 0.0]), np.array([0.25, 0.25, -0.5, -0.25, 0.0])
    assert fine_score(p, r).tolist() == [pytest.approx(1 / 3), 0, 0, 0, 0]
    assert fine_score(p, r, released=True).tolist()[1:3] == [pytest.approx(1.0), pytest.approx(-0.5)]
    assert np.isfinite(fine_score(np.zeros(1), np.zeros(1), released=True)).all()


def test_the_best_reference_is_one_and_released_maxima_are_of_several() -> None:
    values = [np.array(v) for v in ([0.9, 0.1, 0.3], [0.2, 0.6, 0.3], [0.1, 0.9, 0.3], [0.1, 0.8, 0.3])]
    found = Components(*values)
    counts = np.array([2, 1])
    best, largest = found.best(counts), found.largest(counts)
    assert (best.coarse.tolist(), best.fine.tolist()) == ([0.9, 0.3], [0.1, 0.3])
    assert best.score.tolist() == [0.5, 0.3]
    assert (largest.coarse.tolist(), largest.fine.tolist()) == ([0.9, 0.3], [0.8, 0.3])
    assert (largest.precision.tolist(), largest.recall.tolist()) == ([0.6, 0.3], [0.9, 0.3])
    undefined = Components(*(np.append(own, [math.nan, 0.5]) for own in values)).best(np.array([2, 1, 2]))
    assert np.isnan(undefined.coarse).tolist() == [False, False, True]


@NAMES
def test_cosines_of_minus_one_and_one_reach_both_ends_of_the_range(name: str, seeded_weights: Path) -> None:
    metric, rows = opened(name, seeded_weights, idf=False), []
    for index, cosine in enumerate([-1.0, 1.0]):
        row: dict[str, Any] = {
            "index": index,
            "group": str(index),
            "truncated": 0,
            "empty": False,
            "frames": 1,
        }
        row |= {
            "caption_ids": [8, 9],
            "caption_maxima": [cosine] * 2,
            "frame_recall": cosine,
            "cosine": cosine,
        }
        row |= {"references": 1, "reference_ids": [[8, 9]], "reference_cosines": [cosine]}
        row |= {"reference_maxima": [[cosine] * 2], "reference_caption_maxima": [[cosine] * 2]}
        rows.append({field: row.get(field) for field in metric.ROW.names})
    assert tuple(metric.combine(pa.Table.from_pylist(rows, schema=metric.ROW)).scores) == metric.range


# What a score does not depend on.


@NAMES
def test_order_and_batch_size_do_not_matter(name: str, seeded_weights: Path, videos: list[Any]) -> None:
    straight = score(opened(name, seeded_weights), videos)
    order = [3, 5, 0, 2, 4, 1]
    shuffled = score(opened(name, seeded_weights, batch_size=2), videos, order)
    assert shuffled.scores == pytest.approx([straight.scores[i] for i in order], abs=CLOSE)
    assert shuffled.signature == straight.signature


@NAMES
def test_windows_and_padding_do_not_matter(
    name: str, seeded_weights: Path, videos: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the weights of one corpus a row alone scores as among rows with longer texts and videos."""
    table = opened(name, seeded_weights).prepare(FLAT)
    metric = opened(name, seeded_weights, statistics=table)
    together = score(metric, videos)
    for row in range(len(CAPTIONS)):
        alone = score(opened(name, seeded_weights, statistics=table), videos, [row])
        assert alone.scores == pytest.approx(together.scores[row : row + 1], abs=CLOSE)
    monkeypatch.setattr(LIMITS, "video_texts", 3)
    assert score(opened(name, seeded_weights, statistics=table), videos).scores == pytest.approx(
        together.scores, abs=CLOSE
    )


@NAMES
def test_equal_rows_score_equal_and_nothing_runs_twice(
    name: str, seeded_weights: Path, videos: list[Any]
) -> None:
    metric = opened(name, seeded_weights)
    with count_forwards() as forwards:
        found = score(metric, videos)
    texts = {*CAPTIONS, *(FLAT if metric.needs_references else [])}
    assert forwards.items == sum(FRAMES) + len(texts)
    assert found.scores[0] == found.scores[5] and found.groups[0] == found.groups[5]
    with count_forwards() as forwards:
        score(metric, [list(own) for own in videos])  # the same frames in another form
        score(metric, videos)
    assert forwards.items <= sum(FRAMES)


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


def test_scores_by_different_corpora_are_not_compared(seeded_weights: Path, videos: list[Any]) -> None:
    metric = opened("refpacs", seeded_weights)
    rows = [0, 1, 2, 3, 4]
    references, own = [REFERENCES[i] for i in rows], [videos[i] for i in rows]
    one = metric.score([CAPTIONS[i] for i in rows], videos=own, references=references)
    other = metric.score([f"{CAPTIONS[i]} there" for i in rows], videos=own, references=references)
    assert one.compare(other).difference != 0  # of two systems, the references are the same
    fewer = metric.score(CAPTIONS[:5], videos=own, references=[texts[:1] for texts in references])
    with pytest.raises(ValueError, match=r"differ(?s:.*)score both systems with the same settings"):
        one.compare(fewer)  # the number of references differs, too
    plain = opened("pacs", seeded_weights)
    one, other = (plain.score([f"{CAPTIONS[i]}{end}" for i in rows], videos=own) for end in ("", " there"))
    with pytest.raises(ValueError, match=r"with the same statistics=metric\.prepare\(texts\) of one corpus"):
        one.compare(other)


@given(order=st.permutations(range(len(CAPTIONS))))
@settings(max_examples=40, deadline=None)
@NAMES
def test_the_order_of_rows_moves_nothing(
    name: str, order: list[int], tables: dict[str, tuple[VideoPacS, pa.Table]]
) -> None:
    metric, rows = tables[name]
    usual = metric.combine(rows)
    moved = rows.take(order).set_column(0, metric.ROW.field(0), pa.array(range(len(order)), pa.int64()))
    found = metric.combine(moved)
    assert found.signature == usual.signature
    assert found.scores == [usual.scores[row] for row in order]


def test_repeated_references_count_each_time(seeded_weights: Path, videos: list[Any]) -> None:
    metric = opened("refpacs", seeded_weights)
    samples = metric.check(["a"] * 3, videos[:3], [["a dog", "a dog"], ["a cat"], ["a dog"]])
    found = metric.table(metric.encode_all(samples))
    dog = metric.encoder.tokenizer.encode(["dog"]).ids[0][1]
    assert found is not None and found.of([dog]) == [pytest.approx(math.log(5 / 4))]


def test_the_id_of_padding_weighs_as_padding_does() -> None:
    """An id of 0 is in all documents but those that fill all positions."""
    documents = [(8, 0, 9), (8, 5, 9), (8, 5, 6, 9)]
    table = TokenIdf.of_padded_documents(documents, length=4, end=9)
    weights = {0: math.log(4 / 3), 5: math.log(4 / 3), 6: math.log(2), 8: 0.0}
    assert table.of([0, 5, 6, 8]) == pytest.approx([*weights.values()])
    assert table.of([9]) == [pytest.approx(sum(weights.values()) / 5)] and table.unseen == math.log(4)
    with pytest.raises(ValueError, match="no text to count words in"):
        TokenIdf.of_padded_documents([], length=4, end=9)


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


def test_texts_without_weight_count_alike() -> None:
    ids = pa.array([[7, 8], [7, 7], []], pa.list_(pa.int32()))
    weights, without = token_weights(ids, TokenIdf({7: 0.0, 8: 2.0}, unseen=1.0))
    assert weights.values.tolist() == [0, 2, 1, 1] and without.tolist() == [False, True, False]
    weights, without = token_weights(ids.slice(1), None)
    assert weights.values.tolist() == [1, 1] and not without.any()


# Rows: aggregated again, resumed, merged.


@NAMES
def test_settings_of_the_formula_need_no_new_run(
    name: str, seeded_weights: Path, videos: list[Any], tmp_path: Path
) -> None:
    """idf, its corpus and compat are applied to rows that are kept."""
    table = opened(name, seeded_weights).prepare(FLAT[:3])
    first = score(opened(name, seeded_weights), videos, rows=tmp_path)
    settings: list[dict[str, Any]] = [{"idf": False}, {"statistics": table}, {"compat": "released"}]
    for options in settings:
        expected = score(opened(name, seeded_weights, **options), videos)
        metric = opened(name, seeded_weights, **options)
        with count_forwards() as forwards:
            found = score(metric, videos, rows=tmp_path)
        assert forwards.items == 0 and found == expected and found.scores != first.scores
    with pytest.raises(ValueError, match="max_frames"):
        score(opened(name, seeded_weights, max_frames=2), videos, rows=tmp_path)


@NAMES
def test_a_run_resumes_and_rows_of_processes_merge(
    name: str, seeded_weights: Path, videos: list[Any], tmp_path: Path
) -> None:
    metric = opened(name, seeded_weights)
    with count_forwards() as all_rows:
        whole = score(metric, videos)
    score(opened(name, seeded_weights), videos, [0, 1, 2], rows=tmp_path)
    metric = opened(name, seeded_weights)
    with count_forwards() as forwards:
        resumed = score(metric, videos, rows=tmp_path)
    assert resumed.scores == pytest.approx(whole.scores, abs=CLOSE) and resumed.signature == whole.signature
    assert 0 < forwards.items <= all_rows.items - sum(FRAMES[:3])
    # Parts of the input by metrics that know nothing of each other, rows in any order.
    tables = []
    for share in ([5, 3, 1], [0, 2, 4]):
        metric = opened(name, seeded_weights)
        samples = metric.check(CAPTIONS, [videos[i] for i in VIDEO_OF], REFERENCES).select(share)
        tables.append(metric.encode_all(samples))
    merged = metric.combine(pa.concat_tables(tables[::-1]))
    assert merged.scores == pytest.approx(whole.scores, abs=CLOSE) and merged.signature == whole.signature
    assert len(opened(name, seeded_weights).combine(metric.ROW.empty_table()).scores) == 0


def test_fewer_references_are_another_aggregation(seeded_weights: Path, videos: list[Any]) -> None:
    """Also their idf: that of the references which are left."""
    metric, own = opened("refpacs", seeded_weights), [videos[i] for i in VIDEO_OF]
    rows = metric.encode_all(metric.check(CAPTIONS, own, REFERENCES))
    chosen = with_references(rows, metric.reference_columns, [[1]] + [[0]] * 5)
    fewer = [REFERENCES[0][1:], *(texts[:1] for texts in REFERENCES[1:])]
    found, expected = metric.combine(chosen), metric.score(CAPTIONS, videos=own, references=fewer)
    assert found.scores == pytest.approx(expected.scores, abs=CLOSE)
    assert found.signature == expected.signature and found.scores != metric.combine(rows).scores


# Bad input.


@NAMES
def test_a_video_that_fails_costs_its_row_and_its_texts_still_count(
    name: str, seeded_weights: Path, videos: list[Any], tmp_path: Path
) -> None:
    broken = tmp_path / "frames"
    broken.mkdir()
    (broken / "0.png").write_bytes(b"nothing")
    whole = score(opened(name, seeded_weights), videos)
    for rows in ([1], [0, 1, 2, 3, 4]):
        used = [broken if i in rows else own for i, own in enumerate(videos)]
        found = score(opened(name, seeded_weights, on_error="nan"), used)
        failed = [i for i, number in enumerate(VIDEO_OF) if number in rows]
        assert [i for i, value in enumerate(found.scores) if math.isnan(value)] == failed
        assert list(found.errors) == failed and f"videos[{failed[0]}]" in found.errors[failed[0]]
        for row in set(range(len(CAPTIONS))) - set(failed):
            assert found.scores[row] == pytest.approx(whole.scores[row], abs=CLOSE)
        assert found.signature == whole.signature


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


def test_features_that_are_no_numbers_cost_their_pairs() -> None:
    rng = np.random.default_rng(0)
    good, other = rng.standard_normal((2, 3, 4)).astype(np.float32)
    bad = good.copy()
    bad[1, 2] = np.inf
    sound, broken = Pairs(video_feature), Pairs(video_feature)
    for pairs, odd in ((sound, other), (broken, bad)):
        assert [pairs.add(1, good, 1, good), pairs.add(2, odd, 1, good), pairs.add(1, good, 2, odd)] == [
            0,
            1,
            2,
        ]
        assert pairs.add(1, good, 1, good) == 0
    expected, found = sound.matched(), broken.matched()
    assert found.x_maxima[0] == expected.x_maxima[0] and found.recall[0] == expected.recall[0]
    assert all(np.isnan(found.x_maxima[pair].as_py()).all() for pair in (1, 2))
    assert np.isnan(found.recall.to_numpy()[1:]).all()


def test_texts_that_are_too_long_are_cut_and_counted(seeded_weights: Path, videos: list[Any]) -> None:
    long = "dog " * 100
    found = opened("refpacs", seeded_weights).score([long, "a"], videos=videos[:2], references=[["a"], ["b"]])
    assert found.counts.truncated == 1 and np.isfinite(found.scores).all()
    cut = opened("refpacs", seeded_weights).score(
        ["dog " * 75, "a"], videos=videos[:2], references=[["a"], ["b"]]
    )
    assert found.scores == pytest.approx(cut.scores, abs=CLOSE)
    twice = opened("refpacs", seeded_weights).score(["a"], videos=videos[:1], references=[[long, long, "b"]])
    assert twice.counts.truncated == 1 and twice.counts.captions == 1


def test_sampled_frames(seeded_weights: Path, videos: list[Any]) -> None:
    for frames in (1, 3, 10):
        metric = opened("pacs", seeded_weights, max_frames=frames)
        chosen = [own[np.linspace(0, len(own) - 1, frames).astype(int)] for own in videos]
        expected = score(opened("pacs", seeded_weights), chosen)
        assert score(metric, videos).scores == pytest.approx(expected.scores, abs=CLOSE)
    samples = metric.check(CAPTIONS[:1], videos[:1])
    rows = metric.encode_all(samples)
    assert rows["frames"].to_pylist() == [10] and rows["incomplete"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"statistics": "corpus"}, TypeError, "statistics='corpus'"),
        ({"idf": False, "statistics": TokenIdf({1: 1.0}, 1.0)}, ValueError, "but idf=False"),
        ({"fps": 1, "max_frames": 2}, ValueError, "max_frames=2 is given together with fps=1"),
        ({"fps": 0}, ValueError, "fps=0"),
        ({"max_frames": 0}, ValueError, "max_frames=0"),
        ({"w": 2.0}, TypeError, "w=2.0 is an option of (ref)?pacs for images: open load"),
        ({"prompt": "A "}, TypeError, "prompt='A ' is an option of (ref)?pacs for images: open load"),
        ({"layer": 2}, TypeError, "no option 'layer'"),
    ],
)
@NAMES
def test_wrong_options_are_refused_before_weights_are_opened(
    name: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        capeval_core.load(name, media="video", weights="/nowhere", **options)


# Explanations.


@NAMES
def test_explanations_show_frames_and_words(name: str, weights: str) -> None:
    from tools.scenes import Scene, SceneObject, draw

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


def test_explanations_of_failures_say_why(seeded_weights: Path, videos: list[Any], tmp_path: Path) -> None:
    metric = opened("pacs", seeded_weights, evidence=True, on_error="nan")
    found = metric.score(["a", "b"], videos=[tmp_path / "none.mp4", videos[1]])
    assert "none.mp4" in found.explain(0)["error"] and found.explain(0)["words"] == []
    with pytest.raises(ValueError, match="no score to draw"):
        found.explain(0).plot()
    weights = [match["weight"] for match in found.explain(1)["words"]]
    assert weights == pytest.approx([0, math.log(3 / 2), math.log(3 / 2) * 2 / 5])


def test_the_whole_of_a_video_is_the_mean_of_unit_frames() -> None:
    frames = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32) * np.arange(1, 51)[:, None]
    frames = np.vstack([frames, np.zeros((1, 8))]).astype(np.float32)
    expected = np.vstack([unit64(frames[:50]), np.zeros((1, 8))]).mean(axis=0)
    assert video_feature(frames) == pytest.approx(expected, abs=1e-7)
    assert text_feature(frames[:3]).tolist() == frames[2].tolist()


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("a dog", r"texts is a single string: pass a list, texts=\[...\]"),
        (["a dog", None], r"texts\[1\] is None: leave it out"),
        ([["a dog", 7]], r"texts\[0\]\[1\] is the number 7: expected a string"),
        ([], "texts=.*no text to count words in"),
    ],
)
def test_texts_of_a_corpus_are_checked(texts: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        capeval_core.load("refpacs", media="video", weights="tiny").prepare(texts)


@pytest.mark.parametrize("of", [{"name": "refpacs", "media": "video"}, {"name": "vilbertscore"}])
def test_a_corpus_may_be_lists_of_references(of: dict[str, Any]) -> None:
    metric: Any = capeval_core.load(**of, weights="tiny")
    assert metric.prepare([["a dog", "a hound"], ["a cat"]]) == metric.prepare(["a dog", "a hound", "a cat"])
