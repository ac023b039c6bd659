"""Tables: what stands in a row, how long its bars are, and how they share a sheet."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from capeval_core.reports.canvas import COMPARED, INK, PAPER, REGIONS, RIGHT, WRONG, Rgb, sheet
from capeval_core.reports.card import Bar, Row, Table
from capeval_core.reports.marks import RIGHT_MARK, WRONG_MARK, Dot, Mark, RegionMark, Word

WIDTH = 400
RED: Rgb = (255, 0, 0)
BLUE: Rgb = (0, 0, 255)


def drawn(table: Table, columns: int = 1) -> NDArray[np.int64]:
    """(h, w, 3), without a margin."""
    return np.asarray(sheet(table.in_columns(WIDTH, columns), WIDTH, 0), dtype=np.int64)


def shows(image: NDArray[np.int64], colour: Rgb) -> NDArray[np.bool_]:
    return np.abs(image - colour).sum(-1) < 12


def length(image: NDArray[np.int64], colour: Rgb) -> int:
    return int(shows(image, colour).any(axis=0).sum())


def test_bars_are_as_long_as_their_values() -> None:
    rows = [Row(RIGHT_MARK, "", [Bar(1.0, RED)]), Row(RIGHT_MARK, "", [Bar(0.25, BLUE)])]
    image = drawn(Table("", [""], rows))
    assert length(image, BLUE) / length(image, RED) == pytest.approx(0.25, abs=0.03)
    longer = drawn(Table("", [""], [*rows, Row(RIGHT_MARK, "", [Bar(2.0, INK)])]))
    assert length(longer, RED) / length(image, RED) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("threshold", [0.25, 0.75, 1.8])
def test_the_threshold_is_marked_where_such_a_bar_would_end(threshold: float) -> None:
    image = drawn(Table("", [""], [Row(RIGHT_MARK, "", [Bar(threshold, RED)])], threshold))
    bars = image[:, : WIDTH - 42]  # without the numbers behind them
    end = np.flatnonzero(shows(bars, RED).any(axis=0)).max()
    assert np.flatnonzero(shows(bars, INK).any(axis=0)).mean() == pytest.approx(end, abs=3)


def test_columns_of_numbers_keep_their_order() -> None:
    image = drawn(Table("", ["one", "other"], [Row(RIGHT_MARK, "", [Bar(0.5, RED), Bar(0.5, BLUE)])]))
    red, blue = (np.flatnonzero(shows(image, colour).any(axis=0)) for colour in (RED, BLUE))
    assert red.max() < blue.min()


@pytest.mark.parametrize(
    ("mark", "colour"),
    [
        (RIGHT_MARK, RIGHT),
        (WRONG_MARK, WRONG),
        (Dot(COMPARED), COMPARED),
        (Dot(COMPARED, hollow=True), COMPARED),
        (RegionMark.of(1), REGIONS[1]),
        (RegionMark.of(11), REGIONS[1]),
        (RegionMark.of(136), REGIONS[6]),
    ],
)
def test_a_mark_stands_before_the_text_or_behind_the_numbers(mark: Mark, colour: Rgb) -> None:
    nothing = Word("")
    before = drawn(Table("", [""], [Row(mark, "", [Bar(0.0, PAPER)])]))
    behind = drawn(Table("", [""], [Row(nothing, "", [Bar(0.0, PAPER)], tail=mark)]))
    for image, part in ((before, slice(0, 24)), (behind, slice(WIDTH - 24, WIDTH))):
        marked = shows(image, colour)
        assert marked[:, part].any()
        marked[:, part] = False
        assert not marked.any()


def test_a_long_text_has_three_lines() -> None:
    def height(text: str) -> float:
        return Table("", [""], [Row(RIGHT_MARK, text, [Bar(0.5, RED)])]).block(WIDTH).height

    assert height("word") < height("word " * 40) == height("word " * 4000)


def test_parts_share_the_width_and_all_rows() -> None:
    rows = [Row(RegionMark.of(index), "", [Bar(0.0, PAPER)]) for index in range(5)]
    table = Table("Regions", [""], rows)
    image = drawn(table, columns=2)
    half = WIDTH // 2
    for index, row in enumerate(rows):
        assert isinstance(row.lead, RegionMark)
        marked = shows(image, row.lead.colour)
        assert marked[:, :half].any() == (index < 3)
        assert marked[:, half:].any() == (index >= 3)
    assert len(image) < len(drawn(table))


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_without_rows_there_is_nothing(columns: int) -> None:
    table = Table("Regions", ["recall"], [])
    assert table.in_columns(WIDTH, columns).height == table.block(WIDTH).height == 0
