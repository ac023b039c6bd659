"""Systems on the command line: their names, the test against a baseline, tables in all formats, the page."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from capeval_core.commands.terminal import complain, flag
from capeval_core.description import describe_metric
from capeval_core.errors import did_you_mean
from capeval_core.registry import metric_of, titles_of_parts
from capeval_core.reports.html import write_report
from capeval_core.reports.systems import (
    Cell,
    Column,
    System,
    Systems,
    Test,
    cells_table,
    long_table,
    stacked_table,
)
from capeval_core.result import Result, json_text
from capeval_core.statistics import TEST, Comparison, Interval, holm
from capeval_core.values import signed

FORMATS = ("text", "markdown", "latex", "csv", "json")
LEVEL = 0.95
NAMED = 3


@dataclass(frozen=True)
class ScoredSystem:
    """A system's captions and its results, by the name of the metric.

    images, references: None where they are not known. results: by the name of the metric, and so is
    evidence, which is made when it is asked for.
    """

    name: str
    ids: Sequence[str]
    captions: Sequence[str]
    images: Sequence[Any] | None
    references: Sequence[Sequence[str]] | None
    results: dict[str, Result]
    evidence: Mapping[str, Mapping[int, Mapping[str, Any]]] = field(default_factory=dict)


def names_of_files(flag: str, paths: Sequence[str | Path]) -> list[str]:
    """The names of systems by their files: without the extension, with as many folders as tell them apart.

    Raises:
        ValueError: a file comes twice.

    >>> names_of_files("--candidates", ["runs/a/val.json", "runs/b/val.json", "test.json.gz"])
    ['a/val', 'b/val', 'test']
    """
    files = [Path(path) for path in paths]
    resolved = [path if str(path) == "-" else Path(os.path.realpath(path)) for path in files]
    for place, path in enumerate(resolved):
        if path in resolved[:place]:
            raise ValueError(f"{flag} {paths[place]} comes twice: name each system once")
    names = ["stdin" if str(path) == "-" else _stem(path) for path in files]
    for depth in range(1, max(len(path.parts) for path in resolved)):
        alike = {name for name in names if names.count(name) > 1}
        if not alike:
            break
        names = [
            "/".join([*path.parts[:-1][-depth:], _stem(path)]) if name in alike else name
            for name, path in zip(names, resolved, strict=True)
        ]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _stem(path: Path) -> str:
    return Path(path.stem).stem if path.suffix == ".gz" else path.stem


def baseline_of(given: str | None, names: Sequence[str], paths: Sequence[str | Path]) -> str | None:
    """The system that `--baseline` names, by its name or its file; else the first, None if it is alone.

    Raises:
        ValueError: no system has this name, or there is one system only.
    """
    if given is None:
        return names[0] if len(names) > 1 else None
    if len(names) == 1:
        raise ValueError(f"--baseline {given}: there is one system only, name several")
    for name, path in zip(names, paths, strict=False):
        if given in (name, str(path)):
            return name
    if given in names:
        return given
    hint = did_you_mean(given, names)
    raise ValueError(f"--baseline {given}: there is no such system{hint} (there are {', '.join(names)})")


def interval_of(result: Result) -> Interval | str:
    """The interval of a result's mean, or the reason why it has none, e.g. too few images."""
    try:
        return result.interval()
    except ValueError as error:
        return str(error)


def add_comparison_flags(parser: argparse.ArgumentParser) -> None:
    """`--baseline`, `--format`, `--digits`, `--times-100` and `--report`."""
    group = parser.add_argument_group(
        "several systems",
        "Each is tested against the baseline; Holm's correction adjusts the p-values of one metric for the "
        "number of systems that it tests.",
    )
    flag(group, "--baseline NAME", "the system to test against, by its name or file (default: the first)")
    formats = "{" + ",".join(FORMATS) + "}"
    flag(group, "--format", "format of the printed table", choices=FORMATS, metavar=formats, action="store")
    digits = "decimals of scores for readers (default: 4 in tables, 3 on the page)"
    flag(group, "--digits N", digits, choices=range(11))
    times = "scores for readers times 100, as most papers print them; JSON and CSV stay as they are"
    flag(group, "--times-100", times)
    add_report_flag(group)


def add_report_flag(group: argparse._ActionsContainer) -> None:
    text = "write a page there, index.html: the table, distributions, the worst and best captions"
    flag(group, "--report FOLDER", text)


def write_page(flags: argparse.Namespace, systems: Systems, command: Sequence[str]) -> None:
    """Write the page that `--report` asks for, and print where it is; `command` repeats it."""
    if flags.report is not None:
        shown = replace(systems, titles=titles_of_parts(), command=shlex.join(["capeval", *command]))
        say = complain if getattr(flags, "format", None) else print  # a table alone, for programs
        say(f"report  {write_report(flags.report, shown)}")


def compare_systems(
    systems: Sequence[ScoredSystem],
    baseline: str | None,
    *,
    one_run: bool = False,
    digits: int | None = None,
    times_100: bool = False,
) -> Systems:
    """The table of systems by metrics, with Holm's correction over the systems that a metric tests.

    The family of tests is a metric's, so that a further metric changes no p-value of another. `one_run`: they
    were scored together, so that signatures differ only in the number of references of a system's images.
    """
    base = next((system for system in systems if system.name == baseline), systems[0])
    cells: list[dict[str, Cell]] = [{} for _ in systems]
    for metric in systems[0].results:
        tests: list[Comparison | str | None] = [
            None if system is base else _test(system.results[metric], base.results[metric], one_run)
            for system in systems
        ]
        made = [test for test in tests if isinstance(test, Comparison)]
        adjusted = iter(holm([test.p_value for test in made]))
        for own, system, test in zip(cells, systems, tests, strict=True):
            own[metric] = _cell(system, metric, test, adjusted)
    first, tested = next(iter(systems[0].results.values())), len(systems) - 1
    compared = Systems(
        systems=[
            System(s.name, s.ids, s.captions, s.images, s.references, own)
            for s, own in zip(systems, cells, strict=True)
        ],
        columns=[_column(result) for result in systems[0].results.values()],
        baseline=baseline,
        visual=first.visual,
        level=LEVEL,
        test=TEST.format(first.visual),
        correction=f"Holm's correction for the {tested} systems that each metric tests" if tested > 1 else "",
        digits=digits,
        times_100=times_100,
    )
    return replace(compared, messages=_messages(systems, base, compared))


def _test(system: Result, baseline: Result, one_run: bool) -> Comparison | str:
    """The test of a system's mean minus the baseline's, or why there is none."""
    try:
        compare = system.compare_within_run if one_run else system.compare
        return compare(baseline, level=LEVEL)
    except ValueError as error:
        return str(error)


def _cell(
    system: ScoredSystem, metric: str, test: Comparison | str | None, adjusted: Iterator[float]
) -> Cell:
    result = system.results[metric]
    interval = interval_of(result)
    plain = None
    if isinstance(test, Comparison):
        low, high = test.interval.low, test.interval.high
        plain = Test(test.difference, low, high, test.p_value, next(adjusted), test.images, test.left_out)
    return Cell(
        mean=result.mean,
        interval=(interval.low, interval.high) if isinstance(interval, Interval) else None,
        no_interval="" if isinstance(interval, Interval) else interval,
        scores=result.scores,
        parts=result.parts,
        errors=result.errors,
        signature=result.signature,
        truncated=result.counts.truncated,
        empty=result.counts.empty,
        evidence=result.evidence or system.evidence.get(metric),
        lack=result.lack,
        test=plain,
        no_test=test if isinstance(test, str) else "",
    )


def _column(result: Result) -> Column:
    try:
        metric = metric_of(result.signature)
    except ValueError:  # of a package that is not installed here
        return Column(result.metric, result.metric, result.key, (float("nan"), float("nan")))
    about = describe_metric(metric)
    return Column(
        metric.name,
        metric.title,
        metric.key,
        metric.range,
        metric.higher_is_better,
        metric.relative,
        metric.summary,
        about.citation,
        about.address,
    )


def _messages(systems: Sequence[ScoredSystem], base: ScoredSystem, compared: Systems) -> list[str]:
    """What failed, was truncated or left out, equal things once for all systems and metrics."""
    whose: dict[str, dict[str, list[str]]] = {}
    for system, shown in zip(systems, compared.systems, strict=True):
        for metric, cell in shown.cells.items():
            total = len(cell.scores)
            counts = {"failed": len(cell.errors), "truncated": cell.truncated, "empty": cell.empty}
            counted = [f"{count:,} of {total:,} captions {name}" for name, count in counts.items() if count]
            reasons = [*counted, cell.no_interval, cell.no_test]
            if cell.test is not None and cell.test.left_out:
                difference = signed(compared.scaled(cell.test.difference), compared.decimals(4), 8)
                reasons.append(_left_out(system, base, metric, cell.test, difference))
            for reason in filter(None, reasons):
                whose.setdefault(reason, {}).setdefault(system.name, []).append(metric)
    metrics = len(compared.columns)
    return [_prefix(owners, len(systems), metrics) + reason for reason, owners in whose.items()]


def _left_out(system: ScoredSystem, base: ScoredSystem, metric: str, test: Test, difference: str) -> str:
    """Which visuals a test leaves out, so that its difference is not that of the means in the table."""
    scored = [
        {name for name, score in zip(one.ids, one.results[metric].scores, strict=True) if isfinite(score)}
        for one in (system, base)
    ]
    names = sorted(scored[0] ^ scored[1])
    count, visual = test.left_out, system.results[metric].visual
    have = f"1 {visual} has" if count == 1 else f"{count:,} {visual}s have"
    listed = ""
    if len(names) == count:  # else their ids are written in several ways
        listed = f" ({', '.join(map(repr, names[:NAMED]))}{', ...' if count > NAMED else ''})"
    return (
        f"{have} a score in only one of system and baseline{listed}: the test is over the {test.count:,} "
        f"that both have, where the difference is {difference}; the means are over all"
    )


def _prefix(owners: Mapping[str, Sequence[str]], systems: int, metrics: int) -> str:
    """The systems that a message is about, with the metrics where they are not all; empty for everything.

    >>> _prefix({"a": ["bleu", "cider"], "b": ["bleu"]}, 2, 2), _prefix({"a": ["bleu"], "b": ["bleu"]}, 2, 1)
    ('a, b (bleu): ', '')
    """
    if len(owners) == systems and all(len(own) == metrics for own in owners.values()):
        return ""
    named = [name if len(own) == metrics else f"{name} ({', '.join(own)})" for name, own in owners.items()]
    return f"{', '.join(named)}: "


def show(systems: Systems, form: str) -> str:
    """The table in one of `FORMATS`, without the last line break."""
    if form == "json":
        return json_text(systems_content(systems)).rstrip("\n")
    if form == "csv":
        return long_table(systems).csv().rstrip("\n")
    if form == "text":
        return stacked_table(systems).text()
    table = cells_table(systems)
    return (table.markdown() if form == "markdown" else table.latex()).rstrip("\n")


def systems_content(systems: Systems, scored: Sequence[ScoredSystem] | None = None) -> dict[str, Any]:
    """The table in JSON's types; with what it is made of, the results of every caption too."""
    content = []
    for place, system in enumerate(systems.systems):
        results = []
        for column in systems.columns:
            cell = system.cells[column.name]
            test = None
            if cell.test is not None:
                test = {**vars(cell.test), "significant": systems.significant(cell)}
            if scored is None:
                own = _content_of(cell, column, systems.level)
            else:
                own = result_content(scored[place].results[column.name])
            results.append({**own, "test": test})
        texts = {} if scored is None else {"ids": list(system.ids), "captions": list(system.captions)}
        content.append({"system": system.name, **texts, "results": results})
    return {
        "baseline": systems.baseline,
        "test": systems.test,
        "correction": systems.correction,
        "level": systems.level,
        "messages": list(systems.messages),
        "systems": content,
    }


def result_content(result: Result) -> dict[str, Any]:
    """A result with its interval, and its evidence if it was kept, in JSON's types."""
    interval = interval_of(result)
    content = {**result.to_dict(), "interval": vars(interval) if isinstance(interval, Interval) else None}
    if result.evidence is not None:
        content["evidence"] = [result.evidence[i] for i in range(len(result.scores))]
    return content


def _content_of(cell: Cell, column: Column, level: float) -> dict[str, Any]:
    """A cell without what it says of single captions."""
    bounds = None if cell.interval is None else {"low": cell.interval[0], "high": cell.interval[1]}
    counts = {"captions": len(cell.scores), "failed": len(cell.errors)}
    return {
        "metric": column.name,
        "key": column.key,
        "mean": cell.mean,
        "interval": None if bounds is None else {**bounds, "level": level},
        "counts": {**counts, "truncated": cell.truncated, "empty": cell.empty},
        "signature": cell.signature,
    }
