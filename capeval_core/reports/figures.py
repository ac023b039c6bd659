"""Pictures of results, drawn by matplotlib: `pip install "capeval[plot]"`."""

from __future__ import annotations

import math
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from capeval_core.phrases.spans import Span
from capeval_core.project import needs
from capeval_core.reports.explanations import TERMS, outside_text, threshold_text
from capeval_core.reports.overlay import FAINT, INK, REGIONS, UNMENTIONED, Rgb, region_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 960
_LINE: Rgb = (228, 231, 237)
_RIGHT: Rgb = (30, 138, 96)
_WRONG: Rgb = (200, 48, 66)
_WRONG_GROUND = "#fde2e4"
_COMPARED: Rgb = (71, 85, 125)
_DPI = 96
_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans", "PingFang SC", "Microsoft YaHei")
_ACROSS = 3  # charts of boxes side by side


def colour(rgb: Rgb) -> str:
    return f"#{rgb[0]:02x}{rgb[1]:02x}{rgb[2]:02x}"


def _drawn(
    size: tuple[float, float], draw: Callable[[Figure], None], width: float | None = None
) -> Image.Image:
    """A figure of this size as an image, `width` pixels wide.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    with needs("matplotlib", "plot"):
        import matplotlib
        from cycler import cycler
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.font_manager import get_font_names
    style: Any = {
        "font.family": [name for name in _FONTS if name in get_font_names()],
        "font.size": 8.5,
        "text.color": colour(INK),
        "text.parse_math": False,  # a caption may hold a dollar
        "axes.edgecolor": colour(_LINE),
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.prop_cycle": cycler(color=[colour(rgb) for rgb in REGIONS]),
        "grid.color": colour(_LINE),
        **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor", "axes.labelcolor"), colour(FAINT)),
        **{f"{axis}tick.{part}size": 0 for axis in "xy" for part in ("major.", "minor.")},
    }
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure = Figure((size[0] / _DPI, size[1] / _DPI), dpi=_DPI)
        figure.set_layout_engine("constrained", w_pad=0.14, h_pad=0.12)
        FigureCanvasAgg(figure)
        draw(figure)
        file = BytesIO()
        figure.savefig(file, format="png", dpi=_DPI * (width or size[0]) / size[0])
    return Image.open(file).convert("RGB")


@dataclass(frozen=True)
class Bar:
    """A value with its interval; `low` and `high` None: it has none. published: a value to mark beside it."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    published: float | None = None


def draw_bars(panels: Mapping[str, Sequence[Bar]], note: str = "") -> Image.Image:
    """Panels one below the other: a dot per value with its interval, a red tick where one is published."""
    rows = [max(len(bars), 1) for bars in panels.values()]

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
        for ax, (title, bars) in zip(axes, panels.items(), strict=True):
            ax.set_title(title)
            ax.set_yticks(range(len(bars)), [bar.name for bar in bars], color=colour(INK))
            ax.set_ylim(len(bars) - 0.4, -0.6)
            ax.grid(axis="y", visible=False)
            for y, bar in enumerate(bars):
                _draw_bar(ax, y, bar)
            ax.margins(x=0.04)
        figure.supxlabel(note, x=0.01, ha="left", size=8, color=colour(FAINT))

    return _drawn((_WIDTH, sum(26 * count + 62 for count in rows) + 30 * bool(note)), draw)


def _draw_bar(ax: Axes, y: int, bar: Bar) -> None:
    shade = f"C{y % len(REGIONS)}"
    at: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "va": "center", "color": colour(FAINT)}
    if not math.isfinite(bar.value):
        ax.text(0.01, y, "undefined", **at)
        return
    interval = ""
    if bar.low is not None and bar.high is not None:
        ax.hlines(y, bar.low, bar.high, shade, linewidth=2.2)
        interval = f"  [{bar.low:.1f}, {bar.high:.1f}]"
    if bar.published is not None:
        ax.plot(bar.published, y, "|", color=colour(_WRONG), markersize=13, markeredgewidth=1.4)
    ax.plot(bar.value, y, "o", color=shade, markersize=6)
    ax.text(1.01, y, f"{bar.value:.1f}{interval}", **at)


def draw_spreads(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Image.Image:
    """A chart per metric: boxes from the lower to the upper quartile of the scores at each level of a rating.

    The line in a box is the median, whiskers reach from the 5th to the 95th percentile, and a line joins the
    means.
    """
    rows = max(1, math.ceil(len(panels) / _ACROSS))

    def draw(figure: Figure) -> None:
        axes = figure.subplots(rows, _ACROSS, squeeze=False).ravel()
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for index, (ax, (title, levels)) in enumerate(zip(axes, panels.items(), strict=False)):
            drawn = {level: values for level, values in levels.items() if len(values)}
            ax.set_title(title)
            if not drawn:
                ax.text(0.1, 0.5, "no scores", transform=ax.transAxes, color=colour(FAINT))
                continue
            shade = REGIONS[index % len(REGIONS)]
            ax.boxplot(
                list(drawn.values()),
                tick_labels=list(drawn),
                whis=(5, 95),
                showfliers=False,
                showcaps=False,
                patch_artist=True,
                boxprops={"facecolor": (*(part / 255 for part in shade), 0.24), "edgecolor": colour(shade)},
                whiskerprops={"color": colour(shade)},
                medianprops={"color": colour(shade), "linewidth": 2},
            )
            means = [float(np.mean(values)) for values in drawn.values()]
            ax.plot(range(1, len(means) + 1), means, "-o", color=colour(INK), linewidth=1, markersize=3)
            ax.grid(axis="x", visible=False)
            ax.set_xlabel("rating")

    return _drawn((_WIDTH, 244 * rows), draw)


def draw_histogram(
    title: str,
    edges: Sequence[float],
    counts: Sequence[int],
    marks: Mapping[str, float],
    *,
    kept_from: float | None = None,
    note: str = "",
) -> Image.Image:
    """A histogram with marked values; what is right of `kept_from` has another colour.

    edges: of the bins, one more than `counts`. marks: values by what is written above them, in order.
    """

    def draw(figure: Figure) -> None:
        ax = figure.subplots()
        ax.set_title(title, pad=40)
        ax.grid(axis="x", visible=False)
        low, high = float(edges[0]), float(edges[-1])
        for start, stop, shade in ((low, kept_from, 0), (kept_from, high, 1)):
            bins = np.clip(edges, low if start is None else start, high if stop is None else stop)
            if kept_from is not None or not shade:
                ax.bar(bins[:-1], counts, np.diff(bins), align="edge", color=f"C{shade}", edgecolor="white")
        ax.yaxis.set_major_formatter("{x:,.0f}")
        ax.set_xlim(low, high)
        free = [-math.inf] * 3  # where each of three lines of labels is free again
        for name, value in marks.items():
            half = 0.005 * (high - low) * (len(name) + 2)
            line = next((i for i, end in enumerate(free) if end <= value - half), 0)
            free[line] = value + half
            up = 1.02 + 0.055 * line
            within = ax.get_xaxis_transform()
            ax.plot([value] * 2, [0, up], color=colour(INK), linewidth=0.8, clip_on=False, transform=within)
            ax.text(value, up + 0.01, name, transform=within, ha="center", size=7.5)
        figure.supxlabel(note, x=0.01, ha="left", size=8, color=colour(FAINT))

    return _drawn((_WIDTH, 420), draw)


def draw_curves(panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> Image.Image:
    """Panels one below the other, each with its curves through points (step, value) by name."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(max(len(panels), 1), 1, squeeze=False, sharex=True)[:, 0]
        for ax, (title, curves) in zip(axes, panels.items(), strict=False):
            ax.set_title(title)
            for name, points in curves.items():
                steps, values = zip(*points, strict=True)
                ax.plot(steps, values, label=name, linewidth=1.5)
                ax.plot(steps[-1], values[-1], "o", color=ax.lines[-1].get_color(), markersize=4)
            ax.set_ylim(bottom=min(0.0, *(y for points in curves.values() for _, y in points)))
            ax.xaxis.set_major_formatter("{x:,.0f}")
            ax.locator_params(axis="x", integer=True)
            if any(curves):
                ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False)

    return _drawn((_WIDTH, 230 * max(len(panels), 1)), draw)


def draw_matches(caption: str, note: Mapping[str, Any], width: int) -> Image.Image:
    """The cosines of a caption's words (down) with those of a reference (across) as a heat map.

    A frame marks the word that each caption word met, a dot the one that each reference word met.
    """
    rows, columns = note["words"], note["reference_words"]
    cosines = np.clip(note["cosines"], 0, 1)
    scores = f"precision {note['precision']:.3f}, recall {note['recall']:.3f}, F {note['f']:.3f}"
    text = f"{scores}; frame: best for the caption's word, dot: best for the reference's"

    def draw(figure: Figure) -> None:
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.patches import Rectangle

        ax = figure.subplots()
        shades = LinearSegmentedColormap.from_list("cosines", ["white", "#145c84"])
        ax.pcolormesh(cosines, cmap=shades, vmin=0, vmax=1, edgecolor=colour(_LINE), linewidth=0.5)
        ax.invert_yaxis()
        ax.grid(visible=False)
        for side in ax.spines.values():
            side.set_visible(False)
        turned: Any = {"rotation": 45, "ha": "left"} if max(map(len, columns)) * len(columns) > 70 else {}
        ax.set_xticks(np.arange(len(columns)) + 0.5, [_cut(word, 18) for word in columns], **turned)
        ax.set_yticks(np.arange(len(rows)) + 0.5, [_cut(word, 18) for word in rows], color=colour(INK))
        ax.xaxis.tick_top()
        for (row, column), cosine in np.ndenumerate(note["cosines"]):
            ink = "white" if cosine > 0.5 else colour(INK)
            if len(columns) <= 20:
                ax.annotate(
                    f"{cosine:.2f}", (column + 0.5, row + 0.55), ha="center", va="center", size=7, color=ink
                )
            if row == np.argmax(cosines[:, column]):
                ax.plot(column + 0.9, row + 0.16, "o", color=ink, markersize=2.5)
        for row, column in enumerate(np.argmax(note["cosines"], axis=1)):
            ax.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=colour(INK), zorder=3))
        figure.suptitle(f"{_cut(caption, 88)}\n{_cut(note['reference'], 88)}", x=0.02, ha="left", size=10)
        figure.supxlabel(text, x=0.02, ha="left", size=8, color=colour(FAINT))

    return _drawn((720, 26 * len(rows) + 170), draw, width)


def draw_frames(
    caption: str,
    cosines: Sequence[float],
    frames: Mapping[int, tuple[Image.Image | None, str]],
    width: int,
) -> Image.Image:
    """The cosine of a caption with each frame as a curve, and below it its best frames with their words.

    frames: by number, the image, or None where it cannot be read, and the words.
    """
    title = textwrap.wrap(caption, 84, max_lines=3, placeholder=" …")
    texts = {
        frame: textwrap.wrap(text, 20, max_lines=8, placeholder=" …") for frame, (_, text) in frames.items()
    }
    lines = max(map(len, texts.values()), default=0)
    tall = max((image.height / image.width for image, _ in frames.values() if image), default=0.75)
    strip = min(tall, 2.0) * 110 + 14 * lines + 34 if frames else 0
    above = 20 * len(title) + 34

    def draw(figure: Figure) -> None:
        parts: Any = figure.subfigures(2, 1, height_ratios=[200 + above, strip or 1]) if frames else [figure]
        parts[0].suptitle("\n".join(title), x=0.02, ha="left", size=11)
        ax = parts[0].subplots()
        ax.set_title(
            "cosine of the whole caption with each frame", color=colour(FAINT), weight="normal", size=8.5
        )
        ax.plot(cosines, linewidth=1.6)
        marked = [frame for frame in frames if len(cosines) > 1] or [0]
        ax.plot(marked, [cosines[frame] for frame in marked], "o", color="C0", clip_on=False)
        ax.set_ylim(bottom=min(0.0, *cosines))
        ax.locator_params(axis="x", integer=True)
        if not frames:
            return
        row = parts[1].subplots(1, 6, squeeze=False)[0]
        for ax in row:
            ax.axis("off")
        for ax, (frame, (image, _)) in zip(row, frames.items(), strict=False):
            ax.imshow(image or Image.new("RGB", (40, 30), colour(_LINE)), aspect="equal")
            ax.set_anchor("N")
            words = "\n".join([f"frame {frame}", *texts[frame]])
            ax.text(0, -0.06, words, transform=ax.transAxes, va="top", size=7.5, linespacing=1.35)

    return _drawn((720, 200 + above + strip), draw, width)


@dataclass(frozen=True)
class _Row:
    """A row of a card: a sign or a region's number, a text, numbers as bars; tail: the region it fits."""

    sign: tuple[str, Rgb]
    text: str
    numbers: Sequence[float]
    bar: Rgb
    ink: Rgb = INK
    tail: tuple[str, Rgb] | None = None

    def texts(self) -> list[str]:
        """Its text on at most two lines."""
        room = (_COLUMN - 56 - 118 * len(self.numbers)) / 6.4
        return textwrap.wrap(self.text, int(room), max_lines=2, placeholder=" …") or [""]

    @property
    def height(self) -> float:
        return 16.0 + 15 * len(self.texts())


_COLUMN, _SIDE, _NARROW = 500, 32, 760  # widths: of a column of a card, between columns, with one column
_TITLES = {"hice_s": "HICE-S", "refhice_s": "RefHICE-S"}
_PARTS = ("gitc", "litc", "precision", "recall", "gttc", "lttc")


def draw_card(note: Mapping[str, Any], image: Image.Image, wrong: Sequence[Span], width: int) -> Image.Image:
    """An explanation of HICE-S: the image on the left, score, caption and tables on the right.

    image: with its regions outlined. wrong: spans of the caption to mark.
    """
    phrases, references, regions = _phrase_rows(note), _reference_rows(note), _region_rows(note)
    narrow = width < _NARROW
    shown = min(_COLUMN, 1.1 * _COLUMN * image.width / image.height)
    high = shown * image.height / image.width
    legend = textwrap.wrap(_legend(note), 84)
    words = 27.0 * math.ceil(len(note["caption"]) / 40 + 0.4)
    left = high + 18 * len(legend) + 26
    right = 100 + words + _height(phrases) + _height(references)
    half = len(regions) if narrow else math.ceil(len(regions) / 2)
    below = left + right if narrow else max(left, right)
    total = (_COLUMN + 2 * _SIDE) if narrow else 2 * _COLUMN + 3 * _SIDE
    height = below + _height(regions[:half]) + 2 * _SIDE
    across = _SIDE if narrow else _COLUMN + 2 * _SIDE
    precision, recall = ["precision, best region"], ["recall"]

    def draw(figure: Figure) -> None:
        figure.set_layout_engine("none")
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set(xlim=(0, total), ylim=(height, 0))
        ax.axis("off")
        y = _SIDE + right * narrow
        ax.imshow(
            image, extent=(_SIDE, _SIDE + shown, y + high, y), aspect="auto", interpolation="antialiased"
        )
        below_image = y + high + 20
        ax.text(_SIDE, below_image, "\n".join(legend), va="top", color=colour(FAINT), size=8, linespacing=1.4)
        _draw_heading(ax, across, _SIDE, note)
        _draw_caption(ax, across, _SIDE + 100, note["caption"], wrong)
        down = _SIDE + 100 + words
        threshold = note["threshold"]
        _draw_table(ax, across, down, "Phrases", precision, phrases, threshold)
        _draw_table(ax, across, down + _height(phrases), "References", ["gTTC", "lTTC"], references)
        _draw_table(ax, _SIDE, _SIDE + below, "Regions", recall, regions[:half], threshold)
        _draw_table(ax, across, _SIDE + below, "", recall, regions[half:], threshold)

    return _drawn((total, height), draw, width)


def _height(rows: Sequence[_Row]) -> float:
    return 40 + sum(row.height for row in rows) if rows else 0


def _region_sign(note: Mapping[str, Any], region: int | None) -> tuple[str, Rgb]:
    if region is None:
        return "all", FAINT
    return str(region + 1), region_colour(region, note["regions"][region]["unmentioned"])


def _phrase_rows(note: Mapping[str, Any]) -> list[_Row]:
    rows = []
    for own in note["phrases"]:
        mark, bar, ink = ("✗", _WRONG, _WRONG) if own["mistake"] else ("✓", _RIGHT, INK)
        if not own["judged"]:
            mark, bar, ink = "–", FAINT, FAINT
        tail = _region_sign(note, own["region"])
        rows.append(_Row((mark, bar), own["phrase"], [own["precision"]], bar, ink, tail))
    return rows


def _reference_rows(note: Mapping[str, Any]) -> list[_Row]:
    rows = []
    for own in note.get("compared", []):
        mark, bar = ("●", _COMPARED) if own["chosen"] else ("○", FAINT)
        rows.append(_Row((mark, bar), own["reference"], [own["gttc"], own["lttc"]], bar))
    return rows


def _region_rows(note: Mapping[str, Any]) -> list[_Row]:
    rows = []
    for index, own in enumerate(note["regions"]):
        sign, missed = _region_sign(note, index), own["unmentioned"]
        text = f"not mentioned; nearest: {own['phrase']}" if missed else own["phrase"]
        rows.append(_Row(sign, text, [own["recall"]], sign[1], UNMENTIONED if missed else INK))
    if whole := note["whole"]:
        rows.append(_Row(("all", FAINT), whole["phrase"], [whole["recall"]], FAINT))
    return rows


def _legend(note: Mapping[str, Any]) -> str:
    texts = [f"✓ {threshold_text(note)}"]
    if any(own["unmentioned"] for own in note["regions"]):
        texts.insert(0, "dashed: region that no phrase mentions")
    if not note["regions"]:
        where = "inside the square" if note["outside"] else "found"
        texts.insert(0, f"No region was {where}: the whole image stands for them.")
    if outside := outside_text(note):
        texts.append(f"– {outside}; phrases may be about them")
    if note["truncated"]:
        text = "The caption or a reference" if "compared" in note else "The caption"
        texts.append(f"{text} is longer than the text encoder reads: its end was cut off.")
    return "; ".join(texts)


def _draw_heading(ax: Axes, x: float, y: float, note: Mapping[str, Any]) -> None:
    """The score and its terms."""
    key = next(name for name in _TITLES if name in note)
    ax.text(x, y + 10, _TITLES[key], size=10, color=colour(FAINT))
    ax.text(x, y + 54, f"{note[key]:.3f}", size=30, weight="bold")
    terms = [name for name in _PARTS if name in note]
    for place, name in enumerate(terms):
        across, down = x + 150 + 92 * (place % 4), y + 10 + 44 * (place // 4) * (len(terms) > 4)
        ax.text(across, down, TERMS.get(name, name), color=colour(FAINT))
        ax.text(across, down + 20, f"{note[name]:.2f}", size=12)


def _draw_caption(ax: Axes, x: float, y: float, caption: str, wrong: Sequence[Span]) -> None:
    """The words of a caption, wrong ones marked, on as many lines as it takes."""
    renderer = ax.figure.canvas.get_renderer()  # type: ignore[attr-defined]
    scale = ax.transData.inverted()
    across, down = x, y + 8
    for word in re.finditer(r"\S+", caption):
        style: dict[str, Any] = {"color": colour(INK), "size": 13.5}
        if any(span.start < word.end() and word.start() < span.end for span in wrong):
            box = {"boxstyle": "round,pad=0.26", "facecolor": _WRONG_GROUND, "edgecolor": "none"}
            style |= {"color": colour(_WRONG), "bbox": box}
        text = ax.text(across, down, word[0], **style)
        extent = text.get_window_extent(renderer)
        wide = scale.transform((extent.x1, 0))[0] - scale.transform((extent.x0, 0))[0]
        if across > x and across + wide > x + _COLUMN:
            across, down = x, down + 27
            text.set_position((across, down))
        across += wide + 8


def _draw_table(
    ax: Axes,
    x: float,
    y: float,
    title: str,
    columns: Sequence[str],
    rows: Sequence[_Row],
    threshold: float | None = None,
) -> None:
    """Rows with their numbers as bars; `threshold` is marked on each."""
    if not rows:
        return
    right = x + _COLUMN - 26 * any(row.tail for row in rows)
    most = max(1.0, 1.1 * (threshold or 0), *(number for row in rows for number in row.numbers))
    ends = [right - 118 * place for place in reversed(range(len(columns)))]
    ax.text(x, y + 18, title, size=11, weight="bold")
    for end, name in zip(ends, columns, strict=True):
        ax.text(end, y + 18, name, ha="right", color=colour(FAINT))
    top = y + 28
    for row in rows:
        ax.plot([x, x + _COLUMN], [top, top], color=colour(_LINE), linewidth=0.8)
        middle = top + row.height / 2
        _draw_sign(ax, x + 10, middle, *row.sign)
        ax.text(x + 28, middle, "\n".join(row.texts()), va="center", color=colour(row.ink), size=9.5)
        for end, value in zip(ends, row.numbers, strict=True):
            share = max(0.03, min(value / most, 1))
            ax.barh(middle, 70, 6, end - 112, color=colour(_LINE))
            ax.barh(middle, 70 * share, 6, end - 112, color=colour(row.bar))
            if threshold is not None:
                at = end - 112 + 70 * threshold / most
                ax.plot([at, at], [middle - 6, middle + 6], color=colour(INK), linewidth=1)
            ax.text(end, middle, f"{value:.2f}", ha="right", va="center", size=9)
        if row.tail:
            _draw_sign(ax, x + _COLUMN - 10, middle, *row.tail)
        top += row.height


def _draw_sign(ax: Axes, x: float, y: float, text: str, rgb: Rgb) -> None:
    """A number on a disc, or another sign in its colour."""
    if text.isdigit():
        ax.plot(x, y, "o", color=colour(rgb), markersize=13, markeredgecolor="white")
    at = "white" if text.isdigit() else colour(rgb)
    size = 7.5 if text.isdigit() or len(text) > 1 else 11
    ax.text(x, y, text, ha="center", va="center_baseline", color=at, size=size, weight="bold")


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
