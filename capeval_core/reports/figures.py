"""Pictures of results by matplotlib (`pip install "capeval[plot]"`), and regions outlined by Pillow."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from capeval_core.project import needs
from capeval_core.regions import rle
from capeval_core.regions.regions import Regions

_Points = NDArray[np.float64]
_Box = tuple[int, int, int, int]

INK = "#1c202c"
FAINT = "#687082"
_LINE = "#e4e7ed"
_RIGHT = "#1e8a60"
_WRONG = "#c83042"
_UNMENTIONED = "#707888"
_SHADES = "2662d9 d97706 0d9488 8648d6 be3c8c 4c822a 0284c7 925e2e 4f46e5 a06e0a"
REGIONS = [f"#{shade}" for shade in _SHADES.split()]
"""Colours of regions, repeated after the last. No red, which marks mistakes."""
_DESIGNED = 440  # width for which the sizes of outlines are given
_SOFT = 1.7  # of the blur, in which an outline is a band of values
_EDGE = 68  # how far the band of a line reaches from its middle
_CASING = 109  # and that of its white edge
TERMS = {"gitc": "gITC", "litc": "lITC", "gttc": "gTTC", "lttc": "lTTC", "itm": "ITM"}
"""The papers' names of parts that have others here."""
_STYLE = Path(__file__).with_name("figures.mplstyle")
_WIDTH = 960
_DPI = 96
_LABEL_GAP = 0.02  # between labels at 45 degrees, in widths of a histogram
_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans", "PingFang SC", "Microsoft YaHei")


@contextmanager
def _drawing(width: float, height: float, final: float | None = None) -> Iterator[Any]:
    """A figure of this size to draw onto, which `_image` shows afterwards, `final` pixels wide."""
    with needs("matplotlib", "plot"):
        import matplotlib.style
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.font_manager import get_font_names
    # Several families: matplotlib looks for each letter in the next one, and captions may be Chinese.
    fonts: Any = {"font.family": [name for name in _FONTS if name in get_font_names()]}
    with matplotlib.style.context([_STYLE, fonts]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box in its place is enough of a warning
        figure: Any = Figure((width / _DPI, height / _DPI))
        FigureCanvasAgg(figure)  # not by `pyplot`, which keeps figures and opens windows
        yield figure
        figure.set_dpi(_DPI * (final or width) / width)
        figure.canvas.draw()  # `savefig` would lay it out and draw it twice


def _image(figure: Any) -> Image.Image:
    return Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")


def _note(figure: Any, text: str) -> None:
    figure.supxlabel(text, x=0.02, ha="left", size=8, color=FAINT)


# an image with its regions outlined, by Pillow alone: a tint would show objects in other colours than named


def region_colour(index: int, unmentioned: bool = False) -> str:
    """The colour of region `index`."""
    return _UNMENTIONED if unmentioned else REGIONS[index % len(REGIONS)]


def outlined(
    image: Image.Image, regions: Regions, unmentioned: Sequence[bool], width: int, visible: Sequence[float]
) -> Image.Image:
    """The image with outlines, at most `width` pixels wide; what lies outside of `visible` is dimmed."""
    # Drawn at twice the size at which it is shown, for smooth edges.
    across = 2 * width * min(1.0, 2 * image.width / image.height)
    scale = 2 * width / _DESIGNED
    size = max(2, round(across)), max(2, round(across * image.height / image.width))
    drawn = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    x0, y0, x1, y1 = np.rint(np.asarray(visible) * drawn.width / image.width).astype(int).tolist()
    if x1 - x0 < drawn.width - 1 or y1 - y0 < drawn.height - 1:
        sharp = drawn.crop((x0, y0, x1, y1))
        drawn = Image.blend(drawn, Image.new("RGB", drawn.size, (128, 128, 128)), 0.7)
        drawn.paste(sharp, (x0, y0))
        for colour, line in (("white", 3.0), (INK, 1.0)):
            ImageDraw.Draw(drawn).rectangle((x0, y0, x1, y1), outline=colour, width=round(line * scale))
    edges: list[_Points] = [np.empty((0, 2))] * len(regions)
    colours = [region_colour(index, dashed) for index, dashed in enumerate(unmentioned)]
    for index in np.argsort(-regions.areas, kind="stable").tolist():  # small ones are drawn over large ones
        mask = rle.decode(regions.runs[index], regions.size)
        band, place = _band(mask, drawn.size, scale)
        for reach, shade in ((_CASING, "white"), (_EDGE, colours[index])):
            alpha = np.clip((reach - band) / 12, 0, 1) * 255
            if unmentioned[index] and reach == _EDGE:
                # A chessboard over the line makes it dashed.
                alpha *= (np.indices(alpha.shape) // round(7 * scale)).sum(axis=0) % 2
            drawn.paste(shade, place, Image.fromarray(alpha.astype(np.uint8)))
        # (points of the outline, 2) as x, y in the whole picture, for the badge's place.
        edges[index] = np.argwhere(band < _EDGE)[:, ::-1] + np.array(place[:2], float)
    radius = scale * (11 if len(regions) < 20 else 9)
    for number, centre in enumerate(_place_badges(edges, drawn.size, radius)):
        _draw_badge(drawn, centre, radius, number, colours[number])
    return drawn.resize((drawn.width // 2, drawn.height // 2), Image.Resampling.LANCZOS)


def _draw_badge(image: Image.Image, centre: _Points, radius: float, number: int, colour: str) -> None:
    """Draw a disc with the number of a region, which counts from 1 for readers."""
    x, y = centre
    draw = ImageDraw.Draw(image)
    for half, fill in ((1.14 * radius, "white"), (radius, colour)):
        draw.ellipse([x - half, y - half, x + half, y + half], fill=fill)
    font = ImageFont.load_default(radius * (1.3 if number < 9 else 1.1))  # two digits need more room
    draw.text((x, y), str(number + 1), "white", font, anchor="mm", stroke_width=radius / 30)


def _band(mask: NDArray[np.bool_], size: tuple[int, int], scale: float) -> tuple[_Points, _Box]:
    """The distance of each pixel around a mask from its edge: 0 on it, up to 128; and the pixels' box."""
    shares = Image.fromarray(mask.astype(np.uint8) * 255).resize(size, Image.Resampling.BILINEAR)
    x0, y0, x1, y1 = shares.getbbox() or (0, 0, 1, 1)
    margin = round(4 * _SOFT * scale)
    place = x0 - margin, y0 - margin, x1 + margin, y1 + margin
    soft = np.asarray(shares.crop(place).filter(ImageFilter.GaussianBlur(_SOFT * scale)), dtype=np.float64)
    most = soft.max(initial=1.0)
    if most < 200:  # a thin mask is blurred away
        soft = soft * (255 / most)
    return np.abs(soft - 127.5), place


def _place_badges(regions: Sequence[_Points], size: tuple[int, int], radius: float) -> _Points:
    """A place for each region's badge: on its outline, to the top left, else the nearest free one."""
    low = np.full(2, radius + 1)
    high = np.maximum(np.asarray(size) - radius - 1, radius + 1)
    grid = np.mgrid[low[0] : high[0] + 1 : radius, low[1] : high[1] + 1 : radius].reshape(2, -1).T
    badges = np.full((len(regions), 2), np.inf)
    # The smallest first: they have the least choice.
    for index in np.argsort([np.prod(np.ptp(points, axis=0)) for points in regions], kind="stable"):
        # Some hundred points of an outline are as good as all, and their distances are a small matrix.
        points = np.clip(regions[index][:: max(1, len(regions[index]) // 96)], low, high)
        points = points[np.argsort(points.sum(axis=1), kind="stable")]  # the top left first
        nearest = grid[np.argsort(np.hypot(*(grid - points[0]).T), kind="stable")]
        candidates = np.concatenate([points, nearest])
        # (candidates, badges); those that have no place yet are infinitely far.
        distances = np.hypot(*(candidates[:, None] - badges).transpose(2, 0, 1))
        is_free = (distances >= 2 * radius + 1).all(axis=1)
        badges[index] = candidates[is_free.argmax()]
    return badges


# judged sets, shards and training


def draw_bars(panels: Mapping[str, Sequence[Any]], note: str = "") -> Image.Image:
    """Panels of dots with intervals, a red tick at what is published: name, value, low, high, published."""
    rows = []
    height = 30 if note else 0
    for bars in panels.values():
        rows.append(max(len(bars), 1))
        height += 26 * rows[-1] + 62
    with _drawing(_WIDTH, height) as figure:
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
        for ax, (title, bars) in zip(axes, panels.items(), strict=True):
            ax.set_title(title)
            ax.set_yticks(range(len(bars)), [name for name, *_ in bars], color=INK)
            ax.set_ylim(len(bars) - 0.4, -0.6)
            ax.grid(axis="y", visible=False)
            for y, (_, value, low, high, published) in enumerate(bars):
                shade = f"C{y % len(REGIONS)}"
                ax.hlines(y, low, high, shade, linewidth=2.2)
                ax.plot(published, y, "|", color=_WRONG, markersize=13, markeredgewidth=1.4)
                ax.plot(value, y, "o", color=shade, markersize=6)
                text = f"{value:.1f}" if math.isfinite(value) else "undefined"
                if math.isfinite(low):
                    text += f"  [{low:.1f}, {high:.1f}]"
                ax.text(1.01, y, text, transform=ax.get_yaxis_transform(), va="center", color=FAINT)
            ax.margins(x=0.04)
        _note(figure, note)
    return _image(figure)


def draw_spreads(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Image.Image:
    """A box plot per metric of scores at each level of a rating (whiskers: 5% and 95%; line: means)."""
    rows = max(1, math.ceil(len(panels) / 3))
    with _drawing(_WIDTH, 244 * rows) as figure:
        axes = figure.subplots(rows, 3, squeeze=False).ravel()
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for index, (ax, (title, levels)) in enumerate(zip(axes, panels.items(), strict=False)):
            names = []
            spreads = []
            means = []
            for level, values in levels.items():
                if len(values):  # matplotlib draws a box of nothing as a line at NaN, with warnings
                    names.append(level)
                    spreads.append(values)
                    means.append(float(np.mean(values)))
            shade = f"C{index % len(REGIONS)}"
            ax.set_title(title if names else f"{title}: no scores")
            if not names:
                continue
            style: Any = {
                "whis": (5, 95),
                "boxprops": {"facecolor": (shade, 0.24), "edgecolor": shade},
                "whiskerprops": {"color": shade},
                "medianprops": {"color": shade},
            }
            ax.boxplot(spreads, tick_labels=names, **style)
            ax.plot(range(1, len(means) + 1), means, "-o", color=INK, linewidth=1, markersize=3)
            ax.grid(axis="x", visible=False)
            ax.set_xlabel("rating")
    return _image(figure)


def draw_histogram(
    title: str, bins: tuple[Any, Any], marks: Mapping[str, float], high_from: float | None, note: str
) -> Image.Image:
    """A histogram of bins (edges, counts) with values marked by their names; bars right of `high_from` have
    another colour."""
    edges, counts = bins
    low = float(edges[0])
    high = float(edges[-1])
    middle = high if high_from is None else high_from
    with _drawing(_WIDTH, 420) as figure:
        ax = figure.subplots()
        ax.set_title(title, pad=40)
        ax.grid(axis="x", visible=False)
        for start, stop, shade in ((low, middle, "C0"), (middle, high, "C1")):
            sides = np.clip(edges, start, stop)
            ax.bar(sides[:-1], counts, np.diff(sides), align="edge", color=shade, edgecolor="white")
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.locator_params(axis="y", integer=True)
        ax.set_xlim(low, high)
        within = ax.get_xaxis_transform()
        places = _apart(list(marks.values()), (high - low) * _LABEL_GAP, high)
        for (name, value), place in zip(marks.items(), places, strict=True):
            line = {"color": INK, "linewidth": 0.8, "clip_on": False, "transform": within}
            # Up through the bars, then aside to the label, which may be moved away from its value.
            ax.plot([value, value, place], [0, 1, 1.03], **line)
            ax.text(place, 1.04, name, transform=within, ha="left", rotation=45, size=7.5)
        _note(figure, note)
    return _image(figure)


def _apart(values: Sequence[float], gap: float, high: float) -> list[float]:
    """Places of labels at least `gap` apart, up to `high`, each as near as it can be to its rising value."""
    places: list[float] = []
    for value in values:
        places.append(max(value, places[-1] + gap) if places else value)
    # Where they have been pushed beyond the end, they move back from it.
    for i in reversed(range(len(places))):
        places[i] = min(places[i], high - gap * (len(places) - 1 - i))
    return places


def draw_curves(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> Image.Image:
    """Panels one below the other, each with its curves through points (step, value) by name."""
    rows = max(len(panels), 1)
    with _drawing(_WIDTH, 230 * rows) as figure:
        axes = figure.subplots(rows, 1, squeeze=False, sharex=True)[:, 0]
        for ax, (title, curves) in zip(axes, panels.items(), strict=False):
            ax.set_title(title)
            for name, points in curves.items():
                ax.plot(*zip(*points, strict=True), label=name, linewidth=1.5)
                ax.plot(*points[-1], "o", color=ax.lines[-1].get_color(), markersize=4)
            values = [0.0]  # from 0 on, unless a curve goes below: heights of panels can be compared then
            for points in curves.values():
                _, values_of_curve = zip(*points, strict=True)
                values += values_of_curve
            ax.set_ylim(bottom=min(values))
            ax.xaxis.set_major_formatter("{x:,.0f}")
            ax.locator_params(axis="x", integer=True)
            if any(curves):
                ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)
    return _image(figure)


# explanations: lines of text, with an image or a chart next to or below them

# Sizes of letters.
_SCORE = 28.0
_CAPTION = 13.0
_HEADING = 11.0
_TITLE = 10.5
_ROW = 9.5
_LEGEND = 8.0
_BOLD = (_SCORE, _HEADING)
_COLUMN = 520  # pixels, of text and of an image next to it
_CHART = 720  # pixels
_TWO_COLUMNS = 760  # pixels of a picture from which on it has two columns
_PARTS = ("gitc", "litc", "precision", "recall", "gttc", "lttc")
Line = tuple[float, Sequence[tuple[str, str]]]
"""The size of the letters of a line, and its pieces with their colours."""


@contextmanager
def _explained(lines: Iterable[Line], height: float, width: int, across: int = _CHART) -> Iterator[Any]:
    """A part of a figure to draw onto, of this height, with lines above it, or to the right of it."""
    lines = list(lines)
    in_columns = across == _COLUMN and width >= _TWO_COLUMNS
    text_height = 24.0
    for letters, _ in lines:
        text_height += 2.2 * letters
    size = (across, text_height + height)
    if in_columns:
        size = (2 * across, max(text_height, height))
    with _drawing(*size, width) as figure:
        from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea, VPacker

        if in_columns:
            body, head = figure.subfigures(ncols=2)
        else:
            head, body = figure.subfigures(nrows=2, height_ratios=[text_height, height])
        yield body
        rows: list[Any] = []
        for letters, pieces in lines:
            style = {"size": letters, "weight": "bold" if letters in _BOLD else "normal"}
            texts: list[Any] = []
            for piece, ink in pieces:
                texts.append(TextArea(piece, textprops=style | {"color": ink}))
            rows.append(HPacker(children=texts, pad=0, sep=6))
        place: Any = {"bbox_to_anchor": (0, 0, 1, 1), "bbox_transform": head.transSubfigure}
        column = VPacker(children=rows, pad=8, sep=4)
        head.add_artist(AnchoredOffsetbox("upper left", child=column, frameon=False, pad=0, **place))


def draw_picture(lines: Iterable[Line], image: Image.Image, width: int) -> Image.Image:
    """An outlined image with lines of text next to it, above it where there is little room."""
    height = min(image.height / image.width, 1.1) * _COLUMN
    with _explained(lines, height, width, _COLUMN) as figure:
        axes = figure.subplots()
        axes.imshow(image, interpolation="antialiased")
        axes.axis("off")
        axes.set_anchor("N")
    return _image(figure)


def draw_matches(caption: str, title: str, note: Mapping[str, Any], width: int) -> Image.Image:
    """The cosines of a caption's words (down) with those of a reference (across) as a heat map."""
    rows = [_cut(word, 18) for word in note["words"]]
    columns = [_cut(word, 18) for word in note["reference_words"]]
    cosines = np.asarray(note["cosines"])
    scores = f"precision {note['precision']:.3f}, recall {note['recall']:.3f}, F {note['f']:.3f}"
    lines = []
    for text in (title, f"caption (rows): {caption}", f"reference (columns): {note['reference']}"):
        lines.append((_TITLE, [(_cut(text, 88), INK)]))
    with _explained(lines, 26 * len(rows) + 102, width) as figure:
        from matplotlib.patches import Rectangle

        ax = figure.subplots()
        ax.pcolormesh(cosines, cmap="Blues", vmin=0, vmax=1, edgecolor=_LINE, linewidth=0.5)
        ax.invert_yaxis()
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        turned: Any = {"rotation": 45, "ha": "left"} if max(map(len, columns)) * len(columns) > 70 else {}
        ax.set_xticks(np.arange(len(columns)) + 0.5, columns, **turned)
        ax.set_yticks(np.arange(len(rows)) + 0.5, rows, color=INK)
        ax.xaxis.tick_top()
        style: Any = {"ha": "center", "va": "center", "size": 7}
        readable: Any = cosines if len(columns) <= 20 else []  # numbers of more columns would overlap
        for (row, column), cosine in np.ndenumerate(readable):
            ink = "white" if cosine > 0.5 else INK
            ax.text(column + 0.5, row + 0.55, f"{cosine:.2f}", color=ink, **style)
        dots: Any = {"markersize": 3, "color": "white", "markeredgecolor": INK, "markeredgewidth": 0.6}
        ax.plot(np.arange(len(columns)) + 0.88, cosines.argmax(axis=0) + 0.18, "o", **dots)
        for row, column in enumerate(cosines.argmax(axis=1)):
            ax.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=INK, zorder=3))
        _note(figure, f"{scores}; dark: high cosine, frame: best of its row, dot: best of its column")
    return _image(figure)


def draw_frames(
    caption: str, cosines: Sequence[float], frames: Mapping[int, tuple[Image.Image | None, str]], width: int
) -> Image.Image:
    """The cosine of a caption with each frame as a curve; its best frames, at most six, with their words."""
    texts = []
    heights = []  # as shares of the width
    for image, text in frames.values():
        texts.append(_wrapped(text, 20, 8))
        if image is not None:
            heights.append(image.height / image.width)
    tallest = max(heights, default=0.75)
    strip = min(tallest, 2.0) * 110 + 14 * max(map(len, texts), default=0) + 34
    lines = [(_TITLE, [(line, INK)]) for line in _wrapped(caption, 84, 3) or [""]]
    with _explained(lines, 200 + strip, width) as figure:
        above, below = figure.subfigures(2, 1, height_ratios=[200, strip])
        ax = above.subplots()
        ax.set_title("cosine of the whole caption with each frame", color=FAINT, weight="normal", size=8.5)
        ax.plot(cosines, linewidth=1.6)
        marked = [*frames] if len(cosines) > 1 else [0]  # a curve of one frame is only its dot
        if marked:  # no dots at all would take all room from the curve
            ax.plot(marked, [cosines[frame] for frame in marked], "o", color="C0", clip_on=False)
        ax.set_ylim(bottom=min(0.0, *cosines))
        ax.locator_params(axis="x", integer=True)
        row = below.subplots(1, 6)
        for ax in row:
            ax.axis("off")
        for ax, (frame, (image, _)), lines_of_words in zip(row, frames.items(), texts, strict=False):
            ax.imshow(image or Image.new("RGB", (40, 30), _LINE), aspect="equal")
            ax.set_anchor("N")
            words = "\n".join([f"frame {frame}", *lines_of_words])
            ax.text(0, -0.06, words, transform=ax.transAxes, va="top", size=7.5, linespacing=1.35)
    return _image(figure)


def score_lines(title: str, score: float, parts: str, caption: Iterable[tuple[str, bool]]) -> Iterator[Line]:
    """A score with its parts, and the caption in pieces, and whether each is wrong."""
    yield _ROW, [(title, FAINT)]
    yield _SCORE, [(f"{score:.3f}", INK)]
    yield _ROW, [(parts, FAINT)]
    words: list[tuple[str, str]] = []
    for text, is_mistake in caption:
        colour = _WRONG if is_mistake else INK
        for word in text.split():
            words.append((word, colour))
    plain = " ".join([word for word, _ in words])
    # Wrapped as one text and split again at the same blanks: a line has pieces of several colours.
    start = 0
    for line in textwrap.wrap(plain, 46, break_long_words=False, break_on_hyphens=False):
        stop = start + len(line.split())
        yield _CAPTION, words[start:stop]
        start = stop


def card_lines(note: Mapping[str, Any], caption: Iterable[tuple[str, bool]]) -> Iterator[Line]:
    """An explanation of HICE-S: score, caption, phrases, references and regions."""
    if "refhice_s" in note:
        title = "RefHICE-S"
        score = note["refhice_s"]
    else:
        title = "HICE-S"
        score = note["hice_s"]
    parts = []
    for name in _PARTS:
        if name in note:
            parts.append(f"{TERMS.get(name, name)} {note[name]:.2f}")
    yield from score_lines(title, score, "   ".join(parts), caption)
    yield _HEADING, [("Phrases: precision, best region", INK)]
    for phrase in note["phrases"]:
        yield _phrase_line(phrase)
    if note.get("compared"):
        yield _HEADING, [("References: gTTC, lTTC (●: chosen)", INK)]
    for reference in note.get("compared") or ():
        sign = "●" if reference["chosen"] else "○"
        yield _line(sign, [reference["gttc"], reference["lttc"]], reference["reference"])
    yield _HEADING, [("Regions: recall, nearest phrase", INK)]
    for index, region in enumerate(note["regions"]):
        text = region["phrase"]
        if region["unmentioned"]:
            text = f"not mentioned; nearest: {text}"
        yield _line(f"{index + 1:>2}", [region["recall"]], text, region_colour(index, region["unmentioned"]))
    whole_image = note["whole"]
    if whole_image:
        yield _line("whole image", [whole_image["recall"]], whole_image["phrase"])
    for text in _legend(note):
        yield _LEGEND, [(text, FAINT)]


def _line(sign: str, numbers: Sequence[float], text: str, ink: str = INK) -> Line:
    """A line of a sign, numbers and a text."""
    pieces = [sign]
    for number in numbers:
        pieces.append(f"{number:.2f}")
    pieces.append(_cut(text, 58))
    return _ROW, [("  ".join(pieces), ink)]


def _phrase_line(phrase: Mapping[str, Any]) -> Line:
    """A phrase with its precision and its best region."""
    place = "whole image" if phrase["region"] is None else f"region {phrase['region'] + 1}"
    text = f"{_cut(phrase['phrase'], 44)}: {place}"
    if phrase["mistake"]:
        return _line("✗", [phrase["precision"]], text, _WRONG)
    if phrase["judged"]:
        return _line("✓", [phrase["precision"]], text, _RIGHT)
    return _line("–", [phrase["precision"]], text, FAINT)


def _legend(note: Mapping[str, Any]) -> Iterator[str]:
    """The meaning of an explanation's signs."""
    if note["regions"]:
        yield "dashed: region that no phrase mentions"
    else:
        place = "inside the square" if note["outside"] else "found"
        yield f"No region was {place}: the whole image stands for them."
    yield f"✓ fits a region: precision of at least {note['threshold']:.4g}"
    if note["outside"]:
        yield f"– {outside_text(note)}; phrases may be about them"
    if note["truncated"]:
        yield "The end of a text that is longer than the encoder reads was cut off."


def _wrapped(text: str, width: int, lines: int) -> list[str]:
    return textwrap.wrap(text, width, max_lines=lines, placeholder=" …")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def outside_text(evidence: Mapping[str, Any]) -> str:
    """The number of regions that the image tower does not see: `1 region outside the square was not judged`,
    or ""."""
    count = evidence["outside"]
    if not count:
        return ""
    if count == 1:
        return "1 region outside the square was not judged"
    return f"{count} regions outside the square were not judged"
