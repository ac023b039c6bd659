"""Benchmarks: what is not here is named with the command that installs it."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = sorted(ROOT.glob("benchmarks/*.py"))
OWN = {"benchmarks", "capeval_core", "tests", "tools"}
DISTRIBUTIONS = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "open_clip": "open_clip_torch",
    "torchvision": "open_clip_torch",
    "triton": "torch",
}
"""The distribution that brings a module of another name."""


def requirements() -> dict[str, set[str]]:
    """Names of the required distributions: those of every extra, and '' for those of the package itself."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = {"": setup["options"]["install_requires"], **setup["options.extras_require"]}
    return {
        extra: {re.split(r"[<>=\[]", line, maxsplit=1)[0] for line in lines.split()}
        for extra, lines in listed.items()
    }


def imports(node: ast.AST, extra: str = "") -> Iterator[tuple[str, str]]:
    """Top-level modules that are imported below a node, each with the extra that `needed` names around it."""
    if isinstance(node, ast.With):
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "needed":
                extra = ast.literal_eval(call.args[0])
    if isinstance(node, ast.Import):
        yield from ((alias.name.split(".")[0], extra) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module.split(".")[0], extra
    for child in ast.iter_child_nodes(node):
        yield from imports(child, extra)


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_packages_of_extras_are_imported_where_the_extra_is_named(path: Path) -> None:
    known = requirements()
    for module, extra in imports(ast.parse(path.read_text(encoding="utf-8"))):
        if module in sys.stdlib_module_names or module in OWN:
            continue
        distribution = DISTRIBUTIONS.get(module, module)
        assert distribution in known[""] | known[extra], (
            f"{path.name} imports {module}: put the import into `with needed(EXTRA):` of benchmarks/extras.py"
        )


def test_a_benchmark_without_its_package_names_the_command_in_one_line() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None; sys.argv = ['eco', '--pools', '2', '--captions', '4']; "
        "from benchmarks.eco import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ['this benchmark needs sklearn: pip install ".[dev]"']
