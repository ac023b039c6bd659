"""A comparison of systems as one HTML page without network, script or other files; a result for notebooks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from PIL import Image

from capeval_core.errors import minus, p_in_words, signed
from capeval_core.inputs.images import ImageError, Upright, image_source
from capeval_core.inputs.videos import Sampling, video_source
from capeval_core.kept import whole_folder
from capeval_core.project import __version__
from capeval_core.reports.explanations import DIGITS, STYLE, Picture, drawing, jpeg, round_ticks, template
from capeval_core.reports.tables import System, Systems

_FILE = "index.html"
_SHOWN = 4  # captions at either end, and by which each of two systems is ahead
_GENERATOR = '<meta name="generator" content="capeval">'
_SIGNS = {"better": "▲ ", "worse": "▼ ", "equal": ""}
_UNFIT = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160)), "\ufffd")
"""Control characters, which HTML cannot hold."""
_FEWEST_BINS, _MOST_BINS = 8, 48
_FRAMES = 4  # of a video, side by side
_SIDE, _FRAME_HEIGHT, _DRAWN = 320, 130, 640  # pixels: of a picture, a frame and a drawn explanation
_ROOM = 4_500_000  # characters of all pictures of a page
_QUICK, _ENDS, _COLUMNS = 100_000, 3, 6
"""Of notebooks: captions with an interval, which takes a second for more; captions at either end; columns."""


def write_report(folder: Path, systems: Systems, command: str, titles: Mapping[str, str]) -> Path:
    """Write `index.html`; whatever fails, an existing report stays as it was. titles: of parts of scores."""
    check_report(folder)
    content = _Page(systems).html(command=command, titles=titles)
    with whole_folder(folder) as unfinished:
        (unfinished / _FILE).write_bytes(content.encode("utf-8", "replace"))
    return folder / _FILE


def check_report(folder: Path) -> None:
    """Refuse to replace a page that is no report of capeval."""
    path = folder / _FILE
    if path.exists() and not (path.is_file() and _GENERATOR.encode() in path.read_bytes()[:2000]):
        raise FileExistsError(f"{path} is there and no report of capeval: name another folder")


class _Page:
    """What the template asks for; pictures are stored once, up to a size in all: the page stays small."""

    def __init__(self, systems: Systems) -> None:
        self.systems, self.left_out = systems, 0
        results = [cell.result for system in systems.systems for cell in system.cells.values()]
        self.upright = any("exif:turn" in result.signature.split("|") for result in results)
        self.pictures: dict[str, dict[str, Any] | None] = {}  # by path; None where it cannot be shown
        self._room = _ROOM

    def html(self, **given: Any) -> str:
        styles = (STYLE.with_name("report.css"), STYLE)
        content = {
            "page": self,
            "systems": self.systems,
            "generator": Markup(_GENERATOR),
            "style": Markup("".join(path.read_text(encoding="utf-8") for path in styles)),
            "footer": f"Made by capeval {__version__}, {datetime.now(UTC).date().isoformat()}.",
            "frames": _FRAMES,
            "without_folders": partial(_PATH.sub, ""),  # texts with names of files for absolute paths
            **given,
        }
        html: str = template("report").render(content)
        return html.strip().translate(_UNFIT) + "\n"

    def signatures(self, column: Any) -> dict[str, None]:
        return dict.fromkeys(system.cells[column.name].result.signature for system in self.systems.systems)

    def cell(self, system: System, column: Any) -> dict[str, Any]:
        """A number of the table, with its interval and its test."""
        cell, number = system.cells[column.name], self.systems.for_page
        shown: dict[str, Any] = {"title": column.title, "mean": number(cell.result.mean)}
        if cell.interval is not None:
            shown["interval"] = f"{number(cell.interval.low)} to {number(cell.interval.high)}"
        if cell.test is not None:
            verdict = cell.verdict(column)
            difference = signed(self.systems.scaled(cell.test["difference"]), self.systems.decimals(DIGITS))
            adjusted = p_in_words(cell.test["adjusted"], self.systems.level)
            equal = "no difference shown" if cell.test["difference"] else "tied"
            shown |= {"verdict": verdict, "test": f"{_SIGNS[verdict]}{minus(difference)}, {adjusted}"}
            shown["in_words"] = equal if verdict == "equal" else verdict
        return shown

    def ends(self, system: System, column: Any) -> list[tuple[str, list[tuple[int, str]], str]]:
        """The captions with the lowest and the highest scores, none in both; how many tie with the last."""
        scores = np.asarray(system.cells[column.name].result.scores)
        finite = np.flatnonzero(np.isfinite(scores))
        ranks = np.argsort((-1 if column.higher_is_better else 1) * scores[finite], kind="stable")
        best, half = finite[ranks].tolist(), len(finite) // 2
        numbers = [self.systems.for_page(score) for score in scores.tolist()]
        found = []
        for title, order in (("Worst", best[::-1][:half]), ("Best", best[: len(best) - half])):
            if shown := [(index, numbers[index]) for index in order[:_SHOWN]]:
                last = shown[-1][1]
                tied, here = numbers.count(last), sum(number == last for _, number in shown)
                note = f"{tied:,} captions tie at {last}; {here} of them are shown." if tied > here else ""
                found.append((title, shown, note))
        return found

    def evidence(self, system: System, column: Any, index: int) -> Mapping[str, Any]:
        """The evidence of a score; an image that is gone costs its explanation alone."""
        cell = system.cells[column.name]
        with suppress(KeyError, OSError, ValueError):
            return {} if cell.evidence is None else cell.evidence[index]
        return {}

    def differences(self, first: System, second: System, column: Any) -> dict[str, Any]:
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

        def pair(row: Any) -> dict[str, Any]:
            picture = self.picture(first, row["index_x"]) or self.picture(second, row["index_y"])
            names = {"x": first.name, "y": second.name}
            sides = [(name, row[f"shown_{side}"], row[f"caption_{side}"]) for side, name in names.items()]
            return {"picture": picture, "sides": sides, "id": row["id"]}

        found = []
        for system, ahead in ((first, gain), (second, -gain)):
            furthest = apart.loc[ahead[ahead > 0].sort_values(ascending=False, kind="stable").index]
            pairs = [pair(row) for row in furthest[:_SHOWN].to_dict("records")]
            found.append({"name": system.name, "ahead": len(furthest), "pairs": pairs})
        return {"compared": len(both), "ties": len(both) - len(apart), "sides": found}

    def chart(self, column: Any) -> dict[str, Any] | None:
        """How many captions of each system have which score, with mean and interval, on one axis."""
        cells = {system.name: system.cells[column.name] for system in self.systems.systems}
        scores = {name: np.array(cell.result.scores, float) for name, cell in cells.items()}
        finite = {name: own[np.isfinite(own)] for name, own in scores.items()}
        values = np.concatenate([*finite.values()])
        if not len(values):
            return None
        ticks = round_ticks(float(values.min()), float(values.max()))
        bins = min(max(int(2 * math.sqrt(max(map(len, finite.values())))), _FEWEST_BINS), _MOST_BINS)

        def at(value: float) -> str:
            return f"{100 * (value - ticks[0]) / (ticks[-1] - ticks[0]):.2f}%"

        rows = []
        for name, own in finite.items():
            counted = np.histogram(own, bins, (ticks[0], ticks[-1]))[0]
            shares = (100 * counted / max(counted.max(), 1)).tolist()
            bars = [(f"{100 / bins * place:.2f}", share) for place, share in enumerate(shares) if share]
            row: dict[str, Any] = {"name": name, "value": "", "spoken": f"{len(own):,} scores", "bars": bars}
            if len(own):
                below = ", ".join(map(self.systems.for_page, np.quantile(own, [0.05, 0.5, 0.95]).tolist()))
                row["spoken"] += f"; 5%, 50% and 95% lie below {below}"
                row |= {"value": self.systems.for_page(float(own.std())), "mean": at(float(own.mean()))}
            if (interval := cells[name].interval) and cells[name].result.formula is None:
                row["interval"] = [at(interval.low), at(interval.high)]
            rows.append(row)
        numbers = [(at(tick), minus(f"{self.systems.scaled(tick):.4g}")) for tick in ticks]
        return {"width": f"{100 / bins:.2f}", "rows": rows, "ticks": numbers}

    def picture(self, system: System, index: int) -> dict[str, Any] | None:
        """The picture of a caption; None if it cannot be read or there is no room."""
        if system.images is None:
            return None
        path = str(system.images[index])
        if path not in self.pictures:
            self.pictures[path] = None
            with suppress(ImageError, TypeError, ValueError):
                if self._fits() and self._fits(data := jpeg(image := self._thumbnail(path))):
                    stored = {"width": image.width, "height": image.height, "data": data}
                    self.pictures[path] = {"name": f"picture-{len(self.pictures)}", **stored}
        found = self.pictures[path]
        return found and {**found, "label": f"{self.systems.visual} {system.ids[index]}"}

    def draw(self, picture: Picture, text: str) -> str:
        """A picture of an explanation; "" if there is none, or no room."""
        with suppress(ImageError, ValueError):  # an image that is no longer there, boxes without an image
            if picture and self._fits() and self._fits(shown := drawing(picture, text, _DRAWN, quality=80)):
                return shown
        return ""

    def _thumbnail(self, path: str) -> Image.Image:
        """An image as metrics see it, small and without metadata; or frames of a video side by side."""
        if self.systems.visual == "image":
            source = image_source(path)
            return _bare((Upright(source) if self.upright else source).decode(), _SIDE, _SIDE)
        return _frames_side_by_side(path)

    def _fits(self, data: str = "") -> bool:
        self._room -= len(data)
        self.left_out += self._room < 0
        return self._room >= 0


def _frames_side_by_side(path: str) -> Image.Image:
    reading = video_source(path).read(path, Sampling(max_frames=_FRAMES))
    frames = [np.asarray(_bare(frame, 4 * _FRAME_HEIGHT, _FRAME_HEIGHT)) for _, frame in reading]
    tallest = max(map(len, frames))
    gaps = [((0, tallest - len(frame)), (4, 0), (0, 0)) for frame in frames]
    padded = [np.pad(frame, gap, constant_values=255) for frame, gap in zip(frames, gaps, strict=True)]
    return Image.fromarray(np.hstack(padded)[:, 4:])


def _bare(image: Image.Image, width: int, height: int) -> Image.Image:
    """The pixels alone, on white, within a box."""
    pixels = image.convert("RGBA")
    pixels.thumbnail((width, height), Image.Resampling.LANCZOS)
    return Image.alpha_composite(Image.new("RGBA", pixels.size, "white"), pixels).convert("RGB")


# texts


_ROOT = r"(?:~?/|[A-Za-z]:[\\/]|\\\\)"
_PATH = re.compile(
    rf"(?<=['\"]){_ROOT}[^'\"\n]*[\\/](?=[^'\"\\/\n]*['\"])|(?<![\w/.:<]){_ROOT}(?:[^\s'\"\\/:]+[\\/])+"
)
"""The folders of an absolute path: of one in quotes, which may hold spaces, or of one that holds none."""


def notebook(result: Any) -> str:
    """A result as a small piece of HTML for notebooks, in the colours of whatever it stands in."""
    interval = None
    if result.relative is None and len(result) <= _QUICK:
        with suppress(ValueError):  # too few images
            interval = result.interval()
    shown = min(_ENDS, max(1, (len(result) - len(result.errors)) // 2))  # none is both, unless it is alone
    rows = [("worst", row) for row in result.worst(shown)] + [("best", row) for row in result.best(shown)]
    plain = [name for _, row in rows[:1] for name, own in row.items() if isinstance(own, int | float | str)]
    columns = [name for name in plain if name != "group"][:_COLUMNS]
    counts = vars(result.counts)
    content = {"result": result, "interval": interval, "rows": rows, "columns": columns, "counts": counts}
    return str(template("notebook").render(content))
