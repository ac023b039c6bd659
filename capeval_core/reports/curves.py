"""Curves over the steps of a training, drawn with Pillow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image

from capeval_core.reports.canvas import FAINT, INK, LINE, PAPER, REGIONS, Canvas

_WIDTH, _HEIGHT, _MARGIN, _LEFT = 960, 260, 24, 70
_NAMES = 250
_SIZE = 13


@dataclass(frozen=True)
class Curve:
    """A named curve through points (step, value)."""

    name: str
    points: Sequence[tuple[float, float]]


def draw_curves(panels: Mapping[str, Sequence[Curve]]) -> Image.Image:
    """Panels one below the other, each with its title, its curves and their names.

    >>> draw_curves({"loss": [Curve("all", [(0, 1.0), (10, 0.5)])]}).size
    (960, 284)
    """
    canvas = Canvas(_WIDTH, max(len(panels), 1) * _HEIGHT + _MARGIN, PAPER)
    last = max((x for curves in panels.values() for curve in curves for x, _ in curve.points), default=1.0)
    for row, (title, curves) in enumerate(panels.items()):
        _draw_panel(canvas, row * _HEIGHT + _MARGIN, title, curves, last)
    return canvas.finished()


def _draw_panel(canvas: Canvas, top: float, title: str, curves: Sequence[Curve], last: float) -> None:
    values = [y for curve in curves for _, y in curve.points]
    low, high = min(0.0, *values), max(values)
    span = (high - low) or 1.0
    left, right = _LEFT, _WIDTH - _MARGIN - (_NAMES if any(curve.name for curve in curves) else 0)
    above, below = top + 26, top + _HEIGHT - 44

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * x / (last or 1.0), below - (below - above) * (y - low) / span

    canvas.text(left, top + 12, title, _SIZE, INK, bold=True)
    for part in range(5):
        y = low + span * part / 4
        (_, height) = place(0, y)
        canvas.line([(left, height), (right, height)], LINE, 1)
        canvas.text(left - 8, height + 4, f"{y:.3g}", _SIZE - 2, FAINT, anchor="rs")
    ticks = int(last) if last in (1, 2, 3) else 4  # steps are whole numbers
    for part in range(ticks + 1):
        x = last * part / ticks
        canvas.text(place(x, low)[0], below + 18, f"{x:,.0f}", _SIZE - 2, FAINT, anchor="ms")
    for index, curve in enumerate(curves):
        colour = REGIONS[index % len(REGIONS)]
        points = [place(x, y) for x, y in curve.points]
        if len(points) > 1:
            canvas.line(points, colour, 1.5)
        for x, y in points[-1:]:
            canvas.disc(x, y, 2.5, colour)
        if curve.name:
            height = above + 16 * index
            canvas.disc(right + 18, height - 4, 4, colour)
            canvas.text(right + 30, height, curve.name, _SIZE - 1, INK)
