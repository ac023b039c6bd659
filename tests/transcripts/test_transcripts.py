"""Every transcript gives the same again."""

from __future__ import annotations

from pathlib import Path

import pytest

from capeval_core.cli import COMMANDS
from tests.transcripts.session import NAMES, difference, path_of, played, steps_of


@pytest.mark.parametrize("name", NAMES)
def test_users_read_what_the_transcript_says(name: str, tmp_path: Path) -> None:
    text = path_of(name).read_text(encoding="utf-8")
    found = difference(text, played(name, tmp_path))
    assert not found, f"{found}\nIf this is better: python -m tests.transcripts --write {name}"
    assert "Traceback" not in text


def test_every_command_has_a_transcript_with_a_mistake() -> None:
    assert {*COMMANDS} <= {*NAMES}
    for name in COMMANDS:
        text = path_of(name).read_text(encoding="utf-8")
        assert "\n  [2]\n" in text and len(steps_of(text)) > 3, name


def test_numbers_may_differ_in_their_last_digit() -> None:
    assert not difference("    PAC-S  1.5200 (8)", "    PAC-S  1.5201 (8)")
    for other in ("    PAC-S  1.5202 (8)", "    PAC-S  1.520 (8)", "    PAC-S  1.5200 (9)", "    1.5200 (8)"):
        assert difference("    PAC-S  1.5200 (8)", other)
