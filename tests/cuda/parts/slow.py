"""One row, and a process that outlives it; a file ends its wait."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cuda.measuring import Gpu, Row


def measure(gpu: Gpu) -> Iterator[Row]:
    Path("child").write_text(str(subprocess.Popen(["sleep", "60"]).pid))
    yield Row("before", str(time.time_ns()))
    while not Path("go").exists():
        time.sleep(0.05)
