"""A HICE explanation as one picture: what is seen, what is said, and how they fit each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from capeval_core.drawing.canvas import Canvas
from capeval_core.drawing.colours import (
    COMPARED,
    FAINT,
    INK,
    LINE,
    PAPER,
    RIGHT,
    UNMENTIONED,
    WRONG,
    WRONG_GROUND,
    Rgb,
    region_colour,
)
from capeval_core.drawing.overlay import badge_radius, draw_badge, draw_regions
from capeval_core.drawing.text import FINER, Piece, lines_of, shortened, width_of
from capeval_core.regions.regions import Regions

if TYPE_CHECKING:
    from capeval_core.scores.hice_explanation import HiceExplanation

NARROWEST = 320
_ONE_COLUMN = 760  # below this width everything stands in one column
_TALLEST = 1.1  # height of the picture at most, by the width of its column
_OVERLAY = 440  # width at which lines and numbers of a picture alone have their size; they grow with it
_ENOUGH = 1.2  # an arrangement so much higher than the lowest is still taken, if it is simpler
_GAP, _BETWEEN = 40.0, 30.0  # between columns, between blocks
_TITLES = {"hice_s": "HICE-S", "refhice_s": "RefHICE-S"}
_TERMS = {
    "gitc": "global",
    "litc": "local",
    "precision": "precision",
    "recall": "recall",
    "gttc": "global text",
    "lttc": "local text",
}
_TEXT, _LEADING = 15.0, 20.0  # size of texts in tables, and from line to line
_BAR, _VALUE, _LEAD = 72.0, 42.0, 30.0  # widths: a bar, the number behind it, the mark before a text
_MOST_LINES = 3  # of a phrase or reference


@dataclass(frozen=True)
class Block:
    """Something of a known height that can be drawn with its top left corner at a place."""

    height: float
    draw: Callable[[Canvas, float, float], None]


def draw_overlay(explanation: HiceExplanation, width: int) -> Image.Image:
    """See `HiceExplanation.overlay`."""
    _check(explanation, width)
    image = explanation.image()
    shown = max(1.0, min(1.0, 2 * image.width / image.height) * _OVERLAY)
    return _overlay(explanation, shown, FINER * width / _OVERLAY).finished()


def draw_card(explanation: HiceExplanation, width: int) -> Image.Image:
    """See `HiceExplanation.plot`."""
    _check(explanation, width)
    margin = 36.0 if width >= _ONE_COLUMN else 18.0
    inner = width - 2 * margin
    if width < _ONE_COLUMN:
        blocks = [
            _head(explanation, inner),
            _caption(explanation, inner),
            _picture(explanation, inner),
            _phrases(explanation, inner),
            _references(explanation, inner),
            _regions(explanation, inner),
        ]
        return _drawn(_stacked(blocks), width, margin)
    column = (inner - _GAP) / 2
    left = [_picture(explanation, column)]
    right = [_head(explanation, column), _caption(explanation, column), _phrases(explanation, column)]
    right.append(_references(explanation, column))
    regions = _regions(explanation, column)
    ways = [
        _beside([*left, regions], right, column),
        _beside(left, [*right, regions], column),
        _stacked([_beside(left, right, column), _regions(explanation, inner, columns=2)]),
        _stacked([_beside(left, right, column), _regions(explanation, inner, columns=3)]),
    ]
    lowest = min(block.height for block in ways)
    return _drawn(next(block for block in ways if block.height <= _ENOUGH * lowest), width, margin)


def _check(explanation: HiceExplanation, width: int) -> None:
    if "error" in explanation:
        raise ValueError(f"there is no score to draw: {explanation['error']}")
    if not isinstance(width, int) or width < NARROWEST:
        raise ValueError(f"width={width!r}: expected a whole number of at least {NARROWEST} pixels")


# Where things stand


def _stacked(blocks: Sequence[Block]) -> Block:
    """One below the other; blocks without anything in them take no room."""
    shown = [block for block in blocks if block.height]
    places = np.cumsum([0.0, *(block.height + _BETWEEN for block in shown)]).tolist()

    def draw(canvas: Canvas, x: float, y: float) -> None:
        for block, place in zip(shown, places, strict=False):
            block.draw(canvas, x, y + place)

    return Block(max(places[-1] - _BETWEEN, 0.0), draw)


def _beside(left: Sequence[Block], right: Sequence[Block], column: float) -> Block:
    one, other = _stacked(left), _stacked(right)

    def draw(canvas: Canvas, x: float, y: float) -> None:
        one.draw(canvas, x, y)
        other.draw(canvas, x + column + _GAP, y)

    return Block(max(one.height, other.height), draw)


def _drawn(block: Block, width: int, margin: float) -> Image.Image:
    canvas = Canvas(width, math.ceil(block.height + 2 * margin), PAPER)
    block.draw(canvas, margin, margin)
    return canvas.finished()


# What is seen


def _overlay(explanation: HiceExplanation, width: float, finer: float = FINER) -> Canvas:
    image = explanation.image()
    regions = explanation.masks() or Regions.of([], size=(image.height, image.width))
    unmentioned = [note["unmentioned"] for note in explanation.regions]
    return draw_regions(image, regions, unmentioned, width, finer)


def _picture(explanation: HiceExplanation, width: float) -> Block:
    """The picture with round corners, and what its outlines mean."""
    size = explanation.image().size
    shown = min(width, width * _TALLEST * size[0] / size[1])
    seen = _overlay(explanation, shown)
    corners = Image.new("L", seen.image.size)
    box = (0, 0, corners.width - 1, corners.height - 1)
    ImageDraw.Draw(corners).rounded_rectangle(box, 10 * FINER, fill=255)

    def draw(canvas: Canvas, x: float, y: float) -> None:
        left = x + (width - shown) / 2
        canvas.paste(seen.image, left, y, corners)
        canvas.box(left, y, seen.width, seen.height, radius=10, edge=LINE)
        _legend(canvas, x, y + seen.height + 24, explanation)

    return Block(seen.height + 30, draw)


def _legend(canvas: Canvas, x: float, y: float, explanation: HiceExplanation) -> None:
    if not explanation.regions:
        canvas.text(x, y, "No region was found: the whole picture stands for them.", 13, FAINT)
        return
    unmentioned = [note["unmentioned"] for note in explanation.regions]
    samples = [("region that a phrase mentions", False), ("region that none mentions", True)]
    for told, dashed in samples:
        if dashed not in unmentioned:
            continue
        colour = region_colour(0, dashed)
        for start, end in [(0, 8), (14, 22), (28, 36)] if dashed else [(0, 36)]:
            canvas.line([(x + 2 + start, y - 5), (x + 2 + end, y - 5)], colour, 2.5)
        canvas.text(x + 48, y, told, 13, FAINT)
        x += 48 + width_of(told, 13) + 28


# What is said


def _head(explanation: HiceExplanation, width: float) -> Block:
    """The score and the terms that it is made of."""
    key = next(name for name in _TITLES if name in explanation)
    terms = [(told, explanation[name]) for name, told in _TERMS.items() if name in explanation]

    def draw(canvas: Canvas, x: float, y: float) -> None:
        canvas.text(x, y + 13, _TITLES[key], 15, FAINT)
        canvas.text(x - 2, y + 58, f"{explanation[key]:.3f}", 46, INK, bold=True)
        first = x + max(150.0, width * 0.3)
        step = (x + width - first) / min(len(terms), 4)
        canvas.line([(first - 22, y + 22), (first - 22, y + 58)], LINE, 1)
        for place, (told, value) in enumerate(terms):
            across, down = first + step * (place % 4), y + 52 * (place // 4)
            canvas.text(across, down + 32, told, 13, FAINT)
            canvas.text(across, down + 57, f"{value:.2f}", 19, INK)

    return Block(62.0 if len(terms) <= 4 else 114.0, draw)


def _caption(explanation: HiceExplanation, width: float) -> Block:
    """The caption with the words of its wrong phrases marked."""
    text = explanation["caption"]
    size, leading = (21.0, 32.0) if len(text) < 320 else (17.0, 26.0)
    lines = lines_of(text, size, width, explanation.wrong_words())

    def draw(canvas: Canvas, x: float, y: float) -> None:
        for number, pieces in enumerate(lines):
            base = y + number * leading + size
            for start, end in _runs(pieces):
                canvas.box(
                    x + start - 4,
                    base - size * 0.95,
                    end - start + 8,
                    size * 1.3,
                    radius=5,
                    fill=WRONG_GROUND,
                )
                canvas.line([(x + start, base + size * 0.24), (x + end, base + size * 0.24)], WRONG, 1.5)
            for piece in pieces:
                canvas.line_of_text(x, base, [piece], size, WRONG if piece.marked else INK)

    return Block(len(lines) * leading, draw)


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


# Tables


@dataclass(frozen=True)
class _Row:
    """lead: what stands before the text. bars: a value and its colour, one for each column of numbers."""

    lines: list[list[Piece]]
    colour: Rgb
    bars: Sequence[tuple[float, Rgb]]
    lead: Callable[[Canvas, float, float], None]
    tail: Callable[[Canvas, float, float], None] | None = None

    @property
    def height(self) -> float:
        return len(self.lines) * _LEADING + 14


def _phrases(explanation: HiceExplanation, width: float) -> Block:
    radius = badge_radius(0)
    room = _room(width, 1) - _LEAD
    rows = []
    for note in explanation.phrases:
        wrong, region = note["mistake"], note["region"]

        def tail(canvas: Canvas, x: float, y: float, region: int | None = region) -> None:
            if region is None:
                canvas.text(x, y + 4, "all", 13, FAINT, anchor="ms")
            else:
                unmentioned = explanation.regions[region]["unmentioned"]
                draw_badge(canvas, x, y, radius - 1, region + 1, region_colour(region, unmentioned))

        rows.append(
            _Row(
                _fitted(note["phrase"], room),
                WRONG if wrong else INK,
                [(note["precision"], WRONG if wrong else RIGHT)],
                _cross if wrong else _tick,
                tail,
            )
        )
    return _table("Phrases", ["precision, best region"], rows, width, explanation["threshold"], tailed=True)


def _regions(explanation: HiceExplanation, width: float, columns: int = 1) -> Block:
    own = (width - _GAP * (columns - 1)) / columns
    radius = badge_radius(0)
    rows = []
    for index, note in enumerate(explanation.regions):
        missed = note["unmentioned"]
        colour = region_colour(index, missed)

        def lead(canvas: Canvas, x: float, y: float, index: int = index, colour: Rgb = colour) -> None:
            draw_badge(canvas, x, y, radius - 1, index + 1, colour)

        text = f"not mentioned; nearest: {note['phrase']}" if missed else note["phrase"]
        bars = [(note["recall"], colour)]
        rows.append(_Row(_fitted(text, _room(own, 1)), UNMENTIONED if missed else INK, bars, lead))
    if explanation["whole"] is not None:
        whole = explanation["whole"]

        def lead_of_whole(canvas: Canvas, x: float, y: float) -> None:
            canvas.text(x, y + 4, "all", 13, FAINT, anchor="ms")

        bars = [(whole["recall"], FAINT)]
        rows.append(_Row(_fitted(whole["phrase"], _room(own, 1)), INK, bars, lead_of_whole))
    share = -(-len(rows) // columns)
    parts = [rows[start : start + share] for start in range(0, len(rows), share)] if rows else []
    tables = [
        _table("Regions" if not place else "", ["recall"], part, own, explanation["threshold"])
        for place, part in enumerate(parts)
    ]

    def draw(canvas: Canvas, x: float, y: float) -> None:
        for place, table in enumerate(tables):
            table.draw(canvas, x + place * (own + _GAP), y)

    return Block(max((table.height for table in tables), default=0.0), draw)


def _references(explanation: HiceExplanation, width: float) -> Block:
    rows = []
    for note in explanation.compared:
        colour = INK if note["chosen"] else FAINT

        def lead(canvas: Canvas, x: float, y: float, chosen: bool = note["chosen"]) -> None:
            canvas.disc(x, y, 5, COMPARED if chosen else FAINT)
            if not chosen:
                canvas.disc(x, y, 3.5, PAPER)

        bar = COMPARED if note["chosen"] else FAINT
        values = [(note["gttc"], bar), (note["lttc"], bar)]
        rows.append(_Row(_fitted(note["reference"], _room(width, 2)), colour, values, lead))
    if not rows:
        return Block(0.0, lambda canvas, x, y: None)
    return _table("References", ["global", "local"], rows, width, None)


def _room(width: float, bars: int) -> float:
    """Width of the texts of a table."""
    return width - _LEAD - bars * (_BAR + _VALUE + 14)


def _fitted(text: str, width: float) -> list[list[Piece]]:
    return shortened(lines_of(text, _TEXT, width), _MOST_LINES, _TEXT, width)


def _table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[_Row],
    width: float,
    threshold: float | None,
    *,
    tailed: bool = False,
) -> Block:
    """Rows under a title; bars share an axis from 0, to 1 or further, with the threshold marked."""
    most = max(1.0, 1.1 * (threshold or 0.0), *(value for row in rows for value, _ in row.bars))
    top = 28.0

    def draw(canvas: Canvas, x: float, y: float) -> None:
        canvas.text(x, y + 14, title, 16, INK, bold=True)
        right = x + width - (_LEAD if tailed else 0)
        step = _BAR + _VALUE + 14
        for place, name in enumerate(reversed(columns)):
            end = x + width if not place else right - place * step
            canvas.text(end, y + 14, name, 13, FAINT, anchor="rs")
        down = y + top
        for row in rows:
            canvas.line([(x, down), (x + width, down)], LINE, 1)
            middle = down + 7 + _LEADING / 2
            row.lead(canvas, x + 11, middle)
            for number, pieces in enumerate(row.lines):
                canvas.line_of_text(x + _LEAD, middle + 5 + number * _LEADING, pieces, _TEXT, row.colour)
            for place, (value, colour) in enumerate(reversed(row.bars)):
                end = right - place * step
                _bar(
                    canvas, end - _VALUE - _BAR, middle, value / most, colour, threshold and threshold / most
                )
                canvas.text(end, middle + 5, f"{value:.2f}", 14, INK, anchor="rs")
            if row.tail is not None:
                row.tail(canvas, x + width - 11, middle)
            down += row.height

    return Block(top + sum(row.height for row in rows), draw)


def _bar(canvas: Canvas, x: float, y: float, share: float, colour: Rgb, threshold: float | None) -> None:
    canvas.box(x, y - 4, _BAR, 8, radius=4, fill=LINE)
    canvas.box(x, y - 4, max(_BAR * min(share, 1.0), 3), 8, radius=4, fill=colour)
    if threshold is not None and threshold < 1:
        at = x + _BAR * threshold
        canvas.line([(at, y - 7), (at, y + 7)], PAPER, 3)
        canvas.line([(at, y - 7), (at, y + 7)], INK, 1)


def _tick(canvas: Canvas, x: float, y: float) -> None:
    canvas.line([(x - 6, y), (x - 2, y + 4.5), (x + 6, y - 5)], RIGHT, 2.5)


def _cross(canvas: Canvas, x: float, y: float) -> None:
    canvas.line([(x - 5, y - 5), (x + 5, y + 5)], WRONG, 2.5)
    canvas.line([(x - 5, y + 5), (x + 5, y - 5)], WRONG, 2.5)
