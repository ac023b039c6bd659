"""`capeval demo`."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from capeval_core.commands.demo import report
from capeval_core.demo import demo_set
from tests.cli.conftest import Ran
from tests.conftest import TINY


def no_network(*_: object, **__: object) -> None:
    raise AssertionError("the demo went to the network")


def test_the_report_has_every_caption_means_and_signatures(seeded_weights: Path) -> None:
    text = report(seeded_weights)
    words = " ".join(text.split())
    for item in demo_set():
        assert item.image.name in text
    for kind in ("good", "subtly wrong", "unrelated"):
        assert sum(f"  {kind}  " in line for line in text.splitlines()) == len(demo_set())
        mean = next(line for line in text.splitlines() if line.startswith(kind))
        assert all(0 <= float(value) <= 2 for value in mean.split()[-2:])
    assert "4 images are too few for intervals of the means, which take 5." in text
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
        line.rsplit("  ", 2)[0].strip(): float(line.split()[-2])
        for line in ran.out.splitlines()
        if line.startswith(("good", "subtly wrong", "unrelated"))
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
    assert again.status == 0 and mean == f"{float(again.out.split()[1]):.3f}"
    names = {"images", "good.json", "subtly_wrong.json", "unrelated.json", "references.json"}
    assert {path.name for path in folder.iterdir()} == names

    ran = capeval("demo", "--out", folder)
    assert ran.status == 2 and f"--out {folder} exists: name a folder to be made" in ran.err


def test_the_demo_takes_no_arguments(capeval: Callable[..., Ran]) -> None:
    assert capeval("demo", "x").status == 2
