"""What trainings share: options, and phases with their learning rates."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import ClassVar, Literal, NamedTuple

from capeval_core.errors import Problems, option_problem
from capeval_core.models.device import resolve_device
from capeval_core.options import Settings, option


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
    shares: ClassVar[tuple[str, ...]] = ()
    """Options that are shares of a whole."""
    free: ClassVar[tuple[str, ...]] = ("save_every", "log_every", "tracker", "device", "start")
    """Options that the weights do not depend on, or whose fingerprints stamps have instead."""

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

        def wrong(name: str, found: str, fix: str, verb: str = "is") -> None:
            problems.add(option_problem(name, getattr(self, name), found, fix, verb=verb))

        if not self.start:
            wrong("start", "missing", "pass the weights to start from")
        for name, _ in self.lengths.values():
            if (most := getattr(self, name)) and self.warmup >= most:
                wrong("warmup", f"not below the {most:,} of {name}", "pass fewer")
        for name in self.shares:
            if not getattr(self, name) < 1:
                wrong(name, "", "expected less than 1", verb="")
        if self.tracker is not None:
            from accelerate.tracking import get_available_trackers

            if self.tracker not in (known := list(map(str, get_available_trackers()))):
                found = "no tracker of accelerate whose package is installed"
                wrong("tracker", found, f"install it, or pass one of these: {', '.join(known) or 'none'}")
        problems.raise_if_any()

    @property
    def all_steps(self) -> int:
        """Of all phases."""
        return sum(phase.steps for phase in self._phases())

    def _phases(self) -> list[Phase]:
        phases, start = [], 0
        for name, (steps, rate) in self.lengths.items():
            phase = Phase(name, start, getattr(self, steps), getattr(self, rate))
            start += phase.steps
            phases.append(phase)
        return [phase for phase in phases if phase.steps]

    def phase_at(self, step: int) -> Phase:
        """The phase of a step, from 0; the last one ever after."""
        return [phase for phase in self._phases() if phase.start <= step][-1]

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: in each phase a linear rise, then a linear fall to 0."""
        phase = self.phase_at(step)
        done = step - phase.start
        return phase.rate * min(
            (done + 1) / max(self.warmup, 1), (phase.steps - done) / (phase.steps - self.warmup)
        )

    def stamp(self) -> dict[str, object]:
        """The settings that the trained weights depend on."""
        return {name: value for name, value in vars(self).items() if name not in self.free}


@dataclass(frozen=True, kw_only=True)
class RegionTraining(Training):
    """How a network over captions and boxes is trained."""

    shares: ClassVar[tuple[str, ...]] = ("masked", "dropout")
    free: ClassVar[tuple[str, ...]] = (*Training.free, "regions")

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
