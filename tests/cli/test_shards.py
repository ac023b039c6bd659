"""`capeval shards score`: finished shards, other settings, failed rows, and runs that are killed."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import capeval_core
from capeval_core.testing import count_forwards
from tests.cli.conftest import Capeval, Ran, unless_given
from tests.integrations.shard_files import picture
from tests.integrations.shard_inputs import write_shards

SCORE = ["shards", "score", "pacs", "--weights", "tiny", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with three shards of ten rows in `in`."""
    write_shards(tmp_path / "in", shards=3, rows=10)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shards(capeval: Capeval, folder: Path) -> Capeval:
    """`capeval shards score pacs` from `in` to `out`, or from others that arguments name."""

    def run(*arguments: object) -> Ran:
        usual = {"--input": "in/*.parquet", "--output": "out/"}
        return capeval(*SCORE, *unless_given(usual, arguments), *arguments)

    return run


def test_each_shard_becomes_a_file_with_the_scores_of_the_metric(shards: Capeval, folder: Path) -> None:
    assert shards().status == 0
    metric = capeval_core.load("pacs", weights="tiny", device="cpu")
    for name in ("00000", "00001", "00002"):
        given, found = (pq.read_table(folder / part / f"{name}.parquet") for part in ("in", "out"))
        columns = ["uid", "score", "parts", "truncated", "error", "words", "non_latin"]
        assert found.column_names == columns
        assert found["uid"] == given["uid"]
        scores = metric.score(given["caption"].to_pylist(), given["image"].to_pylist()).scores
        assert found["score"].to_pylist() == pytest.approx(scores, abs=1e-6) and len(set(scores)) == 10
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    assert [manifest[name] for name in ("rows", "failed", "truncated", "without_scores")] == [30, 0, 0, {}]
    assert manifest["signature"] == metric.signature() and len(manifest["shards"]) == 3
    assert manifest["shards"][2]["source"] == str(folder / "in" / "00002.parquet")
    written = {path: path.stat().st_mtime_ns for path in (folder / "out").glob("0*.parquet")}
    with count_forwards() as count:
        assert "3 shards (3 finished before)" in shards("--workers", "2").out  # which starts no Ray
    assert count.items <= 8  # the canary of weights
    (folder / "out" / "00001.parquet").unlink()
    assert "3 shards (2 finished before)" in shards().out
    changed = {path.name for path, time in written.items() if path.stat().st_mtime_ns != time}
    assert changed == {"00001.parquet"}


@pytest.fixture
def pictures(folder: Path) -> Path:
    """Two shards of JSON lines in `lines`, and their images in `a` and, otherwise drawn, in `b`."""
    (folder / "lines").mkdir()
    for shard in (0, 1):
        numbers = range(4 * shard, 4 * shard + 4)
        rows = [{"uid": f"{n}", "caption": f"a red square, number {n}", "image": f"{n}.png"} for n in numbers]
        (folder / "lines" / f"{shard}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for place, name in enumerate("ab"):
        (folder / name).mkdir()
        for n in range(8):
            (folder / name / f"{n}.png").write_bytes(picture(n + 100 * place))
    return folder


def scores_in(folder: Path) -> list[float | None]:
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    scores: list[float | None] = pa.concat_tables(tables)["score"].to_pylist()
    return scores


def test_rows_without_their_image_are_scored_again_when_it_is_there(shards: Capeval, pictures: Path) -> None:
    given = ("--input", "lines/*.jsonl", "--images", "a")
    assert shards(*given, "--output", "whole").status == 0
    assert shards(*given[:3], "lines", "--output", "none").status == 1  # no row has its image there
    expected = scores_in(pictures / "whole")
    (pictures / "late").mkdir()
    late = (1, 6)
    for n in late:
        (pictures / "a" / f"{n}.png").rename(pictures / "late" / f"{n}.png")
    assert "8 (2 failed" in shards(*given).out
    before = scores_in(pictures / "out")
    assert [i for i, score in enumerate(before) if score is None] == list(late)
    for path in (pictures / "late").iterdir():
        path.rename(pictures / "a" / path.name)
    assert "8 (2 failed" in shards(*given).out
    with count_forwards() as count:
        ran = shards(*given, "--retry-failed")
    assert ran.status == 0 and "8 (0 failed" in ran.out and "(2 pairs in" in ran.out
    assert count.items <= 8 + 2 * len(late)  # the canary of weights, and images and texts of those rows
    after = scores_in(pictures / "out")
    assert [after[i] for i in range(8) if i not in late] == [before[i] for i in range(8) if i not in late]
    assert after == pytest.approx(expected, abs=1e-6)  # float32, in other batches


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_shards_are_named_by_folders_and_ranges(capeval: Capeval, tmp_path: Path) -> None:
    for number in range(8, 12):
        write_lines(tmp_path / "in" / f"{number:03}.jsonl", [{"text": "a dog", "refs": ["a dog"]}])
    (tmp_path / "in" / "008_stats.json").write_text("{}")
    score = ["shards", "score", "rougel", "--output"]
    forms = {
        "folder": ([f"{tmp_path}/in"], ["008", "009", "010", "011"]),
        "range": ([f"{tmp_path}/in/{{009..010}}.jsonl"], ["009", "010"]),
        "list": ([f"{tmp_path}/{{in,in}}/0{{08,1*}}.jsonl"], ["008", "010", "011"]),
    }
    for name, (inputs, names) in forms.items():
        assert capeval(*score, tmp_path / name, "--input", *inputs).status == 0
        assert sorted(path.stem for path in (tmp_path / name).glob("*.parquet")) == names
    ran = capeval(*score, tmp_path / "gap", "--input", f"{tmp_path}/in/{{010..013}}.jsonl")
    assert ran.status == 2 and not (tmp_path / "gap").exists()  # two shards would be lost without a word
    assert "012.jsonl" in ran.err and "013.jsonl" in ran.err and "011.jsonl" not in ran.err
    (tmp_path / "empty").mkdir()
    assert capeval(*score, tmp_path / "out", "--input", tmp_path / "empty").status == 2


def test_advice_names_only_what_helps(capeval: Capeval, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = [{"caption": "", "image": "0.png"}, {"caption": "a dog", "image": "0.png"}]
    write_lines(tmp_path / "in" / "a.jsonl", rows)
    write_lines(tmp_path / "in" / "b.jsonl", [*rows, {"caption": "a dog", "image": "late.png"}])
    (tmp_path / "in" / "0.png").write_bytes(picture(0))
    out = tmp_path / "out"

    def score(name: str, *flags: str) -> Ran:
        return capeval(*SCORE, "--input", tmp_path / "in" / name, "--output", out, *flags)

    ran = score("a.jsonl")
    assert "caption is empty" in ran.err and "--retry-failed" not in ran.err
    assert "--retry-failed" not in score("a.jsonl").err  # no retry fills an empty caption
    ran = capeval("shards", "check", out)
    assert ran.status == 0 and "caption is empty" in ran.err and "--retry-failed" not in ran.err
    score("b.jsonl")
    assert "--retry-failed" in score("b.jsonl").err
    ran = capeval("shards", "check", out)
    assert "2 rows: caption is empty" in ran.err and "--retry-failed" in ran.err
    manifest = json.loads((out / "manifest.json").read_text())
    assert (
        sorted(manifest["failures"].values()) == [1, 1] == sorted(manifest["shards"][0]["failures"].values())
    )
    content = bytearray((out / "a.parquet").read_bytes())
    content[40] ^= 1
    (out / "a.parquet").write_bytes(content)
    pq.write_table(pa.table({"x": [1]}), out / "mine.parquet")
    ran = capeval("shards", "check", out)
    assert ran.status == 1 and "a.parquet" in ran.err and "mine.parquet" in ran.err
    assert "delete" not in ran.err  # the next run makes a damaged output again
    assert "a.parquet" in score("a.jsonl").err
    (out / "mine.parquet").unlink()
    assert capeval("shards", "check", out).status == 0


@pytest.mark.system
def test_the_bar_of_one_worker_moves_within_a_shard(folder: Path) -> None:
    write_shards(folder / "one", shards=1, rows=300, distinct=300)
    command = [sys.executable, "-m", "capeval_core", *SCORE, "--input", "one/*", "--output", "out"]
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    # Drawn at every step, however fast they come.
    run = subprocess.Popen(command, stderr=inner, env={**os.environ, "TQDM_MININTERVAL": "0"})
    os.close(inner)
    drawn = b""
    with contextlib.suppress(OSError):  # which the end of a terminal is
        while chunk := os.read(terminal, 65_536):
            drawn += chunk
    os.close(terminal)
    assert run.wait() == 0
    shares = [float(share) for share in re.findall(r"([\d.]+)/1 shards", drawn.decode())]
    assert shares == sorted(shares) and any(0 < share < 1 for share in shares)
    assert re.search(r"\d+ pairs, [\d.,]+ pairs/s", drawn.decode())


@pytest.mark.system
def test_ctrl_c_and_kills_leave_every_row_once(tmp_path: Path, capeval: Capeval) -> None:
    """10^4 rows; one Ctrl-C, and two kills of the process at random moments."""
    uids = write_shards(tmp_path / "in", shards=20, rows=500)
    rng = np.random.default_rng(0)
    given = [*SCORE, "--input", f"{tmp_path}/in/*.parquet", "--output"]
    for number in (signal.SIGINT, signal.SIGKILL, signal.SIGKILL):
        before = len(list(tmp_path.glob("out/0*.parquet")))
        command = [sys.executable, "-m", "capeval_core", *given, str(tmp_path / "out")]
        run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while len(list(tmp_path.glob("out/0*.parquet"))) <= before and run.poll() is None:
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 0.3)))
        run.send_signal(number)
        _, err = run.communicate()
        assert "Traceback" not in err and not (tmp_path / "out" / "manifest.json").exists()
        if number == signal.SIGINT:
            assert run.returncode == 130 and "shards that are finished are kept" in err
            assert not list(tmp_path.glob("out/.*"))
        finished = list(tmp_path.glob("out/*.parquet"))
        assert 0 < len(finished) < 20
        assert all(pq.read_metadata(path).num_rows == 500 for path in finished)
    for out in ("out", "expected"):
        assert capeval(*given, tmp_path / out).status == 0
    expected, found = (
        pa.concat_tables(pq.read_table(path) for path in sorted(tmp_path.glob(f"{out}/0*.parquet")))
        for out in ("expected", "out")
    )
    assert found["uid"].to_pylist() == uids and len(expected["score"].unique()) > 5_000
    assert np.abs(found["score"].to_numpy() - expected["score"].to_numpy()).max() <= 1e-7


def test_images_that_lie_on_their_side_are_noted_once_for_all_shards(
    capeval: Capeval, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    radiograph = Image.fromarray(np.arange(64 * 48, dtype=np.uint16).reshape(64, 48) * 20)
    for number in range(2):
        images = []
        for stored, options in (
            (Image.open(io.BytesIO(picture(number))), {"exif": exif}),
            (Image.open(io.BytesIO(picture(number + 2))), {}),
            (radiograph, {}),
        ):
            file = io.BytesIO()
            stored.save(file, "PNG", **options)
            images.append({"bytes": file.getvalue(), "path": None})
        columns = {"uid": [f"{number}-{i}" for i in range(3)], "caption": ["a", "b", "c"], "image": images}
        pq.write_table(pa.table(columns), tmp_path / f"{number}.parquet")
    given = [*SCORE, "--input", tmp_path / "*.parquet", "--output"]
    found = capeval(*given, tmp_path / "out")
    assert found.err.count("note:") == 1 and "2 of 6 images" in found.err and "--exif-turn" in found.err
    rows = pq.read_table(tmp_path / "out" / "0.parquet").to_pylist()
    assert [row["score"] is None for row in rows] == [False, False, True] and "8 bits" in rows[2]["error"]
    assert "note:" not in capeval(*given, tmp_path / "quiet", "--quiet").err
    turned = capeval(*given, tmp_path / "turned", "--exif-turn")
    assert "note:" not in turned.err and "|exif:turn|" in turned.out
    again = pq.read_table(tmp_path / "turned" / "0.parquet").to_pylist()
    before, after = ([row["parts"]["cosine"] for row in table[:2]] for table in (rows, again))
    assert after[1] == pytest.approx(before[1], abs=1e-6) and abs(after[0] - before[0]) > 1e-5
    assert capeval(*given, tmp_path / "out", "--exif-turn").status == 2
