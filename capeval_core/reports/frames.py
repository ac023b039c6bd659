"""A caption matched with the frames of a video, drawn: its cosines as a curve, and the best frames."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypedDict

from PIL import Image

from capeval_core.reports.canvas import FAINT, INK, LINE, PAPER, REGIONS, Canvas, check_width
from capeval_core.reports.text import FINER, Piece, lines_of, shortened

DESIGNED = 720
"""Width for which sizes are given."""
_MARGIN, _LEFT = 24.0, 68.0
_CURVE = 150.0
_TITLE, _TEXT, _SMALL = 16.0, 12.0, 10.5
_ROW = 15.0
_GAP = 10.0
_MOST_FRAMES = 6
_MOST_LINES = 8
"""Of words below a frame."""


class FrameMatch(TypedDict):
    """A word, its weight, and its cosine with the most similar frame, which is counted from 0."""

    word: str
    weight: float
    frame: int
    cosine: float


def best_frames(words: Sequence[FrameMatch], most: int = _MOST_FRAMES) -> dict[int, list[FrameMatch]]:
    """The words that each frame is the best of, by frame: of the frames with most words, in time's order.

    >>> frames = {"a": 7, "red": 2, "star": 7}
    >>> words = [FrameMatch(word=w, weight=1.0, frame=f, cosine=0.3) for w, f in frames.items()]
    >>> {frame: [match["word"] for match in own] for frame, own in best_frames(words).items()}
    {2: ['red'], 7: ['a', 'star']}
    """
    of_frame: dict[int, list[FrameMatch]] = defaultdict(list)
    for match in words:
        of_frame[match["frame"]].append(match)
    kept = sorted(of_frame, key=lambda frame: (-len(of_frame[frame]), frame))[:most]
    return {frame: of_frame[frame] for frame in sorted(kept)}


def shown_word(match: FrameMatch) -> str:
    """A word for readers; the markers around a text are `start` and `end`.

    >>> shown_word(FrameMatch(word="<|endoftext|>", weight=1.0, frame=0, cosine=0.5))
    'end'
    """
    word = match["word"]
    return word[2:-2].removesuffix("oftext") if word.startswith("<|") and word.endswith("|>") else word


def draw_frames(
    caption: str,
    cosines: Sequence[float],
    words: Sequence[FrameMatch],
    frames: Mapping[int, Image.Image],
    width: int = 2 * DESIGNED,
) -> Image.Image:
    """The cosine of a caption with each frame as a curve, and below it the best frames of its words.

    Args:
        caption: its text.
        cosines: of the caption as a whole with each frame, in [-1, 1]; at least one.
        words: the best frame of each word.
        frames: the images of `best_frames(words)`; those that are not there are drawn empty.
        width: of the result, in pixels.

    Raises:
        ValueError: the width is below 320 pixels.

    >>> words = [FrameMatch(word="star", weight=1.0, frame=1, cosine=0.4)]
    >>> draw_frames("a star", [0.1, 0.3], words, {1: Image.new("RGB", (8, 6))}, 720).size[0]
    720
    """
    check_width(width)
    inner = DESIGNED - 2 * _MARGIN
    title = shortened(lines_of(caption, _TITLE, inner), 2, _TITLE, inner)
    best = best_frames(words)
    cell = (inner - _GAP * (_MOST_FRAMES - 1)) / _MOST_FRAMES
    tallest = max((_height(frames.get(frame), cell) for frame in best), default=0.0)
    top = _MARGIN + 22 * len(title) + 12
    strip = top + 18 + _CURVE + 44
    texts = {frame: _words(own, cell) for frame, own in best.items()}
    below = tallest + _ROW * (1 + max(map(len, texts.values()))) if texts else 0.0
    canvas = Canvas(DESIGNED, strip + below + _MARGIN, PAPER, FINER * width / DESIGNED)
    for row, line in enumerate(title):
        canvas.line_of_text(_MARGIN, _MARGIN + 14 + 22 * row, line, _TITLE, INK)
    _draw_curve(canvas, top, cosines, best)
    for column, (frame, lines) in enumerate(texts.items()):
        x = _MARGIN + column * (cell + _GAP)
        height = _draw_frame(canvas, x, strip, cell, frames.get(frame))
        canvas.text(x, strip + height + _ROW, f"frame {frame}", _SMALL, FAINT)
        for row, line in enumerate(lines):
            canvas.line_of_text(x, strip + height + _ROW * (row + 2), line, _SMALL, INK)
    return canvas.finished()


def _words(matches: Sequence[FrameMatch], width: float) -> list[list[Piece]]:
    """The words of a frame with their cosines, as lines."""
    text = ", ".join(f"{shown_word(match)} {match['cosine']:.2f}" for match in matches)
    return shortened(lines_of(text, _SMALL, width), _MOST_LINES, _SMALL, width)


def _height(image: Image.Image | None, width: float) -> float:
    """Height of a frame that is drawn `width` wide; a tall one is made narrower instead."""
    return min(width * 1.2, width * image.height / image.width) if image is not None else width * 0.6


def _draw_curve(canvas: Canvas, top: float, cosines: Sequence[float], best: Mapping[int, object]) -> None:
    canvas.text(_MARGIN, top + 8, "cosine of the whole caption with each frame", _TEXT, FAINT)
    above, below, right = top + 22, top + 18 + _CURVE, canvas.width - _MARGIN
    low, high = min(0.0, *cosines), max(0.0, *cosines)
    span = (high - low) or 1.0
    last = max(len(cosines) - 1, 1)

    def place(frame: float, cosine: float) -> tuple[float, float]:
        return _LEFT + (right - _LEFT) * frame / last, below - (below - above) * (cosine - low) / span

    for part in range(4):
        value = low + span * part / 3
        _, y = place(0, value)
        canvas.line([(_LEFT, y), (right, y)], LINE, 1)
        canvas.text(_LEFT - 8, y + 4, f"{value:.2f}", _SMALL, FAINT, anchor="rs")
    step = math.ceil(last / 5)
    for frame in range(0, len(cosines), step):
        canvas.text(place(frame, low)[0], below + 16, str(frame), _SMALL, FAINT, anchor="ms")
    points = [place(frame, cosine) for frame, cosine in enumerate(cosines)]
    if len(points) > 1:
        canvas.line(points, REGIONS[0], 2)
    for frame in best:
        canvas.disc(*points[frame], 4.5, PAPER)
        canvas.disc(*points[frame], 3.5, REGIONS[0])
    if len(points) == 1:
        canvas.disc(*points[0], 3.5, REGIONS[0])


def _draw_frame(canvas: Canvas, x: float, y: float, width: float, image: Image.Image | None) -> float:
    """A frame, or an empty box where it could not be read; its height."""
    height = _height(image, width)
    shown = width if image is None else min(width, height * image.width / image.height)
    if image is not None:
        size = round(shown * canvas.finer), round(height * canvas.finer)
        canvas.paste(image.convert("RGB").resize(size), x, y)
    canvas.box(x, y, shown, height, fill=LINE if image is None else None, edge=LINE)
    return height
