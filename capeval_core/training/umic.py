"""UMIC's training: losses, and its options.

Lee, Yoon, Dernoncourt, Bui, Jung: UMIC: An Unreferenced Metric for Image Captioning via Contrastive Learning,
ACL 2021, https://arxiv.org/abs/2106.14019, section 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.errors import Problems, wrong_option
from capeval_core.models.device import resolve_device
from capeval_core.options import Settings, option

MARGIN = 0.2
WORDS, MATCHING, RANKING = "words", "matching", "ranking"
"""Phases of a training: masked words, image-text matching, ranking."""


class Phase(NamedTuple):
    """A phase of a training: its name, its first step, its steps, its highest learning rate."""

    name: str
    start: int
    steps: int
    rate: float


def ranking_loss(logits: Tensor, group_size: int, margin: float = MARGIN) -> Tensor:
    """max(0, margin - (s - s')) of each negative, s and s' being the sigmoids of positive and negative.

    Args:
        logits: (n,) of the ranking head, group after group, the positive of each group first.
        group_size: captions of a group.
        margin: by how much the positive is to be ahead.

    Returns:
        (n / group_size, group_size - 1), not reduced.

    Raises:
        ValueError: the logits are no whole number of groups of at least two.

    >>> ranking_loss(torch.tensor([0.0, -5.0, 0.0, 1.0]), group_size=4).round(decimals=3)
    tensor([[0.0000, 0.2000, 0.4310]])
    """
    if group_size < 2 or logits.ndim != 1 or len(logits) % group_size:
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} are no groups of {group_size}: give one axis, group "
            "after group, each with its positive and at least one negative"
        )
    scores = torch.sigmoid(logits).view(-1, group_size)
    return functional.relu(margin - (scores[:, :1] - scores[:, 1:]))


def matching_loss(logits: Tensor, group_size: int) -> Tensor:
    """Cross entropy of the matching head: the positive of each group matches, the others do not.

    Args:
        logits: (n, 2) no match and match, group after group, the positive of each group first.
        group_size: captions of a group.

    Returns:
        (n / group_size, group_size), not reduced.

    >>> matching_loss(torch.tensor([[0.0, 9.0], [0.0, 0.0]]), group_size=2).round(decimals=3)
    tensor([[0.0000, 0.6930]])
    """
    truth = torch.zeros(len(logits), dtype=torch.long, device=logits.device)
    truth[::group_size] = 1
    return functional.cross_entropy(logits, truth, reduction="none").view(-1, group_size)


@dataclass(frozen=True, kw_only=True)
class UmicTraining(Settings):
    """How UMIC is trained. The defaults are those of the released training code, but for those noted.

    The run that gave the released weights used settings that are not known; the poster's UMIC learnt from
    COCO, its variant UMIC_c from other captions. `data` records which ones these are.
    """

    start: str | PathLike[str] = option(
        "",
        "UNITER to start from: a folder made by `capeval convert umic`, a Hub repository id, or `tiny`",
    )
    regions: str | PathLike[str] | None = option(
        None,
        "box features: weights of a region encoder (Hub id, folder, `tiny`), or features that were made "
        "before (a folder of .npz files, UNITER's LMDB, a bottom-up-attention .tsv); None: the region "
        "encoder that the start's config names",
    )
    selection: Literal["bua10_100", "lxmert36"] = option(
        "bua10_100", "boxes of an image: those more confident than 0.2, 10 to 100 of them, or LXMERT's 36"
    )
    data: str = option("", "name of the captions, for the record: e.g. `COCO train2014, Karpathy`")
    tagger: str = option("spacy", "part-of-speech tagger: `spacy`, `spacy:PIPELINE`, `nltk` or `scenes`")
    hard: Literal["both", "features", "captions", "none"] = option(
        "both", "similar images for hard negatives: by region features, by CIDEr of captions, or both"
    )
    random_negatives: int = option(1, "captions of any other image per caption", minimum=0)
    margin: float = option(MARGIN, "by how much a caption is to be ahead of its negatives", minimum=0)
    word_steps: int = option(
        0,
        "steps of predicting masked words from the rest and the image before; for a start that has not been "
        "pretrained",
        minimum=0,
    )
    masked: float = option(0.3, "share of the words that are masked in these steps", minimum=0)
    matching_steps: int = option(
        0, "steps of image-text matching after them; for a start that has not been pretrained", minimum=0
    )
    pretraining_rate: float = option(1e-4, "the highest learning rate of both", minimum=0)
    steps: int = option(100_000, "steps of ranking", minimum=1)
    learning_rate: float = option(1e-5, "the highest learning rate of ranking", minimum=0)
    warmup: int = option(4_000, "steps over which the learning rate rises", minimum=0)
    batch_size: int = option(32, "captions, each with its negatives, per forward pass", minimum=1)
    accumulation: int = option(16, "forward passes per step", minimum=1)
    clip: float = option(0.25, "the longest gradient", minimum=1e-6)
    weight_decay: float = option(0.0, "decay of the weights", minimum=0)
    dropout: float = option(0.1, "share of the states that are dropped", minimum=0)
    caption_length: int = option(60, "tokens that are read of a caption", minimum=3)
    seed: int = option(42, "of negatives, order and dropout", minimum=0)
    evaluate_every: int = option(1_000, "steps between two looks at the human judgements", minimum=1)
    patience: int = option(5, "looks without a better correlation that end the training; 0: none", minimum=0)
    save_every: int = option(500, "steps between two saved states", minimum=1)
    log_every: int = option(50, "steps of a line of the log", minimum=1)
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
        for name in ("word_steps", "matching_steps", "steps"):
            if (most := getattr(self, name)) and self.warmup >= most:
                found = f"not below the {most:,} of {name}"
                problems.extend(wrong_option("warmup", self.warmup, found, "pass fewer").problems)
        if not self.masked < 1:
            problems.extend(wrong_option("masked", self.masked, "", "expected less than 1", verb="").problems)
        if not self.dropout < 1:
            problems.extend(
                wrong_option("dropout", self.dropout, "", "expected less than 1", verb="").problems
            )
        problems.raise_if_any()

    @property
    def pretraining_steps(self) -> int:
        """Before ranking."""
        return self.word_steps + self.matching_steps

    @property
    def all_steps(self) -> int:
        """Of all phases."""
        return self.pretraining_steps + self.steps

    def phases(self) -> list[Phase]:
        """The phases that have steps, in order.

        >>> UmicTraining(start="tiny", warmup=5, steps=9, matching_steps=6).phases()[1]
        Phase(name='ranking', start=6, steps=9, rate=1e-05)
        """
        rates = (self.pretraining_rate, self.pretraining_rate, self.learning_rate)
        lengths = (self.word_steps, self.matching_steps, self.steps)
        starts = (0, self.word_steps, self.pretraining_steps)
        phases = map(Phase, (WORDS, MATCHING, RANKING), starts, lengths, rates)
        return [phase for phase in phases if phase.steps]

    def phase_at(self, step: int) -> Phase:
        """The phase of a step, from 0; the last one ever after."""
        return [phase for phase in self.phases() if phase.start <= step][-1]

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: in each phase a linear rise, then a linear fall to 0.

        >>> training = UmicTraining(start="tiny", steps=100, warmup=10, learning_rate=1.0)
        >>> [round(training.rate_at(step), 3) for step in (0, 9, 55, 99)]
        [0.1, 1.0, 0.5, 0.011]
        """
        phase = self.phase_at(step)
        done = step - phase.start
        return phase.rate * min(
            (done + 1) / max(self.warmup, 1), (phase.steps - done) / (phase.steps - self.warmup)
        )

    def stamp(self) -> dict[str, object]:
        """The settings that the trained weights depend on."""
        free = ("save_every", "log_every", "device", "start", "regions")
        return {name: value for name, value in vars(self).items() if name not in free}
