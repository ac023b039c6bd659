"""The log of a training, a JSON object a line, and its curves."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, file_problem
from capeval_core.reports.figures import draw_curves
from capeval_core.training.objective import CORRELATION, VALIDATION
from capeval_core.training.state import CURVES, LOG
from capeval_core.writing import write_whole

_JUDGED = {
    CORRELATION: "correlation with human judgements (Kendall's tau-c)",
    VALIDATION: "loss on images that are held out",
}


class TrainingLog:
    """Lines of a training's log. Those after `step`, of a run that was killed later, are dropped.

    Raises:
        FileError: a whole line is damaged; the last one may be cut off.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.path = folder, folder / LOG
        self.lines: list[dict[str, Any]] = []
        if self.path.is_file():
            *whole, _ = self.path.read_bytes().split(b"\n")
            lines = (self._read(number, line) for number, line in enumerate(whole, 1))
            self.lines = [line for line in lines if line["step"] <= step]
        write_whole(self.path, "".join(map(_written, self.lines)))

    def _read(self, number: int, content: bytes) -> dict[str, Any]:
        try:
            line = dict(json.loads(content))
            if not isinstance(line["step"], int) or "phase" not in line:
                raise ValueError("no line of a training's log")
            return line
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            fix = "delete the line to go on without it"
            problem = file_problem(self.path, f"damaged ({error})", fix, index=f"line {number}", verb="is")
            raise FileError(problem) from error

    def add(self, line: dict[str, Any]) -> None:
        """Write a line, which has a `step`."""
        self.lines.append(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_written(line))

    def draw(self) -> None:
        """Draw the curves: losses by kind, learning rate, and what the training is judged by."""
        losses: dict[str, dict[str, list[tuple[float, float]]]] = {}
        rates: list[tuple[float, float]] = []
        judged: dict[str, list[tuple[float, float]]] = {name: [] for name in _JUDGED}
        for line in self.lines:
            step = float(line["step"])
            for name, value in line.get("losses", {}).items():
                kinds = losses.setdefault(f"loss, {line['phase']}", {})
                kinds.setdefault(name.replace("_", " "), []).append((step, value))
            if "learning_rate" in line:
                rates.append((step, line["learning_rate"]))
            for name, points in judged.items():
                if name in line:
                    points.append((step, line[name]))
        panels = {**losses, "learning rate": {"": rates}}
        panels |= {_JUDGED[name]: {"": points} for name, points in judged.items()}
        with suppress(ModuleNotFoundError):  # no matplotlib: log.jsonl has the numbers
            image = draw_curves({title: own for title, own in panels.items() if any(own.values())})
            partial = self.folder / f".{CURVES}"
            image.save(partial, format="PNG")
            partial.replace(self.folder / CURVES)


def _written(line: dict[str, Any]) -> str:
    return json.dumps(line) + "\n"
