"""What `--report` adds to a command: a page, and no line in a table for programs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

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
    panel = re.search(r'</label>\s*</article><div class="why">.*?<img src="data:image/jpeg', html, re.S)
    assert panel is not None and "gITC: global image-text compatibility" in html
    assert "HICE-S: tiny knows nothing but drawn scenes" in html


def test_digits_and_times_100_are_for_readers_alone(score: Score, files: Path) -> None:
    plain = score("pacs", "--json", files / "plain.json")
    ran = score("pacs", "--digits", "1", "--times-100", "--json", files / "out.json", "--report", files / "r")
    assert (files / "plain.json").read_text() == (files / "out.json").read_text()
    first, percent = (float(one.out.split()[1]) for one in (plain, ran))
    assert percent == pytest.approx(100 * first, abs=0.06) and ran.out.split()[1].partition(".")[2].isdigit()
    html = (files / "r" / "index.html").read_text(encoding="utf-8")
    assert f'<b class="value">{percent:.1f}</b>' in html
    assert score("pacs", "--digits", "99").status == 2
