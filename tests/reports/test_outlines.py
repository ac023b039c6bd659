"""Outlines follow masks, dashes follow outlines."""

from __future__ import annotations

import numpy as np
import pytest

from capeval_core.regions import rle
from capeval_core.reports.overlay import dashes, outlines


def area_of(line: np.ndarray) -> float:
    x, y = line.T
    return abs(float(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y))) / 2


@pytest.mark.parametrize("size", [(60, 90), (300, 200), (1500, 2400)])
def test_an_outline_encloses_its_mask(size: tuple[int, int]) -> None:
    height, width = size
    y, x = (np.mgrid[:height, :width] + 0.5) / np.array([height, width])[:, None, None]
    disc = np.hypot(x - 0.5, y - 0.5) < 0.3
    (line,) = outlines(rle.encode(disc), size)
    assert area_of(line) == pytest.approx(disc.mean(), rel=0.03)
    assert line.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.01)


def test_parts_and_holes_have_outlines_of_their_own() -> None:
    mask = np.zeros((100, 100), dtype=np.bool_)
    mask[10:60, 10:60] = True
    mask[20:40, 20:40] = False
    mask[70:90, 70:90] = True
    lines = outlines(rle.encode(mask), (100, 100))
    assert [round(area_of(line), 2) for line in lines] == [0.25, 0.04, 0.04]


def test_a_mask_at_the_border_and_corners_that_touch() -> None:
    checks = (np.indices((8, 8)) // 2).sum(axis=0) % 2 == 0
    assert sum(map(area_of, outlines(rle.encode(checks), (8, 8)))) > 0.3
    (whole,) = outlines(rle.encode(np.ones((8, 8), dtype=np.bool_)), (8, 8))
    assert whole.min() >= 0 and whole.max() <= 1 and area_of(whole) > 0.98


def test_dashes_are_even_and_cover_their_share() -> None:
    square = np.array([[0.0, 0.0], [100.0, 0.0], [100.0, 100.0], [0.0, 100.0]])
    pieces = dashes(square, 6, 4)
    lengths = [np.hypot(*np.diff(piece, axis=0).T).sum() for piece in pieces]
    assert len(pieces) == 40
    assert lengths == pytest.approx([6.0] * 40)
