"""What there is to know about capeval on a CUDA GPU, in one command.

    python -m benchmarks.cuda [--part PART ...] [--minutes 25] --out benchmarks/cuda.md

Each part runs in a process of its own, for four minutes at most. Its rows are kept beside the table, in
`cuda.jsonl`, as they come: a part that fails or is cut short keeps what it has, and the same command goes on
with the parts that are not finished. `--part` repeats those named. `--rehearse` runs on the CPU in small
sizes, which shows that the parts run and nothing else: its goals of speed are missed. A table holds the rows
of one device.

Needs no network, but Python 3.12 with torch 2.11 and Triton 3.6 or newer, transformers, huggingface_hub, and
the wheels that `python -m benchmarks.cuda.carried FOLDER` collects (under 64 MB with the checkout: pyarrow
without what is not used, datasets, evaluate, open_clip_torch and the like). Beside the checkout there:

    python -m pip install --no-index --no-deps --target SITE FOLDER/*.whl
    PYTHONPATH=SITE python -m benchmarks.cuda --minutes 9 --out benchmarks/cuda.md

where `--minutes` lets a run end in time for a limit from outside. All other data are in the checkout or drawn
from seeds. Exit status: 0 if all goals are met, 1 if one is missed, 2 if a part did not finish or nothing can
run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

PARTS = ("tests", "matching", "towers", "jpeg", "hice", "blip2", "umic", "vilbert", "video")
SECONDS = 240.0
"""What one part may take."""
LEAST = 120.0
"""Seconds below which no further part is begun."""
Line = dict[str, Any]


def main(
    arguments: Sequence[str] | None = None,
    *,
    package: str = "benchmarks.cuda",
    parts: Sequence[str] = PARTS,
    seconds: float = SECONDS,
) -> int:
    """The command; package: whose modules are the parts, and whose `__main__` calls this."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {package}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--part",
        nargs="+",
        choices=parts,
        metavar="PART",
        help=f"only these of {', '.join(parts)}, also if they are finished",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the table, in Markdown")
    parser.add_argument("--minutes", type=float, default=25.0, help="for all parts together (default: 25)")
    parser.add_argument("--device", default="cuda", help="cuda (the default), or cuda:1")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, in small sizes")
    parser.add_argument("--alone", choices=parts, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.rehearse:
        given.device = "cpu"
    if not given.alone and (problem := _problem(given)):
        parser.error(problem)
    rows = Rows(given.out.with_suffix(".jsonl"))
    if given.alone:
        return run_alone(f"{package}.{given.alone}", given, rows)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    here = _machine(given)
    if others := sorted({line["machine"]["device"] for line in rows.of("machine")} - {here["device"]}):
        print(
            f"{given.out} has measurements of {others[0]}, and this is {here['device']}: pass another --out"
        )
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the part that is running
    started, wanted = time.monotonic(), given.part or rows.left(parts)
    for part in wanted:
        left = 60 * given.minutes - (time.monotonic() - started)
        if left < min(LEAST, seconds):
            print(
                f"== no time left for {', '.join(wanted[wanted.index(part) :])}: run this again", flush=True
            )
            break
        print(f"== {part}", flush=True)
        rows.begin(part, here)
        rows.end(part, run_apart(part, package, given, min(seconds, left)))
        given.out.write_text(table(rows, parts), encoding="utf-8")
    given.out.write_text(text := table(rows, parts), encoding="utf-8")
    print(text)
    if any(state(rows, part) for part in parts if part in wanted):
        return 2
    return int(any(line.get("met") is False for line in rows))


class Rows:
    """The lines of a file of JSON lines.

    Of each part: one with the `machine`, when it begins; its rows; one with `seconds` and `error`, when it
    has ended ('' where it finished).
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Line]:
        if self.path.is_file():
            for text in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    yield json.loads(text)
                except ValueError:  # a line that a kill cut short
                    continue

    def of(self, kind: str, part: str | None = None) -> list[Line]:
        """Lines with this key, of a part or of all."""
        return [line for line in self if kind in line and part in (None, line["part"])]

    def left(self, parts: Sequence[str]) -> list[str]:
        """Parts that are not finished: those never begun first, those that failed last."""

        def turn(part: str) -> int:
            ended = self.of("seconds", part)
            return 2 if ended else int(bool(self.of("machine", part)))

        finished = {line["part"] for line in self.of("seconds") if not line["error"]}
        return sorted((part for part in parts if part not in finished), key=turn)

    def begin(self, part: str, machine: dict[str, str]) -> None:
        """Drop what a part measured before; the file is replaced as a whole."""
        lines = [line for line in self if line["part"] != part]
        lines.append({"part": part, "machine": machine, "begun": time.time()})
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(map(_text, lines)), encoding="utf-8")
        partial.replace(self.path)

    def add(self, part: str, line: Line) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_text({"part": part, **line}))

    def end(self, part: str, error: str) -> None:
        """Close a part, unless its process did, which knows better why it failed."""
        if not self.of("seconds", part):
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n")  # after a line that was cut short
            took = time.time() - self.of("machine", part)[0]["begun"]
            self.add(part, {"seconds": round(took, 1), "error": error})


def _text(line: Line) -> str:
    return json.dumps(line, default=lambda value: value.item()) + "\n"  # numbers of NumPy


def run_apart(part: str, package: str, given: argparse.Namespace, seconds: float) -> str:
    """Run a part in a process of its own; why it ended early, '' where it did not."""
    command = [sys.executable, "-m", package, "--alone", part, "--out", str(given.out)]
    command += ["--device", given.device, *(["--rehearse"] if given.rehearse else [])]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}  # a name that is looked up in vain costs minutes
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, env=environment)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"took more than {seconds:.0f} seconds"
    finally:  # the processes that it started as well, and also if this one is interrupted
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"ended with status {status}" if status else ""


def run_alone(module: str, given: argparse.Namespace, rows: Rows) -> int:
    """Run a part in this process; its rows are kept as they come."""
    from benchmarks.cuda.measuring import Gpu

    if os.getpgrp() == os.getpid():
        threading.Thread(target=_end_with_parent, daemon=True).start()
    part, start, error = given.alone, time.perf_counter(), ""
    try:
        for row in importlib.import_module(module).measure(Gpu(given.device, small=given.rehearse)):
            print(f"{row.quantity}: {row.measured}" + (f" ({row.goal})" if row.goal else ""), flush=True)
            rows.add(part, asdict(row))
    except (Exception, SystemExit) as failure:
        traceback.print_exc()
        error = " ".join(traceback.format_exception_only(failure)[-1].split())[:300]
    rows.add(part, {"seconds": round(time.perf_counter() - start, 1), "error": error})
    return int(bool(error))


def _end_with_parent() -> None:
    """End this part, and what it started, once the command that reads its rows is gone, however it ended."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _problem(given: argparse.Namespace) -> str:
    """Why nothing can run with these arguments; '' where it can."""
    import torch

    if given.out.is_dir() or given.out.suffix == ".jsonl":
        return f"--out {given.out}: expected a file for the table, e.g. cuda.md (cuda.jsonl holds its rows)"
    if given.rehearse:
        return ""
    try:
        device = torch.device(given.device)
    except RuntimeError:
        return f"--device {given.device} is not a device: expected cuda, or cuda:1"
    if device.type != "cuda":
        return (
            f"--device {given.device} is not measured, only CUDA is: --rehearse runs small sizes on the CPU"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        return f"--device {given.device}: torch can use {count} CUDA GPUs here; --rehearse needs none"
    return ""


def _machine(given: argparse.Namespace) -> dict[str, str]:
    from benchmarks.cuda.measuring import Gpu

    return Gpu(given.device, small=given.rehearse).machine()


def state(rows: Rows, part: str) -> str:
    """Why a part has not finished; '' where it has."""
    if not rows.of("machine", part):
        return "not run"
    ended = rows.of("seconds", part)
    return str(ended[0]["error"]) if ended else "was cut short"


def table(rows: Rows, parts: Sequence[str]) -> str:
    """The measurements in Markdown, with a line for each part that did not finish."""
    machines: dict[str, list[str]] = {}
    for part in parts:
        for line in rows.of("machine", part):
            facts = ", ".join(f"{name} {value}" for name, value in line["machine"].items())
            took = [f" ({ended['seconds']:.0f} s)" for ended in rows.of("seconds", part)]
            machines.setdefault(facts.removeprefix("device "), []).append(part + "".join(took))
    text = ["# On CUDA", ""]
    text += [f"{_cell(facts)}: {', '.join(measured)}." for facts, measured in machines.items()]
    text += ["", "| part | quantity | measured | goal | met |", "| --- | --- | --- | --- | --- |"]
    for part in parts:
        for line in rows.of("quantity", part):
            met = {True: "yes", False: "no", None: ""}[line["met"]]
            text.append(f"| {part} | {_cell(line['quantity'])} | {_cell(line['measured'])} |")
            text[-1] += f" {_cell(line['goal'])} | {met} |"
        if why := state(rows, part):
            text.append(f"| {part} | *not finished* | {_cell(why)} | | |")
    return "\n".join(text) + "\n"


def _cell(text: str) -> str:
    """Text that stays within a cell of a table, as it is.

    >>> _cell("|x| < 1\\nof a*b")
    '\\\\|x\\\\| &lt; 1 of a\\\\*b'
    """
    for mark in "\\|*_`":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.replace("<", "&lt;").split())


if __name__ == "__main__":
    raise SystemExit(main())
