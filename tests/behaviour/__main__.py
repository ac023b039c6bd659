"""Store what every metric gives, or compare it with what is stored.

    python -m tests.behaviour store|compare [FILE]

`options.json` lists the options. Prints a line for each quantity that differs; exits with 1 if any does.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import math
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from tests.behaviour.record import OPTIONS, Case, cases, unlike

STORED = Path(__file__).with_name("stored.json")
SAME, OTHER = 1e-7, 1e-6
"""How much numbers may differ with the versions that the file was made with, and with others."""
DERIVED = ("interval", "compare")
"""May differ ten times as much with other versions, as ECO's z-scores may: they divide by small numbers."""
VERSIONS = {
    "torch": torch.__version__,
    "numpy": np.__version__,
    "cpu": torch.backends.cpu.get_cpu_capability(),
    "mkl": os.environ.get("MKL_CBWR", ""),
}
LIKE = "= "
"""Before the title of an earlier case that has the same value."""


def write(file: Path, found: Mapping[str, Case]) -> None:
    """One line a quantity."""
    first: dict[str, str] = {}
    blocks = [f'"versions": {json.dumps(VERSIONS)}']
    for title, case in found.items():
        lines = []
        for quantity, value in case.items():
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            like = first.setdefault(f"{quantity} {text}", title)
            text = text if like == title or len(text) < 60 else json.dumps(LIKE + like)
            lines.append(f"  {json.dumps(quantity)}: {text}")
        blocks.append(f"{json.dumps(title)}: {{\n" + ",\n".join(lines) + "\n}")
    file.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def read(file: Path) -> tuple[dict[str, Case], float]:
    """The stored cases, and how much numbers may differ from them here."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    tolerance = SAME if stored.pop("versions") == VERSIONS else OTHER
    for case in stored.values():
        for quantity, value in case.items():
            if isinstance(value, str) and value.startswith(LIKE):
                case[quantity] = stored[value.removeprefix(LIKE)][quantity]
    return stored, tolerance


def differences(old: Mapping[str, Case], new: Mapping[str, Case], tolerance: float) -> Iterator[str]:
    """A line for each quantity that differs, is missing or is new.

    With other versions 16 bits round elsewhere by thousandths, so that those cases are left out.
    """
    for title in {**old, **new}:
        if tolerance == OTHER and "float16" in title:
            continue
        before, after = old.get(title, {}), new.get(title, {})
        for quantity in {**before, **after}:
            divided = quantity.startswith(DERIVED) or title.startswith("eco")
            allowed = tolerance * (10 if tolerance == OTHER and divided else 1)
            known = quantity in before and quantity in after
            most = unlike(before[quantity], after[quantity]) if known else math.inf
            if most > allowed:
                state = "" if known else " missing" if quantity in before else " new"
                yield f"{title}  {quantity}{state}  {most:.2g}  {allowed:g} FAIL"


def main(arguments: list[str]) -> int:
    if arguments[:1] not in (["store"], ["compare"]) or len(arguments) > 2:
        print(__doc__, file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    file = Path(arguments[1]) if len(arguments) == 2 else STORED
    with TemporaryDirectory() as folder:
        found = {t: case for name in OPTIONS["metrics"] for t, case in cases(name, Path(folder, name))}
    if arguments[0] == "store":
        write(file, found)
        return 0
    stored, tolerance = read(file)
    lines = list(differences(stored, found, tolerance))
    print("\n".join(lines) or f"{len(found)} cases as stored, to {tolerance:g}")
    return bool(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
