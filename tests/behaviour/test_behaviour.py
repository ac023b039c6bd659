"""What every metric gives is what is stored: its first cases; `python -m tests.behaviour compare` has all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import capeval_core
from tests.behaviour.__main__ import STORED, differences, read
from tests.behaviour.record import OPTIONS, Case, cases

FIRST = 3
"""Cases of each metric: the defaults, everything odd, and 16 bits from the same cache."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """As the file was made: the last bits depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def stored() -> tuple[dict[str, Case], bool]:
    return read(STORED)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("metric", OPTIONS["metrics"])
def test_it_gives_what_is_stored(metric: str, stored: tuple[dict[str, Case], bool], tmp_path: Path) -> None:
    found = dict(cases(metric, tmp_path / "files", FIRST))
    known = {title: stored[0].get(title, {}) for title in found}
    assert list(differences(known, found, stored[1])) == []


def test_every_metric_is_stored(stored: tuple[dict[str, Case], bool]) -> None:
    names = {title.partition("[")[0] for title in stored[0]}
    assert names == set(OPTIONS["metrics"])
    assert {name.partition(":")[0] for name in names} == set(capeval_core.list_metrics())
