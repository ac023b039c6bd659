"""`capeval shards score`: planning, finished shards, what is refused, and runs that are killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import capeval_core
from capeval_core.commands.arguments import in_words_of_the_user
from capeval_core.errors import wrong_option
from capeval_core.integrations.shards import BatchScorer, ShardResult
from capeval_core.integrations.shards.outputs import COUNTS
from capeval_core.integrations.shards.plan import PlannedShard, plan_shards
from capeval_core.integrations.shards.workers import score_one
from capeval_core.models.batching import count_forwards
from capeval_core.registry import metric_class
from tests.cli.conftest import Ran
from tests.integrations.shard_files import picture
from tests.integrations.shard_inputs import write_shards

Shards = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with three shards of ten rows in `in`."""
    write_shards(tmp_path / "in", shards=3, rows=10)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shards(capeval: Callable[..., Ran], folder: Path) -> Shards:
    """`capeval shards score pacs` from `in` to `out`; further arguments follow, and win."""

    def run(*arguments: object) -> Ran:
        given = ("--weights", "tiny", "--device", "cpu", "--input", "in/*.parquet", "--output", "out/")
        return capeval("shards", "score", "pacs", *given, *arguments)

    return run


def test_each_shard_becomes_a_file_with_the_scores_of_the_metric(shards: Shards, folder: Path) -> None:
    ran = shards()
    assert ran.status == 0, ran.err
    signature = capeval_core.load("pacs", weights="tiny").signature()
    assert "PAC-S      3 shards\n" in ran.out and "30 (0 failed, 0 truncated)" in ran.out
    assert signature in ran.out and " pairs/s (30 pairs in " in ran.out
    for name in ("00000", "00001", "00002"):
        given, found = (pq.read_table(folder / part / f"{name}.parquet") for part in ("in", "out"))
        assert found.column_names == ["uid", "score", "parts", "truncated", "error"]
        assert found["uid"] == given["uid"]
        metric = capeval_core.load("pacs", weights="tiny", device="cpu")
        scores = metric.score(given["caption"].to_pylist(), given["image"].to_pylist()).scores
        assert found["score"].to_pylist() == pytest.approx(scores, abs=1e-6) and len(set(scores)) == 10
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    assert {name: manifest[name] for name in ("rows", "failed", "truncated", "without_scores")} == {
        **{"rows": 30, "failed": 0, "truncated": 0},
        "without_scores": {},
    }
    assert manifest["signature"] == signature and len(manifest["shards"]) == 3
    assert manifest["shards"][2]["source"] == str(folder / "in" / "00002.parquet")
    assert len({shard["checksum"] for shard in manifest["shards"]}) == 3


def test_a_second_run_encodes_the_new_shards_alone(shards: Shards, folder: Path) -> None:
    assert shards().status == 0
    written = {path: path.stat().st_mtime_ns for path in (folder / "out").glob("0*.parquet")}
    with count_forwards() as count:
        again = shards()
    assert again.status == 0 and count.items <= 8  # the canary of weights
    assert "3 shards (3 finished before)" in again.out and "nothing to do" in again.out
    (folder / "out" / "00001.parquet").unlink()
    assert "3 shards (2 finished before)" in shards().out
    changed = {path.name for path, time in written.items() if path.stat().st_mtime_ns != time}
    assert changed == {"00001.parquet"}


def test_scores_of_another_signature_are_refused_before_any_work(shards: Shards, folder: Path) -> None:
    assert shards().status == 0
    (folder / "out" / "00000.parquet").unlink()
    ran = shards("--w", "2.5")
    assert ran.status == 2
    for part in ("00001.parquet: holds other scores", "|w:2|", "|w:2.5|", "another --output"):
        assert part in ran.err
    assert not (folder / "out" / "00000.parquet").exists()
    (folder / "out" / "00000.parquet").write_bytes((folder / "in" / "00000.parquet").read_bytes())
    ran = shards()
    assert ran.status == 2 and "00000.parquet: is Parquet of something else" in ran.err


def test_a_shard_that_is_cut_off_costs_no_other(shards: Shards, folder: Path) -> None:
    whole = (folder / "in" / "00001.parquet").read_bytes()
    (folder / "in" / "00001.parquet").write_bytes(whole[: len(whole) // 2])
    ran = shards()
    assert ran.status == 1
    assert "3 shards (1 without scores)" in ran.out and "20 (0 failed" in ran.out
    assert "1 of 3 shards failed:" in ran.err and "in/00001.parquet: " in ran.err
    names = sorted(path.name for path in (folder / "out").iterdir())
    assert names == ["00000.parquet", "00002.parquet", "manifest.json"]
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    assert list(manifest["without_scores"]) == [str(folder / "in" / "00001.parquet")]
    (folder / "in" / "00001.parquet").write_bytes(whole)
    assert "3 shards (2 finished before)" in shards().out


def test_names_with_dots_and_brackets_and_hidden_files(folder: Path) -> None:
    for name in ("train.0001.parquet", "train.0002.tar.gz", "a[1].tar", "._train.0001.parquet", ".x.partial"):
        (folder / name).write_bytes(b"")
    planned = plan_shards(["train.*", "a[1].tar"], "out")
    assert [Path(shard.target).name for shard in planned] == [
        "a[1].parquet",
        "train.0001.parquet",
        "train.0002.parquet",
    ]
    assert all(Path(shard.source).is_absolute() for shard in planned)


def test_columns_and_broken_images(shards: Shards, folder: Path) -> None:
    table = pq.read_table(folder / "in" / "00000.parquet").rename_columns(["uid", "alt", "image"])
    images = [*table["image"].to_pylist()[:-1], b"\x89PNG"]
    (folder / "other").mkdir()
    pq.write_table(table.set_column(2, "image", pa.array(images)), folder / "other" / "a.parquet")
    ran = shards("--input", "other/a.parquet")
    assert ran.status == 1 and "no column for caption" in ran.err
    ran = shards("--input", "other/a.parquet", "--columns", "caption=alt")
    assert ran.status == 0 and "10 (1 failed, 0 truncated)" in ran.out
    assert pq.read_table(folder / "out" / "a.parquet")["error"].null_count == 9


# ---- images in a folder, and rows whose image is not there


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


def test_another_folder_of_images_is_another_setting(shards: Shards, pictures: Path) -> None:
    given = ("--input", "lines/*.jsonl", "--images")
    assert shards(*given, "a").status == 0
    first = scores_in(pictures / "out")
    ran = shards(*given, "b")
    assert ran.status == 2 and "0.jsonl" not in ran.err and "another --output" in ran.err
    assert str(pictures / "a") in ran.err and str(pictures / "b") in ran.err
    assert scores_in(pictures / "out") == first
    (pictures / "link").symlink_to("a")
    for same in ("a/", "./a", "b/../a", pictures / "a", "link"):
        assert "(2 finished before)" in shards(*given, same).out
    assert shards(*given, "b", "--output", "other").status == 0 and scores_in(pictures / "other") != first
    (pictures / "a").rename(pictures / "moved")
    assert shards(*given, "moved").status == 2
    ran = shards(*given, "a")
    assert ran.status == 2 and "a: there is no such folder" in ran.err


def test_the_folder_of_shards_is_that_of_their_images_where_none_is_named(
    shards: Shards, pictures: Path
) -> None:
    for name in "ab":
        shutil.copy(pictures / "lines" / "0.jsonl", pictures / name / "0.jsonl")
    assert shards("--input", "a/0.jsonl").status == 0
    assert "(1 finished before)" in shards("--input", "a/0.jsonl", "--images", "a/").out
    assert shards("--input", "b/0.jsonl").status == 2  # the same lines beside other images
    assert shards("--output", "bytes").status == 0  # no row of these shards has a path
    assert "(3 finished before)" in shards("--output", "bytes", "--images", "b").out
    (pictures / "in").rename(pictures / "elsewhere")
    assert "(3 finished before)" in shards("--output", "bytes", "--input", "elsewhere/*.parquet").out


def test_rows_without_their_image_are_scored_again_when_it_is_there(
    shards: Shards, pictures: Path, capeval: Callable[..., Ran]
) -> None:
    given = ("--input", "lines/*.jsonl", "--images", "a")
    assert shards(*given, "--output", "whole").status == 0
    expected = scores_in(pictures / "whole")
    (pictures / "late").mkdir()
    late = (1, 6)
    for n in late:
        (pictures / "a" / f"{n}.png").rename(pictures / "late" / f"{n}.png")
    assert "8 (2 failed" in shards(*given).out
    before = scores_in(pictures / "out")
    assert [i for i, score in enumerate(before) if score is None] == list(late)
    ran = capeval("shards", "check", "out")
    assert ran.status == 0 and "8 (2 failed)" in ran.out
    assert "0.parquet: 1\n" in ran.err and "--retry-failed" in ran.err
    for path in (pictures / "late").iterdir():
        path.rename(pictures / "a" / path.name)
    ran = shards(*given)
    assert "(2 finished before)" in ran.out and "8 (2 failed" in ran.out and "--retry-failed" in ran.err
    assert "there is no file" in ran.err  # why the first row failed
    with count_forwards() as count:
        ran = shards(*given, "--retry-failed")
    assert ran.status == 0 and "8 (0 failed" in ran.out and "(2 pairs in" in ran.out
    assert count.items <= 8 + 2 * len(late)  # the canary of weights, and images and texts of those rows
    after = scores_in(pictures / "out")
    assert [after[i] for i in range(8) if i not in late] == [before[i] for i in range(8) if i not in late]
    assert after == pytest.approx(expected, abs=1e-6)  # float32, in other batches
    ran = capeval("shards", "check", "out")
    assert (ran.status, ran.err) == (0, "") and "8 (0 failed)" in ran.out
    assert "(2 finished before)" in shards(*given, "--retry-failed").out


def test_a_folder_that_was_mistyped_is_not_for_ever(
    shards: Shards, pictures: Path, capeval: Callable[..., Ran]
) -> None:
    (pictures / "empty").mkdir()
    given = ("--input", "lines/*.jsonl", "--images")
    assert shards(*given, "empty").status == 1 and scores_in(pictures / "out") == [None] * 8
    ran = capeval("shards", "check", "out")
    assert ran.status == 1 and "0.parquet: 4, all of its rows" in ran.err
    assert shards(*given, "a").status == 0  # there is no score that it could be mistaken for
    assert None not in scores_in(pictures / "out")
    ran = shards(*given, "nowhere", "--weights", "org/none")
    assert ran.status == 2 and "nowhere: there is no such folder" in ran.err
    assert "org/none" not in ran.err


def test_links_are_shards_too(shards: Shards, folder: Path) -> None:
    (folder / "links").mkdir()
    for name in ("00000.parquet", "00001.parquet"):
        (folder / "links" / name).symlink_to(folder / "in" / name)
    assert shards("--input", "links/*.parquet").status == 0
    assert len([*(folder / "out").glob("*.parquet")]) == 2


def test_columns_of_a_run_are_printed_and_recorded(shards: Shards, folder: Path) -> None:
    table = pq.read_table(folder / "in" / "00000.parquet").rename_columns(["uid", "text", "image"])
    (folder / "other").mkdir()
    path = folder / "other" / "a.parquet"
    pq.write_table(table.append_column("prediction", pa.array(["a blue sky"] * 10)), path)
    ran = shards("--input", path)
    assert ran.status == 1 and "'text' and 'prediction'" in ran.err and "--columns caption=" in ran.err
    assert not (folder / "out" / "a.parquet").exists()
    ran = shards("--input", path, "--columns", "caption=prediction")
    assert ran.status == 0 and "uid=uid, caption=prediction, image=image" in ran.out
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    used = {"uid": ["uid"], "caption": ["prediction"], "image": ["image"]}
    assert [shard["columns"] for shard in manifest["shards"]] == [used]
    assert json.loads(pq.read_metadata(folder / "out" / "a.parquet").metadata[COUNTS])["read"] == used
    assert shards("--input", path, "--columns", "caption=text").status == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "no/*.parquet"], "no/*.parquet"),
        (["--output", "in/../in/"], "the folder of the input: choose another folder"),
        (["--output", "in/00000.parquet"], "is a file: pass a folder"),
        (["--input", "in/*.parquet", "twin/*"], "would both go to 00000.parquet"),
        (["--workers", "0"], "--workers 0: expected at least 1"),
        (["--workers", "two"], "expected a whole number"),
        (["--gpus-per-worker", "1"], "use --device"),
        (["--gpus-per-worker", "-1", "--workers", "2"], "expected a number of at least 0"),
        (["--gpus-per-worker", "nan", "--workers", "2"], "expected a number of at least 0"),
        (["--columns", "caption"], "expected WHAT=COLUMN"),
        (["--columns", "captoin=alt"], "captoin"),
        (["--manifest", "a/b.json"], "expected the name of a file"),
        (["--rows", "kept"], "unknown option --rows"),
        (["--weights", "nowhere"], "nowhere"),
    ],
)
def test_wrong_arguments_are_refused_before_any_work(
    shards: Shards, folder: Path, arguments: list[str], message: str
) -> None:
    shutil.copytree(folder / "in", folder / "twin")
    ran = shards(*arguments)
    assert ran.status == 2 and message in ran.err, ran.err
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the command comes first: one of score, merge, check, histogram"),
        (["scor"], "the command comes first"),
        (["score"], "the metric comes first"),
        (["score", "eco", "--input", "x", "--output", "y"], "z-scores within one set"),
        (["score", "cider", "--input", "x", "--output", "y"], "prepare"),
    ],
)
def test_what_is_missing_is_named(capeval: Callable[..., Ran], arguments: list[str], message: str) -> None:
    ran = capeval("shards", *arguments)
    assert ran.status == 2 and message in ran.err


def test_without_ray_several_workers_say_how_to_install_it(
    shards: Shards, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as an import of a package that is not there
    for arguments in (["--workers", "2"], ["--ray", "auto"]):
        ran = shards(*arguments)
        assert ran.status == 2 and 'pip install "capeval[ray]"' in ran.err
    assert not (folder / "out").exists()


def test_a_finished_run_needs_no_ray_and_missing_weights_end_before_it(
    shards: Shards, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr("capeval_core.commands.shards.score_shards", started)
    ran = shards("--workers", "2", "--weights", "org/none")
    assert ran.status == 2 and "--weights tiny" in ran.err and "weights=" not in ran.err
    one = ["--input", "in/00000.parquet"]
    assert "  1 shard\n" in shards(*one).out
    ran = shards(*one, "--workers", "2")
    assert (ran.status, ran.err) == (0, "") and "nothing to do" in ran.out


def test_a_reason_of_several_shards_is_given_once(shards: Shards, folder: Path) -> None:
    for name in ("00000", "00001"):
        (folder / "in" / f"{name}.parquet").write_bytes(b"")
    ran = shards()
    assert ran.status == 1 and ran.err.count("(2 shards)") == 1 and "00000" not in ran.err, ran.err


class _SmallMemory(BatchScorer):
    """A scorer that holds three rows."""

    def __call__(self, batch: Any) -> dict[str, list[Any]]:
        if len(batch["caption"]) > 3:
            raise MemoryError
        return super().__call__(batch)


def test_a_window_that_does_not_fit_into_memory_is_halved(folder: Path) -> None:
    shard = PlannedShard(str(folder / "in" / "00000.parquet"), str(folder / "out" / "0.parquet"))
    result = score_one(shard, _SmallMemory("pacs", weights="tiny"), {})
    assert isinstance(result, ShardResult) and result.rows == 10 and not result.failed
    assert pq.read_table(shard.target)["score"].null_count == 0


def test_a_target_that_cannot_be_written_ends_the_run(shards: Shards, folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / ".taken").write_text("")
    shutil.rmtree(folder / "out")
    (folder / "out").symlink_to("/proc/self")  # where nobody can make a file
    ran = shards()
    assert ran.status == 2 and "cannot be written" in ran.err and ran.err.count("\n") == 1


def test_a_manifest_that_is_a_folder_is_named(shards: Shards, folder: Path) -> None:
    (folder / "out" / "manifest.json").mkdir(parents=True)
    ran = shards()
    assert ran.status == 2 and "out/manifest.json cannot be written (it is a folder)" in ran.err
    assert len(list((folder / "out").iterdir())) == 4


@pytest.mark.system
def test_ctrl_c_keeps_finished_shards_and_says_so(folder: Path) -> None:
    write_shards(folder / "many", shards=40, rows=400)
    program = "import sys; from capeval_core.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["shards", "score", "pacs", "--weights", "tiny", "--input", "many/*", "--output", "out"]
    run = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    while not list(folder.glob("out/0*.parquet")) and run.poll() is None:
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate()
    assert run.returncode == 130 and "shards that are finished are kept: run the same command again" in err
    assert "Traceback" not in err
    finished = list(folder.glob("out/*.parquet"))
    assert 0 < len(finished) < 40 and not (folder / "out" / "manifest.json").exists()
    assert all(pq.read_metadata(path).num_rows == 400 for path in finished)
    assert not list(folder.glob("out/.*"))


@pytest.mark.system
def test_runs_that_are_killed_leave_every_row_once(tmp_path: Path) -> None:
    """10^4 rows, three kills of the process at random moments."""
    uids = write_shards(tmp_path / "in", shards=20, rows=500)
    rng = np.random.default_rng(0)
    processes: Any = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(
        ["capeval_core.commands.shards", "capeval_core.encoders.clip", "datasets"]
    )

    def start(out: str) -> Any:
        run = processes.Process(target=score, args=(str(tmp_path / "in" / "*.parquet"), str(tmp_path / out)))
        run.start()
        return run

    start("expected").join()
    for _ in range(3):
        before = len(list(tmp_path.glob("out/0*.parquet")))
        run = start("out")
        while len(list(tmp_path.glob("out/0*.parquet"))) <= before and run.exitcode is None:
            run.join(timeout=0.01)
        run.join(timeout=float(rng.uniform(0, 0.3)))
        assert run.exitcode is None, "it was too fast to be killed"
        run.kill()
        run.join()
    last = start("out")
    last.join()
    assert last.exitcode == 0
    expected, found = (
        pa.concat_tables(pq.read_table(path) for path in sorted(tmp_path.glob(f"{out}/0*.parquet")))
        for out in ("expected", "out")
    )
    assert found["uid"].to_pylist() == uids
    assert len(expected["score"].unique()) > 5_000
    assert np.abs(found["score"].to_numpy() - expected["score"].to_numpy()).max() <= 1e-7


def score(inputs: str, output: str) -> None:
    """One run of the command, to be killed."""
    import torch

    from capeval_core.cli import main

    torch.set_num_threads(1)
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    sys.exit(main(["shards", "score", "pacs", "--weights", "tiny", "--input", inputs, "--output", output]))


def test_a_share_out_of_range_is_named_by_its_flag(capeval: Callable[..., Ran], tmp_path: Path) -> None:
    ran = capeval("shards", "histogram", tmp_path, "--keep", "30")
    assert ran.status == 2 and "--keep 30: expected a share above 0" in ran.err


def test_a_number_of_gpus_is_named_by_its_flag() -> None:
    options = metric_class("pacs").Options
    with (
        pytest.raises(ValueError, match=r"--gpus-per-worker 1\.0: there are 0: leave it out"),
        in_words_of_the_user(options),
    ):
        raise wrong_option("gpus_per_worker", 1.0, "there are 0", "leave it out", verb="")


def test_help_without_a_metric_leads_to_all_options(capeval: Callable[..., Ran]) -> None:
    assert "`capeval shards score METRIC --help` shows all options" in " ".join(
        capeval("shards", "score", "--help").out.split()
    )
