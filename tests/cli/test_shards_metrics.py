"""`capeval shards score` by several metrics in one pass, with features, keys of pictures and text columns."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import capeval_core
from capeval_core.testing import count_forwards
from tests.cli.conftest import Capeval
from tests.integrations.shard_files import picture, rows_of, tar_members, write_parquet, write_tar

TINY = ["--weights", "tiny", "--device", "cpu"]
METRICS = ("clips", "pacs", "refpacs", "specs")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two shards in `in`: tars whose pictures come again, and a broken row."""
    (tmp_path / "in").mkdir()
    for shard in range(2):
        rows = rows_of(30, 30 * shard)
        rows["caption"][4] = ""
        rows["image"][7] = b"no image"
        write_tar(tmp_path / "in" / f"{shard}.tar", tar_members(rows, fields=True))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_equal(first: pa.Table, second: pa.Table) -> None:
    """Equal columns, and numbers up to the rounding of float32."""
    assert first.schema == second.schema
    for name in ("uid", "error", "truncated", "words", "non_latin"):
        assert first[name].to_pylist() == second[name].to_pylist(), name
    for left, right in zip(first.to_pylist(), second.to_pylist(), strict=True):
        assert left["score"] == pytest.approx(right["score"], abs=1e-6)
        assert left["parts"] == pytest.approx(right["parts"], abs=1e-6)


def test_each_metric_has_a_folder_as_of_a_run_of_its_own(capeval: Capeval, folder: Path) -> None:
    ran = capeval("shards", "score", ",".join(METRICS), "--input", "in/*.tar", "--output", "all", *TINY)
    assert ran.status == 0, ran.err
    for metric in METRICS:
        assert metric in ran.out
        alone = ["shards", "score", metric, "--input", "in/*.tar", "--output", f"alone/{metric}", *TINY]
        assert capeval(*alone).status == 0
        for name in ("0.parquet", "1.parquet"):
            assert_equal(pq.read_table(f"all/{metric}/{name}"), pq.read_table(f"alone/{metric}/{name}"))
        notes = [
            json.loads(Path(f"{parent}/{metric}/manifest.json").read_text()) for parent in ("all", "alone")
        ]
        for note in notes:
            for shard in note["shards"]:
                shard.pop("target")
        assert notes[0] == notes[1]
        # Another run finds either of them finished.
        again = capeval(*alone[:5], "--output", f"all/{metric}", *TINY)
        assert "2 shards (2 finished before)" in again.out
        assert capeval("shards", "check", f"all/{metric}").status == 0
        assert capeval("shards", "histogram", f"all/{metric}", "--keep", "0.4").status == 0
        kept = ["--keep", "0.4", "--output", f"kept-{metric}"]
        assert capeval("shards", "filter", f"all/{metric}", *kept).status == 0
        assert capeval("shards", "merge", f"all/{metric}", "--output", f"{metric}.parquet").status == 0


def test_numbers_do_not_depend_on_the_order_of_metrics(capeval: Capeval, folder: Path) -> None:
    for name, metrics in (("a", "refpacs,clips,pacs"), ("b", "pacs,refpacs,clips")):
        line = ["shards", "score", metrics, "--input", "in/0.tar", "--output", name, *TINY]
        assert capeval(*line).status == 0
    for metric in ("clips", "pacs", "refpacs"):
        assert Path(f"a/{metric}/0.parquet").read_bytes() == Path(f"b/{metric}/0.parquet").read_bytes()


def test_a_network_of_several_metrics_runs_once_and_pictures_are_decoded_once(
    capeval: Capeval, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["shards", "score", "--input", "in/0.tar", *TINY]

    def forwards(metrics: str) -> int:
        for metric in metrics.split(","):
            capeval_core.load(metric, weights="tiny", device="cpu")  # whose canary is not counted
        with count_forwards() as count:
            ran = capeval(*line[:2], metrics, *line[2:], "--output", f"of-{metrics}")
        assert ran.status == 0, ran.err
        return count.items

    decoded: list[Any] = []
    alone = forwards("refpacs")
    assert forwards("pacs,refpacs") <= alone  # refpacs has the texts of pacs among its own
    opened = Image.open
    monkeypatch.setattr(Image, "open", lambda *given, **more: decoded.append(1) or opened(*given, **more))
    forwards("clips")
    once = len(decoded)
    decoded.clear()
    forwards("clips,pacs,specs")
    assert len(decoded) == once > 0


def test_a_metric_that_is_added_later_is_the_only_one_that_runs(capeval: Capeval, folder: Path) -> None:
    line = ["--input", "in/*.tar", "--output", "out", *TINY]
    assert capeval("shards", "score", "clips,pacs", *line).status == 0
    before = {path: path.stat().st_mtime_ns for path in Path("out").glob("*/*.parquet")}
    assert capeval("shards", "score", "clips,pacs,specs", *line).status == 0
    assert all(path.stat().st_mtime_ns == time for path, time in before.items()) and len(before) == 4
    Path("out/clips/1.parquet").unlink()
    assert capeval("shards", "score", "clips,pacs,specs", *line).status == 0
    changed = {str(path) for path, time in before.items() if path.stat().st_mtime_ns != time}
    assert changed == {"out/clips/1.parquet"}
    other = capeval("shards", "score", "clips,pacs", *line, "--set", "pacs.w=1")
    assert other.status == 2 and "out/pacs/0.parquet" in other.err and "out/clips" not in other.err


def test_the_rate_is_that_of_the_run_and_of_no_metric(capeval: Capeval, folder: Path) -> None:
    line = ["--input", "in/*.tar", "--output", "out", *TINY]
    ran = capeval("shards", "score", "clips,pacs", *line)
    *blocks, rate = ran.out.strip().split("\n\n")
    assert [block.split()[0] for block in blocks] == ["CLIP-S", "PAC-S"]
    assert rate.split()[0] == "rate" and ran.out.count("rate ") == 1
    alone = capeval("shards", "score", "pacs", "--input", "in/*.tar", "--output", "alone", *TINY)
    assert alone.out.strip().count("\n\n") == 0 and alone.out.count("rate ") == 1


@pytest.mark.parametrize(
    ("metrics", "more", "named"),
    [
        ("clips,clips", [], "clips"),
        ("clips,pac", [], "pac"),
        ("clips,pacs", ["--set", "specs.scale=unit"], "specs"),
        ("pacs", ["--set", "pacs.w=1"], "--set"),
        ("pacs,rougel", ["--features"], "rougel"),
        ("rougel", ["--duplicates"], "rougel"),
        ("clips,eco", [], "eco"),
        ("clips,pacs", ["--media", "video", "--features"], "image"),
    ],
)
def test_a_wrong_line_is_refused(
    metrics: str, more: list[str], named: str, capeval: Capeval, folder: Path
) -> None:
    ran = capeval("shards", "score", metrics, "--input", "in/*.tar", "--output", "out", *TINY, *more)
    assert ran.status == 2 and named in ran.err and not Path("out").exists()


def test_rows_that_one_metric_alone_cannot_score(capeval: Capeval, folder: Path) -> None:
    rows = rows_of(6)
    members = tar_members(rows, fields=True)
    content = json.loads(members[5][1])
    del content["references"]
    members[5] = (members[5][0], json.dumps(content).encode())
    write_tar(folder / "in" / "2.tar", members)
    line = ["--input", "in/2.tar", "--output", "out", *TINY]
    assert capeval("shards", "score", "pacs,refpacs", *line).status == 0
    assert pq.read_table("out/pacs/2.parquet")["score"].null_count == 0
    errors = pq.read_table("out/refpacs/2.parquet")["error"].to_pylist()
    assert [error is None for error in errors] == [True, True, False, True, True, True]
    assert "references" in errors[2]


# ---- features


def test_features_are_those_of_the_scores(capeval: Capeval, folder: Path) -> None:
    line = ["shards", "score", "pacs", "--input", "in/*.tar", "--output", "out", "--features", *TINY]
    assert capeval(*line).status == 0
    scores = pq.read_table("out/0.parquet")
    table = pq.read_table("out/features/0.parquet")
    assert table["uid"].to_pylist() == scores["uid"].to_pylist()
    assert table.column_names == ["uid", "image_key", "image", "text"]
    note = json.loads(pq.read_metadata("out/features/0.parquet").metadata[b"capeval_features"])
    assert note["signature"].startswith("capeval:pacs|weights:tiny@")
    image, text = (
        table[name].combine_chunks().flatten().to_numpy().reshape(30, -1).astype(float)
        for name in ("image", "text")
    )
    cosines = (image * text).sum(axis=1)
    failed = [score is None for score in scores["score"].to_pylist()]
    assert [bool(np.isnan(cosine)) for cosine in cosines] == failed and sum(failed) == 2
    expected = [parts["cosine"] for parts in scores["parts"].to_pylist() if parts is not None]
    # A feature of d numbers is rounded by 2^-11 of each of them.
    assert cosines[~np.isnan(cosines)] == pytest.approx(expected, abs=2**-10)
    keys = table["image_key"].to_pylist()
    assert keys[0] == keys[5] != keys[1] and [key is None for key in keys] == failed
    # Rows are as they are without features.
    assert capeval(*line[:5], "--output", "plain", *TINY).status == 0
    assert_equal(scores, pq.read_table("plain/0.parquet"))


def test_features_are_resumed_and_exact(capeval: Capeval, folder: Path) -> None:
    line = ["shards", "score", "clips,pacs", "--input", "in/*.tar", "--output", "out", *TINY]
    assert capeval(*line, "--features").status == 0
    files = [Path(f"out/{metric}/features/{shard}.parquet") for metric in ("clips", "pacs") for shard in "01"]
    whole = {path: path.read_bytes() for path in files}
    with count_forwards() as count:
        assert capeval(*line, "--features").status == 0
    assert count.items <= 16  # canaries of weights
    files[0].unlink()
    damaged = bytearray(whole[files[3]])
    damaged[200] ^= 4
    files[3].write_bytes(damaged)
    scores = Path("out/clips/0.parquet").read_bytes()
    assert capeval(*line, "--features").status == 0
    assert {path: path.read_bytes() for path in files} == whole
    assert Path("out/clips/0.parquet").read_bytes() == scores
    # Features that are wanted later.
    assert capeval(*line[:5], "--output", "later", *TINY).status == 0
    assert capeval(*line[:5], "--output", "later", *TINY, "--features").status == 0
    assert Path("later/pacs/features/1.parquet").read_bytes() == whole[files[3]]


@pytest.mark.parametrize("fault", ["missing", "all missing", "cut", "of other scores", "foreign"])
def test_check_says_which_features_are_missing_or_damaged(fault: str, capeval: Capeval, folder: Path) -> None:
    line = ["shards", "score", "pacs", "--input", "in/*.tar", "--output", "out", "--features", *TINY]
    assert capeval(*line).status == 0
    assert capeval("shards", "check", "out").status == 0
    path = Path("out/features/1.parquet")
    if fault == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif fault == "of other scores":
        path.write_bytes(Path("out/features/0.parquet").read_bytes())
    elif fault == "foreign":
        write_parquet(path, rows_of(2))
    else:
        path.unlink()
    if fault == "all missing":
        shutil.rmtree(path.parent)
    ran = capeval("shards", "check", "out")
    assert ran.status == 1 and "features/1.parquet" in ran.err
    assert ("features/0.parquet" in ran.err) == (fault == "all missing")
    if fault == "foreign":
        assert "move" in ran.err
        path.unlink()
    else:
        assert "--features" in ran.err
    assert capeval(*line).status == 0
    assert capeval("shards", "check", "out").status == 0


@pytest.mark.parametrize("first_without", [False, True])
def test_features_of_rows_that_are_scored_again(first_without: bool, capeval: Capeval, folder: Path) -> None:
    images = folder / "images"
    images.mkdir()
    lines = []
    for number in range(6):
        (images / f"{number}.png").write_bytes(picture(number))
        lines.append(json.dumps({"uid": f"{number}", "caption": "a dog", "image": f"{number}.png"}) + "\n")
    (folder / "in" / "a.jsonl").write_text("".join(lines))
    line = ["shards", "score", "pacs", "--input", "in/a.jsonl", "--images", "images", "--features", *TINY]
    assert capeval(*line, "--output", "whole").status == 0
    content = (images / "2.png").read_bytes()
    (images / "2.png").unlink()
    assert capeval(*line, "--output", "out").status == 0
    (images / "2.png").write_bytes(content)
    if first_without:  # rows have scores now, but no features
        plain = [argument for argument in line if argument != "--features"]
        assert capeval(*plain, "--output", "out", "--retry-failed").status == 0
        ran = capeval("shards", "check", "out")
        assert ran.status == 1 and "features/a.parquet" in ran.err
    assert capeval(*line, "--output", "out", "--retry-failed").status == 0
    assert capeval("shards", "check", "out").status == 0
    tables = [pq.read_table(f"{name}/features/a.parquet") for name in ("whole", "out")]
    for name in ("image", "text"):
        arrays = [table[name].combine_chunks().flatten().to_numpy() for table in tables]
        assert np.abs(arrays[0].astype(float) - arrays[1].astype(float)).max() <= 2**-11
    assert tables[0]["image_key"].to_pylist() == tables[1]["image_key"].to_pylist()


# ---- duplicates and columns of captions


def test_rows_of_a_picture_that_an_earlier_row_has_are_marked(capeval: Capeval, folder: Path) -> None:
    line = ["shards", "score", "pacs,clips", "--output", "out", "--duplicates", *TINY]
    # The later shard first: which row is the earlier one is decided by names.
    assert capeval(*line, "--input", "in/1.tar").status == 0
    ran = capeval(*line, "--input", "in/0.tar")
    assert ran.status == 0 and "51 rows" in ran.out  # 5 pictures in 56 rows with a score
    assert capeval("shards", "merge", "out/clips", "--output", "merged.parquet").status == 0
    table = pq.read_table("merged.parquet")
    seen: set[str] = set()
    expected = []
    for key in table["image_key"].to_pylist():
        expected.append(key is not None and key in seen)
        seen.add(key)
    assert table["duplicate"].to_pylist() == expected and len(seen) == 6
    # Keys that are wanted later.
    assert capeval(*line[:3], "--output", "plain", "--input", "in/*.tar", *TINY).status == 0
    assert capeval("shards", "merge", "plain/clips", "--output", "plain.parquet").status == 0
    assert "duplicate" not in pq.read_table("plain.parquet").column_names
    ran = capeval(*line[:3], "--output", "plain", "--duplicates", "--input", "in/*.tar", *TINY)
    assert ran.status == 0 and "51 rows" in ran.out


@pytest.mark.system
def test_marks_are_those_of_one_worker_with_two(capeval: Capeval, folder: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install capeval[ray]")
    for name, workers in (("one", "1"), ("two", "2")):
        line = ["shards", "score", "clips,pacs", "--duplicates", "--features", "--input", "in/*.tar", *TINY]
        assert capeval(*line, "--output", name, "--workers", workers).status == 0
        assert capeval("shards", "merge", f"{name}/pacs", "--output", f"{name}.parquet").status == 0
    assert_equal(pq.read_table("one.parquet"), pq.read_table("two.parquet"))
    assert pq.read_table("one.parquet")["duplicate"] == pq.read_table("two.parquet")["duplicate"]


def test_captions_are_measured(capeval: Capeval, folder: Path) -> None:
    captions = ["a red dog", "собака bit", "犬", "123 !", "", None, "Ａ ſé"]
    rows = {"caption": captions, "image": [picture(0)] * len(captions)}
    write_parquet(folder / "in" / "c.parquet", rows)
    assert capeval("shards", "score", "pacs", "--input", "in/c.parquet", "--output", "out", *TINY).status == 0
    table = pq.read_table("out/c.parquet")
    assert table["words"].to_pylist() == [3, 2, 1, 2, 0, None, 2]
    assert table["non_latin"].to_pylist() == [0, pytest.approx(6 / 9), 1, 0, 0, None, 0]


@pytest.mark.system
def test_large_pictures_do_not_stay_in_memory(capeval: Capeval, folder: Path) -> None:
    """Pixels beyond the bound are decoded again, with the same scores."""
    large = []
    for number in range(3):
        file = io.BytesIO()
        Image.effect_noise((5_500, 5_000), 20 + number).convert("RGB").save(file, "JPEG", quality=30)
        large.append(file.getvalue())
    write_parquet(folder / "in" / "l.parquet", {"caption": ["a", "b", "c"] * 2, "image": large * 2})
    for name in ("clips,pacs", "pacs"):
        line = ["shards", "score", name, "--input", "in/l.parquet", "--output", f"of-{name}", *TINY]
        assert capeval(*line).status == 0
    assert_equal(pq.read_table("of-clips,pacs/pacs/l.parquet"), pq.read_table("of-pacs/l.parquet"))


@pytest.mark.system
def test_killed_runs_of_several_metrics_lose_nothing(capeval: Capeval, tmp_path: Path) -> None:
    for shard in range(8):
        (tmp_path / "in").mkdir(exist_ok=True)
        write_tar(tmp_path / "in" / f"{shard}.tar", tar_members(rows_of(40, 40 * shard), fields=True))
    line = ["shards", "score", "clips,pacs", "--features", "--duplicates", *TINY]
    line += ["--input", str(tmp_path / "in"), "--output"]
    assert capeval(*line, tmp_path / "whole").status == 0
    command = [sys.executable, "-m", "capeval_core", *line, str(tmp_path / "out")]
    for number in range(6):
        process = subprocess.Popen(
            command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=os.environ
        )
        time.sleep(3 + 0.2 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert capeval(*line, tmp_path / "out").status == 0
    for path in sorted((tmp_path / "whole").rglob("*.parquet")):
        other = tmp_path / "out" / path.relative_to(tmp_path / "whole")
        assert other.read_bytes() == path.read_bytes(), path
    assert not list((tmp_path / "out").rglob(".*"))
