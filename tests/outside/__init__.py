"""A metric in a package of its own, and its installation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

NAME = "colours"
"""The metric's name."""
_SOURCE = Path(__file__).parent


@contextmanager
def installed(folder: Path) -> Iterator[Path]:
    """The package, installed by pip into a folder that is on `sys.path` meanwhile."""
    source, target = folder / "source", folder / "target"
    source.mkdir()
    for name in ("pyproject.toml", "capeval_colours.py"):
        shutil.copy(_SOURCE / name, source)
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
    sys.modules.pop("capeval_colours", None)


@contextmanager
def on_path(folder: Path) -> Iterator[None]:
    """A folder of installed packages that is on `sys.path` meanwhile."""
    sys.path.insert(0, str(folder))
    invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
