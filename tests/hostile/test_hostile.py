"""Hostile input is refused at every door, by argument and index."""

from __future__ import annotations

import faulthandler
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.cases import KINDS, TYPES, Case, every, refusal, stored
from tests.hostile.world import RAN

GROUPS: dict[str, list[Case]] = defaultdict(list)
for _case in every():
    GROUPS[f"{_case.group.partition('=')[0]} {_case.at}"].append(_case)


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A case that waits for ever ends the run, with a trace of where it waits."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def test_the_table_has_every_case_once() -> None:
    cases = [(case.at, case.input) for case in every()]
    expected = stored()
    assert len(cases) >= 1_000 and set(cases) == expected.keys() and len(set(cases)) == len(cases)
    assert {one.kind for one in expected.values()} == KINDS.keys()
    assert {one.type for one in expected.values()} == set(TYPES)


@pytest.mark.parametrize("group", GROUPS)
def test_it_is_refused_by_argument_and_index(group: str, tmp_path: Path) -> None:
    expected, wrong = stored(), []
    for number, case in enumerate(GROUPS[group]):
        found = refusal(case, tmp_path / str(number))
        if found is None:
            wrong.append(f"{case.at}, {case.input}: not refused")
        elif lacks := expected[case.at, case.input].lacks(found):
            wrong.append(f"{case.at}, {case.input}: {lacks}: {found.message}")
        elif "Traceback" in found.message or len(found.message) > 2_000:
            wrong.append(f"{case.at}, {case.input}: {found.message[:2_000]}")
    assert not wrong, "\n".join(wrong)
    assert not RAN.exists()
