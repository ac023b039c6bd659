"""Pictures of results by matplotlib (`pip install "capeval[plot]"`), and regions outlined by Pillow."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps

from capeval_core.project import needs
from capeval_core.regions import rle
from capeval_core.regions.regions import Regions

_Points = NDArray[np.float64]

INK, FAINT, _LINE, _RIGHT, _WRONG = "#1c202c", "#687082", "#e4e7ed", "#1e8a60", "#c83042"
_UNMENTIONED = "#707888"
_SHADES = "2662d9 d97706 0d9488 8648d6 be3c8c 4c822a 0284c7 925e2e 4f46e5 a06e0a"
REGIONS = [f"#{shade}" for shade in _SHADES.split()]
"""Colours of regions, repeated after the last. No red, which marks mistakes."""
_DESIGNED = 440
"""Width for which the sizes below are given."""
_SOFT = 1.7  # of the blur, in which an outline is a band of values
_EDGE, _CASING = 68, 109  # how far from the middle the band of the line and of its white edge reach
_DASH = 7.0
_CANDIDATES = 96  # points of an outline that are tried for a badge
TERMS = {"gitc": "gITC", "litc": "lITC", "gttc": "gTTC", "lttc": "lTTC", "itm": "ITM"}
"""The papers' names of parts that have others here."""
_STYLE = Path(__file__).with_name("figures.mplstyle")
_WIDTH, _DPI = 960, 96
_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans", "PingFang SC", "Microsoft YaHei")
_ACROSS = 3  # charts of boxes side by side


def _drawn(
    width: float, height: float, draw: Callable[[Any], None], final: float | None = None
) -> Image.Image:
    """What `draw` draws onto a figure of this size, as an image `final` pixels wide."""
    with needs("matplotlib", "plot"):
        import matplotlib.style
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.font_manager import get_font_names
    fonts: Any = {"font.family": [name for name in _FONTS if name in get_font_names()]}
    with matplotlib.style.context([_STYLE, fonts]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure = Figure((width / _DPI, height / _DPI))
        FigureCanvasAgg(figure)
        draw(figure)
        file = BytesIO()
        figure.savefig(file, format="png", dpi=_DPI * (final or width) / width)
    return Image.open(file).convert("RGB")


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
    size = max(2, round(across)), max(2, round(across * image.height / image.width))
    drawn, scale = image.convert("RGB").resize(size, Image.Resampling.LANCZOS), 2 * width / _DESIGNED
    x0, y0, x1, y1 = (round(side * drawn.width / image.width) for side in visible)
    if x1 - x0 < drawn.width - 1 or y1 - y0 < drawn.height - 1:
        sharp = drawn.crop((x0, y0, x1, y1))
        drawn = Image.blend(drawn, Image.new("RGB", drawn.size, (128, 128, 128)), 0.7)
        drawn.paste(sharp, (x0, y0))
        for colour, line in (("white", 3.0), (INK, 1.0)):
            ImageDraw.Draw(drawn).rectangle((x0, y0, x1, y1), outline=colour, width=round(line * scale))
    edges: list[_Points] = [np.empty((0, 2))] * len(regions)
    colours = [region_colour(index, missed) for index, missed in enumerate(unmentioned)]
    for index in np.argsort(-regions.areas, kind="stable").tolist():  # small ones lie on large ones
        band = _band(rle.decode(regions.runs[index], regions.size), drawn.size, scale)
        for reach, shade in ((_CASING, "white"), (_EDGE, colours[index])):
            alpha = np.clip((reach - band) / 12, 0, 1) * 255
            if unmentioned[index] and reach == _EDGE:
                alpha *= (np.indices(alpha.shape) // round(_DASH * scale)).sum(axis=0) % 2
            drawn.paste(shade, mask=Image.fromarray(alpha.astype(np.uint8)))
        edges[index] = np.argwhere(band < _EDGE)[:, ::-1].astype(np.float64)
    radius, draw = scale * (11 if len(regions) < 20 else 9), ImageDraw.Draw(drawn)
    for number, (left, top) in enumerate(_place_badges(edges, drawn.size, radius)):
        for half, fill in ((1.14 * radius, "white"), (radius, colours[number])):
            draw.ellipse([left - half, top - half, left + half, top + half], fill=fill)
        font = ImageFont.load_default(radius * (1.3 if number < 9 else 1.1))
        draw.text((left, top), str(number + 1), "white", font, anchor="mm", stroke_width=radius / 30)
    return drawn.resize((drawn.width // 2, drawn.height // 2), Image.Resampling.LANCZOS)


def _band(mask: NDArray[np.bool_], size: tuple[int, int], scale: float) -> _Points:
    """How far each pixel is from the mask's edge: 0 on it, up to 128."""
    shares = Image.fromarray(mask.astype(np.uint8) * 255).resize(size, Image.Resampling.BILINEAR)
    edge = round(4 * _SOFT * scale)
    padded = ImageOps.expand(shares, edge).filter(ImageFilter.GaussianBlur(_SOFT * scale))
    soft = np.asarray(ImageOps.crop(padded, edge), dtype=np.float64)
    most = soft.max(initial=1.0)
    return np.abs(soft * (255 / most if most < 200 else 1) - 127.5)  # a thin mask is blurred away


def _place_badges(regions: Sequence[_Points], size: tuple[int, int], radius: float) -> _Points:
    """A place for each region's badge: on its outline, to the top left, else the nearest free one."""
    low, high = np.full(2, radius + 1), np.maximum(np.asarray(size) - radius - 1, radius + 1)
    grid = np.mgrid[low[0] : high[0] + 1 : radius, low[1] : high[1] + 1 : radius].reshape(2, -1).T
    found = np.full((len(regions), 2), np.inf)
    # The smallest first: they have the least choice.
    for index in np.argsort([np.prod(np.ptp(points, axis=0)) for points in regions], kind="stable"):
        points = np.clip(regions[index][:: max(1, len(regions[index]) // _CANDIDATES)], low, high)
        points = points[np.argsort(points.sum(axis=1), kind="stable")]
        nearest = grid[np.argsort(np.hypot(*(grid - points[0]).T), kind="stable")]
        candidates = np.concatenate([points, nearest])
        apart = np.hypot(*(candidates[:, None] - found).transpose(2, 0, 1)) >= 2 * radius + 1
        found[index] = candidates[apart.all(axis=1).argmax()]
    return found


# judged sets, shards and training


def draw_bars(
    panels: Mapping[str, Sequence[tuple[str, float, float, float, float]]], note: str = ""
) -> Image.Image:
    """Panels of dots with intervals, a red tick at what is published: name, value, low, high, published."""
    rows = [max(len(bars), 1) for bars in panels.values()]

    def draw(figure: Any) -> None:
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
                text += f"  [{low:.1f}, {high:.1f}]" if math.isfinite(low) else ""
                within = ax.get_yaxis_transform()
                ax.text(1.01, y, text, transform=within, va="center", color=FAINT)
            ax.margins(x=0.04)
        _note(figure, note)

    return _drawn(_WIDTH, sum(26 * count + 62 for count in rows) + 30 * bool(note), draw)


def draw_spreads(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Image.Image:
    """A box plot per metric of scores at each level of a rating (whiskers: 5% and 95%; line: means)."""
    rows = max(1, math.ceil(len(panels) / _ACROSS))

    def draw(figure: Any) -> None:
        axes = figure.subplots(rows, _ACROSS, squeeze=False).ravel()
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for index, (ax, (title, levels)) in enumerate(zip(axes, panels.items(), strict=False)):
            drawn = {level: values for level, values in levels.items() if len(values)}
            shade = f"C{index % len(REGIONS)}"
            ax.set_title(title if drawn else f"{title}: no scores")
            if not drawn:
                continue
            box, line = {"facecolor": (shade, 0.24), "edgecolor": shade}, {"color": shade}
            style: Any = {"whis": (5, 95), "boxprops": box, "whiskerprops": line, "medianprops": line}
            ax.boxplot(list(drawn.values()), tick_labels=list(drawn), **style)
            means = [float(np.mean(values)) for values in drawn.values()]
            ax.plot(range(1, len(means) + 1), means, "-o", color=INK, linewidth=1, markersize=3)
            ax.grid(axis="x", visible=False)
            ax.set_xlabel("rating")

    return _drawn(_WIDTH, 244 * rows, draw)


def draw_histogram(
    title: str,
    edges: Sequence[float],
    counts: Sequence[int],
    marks: Mapping[str, float],
    *,
    kept_from: float | None = None,
    note: str = "",
) -> Image.Image:
    """A histogram with values marked by their names; what is right of `kept_from` has another colour."""

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        ax.set_title(title, pad=40)
        ax.grid(axis="x", visible=False)
        low, high = float(edges[0]), float(edges[-1])
        middle = high if kept_from is None else kept_from
        for start, stop, shade in ((low, middle, "C0"), (middle, high, "C1")):
            bins = np.clip(edges, start, stop)
            ax.bar(bins[:-1], counts, np.diff(bins), align="edge", color=shade, edgecolor="white")
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.locator_params(axis="y", integer=True)
        ax.set_xlim(low, high)
        within = ax.get_xaxis_transform()
        for name, value in marks.items():
            ax.plot([value] * 2, [0, 1.02], color=INK, linewidth=0.8, clip_on=False, transform=within)
            ax.text(value, 1.03, name, transform=within, ha="left", rotation=45, size=7.5)
        _note(figure, note)

    return _drawn(_WIDTH, 420, draw)


def draw_curves(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> Image.Image:
    """Panels one below the other, each with its curves through points (step, value) by name."""

    def draw(figure: Any) -> None:
        axes = figure.subplots(max(len(panels), 1), 1, squeeze=False, sharex=True)[:, 0]
        for ax, (title, curves) in zip(axes, panels.items(), strict=False):
            ax.set_title(title)
            for name, points in curves.items():
                ax.plot(*zip(*points, strict=True), label=name, linewidth=1.5)
                ax.plot(*points[-1], "o", color=ax.lines[-1].get_color(), markersize=4)
            ax.set_ylim(bottom=min(0.0, *(y for points in curves.values() for _, y in points)))
            ax.xaxis.set_major_formatter("{x:,.0f}")
            ax.locator_params(axis="x", integer=True)
            if any(curves):
                ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)

    return _drawn(_WIDTH, 230 * max(len(panels), 1), draw)


# explanations


def _wrapped(text: str, width: int = 84, lines: int = 3) -> list[str]:
    return textwrap.wrap(text, width, max_lines=lines, placeholder=" …")


def _explained(title: Sequence[str], height: float, draw: Callable[[Any], None], width: int) -> Image.Image:
    """A drawing of this height below the lines of its title."""
    above = 20 * len(title) + 24

    def whole(figure: Any) -> None:
        head, body = figure.subfigures(2, 1, height_ratios=[above, height])
        head.text(0.02, 0.9, "\n".join(title), va="top", size=11)
        draw(body)

    return _drawn(720, above + height, whole, width)


def draw_boxes(
    note: Mapping[str, Any], image: Image.Image, title: str, places: Sequence[int], width: int
) -> Image.Image:
    """The image with these of its boxes outlined and numbered, the first on top, below score and caption."""

    def draw(figure: Any) -> None:
        from matplotlib.patches import Rectangle
        from matplotlib.patheffects import withStroke

        ax = figure.subplots()
        ax.imshow(image, interpolation="bilinear")
        ax.axis("off")
        badge: Any = {"color": "white", "size": 9, "weight": "bold", "ha": "center", "va": "center"}
        for place in reversed(places):
            x0, y0, x1, y1 = note["boxes"][place]["box"]
            shade, edge = region_colour(place), [withStroke(linewidth=4, foreground="white")]
            line: Any = {"fill": False, "edgecolor": shade, "linewidth": 2, "path_effects": edge}
            ax.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, **line))
            ax.text(x0, y0, place + 1, bbox={"boxstyle": "circle", "fc": shade, "ec": "white"}, **badge)

    lines = [title, *_wrapped(note["caption"])]
    return _explained(lines, 700 * min(image.height / image.width, 2), draw, width)


def draw_matches(caption: str, title: str, note: Mapping[str, Any], width: int) -> Image.Image:
    """The cosines of a caption's words (down) with those of a reference (across) as a heat map."""
    rows, columns = ([_cut(word, 18) for word in note[name]] for name in ("words", "reference_words"))
    cosines = np.asarray(note["cosines"])
    scores = f"precision {note['precision']:.3f}, recall {note['recall']:.3f}, F {note['f']:.3f}"

    def draw(figure: Any) -> None:
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.patches import Rectangle

        ax = figure.subplots()
        shades = LinearSegmentedColormap.from_list("cosines", ["white", "#145c84"])
        ax.pcolormesh(cosines, cmap=shades, vmin=0, vmax=1, edgecolor=_LINE, linewidth=0.5)
        ax.invert_yaxis()
        ax.grid(visible=False)
        ax.spines[:].set_visible(False)
        turned: Any = {"rotation": 45, "ha": "left"} if max(map(len, columns)) * len(columns) > 70 else {}
        ax.set_xticks(np.arange(len(columns)) + 0.5, columns, **turned)
        ax.set_yticks(np.arange(len(rows)) + 0.5, rows, color=INK)
        ax.xaxis.tick_top()
        for (row, column), cosine in np.ndenumerate(cosines):
            style: Any = {"color": "white" if cosine > 0.5 else INK}
            if len(columns) <= 20:
                text = f"{cosine:.2f}"
                ax.text(column + 0.5, row + 0.55, text, ha="center", va="center", size=7, **style)
            if row == np.argmax(cosines[:, column]):
                ax.plot(column + 0.9, row + 0.16, "o", markersize=2.5, **style)
            if column == np.argmax(cosines[row]):
                frame = Rectangle((column, row), 1, 1, fill=False, edgecolor=INK, zorder=3)
                ax.add_patch(frame)
        _note(figure, f"{scores}; frame: best for the caption's word, dot: best for the reference's")

    lines = [title, _cut(caption, 88), _cut(note["reference"], 88)]
    return _explained(lines, 26 * len(rows) + 102, draw, width)


def draw_frames(
    caption: str,
    cosines: Sequence[float],
    frames: Mapping[int, tuple[Image.Image | None, str]],
    width: int,
) -> Image.Image:
    """The cosine of a caption with each frame as a curve; its best frames with their words."""
    texts = [_wrapped(text, 20, 8) for _, text in frames.values()]
    tall = max((image.height / image.width for image, _ in frames.values() if image), default=0.75)
    strip = min(tall, 2.0) * 110 + 14 * max(map(len, texts)) + 34 if frames else 0

    def draw(figure: Any) -> None:
        parts = figure.subfigures(2, 1, height_ratios=[200, strip]) if frames else [figure]
        ax = parts[0].subplots()
        heading = "cosine of the whole caption with each frame"
        ax.set_title(heading, color=FAINT, weight="normal", size=8.5)
        ax.plot(cosines, linewidth=1.6)
        marked = [frame for frame in frames if len(cosines) > 1] or [0]
        ax.plot(marked, [cosines[frame] for frame in marked], "o", color="C0", clip_on=False)
        ax.set_ylim(bottom=min(0.0, *cosines))
        ax.locator_params(axis="x", integer=True)
        row = parts[1].subplots(1, 6) if frames else ()
        for ax in row:
            ax.axis("off")
        for ax, (frame, (image, _)), lines in zip(row, frames.items(), texts, strict=False):
            ax.imshow(image or Image.new("RGB", (40, 30), _LINE), aspect="equal")
            ax.set_anchor("N")
            words = "\n".join([f"frame {frame}", *lines])
            ax.text(0, -0.06, words, transform=ax.transAxes, va="top", size=7.5, linespacing=1.35)

    return _explained(_wrapped(caption), 200 + strip, draw, width)


_COLUMN, _SIDE, _NARROW = 500, 32, 760  # pixels: of a column of a card, beside columns, with one column
_TITLES = {"hice_s": "HICE-S", "refhice_s": "RefHICE-S"}
_PARTS = ("gitc", "litc", "precision", "recall", "gttc", "lttc")
_SCORE, _CAPTION, _HEADING, _ROW = 28.0, 13.0, 11.0, 9.5  # sizes of letters


def draw_card(
    note: Mapping[str, Any], image: Image.Image, caption: Sequence[tuple[str, bool]], width: int
) -> Image.Image:
    """An explanation of HICE-S: the outlined image, and score, caption, phrases and regions in words.

    caption: its pieces, and whether each is wrong.
    """
    lines, legend = list(_card_lines(note, caption)), textwrap.wrap(_legend(note), 84)
    high = min(_COLUMN * image.height / image.width, 1.1 * _COLUMN)
    left, right = high + 18 * len(legend) + 40, sum(2.2 * size for size, *_ in lines)
    narrow = width < _NARROW

    def draw(figure: Any) -> None:
        from matplotlib.offsetbox import AnchoredOffsetbox, HPacker, TextArea, VPacker

        shape: Any = {"nrows": 2, "height_ratios": [left, right]} if narrow else {"ncols": 2}
        picture, text = figure.subplots(**shape)
        picture.imshow(image, interpolation="antialiased")
        picture.spines[:].set_visible(False)
        picture.set(xticks=(), yticks=(), anchor="NW")
        picture.set_xlabel("\n".join(legend), loc="left", size=8)
        text.axis("off")
        rows: list[Any] = []
        for size, *words in lines:
            style = {"size": size, "weight": "bold" if size in (_SCORE, _HEADING) else "normal"}
            texts: list[Any] = [TextArea(word, textprops=style | {"color": ink}) for word, ink in words]
            rows.append(HPacker(children=texts, pad=0, sep=6))
        column = VPacker(children=rows, pad=0, sep=4)
        text.add_artist(AnchoredOffsetbox("upper left", child=column, frameon=False, pad=0, borderpad=0))

    across, height = (_COLUMN, left + right) if narrow else (2 * _COLUMN, max(left, right))
    return _drawn(across + 2 * _SIDE, height + 2 * _SIDE, draw, width)


def _card_lines(note: Mapping[str, Any], caption: Sequence[tuple[str, bool]]) -> Iterator[Any]:
    """What is written on a card: per line the size of its letters, and texts with their colours."""
    key = next(name for name in _TITLES if name in note)
    parts = [f"{TERMS.get(name, name)} {note[name]:.2f}" for name in _PARTS if name in note]
    yield _ROW, (_TITLES[key], FAINT)
    yield _SCORE, (f"{note[key]:.3f}", INK)
    yield _ROW, ("   ".join(parts), FAINT)
    words = [(word, _WRONG if wrong else INK) for text, wrong in caption for word in text.split()]
    plain = " ".join(word for word, _ in words)
    for line in textwrap.wrap(plain, 46, break_long_words=False, break_on_hyphens=False):
        own, words = words[: len(line.split())], words[len(line.split()) :]
        yield _CAPTION, *own
    yield _HEADING, ("Phrases: precision, best region", INK)
    for own in note["phrases"]:
        sign, ink = ("✗", _WRONG) if own["mistake"] else ("✓", _RIGHT) if own["judged"] else ("–", FAINT)
        where = "whole image" if own["region"] is None else f"region {own['region'] + 1}"
        yield _ROW, (f"{sign}  {own['precision']:.2f}  {_cut(own['phrase'], 48)}: {where}", ink)
    if note.get("compared"):
        yield _HEADING, ("References: gTTC, lTTC (●: chosen)", INK)
    for own in note.get("compared") or ():
        sign = "●" if own["chosen"] else "○"
        yield _ROW, (f"{sign}  {own['gttc']:.2f}  {own['lttc']:.2f}  {_cut(own['reference'], 58)}", INK)
    yield _HEADING, ("Regions: recall, nearest phrase", INK)
    for index, own in enumerate(note["regions"]):
        text = _cut("not mentioned; nearest: " * own["unmentioned"] + own["phrase"], 58)
        yield _ROW, (f"{index + 1:>2}  {own['recall']:.2f}  {text}", region_colour(index, own["unmentioned"]))
    if whole := note["whole"]:
        yield _ROW, (f"whole image  {whole['recall']:.2f}  {_cut(whole['phrase'], 58)}", INK)


def _legend(note: Mapping[str, Any]) -> str:
    texts = ["dashed: region that no phrase mentions", f"✓ {threshold_text(note)}"]
    if not note["regions"]:
        where = "inside the square" if note["outside"] else "found"
        texts[0] = f"No region was {where}: the whole image stands for them."
    if outside := outside_text(note):
        texts.append(f"– {outside}; phrases may be about them")
    if note["truncated"]:
        texts.append("The caption or a reference is longer than the text encoder reads: its end was cut off.")
    return "; ".join(texts)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def threshold_text(evidence: Mapping[str, Any]) -> str:
    """The least precision of a right phrase, for a legend."""
    return f"fits a region: precision of at least {evidence['threshold']:.4g}"


def outside_text(evidence: Mapping[str, Any]) -> str:
    """How many regions the image tower does not see: `1 region outside the square was not judged`, or ""."""
    count = evidence["outside"]
    if not count:
        return ""
    return f"{count} region{'s' * (count > 1)} outside the square {'were' if count > 1 else 'was'} not judged"
