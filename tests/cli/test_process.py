"""`capeval` as a process: pipes, signals, terminals, disks, and the page that it serves."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import CAPTIONS, Capeval, read_json, write_json
from tests.support.small_disk import largest_file

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "capeval_core"]
IMAGES = 1400  # more than the encoder yields at once
PATIENCE = 300.0
"""Seconds for a process that ends soon, beside any number of others."""


def environment(**more: object) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        **{k: str(v) for k, v in more.items()},
    }


def start(command: list[str], **settings: Any) -> subprocess.Popen[str]:
    given: dict[str, Any] = {"env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, **(given | settings))


def communicate(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a process that ends soon has printed; one that does not is killed, and has failed."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def read_all(terminal: int) -> str:
    read = b""
    with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
        while piece := os.read(terminal, 4096):
            read += piece
    os.close(terminal)
    return read.decode()


def wait_for(folder: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    """Until `folder` holds such a file; the process must still run then."""
    while not list(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.fixture
def long_run(tmp_path: Path) -> list[str]:
    """Arguments of a run that takes some seconds: many images, one per batch."""
    rng = np.random.default_rng(5)
    (tmp_path / "images").mkdir()
    for i in range(IMAGES):
        drawn = Image.fromarray(rng.integers(0, 256, (3, 3, 3), dtype=np.uint8)).resize((96, 96))
        drawn.save(tmp_path / "images" / f"{i}.bmp")
    captions = write_json(tmp_path / "captions.json", {str(i): f"image {i % 7}" for i in range(IMAGES)})
    arguments = ["score", "pacs", "--candidates", captions, "--images", tmp_path / "images"]
    arguments += ["--weights", "tiny", "--device", "cpu", "--batch-size", "1"]
    return [str(argument) for argument in arguments]


@pytest.mark.system
def test_ctrl_c_on_a_terminal_ends_the_bar_and_says_how_to_resume(
    long_run: list[str], tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = start([*COMMAND, *long_run, "--rows", str(rows)], stderr=end)
    os.close(end)
    shown = b""
    while f"0/{IMAGES}".encode() not in shown:
        shown += os.read(terminal, 4096)
    wait_for(tmp_path, "rows", process)
    process.send_signal(signal.SIGINT)
    text = shown.decode() + read_all(terminal)
    out, _ = process.communicate(timeout=PATIENCE)
    lines = text.rstrip().split("\r\n")
    assert any(f"0/{IMAGES}" in line for line in lines[:-1])  # the bar, which has a line of its own
    message = f"capeval: interrupted; rows are kept in {rows}: run the same command again to resume"
    assert (lines[-1], out, process.returncode) == (message, "", 130)


@pytest.mark.system
def test_ctrl_c_ends_a_run_at_every_moment_of_its_start(long_run: list[str], tmp_path: Path) -> None:
    for moment in np.linspace(0.0, 2.4, 9):  # imports, weights and the first rows
        process = start([*COMMAND, *long_run, "--rows", str(tmp_path / "rows")])
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        out, err = communicate(process)
        if process.returncode in (1, -signal.SIGINT) and "in run\n" not in err:
            continue  # Python itself was still starting, and ended as it does
        assert (process.returncode, out) == (130, ""), (moment, err)
        assert err.startswith("capeval: interrupted") and err.count("\n") == 1, (moment, err)


def test_a_full_disk_costs_neither_the_score_nor_the_other_file(
    score: Capeval, capeval: Capeval, files: Path
) -> None:
    out, best = files / "scored.json", files / "best.csv"
    for place in (out, best):
        place.write_text("before")
    with largest_file(200):
        ran = score("pacs", "--json", out, "--quiet")
    assert ran.status == 2 and "PAC-S" in ran.out and out.read_text() == "before"
    assert ran.err == f"capeval: --json {out} cannot be written (File too large)\n"
    write_json(files / "pools.json", {name: [*texts, "a wall"] for name, texts in CAPTIONS.items()})
    given = ["--candidates", files / "pools.json", "--images", files / "images", "--weights", "tiny"]
    with largest_file(200):  # enough for the chosen captions
        ran = capeval("rerank", *given, "--members", "tiny", "--out", best, "--json", out)
    assert ran.status == 2 and "ECO" in ran.out and f"--json {out} cannot be written" in ran.err
    assert best.read_text().startswith("filename,caption\n") and out.read_text() == "before"
    assert not list(files.glob(".*"))


def test_a_full_disk_names_the_report_and_leaves_no_empty_folder(score: Capeval, files: Path) -> None:
    report = files / "report"
    with largest_file(8192):
        ran = score("pacs", "--report", report)
    assert ran.status == 2 and "PAC-S" in ran.out and not list(files.glob(".*"))
    assert str(report) in ran.err and "File too large" in ran.err and ".partial" not in ran.err
    assert not report.exists()


@pytest.mark.parametrize("closed", ["<&- 2>&-", "2>&- >&-"])
def test_streams_that_are_closed_change_no_status_and_no_file(closed: str, files: Path) -> None:
    """With stderr closed the next file that is opened has its number, into which libraries write."""
    given = f"--candidates {files}/captions.json --references {files}/references.json --json {files}/out.json"
    command = f"{sys.executable} -m capeval_core score bleu {given} {closed}"
    out, _ = communicate(process := start(["sh", "-c", command]))
    assert process.returncode == 0 and ("BLEU-4" in out) == (">&- " not in f"{closed} ".replace("2>&-", ""))
    assert read_json(files / "out.json")["key"] == "bleu_4"


@pytest.mark.parametrize("place", ["captions.json", "images/../captions.json", "link.json"])
def test_a_file_that_is_read_is_not_written_whatever_it_is_called(
    place: str, score: Capeval, files: Path
) -> None:
    (files / "link.json").symlink_to(files / "captions.json")
    before = (files / "captions.json").read_text()
    ran = score("pacs", "--json", files / place)
    assert ran.status == 2 and "which it would overwrite" in ran.err
    assert (files / "captions.json").read_text() == before


@pytest.mark.system
@pytest.mark.parametrize("medium", ["image", "video"])
def test_a_page_is_served_until_ctrl_c(medium: str, tmp_path: Path, capeval: Capeval) -> None:
    pytest.importorskip("gradio", reason="needs gradio: pip install capeval[page]")
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    more = [] if medium == "image" else ["--no-browser", "--media", "video", "--host", "0.0.0.0"]
    process = start(
        [*COMMAND, "page", "pacs", "--weights", "tiny", *more],
        env=environment(BROWSER=browser),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        stderr=None,
    )
    assert process.stdout is not None
    title, _, url = process.stdout.readline().removesuffix(" (Ctrl-C ends it)\n").partition(" is served at ")
    with urlopen(f"{url}config") as answer:
        config = json.load(answer)
    components = [component["props"] for component in config["components"]]
    about = [one["value"] for one in components if one.get("elem_id") == "about"]
    assert title.endswith("for videos") == (about == ["video"]) == (medium == "video")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ran = capeval("page", "pacs", "--weights", "tiny", "--port", port)
    assert (ran.status, ran.err) == (2, f"capeval: --port {port} is taken: pass another\n")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert opened.exists() == (medium == "image") and (
        not opened.exists() or opened.read_text() == f"{url}\n"
    )
