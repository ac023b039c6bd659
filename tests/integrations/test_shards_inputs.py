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
from PIL import Image

from capeval_core.errors import FileError
from capeval_core.integrations.shards import BatchScorer, score_shard, tars
from tests.integrations.shard_files import (
    picture,
    rows_of,
    tar_members,
    write_lines,
    write_parquet,
    write_tar,
)
from tests.support.seams import LIMITS


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


def test_texts_alone_need_no_images(tmp_path: Path) -> None:
    rows = rows_of(5)
    del rows["image"]
    assert None not in scored(write_parquet(tmp_path / "0.parquet", rows), BatchScorer("rougel"))["score"]


def test_videos(tmp_path: Path, weights: str, videos: Path) -> None:
    rows = {
        "uid": [0, 1, 2],
        "caption": ["a dog", "a dog", "a dog"],
        "video": ["clip1.mp4", "clip5.gif", "clip9.mp4"],
    }
    scorer = BatchScorer("pacs", media="video", weights=weights, idf=False)
    found = scored(write_parquet(tmp_path / "0.parquet", rows), scorer, images=videos)
    alone = scorer.metric.score(["a dog"] * 2, videos=[videos / "clip1.mp4", videos / "clip5.gif"])
    assert np.allclose(found["score"][:2], alone.scores, rtol=0, atol=1e-6)
    assert found["error"][:2] == [None, None] and "there is no file" in found["error"][2]
    members = [("a.mp4", (videos / "clip1.mp4").read_bytes()), ("a.txt", b"a dog")]
    assert np.allclose(scored(write_tar(tmp_path / "0.tar", members), scorer)["score"], alone.scores[:1])


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
    assert found["error"] == [
        None,
        "no image, only txt",
        "no caption, only png",
        "caption is a bytes of length 2",
        "image: 'e.png' is empty (zero bytes)",
        "no caption, only png, json",
        None,
    ]
    assert found["score"][0] == found["score"][6] is not None


def test_lines_that_are_no_rows_cost_themselves(tmp_path: Path, weights: str) -> None:
    (tmp_path / "x.png").write_bytes(picture(0))
    lines = [
        '{"id": 7, "text": "a dog", "file_name": "x.png"}',
        "not JSON",
        "[1]",
        "",
        '{"id": 8, "text": "a dog"}',
        '{"text": "a dog", "file_name": "../x.png"}',
        '{"id": 9, "text": ["a dog"], "file_name": "x.png"}',
        '{"id": 10, "text": "a dog", "file_name": "http://127.0.0.1/x.png"}',
    ]
    (tmp_path / "0.jsonl").write_text("\n".join(lines) + "\n")
    found = scored(tmp_path / "0.jsonl", BatchScorer("pacs", weights=weights))
    assert found["uid"] == ["7", "0/1", "0/2", "8", "0/4", "9", "10"]
    assert found["error"] == [
        None,
        "line 2 is not JSON (Expecting value: line 1 column 1 (char 0))",
        "line 3 is no object",
        "no image, only id, text",
        f"image: there is no file '{tmp_path}/../x.png'",
        "caption is a list of length 1",
        "image: 'http://127.0.0.1/x.png' is a URL, and images are never fetched; download it first",
    ]


def test_texts_that_are_not_unicode_cost_their_row(tmp_path: Path) -> None:
    buffers = pa.array([b"a dog", b"caf\xe9", b"a cat"]).buffers()
    texts = pa.Array.from_buffers(pa.string(), 3, buffers)
    for column in ("caption", "uid"):
        rows = {**rows_of(3), column: texts}
        found = scored(write_parquet(tmp_path / f"{column}.parquet", rows), BatchScorer("rougel"))
        assert found["error"] == [None, f"{column} is not valid UTF-8", None]
    assert found["uid"] == ["a dog", "uid/1", "a cat"]
    line = '{"uid": "\\ud800", "\\udfff": "a", "references": ["a dog"]'
    (tmp_path / "0.jsonl").write_text(line + ', "caption": "a dog"}\n' + line + "}\n")
    found = scored(tmp_path / "0.jsonl", BatchScorer("rougel"))
    assert found["uid"] == ["\\ud800"] * 2
    assert found["error"] == [None, "no caption, only uid, \\udfff, references"]


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
    assert found["error"] == [None, None, *["no image, only txt"] * 5]
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
    assert found["error"][5:] == [
        "image: there is no file '/pictures/gone.png'",
        "image: there is no file '/pictures/../1.png'",
        "image: 'https://example.org/x.png' is a URL, and images are never fetched; download it first",
    ]


def test_shards_that_are_cut_or_damaged_are_refused(tmp_path: Path, scorer: BatchScorer) -> None:
    rows = rows_of(30)
    rows["caption"] = [f"{i} {i * 7919}" for i in range(30)]
    parquet = write_parquet(tmp_path / "whole.parquet", rows, write_page_checksum=True).read_bytes()
    tar = write_tar(tmp_path / "whole.tar", tar_members(rows, fields=True)).read_bytes()
    lines = write_lines(tmp_path / "whole.jsonl", rows, tmp_path / "pictures").read_bytes()
    middle = parquet.find(picture(0)) + 40
    headers = [at for at in range(0, len(tar), 512) if tar[at : at + 4] == b"row-"]
    flipped = parquet[:middle] + bytes([parquet[middle] ^ 1]) + parquet[middle + 1 :]
    cut = [
        ("half.parquet", parquet[: len(parquet) // 2], "is not Parquet, cut off or damaged"),
        ("flipped.parquet", flipped, "is cut off or damaged"),
        ("empty.parquet", b"", "is not Parquet, cut off or damaged"),
        ("text.parquet", b"uid,caption\n", "is not Parquet, cut off or damaged"),
        ("member.tar", tar[: headers[9] + 600], "is not a tar, cut off or damaged"),
        ("between.tar", tar[: headers[8]], "it does not end as a tar ends"),
        ("header.tar", tar[: headers[8]] + b"?" + tar[headers[8] + 1 :], "it does not end as a tar ends"),
        ("empty.tar", b"", "is not a tar, cut off or damaged"),
        ("joined.tar", tar + tar, "goes on behind its end"),
        ("text.tar", lines, "is not a tar, cut off or damaged"),
        ("half.tar.gz", gzip.compress(tar)[:-500], "is not a tar, cut off or damaged"),
        ("tar.tar.gz", tar, "is not a tar, cut off or damaged"),
        ("half.jsonl", lines[:-20], "is cut off in line 30"),
        ("half.jsonl.gz", gzip.compress(lines)[:-20], "is cut off or damaged"),
    ]  # fmt: skip
    for name, content, message in cut:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileError, match=f"{name}: .*{message}"):
            scored(tmp_path / name, scorer)
        assert not (tmp_path / f"{name}.out").exists()


def test_columns_that_are_missing_or_hold_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capeval_core.metric.open_weights", None)  # none is opened
    rows = rows_of(3)
    twice = tmp_path / "twice.parquet"
    pq.write_table(
        pa.table([rows["image"], rows["caption"], rows["caption"]], ["image", "txt", "txt"]), twice
    )
    numbers = write_parquet(tmp_path / "numbers.parquet", {**rows, "caption": [1, 2, 3], "uid": [0.5] * 3})
    texts = write_parquet(tmp_path / "texts.parquet", {"alt_text": rows["caption"], "url": rows["uid"]})
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"alt": "a dog", "url": "x"}\n')
    tar = write_tar(tmp_path / "0.tar", [("a.mp3", b""), ("b.txt", b"a dog")])
    for source, columns, message in (
        (twice, None, "has more than one column 'txt'; its columns are image, txt, txt"),
        (numbers, None, "has a column 'uid' of double for uid; a column 'caption' of int64 for caption"),
        (
            texts,
            None,
            "no column for caption .known names: txt, caption, text,.*; its columns are alt_text, url: name",
        ),
        (texts, {"caption": "alttext"}, "no column 'alttext' for caption: did you mean 'alt_text'?"),
        (texts, {"uid": "key"}, "no column 'key' for uid"),
        (lines, None, "no column for image .*; its first 1 rows have alt, url"),
        (tar, None, "no column for image .*; its first 2 rows have mp3, txt"),
    ):
        with pytest.raises(FileError, match=message):
            score_shard(source, tmp_path / "out.parquet", "pacs", columns=columns)


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


def test_windows_end_at_a_number_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(40)
    rows["caption"] = ["word " * 300] * 40
    monkeypatch.setattr(LIMITS, "window_bytes", 15_000)
    for source in (
        write_parquet(tmp_path / "0.parquet", rows, use_dictionary=False),
        write_lines(tmp_path / "0.jsonl", rows, tmp_path / "pictures"),
        write_tar(tmp_path / "0.tar", tar_members(rows, fields=True)),
    ):
        done: list[int] = []
        score_shard(source, tmp_path / f"{source.name}.out", BatchScorer("bleu"), progress=done.append)
        assert sum(done) == 40 and 5 <= max(done) <= 11


def test_an_image_in_a_shard_keeps_its_own_orientation_and_mode(tmp_path: Path, weights: str) -> None:
    image = Image.open(Path(write_png(tmp_path)))
    scorer = BatchScorer("pacs", weights=weights)
    row = {"caption": ["a dog"], "image": [{"bytes": None, "path": "grey.png"}]}
    found = scored(write_parquet(tmp_path / "0.parquet", row), scorer)
    assert found["score"] == pytest.approx(scorer.metric.score(["a dog"], [image]).scores, abs=1e-7)


def write_png(folder: Path) -> str:
    path = folder / "grey.png"
    Image.fromarray(np.arange(48 * 60, dtype=np.uint8).reshape(48, 60)).save(path)
    return str(path)


def test_windows_have_their_number_of_rows_and_lose_none(tmp_path: Path) -> None:
    rows = rows_of(11)
    del rows["uid"]
    lines = [
        json.dumps({name: column[i] for name, column in rows.items() if name != "image"}) for i in range(11)
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))  # whole, without an end of line
    for source in (tmp_path / "x.jsonl", write_parquet(tmp_path / "x.parquet", rows)):
        done: list[int] = []
        found = scored(source, BatchScorer("rougel"), window=5, progress=done.append)
        assert done == [5, 5, 1] and found["uid"] == [f"x/{i}" for i in range(11)]


def test_members_that_no_metric_needs_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(2)
    others = [(f"{n}.{end}", bytes(1 << 16)) for n in range(2) for end in ("npy", "mp3")]
    needed = [(f"{n}.{end}", rows[name][n]) for n in range(2) for end, name in (("png", "image"),)]
    texts = [(f"{n}.txt", rows["caption"][n].encode()) for n in range(2)]
    tar = write_tar(tmp_path / "0.tar", sorted([*others, *needed, *texts]))
    read: list[str] = []
    original = tars._read
    monkeypatch.setattr(tars, "_read", lambda tar, one: read.append(one.name) or original(tar, one))
    result = score_shard(tar, tmp_path / "out" / "0.parquet", "pacs", weights="tiny")
    assert (result.rows, result.failed) == (2, 0)
    assert sorted(read) == ["0.png", "0.txt", "1.png", "1.txt"]


def test_a_row_that_fails_as_it_is_encoded_has_no_score_and_no_parts() -> None:
    """And `on_error` is none of a shard's: an image costs its row whatever was asked for."""
    rows = rows_of(3)
    rows["image"][1] = rows["image"][1][: len(rows["image"][1]) // 2]
    for on_error in ("raise", "nan"):
        scorer = BatchScorer("pacs", weights="tiny", on_error=on_error)
        found = scorer({name: rows[name] for name in ("caption", "image")})
        assert [score is None for score in found["score"]] == [False, True, False]
        assert [parts is None for parts in found["parts"]] == [False, True, False]
        assert [error is None for error in found["error"]] == [True, False, True]
        assert scorer.metric.options.on_error == "nan"
