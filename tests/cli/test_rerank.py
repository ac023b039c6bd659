"""`capeval rerank`: pools in files, the chosen captions as CSV."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import capeval_core
from capeval_core.commands.rerank import CandidateFile, submission
from capeval_core.result import Result
from tests.cli.conftest import Ran, refuse_token
from tools.captions import describe
from tools.scenes import draw, sample_scene

IDS = ["a.b", "42", "third"]
NAMES = ["a.b.png", "COCO_val2014_000000000042.png", "third.png"]


@pytest.fixture
def pools(tmp_path: Path) -> dict[str, list[str]]:
    """Pools of 5, 6 and 7 captions; images/ has a fourth image."""
    rng = np.random.default_rng(2)
    (tmp_path / "images").mkdir()
    pools = {}
    for number, (image_id, name) in enumerate(zip([*IDS, "nobody"], [*NAMES, "nobody.png"], strict=True)):
        scene = sample_scene(rng)
        draw(scene).save(tmp_path / "images" / name)
        pools[image_id] = [describe(scene, rng) for _ in range(5 + number)]
    del pools["nobody"]
    (tmp_path / "pools.json").write_text(json.dumps(pools))
    return pools


@pytest.fixture
def rerank(capeval: Callable[..., Ran], pools: Any, tmp_path: Path) -> Callable[..., Ran]:
    """`capeval rerank` on those files; further arguments follow, and win."""

    def run(*arguments: object) -> Ran:
        given = ["--candidates", tmp_path / "pools.json", "--images", tmp_path / "images"]
        out = ["--out", tmp_path / "best.csv", "--weights", "tiny", "--device", "cpu"]
        return capeval("rerank", *given, *out, *arguments)

    return run


def chosen(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_the_choice_is_that_of_the_library(
    rerank: Callable[..., Ran], pools: dict[str, list[str]], tmp_path: Path
) -> None:
    ran = rerank("--json", tmp_path / "all.json")
    assert ran.status == 0
    images = [tmp_path / "images" / name for name in NAMES]
    expected = capeval_core.load("eco", weights="tiny", device="cpu").score(list(pools.values()), images)
    rows = chosen(tmp_path / "best.csv")
    assert rows == [["filename", "caption"], *map(list, zip(NAMES, expected.parts["caption"], strict=True))]
    content = json.loads((tmp_path / "all.json").read_text(), parse_constant=refuse_token)
    assert content["ids"] == IDS and Result.from_dict(content) == expected
    assert ran.out.splitlines() == [
        f"ECO         {expected.mean:.4f} (mean total, comparable within this set only)",
        "images      3 (0 failed)",
        "candidates  18 (5 to 7 per image)",
        f"signature   {expected.signature}",
        f"chosen      {tmp_path / 'best.csv'}",
    ]
    assert "one image" in ran.err and "no candidates" in ran.err


def test_the_first_candidate_is_a_choice_and_none_is_not() -> None:
    pools = CandidateFile(IDS, [Path("images", name) for name in NAMES], [["first", "second"]] * 3)
    result: Any = SimpleNamespace(parts={"caption": ["first", "", "second"], "choice": [0, -1, 1]})
    assert submission(pools, result) == f"filename,caption\n{NAMES[0]},first\n{NAMES[2]},second\n"


def test_every_form_gives_the_same_choice(
    rerank: Callable[..., Ran], pools: dict[str, list[str]], tmp_path: Path
) -> None:
    rerank()
    expected = chosen(tmp_path / "best.csv")
    pairs = [(image_id, caption) for image_id, captions in pools.items() for caption in captions]
    with (tmp_path / "long.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image_id", "caption"), *pairs])
    with (tmp_path / "wide.csv").open("w", newline="") as file:  # the challenge's own form
        wide = [[name, *captions] for name, captions in zip(NAMES, pools.values(), strict=True)]
        longest = max(map(len, wide))
        rows = [["filename", *map(str, range(longest - 1))], *(r + [""] * (longest - len(r)) for r in wide)]
        csv.writer(file).writerows(rows)
    columns = {"id": [i for i, _ in pairs], "caption": [c for _, c in pairs]}
    pq.write_table(pa.table(columns), tmp_path / "pools.parquet")
    for name in ("long.csv", "wide.csv", "pools.parquet"):
        assert rerank("--candidates", tmp_path / name).status == 0, name
        assert chosen(tmp_path / "best.csv") == expected, name


def test_what_was_chosen_can_be_scored(
    rerank: Callable[..., Ran], capeval: Callable[..., Ran], tmp_path: Path
) -> None:
    rerank()
    files = ["--candidates", tmp_path / "best.csv", "--images", tmp_path / "images"]
    ran = capeval("score", "pacs", *files, "--weights", "tiny", "--device", "cpu")
    assert ran.status == 0 and "captions   3 (" in ran.out


def test_a_second_run_with_rows_reads_them(rerank: Callable[..., Ran], tmp_path: Path) -> None:
    first = rerank("--rows", tmp_path / "rows")
    shards = sorted((tmp_path / "rows").rglob("*.parquet"))
    assert {shard.parent.name for shard in shards} == {"blip2-itc", "pacs-tiny", "alpha-clip-tiny"}
    again = rerank("--rows", tmp_path / "rows", "--threshold", 0)
    assert again.status == 0 and sorted((tmp_path / "rows").rglob("*.parquet")) == shards
    assert first.out != again.out  # its signature names the threshold


def test_a_choice_that_hardly_matches_is_named_by_its_id(
    rerank: Callable[..., Ran], pools: dict[str, list[str]], tmp_path: Path
) -> None:
    """Of the third pool the right caption falls to the filter of five words; what is left is wrong."""
    rng = np.random.default_rng(9)
    right, wrong = sample_scene(rng), sample_scene(rng)
    short = f"a {right.objects[0].colour} {right.objects[0].shape}"
    assert "doubtful" not in rerank().out  # the pools of right captions give no cause
    draw(right).save(tmp_path / "images" / NAMES[2])
    candidates = {**pools, "third": [short, *(describe(wrong, rng) for _ in range(3))]}
    (tmp_path / "pools.json").write_text(json.dumps(candidates))
    ran = rerank()
    assert ran.status == 0
    assert "doubtful    1 choices match far worse than another candidate: 'third'" in ran.out
    assert re.search(
        r"in 1 of 3 pools .*caption \d of 'third' is chosen with an ITM of 0\.0\d\d, caption 1 of 'third' "
        r"has 0\.\d+ \(dropped: 3 words, expected 5 or more\)",
        ran.err,
    )
    assert "captions[" not in ran.err


def test_a_broken_image_is_left_out_on_request(rerank: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "images" / "third.png").write_bytes(b"no image")
    refused = rerank()
    assert refused.status == 2 and "image of 'third'" in refused.err
    assert not (tmp_path / "best.csv").exists()
    ran = rerank("--on-error", "nan")
    assert ran.status == 0 and "1 of 3 captions failed" in ran.err
    assert [name for name, _ in chosen(tmp_path / "best.csv")] == ["filename", *NAMES[:2]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a.b": ["a dog", ""]}, "caption 2 of 'a.b' is empty: write a caption or leave it out"),
        ({"a.b": []}, "id 'a.b' is an empty list"),
        ({"nowhere": ["a dog"]}, "('nowhere') has no image"),
    ],
)
def test_wrong_pools_are_named_by_their_id(
    rerank: Callable[..., Ran], tmp_path: Path, content: Any, message: str
) -> None:
    (tmp_path / "pools.json").write_text(json.dumps(content))
    ran = rerank()
    assert ran.status == 2 and message in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--members", "pacs-tiny,nope"], "members: 'nope' could not be opened"),
        (["--out", "best.json"], "is not a .csv file"),
        (["--out", "no/such/best.csv"], "there is no folder"),
        (["--threshold", "-1"], "--threshold -1"),
        (["--member", "tiny"], "unknown option --member: did you mean '--members'?"),
    ],
)
def test_wrong_arguments_are_refused(rerank: Callable[..., Ran], arguments: list[str], message: str) -> None:
    ran = rerank(*arguments)
    assert ran.status == 2 and message in ran.err, ran.err


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (
            "c.csv",
            "a.b.png,a dog on a wide lawn,two dogs\n42,rain,a wet street\n",
            "expected a header that begins",
        ),
        ("c.csv", "filename,1,2\na.b.png,a dog, black,two dogs\n", "line 2 has 4 cells, the header has 3"),
        ("c.csv", "filename,1\na.b.png,\"['a dog', 'two dogs']\"\n", "a cell is a list written as text"),
        ("c.json", '{"42": ["a dog", "a cat"], "0042": ["rain"]}', "the ids '42' and '0042' both mean"),
        ("c.json", '{"42": ["a dog"], "caf\\udce9": ["rain"]}', "which is not UTF-8"),
    ],
)
def test_no_image_and_no_old_file_is_lost(
    rerank: Callable[..., Ran], tmp_path: Path, name: str, content: str, reason: str
) -> None:
    (tmp_path / "best.csv").write_text("kept")
    (tmp_path / name).write_text(content)
    ran = rerank("--candidates", tmp_path / name)
    assert ran.status == 2 and reason in ran.err and "Traceback" not in ran.err
    assert (tmp_path / "best.csv").read_text() == "kept"


def test_where_every_image_has_one_candidate_there_is_nothing_to_choose(
    rerank: Callable[..., Ran], pools: dict[str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "pools.json").write_text(json.dumps({name: texts[:1] for name, texts in pools.items()}))
    ran = rerank()
    assert (ran.status, ran.out) == (2, "") and "nothing to choose: give" in ran.err
    assert not (tmp_path / "best.csv").exists()


def test_its_files_do_not_overwrite_each_other(rerank: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "pools.csv").write_text("image_id,caption\n42,a dog on a wide lawn\n")
    ran = rerank("--candidates", tmp_path / "pools.csv", "--out", tmp_path / "pools.csv")
    assert ran.status == 2 and "which it would overwrite" in ran.err
    same = rerank("--json", tmp_path / "best.csv")
    assert same.status == 2 and "name two files" in same.err


def test_score_points_to_it(capeval: Callable[..., Ran]) -> None:
    ran = capeval("score", "eco", "--help")
    assert ran.status == 2 and "use `capeval rerank`" in ran.err


def test_a_report_shows_the_chosen_captions_with_their_pools(
    rerank: Callable[..., Ran], pools: dict[str, list[str]], tmp_path: Path
) -> None:
    ran = rerank("--members", "tiny", "--report", tmp_path / "report")
    assert ran.status == 0 and ran.out.endswith(f"report  {tmp_path / 'report' / 'index.html'}\n")
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    for _, caption in chosen(tmp_path / "best.csv")[1:]:
        assert f">{caption}</blockquote>" in html
    assert all(caption in html for pool in pools.values() for caption in pool)
    assert html.count("<symbol ") == len(pools) and "no interval, as its totals are z-scores" in html
    assert str(tmp_path) not in html and "capeval rerank --candidates pools.json --images images" in html
    (tmp_path / "report.csv").write_text("")
    ran = rerank("--report", tmp_path / "report.csv")
    assert ran.status == 2 and "report.csv is a file: name a folder" in ran.err
