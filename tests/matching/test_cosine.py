"""Cosines against float64, and the corners: zeros, equal rows, extreme lengths; the harmonic mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from tests.support.seams import grouped_cosine, harmonic_mean, paired_cosine

Floats = NDArray[np.float32]

FEATURES = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 40)),
    elements=st.floats(-1e4, 1e4, width=32).map(lambda x: 0.0 if abs(x) < 1e-6 else x),
)


def exact(x: Floats, y: Floats) -> NDArray[np.float64]:
    wide, other = x.astype(np.float64), y.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1) * np.linalg.norm(other, axis=1)
    return np.asarray((wide * other).sum(axis=1) / np.where(lengths > 0, lengths, 1))


@given(FEATURES, st.integers(0, 1000))
def test_is_the_cosine(x: Floats, seed: int) -> None:
    y = np.random.default_rng(seed).normal(size=x.shape).astype(np.float32)
    found = paired_cosine(x, y)
    assert found.dtype == np.float32 and found.shape == (len(x),)
    assert found == pytest.approx(exact(x, y), abs=2e-6)
    assert np.array_equal(paired_cosine(y, x), found)


@given(FEATURES)
def test_never_leaves_its_range(x: Floats) -> None:
    there = np.any(x != 0, axis=1)
    for other, expected in ((x, 1.0), (-x, -1.0), (np.float32(3) * x, 1.0)):
        found = paired_cosine(x, other)
        assert np.all(np.abs(found) <= 1)
        assert found[there] == pytest.approx(np.full(there.sum(), expected), abs=1e-6)
        assert np.all(found[~there] == 0)


def test_a_pair_does_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(67, 512)).astype(np.float32) for _ in range(2))
    together = paired_cosine(x, y)
    alone = np.concatenate([paired_cosine(x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    assert np.array_equal(together, alone)


def test_not_a_number_stays_one_in_its_row_alone() -> None:
    x = np.ones((3, 4), np.float32)
    x[1] = np.nan
    with np.errstate(all="raise"):
        found = paired_cosine(x, np.ones((3, 4), np.float32))
    assert np.isnan(found[1]) and found[[0, 2]].tolist() == [1, 1]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(0, 1000))
def test_groups_of_any_size_meet_their_own_row(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(lengths), 8)).astype(np.float32)
    groups = rng.normal(size=(sum(lengths), 8)).astype(np.float32)
    found = grouped_cosine(x, groups, np.array(lengths, dtype=np.int64))
    ends = np.cumsum(lengths)
    expected = [
        float(paired_cosine(x[i : i + 1], groups[j : j + 1])[0])
        for i, end in enumerate(ends)
        for j in range(end - lengths[i], end)
    ]
    assert found.tolist() == expected


def test_no_rows_have_no_cosines() -> None:
    none = np.empty((0, 5), np.float32)
    assert paired_cosine(none, none).shape == (0,)
    assert grouped_cosine(none, none, np.empty(0, np.int64)).shape == (0,)


TERMS = st.lists(st.lists(st.floats(1e-6, 10), min_size=3, max_size=3), min_size=2, max_size=4)


@given(TERMS)
def test_the_harmonic_mean_is_that_of_its_definition(lists: list[list[float]]) -> None:
    terms = [np.array(values) for values in lists]
    mean = harmonic_mean(*terms)
    assert mean == pytest.approx(len(terms) / sum(1 / term for term in terms), rel=1e-12)
    assert torch.equal(harmonic_mean(*map(torch.from_numpy, terms)), torch.from_numpy(mean))
    if len(terms) == 2:  # bit for bit what F-measures are computed by
        assert (mean == 2 * (terms[0] * terms[1]) / (terms[0] + terms[1])).all()


def test_a_harmonic_mean_with_a_zero_is_zero_and_with_a_nan_nan() -> None:
    zeros = [np.array([0.0, 0.5, 0.0]), np.array([0.5, 0.0, 0.0])]
    assert harmonic_mean(*zeros).tolist() == [0, 0, 0]
    assert harmonic_mean(*zeros, np.array([0.0, 0.0, 0.5])).tolist() == [0, 0, 0]
    assert np.isnan(harmonic_mean(np.array([np.nan, np.nan]), np.array([0.0, 1.0]))).all()


def test_a_negative_term_gives_the_plain_quotient() -> None:
    mean = harmonic_mean(np.array([0.5, 0.5, 0.5]), np.array([-0.25, -0.5, -0.75]))
    assert mean.tolist() == [-1.0, -np.inf, 3.0]
