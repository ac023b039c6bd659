"""ViLBERT's pre-training: masked words, hidden boxes, and whether a caption matches an image.

Lu, Batra, Parikh, Lee: ViLBERT: Pretraining Task-Agnostic Visiolinguistic Representations for
Vision-and-Language Tasks, NeurIPS 2019, https://arxiv.org/abs/1908.02265, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.pairs import EPS
from capeval_core.encoders.tokenizers import Ids
from capeval_core.encoders.vilbert import LocatedBoxes, Vilbert, VilbertEncoder, located
from capeval_core.models.device import on_device
from capeval_core.options import option
from capeval_core.training.negatives import FOIL
from capeval_core.training.regions import (
    MaskedWords,
    RegionObjective,
    RegionTraining,
    mask_boxes,
    matching_loss,
    terms_of,
)
from capeval_core.training.trainer import ReadTerms, scalar_terms

MASKING, MATCHING = "masking", "matching"
"""Phases of a training: masked words and boxes; image-text matching as well."""
CAPTIONS_PER_GROUP = 4  # with masked words before the matching, for each during it
UNKNOWN_TRUTH = -1  # of a word in a caption of another image: it may be right or wrong
_SPREAD = 0.02  # deviation of the heads' first weights
_SHOWN = 0.1  # share of the masked words that stay as they are
_PART = "vilbert."


@dataclass(frozen=True, kw_only=True)
class VilbertTraining(RegionTraining):
    """How ViLBERT is pre-trained."""

    name: ClassVar = "vilbert"
    metric: ClassVar = "vilbertscore"
    lengths: ClassVar = {MASKING: ("masking_steps", "masking_rate"), MATCHING: ("steps", "learning_rate")}
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


class _VilbertPretraining(nn.Module):
    """ViLBERT with the heads of its pre-training, which are not among the weights that the metric opens."""

    def __init__(self, architecture: dict[str, Any], task: int | None, dropout: float) -> None:
        super().__init__()
        self.task = task
        self.vilbert = Vilbert(architecture, dropout)
        hidden, wide = (architecture[stream]["hidden_size"] for stream in ("text", "visual"))
        self.word_head = _transform(hidden)
        self.word_bias = nn.Parameter(torch.zeros(architecture["text"]["vocab_size"]))
        region_size = architecture["visual"]["region_size"]
        self.region_head = nn.Sequential(*_transform(wide), nn.Linear(wide, region_size))
        self.matching_head = nn.Linear(architecture["co_attention"]["hidden_size"], 2)
        self.word_matching_head = nn.Linear(hidden, 4)  # two questions with two answers
        heads = nn.ModuleList([self.word_head, self.region_head, self.matching_head, self.word_matching_head])
        for module in heads.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=_SPREAD)
                nn.init.zeros_(module.bias)

    def forward(
        self, texts: Sequence[Ids], images: Sequence[LocatedBoxes]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Tokens after the last co-attention, where the metric takes them; tokens and boxes at the end."""
        features, locations = (
            torch.from_numpy(np.concatenate(arrays)).to(self.vilbert.device)
            for arrays in ([i.features for i in images], [i.locations for i in images])
        )
        regions = self.vilbert.lower_regions(features, locations, [len(i.locations) for i in images])
        lower = self.vilbert.lower_texts(texts, self.task)
        each = len(texts) // len(images)
        pairs = [(text, text // each) for text in range(len(texts))]
        *_, (words, _), (text, visual) = self.vilbert.states(lower, regions, pairs)
        return words, text, visual


def _transform(hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden, eps=EPS))


class _MaskedBatch(NamedTuple):
    """Captions with masked words; images with hidden boxes, and their features and rows in all images."""

    words: MaskedWords
    images: list[LocatedBoxes]
    features: Tensor
    hidden: Tensor


class _Groups(NamedTuple):
    """Captions with negatives, the positive first; their kinds (images, captions); see `_right_words`."""

    texts: list[Ids]
    images: list[LocatedBoxes]
    kinds: NDArray[Any]
    right: list[NDArray[np.int64]]


class VilbertObjective(RegionObjective):
    """ViLBERT with the losses of its pre-training: masked words, features of hidden boxes, matching.

    Beyond the paper, matching is also read off every word, where the metric takes its features: whether the
    caption matches, and, of right captions and foils, whether the word itself does.
    """

    encoder = VilbertEncoder
    prepare, form = staticmethod(located), LocatedBoxes

    model: _VilbertPretraining

    def build(self, tensors: dict[str, Tensor]) -> _VilbertPretraining:
        torch.manual_seed(self.training.seed)  # of the heads
        task = self.config["task"]
        model = _VilbertPretraining(self.config["architecture"], task, self.training.dropout)
        model.vilbert.load_state_dict(tensors)
        self.tasks = int(task is not None)
        return model

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """ViLBERT's own, without the heads."""
        return {name[len(_PART) :]: tensor for name, tensor in state.items() if name.startswith(_PART)}

    def batch(self, phase: str, number: int) -> tuple[_MaskedBatch, _Groups | None]:
        size = self.training.batch_size
        if phase == MATCHING:
            return self._masked(number, size), self._groups(number)
        return self._masked(number, CAPTIONS_PER_GROUP * size), None

    def _masked(self, number: int, size: int) -> _MaskedBatch:
        words, images, rng = self.masked(number, size, _SHOWN)
        masked = [mask_boxes(image, self.training.masked_boxes, rng) for image in images]
        hidden = torch.from_numpy(np.concatenate([rows for _, rows in masked]))
        features = torch.from_numpy(np.concatenate([image.features for image in images]))[hidden]
        return _MaskedBatch(words, [image for image, _ in masked], features, hidden.nonzero()[:, 0])

    def _groups(self, number: int) -> _Groups:
        others, foils = 2 + self.training.random_negatives, self.training.foils
        groups, images = self.groups(number)
        kept = [*range(others), *range(len(groups[0].kinds) - foils, len(groups[0].kinds))]
        kinds = [[group.kinds[place] for place in kept] for group in groups]
        ids = self.tokenizer.encode([group.captions[place] for group in groups for place in kept]).ids
        words = [own[1:-1] if own[-1] == self.tokenizer.end else own[1:] for own in ids]
        flat = [kind for group in kinds for kind in group]
        right = [
            _right_words(own, words[place - place % len(kept)], kind)
            for place, (own, kind) in enumerate(zip(words, flat, strict=True))
        ]
        return _Groups(ids, images, np.array(kinds), right)

    def losses(self, phase: str, batch: tuple[_MaskedBatch, _Groups | None]) -> tuple[Tensor, ReadTerms]:
        masked, groups = batch
        terms = self._masked_losses(masked)
        loss = torch.stack([*terms.values()]).sum()
        if groups is None:
            return loss, lambda: scalar_terms(terms)
        by_word, matching, right = self._matching_losses(groups)
        terms["right_words"] = right
        kinds = groups.kinds
        return loss + (matching + right), lambda: {**scalar_terms(terms), **terms_of(by_word, kinds)}

    def _masked_losses(self, batch: _MaskedBatch) -> dict[str, Tensor]:
        model, device = self.model, self.model.vilbert.device
        _, text, regions = model(batch.words.texts, batch.images)
        # Each text has as many more rows, of task tokens behind its first token.
        own = np.searchsorted(np.cumsum(list(map(len, batch.words.texts))), batch.words.places, side="right")
        rows = torch.from_numpy(np.array(batch.words.places) + self.tasks * (own + 1)).to(device)
        tokens = torch.tensor(batch.words.tokens, device=device)
        table = model.vilbert.embeddings.word_embeddings.weight
        words = model.word_head(torch.cat(text)[rows]) @ table.T + model.word_bias
        losses = {"words": functional.cross_entropy(words, tokens)}
        if len(batch.features):
            states = torch.cat(regions)[on_device(batch.hidden, device)]
            features = on_device(batch.features, device)  # predicted at mean 0 and deviation 1
            target = functional.layer_norm(features, features.shape[1:])
            losses["boxes"] = functional.mse_loss(model.region_head(states).float(), target)
        return losses

    def _matching_losses(self, groups: _Groups) -> tuple[Tensor, Tensor, Tensor]:
        """Of each caption by its words; the loss of matching; that of right and wrong words."""
        model, size, first = self.model, groups.kinds.shape[1], 1 + self.tasks
        rows, text, regions = model(groups.texts, groups.images)
        words = [own[first : first + len(right)] for own, right in zip(rows, groups.right, strict=True)]
        # No and yes of two questions: does the caption match the image, and does the word itself?
        caption, word = model.word_matching_head(torch.cat(words)).float().split(2, dim=-1)
        counts = torch.tensor([len(own) for own in words])
        owner = torch.arange(len(words)).repeat_interleave(counts).to(caption.device)
        each = functional.cross_entropy(caption, (owner % size == 0).long(), reduction="none")
        sums = each.new_zeros(len(words)).index_add(0, owner, each)
        by_word = (sums / counts.clamp(min=1).to(sums.device)).view(-1, size)
        pooled, visual = model.vilbert.pooled(text, regions)
        logits = model.matching_head(model.vilbert.dropout(pooled * visual))
        losses = matching_loss(logits, size) + by_word
        loss = losses[:, 0].mean() + losses[:, 1:].mean()
        truth = torch.from_numpy(np.concatenate(groups.right)).to(word.device)
        return by_word, loss, functional.cross_entropy(word, truth, ignore_index=UNKNOWN_TRUTH)


def _right_words(ids: Sequence[int], positive: Sequence[int], kind: str) -> NDArray[np.int64]:
    """Of each token 1 where it is right, 0 where it is the other word of a foil, else `UNKNOWN_TRUTH`."""
    if kind not in ("positive", FOIL):
        return np.full(len(ids), UNKNOWN_TRUTH)
    right = np.ones(len(ids), dtype=np.int64)
    if kind == FOIL:
        most = min(len(ids), len(positive))
        start = next((i for i in range(most) if ids[i] != positive[i]), most)
        behind = next((i for i in range(most - start) if ids[-1 - i] != positive[-1 - i]), most - start)
        right[start : len(ids) - behind] = 0
    return right
