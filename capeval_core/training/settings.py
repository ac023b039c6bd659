"""What trainings share: options, and phases with their learning rates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor

from capeval_core.errors import Problems, ProblemsError, did_you_mean, wrong_option
from capeval_core.models.device import resolve_device
from capeval_core.models.model import CheckedModel
from capeval_core.options import Settings, option
from capeval_core.weights.folder import WeightsFolder
from capeval_core.writing import write_whole


class Phase(NamedTuple):
    """A phase of a training: its name, its first step, its steps, its highest learning rate."""

    name: str
    start: int
    steps: int
    rate: float


@dataclass(frozen=True, kw_only=True)
class Training(Settings):
    """How a network is trained."""

    name: ClassVar[str]
    """Of the training in `capeval train`."""
    lengths: ClassVar[dict[str, tuple[str, str]]]
    """Of each phase, in order: the options that are its steps and its highest learning rate."""
    betas: ClassVar[tuple[float, float]] = (0.9, 0.98)
    """Of AdamW."""

    start: str | PathLike[str] = option(
        "", "weights to start from: a folder made by `capeval convert`, a Hub repository id, or `tiny`"
    )
    data: str = option("", "name of the captions, recorded in the weights: e.g. `COCO train2014, Karpathy`")
    warmup: int = option(4_000, "steps over which the learning rate rises", minimum=0)
    batch_size: int = option(32, "captions, each with its negatives, per forward pass", minimum=1)
    accumulation: int = option(16, "forward passes per step", minimum=1)
    clip: float = option(0.25, "largest norm of the gradient; 0: no limit", minimum=0)
    weight_decay: float = option(0.0, "decay of the matrices", minimum=0)
    seed: int = option(42, "seed of every random draw", minimum=0)
    save_every: int = option(500, "steps between two saved states", minimum=1)
    log_every: int = option(50, "steps between two lines of the log", minimum=1)
    tracker: str | None = option(
        None, "one of accelerate's trackers that curves are sent to, e.g. `tensorboard`; None: none"
    )
    device: str | None = option(None, "torch device, e.g. `cpu`, `cuda`; None: CUDA where there is a GPU")
    precision: Literal["float32", "bfloat16"] = option(
        "float32", "numeric type of the forward passes of training"
    )
    stored: Literal["float16", "float32"] = option("float16", "numeric type of the weights that are written")

    def __post_init__(self) -> None:
        super().__post_init__()
        resolve_device(self.device)
        problems = Problems()
        if not self.start:
            error = wrong_option("start", str(self.start), "missing", "pass the weights to start from")
            problems.extend(error.problems)
        for name, _ in self.lengths.values():
            if (most := getattr(self, name)) and self.warmup >= most:
                found = f"not below the {most:,} of {name}"
                problems.extend(wrong_option("warmup", self.warmup, found, "pass fewer").problems)
        for name in self.shares():
            if not (share := getattr(self, name)) < 1:
                problems.extend(wrong_option(name, share, "", "expected less than 1", verb="").problems)
        if self.tracker is not None and (error_ := tracker_problem(self.tracker)) is not None:
            problems.extend(error_.problems)
        problems.raise_if_any()

    @classmethod
    def shares(cls) -> tuple[str, ...]:
        """Options that are shares of a whole."""
        return ()

    @property
    def all_steps(self) -> int:
        """Of all phases."""
        return sum(phase.steps for phase in self.phases())

    def phases(self) -> list[Phase]:
        """The phases that have steps, in order."""
        phases, start = [], 0
        for name, (steps, rate) in self.lengths.items():
            phase = Phase(name, start, getattr(self, steps), getattr(self, rate))
            start += phase.steps
            phases.append(phase)
        return [phase for phase in phases if phase.steps]

    def phase_at(self, step: int) -> Phase:
        """The phase of a step, from 0; the last one ever after."""
        return [phase for phase in self.phases() if phase.start <= step][-1]

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: in each phase a linear rise, then a linear fall to 0."""
        phase = self.phase_at(step)
        done = step - phase.start
        return phase.rate * min(
            (done + 1) / max(self.warmup, 1), (phase.steps - done) / (phase.steps - self.warmup)
        )

    def stamp(self) -> dict[str, object]:
        """The settings that the trained weights depend on."""
        free = ("save_every", "log_every", "tracker", "device", "start", *self.sources())
        return {name: value for name, value in vars(self).items() if name not in free}

    @classmethod
    def sources(cls) -> tuple[str, ...]:
        """Options that name files or models, whose fingerprints stamps have instead."""
        return ()


@dataclass(frozen=True, kw_only=True)
class RegionTraining(Training):
    """How a network over captions and boxes is trained."""

    regions: str | PathLike[str] | None = option(
        None,
        "box features: weights of a region encoder (Hub id, folder, `tiny`), or features that were made "
        "before (a folder of .npz files, UNITER's LMDB, a bottom-up-attention .tsv); None: the region "
        "encoder that the start's config names",
    )
    selection: Literal["bua10_100", "lxmert36"] = option(
        "bua10_100", "boxes of an image: those more confident than 0.2, 10 to 100 of them, or LXMERT's 36"
    )
    tagger: str = option("spacy", "part-of-speech tagger: `spacy`, `spacy:PIPELINE`, `nltk` or `scenes`")
    hard: Literal["both", "features", "captions", "none"] = option(
        "both", "similar images for hard negatives: by region features, by CIDEr of captions, or both"
    )
    random_negatives: int = option(1, "captions of any other image per caption", minimum=0)
    masked: float = option(0.3, "share of the words that are masked", minimum=0)
    dropout: float = option(0.1, "share of the states that are dropped", minimum=0)
    caption_length: int = option(60, "tokens that are read of a caption", minimum=3)

    @classmethod
    def shares(cls) -> tuple[str, ...]:
        return ("masked", "dropout")

    @classmethod
    def sources(cls) -> tuple[str, ...]:
        return ("regions",)


def tracker_problem(name: str) -> ProblemsError | None:
    """What is wrong with the name of a tracker: accelerate does not know it, or its package is missing."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    if name not in LOGGER_TYPE_TO_CLASS:
        found = f"no tracker of accelerate{did_you_mean(name, LOGGER_TYPE_TO_CLASS)}"
        return wrong_option("tracker", name, found, f"known: {', '.join(LOGGER_TYPE_TO_CLASS)}")
    if name not in map(str, get_available_trackers()):
        return wrong_option(
            "tracker", name, "a package that is not installed", f"pip install {name}", verb="needs"
        )
    return None


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
