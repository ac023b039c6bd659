"""What there is to know about capeval on a CUDA GPU: golden cases, agreement with the CPU, speed.

    python -m benchmarks.cuda [PART ...] [--device cuda] [--out benchmarks/results/cuda.jsonl]

`CAPEVAL_TEST_DEVICE=cuda pytest tests/cuda tests/test_contract.py` runs the tests there. A part's rows
replace those that the file has of it. Exit status: 1 if a goal is missed or a part failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from benchmarks import exactness, speed
from benchmarks.cuda.agreement import Gpu, Row
from benchmarks.cuda.towers import jpegs, towers
from tests.golden.__main__ import comparisons
from tools.exactness import RESULTS

FILE = RESULTS / "cuda.jsonl"


def golden(gpu: Gpu) -> Iterator[Row]:
    """Every golden case: its quantities, and the largest error relative to its tolerance."""
    for folder in sorted(exactness.CASES.iterdir()):
        quantities = list(comparisons(folder))
        failed = [each.quantity for each in quantities if not each.ok]
        share = max(each.error / each.tolerance for each in quantities if each.tolerance)
        measured = f"{len(quantities)} quantities, largest error {share:.2f} of its tolerance"
        if failed:
            measured += f"; wrong: {', '.join(failed)}"
        yield Row(f"golden case {folder.name}", measured, "agrees", not failed)


def agreement(gpu: Gpu) -> Iterator[Row]:
    """Every metric on the device beside the CPU, in each dtype, and in two runs."""
    return chain(exactness.of_tiny(gpu), exactness.of_full_size(gpu))


def fast(gpu: Gpu) -> Iterator[Row]:
    """Ours beside the plain way on the same device."""
    for name in speed.ROWS:
        numbers = speed.measure(name, str(gpu.device))
        yield Row(
            numbers["about"], f"{numbers['ratio']:.2f} times as fast, {numbers['difference']:.1e} apart"
        )


PARTS: dict[str, Callable[[Gpu], Iterator[Row]]] = {
    "golden": golden,
    "agreement": agreement,
    "towers": towers,
    "jpegs": jpegs,
    "speed": fast,
}
"""In the order of what is to be known first; each takes less than 8 minutes."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; none: all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=FILE, metavar="FILE")
    flags = parser.parse_args(arguments)
    gpu = Gpu(flags.device, small=flags.device == "cpu")
    missed = 0
    with speed.environment("CAPEVAL_TEST_DEVICE", flags.device):
        for part in flags.parts or PARTS:
            lines = [line for line in speed.read(flags.out) if line.get("part") != part]
            rows = PARTS[part](gpu)
            try:
                for row in rows:
                    print(f"{part}: {row.quantity}: {row.measured}", flush=True)
                    missed += row.met is False
                    lines.append({"part": part, **speed.machine(flags.device), **asdict(row)})
            except Exception:
                traceback.print_exc()
                missed += 1
            flags.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
