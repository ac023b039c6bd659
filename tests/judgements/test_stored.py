"""Scores of files: forms, pairs, scorings, and what does not fit."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capeval_core.errors import FileError
from capeval_core.judgements.judging import Judged
from capeval_core.judgements.sets import load_set
from capeval_core.judgements.stored import read_scores
from tests.judgements.data import SHARED, needs_shared, write_expert, write_foil, write_pascal

CAPTIONS = ["a red  round circle", "two stars", "a green circle", "some blue stars here"]
"""Of `write_expert`, without the one that is a reference."""


def scores_of(path: Path, name: str, folder: Path) -> dict[str, list[list[float]]]:
    return {
        label: [run.scores.tolist() for run in runs]
        for label, runs in read_scores(path, load_set(name, folder)).items()
    }


def test_arrays_and_lists_are_read_by_name(tmp_path: Path) -> None:
    folder = write_expert(tmp_path / "set")
    np.savez(tmp_path / "s.npz", FLEUR=np.arange(4.0), rating=np.arange(4), **{"x__y": np.ones(4)})
    expected = {"FLEUR": [[0, 1, 2, 3]], "x__y": [[1, 1, 1, 1]]}
    assert scores_of(tmp_path / "s.npz", "flickr8k_expert", folder) == expected
    for content, label in [
        ([1, 2, 3, 4], "mine"),
        ({"mine": [1, 2, 3, 4]}, "mine"),
        ({"metric": "umic", "scores": [1, 2, 3, 4]}, "umic"),
        ({"scores": [1, 2, 3, 4], "captions": CAPTIONS}, "mine"),
    ]:
        (tmp_path / "mine.json").write_text(json.dumps(content))
        assert scores_of(tmp_path / "mine.json", "flickr8k_expert", folder) == {label: [[1, 2, 3, 4]]}
    (tmp_path / "mine.json").write_text("[1, null, 3, 4]")
    (run,) = read_scores(tmp_path / "mine.json", load_set("flickr8k_expert", folder))["mine"]
    assert np.isnan(run.scores).tolist() == [False, True, False, False]


def test_pairs_are_two_columns_or_two_arrays(tmp_path: Path) -> None:
    folder = write_pascal(tmp_path / "set")
    a, b = np.array([1.0, 2, 3]), np.array([4.0, 5, 6])
    np.savez(tmp_path / "s.npz", A__a=a, A__b=b, B=np.stack([a, b], axis=1), C=np.arange(6.0))
    found = scores_of(tmp_path / "s.npz", "pascal50s", folder)
    assert found == {"A": [[1, 4, 2, 5, 3, 6]] * 2, "B": [[1, 4, 2, 5, 3, 6]] * 2, "C": [[*range(6)]] * 2}


def test_arrays_of_one_scoring_leave_the_others_without(tmp_path: Path) -> None:
    folder = write_foil(tmp_path / "set")
    np.savez(tmp_path / "s.npz", M__refs4=np.ones((3, 2)), N__refs1=np.arange(6.0), N__refs4=np.zeros(6))
    found = scores_of(tmp_path / "s.npz", "foil", folder)
    assert all(map(math.isnan, found["M"][0])) and found["M"][1] == [1] * 6
    assert found["N"] == [[*range(6)], [0] * 6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "mine: 2 scores: flickr8k_expert has 4 captions"),
        ({"m": [[1, 2], [3, 4]]}, "m: 2 x 2 scores: flickr8k_expert has 4 captions"),
        ({"m": "x"}, "m: no list of numbers: scores are numbers, or null"),
        ({"m": [1, "x", 2, 3]}, "m: no list of numbers"),
        ({"m": ["1", "2", "3", "4"]}, "m: no list of numbers"),
        ({"m": [True, False, True, True]}, "m: no list of numbers"),
        ({"m": [10**400, 2, 3, 4]}, "m: no list of numbers"),
        ({"m": [[1], [1, 2], 3, 4]}, "m: no list of numbers"),
        ({"m": {"a": 1}}, "m: no list of numbers"),
        (
            {"scores": [1, 2, 3, 4], "captions": ["two stars", "two blue stars", "a green circle", "x"]},
            "caption 0: 'two stars', flickr8k_expert has 'a red round circle' there: score its captions",
        ),
        ({}, "holds no scores"),
        (3, "the number 3: expected a .npz or .json"),
    ],
)
def test_what_does_not_fit_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    folder = write_expert(tmp_path / "set")
    (tmp_path / "mine.json").write_text(json.dumps(content))
    with pytest.raises(FileError) as caught:
        scores_of(tmp_path / "mine.json", "flickr8k_expert", folder)
    assert message in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    folder = write_expert(tmp_path / "set")
    (tmp_path / "s.npz").write_bytes(b"PK\x03\x04 no archive")
    np.savez(tmp_path / "pickled.npz", M=np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "s.txt").write_text("1")
    for name, message in [
        ("s.npz", "cannot be read"),
        ("pickled.npz", "cannot be read"),
        ("absent.npz", "there is no such file"),
        ("absent.json", "there is no such file"),
        ("s.txt", r"extension '\.txt': expected a"),
    ]:
        with pytest.raises(FileError, match=message):
            scores_of(tmp_path / name, "flickr8k_expert", folder)


@needs_shared
@pytest.mark.parametrize(
    ("name", "folder", "labels"),
    [
        ("flickr8k_expert", "flickr8k_expert", ("BLEU-1", "BLEU-4", "ROUGE-L", "CIDEr", "METEOR", "FLEUR")),
        ("flickr8k_cf", "flickr8k_cf", ("BLEU-1", "CIDEr", "METEOR")),
        ("composite", "composite", ("BLEU-1", "BLEU-4", "ROUGE-L", "CIDEr", "METEOR", "FLEUR")),
        ("nebula", "nebula_test", ("BLEU-4", "CIDEr", "METEOR")),
        ("capeval1k", "capeval1k", ("BLEU-1", "CIDEr", "METEOR")),
    ],
)
def test_taus_of_stored_scores_are_the_expected_ones(name: str, folder: str, labels: tuple[str, ...]) -> None:
    expected = json.loads((SHARED / folder / "expected.json").read_text())["recomputed"]
    judged = load_set(name, SHARED)
    scores = read_scores(SHARED / folder / "scores.npz", judged)
    chosen = Judged(judged, {label: scores[label] for label in labels}, draws=0)
    for entry in chosen.entries():
        assert entry.value == pytest.approx(expected[entry.label][f"kendall_{entry.column}"], abs=1e-9)
        if name == "flickr8k_expert" and entry.published is not None:
            assert entry.agrees


@needs_shared
def test_fleur_on_pascal_and_umic_on_capeval1k_are_the_published_ones() -> None:
    judged = load_set("pascal50s", SHARED, labels="label_fleur_run", draws="fixed")
    scores = read_scores(SHARED / "pascal50s" / "scores_references5.npz", judged)
    entries = list(Judged(judged, {"FLEUR": scores["FLEUR"]}, draws=0).entries())
    assert [round(entry.value, 1) for entry in entries] == [61.3, 99.7, 97.6, 74.2, 83.2]
    assert all(entry.agrees for entry in entries)
    capeval1k = load_set("capeval1k", SHARED)
    umic = read_scores(SHARED / "capeval1k" / "released_umic_scores.json", capeval1k)
    (tau_b, _) = Judged(capeval1k, {"UMIC": next(iter(umic.values()))}, draws=0).entries()
    assert round(tau_b.value / 100, 3) == 0.328 and tau_b.agrees
