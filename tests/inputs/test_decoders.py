"""Processes that decode image files: the same scores and errors, and no harm where one of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.demo import demo_clips
from capeval_core.errors import InputError
from tests.support.seams import LIMITS, frames_within_limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Paths of files in several modes, and the bytes of one."""
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    paths: list[Any] = []
    for i, mode in enumerate(("RGB", "L", "RGBA", "P", "CMYK", "RGB")):
        pixels = rng.integers(0, 256, (40 + 3 * i, 50, 3), dtype=np.uint8)
        paths.append(folder / f"{i} é.{ {'RGBA': 'png', 'P': 'gif'}.get(mode, 'jpg') }")
        Image.fromarray(pixels).convert(mode).save(paths[-1])
    return [*paths, paths[0].read_bytes(), Image.open(paths[1])]


def result_of(given: list[Any], decoders: int | None, **options: Any) -> Any:
    options = {"weights": "tiny", "device": "cpu", "cache": FeatureCache(0), **options}
    metric = capeval_core.load("pacs", decoders=decoders, **options)
    return metric.score(["a wall"] * len(given), given)


def children(of: int | str = "self") -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{of}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    return found


def test_scores_and_errors_are_the_same(files: list[Any], tmp_path: Path) -> None:
    (tmp_path / "cut.jpg").write_bytes(files[0].read_bytes()[:300])
    wrong = [tmp_path / "cut.jpg", tmp_path / "none.jpg", b"", files[0].read_bytes()[:200]]
    found: list[Any] = []
    for decoders in (None, 2):
        result = result_of([*files, *wrong], decoders, on_error="nan")
        with pytest.raises(InputError) as refused:
            result_of([*files, *wrong], decoders)
        found.append((result.scores[: len(files)], result.errors, result.signature, str(refused.value)))
    assert found[0] == found[1] and len(found[0][1]) == len(wrong)


def test_work_of_processes_that_are_killed_is_done_here(files: list[Any]) -> None:
    expected, before = result_of(files, None).scores, children()
    assert result_of(files, 3).scores == expected
    for pid in children() - before:
        os.kill(pid, signal.SIGKILL)
    with pytest.warns(UserWarning, match="process"):
        assert result_of(files, 3).scores == expected
    assert result_of(files, 3).scores == expected


def test_where_no_process_can_be_started_threads_decode(
    files: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = result_of(files, None).scores
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.warns(UserWarning, match="nowhere"):
        assert result_of(files, 4).scores == expected


@pytest.mark.parametrize("limit", ["page_frames", "page_pixels"])
def test_either_limit_refuses_an_upload(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LIMITS, limit, 1)
    with pytest.raises(InputError, match="has more than"):
        frames_within_limits(demo_clips()[0].image, "video")


PROGRAM = """
import sys, time
import capeval_core
from tests.inputs.test_decoders import children
metric = capeval_core.load("pacs", weights="tiny", device="cpu", decoders=1)
print(metric.score(["a wall"], sys.argv[1:2]).scores[0], *children(), flush=True)
if len(sys.argv) > 2:
    time.sleep(600)
"""


@pytest.mark.system
@pytest.mark.parametrize("way", ["ends", "killed"])
def test_a_plain_script_has_them_and_leaves_none_behind(
    files: list[Any], way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is imported from the current folder, which may hold what somebody downloaded; what Python
    prints as it starts is no answer; the script has no guard of its main part."""
    hostile, own = tmp_path / "hostile", tmp_path / "own"
    for name in ("capeval_core", "json", "PIL", "numpy"):
        (hostile / name).mkdir(parents=True)
        (hostile / name / "__init__.py").write_text(f"open({str(tmp_path / name)!r}, 'w')")
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.write(1, b'welcome to Python\\n')\n")
    (own / "program.py").write_text(PROGRAM)
    root = Path(capeval_core.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{own}{os.pathsep}{root}")
    command = [sys.executable, str(own / "program.py"), str(files[0]), *(["wait"] if way == "killed" else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=hostile) as program:
        assert program.stdout is not None
        lines = [program.stdout.readline() for _ in range(2)]
        score, *pids = lines[1].split()
        if way == "killed":
            program.send_signal(signal.SIGKILL)
        program.wait(600)
    assert float(score) == result_of(files[:1], None).scores[0] and pids
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hostile", "own"]
    for _ in range(2_000):
        if not any(_runs(int(pid)) for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"processes {pids} still run")


def _runs(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
