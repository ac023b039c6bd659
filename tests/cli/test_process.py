"""`capeval` as a process: exit statuses, pipes, signals, terminals."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.cli.conftest import Ran

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "capeval_core"]
IMAGES = 1400  # more than the encoder yields at once
PATIENCE = 300.0
"""Seconds for a process that ends soon, beside any number of others."""


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


def test_the_demo_imports_no_package_for_one_class_of_it_and_says_at_once_that_it_loads() -> None:
    terminal, end = pty.openpty()
    command = [sys.executable, "-X", "importtime", "-m", "capeval_core", "demo"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=end)
    os.close(end)
    lines = read_all(terminal).splitlines()
    assert process.wait() == 0
    first = next(i for i, line in enumerate(lines) if line.startswith("capeval: "))
    imported = [line.rpartition("|")[2].strip() for line in lines]
    assert {"numpy", "pyarrow", "torch"} <= set(imported[first:])
    assert not {"numpy", "pyarrow", "torch"} & set(imported[:first])
    heavy = {"open_clip", "transformers", "torchvision", "timm", "ftfy", "torch._dynamo", "sympy", "datasets"}
    assert not heavy & set(imported)


def test_scores_are_printed_where_stderr_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    assert run("demo", "--out", folder, cwd=tmp_path).status == 0
    files = f"--candidates {folder}/good.json --images {folder}/images"
    command = f"{shlex.join(COMMAND)} score pacs --weights tiny {files}"
    closed, plain = (
        subprocess.run(["sh", "-c", command + end], env=environment(), capture_output=True, text=True)
        for end in (" 2>&-", "")
    )
    assert (closed.returncode, closed.stdout) == (0, plain.stdout)
    assert closed.stdout.startswith("PAC-S")


@pytest.fixture
def long_run(tmp_path: Path, seeded_weights: Path) -> list[str]:
    """Arguments of a run that takes some seconds: many images, one per batch."""
    rng = np.random.default_rng(5)
    (tmp_path / "images").mkdir()
    captions = {}
    for i in range(IMAGES):
        drawn = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)).resize((96, 96))
        drawn.save(tmp_path / "images" / f"{i}.bmp")
        captions[str(i)] = f"image {i % 7}"
    (tmp_path / "captions.json").write_text(json.dumps(captions))
    arguments = ["score", "pacs", "--candidates", tmp_path / "captions.json", "--images", tmp_path / "images"]
    arguments += ["--weights", seeded_weights, "--device", "cpu", "--batch-size", "1"]
    return [str(argument) for argument in arguments]


def start(arguments: list[str], **settings: Any) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [*COMMAND, *arguments]
    return subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True, **settings)


def wait_for(folder: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    """Until `folder` holds such a file; the process must still run then."""
    while not list(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def indices(shards: Iterable[Path]) -> list[int]:
    return [index for shard in shards for index in pq.read_table(shard)["index"].to_pylist()]


@pytest.mark.system
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
    )
    os.close(end)
    shown = b""
    while f"0/{IMAGES}".encode() not in shown:
        shown += os.read(terminal, 4096)
    wait_for(rows, "stamp.json", process)
    process.send_signal(signal.SIGINT)
    text = shown.decode() + read_all(terminal)
    out, _ = process.communicate(timeout=PATIENCE)
    lines = text.rstrip().split("\r\n")
    assert any(f"0/{IMAGES}" in line for line in lines[:-1])  # the bar, which has a line of its own
    message = f"capeval: interrupted; rows are kept in {rows}: run the same command again to resume"
    assert (lines[-1], out) == (message, "")
    assert process.returncode == 130


SWALLOWERS = {
    "a callback of a weak reference": "weakref.finalize(Thing(), press)",
    "a finalizer": "Thing.__del__ = lambda self: press()\nThing()",
    "a callback from C": "ctypes.CFUNCTYPE(None)(press)()",
    "a library that goes on after everything": "try: press()\nexcept BaseException: pass",
    "an import that makes another error of it": (
        "try: press()\nexcept BaseException: raise ImportError('cannot import half a module')"
    ),
    "a generator that is thrown away": (
        "def endless():\n    try: yield\n    finally: press()\nnext(endless())"
    ),
}
"""Places where Python or a library drops a KeyboardInterrupt that is raised there."""


@pytest.mark.system
@pytest.mark.parametrize("place", SWALLOWERS)
def test_ctrl_c_ends_a_command_that_drops_the_exception(place: str) -> None:
    # A command in place of `demo`, whose user presses Ctrl-C at such a place; it would run for a minute.
    program = (
        "import ctypes, os, signal, sys, time, types, weakref\n"
        "from capeval_core.__main__ import run\n"
        "class Thing: pass\n"
        "def press(): os.kill(os.getpid(), signal.SIGINT); time.sleep(0.01)\n"
        "def work(arguments):\n"
        f"    exec({SWALLOWERS[place]!r}, globals())\n"
        "    for _ in range(6000): time.sleep(0.01)\n"
        "    return 0\n"
        "demo = sys.modules['capeval_core.commands.demo'] = types.ModuleType('demo')\n"
        "demo.run, sys.argv = work, ['capeval', 'demo']\n"
        "sys.exit(run())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = communicate(process)
    assert (process.returncode, out, err) == (130, "", "capeval: interrupted\n")


@pytest.mark.system
def test_ctrl_c_ends_a_run_at_every_moment_of_its_start(long_run: list[str], tmp_path: Path) -> None:
    endless = [*long_run, "--rows", str(tmp_path / "rows")]
    for moment in np.linspace(0.0, 2.4, 9):  # imports, weights and the first rows
        process = start(endless)
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        out, err = communicate(process)
        if process.returncode in (1, -signal.SIGINT) and "in run\n" not in err:
            continue  # Python itself was still starting, and ended as it does
        assert (process.returncode, out) == (130, ""), (moment, err)
        assert err.startswith("capeval: interrupted") and err.count("\n") == 1, (moment, err)


def test_the_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    program = (
        "import sys, time, types\n"
        "from capeval_core.__main__ import run\n"
        "def work(arguments):\n"
        "    try: print('at work', flush=True); time.sleep(60)\n"
        "    finally: print('cleaning up', flush=True); time.sleep(60)\n"
        "demo = sys.modules['capeval_core.commands.demo'] = types.ModuleType('demo')\n"
        "demo.run, sys.argv = work, ['capeval', 'demo']\n"
        "sys.exit(run())"
    )
    process = subprocess.Popen([sys.executable, "-c", program], env=environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    for line in (b"at work\n", b"cleaning up\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
    communicate(process)
    assert process.returncode == -signal.SIGINT  # 130 in a shell


def communicate(process: subprocess.Popen[Any]) -> tuple[Any, Any]:
    """What a process that ends soon has printed; one that does not is killed, and has failed."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


@pytest.mark.system
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
    out, err = process.communicate(timeout=PATIENCE)
    assert (out, err) == ("", "")  # no bar in a pipe
    before = set(rows.glob("*.parquet"))
    kept = indices(before)
    assert 0 < len(kept) < IMAGES

    resumed = capeval(*resumable, "--json", tmp_path / "resumed.json")
    computed = indices(set(rows.glob("*.parquet")) - before)
    assert sorted(kept + computed) == list(range(IMAGES))  # nothing lost, nothing twice
    whole = capeval(*long_run, "--json", tmp_path / "whole.json")
    assert (resumed.status, resumed.out) == (0, whole.out)
    found, expected = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("resumed", "whole"))
    assert found.pop("scores") == pytest.approx(expected.pop("scores"), abs=1e-6)
    assert found["signature"] == expected["signature"] and found.keys() == expected.keys()


def read_all(terminal: int) -> str:
    read = b""
    with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
        while piece := os.read(terminal, 4096):
            read += piece
    os.close(terminal)
    return read.decode()
