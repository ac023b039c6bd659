from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.training.command import run_training
from capeval_core.training.tiny import folder_of
from capeval_core.training.tiny_model import build
from capeval_core.training.tiny_report import REPORT


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("required, status", [(0.0, 0), (1.1, 1)])
def test_the_command_saves_weights_with_their_report(tmp_path: Path, required: float, status: int) -> None:
    report = replace(REPORT, scenes=12, required={"colour": required})

    def make(seed: int, command: str) -> ClipEncoder:
        return folder_of(build(seed), command)

    given = ["--out", str(tmp_path / "weights"), "--seed", "5"]
    assert run_training("tiny", "A test.", make, report, given) == status
    source = ClipEncoder.from_pretrained(tmp_path / "weights").config["source"]
    assert source["notes"][-1].endswith("python -m capeval_core.training.tiny --seed 5")
    assert source["report"]["command"] == "python -m capeval_core.training.tiny_report DIR --seed 6"
    assert source["report"]["colour"]["trials"] == 12
