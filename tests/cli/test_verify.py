"""`capeval verify`: checksum, canary and published values, and what is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from capeval_core.judgements import verification
from capeval_core.weights.folder import TINY
from tests.cli.conftest import Ran
from tests.judgements.data import SHARED, needs_shared

Capeval = Callable[..., Ran]


def test_tiny_weights_have_checksum_and_canary_but_no_published_values(
    capeval: Capeval, tmp_path: Path
) -> None:
    ran = capeval("verify", "pacs", "--weights", "tiny", "--data", tmp_path)
    assert (ran.status, ran.err) == (0, "")
    assert [line.split("  ")[0].strip() for line in ran.out.splitlines()[2:5]] == ["ok", "ok", "not checked"]
    assert "they are for the published weights, and these are others" in ran.out
    assert ran.out.endswith("2 ok, 0 failed, 1 not checked\n")


def test_weights_that_changed_are_not_verified(capeval: Capeval, tmp_path: Path) -> None:
    shutil.copytree(TINY / "pacs", tmp_path / "weights")
    path = tmp_path / "weights" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    ran = capeval("verify", "pacs", "--weights", tmp_path / "weights")
    assert ran.status == 1
    assert "PAC-S cannot be verified" in ran.err and "sha256" in ran.err


def test_weights_without_checksum_and_canary_are_not_called_checked(capeval: Capeval, tmp_path: Path) -> None:
    shutil.copytree(TINY / "pacs", tmp_path / "weights")
    path = tmp_path / "weights" / "config.json"
    config = json.loads(path.read_text())
    config.pop("checksum", None)
    config.pop("canary")
    path.write_text(json.dumps(config))
    ran = capeval("verify", "pacs", "--weights", tmp_path / "weights")
    assert ran.out.count("not checked  ") == 3 and "the config stores none" in ran.out


def test_weights_that_are_not_at_hand_are_named_with_what_to_do(
    capeval: Capeval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = capeval("verify", "pacs", "--weights", tmp_path / "none")
    assert ran.status == 1
    assert "PAC-S cannot be verified, its weights are not at hand or not whole" in ran.err
    assert str(tmp_path / "none") in ran.err
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ran = capeval("verify", "pacs")
    assert ran.status == 1 and "pass --weights tiny" in ran.err and 'weights="' not in ran.err
    ran = capeval("verify", "pasc")
    assert ran.status == 2 and "did you mean 'pacs'" in ran.err


def test_metrics_without_weights_need_data(capeval: Capeval) -> None:
    ran = capeval("verify", "ciderd")
    assert (ran.status, ran.err) == (2, "capeval: nothing was checked: name what the lines above ask for\n")
    assert (
        "name a folder with pacscore/ by --data" in ran.out and "name --data to compute its table" in ran.out
    )


@needs_shared
def test_published_values_of_two_photographs_come_out(
    capeval: Capeval, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(SHARED / "example_dogs" / "pacscore", tmp_path / "pacscore")
    for name in ("rougel", "ciderd", "bleu"):
        (folder, means, source) = verification.EXAMPLES[name]
        ran = capeval("verify", name, "--data", tmp_path)
        assert ran.status == 0, ran.out
        assert "2 ok, 0 failed" in ran.out and "Flickr8k-Expert comes from" in ran.out
        for value in means.values():
            assert f"published {value:.4f}" in ran.out
    (tmp_path / "flickr8k_expert").symlink_to(SHARED / "flickr8k_expert")
    ran = capeval("verify", "rougel", "--data", tmp_path)
    assert "4 ok, 0 failed" in ran.out and "Flickr8k-Expert, ROUGE-L tau_b" in ran.out
    assert "32.139, published 32.139" in ran.out
    means = {**means, "good_captions": 0.5}
    monkeypatch.setitem(verification.EXAMPLES, "bleu", (folder, means, source))  # type: ignore[arg-type]
    (tmp_path / "flickr8k_expert").unlink()
    ran = capeval("verify", "bleu", "--data", tmp_path)
    assert ran.status == 1 and "FAIL" in ran.out and "1 failed" in ran.out


@pytest.mark.parametrize("flag", ["--data", "--images"])
def test_folders_that_are_not_there_are_refused(capeval: Capeval, tmp_path: Path, flag: str) -> None:
    ran = capeval("verify", "rougel", flag, tmp_path / "none")
    assert ran.status == 2 and f"{flag} {tmp_path / 'none'}: there is no such folder" in ran.err
