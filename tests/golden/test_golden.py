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

from capeval_core.scores.eco.metric import EcoOptions
from tests.golden.__main__ import find_module, main
from tests.golden.comparison import UnreadableCaseError, compare

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").iterdir())
SHARED = HERE.parents[2] / "shared" / "golden"

FULL_SIZE = ("mobilesamv2", "pacs-vit-b32-full")


def cases(folders: Iterable[Path]) -> list[Any]:
    """Test parameters, named and marked."""
    return [
        pytest.param(folder, id=folder.name, marks=[pytest.mark.system] if folder.name in FULL_SIZE else [])
        for folder in sorted(folders)
    ]


def is_known(folder: Path) -> bool:
    try:
        return bool(find_module(folder.name))
    except UnreadableCaseError:
        return False


def run(capsys: pytest.CaptureFixture[str], *folders: Path) -> tuple[int, list[list[str]], str]:
    """Exit status, the columns of every line, and what was said on stderr."""
    status = main([str(folder) for folder in folders])
    out, err = capsys.readouterr()
    return status, [line.split("  ") for line in out.splitlines()], err


@pytest.mark.parametrize("folder", cases(CASES))
def test_copied_cases_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, lines, err = run(capsys, folder)
    assert [line for line in lines if not line[-1].startswith("ok")] == []
    assert (status, err) == (0, "")
    assert all(len(line) == 5 and line[0] == folder.name for line in lines)
    expected = find_module(folder.name).expected_quantities(folder)
    assert expected and expected <= {line[1] for line in lines}


def test_folders_that_no_module_knows_are_skipped_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = tmp_path / "stranger-tiny"
    stranger.mkdir()
    assert main(["--skip-unknown", str(HERE / "cases" / "greedy-matching"), str(stranger)]) == 0
    out, err = capsys.readouterr()
    assert "greedy-matching" in out and err.startswith(f"{stranger}: skipped, ")
    assert main(["--skip-unknown", str(stranger)]) == main([str(stranger)]) == 2


def shared_cases() -> list[Any]:
    if not SHARED.is_dir():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"there is no {SHARED}"))]
    return cases(folder for folder in SHARED.iterdir() if folder.is_dir() and is_known(folder))


@pytest.mark.parametrize("folder", shared_cases())
def test_shared_cases_are_the_copied_ones_or_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = HERE / "cases" / folder.name
    files = [str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()]
    if files and filecmp.cmpfiles(folder, copy, files, shallow=False)[0] == files:
        return
    status, lines, _ = run(capsys, folder)
    assert status == 0, lines


def altered(tmp_path: Path, name: str = "pacs-vit-tiny") -> Path:
    """A copy of a case, to be changed."""
    return Path(shutil.copytree(HERE / "cases" / name, tmp_path / name))


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_wrong_number_fails_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = altered(tmp_path)
    with np.load(folder / "outputs.npz") as stored:
        outputs = dict(stored)
    outputs["refpac_s"][3] += 1e-3
    outputs["text_features"][0, 0] = np.nan  # undefined in the original: ours counts as a definition
    np.savez(folder / "outputs.npz", **outputs)
    status, lines, _ = run(capsys, folder)
    assert status == 1
    assert {line[1] for line in lines if line[-1] == "FAIL"} == {"refpac_s", "paper_refpac_s"}
    defined = {line[1] for line in lines if line[-1] == "ok (defined)"}
    assert defined == {"text_features", "arith_refpac_s", "arith_paper_refpac_s"}


def test_the_case_of_eco_pins_the_ranking_that_scores_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in `rank` itself, which no function that it calls shows: both weights swapped."""
    proper = EcoOptions.__init__

    def swapped(options: EcoOptions, **given: Any) -> None:
        one, other = given.get("ensemble_weight", 3.52), given.get("consensus_weight", 1.0)
        proper(options, **{**given, "ensemble_weight": other, "consensus_weight": one})

    monkeypatch.setattr(EcoOptions, "__init__", swapped)
    status, lines, _ = run(capsys, HERE / "cases" / "eco")
    assert status == 1
    assert {"total", "gap", "selected"} <= {line[1] for line in lines if line[-1] == "FAIL"}


def test_another_seed_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = altered(tmp_path)
    rewrite(folder / "config.json", seed=15)
    status, lines, _ = run(capsys, folder)
    assert status == 1
    failed = {line[1] for line in lines if line[-1] == "FAIL"}
    assert {"image_features", "text_features", "pac_s", "mean_refpac_s"} <= failed
    assert not failed & {"pixels", "input_ids", "reference_ids", "arith_pac_s"}


def test_fewer_pairs_and_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runner takes counts, order and images from the folder: the same numbers, rearranged."""
    folder = altered(tmp_path)
    inputs = json.loads((folder / "inputs" / "pairs.json").read_text())
    kept, images = [7, 0, 11, 9], [3, 0, 5, 4]
    with np.load(folder / "outputs.npz") as stored:
        old = {name: stored[name] for name in stored.files if not name.startswith(("debug_", "arith_"))}
    starts = old["reference_offsets"]
    rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in kept])
    new: dict[str, Any] = {
        "pixels_every4": old["pixels"][images][:, :, ::4, ::4],
        "pixels_mean": old["pixels"][images].mean(axis=(2, 3)),
        "pixels_std": old["pixels"][images].std(axis=(2, 3), ddof=1),
        "image_features": old["image_features"][images],
        "image_text_cosine_matrix": old["image_text_cosine_matrix"][images][:, kept],
        **{name: old[name][rows] for name in ("reference_ids", "reference_features", "reference_cosine")},
        **{name: old[name][kept] for name in ("input_ids", "text_features", "cosine", "pac_s")},
        **{name: old[name][kept] for name in ("ref_similarity", "refpac_s")},
    }  # fmt: skip
    new |= {f"mean_{name}": new[name].mean() for name in ("pac_s", "ref_similarity", "refpac_s")}
    np.savez(folder / "outputs.npz", **new)
    inputs["images"] = [inputs["images"][i] for i in images]
    inputs["pairs"] = [inputs["pairs"][i] for i in kept]
    (folder / "inputs" / "pairs.json").write_text(json.dumps(inputs))
    status, lines, _ = run(capsys, folder)
    assert status == 0, lines
    assert new.keys() <= {line[1] for line in lines}


def test_comparisons() -> None:
    nan, inf = float("nan"), float("inf")
    assert compare("x", [1.0, 2.0], [1.0, 2.5], 1).error == 0.5
    assert compare("x", 1.0, 1.0, 0).verdict == "ok"
    assert compare("x", [1.0], [1.1], 0.05).verdict == "FAIL"
    assert compare("x", [nan], [1.0], 9).verdict == "FAIL"
    assert compare("x", [inf], [1.0], 9).verdict == "FAIL"
    assert compare("x", [nan], [nan], 0).verdict == "ok"
    assert compare("x", [0.0], [nan], 0).verdict == "ok (defined)"
    assert compare("x", [inf], [nan], 0).verdict == "FAIL"
    assert compare("x", [[1.0]], [1.0], 9).verdict == "FAIL"
    assert compare("x", [], [], 0).verdict == "ok"
