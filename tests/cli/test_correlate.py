"""`capeval correlate`: ratings of one's own, joined by id, caption or order."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from tests.cli.conftest import Ran

Capeval = Callable[..., Ran]


def numbers(path: Path) -> dict[str, float]:
    with path.open(newline="") as file:
        return {row["column"]: float(row["value"] or "nan") for row in csv.DictReader(file)}


def test_ratings_are_joined_by_id_and_what_is_left_out_is_counted(capeval: Capeval, tmp_path: Path) -> None:
    scores = {"a": 0.1, "b.jpg": 0.4, "c": 0.3, "d": 0.2, "e": 0.9, "f": 0.7}
    (tmp_path / "s.json").write_text(json.dumps(scores))
    ratings = "image_id,rating\na,1\nb,3\nc,\nd,nan\nd,good\ne.png,5\nf,4\nzz,3\na,2\n"
    (tmp_path / "h.csv").write_text(ratings)
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.csv", "--csv", tmp_path / "o.csv")
    assert (ran.status, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].split() == ["metric", "tau_b", "tau_c", "spearman", "pearson", "acc_eq"]
    for reason in ("1 rating missing", "2 ratings not a number", "1 rating of an unknown image id"):
        assert f"left out: {reason}" in lines
    kept = ([0.1, 0.4, 0.9, 0.7, 0.1], [1, 3, 5, 4, 2])
    found = numbers(tmp_path / "o.csv")
    assert found["tau_b"] == pytest.approx(100 * kendalltau(*kept).statistic, abs=1e-5)
    assert found["tau_c"] == pytest.approx(100 * kendalltau(*kept, variant="c").statistic, abs=1e-5)


def test_several_captions_of_an_image_are_joined_by_their_text(capeval: Capeval, tmp_path: Path) -> None:
    scored = {
        "metric": "pacs",
        "scores": [0.1, 0.9, None, 0.5],
        "ids": ["a", "a", "b", "b"],
        "captions": ["a dog", "a  cat", "x", "y"],
    }
    (tmp_path / "s.json").write_text(json.dumps(scored))
    rows = [
        {"image_id": "a", "caption": "a cat", "rating": 5},
        {"image_id": "a", "caption": "a dog", "rating": 1},
        {"image_id": "a", "caption": "a cow", "rating": 1},
        {"image_id": "a", "rating": 2},
        {"image_id": "b", "caption": "x", "rating": 2},
        {"image_id": "b", "caption": "y", "rating": 3},
    ]
    (tmp_path / "h.json").write_text(json.dumps(rows))
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.json", "--statistics", "tau_b,acc_eq")
    assert ran.status == 0
    assert ran.out.splitlines()[1].split() == ["pacs", "100.00", "100.00"]
    assert "left out: 1 rating of a caption that has no score" in ran.out
    assert "left out: 1 rating without a caption of an image with several scores" in ran.out
    assert "pacs: 1 caption has no score" in ran.out


def test_a_caption_with_two_different_scores_is_left_out(capeval: Capeval, tmp_path: Path) -> None:
    scored = {
        "scores": [0.1, 0.9, 0.4, 0.4, 0.5, 0.2, None, 0.3],
        "ids": ["a", "a", "b", "b", "c", "d", "e", "e"],
        "captions": ["x", "x ", "x", "x", "x", "x", "x", "x"],
    }
    (tmp_path / "s.json").write_text(json.dumps(scored))
    rows = [{"image_id": i, "caption": "x", "rating": r} for r, i in enumerate("abcde")]
    (tmp_path / "h.json").write_text(json.dumps(rows))
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.json", "--csv", tmp_path / "o.csv")
    assert "left out: 2 ratings of a caption that has different scores" in ran.out
    expected = kendalltau([0.4, 0.5, 0.2], [1, 2, 3]).statistic
    assert numbers(tmp_path / "o.csv")["tau_b"] == pytest.approx(100 * expected, abs=1e-5)


def test_lists_are_joined_by_order(capeval: Capeval, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = rng.random(30)
    ratings = np.round(scores * 3 + rng.normal(size=30))
    (tmp_path / "s.json").write_text(json.dumps(scores.tolist()))
    (tmp_path / "h.jsonl").write_text("".join(f'{{"score": {rating}}}\n' for rating in ratings))
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.jsonl", "--csv", tmp_path / "o.csv")
    assert ran.status == 0 and "[" in ran.out  # there are intervals
    expected = 100 * kendalltau(scores, ratings).statistic
    assert numbers(tmp_path / "o.csv")["tau_b"] == pytest.approx(expected, abs=1e-5)
    (tmp_path / "h.jsonl").write_text('{"score": 1}\n')
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.jsonl")
    assert ran.status == 2 and "has 1 rows for 30 scores without ids" in ran.err
    (tmp_path / "s.json").write_text("[1, 2, 3]")
    (tmp_path / "h.jsonl").write_text('{"score": 1}\nnull\n{"score": 2}\n{"score": 3}\n')
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.jsonl")
    assert ran.status == 2 and "line 2 is null: expected an object with a rating" in ran.err
    (tmp_path / "h.jsonl").write_text(f'{{"score": {"9" * 5_000}}}\n')
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.jsonl")
    assert ran.status == 2 and "h.jsonl: is not jsonl (Exceeds the limit" in ran.err


@pytest.mark.parametrize(
    ("scores", "human", "status", "message"),
    [
        ('{"a": 0.1, "b": 0.1}', "id,rating\na,1\nb,2\n", 1, "all 2 scores are equal"),
        ('{"a": 0.1, "b": 0.2}', "id,rating\na,1\nb,1\n", 1, "all 2 ratings are equal"),
        ('{"a": 0.1, "b": 0.2}', "id,rating\na,1\n", 1, "there is 1 row, and a correlation needs two"),
        ('{"a": 0.1}', "id,rating\nq,1\n", 2, "no rating of a scored caption, in 1 rows ('q'; scores are of"),
        ('{"a": 0.1}', "id,rating\na,good\n", 2, "in 1 rows: left out are 1 rating not a number"),
        ('{"a": 0.1, "b": 0.2, "c": 0.4}', "id,rating\na,1\nb,2\n", 0, "1 scores without a rating"),
        (
            '{"ids": ["a", "a"], "captions": ["x", "y"], "scores": [1, 2]}',
            "id,rating\na,1\n",
            2,
            "1 rows: left out are 1 ratings without a caption of an image with several scores",
        ),
        (
            '{"a": 0.1}',
            "id,ratng\na,1\n",
            2,
            "no column of the rating (rating, score, human_score, judgement)",
        ),
        ('{"a": 0.1}', "picture,rating\na,1\n", 2, "no column of the image id"),
        ('{"a": "x"}', "id,rating\na,1\n", 2, "id 'a' is a str of length 1: scores are numbers, or null"),
        ("{}", "id,rating\na,1\n", 2, "expected a file of `capeval score --json`"),
        ("{", "id,rating\na,1\n", 2, "not JSON"),
        ('{"scores": [1], "ids": []}', "id,rating\na,1\n", 2, "ids and scores are not equally many"),
        ('{"a": 0.1}', "", 2, "holds no rows"),
        ('{"a": 0.1, "a": 0.2}', "id,rating\na,1\n", 2, "the key 'a' comes twice"),
        (f'{{"a": {"9" * 400}}}', "id,rating\na,1\n", 2, "scores are numbers, or null"),
        ('{"a": 0.1}', "id,rating,rating\na,1,2\n", 2, "the column 'rating' comes twice"),
    ],
)
def test_what_has_no_correlation_is_told(
    capeval: Capeval, tmp_path: Path, scores: str, human: str, status: int, message: str
) -> None:
    (tmp_path / "s.json").write_text(scores)
    (tmp_path / "h.csv").write_text(human)
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.csv")
    assert ran.status == status
    assert message in ran.out + ran.err


def test_files_and_statistics_are_checked(capeval: Capeval, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"a": 1}')
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "none.csv")
    assert ran.status == 2 and "none.csv: there is no such file" in ran.err
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "s.txt")
    assert ran.status == 2 and "extension '.txt'" in ran.err
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "none.csv", "--statistics", "taub")
    assert ran.status == 2 and "'taub': unknown: did you mean 'tau_b'" in ran.err
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "none.csv", "--statistics", ",")
    assert ran.status == 2 and "--statistics names no statistic (known: tau_b," in ran.err
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.csv", "--csv", tmp_path / "s.json")
    assert ran.status == 2 and "s.json is the file of the scores, which it would overwrite" in ran.err


def test_scores_of_several_systems_are_refused(capeval: Capeval, tmp_path: Path) -> None:
    results = [{"metric": name, "scores": [0.1]} for name in ("pacs", "refpacs", "clips")]
    systems = [{"system": name, "ids": ["a"], "results": results} for name in ("A", "B")]
    (tmp_path / "s.json").write_text(json.dumps({"baseline": "A", "test": "", "systems": systems}))
    (tmp_path / "h.csv").write_text("image_id,rating\na,1\n")
    ran = capeval("correlate", tmp_path / "s.json", tmp_path / "h.csv")
    assert ran.status == 2
    assert "s.json holds 2 systems by 3 metrics: write the scores of one system by one metric" in ran.err
