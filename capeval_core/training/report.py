"""Reports on scenes that a model has never seen: right against wrong, as a table, and what is required."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from capeval_core.inputs.visual import InputImage
from capeval_core.models.model import CheckedModel

Encoder = TypeVar("Encoder", bound=CheckedModel)
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Comparison:
    """Right against wrong: the share of trials won, their number, and the mean value of either side."""

    accuracy: float
    trials: int
    right: float
    wrong: float

    @staticmethod
    def of(right: list[float], wrong: list[float]) -> Comparison:
        """A draw is a loss.

        >>> Comparison.of([0.9, 0.5], [0.1, 0.5])
        Comparison(accuracy=0.5, trials=2, right=0.7, wrong=0.3)
        """
        if not right:
            return Comparison(float("nan"), 0, float("nan"), float("nan"))
        ahead = np.asarray(right) > np.asarray(wrong)
        return Comparison(float(ahead.mean()), len(right), float(np.mean(right)), float(np.mean(wrong)))


Found = dict[str, Comparison]


@dataclass(frozen=True)
class Report(Generic[Encoder]):
    """A report that a training ends with, and that can be printed of any weights folder."""

    module: str
    """The name of its module in this package."""
    about: str
    """What it tells, in one line."""
    encoder: type[Encoder]
    measure: Callable[[Encoder, int, int], Found]
    """The comparisons, given an encoder, a number of scenes and their seed."""
    scenes: int
    """How many unless the command says otherwise."""
    required: dict[str, float]
    """The accuracies that the shipped model must reach."""
    title: Callable[[str], str]
    """What the table calls a comparison."""
    against: str = "right against wrong"
    """What heads the first column."""
    value: str = "mean cosine"
    """What is compared."""
    further: Callable[[Found], list[str]] = lambda found: []
    """Requirements beyond single accuracies that are not met, in words."""

    def table(self, found: Found) -> str:
        """The comparisons as a Markdown table."""
        head = (
            self.against,
            "accuracy",
            "required",
            "trials",
            f"{self.value}, right",
            f"{self.value}, wrong",
        )
        rows: list[tuple[Any, ...]] = [head]
        for name, row in found.items():
            needed = f"{self.required[name]:.0%}" if name in self.required else "-"
            means = (f"{row.right:.3f}", f"{row.wrong:.3f}")
            rows.append((self.title(name), f"{row.accuracy:.1%}", needed, row.trials, *means))
        lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in rows]
        return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])

    def missed(self, found: Found) -> list[str]:
        """The requirements that are not met, in words."""
        failures = [
            f"{name}: {found[name].accuracy:.1%} is below the required {needed:.0%}"
            for name, needed in self.required.items()
            if not found[name].accuracy >= needed
        ]
        return failures + self.further(found)

    def record(self, found: Found, seed: int) -> dict[str, Any]:
        """What the config of a weights folder keeps of the report."""
        rows = {
            name: {"accuracy": round(row.accuracy, 4), "trials": row.trials} for name, row in found.items()
        }
        return {"command": f"{command_of(self.module)} DIR --seed {seed}", **rows}

    def main(self, arguments: list[str] | None = None) -> int:
        """The command line; exit status 1 if a requirement is missed."""
        parser = argparse.ArgumentParser(prog=command_of(self.module), description=self.about)
        parser.add_argument("folder", help="a weights folder, or 'tiny'")
        parser.add_argument("--seed", type=int, default=1, help="not the seed of the training")
        parser.add_argument("--scenes", type=int, default=self.scenes)
        options = parser.parse_args(arguments)
        found = self.measure(self.encoder.from_pretrained(options.folder), options.scenes, options.seed)
        failures = self.missed(found)
        sys.stdout.write("\n".join([self.table(found), *failures]) + "\n")
        return 1 if failures else 0


def command_of(module: str) -> str:
    """How a module of this package is run."""
    return f"python -m capeval_core.training.{module}"


def shown(images: Iterable[Image.Image]) -> list[InputImage]:
    """Drawn scenes as encoders take them."""
    return [InputImage.of(image, where=f"scene {index}") for index, image in enumerate(images)]


def unit(vectors: Floats) -> Floats:
    """Vectors, (..., d), at unit length."""
    scaled: Floats = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return scaled
