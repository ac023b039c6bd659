"""A disk that fills up or turns read-only costs a warning, not the result."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import CAPTIONS, Ran
from tests.support.seams import LIMITS
from tests.support.small_disk import fill


@pytest.mark.parametrize("what", ["full", "read-only"])
def test_the_result_is_printed_and_written(
    what: str, score: Callable[..., Ran], files: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = score("pacs", "--json", files / "usual.json")
    kept = small_disk / "rows"
    (files / "captions.json").write_text(json.dumps({"42": CAPTIONS["42"]}))
    assert score("pacs", "--rows", kept).status == 0
    (files / "captions.json").write_text(json.dumps(CAPTIONS))
    if what == "full":
        fill(small_disk)
    else:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    monkeypatch.setattr(LIMITS, "shard_rows", 1)  # several writings
    ran = score("pacs", "--rows", kept, "--json", files / "found.json")
    assert (ran.status, ran.out) == (0, usual.out)
    assert (files / "found.json").read_text() == (files / "usual.json").read_text()
    reason = {"full": "No space left on device", "read-only": "Read-only file system"}[what]
    assert ran.err.count("warning:") == 1 and f"cannot be written any more ({reason})" in ran.err
    assert sum(len(pq.read_table(shard)) for shard in kept.glob("*.parquet")) == 1
    assert not list(kept.glob("*.partial"))
