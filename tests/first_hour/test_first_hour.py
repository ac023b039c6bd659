"""Everything of the first hour is done, and the user reads what `actions` says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.first_hour.actions import ACTIONS
from tests.first_hour.hour import Hour


@pytest.fixture(scope="module")
def hour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hour]:
    """One folder and one session for all actions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        yield Hour(tmp_path_factory.mktemp("hour"), ACTIONS)


def test_there_are_enough_actions() -> None:
    assert len(ACTIONS) >= 40
    assert all(set(action.after) <= ACTIONS.keys() for action in ACTIONS.values())


@pytest.mark.parametrize("name", ACTIONS)
def test_the_user_reads_what_helps(hour: Hour, name: str) -> None:
    action, outcome = ACTIONS[name], hour.do(name)
    rest = " ".join(outcome.text.split())
    for expected in action.reads:
        _, found, rest = rest.partition(" ".join(expected.split()))
        assert found, f"{expected!r} is not there after {action.typed!r}:\n{outcome.text}"
    assert outcome.status == action.status, outcome.text
    assert "Traceback" not in outcome.text and str(hour.folder) not in outcome.text
