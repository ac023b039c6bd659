"""What there is to know about capeval on a CUDA GPU, in one command.

    python -m benchmarks.cuda [--part PART ...] --out benchmarks/cuda.md

Each part runs in a process of its own, for four minutes at most; its rows are kept beside the table
(`cuda.jsonl`) as they come, so that the same command goes on with the parts that are not finished.
`--part` repeats those named. `--rehearse` runs every part on the CPU in small sizes, which shows that it
runs and nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

PARTS = ("tests", "matching", "towers", "jpeg", "hice", "blip2", "umic", "vilbert", "video")
SECONDS = 240
"""What one part may take."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description=__doc__.split("\n")[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, help="only these, also if they are finished")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the table, in Markdown")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, in small sizes")
    parser.add_argument("--alone", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rehearse:
        given.device = "cpu"
    rows = given.out.with_suffix(".jsonl")
    if given.alone:
        run_alone(given.alone, given, rows)
        return 0
    finished = {line["part"] for line in read(rows) if line.get("finished")}
    wanted = given.part or [part for part in PARTS if part not in finished]
    kept = [line for line in read(rows) if line["part"] in finished.difference(wanted)]
    rows.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    for part in wanted:
        run_apart(part, given, rows)
        given.out.write_text(table(read(rows)), encoding="utf-8")
    print(table(read(rows)))
    lines = read(rows)
    return int(any(line.get("met") is False or "error" in line for line in lines))


def run_apart(part: str, given: argparse.Namespace, rows: Path) -> None:
    """Run a part in a process of its own; what ends it early is a line of its own."""
    command = [sys.executable, "-m", "benchmarks.cuda", "--alone", part, "--out", str(given.out)]
    command += ["--device", given.device, *(["--rehearse"] if given.rehearse else [])]
    print(f"== {part}", flush=True)
    try:
        status = subprocess.run(command, timeout=SECONDS, check=False).returncode
        error = f"ended with status {status}" if status else ""
    except subprocess.TimeoutExpired:
        error = f"took more than {SECONDS} seconds"
    if error:
        append(rows, {"part": part, "error": error})


def run_alone(part: str, given: argparse.Namespace, rows: Path) -> None:
    from benchmarks.cuda.measuring import Gpu

    gpu = Gpu(given.device, small=given.rehearse)
    start = time.perf_counter()
    for row in importlib.import_module(f"benchmarks.cuda.{part}").measure(gpu):
        print(f"{row.quantity}: {row.measured}" + (f" ({row.goal})" if row.goal else ""), flush=True)
        append(rows, {"part": part, **asdict(row)})
    seconds = round(time.perf_counter() - start, 1)
    append(rows, {"part": part, "finished": True, "seconds": seconds, "device": gpu.name})


def append(rows: Path, line: dict[str, Any]) -> None:
    with rows.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(rows: Path) -> list[dict[str, Any]]:
    """The lines so far; one that a kill cut short is left out."""
    if not rows.is_file():
        return []
    lines = []
    for text in rows.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def table(lines: list[dict[str, Any]]) -> str:
    """The measurements in Markdown, with a line for each part that did not finish."""
    devices = sorted({line["device"] for line in lines if "device" in line})
    text = [f"# On CUDA: {', '.join(devices) or 'nothing finished'}", ""]
    text += ["| part | quantity | measured | goal | met |", "| --- | --- | --- | --- | --- |"]
    for line in lines:
        if "quantity" in line:
            met = {True: "yes", False: "no", None: ""}[line["met"]]
            text.append(
                f"| {line['part']} | {line['quantity']} | {line['measured']} | {line['goal']} | {met} |"
            )
        elif "error" in line:
            text.append(f"| {line['part']} | did not finish | {line['error']} | | no |")
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
