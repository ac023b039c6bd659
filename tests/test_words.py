"""Names are nouns and verbs: no identifier and no summary of a docstring uses `told`, `said` or `seen`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FORBIDDEN = ("told", "said", "seen")
"""Participles that hide what a value is: text_features, message, images, ..."""
MODULES = sorted(path for folder in ("capeval_core", "tools") for path in (ROOT / folder).rglob("*.py"))


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of everything that a module names."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def summaries(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and first line of every docstring."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text.splitlines()[0]


def complaints(source: str) -> list[str]:
    """Line and text of every identifier and summary with a forbidden word."""
    tree = ast.parse(source)
    names = [
        (line, name)
        for line, name in identifiers(tree)
        if set(re.split(r"_|\d", name.lower())) & {*FORBIDDEN}
    ]
    texts = [
        (line, text) for line, text in summaries(tree) if set(re.findall(r"\w+", text.lower())) & {*FORBIDDEN}
    ]
    return [f"{line}: {text}" for line, text in sorted(names + texts)]


def test_no_name_is_a_forbidden_participle() -> None:
    found = {str(path.relative_to(ROOT)): complaints(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {path: lines for path, lines in found.items() if lines} == {}


PRONOUNS = {
    *(
        "own",
        "found",
        "kept",
        "given",
        "chosen",
        "known",
        "shown",
        "there",
        "every",
        "wrong",
        "whole",
        "done",
    ),
    *("seen", "said", "told", "made", "one", "others", "rest", "these", "those", "this", "that", "here"),
    *("taken", "held", "asked", "meant", "wanted", "usual"),
}
"""Names that say nothing of what they hold; `left` is also an edge, `other` what `compare` takes."""


def pronouns(source: str) -> list[str]:
    """Line and name of every variable and parameter whose name says nothing of what it holds."""
    complaints_of_names = []
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [(each.lineno, each.arg) for each in [*function.args.args, *function.args.kwonlyargs]]
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.append((node.lineno, node.id))
            complaints_of_names += [f"{line}: {name}" for line, name in names if name.strip("_") in PRONOUNS]
    return complaints_of_names


def test_names_say_what_they_hold() -> None:
    assert pronouns("def f(own):\n    found = own") == ["1: own", "2: found"]
    unclear = {str(path.relative_to(ROOT)): pronouns(path.read_text(encoding="utf-8")) for path in MODULES}
    assert {path: names for path, names in unclear.items() if names} == {}
