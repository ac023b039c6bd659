"""What `--report` adds to a command: a page, and no line in a table for programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import CAPTIONS, Ran

Score = Callable[..., Ran]


def test_a_table_for_programs_stays_alone(score: Score, files: Path) -> None:
    ran = score("pacs", "--format", "csv", "--report", files / "report")
    assert [row["system"] for row in csv.DictReader(io.StringIO(ran.out))] == ["captions"]
    assert f"report  {files / 'report' / 'index.html'}" in ran.err


def test_the_page_holds_the_captions_and_what_repeats_it_without_folders(score: Score, files: Path) -> None:
    ran = score("refpacs", "--references", files / "references.json", "--report", files / "report")
    assert ran.status == 0 and ran.out.endswith(f"report  {files / 'report' / 'index.html'}\n")
    html = (files / "report" / "index.html").read_text(encoding="utf-8")
    for texts in CAPTIONS.values():
        assert all(f">{text}</blockquote>" in html for text in texts)
    assert "capeval score refpacs --candidates captions.json --images images" in html
    assert str(files) not in html and "PAC-S" in html


def test_a_page_that_cannot_be_written_is_refused_before_scoring(score: Score, files: Path) -> None:
    (files / "index.html").write_text("my own page")
    ran = score("pacs", "--report", files, "--weights", files / "none")
    assert ran.status == 2 and "index.html is there and no report of capeval: name another folder" in ran.err
    assert (files / "index.html").read_text() == "my own page"


def test_where_a_score_comes_from_is_on_the_page(score: Score, files: Path) -> None:
    assert score("hices", "--weights", "tiny", "--report", files / "report").status == 0
    html = (files / "report" / "index.html").read_text(encoding="utf-8")
    assert '</summary><figure><img src="data:image/jpeg' in html
