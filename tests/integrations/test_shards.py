"""One shard in, one Parquet file out: scores, windows, reruns, kills, full disks."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.errors import FileError
from capeval_core.integrations.shards import BatchScorer, score_shard
from capeval_core.registry import METRICS, metric_class
from tests.integrations.shard_files import picture, rows_of, write_parquet
from tests.support.small_disk import fill

EACH = [name for name in METRICS if name != "eco"]
"""The metrics that score captions by themselves."""


def options_of(name: str) -> dict[str, Any]:
    return {} if metric_class(name).default_weights is None else {"weights": "tiny"}


def with_statistics(name: str, rows: dict[str, list[Any]]) -> dict[str, Any]:
    """Options of a metric, with a table of the references where it weighs words."""
    options = options_of(name)
    if name not in ("cider", "ciderd"):
        return options
    return {**options, "statistics": capeval_core.load(name).prepare(rows["references"])}


@pytest.mark.parametrize("name", EACH)
def test_scores_and_parts_are_those_of_score(name: str, tmp_path: Path) -> None:
    rows = rows_of(11)
    options = with_statistics(name, rows)
    metric = capeval_core.load(name, **options, cache=FeatureCache())  # features of this batch alone
    needed = {argument: rows[column] for argument, column in _arguments(name).items()}
    expected = metric.score(rows["caption"], **needed)
    result = score_shard(
        write_parquet(tmp_path / "0.parquet", rows), tmp_path / "out.parquet", name, **options
    )
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["uid", "score", "parts", "truncated", "error"]
    assert table["uid"].to_pylist() == rows["uid"]
    assert np.allclose(table["score"].to_numpy(), expected.scores, rtol=0, atol=1e-6)
    found = table["parts"].combine_chunks()
    for part, values in expected.parts.items():
        own = found.field(part).to_pylist()
        assert [np.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(own, values, strict=True)] == [True] * 11
    assert table["error"].null_count == 11 and sum(table["truncated"].to_pylist()) == 0
    assert (result.rows, result.failed, result.skipped) == (11, 0, False)
    assert result.signature == metric.signature()


def _arguments(name: str) -> dict[str, str]:
    class_ = metric_class(name)
    images = {"images": "image"} if class_.media else {}
    return {**images, **({"references": "references"} if class_.needs_references else {})}


def test_ten_thousand_rows_in_windows_of_any_size(tmp_path: Path, weights: str) -> None:
    rows = rows_of(10_000)
    source = write_parquet(tmp_path / "0.parquet", rows, row_group_size=1500)
    metric = capeval_core.load("pacs", weights=weights)
    expected = metric.score(rows["caption"], rows["image"]).scores
    for window in (700, 10_000):
        done: list[int] = []
        target = tmp_path / f"{window}.parquet"
        score_shard(source, target, metric, window=window, progress=done.append)
        table = pq.read_table(target)
        assert np.abs(table["score"].to_numpy() - expected).max() <= 1e-7
        assert sum(done) == 10_000 and max(done) == window
    assert pq.read_table(tmp_path / "700.parquet")["uid"].to_pylist() == rows["uid"]


def test_order_and_other_rows_move_no_score(tmp_path: Path, weights: str) -> None:
    rows = rows_of(40)
    rows["image"][7] = b"no picture"
    order = np.random.default_rng(1).permutation(40).tolist()
    shuffled = {name: [column[i] for i in order] for name, column in rows.items()}
    scorer = BatchScorer("refpacs", weights=weights)
    tables = []
    for i, content in enumerate((rows, shuffled)):
        score_shard(write_parquet(tmp_path / f"{i}.parquet", content), tmp_path / f"out/{i}.parquet", scorer)
        tables.append(pq.read_table(tmp_path / f"out/{i}.parquet").to_pandas())
    first, second = (table.set_index("uid").sort_index() for table in tables)
    assert np.allclose(first["score"], second["score"], rtol=0, atol=1e-6, equal_nan=True)
    assert first["error"].tolist() == second["error"].tolist()
    assert first["score"].isna().tolist() == [uid == "row-000007" for uid in first.index]


def test_a_file_does_not_depend_on_what_its_worker_did_before(tmp_path: Path, weights: str) -> None:
    sources = [write_parquet(tmp_path / f"{i}.parquet", rows_of(13, first=4 * i)) for i in range(3)]
    scorer = BatchScorer("refpacs", weights=weights)
    for source in sources:
        score_shard(source, tmp_path / "out" / source.name, scorer)
    score_shard(sources[2], tmp_path / "alone.parquet", "refpacs", weights=weights)
    assert pq.read_table(tmp_path / "alone.parquet").equals(pq.read_table(tmp_path / "out" / "2.parquet"))


def test_a_batch_that_does_not_fit_into_memory_is_halved(
    tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_parquet(tmp_path / "0.parquet", rows_of(30))
    score_shard(source, tmp_path / "usual.parquet", "pacs", weights=weights)
    forward, sizes = ClipEncoder._packed_forward, []

    def short_of_memory(self: ClipEncoder, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(arguments[0]))
        if len(arguments[0]) > 4:
            raise torch.OutOfMemoryError("too much")
        return forward(self, *arguments, **options)

    monkeypatch.setattr(ClipEncoder, "_packed_forward", short_of_memory)
    result = score_shard(source, tmp_path / "small.parquet", "pacs", weights=weights)
    usual, small = (
        pq.read_table(tmp_path / f"{name}.parquet")["score"].to_numpy() for name in ("usual", "small")
    )
    assert result.failed == 0 and max(sizes) > 4 >= min(sizes)
    assert np.allclose(usual, small, rtol=0, atol=1e-6)  # float32, in batches of another size


def test_a_row_that_cannot_be_scored_costs_itself(weights: str) -> None:
    batch: dict[str, list[Any]] = {
        "caption": ["a dog", "", None, "a dog", "a dog", 5, " ", "a dog", "a dog", "\ud800"],
        "image": [picture(0), picture(0), picture(0), b"GIF89a", None, picture(1), picture(1),
                  "https://example.org/x.png", {"bytes": None, "path": "gone.png"}, picture(1)],
    }  # fmt: skip
    found = BatchScorer("pacs", weights=weights)(batch)
    reasons = [
        None,
        "caption is empty",
        "caption is None",
        "image: the bytes object of length 6 is not an image that Pillow can read, or its header is "
        "truncated",
        "image is None",
        "caption is the number 5",
        "caption is empty (only whitespace)",
        "image: 'https://example.org/x.png' is a URL, and images are never fetched; download it first",
        "image: there is no file 'gone.png'",
        "caption is not valid Unicode (a lone surrogate): '\\ud800'",
    ]
    assert found["error"] == reasons
    assert [score is None for score in found["score"]] == [reason is not None for reason in reasons]
    assert [part is None for part in found["parts"]] == [reason is not None for reason in reasons]
    alone = BatchScorer("pacs", weights=weights)({name: column[:1] for name, column in batch.items()})
    assert found["score"][0] == pytest.approx(alone["score"][0], abs=1e-7)


def test_missing_references_cost_their_row_and_empty_captions_may_be_scored(weights: str) -> None:
    rows = rows_of(4)
    rows["references"][1:3] = [[], ["a dog", ""]]
    rows["caption"][3] = ""
    found = BatchScorer("refpacs", weights=weights)(rows)
    assert found["error"] == [None, "references is empty", "references[1] is empty", "caption is empty"]
    metric = capeval_core.load("refpacs", weights=weights, empty="score")
    found = BatchScorer(metric)(rows)
    assert found["error"] == [None, "references is empty", None, None]
    expected = metric.score([""], [rows["image"][3]], [rows["references"][3]])
    assert found["score"][3] == pytest.approx(expected.scores[0], abs=1e-7)


def test_a_scorer_is_pickled_without_its_weights(weights: str) -> None:
    scorer, rows = BatchScorer("pacs", weights=weights), rows_of(3)
    expected = scorer(rows)
    data = pickle.dumps(scorer)
    assert len(data) < 5_000
    assert pickle.loads(data)(rows) == expected


def test_a_finished_target_is_kept_and_another_refused(
    tmp_path: Path, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(6)
    source, target = write_parquet(tmp_path / "0.parquet", rows), tmp_path / "out" / "0.parquet"
    first = score_shard(source, target, "pacs", weights=weights)
    content = target.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(ClipEncoder, "encode_images", None)
        patch.setattr("capeval_core.integrations.shards.shard._checksum", None)  # its size and time suffice
        again = score_shard(source, target, "pacs", weights=weights)
    assert again.skipped and vars(again) == {**vars(first), "skipped": True, "scored": 0}
    os.utime(source, (1, 1))  # another time, but the same content
    assert score_shard(source, target, "pacs", weights=weights).skipped
    for options, differing in (
        ({"w": 2.5}, "signature: "),
        ({"empty": "score"}, "empty: 'error' there, 'score'"),
        ({"columns": {"uid": "caption"}}, "columns: {} there, "),
    ):
        with pytest.raises(FileError, match=f"out/0.parquet: holds other scores .{differing}"):
            score_shard(source, target, "pacs", weights=weights, **options)
    rows["caption"][2] = "another caption"
    write_parquet(source, rows)
    with pytest.raises(
        FileError, match=r"holds other scores .checksum: .*: choose another target, or delete it"
    ):
        score_shard(source, target, "pacs", weights=weights)
    assert target.read_bytes() == content


def test_failed_rows_alone_are_scored_again(tmp_path: Path) -> None:
    rows = {"uid": [f"{i}" for i in range(70)], "caption": ["a dog"] * 70, "image": ["x.png"] * 70}
    rows["image"][3] = rows["image"][64] = "late.png"
    rows["caption"][9] = ""
    source, target = write_parquet(tmp_path / "0.parquet", rows), tmp_path / "out.parquet"
    (tmp_path / "x.png").write_bytes(picture(1))
    scorer = BatchScorer("pacs", weights="tiny")
    first = score_shard(source, target, scorer, window=16)
    assert (first.failed, first.scored, first.skipped) == (3, 70, False)
    before = pq.read_table(target)
    (tmp_path / "late.png").write_bytes(picture(2))
    done: list[int] = []
    again = score_shard(source, target, scorer, retry_failed=True, window=16, progress=done.append)
    assert (again.rows, again.failed, again.scored, again.skipped, sum(done)) == (70, 1, 3, False, 3)
    after = pq.read_table(target)
    kept = [i for i in range(70) if i not in (3, 64)]
    assert after.take(kept).equals(before.take(kept)) and after["error"][9].as_py() == "caption is empty"
    assert after["score"][3].as_py() == pytest.approx(after["score"][64].as_py(), abs=1e-6)
    kind = before.schema.field("parts").type
    assert after.schema.field("parts").type == kind and after["parts"].null_count == 1
    write_parquet(source, {**rows, "caption": ["a cat"] * 70})
    with pytest.raises(FileError, match="checksum"):
        score_shard(source, target, scorer, retry_failed=True)


def test_a_store_without_times_or_tags_is_compared_by_content(tmp_path: Path) -> None:
    store, target = fsspec.filesystem("memory"), tmp_path / "out.parquet"
    content = write_parquet(tmp_path / "0.parquet", rows_of(6)).read_bytes()
    store.pipe("/tags/0.parquet", content)
    assert not score_shard("memory://tags/0.parquet", target, "bleu").skipped
    assert score_shard("memory://tags/0.parquet", target, "bleu").skipped
    store.pipe("/tags/0.parquet", write_parquet(tmp_path / "0.parquet", rows_of(6, first=1)).read_bytes())
    with pytest.raises(FileError, match=r"holds other scores .checksum: "):
        score_shard("memory://tags/0.parquet", target, "bleu")


def test_rows_with_texts_cut_off_are_counted(tmp_path: Path, weights: str) -> None:
    rows = rows_of(5)
    rows["caption"][1] = rows["caption"][3] = "word " * 90
    source, target = write_parquet(tmp_path / "0.parquet", rows), tmp_path / "out.parquet"
    assert score_shard(source, target, "pacs", weights=weights).truncated == 2
    cut = pq.read_table(target)["truncated"].to_pylist()
    assert [number > 1 for number in cut] == [False, True, False, True, False]


def test_a_damaged_target_is_made_again(tmp_path: Path, weights: str) -> None:
    source, target = write_parquet(tmp_path / "0.parquet", rows_of(30)), tmp_path / "out.parquet"
    score_shard(source, target, "pacs", weights=weights)
    expected = pq.read_table(target)
    whole = target.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.find(b"row-") + 2] ^= 1  # of a uid
    count, key = (whole.replace(b'"failed": 0', one) for one in (b'"failed": 1', b'"fail%d": 0'))
    for damaged in (whole[: len(whole) // 2], b"", bytes(flipped), count, key):
        target.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"out.parquet (is cut|has a) .*damaged.*: it is made again"):
            assert not score_shard(source, target, "pacs", weights=weights).skipped
        assert pq.read_table(target).equals(expected)


def test_what_is_something_else_is_never_overwritten(tmp_path: Path, weights: str) -> None:
    source = write_parquet(tmp_path / "0.parquet", rows_of(2))
    (tmp_path / "captions.json").write_text("[1, 2]")
    other = write_parquet(tmp_path / "other.parquet", rows_of(2))
    pipe = tmp_path / "pipe.parquet"
    os.mkfifo(pipe)
    (tmp_path / "link.parquet").symlink_to(pipe)
    for target, message in (
        (tmp_path / "captions.json", "captions.json: is not Parquet: choose another file"),
        (other, "other.parquet: is Parquet of something else, not the scores of a shard"),
        (source, "target='.*0.parquet' is the source: name another file"),
        (tmp_path, "is a folder"),
        (pipe, "pipe.parquet: is no regular file"),
        (tmp_path / "link.parquet", "link.parquet: is no regular file"),
    ):
        with pytest.raises(ValueError, match=message):
            score_shard(source, target, "pacs", weights=weights)
    assert (tmp_path / "captions.json").read_text() == "[1, 2]"


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    source, target = write_parquet(tmp_path / "0.parquet", rows_of(20)), tmp_path / "out" / "0.parquet"

    def replace(rows: int) -> None:
        os.utime(source, (1, 1))

    with pytest.raises(FileError, match=r"0.parquet: changed while it was read: score it again"):
        score_shard(source, target, "bleu", progress=replace)
    assert list(target.parent.iterdir()) == []


def test_short_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = write_parquet(tmp_path / "0.parquet", rows_of(3)), tmp_path / "out.parquet"

    def fail(*_: Any, **__: Any) -> Any:
        raise pa.ArrowMemoryError("malloc of size 1 failed")  # an ArrowException, too

    score_shard(source, target, "bleu")
    for name in ("ParquetFile.iter_batches", "ParquetFile.__init__"):
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(f"pyarrow.parquet.{name}", fail)
            score_shard(source, target, "bleu")
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(f"pyarrow.parquet.{name}", fail)
            score_shard(source, tmp_path / "new.parquet", "bleu")
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr("pyarrow.parquet.ParquetWriter.write_table", fail)
        score_shard(source, tmp_path / "new.parquet", "bleu")


def test_an_empty_shard_gives_an_empty_output(tmp_path: Path, weights: str) -> None:
    empty = pq.read_table(write_parquet(tmp_path / "full.parquet", rows_of(1)))[:0]
    pq.write_table(empty, tmp_path / "0.parquet")
    with pytest.warns(UserWarning, match="0.parquet has no rows"):
        result = score_shard(tmp_path / "0.parquet", tmp_path / "out.parquet", "pacs", weights=weights)
    assert (result.rows, len(pq.read_table(tmp_path / "out.parquet"))) == (0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert score_shard(tmp_path / "0.parquet", tmp_path / "out.parquet", "pacs", weights=weights).skipped


def test_metrics_that_score_a_set_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = write_parquet(tmp_path / "0.parquet", rows_of(2)), tmp_path / "out.parquet"
    monkeypatch.setattr("capeval_core.metric.open_weights", None)  # none is opened
    for name, options, message in (
        ("eco", {}, "eco cannot score a collection part by part: its totals are z-scores within one set"),
        ("ciderd", {}, r"load\('ciderd', ...\).prepare\(references\) and pass statistics="),
        ("vilbertscore", {"idf": "corpus"}, "vilbertscore needs statistics of the whole corpus"),
        ("pacs", {"media": "video"}, r"prepare\(captions\) and pass statistics=..., or pass idf=False"),
        ("pasc", {}, "did you mean 'pacs'"),
        ("pacs", {"weigths": "tiny"}, "did you mean 'weights'"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            score_shard(source, target, name, **options)
    assert not target.exists()


def test_wrong_arguments(tmp_path: Path, weights: str) -> None:
    source, target = write_parquet(tmp_path / "0.parquet", rows_of(2)), tmp_path / "out.parquet"
    scorer: Any = BatchScorer("pacs", weights=weights)
    for arguments, options, message in (
        ((5, target, scorer), {}, "source=5 is the number 5: expected a path"),
        ((tmp_path / "1.parquet", target, scorer), {}, "1.parquet: does not exist"),
        ((tmp_path / "x.csv", target, scorer), {}, "x.csv: is no shard by its name: one ends in .parquet"),
        (("nonsense://x.parquet", target, scorer), {}, "source='nonsense://x.parquet'.*[Pp]rotocol"),
        ((source, target, scorer), {"images": tmp_path / "no"}, "/no: there is no such folder"),
        ((source, target, scorer), {"window": 0}, "window=0: expected a whole number"),
        ((source, target, scorer), {"w": 2.5}, "open already: pass w to it"),
        ((source, target, scorer.metric), {"w": 2.5}, "open already: pass w to capeval_core.load"),
        ((source, target, 5), {}, "metric=5 is the number 5: expected a name"),
        (
            (source, target, scorer),
            {"columns": {"captions": "x"}},
            "a key 'captions'.*did you mean 'caption'",
        ),
        ((source, target, scorer), {"columns": {"caption": 5}}, "expected names by what they hold"),
        ((source, target, scorer), {"columns": {"caption": "captoin"}}, "did you mean 'caption'"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            score_shard(*arguments, **options)
    assert not target.exists()


_SLOWLY = """
import sys, time
from capeval_core.integrations.shards import score_shard
def progress(rows):
    print("window", flush=True)
    time.sleep(600)
score_shard(sys.argv[1], sys.argv[2], "bleu", window=10, progress=progress)
"""


def test_a_kill_leaves_no_target_and_a_rerun_finishes_equal(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "0.parquet", rows_of(40))
    target = tmp_path / "out" / "0.parquet"
    process = subprocess.Popen([sys.executable, "-c", _SLOWLY, source, target], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"window\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not target.exists() and [path.suffix for path in target.parent.iterdir()] == [".partial"]
    assert not score_shard(source, target, "bleu").skipped
    score_shard(source, tmp_path / "usual.parquet", "bleu")
    assert pq.read_table(target).equals(pq.read_table(tmp_path / "usual.parquet"))


def test_a_full_disk_leaves_nothing(tmp_path: Path, small_disk: Path) -> None:
    source = write_parquet(tmp_path / "0.parquet", rows_of(300))
    target = small_disk / "0.parquet"
    fill(small_disk)
    with pytest.raises(OSError, match=r"disk/0.parquet cannot be written \(.*No space left on device"):
        score_shard(source, target, "rougel", window=50)
    assert [path.name for path in small_disk.iterdir()] == ["filler"]
    (small_disk / "filler").unlink()
    assert score_shard(source, target, "rougel").rows == 300


def test_interrupted_by_its_caller_it_leaves_nothing(tmp_path: Path) -> None:
    def stop(rows: int) -> None:
        raise KeyboardInterrupt

    source = write_parquet(tmp_path / "0.parquet", rows_of(30))
    with pytest.raises(KeyboardInterrupt):
        score_shard(source, tmp_path / "out" / "0.parquet", "bleu", window=10, progress=stop)
    assert list((tmp_path / "out").iterdir()) == []
