"""Tables for a terminal, for papers and for programs; and several systems by several metrics as such."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capeval_core.errors import p_in_words
from capeval_core.reports.explanations import DIGITS, number

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_MARKED = re.compile(r"[\\`*<|~&]|(?<=\])\(|(?<![^\W_])_|_(?![^\W_])")
"""Characters that mean something in Markdown; an underscore within a word does not."""
_MARK = "*"
_COLUMNS = (
    "system metric mean low high level captions failed truncated empty baseline difference difference_low "
    "difference_high p p_holm significant compared left_out signature"
)


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of as many cells, notes; bold: row and column of what is bold in LaTeX."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bold: Collection[tuple[int, int]] = ()

    def text(self) -> str:
        """Aligned columns, then the notes."""
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*aligned, *(["", *self.notes] if self.notes else [])])

    def markdown(self) -> str:
        """A section with the table, then the notes as a list."""
        lines = [self.header, ["---"] * len(self.header), *self.rows]
        cells = [[_MARKED.sub(r"\\\g<0>", " ".join(cell.split())) for cell in line] for line in lines]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        body = [f"| {' | '.join(line)} |" for line in cells]
        return "\n".join([f"## {self.title}", "", *body, *notes]) + "\n"

    def latex(self) -> str:
        """A `tabular` with booktabs' rules; the notes are comments."""
        lines = [f"% {self.title}", *(f"% {note}" for note in self.notes)]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}", r"\toprule"]
        lines += [_latex_row(self.header), r"\midrule"]
        for place, row in enumerate(self.rows):
            lines.append(_latex_row(row, [(place, i) in self.bold for i in range(len(row))]))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def csv(self) -> str:
        """The header and the rows."""
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()


def _latex_row(cells: Sequence[str], bold: Sequence[bool] = ()) -> str:
    """A row; the first word of a bold cell is bold, its interval is not."""
    texts = ["".join(_LATEX.get(c, c) for c in cell) for cell in cells]
    texts = [re.sub(r"\btau\\_([bc])\b", r"$\\tau_\1$", text) for text in texts]
    for place in (place for place, is_bold in enumerate(bold) if is_bold):
        texts[place] = re.sub(r"^\S+", lambda found: rf"\textbf{{{found[0]}}}", texts[place])
    row = " & ".join(texts) + r" \\"
    return "{}" + row if row[0] in "[*" else row  # else an argument of the line break before it


@dataclass(frozen=True)
class Cell:
    """One system by one metric: its `Result`, evidence by index, interval and test, or why there is none."""

    result: Any
    evidence: Mapping[int, Mapping[str, Any]] | None = None
    interval: Any = None
    no_interval: str = ""
    test: Mapping[str, Any] | None = None  # of the baseline none; keys as in `compare_systems`
    no_test: str = ""
    comparison: Any = None  # of the test, uncorrected

    def verdict(self, column: Any) -> str:
        """Whether the system is "better" or "worse" than the baseline, or "equal"; "" without a test."""
        if self.test is None or not self.test["significant"]:
            return "equal" if self.test else ""
        return "better" if (self.test["difference"] > 0) == column.higher_is_better else "worse"


@dataclass(frozen=True)
class System:
    """A system's captions, one entry per caption in each list, and its cells by the name of the metric."""

    name: str
    ids: Sequence[str]
    captions: Sequence[str]
    cells: Mapping[str, Cell]
    images: Sequence[Any] | None = None  # paths; None for results read from files
    references: Sequence[Sequence[str]] | None = None
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # how each file was read
    labels: Sequence[str] | None = None  # of captions, by which results are grouped


@dataclass(frozen=True)
class Systems:
    """A comparison: systems are rows, metrics columns; one system by one metric is the smallest."""

    systems: Sequence[System]
    columns: Sequence[Any]  # classes of metrics, or what has their facts
    baseline: str | None = None
    visual: str = "image"
    level: float = 0.95
    test: str = ""
    correction: str = ""
    messages: Sequence[str] = ()
    digits: int | None = None  # decimals for readers; None: as many as the place has by itself
    times_100: bool = False
    ranked: bool = True  # whether systems compete, so that the best is marked

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        """How each file of all systems was read, by its path."""
        readings: dict[str, Mapping[str, Any]] = {}
        for system in self.systems:
            readings.update(system.files)
        return readings

    def scaled(self, value: float) -> float:
        """A score, or a difference of scores, as readers want it."""
        return 100 * value if self.times_100 else value

    def decimals(self, usual: int) -> int:
        """Decimals of scores; `usual`: where readers want none in particular, of scores as they are."""
        return max(usual - 2 * self.times_100, 0) if self.digits is None else self.digits

    def number(self, value: float, usual: int = 4) -> str:
        """A score for readers; "n/a" where there is none."""
        return f"{self.scaled(value):.{self.decimals(usual)}f}" if math.isfinite(value) else "n/a"

    def for_page(self, value: float) -> str:
        """A score on a page."""
        return number(self.scaled(value), self.decimals(DIGITS))

    def best(self, column: Any, usual: int = 4) -> list[str]:
        """The systems with the best mean of several; more than one where they tie in the digits shown."""
        results = {system.name: system.cells[column.name].result for system in self.systems}
        means = {name: result.mean for name, result in results.items() if math.isfinite(result.mean)}
        if len(means) < 2:
            return []
        best = self.number((max if column.higher_is_better else min)(means.values()), usual)
        shown = [name for name, mean in means.items() if self.number(mean, usual) == best]
        return [name for name in shown if results[name].lack is None]


def stacked_table(systems: Systems, title: str = "Systems", first: str = "system") -> Table:
    """A system is up to three lines: means, intervals, and p-values after the correction."""
    rows = []
    for system in systems.systems:
        means: list[str] = []
        intervals: list[str] = []
        tests: list[str] = []
        for column in systems.columns:
            cell = system.cells[column.name]
            further = [systems.number(value) for value in _further(cell).values()]
            means += [_mean(systems, cell), *further]
            intervals += [_interval(systems, cell), *[""] * len(further)]
            p_value = p_in_words(cell.test["adjusted"], systems.level) if cell.test else ""
            tests += [p_value, *[""] * len(further)]
        rows += [[system.name, *means], *(["", *line] for line in (intervals, tests) if any(line))]
    return Table(title, [first, *_header(systems)], rows, _notes(systems))


def cells_table(systems: Systems, title: str = "Systems", first: str = "system") -> Table:
    """A system is one row: mean, mark and interval of each metric in a cell; the best mean is bold."""
    rows: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    best = {column.name: systems.best(column) for column in systems.columns if systems.ranked}
    for place, system in enumerate(systems.systems):
        row = [system.name]
        for column in systems.columns:
            cell = system.cells[column.name]
            if system.name in best.get(column.name, []):
                bold.add((place, len(row)))
            interval = _interval(systems, cell, ", ")
            row.append(f"{_mean(systems, cell)} [{interval}]" if interval else _mean(systems, cell))
            row += [systems.number(value) for value in _further(cell).values()]
        rows.append(row)
    return Table(title, [first, *_header(systems)], rows, _notes(systems), bold)


def long_table(systems: Systems, groups: Mapping[str, Systems] | None = None) -> Table:
    """A line for each system and metric with every number, as many digits as it has; with `groups` of
    captions also of each, by the column `group`, which is empty in the lines of all captions."""
    if groups is not None:
        tables = {"": long_table(systems), **{name: long_table(own) for name, own in groups.items()}}
        grouped = [[*row, name] for name, table in tables.items() for row in table.rows]
        return Table("Systems", [*_COLUMNS.split(), "group"], grouped)
    rows: list[list[str]] = []
    for system in systems.systems:
        for name, cell in system.cells.items():
            result, own = cell.result, cell.interval
            ends = (math.nan, math.nan) if own is None else (own.low, own.high)
            means = [repr(x) if math.isfinite(x) else "" for x in (result.mean, *ends)]
            tested = cell.test.values() if cell.test else [""] * 8
            baseline = "" if system.name == systems.baseline else systems.baseline or ""
            values = [*means, systems.level, *vars(result.counts).values(), baseline, *tested]
            texts = [str(x).lower() if isinstance(x, bool) else str(x) for x in values]
            rows.append([system.name, name, *texts, result.signature])
            for further, value in _further(cell).items():  # whose interval and test are not computed
                known = {"mean": repr(value), "signature": result.signature, "level": str(systems.level)}
                known |= {count: str(number) for count, number in vars(result.counts).items()}
                known |= {"system": system.name, "metric": further}
                rows.append([known.get(name, "") for name in _COLUMNS.split()])
    return Table("Systems", _COLUMNS.split(), rows)


def _further(cell: Cell) -> dict[str, float]:
    """The numbers of a set beside the one to report: BLEU-1 to BLEU-3."""
    return {name: value for name, value in cell.result.numbers.items() if name != cell.result.key}


def _header(systems: Systems) -> list[str]:
    titles: list[str] = []
    for column in systems.columns:
        lower = "" if column.higher_is_better else " (lower is better)"
        names = _further(systems.systems[0].cells[column.name])
        titles += [f"{column.title}{lower}", *(column.part_titles.get(name, name) for name in names)]
    return titles


def _notes(systems: Systems) -> list[str]:
    """What the table's signs mean, what failed, and the signatures."""
    notes = []
    cells = [system.cells[column.name] for column in systems.columns for system in systems.systems]
    if any(cell.interval is not None for cell in cells):
        notes.append(f"{systems.level:.0%} intervals of the means, by {systems.visual}")
    tests = [cell.test for cell in cells if cell.test is not None]
    if tests:
        how = f"{systems.test}, {systems.correction}" if systems.correction else systems.test
        limit = f"p < {1 - systems.level:.2g}"
        meaning = f"p: against {systems.baseline} ({how})"
        if any(test["significant"] for test in tests):
            meaning = f"{_MARK}: differs from {systems.baseline} ({limit}, {how})"
        notes.append(meaning)
    notes += ["means and intervals times 100"] if systems.times_100 else []
    return [*notes, *systems.messages, *dict.fromkeys(cell.result.signature for cell in cells)]


def _mean(systems: Systems, cell: Cell) -> str:
    return systems.number(cell.result.mean) + (_MARK if cell.test and cell.test["significant"] else "")


def _interval(systems: Systems, cell: Cell, between: str = " to ") -> str:
    own = cell.interval
    return "" if own is None else between.join(map(systems.number, (own.low, own.high)))
