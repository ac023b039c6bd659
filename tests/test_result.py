"""`Result`: its mean, its files, its comparisons."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capeval_core
from capeval_core.result import Counts, Result, json_text

NAN = float("nan")


def result(scores: list[float], groups: list[str] | None = None, **changes: Any) -> Result:
    failed = {i: "broken" for i, score in enumerate(scores) if math.isnan(score)}
    made: dict[str, Any] = {
        "metric": "pacs",
        "key": "pac_s",
        "scores": scores,
        "parts": {"cosine": [score / 2 for score in scores]},
        "groups": groups or [str(i) for i in range(len(scores))],
        "signature": "capeval:pacs|weights:x@1|v:1",
        "counts": Counts(captions=len(scores), failed=len(failed)),
        "errors": failed,
    }
    return Result(**{**made, **changes})


def same(a: Result, b: Result) -> bool:
    """Equality under which NaN equals NaN."""
    return repr(a) == repr(b)


@given(st.lists(st.one_of(st.floats(-1, 2), st.just(NAN)), max_size=20))
@settings(max_examples=60)
def test_comes_back_from_json_as_it_was(scores: list[float]) -> None:
    first = result(scores)
    text = json.dumps(first.to_dict(), allow_nan=False)  # NaN is not JSON
    again = Result.from_dict(json.loads(text))
    assert same(again, first)
    assert again.to_dict() == first.to_dict()
    assert {type(score) for score in again.scores} <= {float}


def test_an_interval_lies_within_the_range() -> None:
    near_0, near_1 = [0.0, 0.0, 0.0, 0.0, 0.0, 0.01], [1.0, 1.0, 1.0, 1.0, 1.0, 0.99]
    assert result(near_0).interval().low < 0 == result(near_0, range=(0.0, 1.0)).interval().low
    assert result(near_1).interval().high > 1 == result(near_1, range=(0.0, 1.0)).interval().high


def test_an_interval_of_scores_beyond_the_range_is_not_cut_below_their_mean() -> None:
    """Options may move some scores beyond the range of a metric, not all."""
    for sign in (1, -1):
        scores = [sign * score for score in (0.5, 1.4, 1.5, 0.9, 1.6, 1.3)]
        own = result(scores, range=(min(0.0, sign), max(0.0, sign)))
        interval = own.interval()
        assert interval.low < own.mean < interval.high and abs(own.mean) > 1


def strictly(text: str) -> Any:
    """What a strict reader makes of `text`: NaN and Infinity are no JSON."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_infinities_come_back_as_failed_scores() -> None:
    parts = {"cosine": [math.inf, -math.inf, 0.5], "matches": [[math.inf], [{"x": -math.inf}], []]}
    first = result([math.inf, 0.4, -math.inf], parts=parts)
    for text in (json.dumps(first.to_dict(), allow_nan=False), json_text(first.to_dict())):
        saved = strictly(text)
        assert (saved["scores"], saved["mean"]) == ([None, 0.4, None], 0.4)
        assert saved["parts"] == {"cosine": [None, None, 0.5], "matches": [[None], [{"x": None}], []]}
        again = Result.from_dict(saved)
        assert math.isnan(again.scores[0]) and math.isnan(again.scores[2]) and again.mean == first.mean
        assert strictly(json_text(again.to_dict())) == saved


def test_numbers_of_a_set_have_the_means_of_parts_that_are_numbers() -> None:
    """Not of texts or lists, also where some captions have a number; failures are left out of each mean."""
    parts = {
        "cosine": [0.25, NAN, 0.75],
        "count": [1, 2, 6],
        "words": ["a", "b", "c"],
        "references": [[0.5], [0.5], [0.5]],
        "best": [0.5, None, 0.5],
        "mixed": [0.5, [0.5], 0.5],
    }
    numbers = result([0.5, NAN, 0.75], parts=parts).corpus
    assert numbers == {"cosine": 0.5, "count": 3.0, "pac_s": 0.625} and [*numbers][-1] == "pac_s"


def test_compares_systems_of_one_signature() -> None:
    first, second = result([0.5, 0.6, 0.8, 0.7, 0.9]), result([0.4, 0.7, 0.5, 0.6, 0.7])
    comparison = first.compare(second)
    assert comparison.difference == pytest.approx(first.mean - second.mean)
    assert comparison.images == 5 and comparison.left_out == 0
    assert comparison.verdict in str(comparison) and first.compare(second, level=0.5).interval.level == 0.5
    other = replace(second, signature="capeval:pacs|statistics:1|weights:y@2|v:1")
    with pytest.raises(ValueError, match=r"(?s)not comparable.*x@1.*y@2.*the same settings"):
        first.compare(other)
    assert first.compare_within_run(other) == comparison and other.signature.endswith("y@2|v:1")
    with pytest.raises(ValueError, match=r"compare\(\) is undefined for pacs: of one set"):
        replace(first, relative="of one set").compare_within_run(second)
    with pytest.raises(ValueError, match="no image in common"):
        first.compare(result([0.4, 0.5], ["p", "q"]))
    with pytest.raises(ValueError, match="at least 5 images that both systems have a score on, found 4"):
        first.compare(result([0.4, 0.7, 0.5, 0.6, NAN]))


@pytest.mark.parametrize(
    ("metric", "options", "earlier"),
    [
        ("pacs", {}, "dtype:float32|w:2|prompt:'A photo depicts '"),
        ("pacs", {"w": 2.5}, "dtype:float32|w:2.5|prompt:'A photo depicts '"),
        ("pacs", {"prompt": "", "dtype": "float16"}, "dtype:float16|w:2|prompt:''"),
        ("clips", {"compat": "released"}, "dtype:float32|compat:released|w:2.5|prompt:'A photo depicts '"),
        ("specs", {}, "dtype:float32|prompt:''|scale:cosine"),
        ("bleu", {}, ""),
    ],
)
def test_compares_with_results_whose_signatures_state_defaults(
    metric: str, options: dict[str, Any], earlier: str
) -> None:
    weights = {} if metric == "bleu" else {"weights": "tiny"}
    signature = capeval_core.load(metric, **weights, **options).signature()
    start = signature.split("|")[:2]
    stated = "|".join(
        ["capeval:" + metric, start[1], *filter(None, [earlier]), f"v:{capeval_core.__version__}"]
    )
    new, old = (result([0.5, 0.6, 0.8, 0.7, 0.9], signature=text) for text in (signature, stated))
    assert old.compare(new) == new.compare(old) == new.compare(new)
    other = result(
        new.scores, signature=f"{start[0]}|{start[1]}|dtype:bfloat16|w:9|v:{capeval_core.__version__}"
    )
    with pytest.raises(ValueError, match="not comparable"):
        old.compare(other)


ECO = "capeval:eco|weights:x@1"
DOCUMENTS = "consensus_documents:doc_caption_within_pool"


@pytest.mark.parametrize(
    ("options", "earlier"),
    [
        ("", f"|dtype:float32|ensemble:3.52|consensus_weight:1|threshold:0.39|consensus:cider|{DOCUMENTS}"),
        ("|compat:released", "|dtype:float32|compat:released|consensus:tfidf"),
        ("|compat:released|consensus:cider_d", f"|compat:released|consensus:cider_d|{DOCUMENTS}"),
        ("|compat:released|consensus:cider", f"|compat:released|consensus:cider|{DOCUMENTS}"),
        ("|consensus:tfidf", "|dtype:float32|consensus:tfidf"),
    ],
)
def test_the_usual_consensus_follows_compat(options: str, earlier: str) -> None:
    first, second = (result([0.1, 0.2, 0.3, 0.4, 0.6], signature=ECO + text) for text in (options, earlier))
    assert first.compare(second).difference == 0
    with pytest.raises(ValueError, match="not comparable"):
        first.compare(result(first.scores, signature=f"{ECO}|consensus:other"))


def test_a_signature_of_an_absent_package_is_compared_as_it_is() -> None:
    absent: dict[str, Any] = {"metric": "absent", "signature": "capeval:absent|package:a@1|dtype:float32|v:1"}
    first = result([0.1, 0.2, 0.3, 0.4, 0.6], **absent)
    assert first.compare(first).difference == 0
    with pytest.raises(ValueError, match="not comparable"):
        first.compare(replace(first, signature="capeval:absent|package:a@1|v:1"))


def test_a_file_of_an_absent_package_is_read_like_any_other() -> None:
    """Lower is better, as the file says; an earlier file says nothing of it."""
    first = result([0.5, 0.2, 0.9], metric="absent", higher_is_better=False, reads=64)
    first = replace(first, parts={"coverage": [0.5, 1.0, 1.0]})
    saved = json.loads(json_text(first.to_dict()))
    again = Result.from_dict(saved)
    assert [caption["index"] for caption in again.best(3)] == [1, 0, 2]
    assert [caption["index"] for caption in again.worst(1)] == [2]
    assert (
        again.truncation_note == first.truncation_note and "pacs reads 77 tokens" not in first.truncation_note
    )
    assert (
        first.truncation_note.startswith("17% of words were truncated: ")
        and again.to_dict() == first.to_dict()
    )
    earlier = {name: saved[name] for name in saved if name not in ("higher_is_better", "reads")}
    assert Result.from_dict(earlier).best(1)[0]["index"] == 2
    assert Result.from_dict(earlier | {"metric": "pacs"}).truncation_note.endswith(": specs reads 248 tokens")
