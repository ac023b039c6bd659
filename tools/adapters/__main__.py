"""The adapters, each with the newest release of its package, and a dated report.

    python -m tools.adapters                      all of them; the report goes to tools/adapters/report.md
    python -m tools.adapters trl --out -          one, the report on the terminal

Each package is installed from the package index into an environment in a temporary folder, beside the
packages of the interpreter that runs this (so that torch is not installed again). The number of every case
must equal that of `metric.score` to 1e-6; the exit status is 1 where one does not, or a package cannot be
installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from datetime import date
from pathlib import Path
from typing import Any

from capeval_core._version import __version__
from tools.adapters import Comparison
from tools.documents import CHECKOUT, markdown

PACKAGES = {
    "torchmetrics": "torchmetrics",
    "lmms_eval": "lmms-eval",
    "inspect_ai": "inspect-ai",
    "trl": "trl",
}
"""Module of each trial, and its package."""
TOLERANCE = 1e-6
REPORT = Path(__file__).with_name("report.md")


def environment(folder: Path, package: str) -> Path:
    """The interpreter of a new environment with a package, beside the packages of this one."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    beside = [path for path in sys.path if path.endswith("site-packages")]
    (Path(found.stdout.strip()) / "beside.pth").write_text("\n".join(beside) + "\n")
    install = ["nice", sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", package]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
        raise RuntimeError(f"{package} cannot be installed")
    return python


def run(name: str, package: str) -> dict[str, Any]:
    """What a trial prints as its last line."""
    with tempfile.TemporaryDirectory(prefix="capeval-") as folder:
        python = environment(Path(folder) / "venv", package)
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [python, "-m", f"tools.adapters.{name}"],
            cwd=folder,
            env={**os.environ, **offline, "PYTHONPATH": str(CHECKOUT), "HF_HOME": folder},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)  # paths of this machine are for the terminal alone
        raise RuntimeError(f"{package}: the trial ended with status {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def report(answers: list[dict[str, Any]], failures: list[str]) -> str:
    """The report in Markdown."""
    rows = [
        [
            f"{answer['package']} {answer['version']}",
            one["case"],
            f"{one['expected']:.7f}",
            f"{one['value']:.7f}",
            f"{Comparison(**one).difference:.0e}",
        ]
        for answer in answers
        for one in answer["compared"]
    ]
    head = f"# Adapters with the real packages\n\n`python -m tools.adapters`, {date.today()}, Python "
    head += f"{sys.version.split()[0]}, capeval {__version__}, weights `tiny`, on the CPU.\n\n"
    table = markdown(["package", "case", "metric.score", "through the package", "difference"], rows)
    return head + table + "\n" + "".join(f"\nFailed: {line}\n" for line in failures)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.adapters", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PACKAGES)}; all by default")
    parser.add_argument("--out", default=str(REPORT), help="file of the report; - for the terminal")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - PACKAGES.keys():
        parser.error(f"no adapter is named {', '.join(sorted(unknown))} (known: {', '.join(PACKAGES)})")
    answers, failures = [], []
    for name in options.names or PACKAGES:
        try:
            answers.append(run(name, PACKAGES[name]))
        except RuntimeError as error:
            failures.append(str(error))
    far = [
        f"{answer['package']}, {one['case']}: {one['value']} is not {one['expected']}"
        for answer in answers
        for one in answer["compared"]
        if not Comparison(**one).difference <= TOLERANCE
    ]
    text = report(answers, failures + far)
    if options.out == "-":
        print(text)
    else:
        Path(options.out).write_text(text, encoding="utf-8")
    for line in failures + far:
        print(line, file=sys.stderr)
    return 1 if failures or far else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
