"""Reports import no score: a metric makes their plain values."""

from __future__ import annotations

import ast
from pathlib import Path

import capeval_core.reports

ROOM = Path(capeval_core.reports.__file__).parent
LEFT = {"reports", "inputs", "regions", "phrases"}


def test_reports_import_only_from_its_left() -> None:
    """Imports within functions and those for types alone count too."""
    used = {
        module.split(".")[1]
        for file in ROOM.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for module in modules(node)
        if module.startswith("capeval_core.")
    }
    assert used <= LEFT


def modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
