"""The oldest versions that may be installed are the ones that are tested."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def _lower_bounds() -> dict[str, str]:
    """Each requirement of setup.cfg with its lower bound; '' where it has none."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = [text for name, text in config["options.extras_require"].items() if name not in ("dev", "docs")]
    lines = "\n".join([config["options"]["install_requires"], *extras]).split()
    bounds: dict[str, str] = {}
    for line in lines:
        name, bound = re.fullmatch(r"([\w.-]+)(?:>=([\d.]+))?.*", line).groups()  # type: ignore[union-attr]
        assert bounds.setdefault(name, bound or "") == (bound or ""), f"{name} has two lower bounds"
    return bounds


def test_the_tested_set_is_that_of_the_lower_bounds() -> None:
    lines = [line for line in (ROOT / ".ci" / "oldest.txt").read_text().splitlines() if line[:1] != "#"]
    tested = dict(line.split("==") for line in lines)
    bounds = _lower_bounds()
    assert all(bounds.values()), "a requirement without a lower bound allows any version"
    assert tested.keys() == bounds.keys()
    for name, bound in bounds.items():
        release = [int(part) for part in bound.split(".")]
        exact = [int(part) for part in tested[name].split(".")]
        assert exact[: len(release)] == release and not any(exact[len(release) :]), name
