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
        "backwards": ([f"{tmp_path}/in/{{011..009}}.jsonl"], ["009", "010", "011"]),
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


SCORED_TEXTS = {"a": ["a dog", "", "x"], "b.0": ["x", "a dog", "a dog", ""], "c": ["x"], "d": [""]}
"""Captions by shard: those of the references score 1 by ROUGE-L, others 0, and empty ones fail."""


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The current folder, with four shards of texts in `in`; the names of the shards."""
    monkeypatch.chdir(tmp_path)
    for name, captions in SCORED_TEXTS.items():
        rows: list[dict[str, object]] = []
        for number, caption in enumerate(captions):
            row = {"uid": f"{name}-{number}", "caption": caption, "references": ["a dog"]}
            more = {f"c{column:02}": 0 for column in range(14)} if name == "c" else {}
            rows.append(row | more)
        write_lines(tmp_path / "in" / f"{name}.jsonl", rows)
    (tmp_path / "in" / "._a.jsonl").write_text("of another system")
    return [*SCORED_TEXTS]


def lines_of(text: str) -> dict[str, str]:
    """The lines of a summary, by their first column."""
    return {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in text.splitlines()}


def test_counts_are_of_all_shards(
    texts: list[str], capeval: Capeval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: True)
        ran = capeval("shards", "score", "rougel", "--input", "in", "--output", "scores")
    assert ran.status == 0, ran.err
    summary = lines_of(ran.out)
    assert (summary["ROUGE-L"], summary["pairs"]) == ("4 shards", "9 (3 failed, 0 truncated)")
    assert summary["columns"] == "uid=uid, caption=caption, references=references"
    assert summary["not read"] == ", ".join(f"c{column:02}" for column in range(12)) + " and 2 more"
    shard = tmp_path / "in" / "a.jsonl"
    assert f"3 rows failed, as column `error` says:\n  3 rows, the first in {shard}: caption is" in ran.err
    # The bar as it is left, whose rate is by the time up to its last row, and that of the run by all of it.
    finished, pairs, rate = re.findall(
        r"([\d.]+)/4 shards \[[^\r]*?([\d,]+) pairs, ([\d,.]+) pairs/s", ran.err
    )[-1]
    pairs_per_second = summary["rate"].partition(" ")[0]
    assert (finished, pairs) == ("4.0", "9") and "(9 pairs in " in summary["rate"]
    assert float(rate.replace(",", "")) >= float(pairs_per_second.replace(",", "")) - 0.1
    manifest = json.loads(Path("scores/manifest.json").read_text())
    assert [manifest[name] for name in ("rows", "failed", "truncated")] == [9, 3, 0]
    assert manifest["failures"] == {"caption is empty": 3}
    entries = []
    for entry in manifest["shards"]:
        entries.append(
            (Path(entry["source"]).name, Path(entry["target"]).name, entry["rows"], entry["failed"])
        )
    assert entries == [
        (f"{name}.jsonl", f"{name}.parquet", len(captions), captions.count(""))
        for name, captions in SCORED_TEXTS.items()
    ]
    again = lines_of(capeval("shards", "score", "rougel", "--input", "in", "--output", "scores").out)
    assert (again["ROUGE-L"], again["rate"]) == ("4 shards (4 finished before)", "nothing to do")
    assert again["pairs"] == summary["pairs"]
    keep = ["shards", "filter", "scores", "--min", "0.5"]
    for before in ("", " (4 finished before)"):
        ran = capeval(*keep, "--output", "kept")
        found = lines_of(ran.out)
        assert (ran.status, found["shards"]) == (0, f"4 shards{before}")
        assert found["kept"] == "3 of 9 rows, 33.33%" and found["records"] == "3 of 9"
        assert found["left out"] == "3 below, 3 without a score"
        assert "why rows have no score:\n  3 rows: caption is empty\n" in ran.err
    numbers = [len(Path(f"kept/{name}.jsonl").read_text().splitlines()) for name in texts]
    assert numbers == [1, 2, 0, 0]
    assert capeval(*keep, "--uids", "kept.parquet").status == 0
    assert pq.read_table("kept.parquet")["uid"].to_pylist() == ["a-0", "b.0-1", "b.0-2"]
    best = capeval("shards", "filter", "scores", "--keep", "0.5", "--uids", "best.parquet")
    assert lines_of(best.out) == {"kept": "3 uids", "rule": "score >= 1", "uids": "best.parquet"}
    none = capeval("shards", "filter", "scores", "--min", "2", "--uids", "none.parquet")
    assert none.status == 1 and lines_of(none.out)["kept"] == "0 uids"
    drawn = lines_of(capeval("shards", "histogram", "scores", "--keep", "0.5").out)
    assert (drawn["rows"], drawn["mean"], drawn["range"]) == (
        "9 (3 without a score)",
        "0.5000",
        "0.0000 to 1.0000",
    )
    assert drawn["best 50%"] == "score >= 1.000000 keeps 3 rows, 50.00% of those with a score"
    assert drawn["50%"] == "0.0000" and drawn["75%"] == "1.0000"
    merged = capeval("shards", "merge", "scores", "--output", "merged.parquet")
    assert lines_of(merged.out) == {"rows": "9", "table": "merged.parquet"}


def test_a_check_names_shards_rows_and_unfinished_files(texts: list[str], capeval: Capeval) -> None:
    line = ["shards", "score", "rougel", "--input", "in", "--output", "scores"]
    assert capeval(*line).status == 0
    ran = capeval("shards", "check", "scores")
    assert ran.status == 1 and lines_of(ran.out)["shards"] == "4 (all whole)"
    assert lines_of(ran.out)["rows"] == "9 (3 failed)" and lines_of(ran.out)["uids"] == "all unique"
    assert "3 shards with rows that failed:\n  a.parquet: 1\n  b.0.parquet: 1\n  d.parquet: 1, all" in ran.err
    assert "why rows failed:\n  3 rows: caption is empty\n" in ran.err and "no retry" in ran.err
    assert "unfinished" not in ran.err
    # A shard without any score is the one fault, and a file of another run is none.
    Path("scores/d.parquet").unlink()
    Path("scores/.x.partial").write_text("")
    ran = capeval("shards", "check", "scores")
    assert ran.status == 0 and lines_of(ran.out)["rows"] == "8 (2 failed)"
    assert re.search(r"unfinished files.*:\n  \.x\.partial$", ran.err, re.MULTILINE)
    # Rows that come twice, and scores of two settings; the smaller part is to be scored again.
    write_lines(
        Path("in/d.jsonl"), [{"uid": uid, "caption": "x", "references": ["x"]} for uid in ("c-0", "a-2")]
    )
    other = ["shards", "score", "bleu", "--input", "in/d.jsonl", "--output", "other"]
    assert capeval(*other).status == 0
    Path("other/d.parquet").rename("scores/d.parquet")
    ran = capeval("shards", "check", "scores")
    assert ran.status == 1 and lines_of(ran.out)["uids"] == "2 rows repeat one"
    assert (
        len(
            re.findall(
                r"^signature +capeval:(?:rougel.* \(3 shards|bleu.* \(1 shard)\)$", ran.out, re.MULTILINE
            )
        )
        == 2
    )
    assert "2 rows with a uid that another row has:\n" in ran.err
    assert "  'c-0': 1 in c.parquet, 1 in d.parquet" in ran.err
    assert "  'a-2': 1 in a.parquet, 1 in d.parquet" in ran.err
    assert re.search(r"score these shards again with one:\n  d\.parquet$", ran.err, re.MULTILINE)


def test_two_shards_are_not_scored_into_one_file(texts: list[str], capeval: Capeval, tmp_path: Path) -> None:
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(b"")
    ran = capeval("shards", "score", "rougel", "--input", "in", "--output", "scores")
    assert ran.status == 2 and "in/a.jsonl " in ran.err and "in/a.jsonl.gz " in ran.err
    assert "a.parquet" in ran.err and "b.0" not in ran.err and not Path("scores").exists()
    # Two names of one shard are one.
    named = ["--input", "in/c.jsonl", str(tmp_path / "in" / "c.jsonl"), "in/{b,c}*.jsonl"]
    ran = capeval("shards", "score", "rougel", *named, "--output", "scores")
    assert ran.status == 0 and lines_of(ran.out)["ROUGE-L"] == "2 shards"


def test_a_shard_that_cannot_be_read_is_named_with_its_reason(texts: list[str], capeval: Capeval) -> None:
    write_lines(Path("in/b.1.jsonl"), [{"uid": "x", "captoin": "a dog", "references": ["a dog"]}])
    line = ["shards", "score", "rougel", "--input", "in", "--output", "scores"]
    ran = capeval(*line, "--manifest", "night.json")
    assert ran.status == 1 and lines_of(ran.out)["ROUGE-L"] == "5 shards (1 without scores)"
    assert lines_of(ran.out)["manifest"] == "scores/night.json"
    (reason,) = re.findall(r"1 of 5 shards failed:\n  (.*)", ran.err)
    assert "in/b.1.jsonl" in reason and "no column for caption" in reason and "uid, captoin" in reason
    without_scores = json.loads(Path("scores/night.json").read_text())["without_scores"]
    assert [Path(source).name for source in without_scores] == ["b.1.jsonl"]
    write_lines(Path("in/a.0.jsonl"), [{"uid": "x", "captoin": "a dog", "references": ["a dog"]}])
    ran = capeval(*line)
    assert lines_of(ran.out)["ROUGE-L"] == "6 shards (4 finished before, 2 without scores)"
    assert "2 of 6 shards failed:\n" in ran.err and "(2 shards)" in ran.err


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
