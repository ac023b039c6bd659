"""`capeval compare`: is one system better, or is it chance? And what commands share that compare systems."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from capeval_core.commands.common import check_page
from capeval_core.commands.terminal import complain, parser_of
from capeval_core.errors import Problems, counted, did_you_mean, signed
from capeval_core.inputs.joining import Folder
from capeval_core.registry import metric_of, titles_of_parts
from capeval_core.reports.html import write_report
from capeval_core.reports.tables import Cell, System, Systems, Table, cells_table, long_table, stacked_table
from capeval_core.result import Result, json_text
from capeval_core.statistics import TEST, Comparison, NoTestError, holm

_LEVEL = 0.95
_BRIEF = ("metric", "key", "mean", "corpus", "interval", "counts", "signature", "test")


def run(arguments: list[str]) -> int:
    parser = parser_of("compare", "compare", "comparison")
    flags = parser.read(arguments)
    check_page(flags.report)
    systems = _read(flags.files)
    if len(systems) == 1:
        parser.error(f"{flags.files[0]} holds one system: name the file of another one to compare with")
    names = [system.name for system in systems]
    baseline = baseline_of(flags.baseline, names, flags.files if len(flags.files) == len(names) else ())
    for system in systems[1:]:
        if system.cells.keys() != systems[0].cells.keys():
            mine, others = (", ".join(one.cells) for one in (system, systems[0]))
            fault = f"{system.name} was scored by {mine} and {names[0]} by {others}"
            raise ValueError(f"{fault}: score both by the same metrics")
    if flags.visuals is not None:
        visual = next(iter(systems[0].cells.values())).result.visual
        problems, there = Problems(), Folder(flags.visuals, visual)
        ids = dict.fromkeys(image_id for system in systems for image_id in system.ids)
        paths = there.match({image_id: image_id for image_id in ids}, problems)
        problems.raise_if_any()
        systems = [replace(own, images=[paths[one] for one in own.ids]) for own in systems]
    compared = compare_systems(systems, baseline, one_run=len(flags.files) == 1, flags=flags)
    print(show(compared, flags.format))
    plain = flags.format is None and flags.digits is None and not flags.times_100
    for column in compared.columns if len(systems) == 2 and plain else ():
        base, other = sorted(systems, key=lambda system: system.name != baseline)
        result, of_base = (system.cells[column.name].result for system in (other, base))
        with suppress(ValueError):  # the table says why there is none
            test = result.compare_within_run(of_base, level=_LEVEL)
            print(f"{column.title}, {other.name} minus {base.name}: {test}")
    write_page(flags, compared, ["compare", *arguments])
    return 0


def _read(files: Sequence[Path]) -> list[System]:
    systems: list[System] = []
    again = len(files) == 2 and files[0] == files[1]  # to see that nothing differs
    names = [files[0].stem, f"{files[0].stem} (again)"] if again else names_of_files("FILE", files)
    for name, path in zip(names, files, strict=True):
        for system in _systems_in(path):
            taken = system.name in [other.name for other in systems]
            own = f"{name}/{system.name}" if taken else system.name
            systems.append(replace(system, name=own if system.name else name))
    return systems


def _systems_in(path: Path) -> list[System]:
    """The systems in a file of `capeval score --json`; one by one metric has no name."""
    systems = []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        several = isinstance(content, Mapping) and "systems" in content
        for one in content["systems"] if several else [content]:
            results = [Result.from_dict(result) for result in (one["results"] if several else [content])]
            empty = [""] * len(results[0].scores)
            ids, captions = ([str(text) for text in one.get(key) or empty] for key in ("ids", "captions"))
            cells = {result.metric: cell_of(result) for result in results}
            systems.append(System(str(one["system"]) if several else "", ids, captions, cells))
        if not systems:
            raise ValueError("it has no system")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        fault = f"is not a file of `capeval score --json`, or is damaged ({reason})"
        raise ValueError(f"{path} {fault}") from error
    return systems


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


def write_page(flags: argparse.Namespace, systems: Systems, command: Sequence[str]) -> None:
    """Write the page that `--report` asks for, and print where it is; `command` repeats it."""
    if flags.report is not None:
        page = write_report(flags.report, systems, shlex.join(["capeval", *command]), titles_of_parts())
        say = complain if getattr(flags, "format", None) else print  # a table alone, for programs
        say(f"report  {page}")


def cell_of(result: Result, evidence: Mapping[int, Mapping[str, Any]] | None = None) -> Cell:
    """A result with its interval, or the reason why it has none, e.g. too few images."""
    cell = Cell(result, result.evidence or evidence)
    try:
        return replace(cell, interval=result.interval())
    except ValueError as error:
        reason = f"no interval, as {result.relative}" if result.relative else str(error)
        return replace(cell, no_interval=reason)


def compare_systems(
    systems: Sequence[System], baseline: str | None, *, one_run: bool = True, flags: Any = None
) -> Systems:
    """The table of systems by metrics; Holm's correction is over the systems that one metric tests."""
    base = next((system for system in systems if system.name == baseline), systems[0])
    cells = {system.name: dict(system.cells) for system in systems}
    caught = ValueError if one_run else NoTestError  # others refuse results of other settings
    for metric, of_base in base.cells.items():
        tests: dict[str, Comparison] = {}
        for own in (system for system in systems if system is not base):
            result = own.cells[metric].result
            try:
                test = result.compare_within_run if one_run else result.compare
                tests[own.name] = test(of_base.result, level=_LEVEL)
            except caught as error:
                reason = str(error)
                if left_out := getattr(error, "left_out", 0):
                    have = "has" if left_out == 1 else "have"
                    alone = f"{counted(left_out, result.visual)} {have} a score in only one"
                    reason += f"; {alone}, so that the means are of different {result.visual}s"
                cells[own.name][metric] = replace(own.cells[metric], no_test=reason)
        adjusted = holm([test.p_value for test in tests.values()])
        for (name, test), p_value in zip(tests.items(), adjusted, strict=True):
            low, high = (test.interval.low, test.interval.high)
            tested = {"difference": test.difference, "low": low, "high": high, "p_value": test.p_value}
            tested |= {"adjusted": p_value, "significant": p_value < 1 - _LEVEL}
            tested |= {"count": test.images, "left_out": test.left_out}
            cells[name][metric] = replace(cells[name][metric], test=tested, comparison=test)
    results, others = [cell.result for cell in base.cells.values()], len(systems) - 1
    compared = Systems(
        [replace(system, cells=cells[system.name]) for system in systems],
        columns=[_facts(result) for result in results],
        baseline=baseline,
        visual=results[0].visual,
        level=_LEVEL,
        test=TEST.format(results[0].visual),
        correction=f"Holm's correction for the {others} systems that each metric tests" if others > 1 else "",
        digits=getattr(flags, "digits", None),
        times_100=getattr(flags, "times_100", False),
    )
    return replace(compared, messages=_messages(compared))


def _facts(result: Result) -> Any:
    """The class of the metric of a result, or what stands for it."""
    try:
        return metric_of(result.signature)
    except ValueError:  # of a package that is not installed here
        facts: dict[str, Any] = {"relative": None, "summary": "", "paper": "", "higher_is_better": True}
        facts["part_titles"] = {}
        return SimpleNamespace(name=result.metric, title=result.metric, range=(nan, nan), **facts)


def _messages(compared: Systems) -> list[str]:
    """What failed, was truncated or left out, once each; where it is not of all, with systems and metrics."""
    whose: dict[str, list[str]] = {}

    def shown(difference: float) -> str:
        return signed(compared.scaled(difference), compared.decimals(4))

    for system in compared.systems:
        for column in compared.columns:
            cell = system.cells[column.name]
            counts = cell.result.counts
            special = {"failed": counts.failed, "truncated": counts.truncated, "empty": counts.empty}
            reasons = [f"{n:,} of {counts.captions:,} captions {name}" for name, n in special.items() if n]
            reasons += [cell.result.unseen, cell.no_interval, cell.no_test]
            if (test := cell.comparison) is not None:
                reasons.append(test.unevenness(shown))
                if test.left_out:
                    reasons.append(
                        f"left out of the test, not of the means: {counted(test.left_out, compared.visual)} "
                        f"with a score in only one of system and baseline; over the {test.images:,} that "
                        f"both have the difference is {shown(test.difference)}"
                    )
            owner = system.name if len(compared.columns) == 1 else f"{system.name} by {column.title}"
            for reason in filter(None, reasons):
                whose.setdefault(reason, []).append(owner)
    cells = len(compared.systems) * len(compared.columns)
    return [
        reason if len(owners) == cells else f"{', '.join(owners)}: {reason}"
        for reason, owners in whose.items()
    ]


@dataclass(frozen=True)
class Groups:
    """The results of groups of captions, by their label in a column of the user's."""

    column: str
    by_label: Mapping[str, Systems]

    @classmethod
    def of(cls, column: str, compared: Systems) -> Groups:
        """The groups of compared systems, by the labels of their captions."""
        cells: dict[str, dict[str, dict[str, Cell]]] = {}
        for system in compared.systems:
            for metric, cell in system.cells.items():
                for label, result in cell.result.by(system.labels or []).items():
                    cells.setdefault(label, {}).setdefault(system.name, {})[metric] = cell_of(result)
        by_label = {}
        for label, of_systems in cells.items():
            systems = [
                replace(system, cells=of_systems[system.name])
                for system in compared.systems
                if system.name in of_systems
            ]
            alone = replace(compared, systems=systems, baseline=None, test="", correction="")
            by_label[label] = replace(alone, messages=_messages(alone))
        return cls(column, by_label)

    def as_systems(self) -> Systems:
        """A row for each group, and for each system where there are several, in one table."""
        rows: list[System] = []
        for label, systems in self.by_label.items():
            for system in systems.systems:
                result = next(iter(system.cells.values())).result
                name = f"{label or '(none)'} ({result.counts.captions:,})"
                several = any(len(own.systems) > 1 for own in self.by_label.values())
                rows.append(replace(system, name=f"{system.name}, {name}" if several else name))
        first = next(iter(self.by_label.values()))
        table = replace(first, systems=rows, messages=(), ranked=False)
        weighed = [
            column.title
            for column in first.columns
            if "|statistics:" in rows[0].cells[column.name].result.signature
        ]
        messages = _messages(table)
        if weighed:
            messages.append(f"{', '.join(weighed)} of a group: by the statistics of the whole set")
        return replace(table, messages=messages)

    def content(self) -> dict[str, Any]:
        """The groups in JSON's types."""
        groups = [
            {"group": label, "systems": systems_content(systems, whole=False)["systems"]}
            for label, systems in self.by_label.items()
        ]
        return {"column": self.column, "groups": groups}


def show(systems: Systems, form: str | None, groups: Groups | None = None) -> str:
    """The table in the format of `--format`, and that of groups, without the last line break."""
    if form == "json":
        content = systems_content(systems, whole=False)
        return json_text(content if groups is None else {**content, "by": groups.content()}).rstrip("\n")
    if form == "csv":
        return long_table(systems, None if groups is None else groups.by_label).csv().rstrip("\n")
    tables = [(stacked_table if form in (None, "text") else cells_table)(systems)]
    if groups is not None:
        tables.append(groups_table(groups, form))
    if form in (None, "text"):
        return "\n\n".join(table.text() for table in tables)
    texts = [table.markdown() if form == "markdown" else table.latex() for table in tables]
    return "\n".join(texts).rstrip("\n")


def groups_table(groups: Groups, form: str | None) -> Table:
    """The table of groups of captions, with the number of captions of each."""
    make = stacked_table if form in (None, "text") else cells_table
    return make(groups.as_systems(), f"By {groups.column}", f"{groups.column} (captions)")


def systems_content(systems: Systems, *, whole: bool = True) -> dict[str, Any]:
    """The table in JSON's types; as a whole, or without the results of every caption."""
    content: list[dict[str, Any]] = []
    for system in systems.systems:
        results = [{**cell_content(cell, whole=whole), "test": cell.test} for cell in system.cells.values()]
        texts: dict[str, Any] = {"ids": list(system.ids), "captions": list(system.captions)} if whole else {}
        if whole and system.files:
            texts["files"] = system.files
        if not whole:
            results = [{name: own[name] for name in _BRIEF} for own in results]
        content.append({"system": system.name, **texts, "results": results})
    names = ("baseline", "test", "correction", "level", "messages")
    return {**{name: getattr(systems, name) for name in names}, "systems": content}


def cell_content(cell: Cell, *, whole: bool = True) -> dict[str, Any]:
    """A result with its interval, and its evidence if it was kept, in JSON's types."""
    content = {**cell.result.to_dict(), "corpus": cell.result.corpus}
    content |= {"interval": cell.interval and vars(cell.interval)}
    if whole and cell.result.evidence is not None:
        content["evidence"] = [cell.result.evidence[i] for i in range(len(cell.result.scores))]
    return content
