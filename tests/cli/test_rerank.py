"""`capeval rerank`: pools in files, the chosen captions as CSV."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import capeval_core
from capeval_core.result import Result
from tests.cli.conftest import TINY, Capeval, Ran, read_json, unless_given, write_json
from tools.captions import describe
from tools.scenes import draw, sample_scene

IDS = ["a.b", "42", "third"]
NAMES = ["a.b.png", "COCO_val2014_000000000042.png", "third.png"]


@pytest.fixture
def pools(tmp_path: Path) -> dict[str, list[str]]:
    """Pools of 5, 6 and 7 captions, in a file, and their images."""
    rng = np.random.default_rng(2)
    (tmp_path / "images").mkdir()
    pools = {}
    for number, (image_id, name) in enumerate(zip(IDS, NAMES, strict=True)):
        scene = sample_scene(rng)
        draw(scene).save(tmp_path / "images" / name)
        pools[image_id] = [describe(scene, rng) for _ in range(5 + number)]
    write_json(tmp_path / "pools.json", pools)
    return pools


@pytest.fixture
def rerank(capeval: Capeval, pools: object, tmp_path: Path) -> Capeval:
    """`capeval rerank` on those files, or on others that arguments name."""

    def run(*arguments: object) -> Ran:
        usual = {"--candidates": tmp_path / "pools.json", "--images": tmp_path / "images"}
        usual |= {"--out": tmp_path / "best.csv"} | TINY
        return capeval("rerank", *unless_given(usual, arguments), *arguments)

    return run


def chosen(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which no file can be made")
def test_a_file_that_fails_costs_no_other(rerank: Capeval, tmp_path: Path) -> None:
    ran = rerank("--out", "/proc/best.csv", "--json", tmp_path / "all.json")
    assert ran.status != 0 and "/proc/best.csv" in ran.err
    assert len(read_json(tmp_path / "all.json")["scores"]) == len(IDS)


def test_images_that_fail_are_left_out_and_all_of_them_are_status_1(rerank: Capeval, tmp_path: Path) -> None:
    (tmp_path / "images" / NAMES[0]).write_bytes(b"no image")
    ran = rerank("--on-error", "nan")
    assert ran.status == 0 and re.search(r"^images +3 \(1 failed\)$", ran.out, re.MULTILINE)
    assert re.search(r"^candidates +18 \(5 to 7 per image\)$", ran.out, re.MULTILINE)
    assert "1 of 3 captions failed" in ran.err and f"image of {IDS[0]!r}" in ran.err
    assert [row[0] for row in chosen(tmp_path / "best.csv")] == ["filename", *NAMES[1:]]
    for name in NAMES[1:]:
        (tmp_path / "images" / name).write_bytes(b"no image")
    captions = [f"a red circle over {number} stars" for number in range(7)]
    for sizes, extent in (((5, 7, 7), "19 (5 to 7"), ((5, 5, 5), "15 (5")):
        pools = {name: captions[:size] for name, size in zip(IDS, sizes, strict=True)}
        write_json(tmp_path / "pools.json", pools)
        ran = rerank("--on-error", "nan")
        assert re.search(rf"^candidates +{re.escape(extent)} per image\)$", ran.out, re.MULTILINE)
        assert ran.status == 1 and "3 of 3 captions failed" in ran.err and "(3 failed)" in ran.out
        assert chosen(tmp_path / "best.csv") == [["filename", "caption"]]


def test_every_form_gives_the_choice_of_the_library(
    rerank: Capeval, pools: dict[str, list[str]], tmp_path: Path
) -> None:
    ran = rerank("--json", tmp_path / "all.json", "--report", tmp_path / "report")
    images = [tmp_path / "images" / name for name in NAMES]
    expected = capeval_core.load("eco", weights="tiny", device="cpu").score(list(pools.values()), images)
    best = [["filename", "caption"], *map(list, zip(NAMES, expected.parts["caption"], strict=True))]
    assert ran.status == 0 and chosen(tmp_path / "best.csv") == best
    content = read_json(tmp_path / "all.json")
    assert content["ids"] == IDS and Result.from_dict(content) == expected
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert all(f">{caption}</blockquote>" in html for _, caption in best[1:])
    assert all(caption in html for pool in pools.values() for caption in pool) and str(tmp_path) not in html

    pairs = [(image_id, caption) for image_id, captions in pools.items() for caption in captions]
    longest = max(map(len, pools.values()))
    wide = [
        [name, *pool, *[""] * (longest - len(pool))] for name, pool in zip(NAMES, pools.values(), strict=True)
    ]
    tables = {
        "long": [("image_id", "caption"), *pairs],
        "wide": [["filename", *map(str, range(longest))], *wide],
    }
    for name, rows in tables.items():
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    columns = {"id": [i for i, _ in pairs], "caption": [c for _, c in pairs]}
    pq.write_table(pa.table(columns), tmp_path / "pools.parquet")
    for name in ("long.csv", "wide.csv", "pools.parquet"):
        assert rerank("--candidates", tmp_path / name).status == 0, name
        assert chosen(tmp_path / "best.csv") == best, name


def test_a_choice_that_hardly_matches_is_named_by_its_id(
    rerank: Capeval, pools: dict[str, list[str]], tmp_path: Path
) -> None:
    """Of the third pool the right caption falls to the filter of five words; what is left is wrong."""
    rng = np.random.default_rng(9)
    right, wrong = sample_scene(rng), sample_scene(rng)
    short = f"a {right.objects[0].colour} {right.objects[0].shape}"
    first = rerank("--rows", tmp_path / "rows")
    assert "doubtful" not in first.out  # the pools of right captions give no cause
    shards = sorted((tmp_path / "rows").rglob("*.parquet"))
    assert {shard.parent.name for shard in shards} == {"blip2-itc", "pacs-tiny", "alpha-clip-tiny"}
    again = rerank("--rows", tmp_path / "rows", "--threshold", 0)  # of the same rows
    assert again.status == 0 and sorted((tmp_path / "rows").rglob("*.parquet")) == shards
    draw(right).save(tmp_path / "images" / NAMES[2])
    write_json(
        tmp_path / "pools.json", {**pools, "third": [short, *(describe(wrong, rng) for _ in range(3))]}
    )
    ran = rerank()
    assert ran.status == 0 and "doubtful    1 choices" in ran.out and "'third'" in ran.out
    assert "caption 1 of 'third' has" in ran.err and "captions[" not in ran.err
