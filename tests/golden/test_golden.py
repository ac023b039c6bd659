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
from tests.golden.case import Case, compare

HERE = Path(__file__).parent
SHARED = HERE.parents[2] / "shared" / "golden"
QUANTITIES = {
    "alphaclip-tiny": 18,
    "blip2-itm": 12,
    "clips-vit-tiny": 8,
    "correlation": 18,
    "eco": 36,
    "emscore-tiny": 469,
    "factual": 16,
    "frcnn-vg-tiny": 56,
    "greedy-matching": 18,
    "mobilesamv2": 23,
    "pacs-openclip-tiny": 17,
    "pacs-plusplus-lora-tiny": 33,
    "pacs-resnet-tiny": 17,
    "pacs-vit-b32-full": 19,
    "pacs-vit-tiny": 21,
    "sam-boxes-tiny": 32,
    "umic-negatives": 24,
    "umic-tiny": 64,
    "vilbert-tiny": 30,
    "vilbert-x152": 45,
    "vilbertscore-tiny": 23,
}
"""How many quantities the copied cases have, so that none is passed over unnoticed."""
FULL_SIZE = ("mobilesamv2", "pacs-vit-b32-full")


def cases(folders: Iterable[Path]) -> list[Any]:
    """Test parameters, named and marked."""
    return [
        pytest.param(folder, id=folder.name, marks=[pytest.mark.system] if folder.name in FULL_SIZE else [])
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


def test_folders_that_no_module_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stranger = tmp_path / "stranger-tiny"
    stranger.mkdir()
    status, lines, err = run(capsys, "--skip-unknown", HERE / "cases" / "greedy-matching", stranger)
    assert status == 0 and lines and err.startswith(f"{stranger}: skipped, ")
    assert main(["--skip-unknown", str(stranger)]) == main([str(stranger)]) == 2


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


def test_another_seed_fails(altered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (altered / "config.json").write_text(json.dumps({**Case(altered).config, "seed": 15}))
    status, lines, _ = run(capsys, altered)
    failed = by_verdict(lines, "FAIL")
    assert status == 1 and {"image_features", "text_features", "pac_s", "mean_refpac_s"} <= failed
    assert not failed & {"pixels", "input_ids", "reference_ids", "arith_pac_s"}


def test_fewer_pairs_and_images(altered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runner takes counts, order and images from the folder: the same numbers, rearranged."""
    inputs, old = Case(altered).json("pairs"), Case(altered).outputs
    kept, images, starts = [7, 0, 11, 9], [3, 0, 5, 4], old["reference_offsets"]
    rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in kept])
    pixels = old["pixels"][images]
    new: dict[str, Any] = {
        "pixels_every4": pixels[:, :, ::4, ::4],
        "pixels_mean": pixels.mean(axis=(2, 3)),
        "pixels_std": pixels.std(axis=(2, 3), ddof=1),
        "image_features": old["image_features"][images],
        "image_text_cosine_matrix": old["image_text_cosine_matrix"][images][:, kept],
        **{name: old[name][rows] for name in ("reference_ids", "reference_features", "reference_cosine")},
        **{name: old[name][kept] for name in ("input_ids", "text_features", "cosine", "pac_s")},
        **{name: old[name][kept] for name in ("ref_similarity", "refpac_s")},
    }  # fmt: skip
    new |= {f"mean_{name}": new[name].mean() for name in ("pac_s", "ref_similarity", "refpac_s")}
    np.savez(altered / "outputs.npz", **new)
    fewer = {"images": [inputs["images"][i] for i in images], "pairs": [inputs["pairs"][i] for i in kept]}
    (altered / "inputs" / "pairs.json").write_text(json.dumps({**inputs, **fewer}))
    status, lines, _ = run(capsys, altered)
    assert status == 0, lines
    assert new.keys() <= {line[1] for line in lines}


@pytest.mark.parametrize(
    ("ours", "theirs", "tolerance", "verdict"),
    [
        (1.0, 1.0, 0, "ok"),
        ([1.0], [1.1], 0.05, "FAIL"),
        ([np.nan], [1.0], 9, "FAIL"),
        ([np.inf], [1.0], 9, "FAIL"),
        ([np.nan], [np.nan], 0, "ok"),
        ([0.0], [np.nan], 0, "ok (defined)"),
        ([np.inf], [np.nan], 0, "FAIL"),
        ([[1.0]], [1.0], 9, "FAIL"),
        ([], [], 0, "ok"),
    ],
)
def test_verdicts(ours: Any, theirs: Any, tolerance: float, verdict: str) -> None:
    assert compare("x", ours, theirs, tolerance).verdict == verdict
