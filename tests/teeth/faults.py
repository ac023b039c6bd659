"""Seeded faults: what `faults.toml` lists, found in the package by name and put there."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where.

    where: qualified name of a function, class or variable in any module. old, new: source within it; `old` is
    there once, with any white space. near: what else the module contains, where several have the name and the
    source. by: pytest arguments of the tests that kill it soonest.
    """

    id: str
    room: str
    what: str
    where: str
    old: str
    new: str
    near: str = ""
    by: str = ""

    def put(self, sources: dict[Path, str]) -> tuple[Path, str]:
        """The module with the fault, and its text. Raises LookupError: it has no place, or several."""
        pattern = re.compile(r"\s*".join(map(re.escape, "".join(self.old.split()))))
        found = []
        for path, text in sources.items():
            lines = text.splitlines(keepends=True)
            for name, start, stop in names(text) if self.near in text else []:
                own = "".join(lines[start:stop])
                if name == self.where and len(pattern.findall(own)) == 1:
                    own = pattern.sub(lambda _: self.new, own)
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


def read_sources(root: Path = ROOT) -> dict[Path, str]:
    paths = sorted((root / "capeval_core").rglob("*.py"))
    return {path.relative_to(root): path.read_text(encoding="utf-8") for path in paths}
