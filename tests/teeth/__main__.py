"""Put one fault after the other into a copy of the package, and see which tests fail.

    python -m tests.teeth [--room ROOM] [--only ID] [--jobs N] [--rest] [PYTEST PATHS]

Runs the net, or the parts that are named, and adds what it found to `report.md`. With `--rest` the room's own
folder of tests runs, too, where a fault lives. Exits with 1 if a fault lives or has no place any more.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

import pytest

from tests.teeth.faults import ROOT, Fault, read_faults, read_sources

PARTS = {
    "golden": "tests/golden",
    "behaviour": "tests/behaviour",
    "hostile": "tests/adversarial",
    "contract": "tests/test_contract.py",
    "doors": "tests/doors",
}
"""The net, the fastest part first."""
REST, LIVES, NOT_RUN = "rest", "lives", "not run"
REPORT = Path(__file__).with_name("report.md")
SECONDS = 1800
"""After which tests count as hanging, which kills."""
FAILS = {0: False, 1: True, 2: True, 5: False}
"""Whether pytest's exit status means that a test fails: 2 is an error in collection, 5 that there is none."""
IMPORTED = (
    "open_clip",
    "timm",
    "datasets",
    "evaluate",
    "scipy.stats",
    "transformers.models.bert.modeling_bert",
)
"""What every run imports, once before all of them."""


def part_of(argument: str) -> str:
    return next((part for part, path in PARTS.items() if argument.startswith(path)), REST)


def fails(tree: Path, arguments: Sequence[str]) -> bool:
    process = multiprocessing.get_context("fork").Process(target=_test, args=(tree, arguments))
    process.start()
    process.join(SECONDS)
    process.kill()
    return process.exitcode is None or FAILS[process.exitcode]


def _test(tree: Path, arguments: Sequence[str]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = sys.path[0] = str(tree)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "capeval_core")]:
        del sys.modules[name]
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *arguments]))


def killer(tree: Path, fault: Fault, net: Sequence[str], rest: bool) -> str:
    """The part that kills a fault; the rest's own tests come after the net."""
    first = [shlex.split(fault.by)] if fault.by else []
    parts = [[path] for path in net if (tree / path).exists()]
    steps = [*first, *parts] if part_of(fault.by) != REST else parts
    if rest:
        room = f"tests/{fault.room}" if (tree / "tests" / fault.room).is_dir() else "tests"
        steps += [*first, [room, *(f"--ignore={path}" for path in net)]]
    return next((part_of(step[0]) for step in steps if fails(tree, step)), LIVES)


def run(chosen: Sequence[Fault], net: Sequence[str], rest: bool, jobs: int) -> Iterator[tuple[Fault, str]]:
    """Each fault and what kills it; every job has a copy of the tree."""
    with TemporaryDirectory(prefix="teeth-") as folder, ThreadPoolExecutor(jobs) as pool:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(jobs):
            ignored = shutil.ignore_patterns(".git", ".*_cache")
            trees.put(shutil.copytree(ROOT, Path(folder, str(job)), ignore=ignored))

        def result(fault: Fault) -> tuple[Fault, str]:
            tree = trees.get()
            sources = read_sources(tree)
            path, text = fault.put(sources)
            (tree / path).write_text(text, encoding="utf-8")
            try:
                return fault, killer(tree, fault, net, rest)
            finally:
                (tree / path).write_text(sources[path], encoding="utf-8")
                trees.put(tree)

        yield from (done.result() for done in as_completed([pool.submit(result, each) for each in chosen]))


def read_report() -> dict[str, str]:
    """What earlier runs found, by the fault's id."""
    lines = REPORT.read_text(encoding="utf-8").splitlines() if REPORT.exists() else []
    rows = [line.split(" | ") for line in lines if line.startswith("| `")]
    return {row[0].strip("|` "): row[2] for row in rows}


def write_report(faults: Sequence[Fault], found: dict[str, str]) -> None:
    kinds = [*PARTS, REST, LIVES, NOT_RUN]
    lines = ["# Seeded faults, and what kills them", ""]
    lines += ["Written by `python -m tests.teeth`; `faults.toml` has the faults.", ""]
    lines += [f"| room | faults | {' | '.join(kinds)} |", "|---|---:|" + "---:|" * len(kinds)]
    for room in [*dict.fromkeys(fault.room for fault in faults), "all"]:
        own = [found.get(fault.id, NOT_RUN) for fault in faults if room in (fault.room, "all")]
        lines.append(f"| {room} | {len(own)} | {' | '.join(str(Counter(own)[kind]) for kind in kinds)} |")
    lines += ["", "| fault | room | killed by | what is wrong |", "|---|---|---|---|"]
    lines += [f"| `{f.id}` | {f.room} | {found.get(f.id, NOT_RUN)} | {f.what} |" for f in faults]
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.teeth")
    parser.add_argument("--room", action="append", default=[])
    parser.add_argument("--only", action="append", default=[], metavar="ID")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rest", action="store_true")
    parser.add_argument("net", nargs="*", default=[*PARTS.values()])
    options = parser.parse_args(arguments)
    faults, sources, bad = read_faults(), read_sources(), 0
    chosen = [f for f in faults if f.room in (options.room or [f.room]) and f.id in (options.only or [f.id])]
    for fault in list(chosen):
        try:
            fault.put(sources)
        except LookupError as error:
            print(f"moved      {error}", file=sys.stderr)
            chosen.remove(fault)
            bad += 1
    os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    for name in IMPORTED:
        importlib.import_module(name)
    for fault, part in run(chosen, options.net, options.rest, options.jobs):
        print(f"{part:10} {fault.id}: {fault.what}", flush=True)
        bad += part == LIVES
        if part != LIVES or set(options.net) >= set(PARTS.values()):
            write_report(faults, read_report() | {fault.id: part})
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
