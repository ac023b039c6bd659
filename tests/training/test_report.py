from __future__ import annotations

from dataclasses import replace

import pytest

from capeval_core.training.report import Comparison
from capeval_core.training.tiny_report import REPORT


def test_a_draw_is_lost_and_a_shortfall_is_told() -> None:
    row = Comparison.of([0.5, 0.5, 0.5], [0.5, 0.4, 0.6])
    assert (row.accuracy, row.trials) == (pytest.approx(1 / 3), 3)
    found = dict.fromkeys(REPORT.required, row)
    assert len(REPORT.missed(found)) == len(REPORT.required)
    assert "| 33.3% | 99% | 3 | 0.500 | 0.500 |" in REPORT.table(found)
    nothing = dict.fromkeys(REPORT.required, Comparison.of([], []))
    assert len(REPORT.missed(nothing)) == len(REPORT.required)


def test_the_command_prints_the_table_and_fails_where_something_is_missed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    easy = replace(REPORT, required={"colour": 0.9})
    assert easy.main(["tiny", "--scenes", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| right caption against | accuracy |") and len(lines) == 2 + 8
    assert replace(REPORT, required={"colour": 1.1}).main(["tiny", "--scenes", "40"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("is below the required 110%")
