"""Processes that decode image files: the same pixels, keys and errors, and no harm where one of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import capeval_core
from capeval_core.inputs.decoders import Decoders
from capeval_core.inputs.decoding import square_pixels
from capeval_core.inputs.visual import InputImage

BICUBIC = Image.Resampling.BICUBIC


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    paths = []
    for i, mode in enumerate(("RGB", "L", "RGBA", "P", "CMYK", "RGB", "RGB", "RGB")):
        pixels = rng.integers(0, 256, (40 + 3 * i, 50, 3), dtype=np.uint8)
        suffix = {"RGBA": "png", "P": "gif"}.get(mode, "jpg")
        paths.append(folder / f"{i} é.{suffix}")
        Image.fromarray(pixels).convert(mode).save(paths[-1])
    return paths


@pytest.fixture(scope="module")
def two() -> Iterator[Decoders]:
    decoders = Decoders(2)
    yield decoders
    decoders.close()


def images(files: list[Path]) -> list[InputImage]:
    return [InputImage.of(path, f"images[{i}]") for i, path in enumerate(files)]


def test_pixels_and_keys_are_those_of_this_process(two: Decoders, files: list[Path]) -> None:
    there, here = images(files), images(files)
    assert two.check([image.source for image in there]) == [True] * len(files)
    assert [image.source._key for image in there] == [image.key for image in here]
    for own, image in zip(two.pixels([image.source for image in there], 24, BICUBIC), here, strict=True):
        assert isinstance(own, np.ndarray) and own.dtype == np.uint8 and own.flags.writeable
        assert np.array_equal(own, square_pixels(image.load(), 24, BICUBIC))


def test_bytes_go_there_and_other_images_stay_here(two: Decoders, files: list[Path]) -> None:
    data = files[0].read_bytes()
    given = [data, Image.open(files[0]), data[:200], b"", str(files[1]), "nowhere.jpg"]
    sources = [InputImage.of(each).source for each in given]
    assert two.check(sources) == [True, False, False, False, True, False]
    pixels = two.pixels(sources, 24, BICUBIC)
    assert [each is not None for each in pixels] == [True, False, False, False, True, False]


def test_a_path_is_that_of_the_folder_at_hand(
    two: Decoders, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files[0].parent)
    assert two.check([InputImage.of(files[0].name).source]) == [True]


def test_the_current_folder_may_be_gone(
    two: Decoders, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert two.check([InputImage.of(files[0]).source]) == [True]


def test_scores_and_errors_are_the_same(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "cut.jpg").write_bytes(files[0].read_bytes()[:300])
    given, captions = [*files, tmp_path / "cut.jpg", tmp_path / "none.jpg"], ["a wall"] * (len(files) + 2)
    found: list[Any] = []
    for decoders in (None, 2):
        options: dict[str, Any] = {"weights": "tiny", "device": "cpu", "decoders": decoders}
        own = capeval_core.load("pacs", **options, cache=capeval_core.cache.FeatureCache(0), on_error="nan")
        result = own.score(captions, given)
        with pytest.raises(ValueError) as refused:
            capeval_core.load("pacs", **options).score(captions, given)
        found.append((result.scores[: len(files)], result.errors, result.signature, str(refused.value)))
    assert found[0] == found[1] and len(found[0][1]) == 2


def test_work_of_a_process_that_is_killed_is_done_here(files: list[Path]) -> None:
    decoders, sources = Decoders(2), [image.source for image in images(files)]
    assert decoders.pixels(sources[:1], 24, BICUBIC)[0] is not None
    processes = decoders.processes
    assert len(processes) == 1
    processes[0].kill()
    with pytest.warns(UserWarning, match="a process that decodes images ended with status -9"):
        assert decoders.pixels(sources[:2], 24, BICUBIC) == [None, None]
    assert decoders.pixels(sources[:1], 24, BICUBIC)[0] is not None  # by the other one
    decoders.processes[0].kill()
    with pytest.warns(UserWarning, match="ended"):
        decoders.check(sources)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decoders.check(sources) == [False] * len(sources)  # none is left, and nobody waits


def test_where_no_process_can_be_started_threads_decode(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.warns(UserWarning, match="could not be used .*nowhere"):
        assert Decoders(1).check([InputImage.of(files[0]).source]) == [False]


def test_nothing_is_imported_from_the_current_folder(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may hold what somebody downloaded. `hostile` is the current one, the program elsewhere."""
    hostile = tmp_path / "hostile"
    for name in ("capeval_core", "json", "PIL", "numpy", "sitecustomize"):
        (hostile / name).mkdir(parents=True)
        (hostile / name / "__init__.py").write_text(f"open({str(tmp_path / name)!r}, 'w')")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(files[0])]
    monkeypatch.setenv("PYTHONPATH", str(Path(capeval_core.__file__).parents[1]))
    done = subprocess.run(command, cwd=hostile, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[True]") and not done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hostile", "program.py"]


def test_what_python_prints_as_it_starts_is_no_answer(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nos.write(1, b'welcome')\nprint('to Python')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    decoders, [image] = Decoders(1), images(files[:1])
    assert decoders.check([image.source]) == [True]
    assert image.source._key == images(files[:1])[0].key
    decoders.close()


def test_a_package_that_is_found_another_way_is_found_there_as_well(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(Path(capeval_core.__file__).parents[1])
    monkeypatch.setattr(sys, "path", ["", *(folder for folder in sys.path if folder != own)])
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(files[0].parent)
    decoders = Decoders(10**9)  # of which it starts what it needs
    assert decoders.check([images(files)[0].source]) == [True]
    decoders.close()


def test_all_that_end_at_once_are_counted(files: list[Path]) -> None:
    """Else a thread would wait for one of them for ever."""
    decoders, sources = Decoders(8), [image.source for image in images(files)]
    asked = threading.Barrier(8)

    def ask() -> None:
        asked.wait()
        for _ in range(3):
            decoders.check(sources)
            for process in list(decoders.processes):
                process.kill()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(600)
    assert not any(thread.is_alive() for thread in threads)
    decoders.close()
    assert not decoders.processes and decoders._left <= 0


def test_many_threads_ask(two: Decoders, files: list[Path]) -> None:
    sources = [image.source for image in images(files)]
    expected = [square_pixels(image.load(), 16, BICUBIC) for image in images(files)]
    wrong: list[int] = []

    def ask(start: int) -> None:
        for i in range(start, start + 10):
            k = i % len(sources)
            [own] = two.pixels([sources[k]], 16, BICUBIC)
            if not isinstance(own, np.ndarray) or not np.array_equal(own, expected[k]):
                wrong.append(i)

    threads = [threading.Thread(target=ask, args=(7 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


PROGRAM = """
import sys, time
from capeval_core.inputs.decoders import Decoders
from capeval_core.inputs.visual import InputImage
decoders = Decoders(1)
print(decoders.check([InputImage.of(sys.argv[1]).source]), decoders.processes[0].pid, flush=True)
if len(sys.argv) > 2:
    time.sleep(600)
"""


@pytest.mark.parametrize("way", ["ends", "killed"])
def test_no_process_outlives_the_one_that_asks(files: list[Path], way: str) -> None:
    """Also from a script without a guard of its main part, which nobody imports a second time."""
    command = [sys.executable, "-c", PROGRAM, str(files[0]), *(["wait"] if way == "killed" else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        sound, pid = program.stdout.readline().rsplit(maxsplit=1)
        if way == "killed":
            program.send_signal(signal.SIGKILL)
        program.wait(600)
    assert sound == "[True]"
    for _ in range(12_000):
        if not _runs(int(pid)):
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still runs")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
