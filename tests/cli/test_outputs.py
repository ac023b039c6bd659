"""What commands write: whole or not at all, and never at the cost of what was computed."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from capeval_core.commands.outputs import Outputs, check_output
from tests.cli.conftest import Ran
from tests.support.small_disk import largest_file


def test_a_full_disk_costs_neither_the_score_nor_the_old_file(score: Callable[..., Ran], files: Path) -> None:
    out = files / "scored.json"
    out.write_text("before")
    with largest_file(200):
        ran = score("pacs", "--json", out)
    assert ran.status == 2
    assert "PAC-S" in ran.out and "signature" in ran.out
    assert ran.err == f"capeval: --json {out} cannot be written (File too large)\n"
    assert out.read_text() == "before" and not list(files.glob(".*"))


def test_a_full_disk_costs_neither_the_choice_nor_the_other_file(
    capeval: Callable[..., Ran], files: Path
) -> None:
    pools = {"dog.1": ["a dog", "two dogs"], "dog.2": ["a cat on a mat", "a cat"], "42": ["rain", "a wall"]}
    (files / "pools.json").write_text(json.dumps(pools))
    best, every = files / "best.csv", files / "every.json"
    given = ["--candidates", files / "pools.json", "--images", files / "images", "--out", best]
    tiny = ["--weights", "tiny", "--members", "tiny", "--device", "cpu"]
    every.write_text("before")
    with largest_file(200):  # enough for the chosen captions
        ran = capeval("rerank", *given, *tiny, "--json", every)
    assert ran.status == 2
    assert "ECO" in ran.out
    assert f"--json {every} cannot be written" in ran.err
    assert best.read_text().startswith("filename,caption\n") and every.read_text() == "before"
    with largest_file(10):
        ran = capeval("rerank", *given, *tiny)
    assert ran.status == 2 and "ECO" in ran.out
    assert f"--out {best} cannot be written" in ran.err
    assert best.read_text().startswith("filename,caption\n")


def test_input_is_checked_before_weights_are_opened(
    capeval: Callable[..., Ran], score: Callable[..., Ran], files: Path
) -> None:
    absent = ["--weights", "./no-such-weights"]
    (files / "captions.json").write_text(json.dumps({"dog.1": ["a dog", " "], "42": ["rain", "snow"]}))
    (files / "notes").mkdir()
    (files / "notes" / "mine.txt").write_text("mine")
    given = ["--candidates", files / "captions.json", "--images", files / "images"]
    for ran in (
        score("pacs", *absent),
        capeval("rerank", *given, "--out", files / "best.csv", *absent),
    ):
        assert ran.status == 2 and "caption 2 of 'dog.1' is empty" in ran.err and "weights" not in ran.err
    ran = score("pacs", *absent, "--rows", files / "notes")
    assert ran.status == 2 and "is a folder of something else" in ran.err and "weights" not in ran.err
    ran = score("pacs", *absent, "--weights", "tiny", "--prompt", "dog " * 75)
    assert ran.status == 2 and "--prompt dog dog" in ran.err and "leaves no room" in ran.err


def test_of_several_failures_the_first_is_told() -> None:
    outputs = Outputs()
    outputs.finish()
    for error in (OSError("--out"), ValueError("--json")):
        with outputs.next():
            raise error
    with pytest.raises(OSError, match="--out"):
        outputs.finish()


@pytest.mark.parametrize("place", ["captions.json", "images/../captions.json", "link.json"])
def test_a_file_that_is_read_is_not_written_whatever_it_is_called(
    place: str, score: Callable[..., Ran], files: Path
) -> None:
    (files / "link.json").symlink_to(files / "captions.json")
    before = (files / "captions.json").read_text()
    ran = score("pacs", "--json", files / place)
    assert ran.status == 2 and "which it would overwrite" in ran.err
    assert (files / "captions.json").read_text() == before


def test_a_folder_where_nothing_can_be_written_beside_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are written beside their place, so that the right to write into an old file is not enough."""
    (tmp_path / "old.json").write_text("before")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("capeval_core.commands.outputs.os.access", lambda place, _: Path(place) != tmp_path)
    for name in ("old.json", "new.json"):
        with pytest.raises(PermissionError, match="nothing can be written in its folder"):
            check_output("--json", tmp_path / name, argparse.Namespace(), ())
    check_output("--json", tmp_path / "pipe", argparse.Namespace(), ())
