"""`python -m benchmarks.cuda`: what a part leaves behind however it ends, and how the next run goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.cuda.__main__ import PARTS, Rows, main, state

ROOT = Path(__file__).parents[2]
NAMES = ("quick", "missed", "failing", "slow", "killed")


def command(folder: Path, *more: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", "tests.cuda.parts", "--rehearse", "--out", "cuda.md", *more]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def run(folder: Path, *more: str) -> tuple[int, str]:
    process = command(folder, *more)
    output, _ = process.communicate()
    return process.returncode, output


def is_running(file: Path) -> bool:
    """Whether the process of this number is there, and is not one that ended and nobody has asked for."""
    try:
        facts = Path("/proc", file.read_text(), "stat").read_text()
    except FileNotFoundError:
        return False
    return facts.rpartition(")")[2].split()[0] != "Z"


def test_every_part_has_a_module() -> None:
    made = {path.stem for path in (ROOT / "benchmarks" / "cuda").glob("*.py")}
    assert set(PARTS) <= made


def test_a_part_that_ends_early_keeps_its_rows_and_the_reason(tmp_path: Path) -> None:
    status, output = run(tmp_path)
    rows = Rows(tmp_path / "cuda.jsonl")
    assert status == 2
    assert {name: state(rows, name) for name in NAMES} == {
        "quick": "",
        "missed": "",
        "failing": "ValueError: too | large by far",
        "slow": "took more than 25 seconds",
        "killed": "ended by SIGKILL",
    }
    assert [line["quantity"] for name in NAMES[2:] for line in rows.of("quantity", name)] == ["before"] * 3
    table = (tmp_path / "cuda.md").read_text()
    assert table.rstrip() == output[output.index("# On CUDA") :].rstrip()
    assert "CPU (rehearsal)" in table and "torch " in table and "quick (" in table
    assert r"| quick | a\|b &lt; c of d\*e | True |  |  |" in table
    assert "| missed | ratio | 1.00 | at least 5.00 | no |" in table
    assert "| slow | *not finished* | took more than 25 seconds | | |" in table
    assert not is_running(tmp_path / "child"), "a process outlives its part"

    # The next run leaves finished parts alone; parts that failed run again, and their old rows go.
    status, output = run(tmp_path, "--part", "failing", "missed")
    assert status == 2 and [line for line in output.splitlines() if line[:2] == "=="] == [
        "== failing",
        "== missed",
    ]
    assert len(rows.of("quantity", "failing")) == len(rows.of("machine", "failing")) == 1
    assert len(rows.of("quantity", "quick")) == 2 and state(rows, "killed") == "ended by SIGKILL"
    assert rows.left(NAMES) == ["failing", "slow", "killed"]
    assert run(tmp_path, "--part", "quick")[0] == 1, "a goal of another part is still missed"
    assert (tmp_path / "runs").read_text() == "quick\n" * 2


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_goes_on(tmp_path: Path, kill: signal.Signals) -> None:
    process = command(tmp_path, "--part", "slow", "quick")
    rows = Rows(tmp_path / "cuda.jsonl")
    while not rows.of("quantity", "slow"):
        assert process.poll() is None
        time.sleep(0.05)
    first = rows.of("quantity", "slow")[0]["measured"]
    process.send_signal(kill)
    assert process.wait() == (143 if kill == signal.SIGTERM else -signal.SIGKILL)
    for _ in range(200):  # its part ends by itself, a moment later
        if not is_running(tmp_path / "child"):
            break
        time.sleep(0.05)
    assert not is_running(tmp_path / "child"), "a process outlives the command"
    assert state(rows, "slow") == "was cut short" and state(rows, "quick") == "not run"
    with rows.path.open("a") as file:
        file.write('{"part": "slow", "quan')  # a line that was being written
    assert rows.left(("slow", "quick")) == ["quick", "slow"]
    (tmp_path / "go").touch()
    assert run(tmp_path, "--part", "slow", "quick")[0] == 0
    (again,) = rows.of("quantity", "slow")
    assert again["measured"] != first and state(rows, "slow") == state(rows, "quick") == ""


def test_time_for_all_parts_is_limited(tmp_path: Path) -> None:
    status, output = run(tmp_path, "--minutes", "0.01")
    assert status == 2 and "no time left for quick, missed" in output
    assert not (tmp_path / "runs").exists()


def test_another_device_keeps_its_table(tmp_path: Path) -> None:
    line = {"part": "quick", "machine": {"device": "NVIDIA H100"}, "begun": 0}
    (tmp_path / "cuda.jsonl").write_text(json.dumps(line) + "\n")
    (tmp_path / "cuda.md").write_text("numbers")
    status, output = run(tmp_path)
    assert status == 2 and "cuda.md has measurements of NVIDIA H100" in output and "--out" in output
    assert (tmp_path / "cuda.md").read_text() == "numbers"
    assert (tmp_path / "cuda.jsonl").read_text() == json.dumps(line) + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "gpu"], "--device gpu is not a device"),
        (["--device", "cpu"], "--rehearse runs small sizes on the CPU"),
        (["--device", "cuda:99"], "GPUs here; --rehearse needs none"),
        (["--rehearse", "--out", "rows.jsonl"], "expected a file for the table"),
        (["--rehearse", "--out", "."], "expected a file for the table"),
        (["--part", "umik"], "umic"),
    ],
)
def test_what_cannot_run_is_one_message(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["--out", "cuda.md", *arguments])
    assert ended.value.code == 2 and message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_folder_of_the_table_is_made(tmp_path: Path) -> None:
    assert run(tmp_path, "--part", "quick", "--out", "made/cuda.md")[0] == 0
    assert (tmp_path / "made" / "cuda.jsonl").is_file()
