"""`capeval compare`: is one system better than others, or is it chance?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from capeval_core.commands.systems import (
    ScoredSystem,
    add_comparison_flags,
    baseline_of,
    compare_systems,
    names_of_files,
    show,
    write_page,
)
from capeval_core.commands.terminal import Parser, complain, flag, summary
from capeval_core.errors import Problems
from capeval_core.inputs.folder import Folder
from capeval_core.registry import metric_of
from capeval_core.reports.html import check_report
from capeval_core.result import Result, not_comparable
from capeval_core.statistics import NoTestError
from capeval_core.values import p_in_words, signed

_SYSTEMS = "systems"
"""The key of a file of `capeval score --json` that holds several systems or metrics."""


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
    shown = _with_visuals(systems, flags.visuals)
    compared = compare_systems(
        shown, baseline, one_run=one_run, digits=flags.digits, times_100=flags.times_100
    )
    if not alone:
        print(show(compared, flags.format or "text"))
    write_page(flags, compared, ["compare", *arguments])
    return 0


def _with_visuals(systems: Sequence[ScoredSystem], folder: Path | None) -> list[ScoredSystem]:
    """The systems with the paths of their images in a folder, by id; as they are without one."""
    if folder is None:
        return list(systems)
    problems = Problems()
    there = Folder(folder, next(iter(systems[0].results.values())).visual)
    paths = [there.match(list(dict.fromkeys(system.ids)), problems) for system in systems]
    problems.raise_if_any()
    return [
        replace(system, images=[own[one] for one in system.ids])
        for system, own in zip(systems, paths, strict=True)
    ]


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
        title = metric_of(a.signature).title
    except ValueError:  # of a package that is not installed here
        title = a.metric
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
        [title, f"{means[0]:.4f} ({names[0]})"],
        ["", f"{means[1]:.4f} ({names[1]})"],
        ["difference", signed(means[0] - means[1])],
        *outcome,
        [f"{a.visual}s", f"{images:,} ({left_out:,} left out)"],
        ["signature", a.signature],
    )
