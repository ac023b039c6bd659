"""What all commands share: help, messages, and what they import."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from capeval_core.cli import COMMANDS
from capeval_core.registry import list_metrics
from tests.cli.conftest import Capeval
from tests.snippets import commands

README = Path(__file__).parents[2] / "README.md"
HELP = [[name] for name in COMMANDS]
HELP += [["score", name] for name in (*list_metrics(), "pacs,clips,cider") if name != "eco"]
HELP += [["score", "pacs", "--media", "video"], ["judge", "pascal50s"], ["augment", "images"]]
HELP += [["train", name] for name in ("pacs", "umic", "vilbert")]


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_fits_and_shows_what_a_flag_takes(words: list[str], capeval: Capeval) -> None:
    ran = capeval(*words, "--help")
    assert (ran.status, ran.err) == (0, "") and ran.out.startswith(f"usage: capeval {words[0]}")
    usage, _, rest = ran.out.partition("\n\n")
    assert max(map(len, rest.splitlines())) <= 80 and "None:" not in rest
    shown = " ".join(ran.out.split())
    if "--help` says more" in shown:
        what = usage.split()[3]
        assert f"`capeval {words[0]} {what} --help` says more" in shown and len(words) == 1
    if words[0] == "score" and len(words) > 1:
        needs_images = "--images FOLDER" in rest or "--videos FOLDER" in rest
        assert needs_images != (words[1] in ("bleu", "rougel", "cider", "ciderd", "chair"))
        assert ("--weights" in rest) == needs_images and "--rows" in rest
        assert ("--media {image,video}" in rest) == (words[1] in ("pacs", "refpacs", "pacs,clips,cider"))
        assert ("--videos" in rest) == (words[2:] == ["--media", "video"])
        compares = bool(re.search("ref|bert|bleu|rouge|cider|chair", words[1]))
        assert ("--references FILE" in usage + rest) == compares


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (MemoryError("the model needs 9 GB"), 1, "the model needs 9 GB"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "x.json"), 2, "x.json: Permission denied"),
    ],
)
def test_an_error_is_one_line_and_a_status(
    error: BaseException, status: int, message: str, capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path, **__: str) -> str:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", fail)
        ran = capeval("compare", "a.json", "b.json")
    assert (ran.status, ran.out, ran.err) == (status, "", f"capeval: {message}\n")


def test_a_mistake_of_ours_keeps_its_traceback(capeval: Capeval, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(AttributeError):
        patch.delattr(Path, "read_text")
        capeval("compare", "a.json", "b.json")


def test_the_example_of_the_readme_is_what_comes(
    capeval: Capeval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = README.read_text(encoding="utf-8")
    script = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    shown = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    (demo, *_), (score, *words) = [line[1:] for line in commands(script)[1:3]]
    assert (demo, score) == ("demo", "score") and capeval("demo", "--out", "demo").status == 0
    ran = capeval(score, *words)
    assert ran.status == 0 and shown.strip() in ran.out


def test_the_demo_proposes_a_command_that_gives_its_number(capeval: Capeval, tmp_path: Path) -> None:
    ran = capeval("demo", "--out", tmp_path / "demo")
    mean = next(line for line in ran.out.splitlines() if line.startswith("good")).split()[-1]
    command = shlex.split(ran.out.split(f"On the files in {tmp_path / 'demo'}:\n")[1].replace("\\\n", ""))
    assert mean == capeval(*command[1:]).out.split()[1]
