from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from capeval_core.encoders.clip import ClipEncoder
from tools.tiny.clip import TRAINING, folder_of
from tools.tiny.clip_model import build
from tools.tiny.command import Comparison


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("required, status", [(0.0, 0), (1.1, 1)])
def test_the_command_saves_weights_with_their_report(tmp_path: Path, required: float, status: int) -> None:
    def make(seed: int, command: str) -> ClipEncoder:
        return folder_of(build(seed), command)

    training = replace(TRAINING, train=make, required={"colour": required})
    arguments = ["--out", str(tmp_path / "weights"), "--seed", "5", "--scenes", "12"]
    assert training.main(arguments) == status
    source = ClipEncoder.from_pretrained(tmp_path / "weights").config["source"]
    assert source["notes"][-1].endswith("python -m tools.tiny.clip --seed 5")
    assert source["report"]["command"] == "python -m tools.tiny.clip --measure DIR --seed 6"
    assert source["report"]["colour"]["trials"] == 12


def test_the_command_trains_or_measures(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--out", "a", "--measure", "tiny"]):
        with pytest.raises(SystemExit):
            TRAINING.main(arguments)
    assert "one of the arguments --out --measure is required" in capsys.readouterr().err


def test_a_draw_is_lost_and_a_shortfall_is_named() -> None:
    row = Comparison.of([0.5, 0.5, 0.5], [0.5, 0.4, 0.6])
    assert (row.accuracy, row.trials) == (pytest.approx(1 / 3), 3)
    comparisons = dict.fromkeys(TRAINING.required, row)
    assert len(TRAINING.missed(comparisons)) == len(TRAINING.required)
    assert "| 33.3% | 99% | 3 | 0.500 | 0.500 |" in TRAINING.table(comparisons)
    nothing = dict.fromkeys(TRAINING.required, Comparison.of([], []))
    assert len(TRAINING.missed(nothing)) == len(TRAINING.required)


def test_the_command_prints_the_table_and_fails_where_something_is_missed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    easy = replace(TRAINING, required={"colour": 0.9})
    assert easy.main(["--measure", "tiny", "--scenes", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| right caption against | accuracy |") and len(lines) == 2 + 8
    assert replace(TRAINING, required={"colour": 1.1}).main(["--measure", "tiny", "--scenes", "40"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("is below the required 110%")
