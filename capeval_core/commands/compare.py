"""`capeval compare`: is one system better than others, or is it chance? And what commands share that compare
systems: their names, the test against a baseline, tables in all formats, the page."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from capeval_core.commands.terminal import Parser, complain, flag, summary
from capeval_core.description import describe_metric
from capeval_core.errors import Problems, did_you_mean, p_in_words, signed
from capeval_core.inputs.folder import Folder, some_of
from capeval_core.registry import metric_of, titles_of_parts
from capeval_core.reports.html import check_report, write_report
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
from capeval_core.result import Result, json_text, not_comparable
from capeval_core.statistics import TEST, Comparison, Interval, NoTestError, holm

_FORMATS = ("text", "markdown", "latex", "csv", "json")
_LEVEL = 0.95
_SYSTEMS = "systems"
"""The key of a file of `capeval score --json` that holds several systems or metrics."""


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


def run(arguments: list[str]) -> int:
    parser = Parser(
        "compare",
        "A.json B.json [C.json ...] [options]",
        "Paired tests of systems that were scored on the same images.",
        "Files are those of `capeval score ... --json OUT`, scored with the same settings: of one system "
        "each, or of several.",
    )
    flag(parser, "files", "results of systems", metavar="FILE", type=Path, nargs="+")
    add_comparison_flags(parser)
    parser.add_argument(
        "--images", "--videos", dest="visuals", metavar="FOLDER", type=Path, help="those that --report shows"
    )
    flags = parser.read(arguments)
    if flags.report is not None:
        check_report(flags.report)
    systems, one_run = _read(flags.files)
    if len(systems) == 1:
        parser.error(f"{flags.files[0]} holds one system: name the file of another one to compare with")
    names = [system.name for system in systems]
    baseline = baseline_of(flags.baseline, names, flags.files if len(flags.files) == len(names) else ())
    _refuse_different(systems, next(system for system in systems if system.name == baseline), one_run)
    plain = flags.format is flags.baseline is flags.digits is None and not flags.times_100
    alone = plain and len(systems) == 2 and all(len(system.results) == 1 for system in systems)
    if alone:
        first, second = (next(iter(system.results.values())) for system in systems)
        _print_test(first, second, flags.files if len(flags.files) == 2 else names)
        if flags.report is None:
            return 0
    if flags.visuals is not None:
        problems, there = Problems(), Folder(flags.visuals, next(iter(systems[0].results.values())).visual)
        paths = there.match(list(dict.fromkeys(one for own in systems for one in own.ids)), problems)
        problems.raise_if_any()
        systems = [replace(own, images=[paths[one] for one in own.ids]) for own in systems]
    compared = compare_systems(
        systems, baseline, one_run=one_run, digits=flags.digits, times_100=flags.times_100
    )
    if not alone:
        print(show(compared, flags.format or "text"))
    write_page(flags, compared, ["compare", *arguments])
    return 0


def _read(files: Sequence[Path]) -> tuple[list[ScoredSystem], bool]:
    """The systems of all files, and whether one run scored them."""
    if len(files) == 2 and files[0] == files[1]:  # to see that nothing differs
        names = [files[0].stem, f"{files[0].stem} (again)"]
    else:
        names = names_of_files("FILE", files)
    systems: list[ScoredSystem] = []
    for name, path in zip(names, files, strict=True):
        of_file, several = _read_systems(path)
        for system in of_file:
            own = system.name if several else name
            if several and own in [other.name for other in systems]:
                own = f"{name}/{own}"
            systems.append(replace(system, name=own))
    return systems, len(files) == 1


def _read_systems(path: Path) -> tuple[list[ScoredSystem], bool]:
    """The systems in a file of `capeval score --json`, and whether it is of a run of several."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file: name a file of `capeval score --json`")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not (isinstance(content, Mapping) and _SYSTEMS in content):
            return [_system(path.stem, content, [content])], False
        found = [_system(one["system"], one, one["results"]) for one in content[_SYSTEMS]]
        if not found:
            raise ValueError("it has no system")
        return found, True
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(
            f"{path} is not a file of `capeval score --json`, or is damaged ({reason})"
        ) from error


def _system(name: str, content: Any, results: Sequence[Any]) -> ScoredSystem:
    read = [Result.from_dict(result) for result in results]
    ids, captions = (
        [str(one) for one in content.get(key) or [""] * len(read[0].scores)] for key in ("ids", "captions")
    )
    return ScoredSystem(str(name), ids, captions, None, None, {result.metric: result for result in read})


def _refuse_different(systems: Sequence[ScoredSystem], baseline: ScoredSystem, one_run: bool) -> None:
    """Refuse systems whose numbers are not comparable: of other metrics or other settings."""
    for system in systems:
        if system.results.keys() != baseline.results.keys():
            mine, others = (", ".join(one.results) for one in (system, baseline))
            raise ValueError(
                f"{system.name} was scored by {mine} and {baseline.name} by {others}: score both by the same "
                "metrics"
            )
        for metric, result in system.results.items():
            other = baseline.results[metric]
            fields = set(result.signature.split("|")) ^ set(other.signature.split("|"))
            if not fields or (one_run and all(field.startswith("refs:") for field in fields)):
                continue
            fix = (
                "each was weighed by its own texts: score both in one command, which weighs them by the "
                f"texts of both, capeval score {metric} --candidates FILE FILE ..."
            )
            raise not_comparable(other.signature, result.signature, fix)


def _print_test(a: Result, b: Result, names: Sequence[object]) -> None:
    """Two systems by one metric, with a test where there are images enough."""
    try:
        test = a.compare(b)
        means, images, left_out = test.means, test.images, test.left_out
        low, high = signed(test.interval.low), signed(test.interval.high)
        outcome = [
            ["interval", f"{low} to {high} ({test.interval.level:.0%})"],
            ["test", f"{p_in_words(test.p_value, test.interval.level)}, {test.test}"],
            ["verdict", test.verdict],
        ]
    except NoTestError as none:
        means, images, left_out = none.means, none.images, none.left_out
        outcome = [["test", f"none: {none}"]]
    if left_out:
        have, are = ("s have", "they are") if left_out > 1 else (" has", "it is")
        complain(
            f"warning: {left_out:,} {a.visual}{have} a score in only one of the files: {are} left out, of "
            "the means too"
        )
    summary(
        [_column(a).title, f"{means[0]:.4f} ({names[0]})"],
        ["", f"{means[1]:.4f} ({names[1]})"],
        ["difference", signed(means[0] - means[1])],
        *outcome,
        [f"{a.visual}s", f"{images:,} ({left_out:,} left out)"],
        ["signature", a.signature],
    )


# what commands share that compare systems


def names_of_files(flag: str, paths: Sequence[str | Path]) -> list[str]:
    """The names of systems by their files: without the extension, with as many folders as tell them apart.

    Raises:
        ValueError: a file comes twice.
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
    formats = "{" + ",".join(_FORMATS) + "}"
    flag(group, "--format", "format of the printed table", choices=_FORMATS, metavar=formats, action="store")
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
    cells: dict[str, dict[str, Cell]] = {system.name: {} for system in systems}
    for metric in systems[0].results:
        tests = {
            own.name: _test(own.results[metric], base.results[metric], one_run)
            for own in systems
            if own is not base
        }
        made = {name: test for name, test in tests.items() if isinstance(test, Comparison)}
        adjusted = dict(zip(made, holm([test.p_value for test in made.values()]), strict=True))
        for own in systems:
            cells[own.name][metric] = _cell(own, metric, tests.get(own.name, ""), adjusted.get(own.name, 1.0))
    first, tested = next(iter(systems[0].results.values())), len(systems) - 1
    compared = Systems(
        [System(s.name, s.ids, s.captions, s.images, s.references, cells[s.name]) for s in systems],
        columns=[_column(result) for result in systems[0].results.values()],
        baseline=baseline,
        visual=first.visual,
        level=_LEVEL,
        test=TEST.format(first.visual),
        correction=f"Holm's correction for the {tested} systems that each metric tests" if tested > 1 else "",
        digits=digits,
        times_100=times_100,
    )
    return replace(compared, messages=_messages(systems, base, compared))


def _test(system: Result, baseline: Result, one_run: bool) -> Comparison | str:
    """The test of a system's mean minus the baseline's, or why there is none."""
    try:
        return (system.compare_within_run if one_run else system.compare)(baseline, level=_LEVEL)
    except ValueError as error:
        return str(error)


def _cell(system: ScoredSystem, metric: str, test: Comparison | str, adjusted: float) -> Cell:
    result, interval, plain = system.results[metric], interval_of(system.results[metric]), None
    if isinstance(test, Comparison):
        bounds = test.interval.low, test.interval.high
        plain = Test(test.difference, *bounds, test.p_value, adjusted, test.images, test.left_out)
    return Cell(
        **{
            name: getattr(result, name) for name in ("mean", "scores", "parts", "errors", "signature", "lack")
        },
        interval=None if isinstance(interval, str) else (interval.low, interval.high),
        no_interval=interval if isinstance(interval, str) else "",
        truncated=result.counts.truncated,
        empty=result.counts.empty,
        evidence=result.evidence or system.evidence.get(metric),
        test=plain,
        no_test=test if isinstance(test, str) else "",
    )


def _column(result: Result) -> Column:
    try:
        metric = metric_of(result.signature)
    except ValueError:  # of a package that is not installed here
        return Column(result.metric, result.metric, result.key, (float("nan"), float("nan")))
    about, facts = describe_metric(metric), ("range", "higher_is_better", "relative", "summary")
    shown = {name: getattr(metric, name) for name in facts}
    return Column(
        metric.name, metric.title, metric.key, **shown, citation=about.citation, address=about.address
    )


def _messages(systems: Sequence[ScoredSystem], base: ScoredSystem, compared: Systems) -> list[str]:
    """What failed, was truncated or left out, equal things once, each with the systems and metrics it is of.

    A metric is named where it is not all of them, and so are systems; what is of everything names none.
    """
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
    messages = []
    for reason, owners in whose.items():
        every = {name: len(own) == len(compared.columns) for name, own in owners.items()}
        named = [name if every[name] else f"{name} ({', '.join(own)})" for name, own in owners.items()]
        of_all = len(owners) == len(systems) and all(every.values())
        messages.append(reason if of_all else f"{', '.join(named)}: {reason}")
    return messages


def _left_out(system: ScoredSystem, base: ScoredSystem, metric: str, test: Test, difference: str) -> str:
    """Which visuals a test leaves out, so that its difference is not that of the means in the table."""
    scored = [
        {name for name, score in zip(one.ids, one.results[metric].scores, strict=True) if isfinite(score)}
        for one in (system, base)
    ]
    names = sorted(scored[0] ^ scored[1])
    count, visual = test.left_out, system.results[metric].visual
    have = f"1 {visual} has" if count == 1 else f"{count:,} {visual}s have"
    listed = f" ({some_of(names)})" if len(names) == count else ""  # else ids are written several ways
    return (
        f"{have} a score in only one of system and baseline{listed}: the test is over the {test.count:,} "
        f"that both have, where the difference is {difference}; the means are over all"
    )


def show(systems: Systems, form: str) -> str:
    """The table in one of `_FORMATS`, without the last line break."""
    if form == "json":
        return json_text(systems_content(systems)).rstrip("\n")
    if form == "csv":
        return long_table(systems).csv().rstrip("\n")
    if form == "text":
        return stacked_table(systems).text()
    table = cells_table(systems)
    return (table.markdown() if form == "markdown" else table.latex()).rstrip("\n")


def systems_content(systems: Systems, scored: Sequence[ScoredSystem] = ()) -> dict[str, Any]:
    """The table in JSON's types; with what it is made of, the results of every caption too."""
    content: list[dict[str, Any]] = []
    for place, system in enumerate(systems.systems):
        results = []
        for column in systems.columns:
            cell = system.cells[column.name]
            own = result_content(scored[place].results[column.name]) if scored else _numbers(cell, column)
            tested = cell.test and {**vars(cell.test), "significant": systems.significant(cell)}
            results.append({**own, "test": tested})
        texts = {"ids": list(system.ids), "captions": list(system.captions)} if scored else {}
        content.append({"system": system.name, **texts, "results": results})
    names = ("baseline", "test", "correction", "level", "messages")
    return {**{name: getattr(systems, name) for name in names}, "systems": content}


def result_content(result: Result) -> dict[str, Any]:
    """A result with its interval, and its evidence if it was kept, in JSON's types."""
    interval = interval_of(result)
    content = {**result.to_dict(), "interval": vars(interval) if isinstance(interval, Interval) else None}
    if result.evidence is not None:
        content["evidence"] = [result.evidence[i] for i in range(len(result.scores))]
    return content


def _numbers(cell: Cell, column: Column) -> dict[str, Any]:
    """A cell without what it says of single captions."""
    counts = {"captions": len(cell.scores), "failed": len(cell.errors)}
    return {
        "metric": column.name,
        "key": column.key,
        "mean": cell.mean,
        "interval": cell.interval and {"low": cell.interval[0], "high": cell.interval[1], "level": _LEVEL},
        "counts": {**counts, "truncated": cell.truncated, "empty": cell.empty},
        "signature": cell.signature,
    }
