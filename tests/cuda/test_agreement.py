"""Agreement: what differs is measured, in numbers that cards quote, and failures are rows."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch

from benchmarks.cuda.agreement import (
    Agreement,
    Outputs,
    Subject,
    agreement,
    compare_devices,
    compare_dtypes,
    largest_difference,
    repeats_equal,
)
from benchmarks.cuda.measuring import Gpu

GPU = Gpu("cpu", small=True)
SUBJECT = Subject(("pacs",), "drawn")
WORDS = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))


def cosines(device: str, dtype: str) -> Outputs:
    """Features of any length, and their cosines with a fixed vector."""
    features = (3 * WORDS).to(device, getattr(torch, dtype))
    return {"features": features, "scores": torch.nn.functional.normalize(features, dim=-1)[:, 0]}


def test_a_run_that_is_exact_meets_every_goal_and_its_numbers_are_kept() -> None:
    rows = list(agreement(GPU, SUBJECT, cosines))
    assert all(row.met is not False for row in rows)
    kept = [json.loads(json.dumps(asdict(row))) for row in rows]
    assert [(row["comparison"], row["output"]) for row in kept] == [
        (comparison, output)
        for comparison in ("repeats", "devices", "bfloat16", "float16")
        for output in ("features", "scores")
    ]
    assert {(*row["metrics"], row["weights"], row["rows"]) for row in kept} == {("pacs", "drawn", 20)}


def test_dtypes_are_compared_by_the_largest_difference_and_the_ranking() -> None:
    from scipy.stats import kendalltau

    features, scores, *_ = compare_dtypes(GPU, SUBJECT, cosines)
    assert isinstance(features, Agreement) and isinstance(scores, Agreement)
    low, full = (cosines("cpu", dtype)["scores"].double().numpy() for dtype in ("bfloat16", "float32"))
    assert scores.largest == np.abs(low - full).max() > 0
    assert scores.tau == kendalltau(low, full).statistic < 1
    assert 0 < features.largest < 2**-8, "features of length 1"
    assert features.met is None and scores.met


def test_a_rounding_beyond_the_goal_is_not_met() -> None:
    def by_device(device: str, dtype: str) -> Outputs:
        return {"scores": [0.5, 0.5 + (2e-5 if device == "cpu:0" else 0.0)]}

    other = Gpu("cpu:0", small=True)
    (row,) = compare_devices(other, SUBJECT, by_device)
    assert row.met is False and "2.0e-05" in row.measured


def test_runs_that_differ_in_the_last_bit_are_not_equal() -> None:
    draws = iter([0.25, np.nextafter(np.float32(0.25), np.float32(1))])
    (row,) = repeats_equal(GPU, SUBJECT, lambda device, dtype: {"scores": [next(draws), 1.0]})
    assert row.met is False
    (row,) = repeats_equal(GPU, SUBJECT, lambda device, dtype: {"scores": [np.nan, 1.0]})
    assert (row.measured, row.met) == ("bit-equal (2 rows)", True)


def test_a_run_that_fails_is_a_row_and_the_others_come() -> None:
    def run(device: str, dtype: str) -> Outputs:
        if dtype == "bfloat16":
            raise RuntimeError("no kernel\nfor it")
        return cosines(device, dtype)

    failed, *others = compare_dtypes(GPU, SUBJECT, run)
    assert (failed.measured, failed.met) == ("RuntimeError: no kernel for it", False)
    assert [row.met for row in others] == [None, True]


@pytest.mark.parametrize("found", [[np.nan, 1.0], [np.inf, 1.0], [0.5]])
def test_no_number_instead_of_one_is_no_agreement(found: list[float]) -> None:
    (row,) = compare_devices(
        Gpu("cpu:0", small=True),
        SUBJECT,
        lambda device, dtype: {"scores": found if device == "cpu:0" else [0.5, 1.0]},
    )
    assert row.met is False


def test_ragged_features_are_joined() -> None:
    ragged = {"words": [np.ones((2, 3)), np.zeros((0, 3)), torch.ones(1, 3, dtype=torch.bfloat16)]}
    (row,) = repeats_equal(GPU, SUBJECT, lambda device, dtype: ragged)
    assert isinstance(row, Agreement) and row.rows == 3 and row.met
    assert largest_difference(np.zeros(0), np.zeros(0)) == 0
