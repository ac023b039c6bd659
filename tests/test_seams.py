"""Tests reach internals of the package through `tests/support/seams.py` alone."""

from __future__ import annotations

import ast
from pathlib import Path

import capeval_core
from tests.support import seams
from tools.documents import MODULES

DOORS = ("authoring", "cli", "module", "testing")
ADAPTERS = ("inspect_ai", "lmms_eval", "page", "serving", "torchmetrics")
PUBLIC = {
    "capeval_core",
    *(f"capeval_core.{name}" for name in (*MODULES, *DOORS)),
    *(f"capeval_core.integrations.{name}" for name in ADAPTERS),
}
"""What users import, by the documents and the API reference."""
MOST = 60


def test_no_other_file_imports_internals() -> None:
    found = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        if path != Path(seams.__file__):
            found += [f"{path.name}: {name}" for name in _imported(path) if name not in PUBLIC]
    assert found == []


def test_there_are_few_seams() -> None:
    assert len(seams.__all__) <= MOST and sorted(seams.__all__) == seams.__all__


def _imported(path: Path) -> list[str]:
    """Modules of the package that a file imports, also inside functions."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = [f"{node.module}.{each.name}" for each in node.names]
            names += [name for name in members if _is_module(name)] or [node.module]
    return [name for name in names if name.partition(".")[0] == "capeval_core"]


def _is_module(name: str) -> bool:
    place = Path(capeval_core.__file__).parents[1].joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()
