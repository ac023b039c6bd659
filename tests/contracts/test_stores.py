"""The contract of what is kept on a disk: nothing is computed twice, and no damage goes unnoticed.

Kept rows, cached features, box features, scores of shards, generated positives and outputs of frozen towers,
each through its own door.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.cli import main
from capeval_core.integrations.shards import score_shard
from tests.integrations.shard_inputs import write_shards
from tests.support.small_disk import fill, largest_file
from tests.training.generative import arguments as augment
from tests.training.pac_pairs import arguments as train
from tests.training.pac_pairs import write_pairs

Fork = multiprocessing.get_context("fork")
CAPTIONS = [f"a {colour} dog" for colour in ("red", "green", "blue", "black", "white", "grey")]
REFERENCES = [[f"the dog is {i}", "a dog"][: 1 + i % 2] for i in range(6)]


class FailedError(Exception):
    """A command that did not end well."""


@dataclass(frozen=True)
class Given:
    """What the runs are given: images, a captioner, drawn images and a set to train on."""

    images: list[Path]
    captioner: Path
    drawn: Path
    pairs: Path
    shard: Path


@dataclass(frozen=True)
class Store:
    """run: fills a folder, or uses what is there, and gives what comes of it. other: with another setting.

    refuses: whether the folder of another setting is an error; else both live side by side. warns: whether
    damage has a warning; else it is only made again. saves: how many files are put in place before the kill.
    """

    run: Callable[[Given, Path], Any]
    other: Callable[[Given, Path], Any]
    refuses: bool = True
    warns: bool = True
    saves: int = 3


def command(*words: Any) -> None:
    if main(list(map(str, words))):
        raise FailedError(words)


class Close(list[Any]):
    """Numbers that are equal to 1e-6: what is computed again runs in other batches."""

    def __eq__(self, other: object) -> bool:
        return bool(np.allclose(self, np.asarray(other), rtol=0, atol=1e-6))

    def __ne__(self, other: object) -> bool:
        return not self == other


def scores(given: Given, **options: Any) -> Any:
    metric = capeval_core.load(
        "refpacs", **{"weights": "tiny", "device": "cpu", "cache": FeatureCache(), **options}
    )
    result = metric.score(CAPTIONS, given.images, REFERENCES)
    return Close([result.scores, result.parts["reference_cosine"]])


def rows(given: Given, folder: Path, **options: Any) -> Any:
    return scores(given, rows=folder, **options)


def features(given: Given, folder: Path, **options: Any) -> Any:
    """In memory of their own each time, so that the disk is read."""
    found = scores(given, cache=FeatureCache(folder=folder), **options)
    gc.collect()  # closes the database
    return found


def shards(given: Given, folder: Path, **options: Any) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    score_shard(given.shard, folder / "scores.parquet", "clips", weights="tiny", device="cpu", **options)
    return pq.read_table(folder / "scores.parquet").to_pylist()


def boxes(given: Given, folder: Path, *flags: Any) -> Any:
    images = ["--images", given.images[0].parent, "--out", folder]
    command("regions", *images, "--weights", "tiny", "--device", "cpu", *flags)
    return {
        path.name: {name: array.tolist() for name, array in np.load(path).items()}
        for path in sorted(folder.glob("*.npz"))
    }


def positives(given: Given, folder: Path, *flags: Any) -> Any:
    command(*augment("captions", given.drawn, given.captioner, folder), *flags)
    tables = [pq.read_table(path) for path in folder.rglob("*.parquet")]
    return {row["id"]: row["caption"] for table in tables for row in table.to_pylist()}


def towers(given: Given, folder: Path, **settings: Any) -> Any:
    """A training of two steps, whose own folder is new each time."""
    out = folder.with_name(f"{folder.name} {os.getpid()} {len(list(folder.parent.iterdir()))}")
    command(*train(given.pairs, out, steps=2, log_every=1, towers=folder, **settings))
    return next(out.rglob("model.safetensors")).read_bytes()


STORES = {
    "rows": Store(rows, lambda given, folder: rows(given, folder, dtype="bfloat16"), saves=1),
    "features": Store(
        features, lambda given, folder: features(given, folder, dtype="bfloat16"), refuses=False
    ),
    "shards": Store(shards, lambda given, folder: shards(given, folder, dtype="bfloat16"), saves=1),
    "boxes": Store(boxes, lambda given, folder: boxes(given, folder, "--dtype", "float16"), warns=False),
    "positives": Store(positives, lambda given, folder: positives(given, folder, "--beams", 2), saves=2),
    "towers": Store(towers, lambda given, folder: towers(given, folder, precision="bfloat16"), refuses=False),
}
EVERY = pytest.mark.parametrize("name", STORES)


@pytest.fixture(scope="module")
def given(
    tmp_path_factory: pytest.TempPathFactory, captioner: Path, drawn: Path, images: list[Path]
) -> Given:
    folder = tmp_path_factory.mktemp("stores")
    write_shards(folder / "shards", shards=1, rows=8)
    shard = folder / "shards" / "00000.parquet"
    return Given(images, captioner, drawn, write_pairs(folder / "pairs"), shard)


@pytest.fixture(scope="module")
def whole(given: Given, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    """The folder of a store that one run filled, and what came of it; not to be changed."""
    made: dict[str, tuple[Path, Any]] = {}

    def of(name: str) -> tuple[Path, Any]:
        if name not in made:
            folder = tmp_path_factory.mktemp("whole") / "kept"
            made[name] = folder, STORES[name].run(given, folder)
        return made[name]

    return of


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every visible file with the time of its last change."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@EVERY
def test_a_second_run_changes_nothing(name: str, given: Given, whole: Any) -> None:
    folder, expected = whole(name)
    before = contents(folder)
    assert before and STORES[name].run(given, folder) == expected
    assert contents(folder) == before


@EVERY
def test_damage_costs_a_computation_and_a_warning(
    name: str, given: Given, whole: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, expected = whole(name)
    largest = max(contents(folder).items(), key=lambda item: len(item[1][1]))[0]
    content = contents(folder)[largest][1]
    damages = {"empty": b"", "cut": content[: len(content) // 2], "zeros": bytes(len(content))}
    for share in range(3):
        flipped = bytearray(content)
        flipped[(len(content) - 1) * share // 2] ^= 1 << share
        damages[f"bit {share}"] = bytes(flipped)
    noticed = []
    for damage, data in damages.items():
        damaged = tmp_path / damage
        shutil.copytree(folder, damaged)
        (damaged / largest).write_bytes(data)
        capsys.readouterr()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                assert STORES[name].run(given, damaged) == expected, damage
            except ValueError as error:  # what is no such file any more may be the user's own
                assert str(damaged) in str(error), damage
                noticed.append(True)
                continue
        said = capsys.readouterr().err.replace("\\n", " ")
        noticed.append(any(str(damaged) in str(one.message) for one in caught) or damage in said)
    if STORES[name].warns:
        assert noticed.count(True) >= 5  # a bit of a free page has no effect, and no database is a new one


@EVERY
def test_another_setting_never_meets_what_is_kept(
    name: str, given: Given, whole: Any, tmp_path: Path
) -> None:
    store, (folder, expected) = STORES[name], whole(name)
    shutil.copytree(folder, tmp_path / "kept")
    alone = None if store.refuses else store.other(given, tmp_path / "alone")
    before = contents(tmp_path / "kept")
    if store.refuses:
        with pytest.raises((ValueError, FailedError)):
            store.other(given, tmp_path / "kept")
        assert contents(tmp_path / "kept") == before
    else:
        assert store.other(given, tmp_path / "kept") == alone != expected
    assert store.run(given, tmp_path / "kept") == expected


def in_a_process(run: Callable[[], object], saves: int | None = None) -> int | None:
    """Run in a process, which may be killed while it puts so many files in place; its exit status."""

    def killed() -> None:
        fsync, put, calls = os.fsync, FeatureCache.put, []

        def at(do: Any) -> Any:
            def called(*given: Any) -> Any:
                calls.append(given)
                if len(calls) == saves:
                    os.kill(os.getpid(), signal.SIGKILL)
                return do(*given)

            return called

        os.fsync = at(fsync)
        FeatureCache.put = at(put)  # type: ignore[method-assign]
        run()

    process = Fork.Process(target=killed)
    process.start()
    process.join(120)
    return process.exitcode


@EVERY
def test_a_killed_run_goes_on_to_the_same_end(name: str, given: Given, whole: Any, tmp_path: Path) -> None:
    store, folder = STORES[name], tmp_path / "kept"
    for saves in (store.saves, store.saves + 2):
        assert in_a_process(lambda: store.run(given, folder), saves) in (-signal.SIGKILL, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.run(given, folder) == whole(name)[1]
    before = contents(folder)
    assert store.run(given, folder) == whole(name)[1] and contents(folder) == before


@pytest.mark.parametrize("name", sorted(STORES.keys() - {"features"}))  # SQLite has its own ways
def test_what_has_its_name_is_on_the_disk_first(
    name: str, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that files are whole after the power failed, too."""
    synced, fsync = set(), os.fsync

    def noted(file: int) -> None:
        fsync(file)
        synced.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    STORES[name].run(given, tmp_path / "kept")
    files = [path for path in (tmp_path / "kept").rglob("*") if path.is_file() and path.stat().st_size]
    assert files and {path.name for path in files if path.stat().st_ino not in synced} == set()


@EVERY
def test_two_runs_at_once_share_a_folder(name: str, given: Given, whole: Any, tmp_path: Path) -> None:
    runs = [Fork.Process(target=STORES[name].run, args=(given, tmp_path / "kept")) for _ in range(2)]
    for process in runs:
        process.start()
    for process in runs:
        process.join(240)
    assert [process.exitcode for process in runs] == [0, 0]
    assert STORES[name].run(given, tmp_path / "kept") == whole(name)[1]


@EVERY
@pytest.mark.parametrize("full", ["before", "midway"])
def test_a_full_disk_loses_nothing(
    name: str, full: str, given: Given, whole: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It is refused, an error at the end, or a warning; what was there stays, and there is nothing half."""
    store, expected = STORES[name], whole(name)[1]
    folder = (request.getfixturevalue("small_disk") if full == "before" else tmp_path) / "kept"
    folder.mkdir()
    if full == "before":
        fill(folder.parent)
    limit = largest_file(1000) if full == "midway" else contextlib.nullcontext()
    with warnings.catch_warnings(), limit:
        warnings.simplefilter("ignore")
        with contextlib.suppress(OSError, ValueError, FailedError):
            assert store.run(given, folder) == expected
    assert not any(folder.rglob("*.partial"))
    if full == "midway":
        assert store.run(given, folder) == expected
