"""`capeval compare` on files of `capeval score --json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from capeval_core.result import Result
from tests.cli.conftest import Ran

Score = Callable[..., Ran]


def test_the_paired_test_is_the_library_s(capeval: Score, score: Score, files: Path) -> None:
    a, b = files / "a.json", files / "b.json"
    other = files / "other.json"
    other.write_text(json.dumps({"dog.1": "a stone", "dog.2": "the sea", "nobody": "a spoon"}))
    assert score("pacs", "--json", a).status == 0
    assert score("pacs", "--json", b, "--candidates", other).status == 0
    first, second = (Result.from_dict(json.loads(path.read_text())) for path in (a, b))
    test = first.compare(second)

    ran = capeval("compare", a, b)
    assert ran.status == 0
    assert ran.err.startswith("capeval: warning: 2 pictures have a score in only one of the files")
    assert test.means[0] - test.means[1] == pytest.approx(test.difference)
    assert ran.out.splitlines() == [
        f"PAC-S       {test.means[0]:.4f} ({a})",
        f"            {test.means[1]:.4f} ({b})",
        f"difference  {test.difference:+.4f}",
        f"interval    {test.interval.low:+.4f} to {test.interval.high:+.4f} (95%)",
        f"p-value     {test.p_value:.4f}",
        "pictures    2 (2 left out)",
        f"signature   {first.signature}",
    ]


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
