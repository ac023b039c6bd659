"""`capeval doctor`: what is here, what is not, and the command that brings it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from capeval_core.registry import list_metrics
from tests.cli.conftest import Capeval


def test_metrics_without_their_weights_name_the_command(
    capeval: Capeval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPEVAL_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    ran = capeval("doctor", "--json")
    assert ran.status == 0
    states = json.loads(ran.out)["metrics"]
    assert set(list_metrics()) <= states.keys()
    for name in ("bleu", "rougel", "cider", "ciderd"):
        assert states[name]["runs"] and not states[name]["fix"]
    for name in ("pacs", "hices", "umic"):
        assert not states[name]["runs"] and states[name]["fix"].startswith(f"capeval fetch {name}")
    text = capeval("doctor")
    assert text.status == 0 and len(text.out.splitlines()) < 50
    assert "HF_HUB_OFFLINE" in text.out and str(tmp_path) in text.out


def test_what_is_installed_is_told_from_what_is_not(
    capeval: Capeval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    content = json.loads(capeval("doctor", "--json").out)
    assert content["extras"]["page"] == [] and "test" not in content["extras"]
    assert not content["metrics"]["meteor"]["runs"] and "Java" in content["metrics"]["meteor"]["fix"]
