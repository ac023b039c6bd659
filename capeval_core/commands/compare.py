"""`capeval compare`: is one system better, or is it chance? And the parts of all commands that compare."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from capeval_core.commands.common import check_page
from capeval_core.commands.terminal import complain, parser_of
from capeval_core.errors import Problems, counted, did_you_mean, signed
from capeval_core.inputs.joining import Folder
from capeval_core.registry import metric_of, titles_of_parts
from capeval_core.reports.html import write_report
from capeval_core.reports.tables import (
    Cell,
    System,
    Systems,
    Table,
    captions_table,
    cells_table,
    long_table,
    stacked_table,
    with_groups,
)
from capeval_core.result import Result, json_text
from capeval_core.statistics import TEST, Comparison, NoTestError, holm

_LEVEL = 0.95
_BRIEF = ("metric", "key", "mean", "corpus", "interval", "counts", "signature", "test")


def run(arguments: list[str]) -> int:
    parser = parser_of("compare", "compare", "comparison")
    flags = parser.read(arguments)
    check_table(flags)
    check_page(flags.report)
    systems = _read(flags.files)
    if len(systems) == 1:
        parser.error(f"{flags.files[0]} holds one system: name the file of another one to compare with")
    names = [system.name for system in systems]
    baseline = baseline_of(flags.baseline, names, flags.files if len(flags.files) == len(names) else ())
    # One table has one row per system and one column per metric: a gap could not be tested against anything.
    for system in systems[1:]:
        if system.cells.keys() != systems[0].cells.keys():
            metrics = ", ".join(system.cells)
            first_metrics = ", ".join(systems[0].cells)
            problem = f"{system.name} was scored by {metrics} and {names[0]} by {first_metrics}"
            raise ValueError(f"{problem}: score both by the same metrics")
    if flags.visuals is not None:
        systems = _with_visuals(systems, flags.visuals)
    compared = compare_systems(systems, baseline, one_run=len(flags.files) == 1, flags=flags)
    print(show(compared, flags.format))
    # Sentences are for people, and only in the units of the table above them.
    if len(systems) == 2 and flags.format is None and flags.digits is None and not flags.times_100:
        _print_tests(compared, baseline)
    write_page(flags, compared, ["compare", *arguments])
    return 0


def _with_visuals(systems: Sequence[System], folder: Path) -> list[System]:
    """The systems with the files of their images, for the page."""
    visual = next(iter(systems[0].cells.values())).result.visual
    problems = Problems()
    file_names: dict[str, str] = {}  # results know ids only, so that an image is called by its id
    for system in systems:
        file_names.update(zip(system.ids, system.ids, strict=True))
    paths = Folder(folder, visual).match(file_names, problems)
    problems.raise_if_any()
    with_images = []
    for system in systems:
        images = [paths[image_id] for image_id in system.ids]
        with_images.append(replace(system, images=images))
    return with_images


def _print_tests(compared: Systems, baseline: str | None) -> None:
    """Print the test of two systems by each metric, in a sentence."""
    first, second = compared.systems
    # The difference is a system's mean less the baseline's, as in the table.
    base, system = (second, first) if second.name == baseline else (first, second)
    for column in compared.columns:
        result = system.cells[column.name].result
        with suppress(ValueError):  # the table says why there is none
            test = result.compare_within_run(base.cells[column.name].result, level=_LEVEL)
            print(f"{column.title}, {system.name} minus {base.name}: {test}")


def _read(files: Sequence[Path]) -> list[System]:
    systems: list[System] = []
    # A file may be compared with itself, to see that nothing differs.
    again = len(files) == 2 and files[0] == files[1]
    names = [files[0].stem, f"{files[0].stem} (again)"] if again else names_of_files("FILE", files)
    names_taken: set[str] = set()
    for name_of_file, path in zip(names, files, strict=True):
        for system in _systems_in(path):
            name = system.name or name_of_file
            # Two runs of one model have one name in two files.
            if system.name in names_taken:
                name = f"{name_of_file}/{system.name}"
            names_taken.add(name)
            systems.append(replace(system, name=name))
    return systems


def _systems_in(path: Path) -> list[System]:
    """The systems in a file of `capeval score --json`; one by one metric has no name."""
    systems = []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        # One system by one metric is written as the result itself, like `Result.to_dict`.
        several = isinstance(content, Mapping) and "systems" in content
        for entry in content["systems"] if several else [content]:
            results = list(map(Result.from_dict, entry["results"] if several else [entry]))
            # `Result.to_dict` alone, without a command, knows neither ids nor captions.
            empty = [""] * len(results[0].scores)
            ids = list(map(str, entry.get("ids") or empty))
            captions = list(map(str, entry.get("captions") or empty))
            cells = {result.metric: cell_of(result) for result in results}
            name = str(entry["system"]) if several else ""
            systems.append(System(name, ids, captions, cells))
        if not systems:
            raise ValueError("it has no system")
    # Any JSON may be passed, so that its shape fails anywhere; deeply nested lists end the recursion.
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        problem = f"is not a file of `capeval score --json`, or is damaged ({reason})"
        raise ValueError(f"{path} {problem}") from error
    return systems


# for all commands that compare systems


def names_of_files(flag: str, paths: Sequence[str | Path]) -> list[str]:
    """The names of systems by their files: without folders and extension, where these tell them apart."""
    # Links are followed: one file under two names would be compared with itself.
    files: list[Path] = []
    stems = []
    for path_of_flag in paths:
        path = Path(path_of_flag)
        if str(path) != "-":  # standard input
            path = Path(os.path.realpath(path))
        if path in files:
            raise ValueError(f"{flag} {path_of_flag} comes twice: name each system once")
        files.append(path)
        stem = Path(path.stem).stem if path.suffix == ".gz" else path.stem  # of captions.json.gz
        stems.append("stdin" if stem == "-" else stem)
    names = []
    for stem, path_of_flag in zip(stems, paths, strict=True):
        names.append(str(path_of_flag) if stems.count(stem) > 1 else stem)
    # A stem may be another one's path: that of `x/a.json.json`, next to `a.json` and `b/a.json`.
    return names if len(set(names)) == len(names) else list(map(str, paths))


def baseline_of(name: str | None, names: Sequence[str], paths: Sequence[str | Path]) -> str | None:
    """The system that `--baseline` names, by its name or its file; else the first, None if it is alone."""
    if name is None:
        return names[0] if len(names) > 1 else None
    if len(names) == 1:
        raise ValueError(f"--baseline {name}: there is one system only, name several")
    if name in names:  # before files, since a system may be called as another one's file
        return name
    # Not strict: a file that holds several systems has no name of its own.
    name_of_file = dict(zip(map(str, paths), names, strict=False))
    if name not in name_of_file:
        hint = did_you_mean(name, names)
        raise ValueError(f"--baseline {name}: there is no such system{hint} (there are {', '.join(names)})")
    return name_of_file[name]


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
    systems: Sequence[System],
    baseline: str | None,
    *,
    one_run: bool = True,
    flags: argparse.Namespace | None = None,
) -> Systems:
    """The table of systems by metrics; Holm's correction is over the systems that one metric tests."""
    base = systems[0]
    cells: dict[str, dict[str, Cell]] = {}
    for system in systems:
        cells[system.name] = dict(system.cells)
        if system.name == baseline:
            base = system
    for metric in base.cells:
        tests: dict[str, Comparison] = {}
        for system in systems:
            if system is base:  # its cell is shown without a test
                continue
            test = _test(system.cells[metric].result, base.cells[metric].result, one_run=one_run)
            if isinstance(test, Comparison):
                tests[system.name] = test
            else:
                cells[system.name][metric] = replace(system.cells[metric], no_test=test)
        # Each metric asks its own question; the systems that it tests share the risk of a chance result.
        adjusted = holm([test.p_value for test in tests.values()])
        for (name, test), p_value in zip(tests.items(), adjusted, strict=True):
            content = {
                "difference": test.difference,
                "low": test.interval.low,
                "high": test.interval.high,
                "p_value": test.p_value,
                "adjusted": p_value,
                "significant": p_value < 1 - _LEVEL,
                "count": test.images,
                "left_out": test.left_out,
            }
            cells[name][metric] = replace(cells[name][metric], test=content, comparison=test)
    results = [cell.result for cell in base.cells.values()]
    correction = ""
    system_count = len(systems) - 1  # that are tested
    if system_count > 1:
        correction = f"Holm's correction for the {system_count} systems that each metric tests"
    compared = Systems(
        [replace(system, cells=cells[system.name]) for system in systems],
        columns=list(map(_facts, results)),
        baseline=baseline,
        visual=results[0].visual,
        level=_LEVEL,
        test=TEST.format(results[0].visual),
        correction=correction,
        digits=getattr(flags, "digits", None),
        times_100=getattr(flags, "times_100", False),
        intervals=_interval_form(flags),
        caption=getattr(flags, "caption", None),
        label=getattr(flags, "label", None),
    )
    return replace(compared, messages=_messages(compared))


def check_table(flags: Any) -> None:
    """Refuse flags of tables that contradict each other, or that no table would show."""
    if flags.pm and flags.no_intervals:
        raise ValueError("--pm shows intervals and --no-intervals hides them: pass one of them")
    for name in ("caption", "label"):
        if getattr(flags, name) is not None and flags.format != "latex":
            raise ValueError(f"--{name} is of a table in LaTeX: pass --format latex, too")
    if flags.label is not None and not re.fullmatch(r"[^\s\\{}%#~^&$,]+", flags.label):
        raise ValueError(f"--label {flags.label!r} cannot be referred to: use letters, digits, : and -")


def _interval_form(flags: Any) -> Literal["range", "±", "none"]:
    if getattr(flags, "no_intervals", False):
        return "none"
    return "±" if getattr(flags, "pm", False) else "range"


def _test(result: Result, base: Result, *, one_run: bool) -> Comparison | str:
    """The test of a result against the baseline's, or why there is none."""
    # Results of one run have one setting; others are refused where theirs differ, and then there is no
    # table at all. So of several files only the error that the data allow no test becomes a note.
    expected = ValueError if one_run else NoTestError
    try:
        compare = result.compare_within_run if one_run else result.compare
        return compare(base, level=_LEVEL)
    except expected as error:
        reason = str(error)
        left_out = getattr(error, "left_out", 0)
        if left_out:
            have = "has" if left_out == 1 else "have"
            unpaired = f"{counted(left_out, result.visual)} {have} a score in only one"
            reason += f"; {unpaired}, so that the means are of different {result.visual}s"
        return reason


def _facts(result: Result) -> Any:
    """The class of the metric of a result, or a stand-in for a metric that is not installed."""
    try:
        return metric_of(result.signature)
    # Its package may not be installed here: the numbers of the file can be compared all the same.
    except ValueError:
        return SimpleNamespace(
            name=result.metric,
            title=result.metric,
            range=(nan, nan),
            relative=None,
            summary="",
            paper="",
            higher_is_better=True,
            part_titles={},
        )


def _messages(compared: Systems) -> list[str]:
    """Notes on what failed, was truncated or left out, once each; if not of all, with systems and metrics."""
    owners_of: dict[str, list[str]] = {}

    def written(difference: float) -> str:
        # In the units and digits of the table, next to which the notes are read.
        return signed(compared.scaled(difference), compared.decimals(4))

    for system in compared.systems:
        for column in compared.columns:
            cell = system.cells[column.name]
            counts = cell.result.counts
            reasons = []
            for name in ("failed", "truncated", "empty"):
                number = getattr(counts, name)
                if number:
                    reasons.append(f"{number:,} of {counts.captions:,} captions {name}")
            reasons += [cell.result.truncation_note, cell.no_interval, cell.no_test]
            test = cell.comparison
            if test is not None:
                reasons.append(test.unevenness(written))
                if test.left_out:
                    reasons.append(
                        f"left out of the test, not of the means: {counted(test.left_out, compared.visual)} "
                        f"with a score in only one of system and baseline; over the {test.images:,} that "
                        f"both have the difference is {written(test.difference)}"
                    )
            owner = system.name if len(compared.columns) == 1 else f"{system.name} by {column.title}"
            for reason in filter(None, reasons):
                owners_of.setdefault(reason, []).append(owner)
    cell_count = len(compared.systems) * len(compared.columns)
    messages = []
    for reason, owners in owners_of.items():
        messages.append(reason if len(owners) == cell_count else f"{', '.join(owners)}: {reason}")
    return messages


@dataclass(frozen=True)
class Groups:
    """The results of groups of captions, by their label in a column of the user's."""

    column: str
    by_label: Mapping[str, Systems]

    @classmethod
    def of(cls, column: str, compared: Systems) -> Groups:
        """The groups of compared systems, by the labels of their captions."""
        cells: dict[str, dict[str, dict[str, Cell]]] = {}  # by label, system and metric
        for system in compared.systems:
            for metric, cell in system.cells.items():
                for label, result in cell.result.by(system.labels or []).items():
                    cells_of_label = cells.setdefault(label, {})
                    cells_of_label.setdefault(system.name, {})[metric] = cell_of(result)
        by_label = {}
        for label, cells_of_label in cells.items():
            systems = []
            for system in compared.systems:
                # A label may be one of some systems only: each has captions, and labels, of its own.
                if system.name in cells_of_label:
                    systems.append(replace(system, cells=cells_of_label[system.name]))
            # Tests are of all captions together: those of many small groups would find something by chance.
            group = replace(compared, systems=systems, baseline=None, test="", correction="")
            by_label[label] = replace(group, messages=_messages(group))
        return cls(column, by_label)

    def as_systems(self) -> Systems:
        """A row for each group, and for each system where there are several, in one table."""
        rows: list[System] = []
        several = any(len(group.systems) > 1 for group in self.by_label.values())
        for label, systems in self.by_label.items():
            for system in systems.systems:
                result = next(iter(system.cells.values())).result  # all metrics have the same captions
                name = f"{label or '(none)'} ({result.counts.captions:,})"
                rows.append(replace(system, name=f"{system.name}, {name}" if several else name))
        first = next(iter(self.by_label.values()))
        # Not ranked: a group of easy captions is not better than one of hard ones.
        table = replace(first, systems=rows, messages=(), ranked=False)
        weighed = []
        for column in first.columns:
            if "|statistics:" in rows[0].cells[column.name].result.signature:
                weighed.append(column.title)
        messages = _messages(table)
        if weighed:
            messages.append(f"{', '.join(weighed)} of a group: by the statistics of the whole set")
        return replace(table, messages=messages)

    def content(self) -> dict[str, Any]:
        """The groups in JSON's types."""
        groups = []
        for label, systems in self.by_label.items():
            groups.append({"group": label, "systems": systems_content(systems, brief=True)["systems"]})
        return {"column": self.column, "groups": groups}


def show(systems: Systems, form: str | None, groups: Groups | None = None) -> str:
    """The table in the format of `--format`, and that of groups, without the last line break."""
    if form == "json":
        content = systems_content(systems, brief=True)
        return json_text(content if groups is None else {**content, "by": groups.content()}).rstrip("\n")
    if form == "csv":
        return long_table(systems, None if groups is None else groups.by_label).csv().rstrip("\n")
    if form == "latex":
        table = cells_table(systems)
        if groups is not None:
            table = with_groups(table, groups_table(groups, form))
        return table.latex().rstrip("\n")
    tables = [(stacked_table if form in (None, "text") else cells_table)(systems)]
    if groups is not None:
        tables.append(groups_table(groups, form))
    if systems.diversity:
        tables.append(captions_table(systems))
    if form in (None, "text"):
        return "\n\n".join(table.text() for table in tables)
    texts = [table.markdown() for table in tables]
    return "\n".join(texts).rstrip("\n")


def groups_table(groups: Groups, form: str | None) -> Table:
    """The table of groups of captions, with the number of captions of each."""
    make = stacked_table if form in (None, "text") else cells_table
    return make(groups.as_systems(), f"By {groups.column}", f"{groups.column} (captions)")


def systems_content(systems: Systems, *, brief: bool = False) -> dict[str, Any]:
    """The table in JSON's types, with the result of every caption unless it is to be brief."""
    entries: list[dict[str, Any]] = []
    for system in systems.systems:
        entry: dict[str, Any] = {"system": system.name}
        if not brief:
            entry |= {"ids": list(system.ids), "captions": list(system.captions)}
            if system.files:
                entry["files"] = system.files
        entry["results"] = []
        for cell in system.cells.values():
            content = {**cell_content(cell, evidence=not brief), "test": cell.test}
            if brief:
                content = {name: content[name] for name in _BRIEF}
            entry["results"].append(content)
        entries.append(entry)
    return {
        "baseline": systems.baseline,
        "test": systems.test,
        "correction": systems.correction,
        "level": systems.level,
        "messages": systems.messages,
        "systems": entries,
    }


def cell_content(cell: Cell, *, evidence: bool = True) -> dict[str, Any]:
    """A result with its interval, and its evidence if it was kept, in JSON's types."""
    content = {**cell.result.to_dict(), "corpus": cell.result.corpus}
    content |= {"interval": cell.interval and vars(cell.interval)}
    if evidence and cell.result.evidence is not None:
        # A list, since JSON has no keys that are numbers; by index, as evidence may be computed when read.
        content["evidence"] = [cell.result.evidence[i] for i in range(len(cell.result.scores))]
    return content
