"""The number of every case through a real package is that of `metric.score`."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest


@pytest.mark.system
@pytest.mark.parametrize(
    "package", ["torchmetrics", "lmms_eval", "inspect_ai", "trl", "verl", "openrlhf", "nemo_gym"]
)
def test_the_package_gives_the_number(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(package, reason="installed by the extra of its name")
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    compared = importlib.import_module(f"tests.adapters.{package}").trial()
    assert compared and [one for one in compared if not abs(one.value - one.expected) <= 1e-6] == []
