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

from tests.behaviour.record import OPTIONS, TEXTS, Case, cases, unlike
from tests.support.seams import OF_FORMULAS, rounding_of

STORED = Path(__file__).with_name("stored.json")
SAME = 1e-7
"""How much numbers may differ with the versions and on the processor that the file was made with."""
LONGEST_SUM = 512
"""Terms of the longest sum in networks of `tiny`, the second layer of an MLP of width 128."""
DERIVED = ("interval", "compare")
"""May differ ten times as much elsewhere, as ECO's z-scores may: they divide by small numbers."""
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


def read(file: Path) -> tuple[dict[str, Case], bool]:
    """The stored cases, and whether they were made with the versions and the processor of this run."""
    stored = json.loads(file.read_text(encoding="utf-8"))
    made_here = stored.pop("versions") == VERSIONS
    for case in stored.values():
        for quantity, value in case.items():
            if isinstance(value, str) and value.startswith(LIKE):
                case[quantity] = stored[value.removeprefix(LIKE)][quantity]
    return stored, made_here


def allowed_of(title: str, quantity: str, made_here: bool) -> float:
    """How much a quantity may differ: elsewhere by what processors make of the case's arithmetic."""
    if made_here or title.partition("[")[0] in TEXTS:
        return SAME
    dtype = next((bits for bits in ("bfloat16", "float16") if bits in title), "float32")
    if title.startswith("eco") and dtype != "float32":
        return math.inf  # another candidate may win, and with it another order of all parts
    divided = quantity.startswith(DERIVED) or title.startswith("eco")
    return OF_FORMULAS * rounding_of(LONGEST_SUM, dtype) * (10 if divided else 1)


def differences(old: Mapping[str, Case], new: Mapping[str, Case], made_here: bool) -> Iterator[str]:
    """A line for each quantity that differs, is missing or is new."""
    for title in {**old, **new}:
        before, after = old.get(title, {}), new.get(title, {})
        for quantity in {**before, **after}:
            allowed = allowed_of(title, quantity, made_here)
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
    stored, made_here = read(file)
    lines = list(differences(stored, found, made_here))
    print("\n".join(lines) or f"{len(found)} cases as stored")
    return bool(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
