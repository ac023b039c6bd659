"""`capeval shards filter`: kept rows in their shards' own form, resumed and exact."""

from __future__ import annotations

import gzip
import io
import json
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Capeval, write_json
from tests.integrations.shard_files import rows_of, tar_members, write_parquet, write_tar
from tools.captions import describe
from tools.scenes import draw, sample_scene

SCORE = ["shards", "score", "pacs", "--weights", "tiny", "--device", "cpu", "--output", "scores"]
ROWS = rows_of(20)


def rows_as_lines(path: Path) -> Path:
    """The rows as JSON lines, with images in a folder beside them."""
    (path.parent / "images").mkdir(exist_ok=True)
    lines = []
    for number, uid in enumerate(ROWS["uid"]):
        (path.parent / "images" / f"{uid}.png").write_bytes(ROWS["image"][number])
        row = {"uid": uid, "caption": ROWS["caption"][number], "image": f"{uid}.png", "more": [number, None]}
        lines.append(json.dumps(row, indent=None) + "\n")
    text = "".join(lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


FORMS: dict[str, Any] = {
    "0.parquet": lambda path: write_parquet(
        path, {**ROWS, "more": list(range(20))}, row_group_size=3, compression="NONE"
    ),
    "0.tar": lambda path: write_tar(path, [("README", b"of no row"), *tar_members(ROWS, fields=True)]),
    "0.tar.gz": lambda path: write_tar(path, tar_members(ROWS, fields=False)),
    "0.tgz": lambda path: write_tar(path, tar_members(ROWS, fields=False)),
    "0.tar.bz2": lambda path: write_tar(path, tar_members(ROWS, fields=False)),
    "0.tar.xz": lambda path: write_tar(path, tar_members(ROWS, fields=False)),
    "0.jsonl": rows_as_lines,
    "0.jsonl.gz": rows_as_lines,
}


def records_of(path: Path) -> list[Any]:
    """The records of a shard, each as its bytes or values."""
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    if ".tar" in path.name or path.suffix == ".tgz":
        with tarfile.open(path) as tar:
            members: list[Any] = []
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                members.append((member.name, member.get_info(), file.read()))
        records: dict[str, list[Any]] = {}
        for member in members:
            records.setdefault(member[0].partition(".")[0], []).append(member)
        return list(records.values())
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()


@pytest.fixture
def scored(capeval: Capeval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Scores of a shard of a form; gives its path and the scores."""
    monkeypatch.chdir(tmp_path)

    def score(name: str, *more: object) -> tuple[Path, pa.Table]:
        (tmp_path / "in").mkdir(exist_ok=True)
        path = FORMS[name](tmp_path / "in" / name)
        images = ["--images", "in/images"] if "jsonl" in name else []
        assert capeval(*SCORE, "--input", path, *images, *more).status == 0
        return path, pq.read_table(tmp_path / "scores" / "0.parquet")

    return score


@pytest.mark.parametrize("form", FORMS)
def test_kept_rows_are_those_of_the_shard_in_its_own_form(
    form: str, scored: Any, capeval: Capeval, tmp_path: Path
) -> None:
    path, table = scored(form)
    scores = np.array(table["score"].to_pylist())
    threshold = float(np.sort(scores)[-6])
    stays = [bool(score >= threshold) for score in scores]
    ran = capeval("shards", "filter", "scores", "--min", repr(threshold), "--output", "kept")
    assert ran.status == 0, ran.err
    records = records_of(path)
    extra = [records.pop(0)] if form == "0.tar" else []
    assert records_of(tmp_path / "kept" / form) == [
        *extra,
        *(record for record, kept in zip(records, stays, strict=True) if kept),
    ]
    for name, text in {
        "shards": "1 shard",
        "kept": f"{sum(stays)} of 20 rows, {5 * sum(stays)}.00%",
        "left out": f"{20 - sum(stays)} below, 0 without a score",
        "records": f"{sum(stays)} of 20",
        "rule": f"score >= {threshold:.6g}",
    }.items():
        assert re.search(rf"^{name} +{re.escape(text)}$", ran.out, re.MULTILINE), text
    if form == "0.parquet":
        file = pq.ParquetFile(tmp_path / "kept" / form)
        assert file.schema_arrow.equals(pq.read_schema(path), check_metadata=True)
        assert file.metadata.row_group(0).column(0).compression == "UNCOMPRESSED"
        assert file.metadata.num_row_groups == 1
    elif form in ("0.tar", "0.jsonl"):  # of which a whole one that is kept is the very same file
        assert capeval("shards", "filter", "scores", "--min", "-1", "--output", "all").status == 0
        assert (tmp_path / "all" / form).read_bytes() == path.read_bytes()
    again = capeval("shards", "filter", "scores", "--min", repr(threshold), "--output", "kept")
    assert again.status == 0 and "1 finished before" in again.out


def test_a_record_stays_whole_if_any_of_its_captions_is_kept(
    capeval: Capeval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.png").write_bytes(ROWS["image"][0])
    orders = (["a red circle", "a dog"], ["a dog", "a red circle"], ["a dog", "a dog"])
    records = [
        json.dumps({"uid": str(i), "caption": captions, "image": "0.png"})
        for i, captions in enumerate(orders)
    ]
    (tmp_path / "in" / "0.jsonl").write_text("\n".join(records) + "\n")
    assert capeval(*SCORE, "--input", "in/0.jsonl", "--images", "in").status == 0
    circle, dog, *_ = pq.read_table(tmp_path / "scores" / "0.parquet")["score"].to_pylist()
    assert circle != dog
    ran = capeval("shards", "filter", "scores", "--min", repr(max(circle, dog)), "--output", "kept")
    assert ran.status == 0, ran.err
    kept = (tmp_path / "kept" / "0.jsonl").read_text().splitlines()
    assert kept == (records[:2] if circle > dog else records)


def test_a_share_is_kept_by_score_or_by_part(scored: Any, capeval: Capeval, tmp_path: Path) -> None:
    _, table = scored("0.parquet")
    scores = np.array(table["score"].to_pylist())
    cosines = np.array([parts["cosine"] for parts in table["parts"].to_pylist()])
    assert capeval("shards", "filter", "scores", "--keep", "0.25", "--output", "kept").status == 0
    kept = pq.read_table(tmp_path / "kept" / "0.parquet")["uid"].to_pylist()
    best = np.sort(scores)[-5]
    assert kept == [uid for uid, score in zip(ROWS["uid"], scores, strict=True) if score >= best]
    line = ["shards", "filter", "scores", "--part", "cosine", "--min", repr(float(np.median(cosines)))]
    ran = capeval(*line, "--output", "half")
    assert ran.status == 0 and f"cosine >= {np.median(cosines):.6g}" in ran.out
    # PAC-S is twice the cosine; what the thresholds of both collections would keep here.
    for collection, cosine, score in (("LAION-400M", 0.3, 0.6), ("LAION-5B", 0.28, 0.56)):
        share = f"{5 * int((cosines >= cosine).sum())}.00%"
        text = f"cosine >= {cosine:g} (score >= {score:g}) would keep {share}"
        assert re.search(rf"^{collection} +{re.escape(text)}$", ran.out, re.MULTILINE)
    assert len(pq.read_table(tmp_path / "half" / "0.parquet")) == int((cosines >= np.median(cosines)).sum())


def test_what_published_thresholds_would_keep_is_a_share_of_rows_with_a_score(
    capeval: Capeval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    rows = rows_of(6)
    rng = np.random.default_rng(3)
    for number in (1, 4):  # pictures that the tiny weights know, with their captions
        scene = sample_scene(rng)
        file = io.BytesIO()
        draw(scene).save(file, "PNG")
        rows["image"][number] = file.getvalue()
        rows["caption"][number] = describe(scene, rng)
    rows["caption"][0] = ""
    write_parquet(tmp_path / "in" / "0.parquet", rows)
    assert capeval(*SCORE, "--input", "in/0.parquet").status == 0
    parts = pq.read_table(tmp_path / "scores" / "0.parquet")["parts"].to_pylist()
    cosines = [part["cosine"] for part in parts if part is not None]
    assert len(cosines) == 5 and [cosine >= 0.3 for cosine in cosines].count(True) == 2
    ran = capeval("shards", "filter", "scores", "--min", "0", "--output", "kept")
    assert "cosine >= 0.3 (score >= 0.6) would keep 40.00%" in ran.out


def test_uids_are_written_as_datacomp_has_them(
    capeval: Capeval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    uids = [f"{number:032x}" for number in (2**127 + 5, 7, 2**64, 2**64 - 1)]
    (tmp_path / "in").mkdir()
    rows = rows_of(4)
    write_parquet(tmp_path / "in" / "0.parquet", {**rows, "uid": uids})
    assert capeval(*SCORE, "--input", "in/0.parquet").status == 0
    assert capeval("shards", "filter", "scores", "--keep", "1", "--uids", "kept.npy").status == 0
    assert capeval("shards", "filter", "scores", "--keep", "1", "--uids", "kept.parquet").status == 0
    pairs = np.load("kept.npy")
    assert [f"{high:016x}{low:016x}" for high, low in pairs] == sorted(uids)
    assert pq.read_table("kept.parquet")["uid"].to_pylist() == uids


def test_what_goes_is_counted_by_its_reason(scored: Any, capeval: Capeval, tmp_path: Path) -> None:
    rows = rows_of(20)
    rows["image"][3] = b"no image"
    rows["caption"][7] = ""
    FORMS["broken.parquet"] = lambda path: write_parquet(path.with_name("0.parquet"), rows)
    try:
        _, table = scored("broken.parquet")
    finally:
        del FORMS["broken.parquet"]
    assert table["score"].null_count == 2
    ran = capeval("shards", "filter", "scores", "--min", "0", "--output", "kept")
    assert "18 of 20" in ran.out and "0 below, 2 without a score" in ran.out
    assert "1 row: caption is empty" in ran.err and "1 row: image" in ran.err
    none = capeval("shards", "filter", "scores", "--min", "9", "--output", "none")
    assert none.status == 1 and "0 of 20 rows, 0.00%" in none.out and "18 below, 2 without" in none.out
    kept = pq.read_table(tmp_path / "kept" / "0.parquet")["uid"].to_pylist()
    assert kept == [uid for number, uid in enumerate(ROWS["uid"]) if number not in (3, 7)]


def test_another_shard_or_rule_than_before_is_refused(scored: Any, capeval: Capeval, tmp_path: Path) -> None:
    path, _ = scored("0.parquet")
    assert capeval("shards", "filter", "scores", "--min", "0.5", "--output", "kept").status == 0
    for rule, said in (
        (["--min", "0.6"], "least: 0.5 there, 0.6 now"),
        (["--min", "0.5", "--part", "cosine"], "part: None there, 'cosine' now"),
    ):
        other = capeval("shards", "filter", "scores", *rule, "--output", "kept")
        assert other.status == 2 and "0.parquet" in other.err and said in other.err, other.err
    # Of a run that was killed while it wrote, only one of the same rule goes on.
    kept = tmp_path / "kept" / "0.parquet"
    whole = kept.read_bytes()
    note = tmp_path / "kept" / "filter" / "0.parquet.json"
    content = {**json.loads(note.read_text()), "kept_checksum": None}
    for rule, status in (("0.6", 2), ("0.5", 0)):
        write_json(note, content)
        kept.write_bytes(b"cut off")
        assert capeval("shards", "filter", "scores", "--min", rule, "--output", "kept").status == status
    assert kept.read_bytes() == whole
    write_parquet(path, {**ROWS, "caption": ROWS["caption"][::-1]})
    changed = capeval("shards", "filter", "scores", "--min", "0.5", "--output", "elsewhere")
    assert (
        changed.status == 2 and "0.parquet" in changed.err and not list(Path("elsewhere").glob("*.parquet"))
    )


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--output", "kept"], "--keep"),
        (["--keep", "0.3", "--min", "0.2", "--output", "kept"], "--keep"),
        (["--keep", "3", "--output", "kept"], "keep"),
        (["--min", "0.3"], "--output"),
        (["--min", "0.3", "--output", "in"], "in"),
        (["--min", "0.3", "--output", "scores"], "scores"),
        (["--min", "0.3", "--uids", "scores/0.parquet"], "scores"),
        (["--min", "nan", "--output", "kept"], "min"),
        (["--min", "0.3", "--part", "cos", "--output", "kept"], "cosine"),
        (["--min", "0.3", "--uids", "kept.txt"], "kept.txt"),
        (["--min", "0", "--uids", "kept.npy"], "kept.npy"),
    ],
)
def test_a_wrong_line_is_refused(more: list[str], named: str, scored: Any, capeval: Capeval) -> None:
    scored("0.parquet")
    ran = capeval("shards", "filter", "scores", *more)
    assert ran.status == 2 and named in ran.err


def test_a_flipped_bit_in_a_kept_shard_is_made_again(scored: Any, capeval: Capeval, tmp_path: Path) -> None:
    scored("0.tar")
    line = ["shards", "filter", "scores", "--keep", "0.5", "--output", "kept"]
    assert capeval(*line).status == 0
    kept = tmp_path / "kept" / "0.tar"
    whole = kept.read_bytes()
    damaged = bytearray(whole)
    damaged[700] ^= 4
    kept.write_bytes(damaged)
    assert capeval(*line).status == 0 and kept.read_bytes() == whole
    (tmp_path / "kept" / "filter" / "0.tar.json").write_text('{"least": 0.')
    assert capeval(*line).status == 0 and kept.read_bytes() == whole


def test_nothing_of_others_is_overwritten(scored: Any, capeval: Capeval, tmp_path: Path) -> None:
    path, _ = scored("0.parquet")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "0.parquet").write_bytes(b"of somebody else")
    ran = capeval("shards", "filter", "scores", "--min", "0", "--output", "there")
    assert ran.status == 2 and (tmp_path / "there" / "0.parquet").read_bytes() == b"of somebody else"
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "0.parquet").symlink_to(path)
    whole = path.read_bytes()
    assert capeval(*SCORE[:-1], "of-links", "--input", "links/0.parquet").status == 0
    ran = capeval("shards", "filter", "of-links", "--min", "9", "--output", "in")
    assert ran.status == 2 and path.read_bytes() == whole


def test_rows_that_were_scored_since_are_kept_too(capeval: Capeval, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    rows_as_lines(tmp_path / "in" / "0.jsonl")
    image = tmp_path / "in" / "images" / f"{ROWS['uid'][3]}.png"
    content = image.read_bytes()
    image.unlink()
    line = [*SCORE, "--input", "in/0.jsonl", "--images", "in/images"]
    assert capeval(*line).status == 0
    keep = ["shards", "filter", "scores", "--min", "-1", "--output", "kept"]
    assert capeval(*keep).status == 0
    assert len((tmp_path / "kept" / "0.jsonl").read_bytes().splitlines()) == 19
    image.write_bytes(content)
    assert capeval(*line, "--retry-failed").status == 0
    assert capeval(*keep).status == 0
    assert len((tmp_path / "kept" / "0.jsonl").read_bytes().splitlines()) == 20


@pytest.mark.system
def test_killed_runs_lose_nothing_and_repeat_nothing(capeval: Capeval, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(6):
        rows = rows_of(40, 40 * shard)
        write_tar(tmp_path / "in" / f"{shard}.tar", tar_members(rows, fields=True))
    score = [*SCORE[:-1], tmp_path / "scores", "--input", tmp_path / "in" / "*.tar"]
    assert capeval(*score).status == 0
    line = ["shards", "filter", str(tmp_path / "scores"), "--keep", "0.4", "--output"]
    assert capeval(*line, tmp_path / "whole").status == 0
    command = [sys.executable, "-m", "capeval_core", *line, str(tmp_path / "kept")]
    for number in range(8):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        time.sleep(0.6 + 0.25 * number)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert capeval(*line, tmp_path / "kept").status == 0
    for shard in range(6):
        name = f"{shard}.tar"
        assert (tmp_path / "kept" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not list((tmp_path / "kept").glob("*.partial*"))


@pytest.mark.system
def test_webdataset_reads_kept_tars_as_it_reads_the_shards(
    scored: Any, capeval: Capeval, tmp_path: Path
) -> None:
    webdataset = pytest.importorskip("webdataset", reason="needs webdataset: pip install webdataset")
    path, table = scored("0.tar")
    assert capeval("shards", "filter", "scores", "--keep", "0.4", "--output", "kept").status == 0

    def samples(file: Path) -> dict[str, dict[str, bytes]]:
        read: dict[str, dict[str, bytes]] = {}
        for sample in webdataset.WebDataset(str(file), shardshuffle=False):
            read[sample["__key__"]] = {
                name: value for name, value in sample.items() if isinstance(value, bytes)
            }
        return read

    before = samples(path)
    after = samples(tmp_path / "kept" / "0.tar")
    best = sorted(table["score"].to_pylist())[-8]
    names = [row["uid"] for row in table.to_pylist() if row["score"] >= best]
    assert [*after] == names and len(before) == 20
    assert all(after[name] == before[name] and len(after[name]) == 2 for name in names)
