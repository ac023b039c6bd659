"""A seeded sample of `benchmarks.faults`: flipped bits and killed runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults import HARMLESS, RAW, REFUSED, SILENT, TOLERANCE, WARNED, Flips, kill_runs

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def flips(tmp_path_factory: pytest.TempPathFactory) -> Flips:
    return Flips(tmp_path_factory.mktemp("faults"), seed=3)


def test_flipped_bits_in_rows_cost_a_computation_and_a_warning(flips: Flips) -> None:
    found = flips.rows(20)
    assert (found[SILENT], found[RAW], found[WARNED]) == (0, 0, 20)


def test_flipped_bits_in_cached_features_cost_a_computation_and_a_warning(flips: Flips) -> None:
    found = flips.features(20)
    assert (found[SILENT], found[RAW]) == (0, 0) and found[WARNED]  # a free page's bits have no effect
    assert found[WARNED] + found[REFUSED] + found[HARMLESS] == 20


def test_flipped_bits_in_weights_are_refused(flips: Flips) -> None:
    assert flips.weights(5, "*.safetensors")[REFUSED] == 5
    found = flips.weights(10, "config.json")
    assert found[REFUSED] + found[HARMLESS] == 10  # a space that becomes another white character


def test_killed_runs_end_with_the_rows_of_a_run_without_kills(tmp_path: Path) -> None:
    found = kill_runs(tmp_path, 3, captions=80)
    assert (found.kills, found.damaged) == (3, 0)
    assert found.runs and found.worst <= TOLERANCE
