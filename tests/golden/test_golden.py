"""The runner over the copied cases, and over cases with other numbers."""

from __future__ import annotations

import filecmp
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.__main__ import find_module, main
from tests.golden.case import Case

HERE = Path(__file__).parent
SHARED = HERE.parents[2] / "shared" / "golden"
QUANTITIES = {
    "alphaclip-tiny": 18,
    "blip2-itm": 12,
    "clips-vit-tiny": 8,
    "correlation": 18,
    "eco": 36,
    "emscore-tiny": 469,
    "factual": 4,
    "frcnn-vg-tiny": 56,
    "greedy-matching": 18,
    "mobilesamv2": 23,
    "pacs-openclip-tiny": 17,
    "pacs-plusplus-lora-tiny": 33,
    "pacs-resnet-tiny": 17,
    "pacs-vit-b32-full": 19,
    "pacs-vit-tiny": 21,
    "sam-boxes-tiny": 32,
    "specs-vit-tiny": 7,
    "umic-negatives": 24,
    "umic-tiny": 64,
    "vilbert-tiny": 30,
    "vilbert-x152": 45,
    "vilbertscore-tiny": 23,
}
"""How many quantities the copied cases have, so that none is passed over unnoticed."""
SLOW = ("mobilesamv2", "pacs-vit-b32-full", "umic-negatives")


def cases(folders: Iterable[Path]) -> list[Any]:
    """Test parameters, named and marked."""
    return [
        pytest.param(folder, id=folder.name, marks=[pytest.mark.system] if folder.name in SLOW else [])
        for folder in sorted(folders)
    ]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[list[str]], str]:
    """Exit status, the columns of every line, and stderr."""
    status = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return status, [line.split("  ") for line in out.splitlines()], err


def by_verdict(lines: list[list[str]], verdict: str) -> set[str]:
    return {line[1] for line in lines if line[-1] == verdict}


@pytest.mark.parametrize("folder", cases((HERE / "cases").iterdir()))
def test_copied_cases_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, err = run(capsys, folder)
    assert [line for line in lines if not line[-1].startswith("ok")] == []
    assert (status, err) == (0, "")
    assert all(len(line) == 5 and line[0] == folder.name for line in lines)
    assert len({line[1] for line in lines}) == QUANTITIES[folder.name]
    ignored = getattr(find_module(folder.name), "IGNORED", ())
    assert {name for name in Case(folder).outputs if not name.startswith(ignored)} <= {
        line[1] for line in lines
    }


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"there is no {SHARED}")
@pytest.mark.parametrize("folder", cases(path for path in SHARED.glob("*/") if find_module(path.name)))
def test_shared_cases_are_the_copied_ones_or_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = HERE / "cases" / folder.name
    files = [str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()]
    if not files or filecmp.cmpfiles(folder, copy, files, shallow=False)[0] != files:
        status, lines, _ = run(capsys, folder)
        assert status == 0, lines


@pytest.fixture
def altered(tmp_path: Path) -> Path:
    """A copy of a case, to be changed."""
    return Path(shutil.copytree(HERE / "cases" / "pacs-vit-tiny", tmp_path / "pacs-vit-tiny"))


def test_a_wrong_number_fails_and_the_rest_goes_on(altered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = Case(altered).outputs
    outputs["refpac_s"][3] += 1e-3
    outputs["text_features"][0, 0] = np.nan  # undefined in the original: ours counts as a definition
    np.savez(altered / "outputs.npz", **outputs)
    status, lines, _ = run(capsys, altered)
    assert status == 1
    assert by_verdict(lines, "FAIL") == {"refpac_s", "paper_refpac_s"}
    defined = {"text_features", "arith_refpac_s", "arith_paper_refpac_s"}
    assert by_verdict(lines, "ok (defined)") == defined


def test_a_case_of_negative_means_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With other weights most means of videos are negative, and padding raises their recall by up to 0.1."""
    case = Path(shutil.copytree(HERE / "cases" / "emscore-tiny", tmp_path / "emscore-tiny"))
    config = json.loads((case / "config.json").read_text())
    (case / "config.json").write_text(json.dumps(config | {"seed": 8}))
    status, lines, _ = run(capsys, case)
    assert status == 1  # the outputs are those of the seed that was there
    assert len({line[1] for line in lines}) == QUANTITIES["emscore-tiny"]
