"""ViLBERT's pre-training: masked words, hidden boxes, and whether a caption matches an image.

Lu, Batra, Parikh, Lee: ViLBERT: Pretraining Task-Agnostic Visiolinguistic Representations for
Vision-and-Language Tasks, NeurIPS 2019, https://arxiv.org/abs/1908.02265, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.region_text import EPS
from capeval_core.encoders.tokenizers import Ids, WordPiece
from capeval_core.encoders.vilbert import LocatedBoxes, Vilbert, VilbertEncoder, located
from capeval_core.models.copies import on_device
from capeval_core.options import option
from capeval_core.training.captioned import CaptionedImages
from capeval_core.training.negatives import FOIL
from capeval_core.training.regions import (
    CaptionData,
    MaskedWords,
    Network,
    RegionRun,
    mask_boxes,
    mask_id,
    matching_loss,
    terms_of,
)
from capeval_core.training.settings import RegionTraining
from capeval_core.training.tags import Tagger
from capeval_core.training.trainer import Objective, ReadTerms, Report, Terms, opened, scalar_terms
from capeval_core.weights.folder import WeightsFolder

MASKING, MATCHING = "masking", "matching"
"""Phases of a training: masked words and boxes; image-text matching as well."""
CAPTIONS_PER_GROUP = 4
"""Captions that are read with masked words before the matching, for each that is read during it."""
UNKNOWN_TRUTH = -1
"""Of a word in a caption of another image: it may be right or wrong."""
_SPREAD = 0.02
"""Deviation of the heads' first weights."""
_SHOWN = 0.1
"""Share of the masked words that stay as they are."""
_PART = "vilbert."


@dataclass(frozen=True, kw_only=True)
class VilbertTraining(RegionTraining):
    """How ViLBERT is pre-trained."""

    name: ClassVar = "vilbert"
    lengths: ClassVar = {
        MASKING: ("masking_steps", "masking_rate"),
        MATCHING: ("steps", "learning_rate"),
    }
    shares: ClassVar[tuple[str, ...]] = (*RegionTraining.shares, "masked_boxes")

    masked: float = option(0.15, "share of the words that are masked", minimum=0)
    masked_boxes: float = option(
        0.15, "share of the boxes that are hidden, with all that overlap them", minimum=0
    )
    foils: int = option(
        3, "captions with one word replaced by another that fits in its place, per caption", minimum=0
    )
    masking_steps: int = option(
        0,
        "steps of masked words and boxes alone before; for a start that has not been pre-trained",
        minimum=0,
    )
    masking_rate: float = option(1e-4, "the highest learning rate of these", minimum=0)
    steps: int = option(100_000, "steps of masked words and boxes with image-text matching", minimum=1)
    learning_rate: float = option(1e-4, "the highest learning rate of these", minimum=0)
    weight_decay: float = option(0.01, "decay of the weights", minimum=0)
    clip: float = option(1.0, "largest norm of the gradient", minimum=1e-6)


class Outputs(NamedTuple):
    """Of pairs of a text and an image.

    words: per text (rows, hidden) after the last co-attention block, where the metric takes them. text,
    regions: after all layers.
    """

    words: list[Tensor]
    text: list[Tensor]
    regions: list[Tensor]


class VilbertPretraining(nn.Module):
    """ViLBERT with the heads of its pre-training, which are not among the weights that the metric opens."""

    def __init__(self, architecture: dict[str, Any], task: int | None, dropout: float) -> None:
        super().__init__()
        self.task = task
        self.vilbert = Vilbert(architecture, dropout)
        hidden, wide = (architecture[stream]["hidden_size"] for stream in ("text", "visual"))
        self.word_head = _transform(hidden)
        self.word_bias = nn.Parameter(torch.zeros(architecture["text"]["vocab_size"]))
        self.region_head = nn.Sequential(
            *_transform(wide), nn.Linear(wide, architecture["visual"]["region_size"])
        )
        self.matching_head = nn.Linear(architecture["co_attention"]["hidden_size"], 2)
        self.word_matching_head = nn.Linear(hidden, 4)  # two questions with two answers
        for head in (self.word_head, self.region_head, self.matching_head, self.word_matching_head):
            for module in head.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=_SPREAD)
                    nn.init.zeros_(module.bias)

    def forward(self, texts: Sequence[Ids], images: Sequence[LocatedBoxes]) -> Outputs:
        """Outputs of texts; as many for each image, one image after another."""
        features, locations = (
            torch.from_numpy(np.concatenate(arrays)).to(self.vilbert.device)
            for arrays in ([i.features for i in images], [i.locations for i in images])
        )
        regions = self.vilbert.lower_regions(features, locations, [len(i.locations) for i in images])
        lower = self.vilbert.lower_texts(texts, self.task)
        each = len(texts) // len(images)
        pairs = [(text, text // each) for text in range(len(texts))]
        *_, (words, _), (text, visual) = self.vilbert.states(lower, regions, pairs)
        return Outputs(words, text, visual)

    def word_loss(self, states: Tensor, words: Tensor) -> Tensor:
        """() cross entropy of masked words (n,), predicted from their states (n, hidden)."""
        table = self.vilbert.embeddings.word_embeddings.weight
        return functional.cross_entropy(self.word_head(states) @ table.T + self.word_bias, words)

    def region_loss(self, states: Tensor, features: Tensor) -> Tensor:
        """() mean squared error of the features of hidden boxes (n, region_size), each at mean 0 and
        deviation 1, predicted from their states (n, hidden)."""
        target = functional.layer_norm(features, features.shape[1:])
        return functional.mse_loss(self.region_head(states).float(), target)

    def matching_logits(self, outputs: Outputs) -> Tensor:
        """(pairs, 2) no match and match, from the product of what both poolers give."""
        text, visual = self.vilbert.pooled(outputs.text, outputs.regions)
        logits: Tensor = self.matching_head(self.vilbert.dropout(text * visual))
        return logits

    def word_matching_logits(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """(n, 2) and (n, 2), no and yes, read off words (n, hidden): whether the caption of each matches the
        image, and whether the word itself does."""
        caption, word = self.word_matching_head(states).float().split(2, dim=-1)
        return caption, word


def _transform(hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden, eps=EPS))


@dataclass(frozen=True)
class MaskedBatch:
    """Captions with masked words, images with hidden boxes.

    features: of the hidden boxes of all images. hidden: their rows in all images laid end to end.
    """

    words: MaskedWords
    images: list[LocatedBoxes]
    features: Tensor
    hidden: Tensor


@dataclass(frozen=True)
class Groups:
    """Captions with their negatives: those of each image together, the positive first.

    kinds: (images, captions). right: of each word of each text, 1 where it is right, 0 where it is the other
    word of a foil, else `UNKNOWN_TRUTH`.
    """

    texts: list[Ids]
    images: list[LocatedBoxes]
    kinds: NDArray[Any]
    right: list[NDArray[np.int64]]


class VilbertObjective(Objective):
    """ViLBERT with the losses of its pre-training.

    As in the paper: masked words are predicted; hidden boxes, too, their features by regression, since not
    all region encoders have classes; image-text matching is read off the pooled streams. Beyond the paper,
    matching is also read off every word, where the metric takes its features: whether the caption matches,
    and, of right captions and foils, whether the word itself does. The paper's matching alone would leave it
    to the first token to know.
    """

    model: VilbertPretraining

    def __init__(self, training: VilbertTraining, folder: WeightsFolder, data: CaptionData) -> None:
        self.training, self.data = training, data
        config = VilbertEncoder.read_config(folder)
        words, length = config["vocabulary"], min(config["context_length"], training.caption_length)
        self.tokenizer = WordPiece(words, length, lowercase=config["lowercase"], keep_end=False)
        self.mask = mask_id(words)
        self.tasks = int(config["task"] is not None)
        torch.manual_seed(training.seed)  # of the heads
        self.model = VilbertPretraining(config["architecture"], config["task"], training.dropout)
        self.model.vilbert.load_state_dict({n: t.float() for n, t in folder.tensors().items()})

    def batch(self, phase: str, number: int) -> tuple[MaskedBatch, Groups | None]:
        if phase == MATCHING:
            return self._masked(number, self.data.size), self._groups(number)
        return self._masked(number, CAPTIONS_PER_GROUP * self.data.size), None

    def _masked(self, number: int, size: int) -> MaskedBatch:
        share = self.training.masked
        words, images, rng = self.data.masked(number, size, self.tokenizer, share, self.mask, _SHOWN)
        masked = [mask_boxes(image, self.training.masked_boxes, rng) for image in images]
        hidden = torch.from_numpy(np.concatenate([rows for _, rows in masked]))
        features = torch.from_numpy(np.concatenate([image.features for image in images]))[hidden]
        return MaskedBatch(words, [image for image, _ in masked], features, hidden.nonzero()[:, 0])

    def _groups(self, number: int) -> Groups:
        data, others = self.data, 2 + self.training.random_negatives
        chosen = data.chosen(number, data.size)
        texts, kinds = [], []
        for epoch, index in chosen:
            group = data.sampler.group(epoch, index)
            kept = [*range(others), *range(len(group.kinds) - self.training.foils, len(group.kinds))]
            texts += [group.captions[place] for place in kept]
            kinds.append([group.kinds[place] for place in kept])
        images = data.regions([index for _, index in chosen])
        ids = self.tokenizer.encode(texts).ids
        flat, size = [kind for group in kinds for kind in group], len(kinds[0])
        right = [
            right_words(self._words(own), self._words(ids[place - place % size]), kind)
            for place, (own, kind) in enumerate(zip(ids, flat, strict=True))
        ]
        return Groups(ids, images, np.array(kinds), right)

    def _words(self, ids: Ids) -> Ids:
        return ids[1:-1] if ids[-1] == self.tokenizer.end else ids[1:]

    def losses(self, phase: str, batch: tuple[MaskedBatch, Groups | None]) -> tuple[Tensor, ReadTerms]:
        masked, groups = batch
        terms = self._masked_losses(masked)
        loss = torch.stack([*terms.values()]).sum()
        if groups is None:
            return loss, lambda: scalar_terms(terms)
        by_word, matching, right = self._matching_losses(groups)
        terms["right_words"] = right

        def read() -> Terms:
            return {**scalar_terms(terms), **terms_of(by_word, groups.kinds)}

        return loss + (matching + right), read

    def _masked_losses(self, batch: MaskedBatch) -> dict[str, Tensor]:
        model, device = self.model, self.model.vilbert.device
        outputs = model(batch.words.texts, batch.images)
        rows = torch.tensor(rows_of_words(batch.words, self.tasks), device=device)
        tokens = torch.tensor(batch.words.tokens, device=device)
        losses = {"words": model.word_loss(torch.cat(outputs.text)[rows], tokens)}
        if len(batch.features):
            states = torch.cat(outputs.regions)[on_device(batch.hidden, device)]
            losses["boxes"] = model.region_loss(states, on_device(batch.features, device))
        return losses

    def _matching_losses(self, groups: Groups) -> tuple[Tensor, Tensor, Tensor]:
        """Of each caption by its words; the loss of matching; that of right and wrong words."""
        model, size = self.model, groups.kinds.shape[1]
        outputs = model(groups.texts, groups.images)
        first = 1 + self.tasks
        words = [
            rows[first : first + len(own)] for rows, own in zip(outputs.words, groups.right, strict=True)
        ]
        caption, word = model.word_matching_logits(torch.cat(words))
        counts = torch.tensor([len(own) for own in words])
        owner = torch.arange(len(words)).repeat_interleave(counts).to(caption.device)
        each = functional.cross_entropy(caption, (owner % size == 0).long(), reduction="none")
        sums = each.new_zeros(len(words)).index_add(0, owner, each)
        by_word = (sums / counts.clamp(min=1).to(sums.device)).view(-1, size)
        losses = matching_loss(model.matching_logits(outputs), size) + by_word
        loss = losses[:, 0].mean() + losses[:, 1:].mean()
        truth = torch.from_numpy(np.concatenate(groups.right)).to(word.device)
        right = functional.cross_entropy(word, truth, ignore_index=UNKNOWN_TRUTH)
        return by_word, loss, right

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """ViLBERT's own, without the heads."""
        return {name[len(_PART) :]: tensor for name, tensor in state.items() if name.startswith(_PART)}


def rows_of_words(words: MaskedWords, tasks: int) -> list[int]:
    """The rows of masked words among those of all texts, each with `tasks` task tokens behind its first."""
    ends = np.cumsum([len(ids) for ids in words.texts])
    texts = np.searchsorted(ends, words.places, side="right")
    rows: list[int] = (np.array(words.places) + tasks * (texts + 1)).tolist()
    return rows


def right_words(ids: Sequence[int], positive: Sequence[int], kind: str) -> NDArray[np.int64]:
    """Of each token of a caption, whether it is right, as in `Groups`; positive: tokens of the right caption.

    >>> right_words([5, 6, 7, 8], [5, 9, 9, 7, 8], FOIL), right_words([5, 6], [7], "random")
    (array([1, 0, 1, 1]), array([-1, -1]))
    """
    if kind not in ("positive", FOIL):
        return np.full(len(ids), UNKNOWN_TRUTH)
    right = np.ones(len(ids), dtype=np.int64)
    if kind == FOIL:
        right[changed(ids, positive)] = 0
    return right


def changed(ids: Sequence[int], original: Sequence[int]) -> slice:
    """The part of a text that another one has not; before it and behind it both are equal.

    >>> changed([5, 6, 7, 8], [5, 9, 9, 7, 8])
    slice(1, 2, None)
    """
    most = min(len(ids), len(original))
    start = next((i for i in range(most) if ids[i] != original[i]), most)
    behind = next((i for i in range(most - start) if ids[-1 - i] != original[-1 - i]), most - start)
    return slice(start, len(ids) - behind)


def train_vilbert(
    training: VilbertTraining,
    captioned: CaptionedImages,
    tagger: Tagger,
    out: Path,
    *,
    report: Report = lambda line: None,
) -> Path:
    """Pre-train ViLBERT; arguments, result and errors are those of `train_umic`."""
    network = Network("vilbertscore", VilbertEncoder, located, LocatedBoxes)
    with opened(training, out) as accelerator:
        run = RegionRun(training, network, captioned, tagger, out, accelerator, report)
        return run.train(VilbertObjective(training, run.start, run.data(training.foils)))
