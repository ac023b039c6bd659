"""The folder of trained weights: tensors, a config that records data and settings, and a card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from capeval_core.models.model import CheckedModel
from capeval_core.training.settings import Training
from capeval_core.weights.folder import WeightsFolder
from capeval_core.writing import write_whole

CARD = "README.md"


def as_stored(tensor: Tensor, training: Training) -> Tensor:
    """A tensor in the numeric type of `training.stored`."""
    return tensor.half() if training.stored == "float16" else tensor.float()


def save_trained(
    folder: Path,
    encoder: type[CheckedModel],
    start: WeightsFolder,
    tensors: dict[str, Tensor],
    training: Training,
    stamp: Mapping[str, Any],
    constants: Mapping[str, Any],
    card: str | None = None,
) -> None:
    """Write trained weights as a folder that is opened like any other.

    Args:
        folder: of the weights.
        encoder: their network.
        start: the weights that the training began with.
        tensors: all of the network.
        training, stamp: the settings, and everything that the result depends on.
        constants: what the metric takes from the config, beside what the start has.
        card: README.md; None: the general one.
    """
    config = {
        name: value
        for name, value in encoder.read_config(start).items()
        if name not in ("canary", "checksum")
    }
    source = dict(config.get("source") or {})
    note = f"Trained by `capeval train {training.name}`; see `training`."
    source["notes"] = [*source.get("notes", []), note]
    config |= {"source": source, "training": json.loads(json.dumps(stamp))}
    if constants:
        config["constants"] = {**config.get("constants", {}), **constants}
    if card is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / CARD, card)
    encoder(config, tensors, device="cpu").save_pretrained(folder)
