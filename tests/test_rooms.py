"""A room imports only from the rooms before it."""

from __future__ import annotations

import ast
from pathlib import Path

import capeval_core
from capeval_core.registry import METRICS

PACKAGE = Path(capeval_core.__file__).parent
ORDER = (
    "inputs", "weights", "models", "regions", "phrases", "encoders", "matching", "reports", "scores",
    "judgements", "replay", "publishing", "training", "integrations", "commands",
)  # fmt: skip
SIDE_BY_SIDE = {"regions": {"phrases"}, "phrases": {"regions"}}
SHARED = {"errors", "options", "cache", "store", "ragged", "demo", "project", "limits"}
"""Files beside the rooms that any room may import; the others are the contract, for scores and doors."""
LAST_WITHOUT_THE_CONTRACT = ORDER.index("reports")


def imported(path: Path) -> set[str]:
    """Rooms and files of the package that a module imports, also within functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("capeval_core."):
            names.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            names |= {
                alias.name.split(".")[1] for alias in node.names if alias.name.startswith("capeval_core.")
            }
    return names


def test_rooms_import_only_from_their_left() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms - {"demo", "hub_cards", "hub_metrics"} == set(ORDER)
    files = {path.stem for path in PACKAGE.glob("*.py")} - set(ORDER)
    for position, room in enumerate(ORDER):
        allowed = {*ORDER[: position + 1], *SHARED} - SIDE_BY_SIDE.get(room, set())
        if position > LAST_WITHOUT_THE_CONTRACT:
            allowed |= files
        for path in (PACKAGE / room).rglob("*.py"):
            assert imported(path) <= allowed, path.relative_to(PACKAGE)


def test_encoders_name_no_metric() -> None:
    for path in (PACKAGE / "encoders").glob("*.py"):
        constants = {
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not constants & METRICS.keys(), path.name
