"""`capeval compare` on files of `capeval score --json`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from capeval_core.result import Counts, Result, json_text
from capeval_core.statistics import TEST
from capeval_core.values import p_in_words
from tests.cli.conftest import Ran

Score = Callable[..., Ran]


def saved(path: Path, scores: list[Any], **changes: Any) -> Path:
    """A file of `capeval score --json` with one image per score."""
    result = Result(
        metric="pacs",
        key="pac_s",
        scores=[0.5] * len(scores),
        parts={},
        groups=[f"image {i}" for i in range(len(scores))],
        signature="capeval:pacs|v:1",
        counts=Counts(captions=len(scores)),
        errors={},
    )
    path.write_text(json.dumps(json.loads(json_text(result.to_dict())) | {"scores": scores} | changes))
    return path


def test_the_paired_test_is_the_library_s(capeval: Score, score: Score, files: Path) -> None:
    a, b = files / "a.json", files / "b.json"
    shared = [f"plain{i}" for i in range(5)]
    for i, name in enumerate(shared):
        Image.new("RGB", (40, 30), (50 * i, 200, 255 - 50 * i)).save(files / "images" / f"{name}.png")
    for out, captions in ((a, {"42": "rain"}), (b, {"dog.1": "a stone"})):
        texts = {name: f"{next(iter(captions.values()))} {i}" for i, name in enumerate(shared)}
        candidates = files / f"candidates-{out.name}"
        candidates.write_text(json.dumps(texts | captions))
        assert score("pacs", "--json", out, "--candidates", candidates).status == 0
    first, second = (Result.from_dict(json.loads(path.read_text())) for path in (a, b))
    test = first.compare(second)

    ran = capeval("compare", a, b)
    assert ran.status == 0
    assert ran.err.startswith("capeval: warning: 2 images have a score in only one of the files")
    assert test.means[0] - test.means[1] == pytest.approx(test.difference)
    assert ran.out.splitlines() == [
        f"PAC-S       {test.means[0]:.4f} ({a})",
        f"            {test.means[1]:.4f} ({b})",
        f"difference  {test.difference:+.4f}",
        f"interval    {test.interval.low:+.4f} to {test.interval.high:+.4f} (95%)",
        f"test        {p_in_words(test.p_value, 0.95)}, {TEST.format('image')}",
        f"verdict     {test.verdict}",
        "images      5 (2 left out)",
        f"signature   {first.signature}",
    ]


@pytest.mark.parametrize(
    ("gain", "p_value", "verdict"),
    [
        ([0.3, 0.31, 0.29, 0.3, 0.32, 0.28], "p < 0.001", "the first system scores higher: 0 lies outside"),
        (
            [-0.3, -0.31, -0.29, -0.3, -0.32, -0.28],
            "p < 0.001",
            "the first system scores lower: 0 lies outside",
        ),
        (
            [0.1, -0.1, 0.2, -0.2, 0.3, -0.3],
            "p = 1.000",
            "no difference shown: 0 lies within the 95% interval",
        ),
        ([0.0] * 6, "p = 1.000", "no difference shown: 0 lies within the 95% interval"),
    ],
)
def test_the_verdict_is_in_words(
    capeval: Score, tmp_path: Path, gain: list[float], p_value: str, verdict: str
) -> None:
    base = [0.5, 0.25, 0.75, 0.5, 0.25, 0.75]
    b = saved(tmp_path / "b.json", base)
    a = saved(tmp_path / "a.json", [x + y for x, y in zip(base, gain, strict=True)])
    ran = capeval("compare", a, b)
    assert (ran.status, ran.err) == (0, "")
    assert f"test        {p_value}, {TEST.format('image')}\n" in ran.out
    assert f"verdict     {verdict}" in ran.out


def test_of_fewer_than_five_common_images_there_are_means_and_no_test(capeval: Score, tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a.json", [0.1, 0.2, 0.3, 0.4, None]), saved(tmp_path / "b.json", [0.1] * 5)
    ran = capeval("compare", a, b)
    assert ran.status == 0
    assert ran.err.startswith("capeval: warning: 1 image has a score in only one of the files")
    assert ran.out.splitlines() == [
        f"PAC-S       0.2500 ({a})",
        f"            0.1000 ({b})",
        "difference  +0.1500",
        "test        none: a comparison needs at least 5 images that both systems have a score on, found 4: "
        "score both systems on more images",
        "images      4 (1 left out)",
        "signature   capeval:pacs|v:1",
    ]
    other = saved(tmp_path / "c.json", [0.1] * 5, groups=[f"other {i}" for i in range(5)])
    ran = capeval("compare", a, other)
    assert (ran.status, ran.out) == (2, "") and "the results have no image in common (4 and 5)" in ran.err


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scores": [0.1, 0.2, True, 0.3, 0.4]}, "scores[2] is true, not a number"),
        ({"scores": [0.1, 0.2, 10**400, 0.3, 0.4]}, "scores[2] is a number beyond the range"),
        ({"groups": [1, 2, 3, 4, 5]}, "groups[0] should be a text"),
        ({"counts": {"captions": "5"}}, "counts['captions'] should be a whole number"),
    ],
)
def test_damaged_files_are_refused(
    capeval: Score, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    whole = saved(tmp_path / "whole.json", [0.1, 0.2, 0.3, 0.4, 0.5])
    damaged = tmp_path / "damaged.json"
    damaged.write_text(json.dumps(json.loads(whole.read_text()) | wrong))
    for pair in ((whole, damaged), (damaged, whole)):
        ran = capeval("compare", *pair)
        assert (ran.status, ran.out) == (2, "")
        assert message in ran.err and str(damaged) in ran.err and "`capeval score --json`" in ran.err


def test_a_pipe_is_refused_instead_of_waited_for(capeval: Score, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    ran = capeval("compare", pipe, pipe)
    assert (ran.status, ran.out) == (2, "")
    assert "pipe.json is no regular file" in ran.err


def test_other_settings_are_refused(capeval: Score, score: Score, files: Path) -> None:
    assert score("pacs", "--json", files / "a.json").status == 0
    assert score("pacs", "--json", files / "b.json", "--w", "1").status == 0
    ran = capeval("compare", files / "a.json", files / "b.json")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("capeval: these results are not comparable, their signatures differ:\n")


def test_other_files_are_refused(capeval: Score, files: Path) -> None:
    captions, deep = files / "captions.json", files / "deep.json"
    deep.write_text("[" * 100_000)
    for wrong in ([captions, captions], [deep, captions], [files / "images" / "dog.1.jpg", captions]):
        ran = capeval("compare", *wrong)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith(f"capeval: {wrong[0]} is not a file of `capeval score --json`")
    ran = capeval("compare", files / "none.json", captions)
    assert ran.status == 2
    assert "none.json" in ran.err
