"""From a training to a weights folder: the command line, and what the config says of their origin."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capeval_core.training.recipe import timed
from capeval_core.training.report import Encoder, Report, command_of

log = logging.getLogger(__name__)


def run_training(
    module: str,
    about: str,
    make: Callable[[int, str], Encoder],
    report: Report[Encoder],
    arguments: list[str] | None = None,
) -> int:
    """The command line of a training: train, measure on fresh scenes, save; 1 if a requirement is missed.

    `make(seed, command)` trains, and gives the encoder whose `save_pretrained` writes the folder. Its config
    keeps the report, whose scenes are of the seed after that of the training.
    """
    parser = argparse.ArgumentParser(prog=command_of(module), description=about)
    parser.add_argument("--out", type=Path, required=True, help="the weights folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)  # the order of sums, and with it the result, depends on the number of threads
    with timed("trained"):
        encoder = make(options.seed, f"{command_of(module)} --seed {options.seed}")
    seed = options.seed + 1
    found = report.measure(encoder, report.scenes, seed)
    encoder.config["source"]["report"] = report.record(found, seed)
    encoder.save_pretrained(options.out)
    log.info("%s", report.table(found))
    failures = report.missed(found)
    for failure in failures:
        log.error("%s", failure)
    return 1 if failures else 0


def source_of(origin: str) -> dict[str, Any]:
    """What a config says of where weights come from; `origin` tells how they were made.

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
