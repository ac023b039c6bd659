"""Charts and tables of agreement: what is where, and what is left out."""

from __future__ import annotations

import csv
import io
import math
import re

import numpy as np
import pytest
from PIL import Image

from capeval_core.reports.canvas import REGIONS, WRONG
from capeval_core.reports.charts import Bar, Spread, draw_bars, draw_spreads, round_axis
from capeval_core.reports.tables import Table


def places(image: Image.Image, colour: tuple[int, int, int]) -> np.ndarray:  # type: ignore[type-arg]
    """(n, 2) rows and columns of the pixels of a colour."""
    return np.argwhere((np.asarray(image) == colour).all(axis=2))


def test_dots_stand_in_order_of_their_values_within_their_intervals() -> None:
    bars = [Bar("low", 10.0, 5.0, 15.0), Bar("high", 40.0, 30.0, 45.0, published=20.0)]
    image = draw_bars({"tau_b": bars})
    first, second = (places(image, REGIONS[index])[:, 1] for index in range(2))
    ends = [(x.min(), x.max()) for x in (first, second)]
    assert ends[0][1] < ends[1][0]
    per_unit = (ends[1][1] - ends[1][0]) / 15
    assert (ends[0][1] - ends[0][0]) / 10 == pytest.approx(per_unit, rel=0.05)
    tick = places(image, WRONG)[:, 1]
    assert tick.min() > ends[0][1] and tick.max() < ends[1][0]


def test_what_is_undefined_is_named_and_not_drawn() -> None:
    image = draw_bars({"tau_b": [Bar("flat", math.nan)]})
    assert not len(places(image, REGIONS[0]))
    assert len(image.getcolors(1 << 24) or []) > 5  # its name


def test_boxes_rise_with_their_values() -> None:
    spreads = [Spread("1", [0.1, 0.2, 0.3]), Spread("2", []), Spread("3", [0.7, 0.8, 0.9])]
    image = draw_spreads({"PAC-S": spreads, "none": [Spread("1", [])]})
    drawn = places(image, REGIONS[0])
    middle = (drawn[:, 1].min() + drawn[:, 1].max()) / 2
    left, right = drawn[drawn[:, 1] < middle], drawn[drawn[:, 1] > middle]
    assert left[:, 0].mean() > right[:, 0].mean() + 40  # higher up in the image
    assert draw_spreads({}).width == 960


@pytest.mark.parametrize("values", [[], [0.0], [1e-9, 2e-9], [-3.0, 4.0], [12345.0, 12346.0]])
def test_axes_hold_their_values(values: list[float]) -> None:
    low, high, step = round_axis(values)
    assert low < high and step > 0 and all(low - 1e-9 <= value <= high + 1e-9 for value in values)
    assert 1 <= round((high - low) / step) <= 12


def test_tables_come_in_four_forms() -> None:
    table = Table("A & B", ["metric", "tau_b"], [["a|b", "1_0%"], ['say "x", y', "~2"]], ["a note"])
    assert table.text().splitlines()[0] == "metric      tau_b"
    assert table.markdown().startswith("## A & B\n\n| metric | tau_b |\n| --- | --- |\n| a\\|b | 1_0% |")
    assert table.markdown().endswith("\n- a note\n")
    assert [*csv.reader(io.StringIO(table.csv()))] == [list(table.header), *map(list, table.rows)]
    latex = table.latex()
    assert r"metric & $\tau_b$ \\" in latex and r"1\_0\% \\" in latex and r"\textasciitilde{}2" in latex
    assert not re.search(r"(?<!\\)[%&_#](?=[^\n]*\\\\)", latex.split(r"\midrule")[1].replace(" & ", " "))
