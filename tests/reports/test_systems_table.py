"""Tables of systems by metrics: which of a test's numbers stands where."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

from capeval_core.reports.systems import Cell, Column, System, Systems
from capeval_core.reports.systems import Test as PairedTest
from capeval_core.reports.systems_table import cells_table, long_table, stacked_table
from capeval_core.reports.tables import Table


def compared() -> Systems:
    test = PairedTest(-0.25, -0.5, -0.125, 0.02, 0.06, 7, left_out=1)
    cells = [
        Cell(0.75, (0.5, 1.0), [0.5, 1.0], {}, {}, "capeval:x"),
        Cell(0.5, (0.25, 0.75), [0.25, 0.75], {}, {}, "capeval:x", test=test),
    ]
    systems = [
        System(name, ["1", "2"], ["a", "b"], None, None, {"x": cell})
        for name, cell in zip("AB", cells, strict=True)
    ]
    return Systems(systems, [Column("x", "X-S", "x_s", (0, 1), higher_is_better=False)], baseline="A")


def test_people_read_the_p_value_after_the_correction() -> None:
    shown = stacked_table(compared()).text()
    assert "p = 0.060" in shown and "0.02" not in shown and "0.5000*" not in shown
    assert shown.startswith("system  X-S (lower is better)\n")


def test_programs_get_both_p_values_under_their_names() -> None:
    _, row = csv.DictReader(io.StringIO(long_table(compared()).csv()))
    names = ["low", "high", "difference", "difference_low", "difference_high", "p", "p_holm"]
    assert [float(row[name]) for name in names] == [0.25, 0.75, -0.25, -0.5, -0.125, 0.02, 0.06]
    assert (row["significant"], row["compared"], row["left_out"]) == ("false", "7", "1")


def test_latex_has_the_best_mean_in_bold_with_the_digits_that_readers_want() -> None:
    own = replace(compared(), digits=1, times_100=True)
    assert cells_table(own).latex().splitlines()[-4:-2] == [
        r"A & 75.0 [50.0, 100.0] \\",
        r"B & \textbf{50.0} [25.0, 75.0] \\",
    ]
    assert "**" not in cells_table(own).markdown() and "times 100" in cells_table(own).markdown()
    assert cells_table(replace(compared(), digits=0)).latex().count(r"\textbf{0}") == 1
    assert r"\textbf{50.00} [25.00, 75.00]" in cells_table(replace(own, digits=None)).latex()
    assert long_table(own).csv() == long_table(compared()).csv()
    alone = Systems(own.systems[:1], own.columns)
    assert "textbf" not in cells_table(alone).latex()
    failed = replace(own.systems[0], name="C", cells={"x": Cell(math.nan, None, [], {}, {}, "capeval:x")})
    assert r"\textbf{50.0}" in cells_table(replace(own, systems=[failed, *own.systems])).latex()


def test_a_row_of_latex_is_no_argument_of_the_line_break_before_it() -> None:
    lines = Table("Set", ["a"], [["[1]"], ["*b"], ["c"]]).latex().splitlines()
    assert lines[-5:-2] == [r"{}[1] \\", r"{}*b \\", r"c \\"]
