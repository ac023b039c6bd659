"""Where things stand on a sheet: blocks of known heights, one below or beside the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from capeval_core.drawing.canvas import Canvas
from capeval_core.drawing.colours import PAPER

GAP = 40.0
"""Between columns."""
_BETWEEN = 30.0  # blocks


@dataclass(frozen=True)
class Block:
    """Something of a known height that can be drawn with its top left corner at a place."""

    height: float
    draw: Callable[[Canvas, float, float], None]


NOTHING = Block(0.0, lambda canvas, x, y: None)


def stacked(blocks: Sequence[Block]) -> Block:
    """One below the other; blocks without anything in them take no room."""
    shown = [block for block in blocks if block.height]
    places = np.cumsum([0.0, *(block.height + _BETWEEN for block in shown)]).tolist()

    def draw(canvas: Canvas, x: float, y: float) -> None:
        for block, place in zip(shown, places, strict=False):
            block.draw(canvas, x, y + place)

    return Block(max(places[-1] - _BETWEEN, 0.0), draw)


def beside(blocks: Sequence[Block], column: float) -> Block:
    """One beside the other, each `column` wide."""

    def draw(canvas: Canvas, x: float, y: float) -> None:
        for place, block in enumerate(blocks):
            block.draw(canvas, x + place * (column + GAP), y)

    return Block(max((block.height for block in blocks), default=0.0), draw)


def sheet(block: Block, width: int, margin: float) -> Image.Image:
    """An image, `width` pixels wide, of a block with a margin around it."""
    canvas = Canvas(width, math.ceil(block.height + 2 * margin), PAPER)
    block.draw(canvas, margin, margin)
    return canvas.finished()
