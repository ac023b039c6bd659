"""Metrics in packages of their own, and their installation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

NAME = "colours"
"""The name of the metric that the contract test runs."""
MODULES = ("capeval_colours", "capeval_words")
_SOURCE = Path(__file__).parent


@contextmanager
def installed(folder: Path, *changes: tuple[str, str]) -> Iterator[Path]:
    """The package, installed by pip into a folder that is on `sys.path` meanwhile.

    changes: texts in its files and what stands there instead, as in another version.
    """
    source, target = folder / "source", folder / "target"
    source.mkdir(parents=True)
    for name in ("pyproject.toml", *(f"{module}.py" for module in MODULES)):
        text = (_SOURCE / name).read_text()
        for old, new in changes:
            text = text.replace(old, new)
        (source / name).write_text(text)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        target,
    ]
    subprocess.run([*command, source], check=True, capture_output=True)
    with on_path(target):
        yield target


@contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """A folder of installed packages that is on `sys.path` meanwhile."""
    for module in MODULES:
        sys.modules.pop(module, None)
    sys.path.insert(0, str(folder))
    invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for module in MODULES:
            sys.modules.pop(module, None)
