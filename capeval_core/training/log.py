"""The log of a training, a JSON object a line, and its curves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from capeval_core.reports.curves import Curve, draw_curves
from capeval_core.training.objective import CORRELATION, VALIDATION
from capeval_core.training.state import CURVES, LOG
from capeval_core.writing import write_whole

_JUDGED = {
    CORRELATION: "correlation with human judgements (Kendall's tau-c)",
    VALIDATION: "loss on images that are held out",
}


class TrainingLog:
    """Lines of a training's log. Those after `step`, of a run that was killed later, are dropped."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.path = folder, folder / LOG
        self.lines: list[dict[str, Any]] = []
        if self.path.is_file():
            text = self.path.read_text(encoding="utf-8")
            whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
            self.lines = [line for line in map(json.loads, whole) if line["step"] <= step]
        write_whole(self.path, "".join(map(_written, self.lines)))

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
        panels = {
            title: [Curve(name, points) for name, points in kinds.items()] for title, kinds in losses.items()
        }
        panels["learning rate"] = [Curve("", rates)]
        panels |= {_JUDGED[name]: [Curve("", points)] for name, points in judged.items()}
        image = draw_curves(
            {title: curves for title, curves in panels.items() if any(c.points for c in curves)}
        )
        partial = self.folder / f".{CURVES}"
        image.save(partial, format="PNG")
        partial.replace(self.folder / CURVES)


def _written(line: dict[str, Any]) -> str:
    return json.dumps(line) + "\n"
