"""A comparison of systems as one HTML page without network, script or other files; a result for notebooks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from capeval_core.errors import minus, p_in_words, signed
from capeval_core.inputs.images import ImageError
from capeval_core.project import __version__
from capeval_core.reports.explanations import DIGITS, STYLE, Picture, drawing, jpeg, round_ticks, template
from capeval_core.reports.tables import Cell, MetricFacts, System, Systems, Table, captions_table
from capeval_core.reports.thumbnails import FRAMES, thumbnail
from capeval_core.store import whole_folder

_FILE = "index.html"
_GENERATOR = '<meta name="generator" content="capeval">'
_SIGNS = {"better": "▲ ", "worse": "▼ ", "equal": ""}
_UNFIT = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160)), "\ufffd")
"""Control characters, which HTML cannot hold."""
_EXAMPLES = 4  # captions at either end, and by which each of two systems is ahead
_MIN_BINS = 8
_MAX_BINS = 48
_DRAWING_WIDTH = 640  # pixels of a drawn explanation
_ROOM = 4_500_000  # characters of all pictures of a page
# Of notebooks:
_WITH_INTERVAL = 100_000  # captions at most: an interval of more takes a second
_NOTEBOOK_ENDS = 3  # captions at either end
_NOTEBOOK_COLUMNS = 6


def write_report(folder: Path, systems: Systems, command: str, titles: Mapping[str, str]) -> Path:
    """Write `index.html`; whatever fails, an existing report stays as it was. titles: of parts of scores."""
    check_report(folder)
    content = _Page(systems).html(command=command, titles=titles)
    with whole_folder(folder) as unfinished:
        (unfinished / _FILE).write_bytes(content.encode("utf-8", "replace"))
    return folder / _FILE


def check_report(folder: Path) -> None:
    """Refuse to replace a page that is not a report of capeval."""
    path = folder / _FILE
    # Only the head: `index.html` of another program may be of any size.
    if path.exists() and not (path.is_file() and _GENERATOR.encode() in path.read_bytes()[:2000]):
        raise FileExistsError(f"{path} is there and no report of capeval: name another folder")


@dataclass
class _TableCell:
    """A cell of the table of results: a number with what is known of it."""

    title: str
    mean: str
    is_best: bool = False
    interval: str = ""
    test: str = ""  # against the baseline
    verdict: str = ""  # a class of the style sheet: better, worse or equal
    in_words: str = ""  # the verdict for readers


class _TableColumn(NamedTuple):
    """A column of the table of results."""

    header: str
    note: str  # in small letters under the header; "" for none
    cell: Callable[[System], _TableCell]


class _TableRow(NamedTuple):
    """A system's row of the table of results."""

    name: str
    is_baseline: bool
    cells: list[_TableCell]

    @property
    def is_tested(self) -> bool:
        return any(cell.verdict for cell in self.cells)

    @property
    def verdicts(self) -> dict[str, list[str]]:
        """The metrics of each verdict against the baseline."""
        titles: dict[str, list[str]] = {}
        for cell in self.cells:
            if cell.in_words:
                titles.setdefault(cell.in_words, []).append(cell.title)
        return titles


class _Page:
    """The values that the template asks for. Pictures are stored once, and up to a size in all: the page
    stays small."""

    def __init__(self, systems: Systems) -> None:
        self.systems = systems
        self.left_out = 0  # pictures for which there was no room
        self.upright = False  # whether a metric saw photographs turned, as readers should then
        for system in systems.systems:
            for cell in system.cells.values():
                if "exif:turn" in cell.result.signature.split("|"):
                    self.upright = True
        self.pictures: dict[str, dict[str, Any] | None] = {}  # by path; None where it cannot be shown
        self._room = _ROOM

    def html(self, **content: Any) -> str:
        style = STYLE.with_name("report.css").read_text(encoding="utf-8") + STYLE.read_text(encoding="utf-8")
        content |= {
            "page": self,
            "systems": self.systems,
            "generator": Markup(_GENERATOR),
            "style": Markup(style),
            "footer": f"Made by capeval {__version__}, {datetime.now(UTC).date().isoformat()}.",
            "frames": FRAMES,
            "without_folders": _without_folders,
        }
        html: str = template("report").render(content)
        return html.strip().translate(_UNFIT) + "\n"

    # the table of results

    @cached_property
    def columns(self) -> list[_TableColumn]:
        """The columns of the table of results, in order: a new one is one more entry."""
        columns = []
        for metric in self.systems.columns:
            better = "higher" if metric.higher_is_better else "lower"
            columns.append(_TableColumn(metric.title, f"{better} is better", partial(self.mean_cell, metric)))
        return columns

    @cached_property
    def rows(self) -> list[_TableRow]:
        """The rows of the table of results: a system each."""
        rows = []
        for system in self.systems.systems:
            cells = [column.cell(system) for column in self.columns]
            rows.append(_TableRow(system.name, system.name == self.systems.baseline, cells))
        return rows

    @property
    def captions(self) -> Table:
        """The diversity of captions."""
        return captions_table(self.systems)

    @property
    def has_intervals(self) -> bool:
        return any(cell.interval for row in self.rows for cell in row.cells)

    @property
    def has_tests(self) -> bool:
        return any(row.is_tested for row in self.rows)

    def mean_cell(self, metric: MetricFacts, system: System) -> _TableCell:
        """The mean of a system by a metric, with its interval and its test."""
        cell = system.cells[metric.name]
        number = self.systems.for_page
        mean = _TableCell(metric.title, number(cell.result.mean))
        mean.is_best = system.name in self.systems.best(metric, DIGITS)
        if cell.interval is not None:
            mean.interval = f"{number(cell.interval.low)} to {number(cell.interval.high)}"
        if cell.test is not None:
            verdict = cell.verdict(metric)
            difference = signed(self.systems.scaled(cell.test["difference"]), self.systems.decimals(DIGITS))
            p_value = p_in_words(cell.test["adjusted"], self.systems.level)
            mean.verdict = verdict
            mean.test = f"{_SIGNS[verdict]}{minus(difference)}, {p_value}"
            mean.in_words = verdict
            if verdict == "equal":
                mean.in_words = "no difference shown" if cell.test["difference"] else "tied"
        return mean

    def ties(self) -> list[tuple[str, list[str], str]]:
        """The metrics by which several systems are best, these, and their mean."""
        ties = []
        for metric in self.systems.columns:
            names = self.systems.best(metric, DIGITS)
            if len(names) > 1:
                best = self.systems.system(names[0])
                ties.append((metric.title, names, self.mean_cell(metric, best).mean))
        return ties

    def tiny_metrics(self) -> list[str]:
        """Titles of the metrics with the weights `tiny`."""
        titles: dict[str, None] = {}
        for metric in self.systems.columns:
            for signature in self.signatures(metric):
                if ":tiny@" in signature:
                    titles[metric.title] = None
        return list(titles)

    def failures(self) -> list[str]:
        """The captions without a score, with reasons."""
        lines: dict[str, None] = {}
        for system in self.systems.systems:
            for cell in system.cells.values():
                for index, reason in cell.result.errors.items():
                    lines[f"{system.ids[index]}: {_without_folders(reason)}"] = None
        return list(lines)

    @property
    def first(self) -> System:
        """The system that others are compared with: the baseline, else the first."""
        if self.systems.baseline is None:
            return self.systems.systems[0]
        return self.systems.system(self.systems.baseline)

    @property
    def further(self) -> list[System]:
        """The other systems."""
        return [system for system in self.systems.systems if system is not self.first]

    # captions

    def parts(self, system: System, column: MetricFacts, index: int) -> dict[str, Any]:
        """The parts of a score."""
        parts = {}
        for name, values in system.cells[column.name].result.parts.items():
            parts[name] = values[index]
        return parts

    def signatures(self, column: MetricFacts) -> dict[str, None]:
        return dict.fromkeys(system.cells[column.name].result.signature for system in self.systems.systems)

    def ends(self, system: System, column: MetricFacts) -> list[tuple[str, list[tuple[int, str]], str]]:
        """The captions with the lowest and the highest scores, none in both; how many tie with the last."""
        scores = np.asarray(system.cells[column.name].result.scores)
        numbers = [self.systems.for_page(score) for score in scores.tolist()]
        finite = np.flatnonzero(np.isfinite(scores))
        sign = -1 if column.higher_is_better else 1
        by_rank = finite[np.argsort(sign * scores[finite], kind="stable")].tolist()  # the best first
        half = len(by_rank) // 2
        ends = []
        for title, order in (("Worst", by_rank[::-1][:half]), ("Best", by_rank[: len(by_rank) - half])):
            cards = [(index, numbers[index]) for index in order[:_EXAMPLES]]
            if not cards:
                continue
            # As they are printed: scores that differ in later digits look equal to readers.
            last = cards[-1][1]
            tied = numbers.count(last)
            tied_cards = [number for _, number in cards].count(last)
            note = ""
            if tied > tied_cards:
                note = f"{tied:,} captions tie at {last}; {tied_cards} of them are shown."
            ends.append((title, cards, note))
        return ends

    def evidence(self, system: System, column: MetricFacts, index: int) -> Mapping[str, Any]:
        """The evidence of a score; an image that is gone costs its explanation alone."""
        cell = system.cells[column.name]
        with suppress(KeyError, OSError, ValueError):
            return {} if cell.evidence is None else cell.evidence[index]
        return {}

    def differences(self, first: System, second: System, column: MetricFacts) -> dict[str, Any]:
        """The captions of the same visuals by which either system is furthest ahead, and ties as shown."""
        import pandas as pd

        frames = []
        for system in (first, second):
            scores = system.cells[column.name].result.scores
            # Texts as objects: a column of strings cannot hold lone surrogates.
            texts = pd.DataFrame({"id": system.ids, "caption": system.captions}, dtype=object)
            frame = texts.assign(score=scores, shown=[*map(self.systems.for_page, scores)])
            frames.append(frame.assign(turn=frame.groupby("id").cumcount()).reset_index())
        both = frames[0].merge(frames[1], on=["id", "turn"]).dropna(subset=["score_x", "score_y"])
        apart = both[both.shown_x != both.shown_y]
        gain = (apart.score_x - apart.score_y) * (1 if column.higher_is_better else -1)

        sides = []
        for system, lead in ((first, gain), (second, -gain)):
            furthest = apart.loc[lead[lead > 0].sort_values(ascending=False, kind="stable").index]
            pairs = []
            for row in furthest[:_EXAMPLES].to_dict("records"):
                captions = (
                    (first.name, row["shown_x"], row["caption_x"]),
                    (second.name, row["shown_y"], row["caption_y"]),
                )
                picture = self.picture(first, row["index_x"]) or self.picture(second, row["index_y"])
                pairs.append({"picture": picture, "sides": captions, "id": row["id"]})
            sides.append({"name": system.name, "ahead": len(furthest), "pairs": pairs})
        return {"compared": len(both), "ties": len(both) - len(apart), "sides": sides}

    def chart(self, column: MetricFacts) -> dict[str, Any] | None:
        """Histograms of the systems' scores, with mean and interval, on one axis."""
        cells: dict[str, Cell] = {}
        finite = {}
        for system in self.systems.systems:
            cell = system.cells[column.name]
            cells[system.name] = cell
            scores = np.array(cell.result.scores, float)
            finite[system.name] = scores[np.isfinite(scores)]
        values = np.concatenate([*finite.values()])
        if not len(values):
            return None
        ticks = round_ticks(float(values.min()), float(values.max()))
        most = max(map(len, finite.values()))
        bins = min(max(int(2 * math.sqrt(most)), _MIN_BINS), _MAX_BINS)

        def at(value: float) -> str:
            return f"{100 * (value - ticks[0]) / (ticks[-1] - ticks[0]):.2f}%"

        rows = []
        for name, scores in finite.items():
            counts = np.histogram(scores, bins, (ticks[0], ticks[-1]))[0]
            shares = (100 * counts / max(counts.max(), 1)).tolist()
            row: dict[str, Any] = {"name": name, "value": "", "spoken": f"{len(scores):,} scores"}
            row["bars"] = []
            for place, share in enumerate(shares):
                if share:  # an empty bar would be one more element of a page with thousands
                    row["bars"].append((f"{100 / bins * place:.2f}", share))
            if len(scores):
                quantiles = np.quantile(scores, [0.05, 0.5, 0.95]).tolist()
                below = ", ".join(map(self.systems.for_page, quantiles))
                row["spoken"] += f"; 5%, 50% and 95% lie below {below}"
                row["value"] = self.systems.for_page(float(scores.std()))
                row["mean"] = at(float(scores.mean()))
            interval = cells[name].interval
            if interval is not None and cells[name].result.formula is None:  # else not one of a mean
                row["interval"] = [at(interval.low), at(interval.high)]
            rows.append(row)
        labels = []
        for tick in ticks:
            labels.append((at(tick), minus(f"{self.systems.scaled(tick):.4g}")))
        return {"width": f"{100 / bins:.2f}", "rows": rows, "ticks": labels}

    # pictures

    def picture(self, system: System, index: int) -> dict[str, Any] | None:
        """The picture of a caption; None if it cannot be read or there is no room."""
        if system.images is None:
            return None
        path = str(system.images[index])
        if path not in self.pictures:
            self.pictures[path] = None
            with suppress(ImageError, TypeError, ValueError):
                self.pictures[path] = self._stored(path)
        picture = self.pictures[path]
        if picture is None:
            return None
        return {**picture, "label": f"{self.systems.visual} {system.ids[index]}"}

    def _stored(self, path: str) -> dict[str, Any] | None:
        """The JPEG of a picture; None if there is no room."""
        if not self._has_room():
            return None
        image = thumbnail(path, self.systems.visual, upright=self.upright)
        data = jpeg(image)
        # Asked again, by the size that is known only now; the first time no image was opened for nothing.
        if not self._take_room(data):
            return None
        return {
            "name": f"picture-{len(self.pictures)}",
            "width": image.width,
            "height": image.height,
            "data": data,
        }

    def draw(self, picture: Picture, text: str) -> str:
        """A picture of an explanation; "" if there is none, or no room."""
        if picture is None or not self._has_room():
            return ""
        with suppress(ImageError, ValueError):  # an image that is no longer there, boxes without an image
            html = drawing(picture, text, _DRAWING_WIDTH, quality=80)
            if self._take_room(html):
                return html
        return ""

    def _has_room(self) -> bool:
        """There is room for a picture; one for which there is not is counted."""
        return self._take_room("")

    def _take_room(self, data: str) -> bool:
        """Use room for a picture; False, and counted, where there is not enough for it."""
        self._room -= len(data)
        if self._room < 0:
            self.left_out += 1
        return self._room >= 0


# texts


_ROOT = r"(?:~?/|[A-Za-z]:[\\/]|\\\\)"
_PATH = re.compile(
    rf"(?<=['\"]){_ROOT}[^'\"\n]*[\\/](?=[^'\"\\/\n]*['\"])|(?<![\w/.:<]){_ROOT}(?:[^\s'\"\\/:]+[\\/])+"
)
"""The folders of an absolute path: of one in quotes, which may hold spaces, or of one that holds none."""


_without_folders = partial(_PATH.sub, "")
"""A text with names of files for absolute paths."""


def notebook(result: Any) -> str:
    """A result as a small piece of HTML for notebooks, in the colours of the page around it."""
    interval = None
    if result.relative is None and len(result) <= _WITH_INTERVAL:
        with suppress(ValueError):  # too few images
            interval = result.interval()
    scored = len(result) - len(result.errors)
    length = min(_NOTEBOOK_ENDS, max(1, scored // 2))  # so that no row is at both ends, unless it is alone
    rows = []
    for row in result.worst(length):
        rows.append(("worst", row))
    for row in result.best(length):
        rows.append(("best", row))
    columns = []
    if rows:
        _, values = rows[0]
        for name, value in values.items():
            if isinstance(value, int | float | str) and name != "group":
                columns.append(name)
        columns = columns[:_NOTEBOOK_COLUMNS]
    counts = vars(result.counts)
    content = {"result": result, "interval": interval, "rows": rows, "columns": columns, "counts": counts}
    return str(template("notebook").render(content))
