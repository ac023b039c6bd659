"""Every training's command line: train, measure on new scenes, compare with what is required, save."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from capeval_core.inputs.visual import InputImage
from capeval_core.models.model import CheckedModel
from tools.tiny.training import timed

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


Comparisons = dict[str, Comparison]


@dataclass(frozen=True)
class Training(Generic[Encoder]):
    """A training of a tiny model, and the report on new scenes that it ends with."""

    module: str
    """Name of its module in `tools.tiny`."""
    about: str
    """What is trained, in one line."""
    train: Callable[[int, str], Encoder]
    """The trained encoder of a seed and the command, which its config records."""
    encoder: type[Encoder]
    measure: Callable[[Encoder, int, int], Comparisons]
    """The comparisons of an encoder on a number of scenes of a seed."""
    scenes: int
    """Default number of scenes of the report."""
    required: dict[str, float]
    """Accuracies that the shipped model must reach."""
    title: Callable[[str], str]
    """The table's row title of a comparison."""
    against: str = "right against wrong"
    """Header of the first column."""
    value: str = "mean cosine"
    """The value that is compared."""
    further: Callable[[Comparisons], list[str]] = lambda comparisons: []
    """Further requirements that are not met, in words."""

    @property
    def command(self) -> str:
        """How the module is run."""
        return f"python -m tools.tiny.{self.module}"

    def main(self, arguments: list[str] | None = None) -> int:
        """The command line; exit status 1 if a requirement is missed.

        The config of the weights folder records the report. Its scenes are of the seed after the training's.
        """
        parser = argparse.ArgumentParser(prog=self.command, description=self.about)
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument("--out", type=Path, metavar="DIR", help="train and write this weights folder")
        source.add_argument("--measure", metavar="DIR", help="only measure this weights folder, or 'tiny'")
        parser.add_argument(
            "--seed", type=int, help="of the training (default 0) or of the measured scenes (1)"
        )
        parser.add_argument("--scenes", type=int, default=self.scenes, help="number of scenes of the report")
        options = parser.parse_args(arguments)
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        if options.out is None:
            encoder, seed = self.encoder.from_pretrained(options.measure), options.seed
            seed = 1 if seed is None else seed
        else:
            torch.set_num_threads(1)  # the order of sums, and with it the result, depends on the threads
            with timed("trained"):
                encoder = self.train(options.seed or 0, f"{self.command} --seed {options.seed or 0}")
            seed = (options.seed or 0) + 1
        comparisons = self.measure(encoder, options.scenes, seed)
        if options.out is not None:
            encoder.config["source"]["report"] = self.record(comparisons, seed)
            encoder.save_pretrained(options.out)
        missed = self.missed(comparisons)
        sys.stdout.write("\n".join([self.table(comparisons), *missed]) + "\n")
        return 1 if missed else 0

    def table(self, comparisons: Comparisons) -> str:
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
        for name, row in comparisons.items():
            needed = f"{self.required[name]:.0%}" if name in self.required else "-"
            means = (f"{row.right:.3f}", f"{row.wrong:.3f}")
            rows.append((self.title(name), f"{row.accuracy:.1%}", needed, row.trials, *means))
        lines = ["| " + " | ".join(map(str, cells)) + " |" for cells in rows]
        return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])

    def missed(self, comparisons: Comparisons) -> list[str]:
        """The requirements that are not met, in words."""
        failures = [
            f"{name}: {comparisons[name].accuracy:.1%} is below the required {needed:.0%}"
            for name, needed in self.required.items()
            if not comparisons[name].accuracy >= needed
        ]
        return failures + self.further(comparisons)

    def record(self, comparisons: Comparisons, seed: int) -> dict[str, Any]:
        """The report as the config of a weights folder keeps it."""
        rows = {
            name: {"accuracy": round(row.accuracy, 4), "trials": row.trials}
            for name, row in comparisons.items()
        }
        return {"command": f"{self.command} --measure DIR --seed {seed}", **rows}


def source_of(origin: str) -> dict[str, Any]:
    """The `source` of a trained model's config; `origin` tells how it was made.

    >>> source_of("Trained from scratch.")["licence"]
    'apache-2.0'
    """
    return {
        "name": "capeval synthetic scenes",
        "url": None,
        "file": None,
        "sha256": None,
        "licence": "apache-2.0",
        "notes": [
            "It knows nothing but synthetic scenes of coloured shapes.",
            "Its scores of any other image or caption mean nothing.",
            origin,
        ],
    }


def rounded(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model in float16, as they are stored."""
    return {name: tensor.half() for name, tensor in model.state_dict().items()}


def input_images(images: Iterable[Image.Image]) -> list[InputImage]:
    """Drawn scenes as encoders take them."""
    return [InputImage.of(image, where=f"scene {index}") for index, image in enumerate(images)]


def unit(vectors: Floats) -> Floats:
    """Vectors, (..., d), at unit length."""
    scaled: Floats = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return scaled
