"""All golden cases on CUDA, the suite's CUDA half, agreement of every metric, and a Trainer that evaluates.

Golden cases run side by side, each in a process of its own, and beside them pytest in a few that share the
GPU; of each case the largest error relative to its tolerance is a row. Rows come as they are done.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from benchmarks.cuda.measuring import Gpu, Row, or_failure

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "golden" / "cases"
SUITE = ("tests/cuda", "tests/matching", "tests/test_contract.py")
PROCESSES = 6
"""How many golden cases run at a time, and how many tests; each has a CUDA context of half a gigabyte."""
FULL_SIZE = ("mobilesamv2", "pacs-vit-b32-full")
SECONDS = 110


def measure(gpu: Gpu) -> Iterator[Row]:
    cases = sorted(path for path in CASES.iterdir() if path.is_dir())
    if gpu.small:
        cases = [path for path in cases if path.name in ("pacs-vit-tiny", "greedy-matching")]
    cases.sort(key=lambda path: path.name not in FULL_SIZE)  # which take longest
    with ThreadPoolExecutor(PROCESSES + 1) as together:
        running = [together.submit(suite, gpu), *(together.submit(golden, path, gpu) for path in cases)]
        for row in as_completed(running):
            yield row.result()
    yield from or_failure("every metric with tiny weights", lambda: of_tiny(gpu))
    yield from or_failure("Trainer", lambda: of_trainer(gpu))


def of_tiny(gpu: Gpu) -> Iterator[Row]:
    """Every metric with the packaged weights: devices, dtypes, two runs."""
    from benchmarks import exactness

    yield from exactness.of_tiny(gpu)


def of_trainer(gpu: Gpu) -> Iterator[Row]:
    """Evaluations in a Trainer on the device."""
    from benchmarks import trainer

    yield from trainer.measure(gpu)


def golden(folder: Path, gpu: Gpu) -> Row:
    """A golden case on the device: its quantities, and the largest error relative to its tolerance."""
    quantity = f"golden case {folder.name}"
    status, output = _run(gpu, "-m", "tests.golden", "--device", gpu.device.type, str(folder))
    lines = [line.split("  ") for line in output.splitlines() if line.startswith(f"{folder.name}  ")]
    wrong = [line for line in lines if line[-1] == "FAIL"]
    shares = [
        (float(error) / float(limit) if float(limit) else float(error), name)
        for _, name, error, limit, _ in (line for line in lines if len(line) == 5)
    ]
    if not shares or (status and not wrong):
        return Row(quantity, f"ended with status {status}: {_last(output)}", "every quantity agrees", False)
    share, name = max(shares)
    measured = (
        f"{len(lines) - len(wrong)} of {len(lines)} quantities; largest error {share:.2g} of its tolerance"
    )
    return Row(quantity, f"{measured} ({name})", "every quantity agrees", not wrong and not status)


def suite(gpu: Gpu) -> Row:
    """The tests that differ on a GPU, by pytest."""
    paths = ("tests/cuda/test_networks.py",) if gpu.small else SUITE
    options = ["-q", "-p", "no:cacheprovider", "-n", "2" if gpu.small else str(PROCESSES), "--tb=line"]
    status, output = _run(gpu, "-m", "pytest", *options, *paths)
    print(output[-6000:], flush=True)
    counts = {
        kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|skipped|errors?)", output)
    }
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, flags=re.MULTILINE)
    measured = ", ".join(f"{number} {kind}" for kind, number in counts.items()) or _last(output)
    if failed:
        measured += f": {', '.join(failed[:8])}"
    return Row(
        f"tests: {' '.join(paths)}", measured, "none fails", status == 0 and counts.get("passed", 0) > 0
    )


def _run(gpu: Gpu, *command: str) -> tuple[int, str]:
    environment = {**os.environ, "CAPEVAL_TEST_DEVICE": gpu.device.type, "OMP_NUM_THREADS": "2"}
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        output = error.stdout or b""
        return 124, (output.decode() if isinstance(output, bytes) else output) + "\ntook too long"
    return done.returncode, done.stdout


def _last(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "no output")[:300]
