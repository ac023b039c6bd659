"""`capeval demo`."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from capeval_core.commands.demo import SHOWN, report
from capeval_core.demo import demo_set
from tests.cli.conftest import Ran
from tests.conftest import TINY
from tests.snippets import commands

README = Path(__file__).parents[2] / "README.md"


def no_network(*_: object, **__: object) -> None:
    raise AssertionError("the demo went to the network")


def test_the_report_has_captions_means_intervals_tests_and_signatures(seeded_weights: Path) -> None:
    text = report(seeded_weights)
    words = " ".join(text.split())
    lines = text.splitlines()
    for item in demo_set()[:SHOWN]:
        assert item.image.name in text
    for kind in ("good", "subtly wrong", "unrelated"):
        assert sum(f"  {kind}  " in line for line in lines) == SHOWN
        place = next(i for i, line in enumerate(lines) if line.startswith(kind))
        assert all(0 <= float(value.rstrip("*")) <= 2 for value in lines[place].split()[-2:])
        assert lines[place + 1].count(" to ") == 2, "an interval by each metric"
        assert lines[place + 2].count("p ") == 2 * (kind != "good"), "a test against the good captions"
    assert "capeval:pacs|" in text and "capeval:refpacs|" in text and "refs:2" in text
    assert "capeval score clips --candidates captions.json --images images" in words
    assert "capeval convert pacs clip_ViT-B-32.pth --activation quick_gelu" in words
    assert words.endswith("--weights pacs-clip-vit-b-32")
    assert all(len(line) <= 80 for line in text.splitlines() if "|" not in line)


@pytest.mark.skipif(not (TINY / "model.safetensors").is_file(), reason="the tiny weights are not built")
def test_without_a_network_good_captions_come_first(
    capeval: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect", no_network)
    ran = capeval("demo")
    assert (ran.status, ran.err) == (0, "")
    means = {
        kind: float(mean)
        for kind, mean in re.findall(r"^(good|subtly wrong|unrelated) +([\d.]+)", ran.out, re.MULTILINE)
    }
    assert means["good"] > means["subtly wrong"] > means["unrelated"]
    rows = [line.split() for line in ran.out.splitlines()]
    at = next(i for i, row in enumerate(rows) if row[:1] == ["1.png"])
    wrong = next(row for row in rows[at:] if "subtly" in row)
    assert ("wins in PAC-S of 1.png" in ran.out) is (float(wrong[0]) > float(rows[at][1]))
    assert "weights:tiny@" in ran.out


def test_the_demo_writes_files_that_score_as_it_does(capeval: Callable[..., Ran], tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    ran = capeval("demo", "--out", folder)
    assert ran.status == 0, ran.err
    mean = next(line for line in ran.out.splitlines() if line.startswith("good")).split()[-1]
    command = shlex.split(ran.out.split(f"On the files in {folder}:\n")[1].replace("\\\n", ""))
    assert command[0] == "capeval"
    again = capeval(*command[1:])
    assert again.status == 0 and mean == again.out.split()[1]
    names = {"images", "good.json", "subtly_wrong.json", "unrelated.json", "references.json"}
    assert {path.name for path in folder.iterdir()} == names

    ran = capeval("demo", "--out", folder)
    assert ran.status == 2 and f"--out {folder} exists: name a folder to be made" in ran.err


def test_the_example_of_the_readme_shows_intervals_and_a_test_of_each_system(
    capeval: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = README.read_text(encoding="utf-8").partition("## Command line")[2]
    script, shown = re.findall(r"^```(?:sh|text)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[:2]
    (demo, *_), (score, *words) = [line[1:] for line in commands(script)[:2]]
    assert (demo, score) == ("demo", "score") and capeval("demo", "--out", "demo").status == 0
    ran = capeval(score, *words)
    assert ran.status == 0 and shown.strip() in ran.out
    assert shown.count("p ") == 6 and shown.count(" to ") == 9


def test_the_demo_takes_no_arguments(capeval: Callable[..., Ran]) -> None:
    assert capeval("demo", "x").status == 2
