"""A comparison of systems as one HTML page: it needs no network, no script, and no file beside it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path, PurePath
from typing import Any

from capeval_core._version import __version__
from capeval_core.reports.explanations import DIGITS, STYLE, TINY_KNOWS
from capeval_core.reports.html_captions import most_different, worst_and_best
from capeval_core.reports.html_charts import distributions, means
from capeval_core.reports.html_pictures import FRAMES, Pictures
from capeval_core.reports.systems import Column, System, Systems
from capeval_core.values import minus, p_in_words, signed
from capeval_core.writing import try_writing, write_whole

FILE = "index.html"
_GENERATOR = '<meta name="generator" content="capeval">'
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""What a browser may do for the page: nothing but show it, whatever a caption holds."""
_REASONS = 12
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
    pictures = Pictures(systems.visual)
    title = _title(systems)
    sections = "".join(_metric(column, systems, pictures) for column in systems.columns)
    files = (Path(__file__).with_name("report.css"), STYLE)
    style = "".join(path.read_text(encoding="utf-8") for path in files)
    body = (
        f"{_header(title, systems)}<main>{_overview(systems)}{sections}{_failures(systems, pictures)}"
        f"{_sources(systems)}</main>{_footer()}{pictures.symbols()}"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">{_GENERATOR}'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body>{body}</body></html>\n"
    ).translate(_UNFIT)


def _title(systems: Systems) -> str:
    metrics = systems.columns[0].title if len(systems.columns) == 1 else f"{len(systems.columns)} metrics"
    names = systems.systems[0].name if len(systems.systems) == 1 else f"{len(systems.systems)} systems"
    return f"{names} by {metrics}"


def _header(title: str, systems: Systems) -> str:
    captions = sorted({len(system.captions) for system in systems.systems})
    visuals = len({name for system in systems.systems for name in system.ids})
    extent = " to ".join(f"{count:,}" for count in dict.fromkeys((captions[0], captions[-1])))
    extent = "one caption" if captions == [visuals] else f"{extent} captions"
    size = f"{visuals:,} {systems.visual}{'s' * (visuals != 1)}, {extent}"
    if len(systems.systems) > 1:
        plural = "s" * (len(systems.columns) != 1)
        size += f" per system; {len(systems.systems)} systems, {len(systems.columns)} metric{plural}"
    elif captions == [visuals]:
        size += " each"
    links = "".join(f'<a href="#{_anchor(c)}">{escape(c.title)}</a>' for c in systems.columns)
    return (
        f'<header><h1 dir="auto">{escape(title)}</h1>'
        f"<p>{escape(size)}</p>"
        f'<nav aria-label="Metrics">{links}<a href="#sources">Settings and sources</a></nav></header>'
    )


def _overview(systems: Systems) -> str:
    headings = "".join(
        f'<th scope="col">{escape(column.title)} <small>{_better(column)}</small></th>'
        for column in systems.columns
    )
    rows = "".join(_system_row(system, systems) for system in systems.systems)
    sentences = [*_verdicts(systems), *_conditions(systems)]
    return (
        f"<section><h2>Results</h2>{_tiny(systems)}"
        '<div class="wide" tabindex="0" role="region" aria-label="Results">'
        f'<table class="systems"><thead><tr><th scope="col">System</th>{headings}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{''.join(sentences)}</section>"
    )


def _tiny(systems: Systems) -> str:
    """A warning of the metrics that were computed with the demonstration weights."""
    titles = [
        column.title
        for column in systems.columns
        if any(":tiny@" in system.cells[column.name].signature for system in systems.systems)
    ]
    return f'<p class="warning">{escape(f"{_listed(titles)}: {TINY_KNOWS}")}</p>' if titles else ""


def _system_row(system: System, systems: Systems) -> str:
    base = " <small>baseline</small>" if system.name == systems.baseline else ""
    cells = "".join(_cell(system, column, systems) for column in systems.columns)
    return f'<tr><th scope="row"><bdi>{escape(system.name)}</bdi>{base}</th>{cells}</tr>'


def _cell(system: System, column: Column, systems: Systems) -> str:
    cell, number = system.cells[column.name], systems.for_page
    is_best = system.name in systems.best(column, DIGITS)
    shown = f'<b class="value">{number(cell.mean)}</b>'
    if cell.interval is not None:
        shown += f'<span class="interval">{number(cell.interval[0])} to {number(cell.interval[1])}</span>'
    if cell.test is not None:
        kind = systems.verdict(cell, column)
        difference = minus(signed(systems.scaled(cell.test.difference), systems.decimals(DIGITS)))
        words = f"{difference}, {p_in_words(cell.test.adjusted, systems.level)}"
        shown += f'<span class="test {kind}">{_SIGNS[kind]}{words}</span>'
    return f'<td class="{"best" if is_best else ""}" data-title="{escape(column.title)}">{shown}</td>'


def _verdicts(systems: Systems) -> Iterator[str]:
    """A sentence per system: by which metrics it differs from the baseline."""
    for system in systems.systems:
        by_verdict: dict[str, list[str]] = {}
        for column in systems.columns:
            cell = system.cells[column.name]
            if verdict := systems.verdict(cell, column):
                if cell.test is not None and not cell.test.difference:
                    verdict = "tied"
                title = f'<span class="name-of-metric">{escape(column.title)}</span>'
                by_verdict.setdefault(_VERDICTS[verdict], []).append(title)
        if by_verdict:
            text = "; ".join(f"{verdict} by {_listed(titles)}" for verdict, titles in by_verdict.items())
            yield (
                f'<p class="verdict"><b><bdi>{escape(system.name)}</bdi></b> against '
                f"<bdi>{escape(systems.baseline or '')}</bdi>: {text}.</p>"
            )


def _conditions(systems: Systems) -> Iterator[str]:
    """What has to be known beside the numbers: of intervals and tests, and why some have none."""
    notes = []
    cells = [
        (system, column, system.cells[column.name])
        for system in systems.systems
        for column in systems.columns
    ]
    if any(cell.interval is not None for *_, cell in cells):
        notes.append(
            f"Ranges are {systems.level:.0%} confidence intervals; use the paired test to compare systems."
        )
    if any(cell.test is not None for *_, cell in cells):
        adjusted = "p, adjusted by Holm's correction," if systems.correction else "p"
        notes.append(
            f"▲ better, ▼ worse than the baseline: {adjusted} below {1 - systems.level:.2g}. "
            f"{_sentence(systems.test)}{_sentence(systems.correction)}"
        )
    for column in systems.columns:
        if len(best := systems.best(column, DIGITS)) > 1:
            value = systems.for_page(
                next(s for s in systems.systems if s.name == best[0]).cells[column.name].mean
            )
            notes.append(f"{column.title}: {_listed(best)} tie at {value}, as far as digits are shown.")
    if systems.times_100:
        notes.append("Scores are times 100; parts and evidence of a score are as the metric gives them.")
    reasons: dict[str, dict[str, None]] = {}
    for _, column, cell in cells:
        relative = column.relative and f"no interval, as {column.relative}"
        for reason in filter(None, [relative] if relative else [cell.no_interval, cell.no_test]):
            reasons.setdefault(reason, {})[column.title] = None
    notes += [f"{_listed(list(titles))}: {reason}." for reason, titles in reasons.items()]
    return (f'<p class="note">{escape(note)}</p>' for note in notes)


def _metric(column: Column, systems: Systems, pictures: Pictures) -> str:
    """The section of a metric: charts, worst and best captions, differences; all but the first are folded."""
    summary = f"<p>{escape(column.summary)}</p>" if column.summary else ""
    frames = f"{FRAMES} frames of each video are shown, evenly spread." if systems.visual == "video" else ""
    charts = means(column, systems) if len(systems.systems) > 1 else ""
    charts += distributions(column, systems)
    is_open = "open" if column is systems.columns[0] else ""
    # The anchor is inside, so that a link to it unfolds the metric.
    return (
        f'<section><details class="metric" {is_open}><summary><h2>{escape(column.title)}</h2></summary>'
        f'<div id="{_anchor(column)}">{summary}'
        f'<p class="note">{_range(column, systems)}{_better(column)}. {frames}</p>'
        f'<div class="charts">{charts}</div>{_ends(column, systems, pictures)}'
        f"{_differences(column, systems, pictures)}</div></details></section>"
    )


def _ends(column: Column, systems: Systems, pictures: Pictures) -> str:
    shown = [(system.name, worst_and_best(system, column, systems, pictures)) for system in systems.systems]
    return "<h3>Worst and best captions</h3>" + _folded(shown, first="open")


def _differences(column: Column, systems: Systems, pictures: Pictures) -> str:
    """Where each system and the baseline differ most; not of scores that are relative to their set."""
    first = next((s for s in systems.systems if s.name == systems.baseline), systems.systems[0])
    others = [system for system in systems.systems if system is not first]
    if not others or column.relative is not None:
        return ""
    shown = [
        (f"{other.name} and {first.name}", most_different(other, first, column, systems, pictures))
        for other in others
    ]
    return "<h3>Where two systems differ most</h3>" + _folded(shown, first="open")


def _folded(shown: Sequence[tuple[str, str]], first: str) -> str:
    """Blocks under their names, of which the first is unfolded; a single one is not folded at all."""
    if len(shown) == 1:
        return shown[0][1]
    return "".join(
        f'<details class="system" {first if place == 0 else ""}><summary><bdi>{escape(name)}</bdi></summary>'
        f"{content}</details>"
        for place, (name, content) in enumerate(shown)
    )


def _failures(systems: Systems, pictures: Pictures) -> str:
    """What failed, was truncated, empty or left out, with reasons."""
    rows = ""
    reasons: Counter[str] = Counter()
    for system in systems.systems:
        for column in systems.columns:
            cell = system.cells[column.name]
            left_out = cell.test.left_out if cell.test is not None else 0
            counts = (len(cell.errors), cell.truncated, cell.empty, left_out)
            if any(counts):
                numbers = "".join(f"<td>{count:,}</td>" for count in counts)
                name = f"<bdi>{escape(system.name)}</bdi>, {escape(column.title)}"
                rows += f'<tr><th scope="row">{name}</th>{numbers}</tr>'
            for index, reason in cell.errors.items():
                reasons[f"{system.ids[index]}: {without_folders(reason, system.images)}"] += 1
    left_out = pictures.left_out
    if not rows and not left_out:
        return ""
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("failed", "truncated", "empty", "left out"))
    table = f"<table><thead><tr><td></td>{heads}</tr></thead><tbody>{rows}</tbody></table>" if rows else ""
    more = f"<li>and {len(reasons) - _REASONS:,} more</li>" if len(reasons) > _REASONS else ""
    items = "".join(f'<li dir="auto">{escape(line)}</li>' for line in list(reasons)[:_REASONS])
    listed = f'<ul class="reasons">{items}{more}</ul>' if items else ""
    notes = [_LEFT_OUT.format(systems.visual)] if rows and systems.baseline is not None else []
    notes += [f"{left_out:,} further pictures are left out, to keep this page small."] if left_out else []
    below = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    return f'<section id="failures"><h2>Failed or cut</h2>{table}{listed}{below}</section>'


def _sources(systems: Systems) -> str:
    """Signatures, papers to cite, and the command that repeats all of it."""
    blocks = []
    for column in systems.columns:
        signatures = dict.fromkeys(system.cells[column.name].signature for system in systems.systems)
        shown = "".join(f"<pre>{escape(signature)}</pre>" for signature in signatures)
        link = _link(column.address)
        cited = f"<p>{escape(column.citation)} {link}</p>" if column.citation else ""
        blocks.append(f"<h3>{escape(column.title)}</h3>{cited}{shown}")
    command = ""
    if systems.command:
        command = f"<h3>Command</h3><pre>{escape(without_folders(systems.command))}</pre>"
    return (
        '<section id="sources"><h2>Settings and sources</h2><p class="note">Numbers are comparable where '
        f"their signatures are equal.</p>{''.join(blocks)}{command}</section>"
    )


def _footer() -> str:
    today = datetime.now(timezone.utc).date().isoformat()
    return f"<footer>Made by capeval {__version__}, {today}.</footer>"


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


def _link(address: str) -> str:
    """A link to a paper; addresses of other kinds are shown as text."""
    if not address.startswith("https://"):
        return escape(address)
    return f'<a href="{escape(address)}" rel="noreferrer noopener">{escape(address)}</a>'


def _anchor(column: Column) -> str:
    return "metric-" + re.sub(r"[^a-z0-9]+", "-", column.name.lower())


def _better(column: Column) -> str:
    return f"{'higher' if column.higher_is_better else 'lower'} is better"


def _range(column: Column, systems: Systems) -> str:
    if column.relative is not None:
        return f"{escape(column.relative[:1].upper() + column.relative[1:])}; "
    if not all(map(math.isfinite, column.range)):  # of a package that is not installed here
        return ""
    low, high = map(systems.scaled, column.range)
    return minus(f"From {low:.3g} to {high:.3g}, ")


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'} " if text else ""
