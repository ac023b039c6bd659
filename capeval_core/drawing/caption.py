"""The caption in large letters, with what is wrong in it marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from capeval_core.drawing.blocks import Block
from capeval_core.drawing.canvas import Canvas
from capeval_core.drawing.colours import INK, WRONG, WRONG_GROUND
from capeval_core.drawing.text import Piece, lines_of
from capeval_core.phrases.places import Span

_LONG = 320  # characters from which letters are smaller
_REMARK, _REMARK_LEADING = 13.0, 20.0


@dataclass(frozen=True)
class Caption:
    """A text; `wrong` are the spans of its characters to be marked, `remark` stands below it, small."""

    text: str
    wrong: Sequence[Span] = ()
    remark: str = ""

    def block(self, width: float) -> Block:
        """In lines of at most so many pixels."""
        size, leading = (21.0, 32.0) if len(self.text) < _LONG else (17.0, 26.0)
        lines = lines_of(self.text, size, width, self.wrong)
        remarks = lines_of(self.remark, _REMARK, width) if self.remark else []

        def draw(canvas: Canvas, x: float, y: float) -> None:
            for number, pieces in enumerate(lines):
                _draw_line(canvas, x, y + number * leading + size, pieces, size)
            below = y + len(lines) * leading
            for number, pieces in enumerate(remarks):
                canvas.line_of_text(x, below + (number + 1) * _REMARK_LEADING, pieces, _REMARK, WRONG)

        return Block(len(lines) * leading + len(remarks) * _REMARK_LEADING, draw)


def _draw_line(canvas: Canvas, x: float, base: float, pieces: Sequence[Piece], size: float) -> None:
    for start, end in _runs(pieces):
        top, height = base - size * 0.95, size * 1.3
        canvas.box(x + start - 4, top, end - start + 8, height, radius=5, fill=WRONG_GROUND)
        canvas.line([(x + start, base + size * 0.24), (x + end, base + size * 0.24)], WRONG, 1.5)
    for piece in pieces:
        canvas.line_of_text(x, base, [piece], size, WRONG if piece.marked else INK)


def _runs(pieces: Sequence[Piece]) -> list[tuple[float, float]]:
    """From where to where neighbouring pieces of a line are marked."""
    runs: list[tuple[float, float]] = []
    before = False
    for piece in pieces:
        if piece.marked:
            start = runs.pop()[0] if before else piece.x
            runs.append((start, piece.x + piece.width))
        before = piece.marked
    return runs
