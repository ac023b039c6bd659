"""What shards come as: every format, every form of an image, and files that are damaged."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import capeval_core
from capeval_core.errors import FileError
from capeval_core.integrations.shards import BatchScorer, score_shard
from tests.integrations.shard_files import (
    picture,
    rows_of,
    tar_members,
    write_lines,
    write_parquet,
    write_tar,
)


@pytest.fixture(scope="module")
def scorer(weights: str) -> BatchScorer:
    return BatchScorer("refpacs", weights=weights)


@pytest.fixture(scope="module")
def expected(scorer: BatchScorer) -> list[float]:
    return list(scorer(rows_of(12))["score"])


def scored(source: Path, scorer: BatchScorer, **options: Any) -> dict[str, list[Any]]:
    """The columns of a shard's output."""
    target = source.with_name(f"{source.name}.out")
    score_shard(source, target, scorer, **options)
    columns: dict[str, list[Any]] = pq.read_table(target).to_pydict()
    return columns


@pytest.mark.parametrize("form", ["bytes", "structs", "paths", "large", "views", "renamed", "dictionary"])
def test_parquet(form: str, tmp_path: Path, scorer: BatchScorer, expected: list[float]) -> None:
    rows: dict[str, Any] = rows_of(12)
    options: dict[str, Any] = {}
    if form == "structs":
        rows["image"] = [{"bytes": data, "path": None} for data in rows["image"]]
    elif form == "paths":
        (tmp_path / "pictures").mkdir()
        for i, data in enumerate(rows["image"]):
            (tmp_path / "pictures" / f"{i}.png").write_bytes(data)
        rows["image"] = [f"pictures/{i}.png" for i in range(12)]
        rows["image"][1] = str(tmp_path / "pictures" / "1.png")
    elif form == "large":
        rows["image"] = pa.array(rows["image"], pa.large_binary())
        rows["caption"] = pa.array(rows["caption"], pa.large_string())
        rows["references"] = pa.array(rows["references"], pa.large_list(pa.large_string()))
    elif form == "views":
        rows["image"] = pa.array(rows["image"], pa.binary_view())
        rows["caption"] = pa.array(rows["caption"], pa.string_view())
    elif form == "renamed":
        rows = {"URL": ["x"] * 12, "alt": rows["caption"], "JPG": rows["image"], "refs": rows["references"]}
        rows["Jpg"] = rows["path"] = ["none"] * 12  # the first spelling, and the best name, count
        options["columns"] = {"caption": "alt"}
    else:
        rows["caption"] = pa.array(rows["caption"]).dictionary_encode()
    found = scored(write_parquet(tmp_path / "0.parquet", rows), scorer, **options)
    assert np.allclose(found["score"], expected, rtol=0, atol=1e-6)
    uids = [f"0/{i}" for i in range(12)] if form == "renamed" else rows["uid"]
    assert found["uid"] == uids and found["error"] == [None] * 12


@pytest.mark.parametrize("suffix", [".tar", ".TAR.GZ"])
def test_tars(suffix: str, tmp_path: Path, scorer: BatchScorer, expected: list[float]) -> None:
    members = tar_members(rows_of(12), fields=True)
    members.insert(1, ("row-000000.cls", b"5"))  # of no use here
    tar = write_tar(tmp_path / f"0{suffix.lower()}", members).rename(tmp_path / f"0{suffix}")
    found = scored(tar, scorer, window=5)
    assert np.allclose(found["score"], expected, rtol=0, atol=1e-6)  # float32, in batches of another size
    assert found["uid"] == rows_of(12)["uid"]
    named = {"uid": "uid", "caption": "caption", "image": "png"}
    again = score_shard(tmp_path / f"0{suffix}", tmp_path / "named.parquet", scorer, columns=named, window=5)
    assert again.failed == 0 and set(pq.read_table(again.target)["uid"].to_pylist()) == {"other"}


def test_json_lines_with_a_folder(tmp_path: Path, scorer: BatchScorer, expected: list[float]) -> None:
    lines = write_lines(tmp_path / "0.jsonl", rows_of(12), tmp_path / "pictures")
    found = scored(lines, scorer, images=tmp_path / "pictures")
    assert np.allclose(found["score"], expected, rtol=0, atol=1e-6)
    (tmp_path / "pictures" / "1.JSONL.GZ").write_bytes(gzip.compress(lines.read_bytes()))
    assert scored(tmp_path / "pictures" / "1.JSONL.GZ", scorer)["score"] == found["score"]
    elsewhere = tmp_path / "elsewhere" / "1.parquet"  # images lie beside the source
    assert score_shard(tmp_path / "pictures" / "1.JSONL.GZ", elsewhere, scorer).failed == 0


def test_members_without_their_pair_cost_their_row(tmp_path: Path, weights: str) -> None:
    members = [
        ("a.png", picture(0)),
        ("a.txt", b"a dog\n"),
        ("b.txt", b"a dog"),
        ("c.PNG", picture(1)),
        ("folder/d.png", picture(1)),
        ("folder/d.txt", b"\xff\xfe"),
        ("e.png", b""),
        ("e.txt", b"a dog"),
        ("f.png", picture(2)),
        ("f.json", b"{"),
        ("._g.png", b"of another system"),
        ("a.png", picture(0)),
        ("a.json", json.dumps({"caption": "a dog", "key": "x"}).encode()),
    ]
    found = scored(write_tar(tmp_path / "0.tar", members), BatchScorer("pacs", weights=weights))
    assert found["uid"] == ["a", "b", "c", "folder/d", "e", "f", "a"]
    assert [error is None for error in found["error"]] == [True, *[False] * 5, True]
    assert found["score"][0] == found["score"][6] is not None


def test_a_text_that_is_not_utf8_costs_its_row(tmp_path: Path) -> None:
    captions = pa.array([b"a dog", b"\xff", b"a cat"]).view(pa.string())
    rows: dict[str, Any] = {"references": [["a dog"]] * 3, "caption": captions, "uid": ["x", "y", "z"]}
    found = scored(write_parquet(tmp_path / "0.parquet", rows), BatchScorer("rougel"))
    assert found["uid"] == rows["uid"]
    assert found["error"] == [None, "caption is not valid UTF-8", None]


def test_options_are_of_a_metric_that_is_not_open_yet(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "0.parquet", rows_of(2))
    with pytest.raises(TypeError, match=r"metric=.* is a BatchScorer"):
        score_shard(source, tmp_path / "out.parquet", BatchScorer("rougel"), empty="score")
    metric = capeval_core.load("rougel", empty="score")
    with pytest.raises(TypeError, match="metric"):
        BatchScorer(metric, empty="error")
    assert BatchScorer(metric)({"caption": [""], "references": [["a dog"]]})["score"] == [0.0]
    with pytest.raises(ValueError, match="rows"):
        BatchScorer("rougel", rows=str(tmp_path / "rows"))
    assert not (tmp_path / "out.parquet").exists()


def test_members_are_never_written_to_disk_or_followed(tmp_path: Path, weights: str) -> None:
    with tarfile.open(tmp_path / "0.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for stem, kind in (
            ("../../up", tarfile.REGTYPE),
            ("/top/caf\udce9", tarfile.REGTYPE),
            ("link", tarfile.SYMTYPE),
            ("hard", tarfile.LNKTYPE),
            ("device", tarfile.CHRTYPE),
            ("pipe", tarfile.FIFOTYPE),
            ("folder", tarfile.DIRTYPE),
        ):
            for name, content in ((f"{stem}.png", picture(0)), (f"{stem}.txt", b"a dog")):
                about = tarfile.TarInfo(name)
                if name.endswith("png") and kind != tarfile.REGTYPE:
                    about.type, about.linkname, content = kind, "../../up.png", b""
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))
    found = scored(tmp_path / "0.tar", BatchScorer("pacs", weights=weights))
    assert found["uid"] == ["../../up", "/top/caf\\udce9", "link", "hard", "device", "pipe", "folder"]
    assert [error is None for error in found["error"]] == [True, True, *[False] * 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.tar", "0.tar.out"]


def test_images_in_a_store_go_to_their_own_rows(tmp_path: Path, weights: str) -> None:
    store = fsspec.filesystem("memory")
    names = [
        "7.png",
        "w[1].png",
        "*.png",
        "1.png",
        "7.png",
        "gone.png",
        "../1.png",
        "https://example.org/x.png",
    ]
    for i, name in enumerate(names[:4]):
        store.pipe(f"/pictures/{name}", picture(i))
    row = [{"caption": "a dog", "references": ["a dog"], "image": name} for name in names]
    (tmp_path / "0.jsonl").write_text("".join(json.dumps(one) + "\n" for one in row))
    scorer = BatchScorer("pacs", weights=weights)
    found = scored(tmp_path / "0.jsonl", scorer, images="memory://pictures")
    expected = scorer({"caption": ["a dog"] * 5, "image": [picture(i) for i in (0, 1, 2, 3, 0)]})
    cosines, own = ([part["cosine"] for part in parts[:5]] for parts in (expected["parts"], found["parts"]))
    assert len(set(cosines)) == 4 and np.allclose(own, cosines, rtol=0, atol=1e-6)
    assert found["error"][:5] == [None] * 5
    assert all(error.startswith("image") for error in found["error"][5:])


def test_texts_that_differ_are_refused_and_equal_ones_are_one(tmp_path: Path, weights: str) -> None:
    rows = rows_of(3)
    rows["caption"][1] += " "  # which a member of a tar loses
    both = {**rows, "text": [f"not {text}" for text in rows["caption"]]}
    parquet = write_parquet(tmp_path / "0.parquet", both)
    lines = tmp_path / "1.jsonl"
    for i, image in enumerate(rows["image"]):
        (tmp_path / f"{i}.png").write_bytes(image)
    lines.write_text(
        "".join(
            json.dumps({"caption": rows["caption"][i], "prediction": "a sky", "image": f"{i}.png"}) + "\n"
            for i in range(3)
        )
    )
    tar, twice = tmp_path / "2.tar", tmp_path / "3.jsonl"
    members = tar_members(rows, fields=True)
    write_tar(tar, sorted([*members, *((f"{uid}.txt", b"another") for uid in rows["uid"])]))
    twice.write_text('{"caption": "a", "references": ["b"], "refs": ["c"]}\n')
    for source, metric, message in (
        (parquet, "pacs", "several columns for caption .'caption' and 'text'"),
        (lines, "pacs", "several columns for caption .'caption' and 'prediction'"),
        (tar, "pacs", "several columns for caption .*'txt'"),
        (twice, "rougel", "several columns for references .'references' and 'refs'"),
    ):
        options = {"weights": weights} if metric == "pacs" else {}
        with pytest.raises(FileError, match=message) as raised:
            score_shard(source, tmp_path / "out.parquet", metric, **options)
        assert "--columns" in str(raised.value)
    named = score_shard(tar, tmp_path / "out.parquet", "pacs", columns={"caption": "txt"}, weights=weights)
    assert named.columns["caption"] == ["txt"] and set(named.columns) == {"uid", "caption", "image"}
    # As img2dataset writes them: the caption is a member, and a field of the .json too.
    equal = [(f"{uid}.txt", text.encode()) for uid, text in zip(rows["uid"], rows["caption"], strict=True)]
    write_tar(tar, sorted([*members, *equal]))
    assert score_shard(tar, tmp_path / "equal.parquet", "pacs", weights=weights).failed == 0
    # A row that differs behind those that are looked at first costs itself.
    same = [{"caption": "a", "text": "a", "references": ["b"]}] * 150
    twice.write_text("".join(json.dumps(row) + "\n" for row in [*same, {**same[0], "text": "c"}]))
    assert score_shard(twice, tmp_path / "last.parquet", "rougel").failed == 1


def test_a_member_with_bytes_wins_over_a_file_that_its_json_names(
    tmp_path: Path, scorer: BatchScorer, expected: list[float]
) -> None:
    rows = rows_of(12)
    members = tar_members(rows, fields=True)
    for i, uid in enumerate(rows["uid"]):
        content = {
            "caption": rows["caption"][i],
            "references": rows["references"][i],
            "image": f"old/{i}.png",
        }
        members[2 * i + 1] = (f"{uid}.json", json.dumps(content).encode())
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "3.png").write_bytes(picture(77))  # of the original name, and another picture
    found = scored(write_tar(tmp_path / "0.tar", members), scorer)
    assert np.allclose(found["score"], expected, rtol=0, atol=1e-6)
    assert found["error"] == [None] * 12


def test_pictures_that_differ_are_refused_and_equal_ones_are_one(tmp_path: Path, weights: str) -> None:
    def tar(name: str, png: bytes) -> Path:
        members = [("1.jpg", picture(1)), ("1.png", png), ("1.txt", b"a dog")]
        return write_tar(tmp_path / name, members)

    rows = {"caption": ["a dog"], "image": [picture(1)], "jpg": [picture(2)]}
    for source in (tar("two.tar", picture(2)), write_parquet(tmp_path / "two.parquet", rows)):
        with pytest.raises(FileError, match="several columns for image") as raised:
            score_shard(source, tmp_path / "out.parquet", "pacs", weights=weights)
        assert "--columns" in str(raised.value)
    named = score_shard(
        tmp_path / "two.tar", tmp_path / "named.parquet", "pacs", columns={"image": "png"}, weights=weights
    )
    assert named.failed == 0 and named.columns["image"] == ["png"]
    assert (
        score_shard(tar("equal.tar", picture(1)), tmp_path / "e.parquet", "pacs", weights=weights).failed == 0
    )
    # A row that differs behind those that are looked at first costs itself.
    rows = {"caption": ["a dog"] * 150, "image": [picture(1)] * 150, "jpg": [picture(1)] * 149 + [picture(2)]}
    late = write_parquet(tmp_path / "late.parquet", rows)
    found = scored(late, BatchScorer("pacs", weights=weights))
    assert [i for i, error in enumerate(found["error"]) if error] == [149]
    assert "'image' and 'jpg'" in found["error"][149]


def test_a_missing_caption_beside_a_filled_text_is_that_text(tmp_path: Path) -> None:
    captions = [None, "a dog", None]
    rows = {
        "caption": captions,
        "text": ["a cat", "a dog", None],
        "references": [["a cat"], ["a dog"], ["x"]],
    }
    found = scored(write_parquet(tmp_path / "0.parquet", rows), BatchScorer("rougel"))
    assert found["score"] == [1.0, 1.0, None]
    assert found["error"] == [None, None, "caption is missing"]


def test_the_error_of_a_row_has_all_that_is_wrong_with_it() -> None:
    scorer = BatchScorer("rougel")
    columns = {"caption": ["", "a dog", ""], "references": [[], ["a dog"], ["a cat"]]}
    scored_rows = scorer.score_batch(columns)
    assert scored_rows["error"][1:] == [None, "caption is empty"]
    assert [problem.split()[0] for problem in scored_rows["error"][0].split("; ")] == [
        "caption",
        "references",
    ]
    assert scored_rows["score"] == [None, 1.0, None] and scored_rows["truncated"] == [0, 0, 0]


def test_columns_that_are_missing_are_named(tmp_path: Path) -> None:
    rows = {"captoin": ["a dog"] * 2, "uid": ["x", "y"], "references": [["a dog"]] * 2}
    source = write_parquet(tmp_path / "0.parquet", rows)
    for columns, problem in (
        ({}, "no column for caption"),
        ({"caption": "captin"}, "no column 'captin' for caption: did you mean 'captoin'"),
        ({"caption": "captoin", "references": "refs"}, "no column 'refs' for references"),
        ({"caption": "captoin", "uid": "id"}, "no column 'id' for uid"),
    ):
        with pytest.raises(FileError, match=problem) as refused:
            score_shard(source, tmp_path / "out.parquet", "rougel", columns=columns)
        assert "its first 2 rows have captoin, uid, references" in str(refused.value)
    twice = pa.table([pa.array(["a dog"]), pa.array(["a cat"])], names=["caption", "caption"])
    references = pa.array([["a dog"]])
    pq.write_table(twice.append_column("references", references), tmp_path / "twice.parquet")
    with pytest.raises(FileError, match="more than one column 'caption'"):
        score_shard(tmp_path / "twice.parquet", tmp_path / "out.parquet", "rougel")
    assert not (tmp_path / "out.parquet").exists()


def test_a_text_of_a_tar_has_neither_a_mark_nor_an_end_of_line(tmp_path: Path) -> None:
    references = json.dumps({"references": ["a dog"]}).encode()
    members = []
    for uid, text in {"a": b"\xef\xbb\xbfa dog\r\n", "b": b"a dog\n", "folder/c": b"\xef\xbb\xbf\n"}.items():
        members += [(f"{uid}.txt", text), (f"{uid}.json", references)]
    found = scored(write_tar(tmp_path / "0.tgz", members), BatchScorer("rougel"))
    assert (found["uid"], found["score"]) == (["a", "b", "folder/c"], [1.0, 1.0, None])
    assert found["words"] == [2, 2, 0] and found["error"][2] == "caption is empty"


def test_a_rest_is_estimated_by_rows_and_not_by_records(tmp_path: Path) -> None:
    record = {"captions": ["a dog", "a cat"], "references": ["a dog"]}
    source = tmp_path / "0.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for _ in range(6)))
    rows: list[int] = []
    done: list[int] = []
    target = tmp_path / "out.parquet"
    score_shard(source, target, "rougel", window=4, expected=rows.append, progress=done.append)
    assert rows == [12] * 3 and sum(done) == 12


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    line = json.dumps({"caption": "a dog", "references": ["a dog"]})
    source = tmp_path / "0.jsonl"
    source.write_text(f"\n{line}\n\n  \n{line}\nnull\n[1]\n{line}")
    found = scored(source, BatchScorer("rougel"))
    assert found["score"] == [1.0, 1.0, None, None, 1.0]
    assert [error and error[:6] for error in found["error"]] == [None, None, "line 6", "line 7", None]


@pytest.mark.parametrize("name", ["response", "generated_caption", "prediction", "Output"])
def test_ground_truth_beside_a_prediction_is_refused(name: str, tmp_path: Path) -> None:
    rows = {"caption": ["a dog"], name: ["a cat"], "references": [["a dog"]]}
    source = write_parquet(tmp_path / "0.parquet", rows)
    with pytest.raises(FileError, match="several columns for caption") as raised:
        score_shard(source, tmp_path / "out.parquet", "rougel")
    assert repr(name) in str(raised.value) and "'caption'" in str(raised.value)
    result = score_shard(source, tmp_path / "out.parquet", "rougel", columns={"caption": name})
    assert (result.columns["caption"], result.unread) == ([name], ["caption"])


def test_a_list_of_one_image_is_that_image(
    tmp_path: Path, scorer: BatchScorer, expected: list[float]
) -> None:
    rows = rows_of(12)
    images = rows.pop("image")
    forms: dict[str, Any] = {
        "structs": [[{"bytes": image, "path": None}] for image in images],
        "bytes": [[image] for image in images],
    }
    for form, column in forms.items():
        found = scored(write_parquet(tmp_path / f"{form}.parquet", {**rows, "images": column}), scorer)
        assert np.allclose(found["score"], expected, rtol=0, atol=1e-6)
    several = {**rows, "images": [*forms["bytes"][:11], images[:2]]}
    found = scored(write_parquet(tmp_path / "several.parquet", several), scorer)
    assert [i for i, error in enumerate(found["error"]) if error] == [11]


def test_each_caption_of_a_row_becomes_a_row(tmp_path: Path) -> None:
    rows = {
        "uid": ["x", "y"],
        "captions": [["a dog", "a cat"], ["a house"]],
        "references": [["a dog"], ["a house"]],
    }
    found = scored(write_parquet(tmp_path / "0.parquet", rows), BatchScorer("rougel"), window=1)
    assert found["uid"] == ["x#0", "x#1", "y#0"]
    assert found["score"] == [1.0, pytest.approx(0.5, abs=0.2), 1.0]
    lines = tmp_path / "1.jsonl"
    lines.write_text(json.dumps({"id": 7, "captions": ["a dog", ""], "references": ["a dog"]}) + "\n")
    found = scored(lines, BatchScorer("rougel"))
    assert found["uid"] == ["7#0", "7#1"] and found["error"] == [None, "caption is empty"]


@pytest.mark.parametrize(
    "row",
    [
        {"URL": "https://example.org/0.jpg", "TEXT": "a dog"},
        {"image_url": "https://example.org/0.jpg", "caption": "a dog"},
        {"image": "https://example.org/0.jpg", "caption": "a dog"},
    ],
)
def test_addresses_alone_are_refused_as_such(row: dict[str, str], tmp_path: Path, weights: str) -> None:
    source = write_parquet(tmp_path / "0.parquet", {name: [value] * 3 for name, value in row.items()})
    with pytest.raises(FileError, match="not fetched") as raised:
        score_shard(source, tmp_path / "out.parquet", "pacs", weights=weights)
    assert "download" in str(raised.value)


@pytest.mark.parametrize("stem", ["22.0{}", "{}.05"])
def test_names_of_members_may_have_several_dots(stem: str, tmp_path: Path, weights: str) -> None:
    members = [
        (f"{stem.format(i)}{end}", content)
        for i in range(3)
        for end, content in ((".jpg", picture(i)), (".txt", b"a dog"))
    ]
    scorer = BatchScorer("pacs", weights=weights)
    found = scored(write_tar(tmp_path / "0.tar", members), scorer)
    assert found["uid"] == [stem.format(i) for i in range(3)] and found["error"] == [None] * 3
    # Where the first dot makes rows it counts, as webdataset splits names, and a row that it makes says so.
    found = scored(
        write_tar(tmp_path / "1.tar", [("a.jpg", picture(0)), ("a.txt", b"a dog"), *members]), scorer
    )
    assert found["uid"][0] == "a" and found["error"][0] is None
    assert all("first dot" in error for error in found["error"][1:])
