"""Type checkers know the options of `load`: mypy, run on right and on wrong calls."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason='needs mypy: pip install "capeval[dev]"')

ROOT = Path(__file__).parents[2]
CALLS = """
from typing import Any
import capeval_core
from capeval_core.metric import CaptionMetric

reveal_type(capeval_core.load("pacs"))  # PacS
reveal_type(capeval_core.load("refpacs", w=3, prompt=None, weights="tiny", batch_size=2))  # RefPacS
reveal_type(capeval_core.load("hices", regions={"1": "masks"}, dtype="bfloat16"))  # HiceS
reveal_type(capeval_core.load("eco", members=["tiny"]))  # Eco
reveal_type(capeval_core.load("of another package", smell=3))  # CaptionMetric
a = capeval_core.load("pacs", w="abc")  # error: Need type annotation for "a"
b = capeval_core.load("pacs", regions="colours")  # error: Need type annotation for "b"
c = capeval_core.load("hices", dtype="float64")  # error: Need type annotation for "c"
d = capeval_core.load("pacs", batch_size=1.5)  # error: Need type annotation for "d"
capeval_core.load("eco", w=2).score([["a"]], ["b"])  # error: "UnknownOptionOrWrongType[Never]" has

def of(name: str, **options: Any) -> CaptionMetric:
    reveal_type(capeval_core.load(name, **options))  # CaptionMetric
    return capeval_core.load("pacs", on_error="ignore")  # error: Incompatible return value type

reveal_type(capeval_core.load("pacs").score(["a"], ["b"]))  # Result
reveal_type(capeval_core.load(3))  # error: No overload variant of "load" matches argument type "int"
reveal_type(capeval_core.list_metrics())  # list[str]
capeval_core.laod("pacs")  # error: Module has no attribute "laod"
"""


@pytest.mark.system
def test_mypy_accepts_right_calls_and_refuses_wrong_ones(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        ROOT / "setup.cfg",
        "--hide-error-context",
        file,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    reported: dict[int, str] = {}
    for line in done.stdout.splitlines():
        if report := re.match(r".*calls\.py:(\d+): (error: .*|note: Revealed type is .*)", line):
            reported.setdefault(int(report[1]), report[2])
    assert reported, done.stdout + done.stderr
    for number, line in enumerate(CALLS.splitlines(), 1):
        expected, report = line.partition("  # ")[2], reported.get(number, "")
        if expected and not expected.startswith("error: "):
            assert re.fullmatch(rf"note: Revealed type is .*\b{re.escape(expected)}\"", report), (
                line,
                report,
            )
        else:
            assert report.startswith(expected) and bool(report) == bool(expected), (line, report)
