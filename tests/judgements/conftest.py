"""`capeval judge` in this process, and what it writes."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from capeval_core.cli import main


@dataclass(frozen=True)
class Judged:
    """The cells of the table by metric and column, what was printed, and the folder of files."""

    cells: dict[tuple[str, str], dict[str, str]]
    text: str
    out: Path

    def values(self, metric: str = "M") -> dict[str, float]:
        """By column; NaN where there is no number."""
        own = {column: cell["value"] for (label, column), cell in self.cells.items() if label == metric}
        return {column: float(value) if value else math.nan for column, value in own.items()}

    def rows(self, metric: str = "M") -> list[int]:
        return [int(cell["rows"]) for (label, _), cell in self.cells.items() if label == metric]

    @property
    def left_out(self) -> list[str]:
        lines = self.text.splitlines()
        return [line.removeprefix("left out: ") for line in lines if line.startswith("left out: ")]


Judge = Callable[..., Judged]


@pytest.fixture
def judge(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Judge a set by scores of its captions (by metric; of a scoring: NAME__refs4), or by metrics here."""
    # Charts take longer than all the numbers, and have tests of their own.
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)

    def run(
        name: str, data: Path, scores: Mapping[str, ArrayLike] | None = None, *flags: object, draws: int = 0
    ) -> Judged:
        out = tmp_path / "out"
        arguments: list[Any] = ["judge", name, "--data", data, "--out", out, "--resamples", draws, *flags]
        if scores:
            np.savez(tmp_path / "scores.npz", **{key: np.asarray(value) for key, value in scores.items()})
            arguments += ["--scores", tmp_path / "scores.npz"]
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) in (0, 1), capsys.readouterr().err
        with (out / f"{name}.csv").open(newline="") as file:
            cells = {(row["metric"], row["column"]): row for row in csv.DictReader(file)}
        return Judged(cells, capsys.readouterr().out, out)

    return run
