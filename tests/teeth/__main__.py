"""Put one fault after the other into a copy of the package, and see which tests fail.

    python -m tests.teeth [--room ROOM] [--only ID] [--jobs N]

A fault's own tests (`by`) run first, in a process that has the libraries imported: a few seconds each. If
they pass, all tests run. What was found is added to `benchmarks/results/teeth.md`. Exits with 1 if a fault
lives, has no place any more, or dies by other tests than those that are listed.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.teeth.run import run_tests
from tools.exactness import RESULTS

ROOT = Path(__file__).parents[2]
PARTS = {
    "tests/golden": "golden",
    "tests/behaviour": "behaviour",
    "tests/hostile": "hostile",
    "tests/test_contract.py": "contract",
    "tests/contracts": "contracts",
    "tests/doors": "doors",
    "tests/cli": "doors",
    "tests/weights/test_hub.py": "doors",
    "tests/judgements/test_sets.py": "doors",
    "tests/reports/test_report.py": "doors",
    "tests/transcripts": "transcripts",
}
REST, ELSEWHERE, LIVES, MOVED, NOT_RUN = "rest", "elsewhere", "lives", "moved", "not run"
REPORT = RESULTS / "teeth.md"
LIBRARIES = ["datasets", "evaluate", "hypothesis", "pytest", "scipy.stats", "torch", "transformers"]
FAILS = {0: False, 1: True, 2: True, 5: False}  # by pytest's exit status: 2 cannot collect, 5 has no test
TIME_LIMIT = 1800  # seconds, after which tests hang


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where.

    where: qualified name of a function, class or variable in any module. old, new: source within it; `old`
    is there once, with any white space. near: what else the module contains, where two have such a name and
    source. by: pytest arguments of the tests that kill it soonest.
    """

    id: str
    room: str
    what: str
    where: str
    old: str
    new: str
    by: str
    near: str = ""

    def put(self, sources: dict[Path, str]) -> tuple[Path, str]:
        """The module with the fault, and its text. Raises LookupError: it has no place, or several."""
        pattern = re.compile(r"\s*".join(map(re.escape, "".join(self.old.split()))))
        found = []
        for path, text in sources.items():
            if self.where.rpartition(".")[2] not in text:
                continue
            lines = text.splitlines(keepends=True)
            for name, start, stop in names(text) if self.near in text else []:
                if name != self.where:
                    continue
                own, count = pattern.subn(lambda _: self.new, "".join(lines[start:stop]))
                if count == 1:
                    found.append((path, "".join([*lines[:start], own, *lines[stop:]])))
        if len(found) != 1:
            raise LookupError(f"{self.id}: {self.where} has {len(found)} places for {self.old!r}")
        ast.parse(found[0][1])
        return found[0]


@cache
def names(text: str) -> list[tuple[str, int, int]]:
    """The qualified names in a module, each with the lines of what has it, from and up to."""
    return list(_named(ast.parse(text), ""))


def _named(tree: ast.AST, before: str) -> Iterator[tuple[str, int, int]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield before + node.name, node.lineno - 1, node.end_lineno or 0
            yield from _named(node, f"{before}{node.name}.")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield before + node.targets[0].id, node.lineno - 1, node.end_lineno or 0


def read_faults() -> list[Fault]:
    text = Path(__file__).with_name("faults.toml").read_text(encoding="utf-8")
    return [Fault(**fault) for fault in tomllib.loads(text)["fault"]]


def read_sources() -> dict[Path, str]:
    return {p.relative_to(ROOT): p.read_text(encoding="utf-8") for p in ROOT.glob("capeval_core/**/*.py")}


def part_of(tests: str) -> str:
    return next((part for path, part in PARTS.items() if tests.startswith(path)), REST)


def fails(tree: Path, arguments: Sequence[str]) -> bool:
    """Whether tests fail in a tree, or hang. RuntimeError: pytest itself did not run them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    process = context.Process(target=run_tests, args=(tree, arguments))
    process.start()
    process.join(TIME_LIMIT)
    if process.is_alive():
        process.kill()
        return True
    if process.exitcode not in FAILS:
        raise RuntimeError(f"pytest {shlex.join(arguments)} ended with {process.exitcode}")
    return FAILS[process.exitcode]


def killer(fault: Fault, sources: dict[Path, str]) -> str:
    """The part of the tests that kills a fault."""
    try:
        path, text = fault.put(sources)
    except LookupError:
        return MOVED
    with TemporaryDirectory(prefix="teeth-") as folder:
        tree = shutil.copytree(ROOT, Path(folder, "tree"), ignore=shutil.ignore_patterns(".git", ".*_cache"))
        (tree / path).write_text(text, encoding="utf-8")
        if fails(tree, shlex.split(fault.by)):
            return part_of(fault.by.strip('"'))
        return ELSEWHERE if fails(tree, []) else LIVES


def report(faults: Sequence[Fault], new: dict[str, str]) -> None:
    """Write what was found, and what earlier runs found."""
    text = REPORT.read_text(encoding="utf-8") if REPORT.exists() else ""
    old = re.findall(r"^\| `(\S+)` \| \w+ \| ([\w ]+) \|", text, re.M)
    killers = dict(old) | new
    kinds = [*dict.fromkeys(PARTS.values()), REST, ELSEWHERE, LIVES, MOVED, NOT_RUN]
    lines = ["# Seeded faults, and what kills them\n\nWritten by `python -m tests.teeth`.\n"]
    lines += [f"| room | faults | {' | '.join(kinds)} |", "|---|---:|" + "---:|" * len(kinds)]
    for room in [*dict.fromkeys(fault.room for fault in faults), "all"]:
        parts = [killers.get(fault.id, NOT_RUN) for fault in faults if room in (fault.room, "all")]
        lines.append(f"| {room} | {len(parts)} | {' | '.join(str(parts.count(kind)) for kind in kinds)} |")
    lines += ["", "| fault | room | killed by | what is wrong |", "|---|---|---|---|"]
    lines += [f"| `{f.id}` | {f.room} | {killers.get(f.id, NOT_RUN)} | {f.what} |" for f in faults]
    REPORT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.teeth")
    parser.add_argument("--room", action="append")
    parser.add_argument("--only", action="append", metavar="ID")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    faults = read_faults()
    sources = read_sources()
    runs = {}
    killers: dict[str, str] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault in faults:
            if fault.room in (options.room or [fault.room]) and fault.id in (options.only or [fault.id]):
                runs[pool.submit(killer, fault, sources)] = fault
        for done in as_completed(runs):
            fault = runs[done]
            killers[fault.id] = done.result()
            print(f"{killers[fault.id]:10} {fault.id}: {fault.what}", flush=True)
            report(faults, killers)
    return int(not {ELSEWHERE, LIVES, MOVED}.isdisjoint(killers.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
