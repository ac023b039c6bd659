"""The score, large, and beside it what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capeval_core.drawing.blocks import Block
from capeval_core.drawing.canvas import Canvas
from capeval_core.drawing.colours import FAINT, INK, LINE

_IN_ROW = 4  # terms at most


@dataclass(frozen=True)
class Heading:
    """A score under its title; `terms` are the names and values of its parts, in their order."""

    title: str
    value: float
    terms: Sequence[tuple[str, float]] = ()

    def block(self, width: float) -> Block:
        """So many pixels wide; more than four terms take a second row."""

        def draw(canvas: Canvas, x: float, y: float) -> None:
            canvas.text(x, y + 13, self.title, 15, FAINT)
            canvas.text(x - 2, y + 58, f"{self.value:.3f}", 46, INK, bold=True)
            if self.terms:
                self._draw_terms(canvas, x, y, width)

        return Block(62.0 if len(self.terms) <= _IN_ROW else 114.0, draw)

    def _draw_terms(self, canvas: Canvas, x: float, y: float, width: float) -> None:
        first = x + max(150.0, width * 0.3)
        step = (x + width - first) / min(len(self.terms), _IN_ROW)
        canvas.line([(first - 22, y + 22), (first - 22, y + 58)], LINE, 1)
        for place, (name, value) in enumerate(self.terms):
            across, down = first + step * (place % _IN_ROW), y + 52 * (place // _IN_ROW)
            canvas.text(across, down + 32, name, 13, FAINT)
            canvas.text(across, down + 57, f"{value:.2f}", 19, INK)
