"""A comparison of systems as one HTML page: it needs no network, no script, and no file beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from capeval_core._version import __version__
from capeval_core.reports.explanations import DIGITS, STYLE, TINY_KNOWS
from capeval_core.reports.html_captions import cut, most_different, worst_and_best
from capeval_core.reports.html_charts import distributions, means
from capeval_core.reports.html_pictures import FRAMES, Pictures
from capeval_core.reports.systems import Column, System, Systems
from capeval_core.values import minus, p_in_words, signed
from capeval_core.writing import try_writing, write_whole

FILE = "index.html"
_GENERATOR = '<meta name="generator" content="capeval">'
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser may do for the page: nothing but show it, whatever a caption holds."""
_SIGNS = {"better": "▲ ", "worse": "▼ ", "equal": ""}
_VERDICTS = {"better": "better", "worse": "worse", "tied": "tied", "equal": "no difference shown"}
_LEFT_OUT = "Left out: {}s with a score in only one of system and baseline, which the test does not use."
_UNFIT = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160)), "\ufffd")
"""Control characters, which HTML cannot hold."""


def write_report(folder: Path, systems: Systems) -> Path:
    """Write `index.html` into a folder, which is made where there is none; its path.

    Whatever fails, an existing report stays as it was.

    Raises:
        OSError: it cannot be written. ValueError: the folder holds another page of that name.
    """
    check_report(folder)
    content = page(systems)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FILE, content.encode("utf-8", "replace"))
    return folder / FILE


def check_report(folder: Path) -> None:
    """Refuse a folder into which no report can be written, before anything is scored.

    Raises:
        OSError, ValueError: as `write_report`.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file: name a folder for the report")
    path = folder / FILE
    if path.exists() and not (path.is_file() and _GENERATOR.encode() in path.read_bytes()[:2000]):
        raise FileExistsError(f"{path} is there and no report of capeval: name another folder")
    try_writing(folder)


def page(systems: Systems) -> str:
    """The whole page.

    >>> from capeval_core.reports.systems import Cell, Column, System, Systems
    >>> cell = Cell(0.5, None, [0.4, 0.6], {}, {}, "capeval:x", no_interval="too few images")
    >>> system = System("A", ["1", "2"], ["a dog", "<b>"], None, None, {"x": cell})
    >>> html = page(Systems([system], [Column("x", "X-S", "x_s", (0, 1))]))
    >>> "&lt;b&gt;" in html, "<b>" in html
    (True, False)
    """
    from jinja2 import Environment, FileSystemLoader  # not for those who want no page
    from markupsafe import Markup

    pictures = Pictures(systems.visual)
    folder = Path(__file__).parent
    style = "".join(path.read_text(encoding="utf-8") for path in (folder / "report.css", STYLE))
    loader = FileSystemLoader(folder / "templates")
    template = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    metrics = [_metric(column, systems, pictures) for column in systems.columns]
    content = {
        "systems": systems,
        "generator": Markup(_GENERATOR),
        "policy": Markup(_POLICY),
        "style": Markup(style),
        "title": _title(systems),
        "extent": _extent(systems),
        "tiny": _tiny(systems),
        "rows": [
            {"name": system.name, "cells": [_cell(system, column, systems) for column in systems.columns]}
            for system in systems.systems
        ],
        "verdicts": list(_verdicts(systems)),
        "notes": list(_conditions(systems)),
        "metrics": metrics,
        "failures": _failures(systems, pictures),
        "command": without_folders(systems.command),
        "footer": f"Made by capeval {__version__}, {datetime.now(UTC).date().isoformat()}.",
        "symbols": Markup(pictures.symbols()),
        "cut": cut,
        "count": "{:,}".format,
    }
    return template.get_template("report.html.j2").render(content).strip().translate(_UNFIT) + "\n"


def _title(systems: Systems) -> str:
    metrics = systems.columns[0].title if len(systems.columns) == 1 else f"{len(systems.columns)} metrics"
    names = systems.systems[0].name if len(systems.systems) == 1 else f"{len(systems.systems)} systems"
    return f"{names} by {metrics}"


def _extent(systems: Systems) -> str:
    captions = sorted({len(system.captions) for system in systems.systems})
    visuals = len({name for system in systems.systems for name in system.ids})
    extent = " to ".join(f"{count:,}" for count in dict.fromkeys((captions[0], captions[-1])))
    extent = "one caption" if captions == [visuals] else f"{extent} captions"
    size = f"{visuals:,} {systems.visual}{'s' * (visuals != 1)}, {extent}"
    if len(systems.systems) > 1:
        plural = "s" * (len(systems.columns) != 1)
        return f"{size} per system; {len(systems.systems)} systems, {len(systems.columns)} metric{plural}"
    return size + " each" * (captions == [visuals])


def _tiny(systems: Systems) -> str:
    """A warning of the metrics that were computed with the demonstration weights."""
    titles = [
        column.title
        for column in systems.columns
        if any(":tiny@" in system.cells[column.name].signature for system in systems.systems)
    ]
    return f"{_listed(titles)}: {TINY_KNOWS}" if titles else ""


def _cell(system: System, column: Column, systems: Systems) -> dict[str, Any]:
    cell, shown = system.cells[column.name], {}
    if cell.interval is not None:
        shown["interval"] = " to ".join(map(systems.for_page, cell.interval))
    if cell.test is not None:
        verdict = systems.verdict(cell, column)
        difference = minus(signed(systems.scaled(cell.test.difference), systems.decimals(DIGITS)))
        adjusted = p_in_words(cell.test.adjusted, systems.level)
        shown |= {"verdict": verdict, "test": f"{_SIGNS[verdict]}{difference}, {adjusted}"}
    best = system.name in systems.best(column, DIGITS)
    return {"title": column.title, "mean": systems.for_page(cell.mean), "best": best, **shown}


def _verdicts(systems: Systems) -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    """Of each system the metrics by which it differs from the baseline, by how it does."""
    for system in systems.systems:
        by_verdict: dict[str, list[str]] = {}
        for column in systems.columns:
            cell = system.cells[column.name]
            if verdict := systems.verdict(cell, column):
                tied = cell.test is not None and not cell.test.difference
                by_verdict.setdefault(_VERDICTS["tied" if tied else verdict], []).append(column.title)
        if by_verdict:
            yield system.name, list(by_verdict.items())


def _conditions(systems: Systems) -> Iterator[str]:
    """What has to be known beside the numbers: of intervals and tests, and why some have none."""
    cells = [(column, system.cells[column.name]) for system in systems.systems for column in systems.columns]
    if any(cell.interval is not None for _, cell in cells):
        yield f"Ranges are {systems.level:.0%} confidence intervals; use the paired test to compare systems."
    if any(cell.test is not None for _, cell in cells):
        adjusted = "p, adjusted by Holm's correction," if systems.correction else "p"
        yield (
            f"▲ better, ▼ worse than the baseline: {adjusted} below {1 - systems.level:.2g}. "
            f"{_sentence(systems.test)}{_sentence(systems.correction)}"
        )
    for column in systems.columns:
        if len(best := systems.best(column, DIGITS)) > 1:
            (mean,) = (s.cells[column.name].mean for s in systems.systems if s.name == best[0])
            value = systems.for_page(mean)
            yield f"{column.title}: {_listed(best)} tie at {value}, as far as digits are shown."
    if systems.times_100:
        yield "Scores are times 100; parts and evidence of a score are as the metric gives them."
    reasons: dict[str, dict[str, None]] = {}
    for column, cell in cells:
        relative = column.relative and f"no interval, as {column.relative}"
        for reason in filter(None, [relative] if relative else [cell.no_interval, cell.no_test]):
            reasons.setdefault(reason, {})[column.title] = None
    yield from (f"{_listed(list(titles))}: {reason}." for reason, titles in reasons.items())


def _metric(column: Column, systems: Systems, pictures: Pictures) -> dict[str, Any]:
    """A metric: charts, worst and best captions, differences, and where its numbers come from."""
    first = next((s for s in systems.systems if s.name == systems.baseline), systems.systems[0])
    others = [] if column.relative is not None else [s for s in systems.systems if s is not first]
    return {
        **{name: getattr(column, name) for name in ("title", "summary", "citation", "address")},
        "anchor": "metric-" + re.sub(r"[^a-z0-9]+", "-", column.name.lower()),
        "better": f"{'higher' if column.higher_is_better else 'lower'} is better",
        "range": _range(column, systems),
        "frames": f"{FRAMES} frames of each video are shown, evenly spread." * (systems.visual == "video"),
        "charts": [means(column, systems), distributions(column, systems)][len(systems.systems) == 1 :],
        "ends": [(s.name, worst_and_best(s, column, systems, pictures)) for s in systems.systems],
        "differences": [
            (f"{other.name} and {first.name}", most_different(other, first, column, systems, pictures))
            for other in others
        ],
        "signatures": dict.fromkeys(system.cells[column.name].signature for system in systems.systems),
    }


def _failures(systems: Systems, pictures: Pictures) -> dict[str, Any]:
    """What failed, was truncated, empty or left out, with reasons."""
    rows: list[tuple[str, str, tuple[int, ...]]] = []
    reasons: dict[str, None] = {}
    for system in systems.systems:
        for column in systems.columns:
            cell = system.cells[column.name]
            left_out = cell.test.left_out if cell.test is not None else 0
            counts = (len(cell.errors), cell.truncated, cell.empty, left_out)
            rows += [(system.name, column.title, counts)] if any(counts) else []
            for index, reason in cell.errors.items():
                reasons[f"{system.ids[index]}: {without_folders(reason, system.images)}"] = None
    notes = [_LEFT_OUT.format(systems.visual)] if rows and systems.baseline is not None else []
    if left := pictures.left_out:
        notes.append(f"{left:,} further pictures are left out, to keep this page small.")
    return {"counts": rows, "reasons": list(reasons), "notes": notes}


def without_folders(text: str, paths: Sequence[Any] | None = None) -> str:
    """A text with the names of files in place of their absolute paths.

    >>> without_folders("cannot decode '/home/me/my photos/x.jpg' or C:\\\\me\\\\y.png; 1/2 of a/b")
    "cannot decode 'x.jpg' or y.png; 1/2 of a/b"
    """
    for path in paths or ():
        if isinstance(path, (str, PurePath)) and PurePath(path).is_absolute() and str(path) in text:
            text = text.replace(str(path), PurePath(path).name)
    return _PATH.sub("", text)


_ROOT = r"(?:~?/|[A-Za-z]:[\\/]|\\\\)"
_PATH = re.compile(
    rf"(?<=['\"]){_ROOT}[^'\"\n]*[\\/](?=[^'\"\\/\n]*['\"])|(?<![\w/.:<]){_ROOT}(?:[^\s'\"\\/:]+[\\/])+"
)
"""The folders of an absolute path: of one in quotes, which may hold spaces, or of one that holds none."""


def _range(column: Column, systems: Systems) -> str:
    if column.relative is not None:
        return f"{column.relative[:1].upper()}{column.relative[1:]}; "
    if not all(map(math.isfinite, column.range)):  # of a package that is not installed here
        return ""
    low, high = map(systems.scaled, column.range)
    return minus(f"From {low:.3g} to {high:.3g}, ")


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'} " if text else ""
