"""`capeval compare`: is one system better than others, or is it chance? And what commands share that compare
systems: their names, the test against a baseline, tables in all formats, the page."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan
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
from capeval_core.result import Result, json_text
from capeval_core.statistics import TEST, Comparison, NoTestError, holm

_FORMATS = ("text", "markdown", "latex", "csv", "json")
_LEVEL = 0.95


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
    check_report(flags.report)
    systems, one_run = _read(flags.files)
    if len(systems) == 1:
        parser.error(f"{flags.files[0]} holds one system: name the file of another one to compare with")
    names = [system.name for system in systems]
    baseline = baseline_of(flags.baseline, names, flags.files if len(flags.files) == len(names) else ())
    for system in systems[1:]:
        if system.cells.keys() != systems[0].cells.keys():
            mine, others = (", ".join(one.cells) for one in (system, systems[0]))
            fault = f"{system.name} was scored by {mine} and {names[0]} by {others}"
            raise ValueError(f"{fault}: score both by the same metrics")
    plain = flags.format is flags.baseline is flags.digits is None and not flags.times_100
    alone = plain and len(systems) == 2 and all(len(system.cells) == 1 for system in systems)
    if alone:
        first, second = (cell.result for system in systems for cell in system.cells.values())
        _print_test(first, second, flags.files if len(flags.files) == 2 else names)
        if flags.report is None:
            return 0
    if flags.visuals is not None:
        visual = next(iter(systems[0].cells.values())).result.visual
        problems, there = Problems(), Folder(flags.visuals, visual)
        paths = there.match(list(dict.fromkeys(one for own in systems for one in own.ids)), problems)
        problems.raise_if_any()
        systems = [replace(own, images=[paths[one] for one in own.ids]) for own in systems]
    compared = compare_systems(systems, baseline, one_run=one_run, flags=flags)
    if not alone:
        print(show(compared, flags.format))
    write_page(flags, compared, ["compare", *arguments])
    return 0


def _read(files: Sequence[Path]) -> tuple[list[System], bool]:
    """The systems of all files, and whether one run scored them."""
    if len(files) == 2 and files[0] == files[1]:  # to see that nothing differs
        names = [files[0].stem, f"{files[0].stem} (again)"]
    else:
        names = names_of_files("FILE", files)
    systems: list[System] = []
    for name, path in zip(names, files, strict=True):
        for own, system in _read_systems(path).items():
            taken = own in [other.name for other in systems]
            systems.append(replace(system, name=name if own is None else f"{name}/{own}" if taken else own))
    return systems, len(files) == 1


def _read_systems(path: Path) -> dict[str | None, System]:
    """The systems in a file of `capeval score --json` by their names, None for one by one metric."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not (isinstance(content, Mapping) and "systems" in content):
            return {None: _system(content, [content])}
        found: dict[str | None, System] = {
            str(one["system"]): _system(one, one["results"]) for one in content["systems"]
        }
        if not found:
            raise ValueError("it has no system")
        return found
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(
            f"{path} is not a file of `capeval score --json`, or is damaged ({reason})"
        ) from error


def _system(content: Any, results: Sequence[Any]) -> System:
    cells = [cell_of(Result.from_dict(result)) for result in results]
    count = len(cells[0].result.scores)
    ids, captions = ([str(one) for one in content.get(key) or [""] * count] for key in ("ids", "captions"))
    return System("", ids, captions, {cell.result.metric: cell for cell in cells})


def _print_test(a: Result, b: Result, names: Sequence[object]) -> None:
    """Two systems by one metric, with a test where there are images enough."""
    test: Comparison | NoTestError
    try:
        test = a.compare(b)
        low, high = signed(test.interval.low), signed(test.interval.high)
        outcome = [
            ["interval", f"{low} to {high} ({test.interval.level:.0%})"],
            ["test", f"{p_in_words(test.p_value, test.interval.level)}, {test.test}"],
            ["verdict", test.verdict],
        ]
    except NoTestError as none:
        test, outcome = none, [["test", f"none: {none}"]]
    if test.left_out:
        visuals = f"{a.visual} has" if test.left_out == 1 else f"{a.visual}s have"
        reason = "a score in only one of the files: left out, of the means too"
        complain(f"warning: {test.left_out:,} {visuals} {reason}")
    summary(
        [_column(a).title, f"{test.means[0]:.4f} ({names[0]})"],
        ["", f"{test.means[1]:.4f} ({names[1]})"],
        ["difference", signed(test.means[0] - test.means[1])],
        *outcome,
        [f"{a.visual}s", f"{test.images:,} ({test.left_out:,} left out)"],
        ["signature", a.signature],
    )


# what commands share that compare systems


def names_of_files(flag: str, paths: Sequence[str | Path]) -> list[str]:
    """The names of systems by their files: without folders and extension, where these tell them apart."""
    files = [path if str(path) == "-" else Path(os.path.realpath(path)) for path in map(Path, paths)]
    for place, path in enumerate(files):
        if path in files[:place]:
            raise ValueError(f"{flag} {paths[place]} comes twice: name each system once")
    stems = [Path(path.stem).stem if path.suffix == ".gz" else path.stem for path in files]
    names = ["stdin" if stem == "-" else stem for stem in stems]
    names = [str(path) if names.count(name) > 1 else name for name, path in zip(names, paths, strict=True)]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def baseline_of(given: str | None, names: Sequence[str], paths: Sequence[str | Path]) -> str | None:
    """The system that `--baseline` names, by its name or its file; else the first, None if it is alone."""
    if given is None:
        return names[0] if len(names) > 1 else None
    if len(names) == 1:
        raise ValueError(f"--baseline {given}: there is one system only, name several")
    known = dict(zip(map(str, paths), names, strict=False)) | {name: name for name in names}
    if given not in known:
        hint = did_you_mean(given, names)
        raise ValueError(f"--baseline {given}: there is no such system{hint} (there are {', '.join(names)})")
    return known[given]


def add_comparison_flags(parser: argparse.ArgumentParser) -> None:
    """`--baseline`, `--format`, `--digits`, `--times-100` and `--report`."""
    group = parser.add_argument_group("several systems, each tested against the baseline")
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


def cell_of(result: Result, evidence: Mapping[int, Mapping[str, Any]] | None = None) -> Cell:
    """A result with its interval, or the reason why it has none, e.g. too few images."""
    cell = Cell(result, result.evidence or evidence)
    try:
        return replace(cell, interval=result.interval())
    except ValueError as error:
        reason = f"no interval, as {result.relative}" if result.relative else str(error)
        return replace(cell, no_interval=reason)


def compare_systems(
    systems: Sequence[System],
    baseline: str | None,
    *,
    one_run: bool = True,
    flags: argparse.Namespace | None = None,
) -> Systems:
    """The table of systems by metrics, with Holm's correction over the systems that a metric tests.

    The family of tests is a metric's, so that a further metric changes no p-value of another. `one_run`: they
    were scored together, so that signatures differ only in the number of references of a system's images.
    """
    base = next((system for system in systems if system.name == baseline), systems[0])
    cells: dict[str, dict[str, Cell]] = {system.name: {} for system in systems}
    caught = ValueError if one_run else NoTestError  # others refuse results of other settings
    for metric, of_base in base.cells.items():
        tests: dict[str, Comparison] = {}
        for own in systems:
            cells[own.name][metric] = own.cells[metric]
            if own is base:
                continue
            result = own.cells[metric].result
            try:
                test = result.compare_within_run if one_run else result.compare
                tests[own.name] = test(of_base.result, level=_LEVEL)
            except caught as error:
                cells[own.name][metric] = replace(own.cells[metric], no_test=str(error))
        adjusted = holm([test.p_value for test in tests.values()])
        for (name, test), p_value in zip(tests.items(), adjusted, strict=True):
            significant, bounds = p_value < 1 - _LEVEL, (test.interval.low, test.interval.high)
            plain = Test(
                test.difference, *bounds, test.p_value, p_value, significant, test.images, test.left_out
            )
            cells[name][metric] = replace(cells[name][metric], test=plain)
    results, tested = [cell.result for cell in base.cells.values()], len(systems) - 1
    compared = Systems(
        [replace(system, cells=cells[system.name]) for system in systems],
        columns=[_column(result) for result in results],
        baseline=baseline,
        visual=results[0].visual,
        level=_LEVEL,
        test=TEST.format(results[0].visual),
        correction=f"Holm's correction for the {tested} systems that each metric tests" if tested > 1 else "",
        digits=getattr(flags, "digits", None),
        times_100=getattr(flags, "times_100", False),
    )
    return replace(compared, messages=_messages(compared, base))


def _column(result: Result) -> Column:
    try:
        metric = metric_of(result.signature)
    except ValueError:  # of a package that is not installed here
        return Column(result.metric, result.metric, (nan, nan))
    about, facts = describe_metric(metric), ("range", "higher_is_better", "relative", "summary")
    shown = {name: getattr(metric, name) for name in facts}
    return Column(metric.name, metric.title, **shown, citation=about.citation, address=about.address)


def _messages(compared: Systems, base: System) -> list[str]:
    """What failed, was truncated or left out, equal things once, each with the systems and metrics it is of.

    A metric is named where it is not all of them, and so are systems; what is of everything names none.
    """
    whose: dict[str, dict[str, list[str]]] = {}
    for system in compared.systems:
        for metric, cell in system.cells.items():
            counts = cell.result.counts
            special = {"failed": counts.failed, "truncated": counts.truncated, "empty": counts.empty}
            reasons = [f"{n:,} of {counts.captions:,} captions {name}" for name, n in special.items() if n]
            reasons += [cell.no_interval, cell.no_test]
            if cell.test is not None and cell.test.left_out:
                reasons.append(_left_out(system, base, metric, compared))
            for reason in filter(None, reasons):
                whose.setdefault(reason, {}).setdefault(system.name, []).append(metric)
    messages = []
    for reason, owners in whose.items():
        every = {name: len(own) == len(compared.columns) for name, own in owners.items()}
        named = [name if every[name] else f"{name} ({', '.join(own)})" for name, own in owners.items()]
        of_all = len(owners) == len(compared.systems) and all(every.values())
        messages.append(reason if of_all else f"{', '.join(named)}: {reason}")
    return messages


def _left_out(system: System, base: System, metric: str, compared: Systems) -> str:
    """Which visuals a test leaves out, so that its difference is not that of the means in the table."""
    results, test = [one.cells[metric].result for one in (system, base)], system.cells[metric].test
    scored = [
        {name for name, score in zip(one.ids, result.scores, strict=True) if isfinite(score)}
        for one, result in zip((system, base), results, strict=True)
    ]
    names = sorted(scored[0] ^ scored[1])
    assert test is not None
    have = f"1 {compared.visual} has" if test.left_out == 1 else f"{test.left_out:,} {compared.visual}s have"
    listed = f" ({some_of(names)})" if len(names) == test.left_out else ""  # else ids differ by their form
    difference = signed(compared.scaled(test.difference), compared.decimals(4), 8)
    return (
        f"{have} a score in only one of system and baseline{listed}: the test is over the {test.count:,} "
        f"that both have, where the difference is {difference}; the means are over all"
    )


def show(systems: Systems, form: str | None) -> str:
    """The table in one of `_FORMATS`, without the last line break."""
    if form == "json":
        return json_text(systems_content(systems, whole=False)).rstrip("\n")
    if form == "csv":
        return long_table(systems).csv().rstrip("\n")
    if form in (None, "text"):
        return stacked_table(systems).text()
    table = cells_table(systems)
    return (table.markdown() if form == "markdown" else table.latex()).rstrip("\n")


def systems_content(systems: Systems, *, whole: bool = True) -> dict[str, Any]:
    """The table in JSON's types; as a whole, or without the results of every caption."""
    content: list[dict[str, Any]] = []
    for system in systems.systems:
        results = [
            {**cell_content(cell, whole=whole), "test": cell.test and vars(cell.test)}
            for cell in system.cells.values()
        ]
        texts = {"ids": list(system.ids), "captions": list(system.captions)} if whole else {}
        content.append({"system": system.name, **texts, "results": results})
    names = ("baseline", "test", "correction", "level", "messages")
    return {**{name: getattr(systems, name) for name in names}, "systems": content}


def cell_content(cell: Cell, *, whole: bool = True) -> dict[str, Any]:
    """A result with its interval, and its evidence if it was kept, in JSON's types."""
    content = {**cell.result.to_dict(), "interval": cell.interval and vars(cell.interval)}
    if not whole:
        return {name: content[name] for name in ("metric", "key", "mean", "interval", "counts", "signature")}
    if cell.result.evidence is not None:
        content["evidence"] = [cell.result.evidence[i] for i in range(len(cell.result.scores))]
    return content
