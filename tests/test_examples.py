"""The scripts in `examples/` run as they stand, with less to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_captioner_is_trained(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / "train_captioner.py"),
            *("--scenes", "32", "--steps", "4", "--evaluations", "2"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )
    assert done.returncode == 0, done.stderr
    evaluations = re.findall(
        r"^step +(\d+) .* PAC-S \d\.\d{3} .* RefPAC-S \d\.\d{3}$", done.stdout, re.MULTILINE
    )
    assert evaluations == ["0", "2", "4", "4"]
    assert "capeval:pacs|weights:tiny@" in done.stdout
    assert not list(tmp_path.iterdir())
