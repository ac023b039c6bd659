"""`capeval` as a process: exit statuses, pipes, signals, terminals."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.cli.conftest import Ran

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "capeval_core"]
PICTURES = 1400  # more than the encoder yields at once


def run(*arguments: object, cwd: Path) -> Ran:
    command = [*COMMAND, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True)
    return Ran(done.returncode, done.stdout, done.stderr)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def test_wrong_input_is_one_message_and_status_2(tmp_path: Path) -> None:
    ran = run("score", "pacs", "--candidates", "c.json", "--images", "here", cwd=tmp_path)
    assert (ran.status, ran.out) == (2, "")
    assert "c.json: there is no such file" in ran.err and "here: there is no such folder" in ran.err
    assert "Traceback" not in ran.err


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, "list"], env=environment(), stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "list"], env=environment(), stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, b"capeval: [Errno 28] No space left on device\n")


def test_what_needs_no_model_does_not_load_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from capeval_core.cli import main\n"
        "for a in (['list'], ['--help'], ['score', '--help'], ['score', 'refpacs', '--help'],"
        " ['convert', '--help'], ['demo', '--help'], ['compare', '--help']): assert main(a) == 0, a\n"
        "assert not {'torch', 'open_clip', 'datasets'} & set(sys.modules), 'loaded'"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def long_run(tmp_path: Path, seeded_weights: Path) -> list[str]:
    """Arguments of a run that takes some seconds: many pictures, one per batch."""
    rng = np.random.default_rng(5)
    (tmp_path / "images").mkdir()
    captions = {}
    for i in range(PICTURES):
        drawn = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)).resize((96, 96))
        drawn.save(tmp_path / "images" / f"{i}.bmp")
        captions[str(i)] = f"picture {i % 7}"
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    arguments = ["score", "pacs", "--candidates", tmp_path / "captions.json", "--images", tmp_path / "images"]
    arguments += ["--weights", seeded_weights, "--device", "cpu", "--batch-size", "1"]
    return [str(argument) for argument in arguments]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*COMMAND, *arguments], env=environment(), stdout=pipe, stderr=pipe, text=True)


def wait_for(folder: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    """Until `folder` holds such a file; the process must still run then."""
    while not list(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def indices(shards: Iterable[Path]) -> list[int]:
    return [index for shard in shards for index in pq.read_table(shard)["index"].to_pylist()]


def test_ctrl_c_on_a_terminal_ends_the_bar_and_says_how_to_resume(
    long_run: list[str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [*COMMAND, *long_run, "--rows", str(rows)]
    process = subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=end,
        text=True,
        # A job in the background of a script ignores Ctrl-C and hands that on: a terminal's does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(end)
    wait_for(rows, "stamp.json", process)
    process.send_signal(signal.SIGINT)
    seen = read_all(terminal)
    out, _ = process.communicate(timeout=60)
    lines = seen.rstrip().split("\r\n")
    assert f"0/{PICTURES}" in lines[0]  # the bar, which has a line of its own
    told = f"capeval: interrupted; rows are kept in {rows}: run the same command again to resume"
    assert (lines[-1], out) == (told, "")
    # Where the signal lands in code that a library passes to `exec`, Python itself ends as if killed by
    # it, which a shell reports as 130 too.
    assert process.returncode in (130, -signal.SIGINT)


def test_a_killed_run_resumes_to_the_same_numbers(
    long_run: list[str], tmp_path: Path, capeval: Callable[..., Ran]
) -> None:
    rows = tmp_path / "rows"
    resumable = [*long_run, "--rows", str(rows)]
    process = start(resumable)
    wait_for(rows, "stamp.json", process)
    # Rows reach the disk after some seconds: let them pass without work, so that most is left to do.
    process.send_signal(signal.SIGSTOP)
    time.sleep(5.1)
    process.send_signal(signal.SIGCONT)
    wait_for(rows, "*.parquet", process)
    process.kill()
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("", "")  # no bar in a pipe
    before = set(rows.glob("*.parquet"))
    kept = indices(before)
    assert 0 < len(kept) < PICTURES

    resumed = capeval(*resumable, "--json", tmp_path / "resumed.json")
    computed = indices(set(rows.glob("*.parquet")) - before)
    assert sorted(kept + computed) == list(range(PICTURES))  # nothing lost, nothing twice
    whole = capeval(*long_run, "--json", tmp_path / "whole.json")
    assert (resumed.status, resumed.out) == (0, whole.out)
    assert (tmp_path / "resumed.json").read_text() == (tmp_path / "whole.json").read_text()


def read_all(terminal: int) -> str:
    read = b""
    with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
        while piece := os.read(terminal, 4096):
            read += piece
    os.close(terminal)
    return read.decode()
