"""Charts of a report: the mean that is marked, and the number at the side."""

from __future__ import annotations

from capeval_core.reports.html_charts import distributions
from capeval_core.reports.systems import Cell, Column, System, Systems


def test_a_distribution_has_the_mean_and_the_standard_deviation() -> None:
    cell = Cell(0.25, None, [0.0, 0.0, 1.0, 0.0], {}, {}, "capeval:x")
    system = System("A", list("1234"), list("abcd"), None, None, {"x": cell})
    column = Column("x", "X-S", "x_s", (0, 1))
    shown = distributions(column, Systems([system], [column]))
    (row,) = shown["rows"]
    assert row["mean"] == "25.00%"
    assert row["value"] == "0.433"
