"""Tables for a terminal, for papers and for programs; and several systems by several metrics as such."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from capeval_core.errors import p_in_words
from capeval_core.reports.diversity import Diversity
from capeval_core.reports.explanations import DIGITS, number

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}
_MARKED = re.compile(r"[\\`*<|~&]|(?<=\])\(|(?<![^\W_])_|_(?![^\W_])")
"""Characters that mean something in Markdown; an underscore within a word does not."""
_MARK = "*"
_COUNTS = ["captions", "failed", "truncated", "empty"]
# In the order of `compare_systems`' values.
_TEST = [
    *("difference", "difference_low", "difference_high", "p", "p_holm", "significant", "compared"),
    "left_out",
]
_COLUMNS = ["system", "metric", "mean", "low", "high", "level", *_COUNTS, "baseline", *_TEST, "signature"]
"""The columns of the long table."""


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of as many cells, notes.

    For LaTeX: bold: row and column of bold cells. parted: rows with a rule above. caption and label:
    of a `table` around it.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    bold: Collection[tuple[int, int]] = ()
    parted: Collection[int] = ()
    caption: str | None = None
    label: str | None = None

    def text(self) -> str:
        """Aligned columns, then the notes."""
        lines = [self.header, *self.rows]
        widths = []
        for column in zip(*lines, strict=True):
            widths.append(max(map(len, column)))
        texts = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        if self.notes:
            texts += ["", *self.notes]
        return "\n".join(texts)

    def markdown(self) -> str:
        """A section with the table, then the notes as a list."""
        lines = [f"## {self.title}", ""]
        for row in [self.header, ["---"] * len(self.header), *self.rows]:
            # On one line: a line break would end the row.
            cells = [_MARKED.sub(r"\\\g<0>", " ".join(cell.split())) for cell in row]
            lines.append(f"| {' | '.join(cells)} |")
        if self.notes:
            lines.append("")  # without which Markdown takes a list for a row of the table
        for note in self.notes:
            lines.append(f"- {note}")
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A `tabular` with booktabs' rules, in a `table` if it has caption or label; notes are comments."""
        alignment = "l" + "r" * (len(self.header) - 1)
        lines = [f"% {text}" for text in (self.title, r"needs \usepackage{booktabs}", *self.notes)]
        floats = self.caption is not None or self.label is not None
        if floats:
            lines += [r"\begin{table}", r"\centering"]
        if self.caption is not None:
            lines.append(rf"\caption{{{_latex(self.caption)}}}")
        if self.label is not None:  # after the caption, whose number it refers to
            lines.append(rf"\label{{{self.label}}}")
        lines += [rf"\begin{{tabular}}{{{alignment}}}", r"\toprule"]
        lines += [_latex_row(self.header), r"\midrule"]
        for place, row in enumerate(self.rows):
            if place in self.parted:
                lines.append(r"\midrule")
            bold = [(place, column) in self.bold for column in range(len(row))]
            lines.append(_latex_row(row, bold))
        lines += [r"\bottomrule", r"\end{tabular}"]
        if floats:
            lines.append(r"\end{table}")
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The header and the rows."""
        # newline="": a caption or a name with line breaks keeps them within its quotes.
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()


def _latex(text: str) -> str:
    """A text of which LaTeX reads no character as a command."""
    # Letter by letter: one replacement after another would escape the backslashes of the ones before.
    return "".join([_LATEX.get(character, character) for character in text])


def _latex_row(cells: Sequence[str], bold: Sequence[bool] = ()) -> str:
    """A row; the first word of a bold cell is bold, its interval is not."""
    texts = []
    for place, cell in enumerate(cells):
        text = re.sub(r"\btau\\_([bc])\b", r"$\\tau_\1$", _latex(cell))
        if place < len(bold) and bold[place]:
            text = re.sub(r"^\S+", lambda word: rf"\textbf{{{word[0]}}}", text)
        texts.append(text)
    row = " & ".join(texts) + r" \\"
    if row[0] in "[*":  # LaTeX would read it as an argument of the line break before it
        row = "{}" + row
    return row


class MetricFacts(Protocol):
    """The facts of a metric that tables need, as its class has them."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def higher_is_better(self) -> bool: ...
    @property
    def part_titles(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Cell:
    """One system by one metric: its `Result`, evidence by index, interval and test, or why it has none."""

    result: Any
    evidence: Mapping[int, Mapping[str, Any]] | None = None
    interval: Any = None
    no_interval: str = ""
    test: Mapping[str, Any] | None = None  # None for the baseline; keys as in `compare_systems`
    no_test: str = ""
    comparison: Any = None  # of the test, uncorrected

    def verdict(self, column: MetricFacts) -> str:
        """The system is "better" or "worse" than the baseline, or "equal"; "" without a test."""
        if not self.test:
            return ""
        if not self.test["significant"]:
            return "equal"
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
    intervals: Literal["range", "±", "none"] = "range"  # how tables show them
    caption: str | None = None  # of the table in LaTeX
    label: str | None = None
    diversity: Mapping[str, Diversity] = field(default_factory=dict)  # of captions, by the system's name

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        """The reading of each file of all systems, by its path."""
        readings: dict[str, Mapping[str, Any]] = {}
        for system in self.systems:
            readings.update(system.files)
        return readings

    def system(self, name: str) -> System:
        """The system of a name, else the first."""
        for system in self.systems:
            if system.name == name:
                return system
        return self.systems[0]

    def scaled(self, value: float) -> float:
        """A score, or a difference of scores, times 100 where readers want that."""
        return 100 * value if self.times_100 else value

    def decimals(self, default: int) -> int:
        """Decimals of scores: as readers want, else `default`, of scores that are not times 100."""
        if self.digits is not None:
            return self.digits
        return max(default - 2, 0) if self.times_100 else default

    def number(self, value: float, default: int = 4) -> str:
        """A score for readers; "n/a" where there is none."""
        return f"{self.scaled(value):.{self.decimals(default)}f}" if math.isfinite(value) else "n/a"

    def for_page(self, value: float) -> str:
        """A score on a page."""
        return number(self.scaled(value), self.decimals(DIGITS))

    def best(self, column: MetricFacts, default: int = 4) -> list[str]:
        """The systems with the best mean of several; more than one where they tie in the digits shown."""
        means = {}
        for system in self.systems:
            mean = system.cells[column.name].result.mean
            if math.isfinite(mean):
                means[system.name] = mean
        if len(means) < 2:
            return []
        best_mean = max(means.values()) if column.higher_is_better else min(means.values())
        as_shown = self.number(best_mean, default)
        best = []
        for name, mean in means.items():
            # A mean of fewer captions than others are of may be best by what it lacks: it gets no mark.
            is_complete = self.system(name).cells[column.name].result.zero_reason is None
            if is_complete and self.number(mean, default) == as_shown:
                best.append(name)
        return best


def stacked_table(systems: Systems, title: str = "Systems", first: str = "system") -> Table:
    """A system is up to three lines: means, intervals, and p-values after the correction."""
    rows = []
    for system in systems.systems:
        means: list[str] = []
        intervals: list[str] = []
        tests: list[str] = []
        for column in systems.columns:
            cell = system.cells[column.name]
            further = [systems.number(value) for value in _further(cell).values()]  # BLEU-1 beside BLEU-4
            blanks = [""] * len(further)  # whose interval and test are not computed
            p_value = p_in_words(cell.test["adjusted"], systems.level) if cell.test else ""
            means += [_mean(systems, cell), *further]
            intervals += [interval_text(systems, cell), *blanks]
            tests += [p_value, *blanks]
        rows.append([system.name, *means])
        for line in (intervals, tests):
            if any(line):
                rows.append(["", *line])
    return Table(title, [first, *_header(systems)], rows, _notes(systems))


def cells_table(systems: Systems, title: str = "Systems", first: str = "system") -> Table:
    """A system is one row: mean, mark and interval of each metric in a cell; the best mean is bold."""
    rows: list[list[str]] = []
    bold: set[tuple[int, int]] = set()
    best = {}
    if systems.ranked:
        for column in systems.columns:
            best[column.name] = systems.best(column)
    for place, system in enumerate(systems.systems):
        row = [system.name]
        for column in systems.columns:
            cell = system.cells[column.name]
            if system.name in best.get(column.name, []):
                bold.add((place, len(row)))
            interval = interval_text(systems, cell, ", ")
            if interval and systems.intervals == "range":
                interval = f"[{interval}]"
            row.append(f"{_mean(systems, cell)} {interval}".rstrip())
            row += [systems.number(value) for value in _further(cell).values()]
        rows.append(row)
    header = [first, *_header(systems)]
    return Table(title, header, rows, _notes(systems), bold, caption=systems.caption, label=systems.label)


def with_groups(table: Table, groups: Table) -> Table:
    """One table of all captions and, below a rule, of groups of them, with the same columns."""
    start = len(table.rows)
    heading = [groups.header[0], *[""] * (len(groups.header) - 1)]
    notes = dict.fromkeys([*table.notes, *groups.notes])
    rows = [*table.rows, heading, *groups.rows]
    return replace(table, rows=rows, notes=list(notes), parted={start, start + 1})


def captions_table(systems: Systems) -> Table:
    """The diversity of each system's captions."""
    header = ["system", "captions", "distinct", "words", "distinct words", "distinct pairs"]
    has_training = any(each.from_training is not None for each in systems.diversity.values())
    if has_training:
        header.append("from training")
    rows = []
    for name, each in systems.diversity.items():
        row = [name, f"{each.captions:,}", f"{each.distinct:,}", f"{each.words:.1f}"]
        row += [f"{each.distinct_1:.1%}", f"{each.distinct_2:.1%}"]
        if each.from_training is not None:
            row.append(f"{each.from_training:.1%}")
        rows.append([*row, f"{each.truncated:.1%}"])
    return Table("Captions", [*header, "truncated"], rows)


def long_table(systems: Systems, groups: Mapping[str, Systems] | None = None) -> Table:
    """A line for each system and metric with every number, as many digits as it has; with `groups` of
    captions also of each, by the column `group`, which is empty in the lines of all captions."""
    if groups is not None:
        grouped = []
        for name, group in {"": systems, **groups}.items():
            for line in long_table(group).rows:
                grouped.append([*line, name])
        return Table("Systems", [*_COLUMNS, "group"], grouped)
    rows: list[list[str]] = []
    for system in systems.systems:
        for name, cell in system.cells.items():
            shared: dict[str, Any] = {"system": system.name, "level": systems.level}
            shared |= zip(_COUNTS, vars(cell.result.counts).values(), strict=True)
            shared["signature"] = cell.result.signature
            row = {**shared, "metric": name, "mean": _repr(cell.result.mean)}
            if cell.interval is not None:
                row |= {"low": _repr(cell.interval.low), "high": _repr(cell.interval.high)}
            if system.name != systems.baseline:
                row["baseline"] = systems.baseline or ""
            if cell.test:
                row |= zip(_TEST, cell.test.values(), strict=True)
            rows.append(_line(row))
            for key, value in _further(cell).items():  # whose interval and test are not computed
                rows.append(_line({**shared, "metric": key, "mean": repr(value)}))
    return Table("Systems", _COLUMNS, rows)


def _line(row: Mapping[str, Any]) -> list[str]:
    """The texts of a row of the long table, "" where it has no value."""
    texts = []
    for name in _COLUMNS:
        text = str(row.get(name, ""))
        # `true`, as JSON and most readers of CSV have it, not Python's `True`.
        texts.append(text.lower() if isinstance(row.get(name), bool) else text)
    return texts


def _repr(number: float) -> str:
    """All digits of a number, "" of one that is not finite."""
    # An empty cell is a missing number to every reader of CSV; `nan` is a text to some.
    return repr(number) if math.isfinite(number) else ""


def _further(cell: Cell) -> dict[str, float]:
    """The numbers of a set in addition to the one to report: BLEU-1 to BLEU-3."""
    numbers = dict(cell.result.numbers)
    numbers.pop(cell.result.key, None)
    return numbers


def _header(systems: Systems) -> list[str]:
    titles: list[str] = []
    for column in systems.columns:
        lower = "" if column.higher_is_better else " (lower is better)"
        names = _further(systems.systems[0].cells[column.name])
        titles.append(f"{column.title}{lower}")
        for name in names:
            titles.append(column.part_titles.get(name, name))
    return titles


def _notes(systems: Systems) -> list[str]:
    """The meaning of the table's signs, messages, and the signatures."""
    notes = []
    signatures: dict[str, None] = {}  # each once, in the order of the columns
    has_intervals = False
    tests = []
    for column in systems.columns:
        for system in systems.systems:
            cell = system.cells[column.name]
            signatures[cell.result.signature] = None
            has_intervals = has_intervals or cell.interval is not None
            if cell.test is not None:
                tests.append(cell.test)
    if has_intervals and systems.intervals != "none":
        of_means = f"{systems.level:.0%} intervals of the means, by {systems.visual}"
        notes.append(of_means if systems.intervals == "range" else f"±: the longer side of {of_means}")
    if tests:
        how = f"{systems.test}, {systems.correction}" if systems.correction else systems.test
        limit = f"p < {1 - systems.level:.2g}"
        meaning = f"p: against {systems.baseline} ({how})"
        # The mark is explained only where it is, and stands for the limit of p.
        if any(test["significant"] for test in tests):
            meaning = f"{_MARK}: differs from {systems.baseline} ({limit}, {how})"
        notes.append(meaning)
    if systems.times_100:
        notes.append("means and intervals times 100")
    return [*notes, *systems.messages, *signatures]


def _mean(systems: Systems, cell: Cell) -> str:
    return systems.number(cell.result.mean) + (_MARK if cell.test and cell.test["significant"] else "")


def interval_text(systems: Systems, cell: Cell, between: str = " to ") -> str:
    """The interval of a mean as tables show it, "" for none."""
    if cell.interval is None or systems.intervals == "none":
        return ""
    if systems.intervals == "±":
        # Intervals are not symmetric: the longer side holds all of it, half the width would not.
        mean = cell.result.mean
        return f"± {systems.number(max(cell.interval.high - mean, mean - cell.interval.low))}"
    return f"{systems.number(cell.interval.low)}{between}{systems.number(cell.interval.high)}"
