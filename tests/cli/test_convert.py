"""`capeval convert`: an original checkpoint becomes a folder that scores."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from capeval_core.registry import METRICS
from tests.cli.conftest import Ran
from tests.golden import recipe

Capeval = Callable[..., Ran]
CASE = Path(__file__).parents[1] / "golden" / "cases" / "pacs-vit-tiny"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden case's checkpoint, as its original release saves one."""
    seed = json.loads((CASE / "config.json").read_text())["seed"]
    arrays = recipe.state_dict(CASE / "manifest.json", seed)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    path = tmp_path_factory.mktemp("release") / "clip_tiny.pth"
    torch.save({"state_dict": tensors}, path)
    return path


def test_a_converted_checkpoint_scores(
    capeval: Capeval, checkpoint: Path, files: Path, score: Callable[..., Ran]
) -> None:
    out = files / "weights"
    ran = capeval("convert", "refpacs", checkpoint, "--out", out, "--url", "https://example.org/x")
    assert (ran.status, ran.err) == (0, "")
    output = " ".join(ran.out.split())
    assert f"{out}: ViT/16 2x128, 64 pixels; text 2x128; 32 dimensions; quick_gelu" in output
    assert "activation: quick_gelu, because the order of the tensors" in output
    assert output.endswith(f"--references references.json --weights {out}")

    config = json.loads((out / "config.json").read_text())
    assert config["source"]["url"] == "https://example.org/x"
    assert config["source"]["sha256"] == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert config["source"]["licence"] == "not stated by the original"
    tensors, settings = out / "model.safetensors", out / "config.json"
    assert tensors.stat().st_mode == settings.stat().st_mode  # readable by the same people

    seeded = score("pacs").out.splitlines()
    converted = score("pacs", "--weights", out).out.splitlines()
    assert converted[:3] == seeded[:3]
    assert "|weights:weights@" in converted[3]


def test_recorded_source_and_given_activation(capeval: Capeval, checkpoint: Path, tmp_path: Path) -> None:
    recorded = ["--source", "Tiny", "--licence", "CC0", "--activation", "gelu"]
    assert capeval("convert", "pacs", checkpoint, "--out", tmp_path / "w", *recorded).status == 0
    config = json.loads((tmp_path / "w" / "config.json").read_text())
    assert (config["activation"], config["source"]["name"], config["source"]["licence"]) == (
        "gelu",
        "Tiny",
        "CC0",
    )


def test_nothing_is_overwritten_unless_forced(capeval: Capeval, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "w"
    out.mkdir()
    (out / "config.json").write_text("old")
    ran = capeval("convert", "pacs", checkpoint, "--out", out)
    assert ran.status == 2
    assert ran.err.startswith(f"capeval: --out {out} is not empty: choose another folder, or pass --force")
    assert [entry.name for entry in out.iterdir()] == ["config.json"]

    assert capeval("convert", "pacs", checkpoint, "--out", out, "--force").status == 0
    assert json.loads((out / "config.json").read_text())["format"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["w"]

    assert not list(out.glob(".*"))

    (out / "thesis.tex").write_text("precious")
    ran = capeval("convert", "pacs", checkpoint, "--out", out, "--force")
    assert ran.status == 2
    assert "holds more than weights (thesis.tex)" in ran.err
    assert (out / "thesis.tex").read_text() == "precious"


def test_a_failure_leaves_nothing_behind(capeval: Capeval, checkpoint: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pth"
    cut.write_bytes(checkpoint.read_bytes()[:100_000])
    ran = capeval("convert", "pacs", cut, "--out", tmp_path / "w")
    assert (ran.status, ran.out) == (2, "")
    assert "is damaged or incomplete: download it again" in ran.err
    ran = capeval("convert", "pacs", tmp_path / "none.pth", "--out", tmp_path / "w")
    assert (ran.status, ran.out) == (2, "")
    assert "none.pth does not exist" in ran.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["cut.pth"]


def test_a_setting_that_no_tensor_shows_needs_a_flag(
    capeval: Capeval, checkpoint: Path, tmp_path: Path
) -> None:
    tensors = torch.load(checkpoint, weights_only=True)["state_dict"]
    torch.save(dict(sorted(tensors.items())), tmp_path / "sorted.pth")
    ran = capeval("convert", "pacs", tmp_path / "sorted.pth", "--out", tmp_path / "w")
    assert (
        ran.status == 2 and ran.err.count("--activation") == 1 and "Pass --activation quick_gelu" in ran.err
    )
    odd = {name: value for name, value in tensors.items() if "transformer" in name}
    odd |= {
        "visual.conv1.weight": tensors["visual.conv1.weight"],
        "positional_embedding": torch.zeros(77, 48),
        "token_embedding.weight": torch.zeros(9, 48),
    }
    torch.save(odd, tmp_path / "odd.pth")
    ran = capeval("convert", "pacs", tmp_path / "odd.pth", "--out", tmp_path / "w")
    assert ran.status == 2 and "pass --text-heads" in ran.err


def test_another_model_under_a_listed_name_is_a_warning(
    capeval: Capeval, checkpoint: Path, tmp_path: Path
) -> None:
    named = shutil.copy(checkpoint, tmp_path / "clip_ViT-B-32.pth")
    ran = capeval("convert", "pacs", named, "--out", tmp_path / "w")
    assert ran.status == 0
    assert "warning: PAC-S, CLIP ViT-B/32 is ViT/32 12x768, 224 pixels" in ran.err
    assert "is not the released file" in ran.err
    ran = capeval("convert", "pacs", checkpoint, "--out", tmp_path / "pacs-plusplus-clip-vit-l-14")
    assert "warning: PAC-S++, CLIP ViT-L/14 is ViT/14 24x1024" in ran.err


def test_a_pickle_that_is_no_checkpoint_is_one_line(capeval: Capeval, tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(pickle.dumps({"a": [1, 2]}))
    ran = capeval("convert", "pacs", tmp_path / "x.pth", "--out", tmp_path / "w")
    assert (
        ran.status == 2 and "issue" not in ran.err and ran.err.startswith(f"capeval: {tmp_path / 'x.pth'} ")
    )


def test_a_failure_while_writing_leaves_the_old_weights(
    capeval: Capeval, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "w"
    assert capeval("convert", "pacs", checkpoint, "--out", out).status == 0
    before = (out / "config.json").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    ran = capeval("convert", "pacs", checkpoint, "--out", out, "--force", "--activation", "gelu")
    assert ran.status == 2
    assert "No space left on device" in ran.err
    assert (out / "config.json").read_bytes() == before
    assert not list(out.glob(".*"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["w"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pasc", "x.pth", "--out", "w"], "unknown metric 'pasc': did you mean 'pacs'?"),
        (
            ["foo", "x.pth"],
            f"unknown metric 'foo' (known: {', '.join(METRICS)}, regions, ",
        ),
        (["region", "x.pth"], "did you mean 'regions'?"),
        (["pacs", "x.pth"], "the following arguments are required: --out"),
        (["pacs", "x.pth", "--out", "w", "--activation", "relu"], "'quick_gelu' or 'gelu'\n"),
        (["pacs", "x.pth", "--out", "w", "--head-width", "x"], "--head-width x: expected a whole number\n"),
        (["pacs", "x.pth", "--out"], "--out: a value is missing\n"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capeval: Capeval) -> None:
    ran = capeval("convert", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert message in ran.err
