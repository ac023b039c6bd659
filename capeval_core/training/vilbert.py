"""ViLBERT's fine-tuning: whether a caption, and each of its words, matches an image.

Image-text matching is of Lu, Batra, Parikh, Lee: ViLBERT: Pretraining Task-Agnostic Visiolinguistic
Representations for Vision-and-Language Tasks, NeurIPS 2019, https://arxiv.org/abs/1908.02265, section 3.2.
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

from capeval_core.encoders.tokenizers import Ids
from capeval_core.encoders.vilbert import LocatedBoxes, Vilbert, VilbertEncoder, located
from capeval_core.options import option
from capeval_core.training.negatives import FOIL
from capeval_core.training.regions import RegionObjective, RegionTraining, matching_loss, terms_of
from capeval_core.training.trainer import Phase, ReadTerms, scalar_terms

MATCHING = "matching"
"""The phase of the training."""
UNKNOWN_TRUTH = -1  # of a word in a caption of another image: it may be right or wrong
_HEAD_SPREAD = 0.02  # deviation of the heads' first weights
_VILBERT_PREFIX = "vilbert."


@dataclass(frozen=True, kw_only=True)
class VilbertTraining(RegionTraining):
    """Options of ViLBERT's fine-tuning."""

    name: ClassVar = "vilbert"
    metric: ClassVar = "vilbertscore"

    foils: int = option(
        3, "captions with one word replaced by another that fits in its place, per caption", minimum=0
    )
    steps: int = option(100_000, "steps of image-text matching", minimum=1)
    learning_rate: float = option(1e-4, "the highest learning rate", minimum=0)
    weight_decay: float = option(0.01, "decay of the weights", minimum=0)
    clip: float = option(1.0, "largest norm of the gradient", minimum=1e-6)

    def schedule(self) -> list[Phase]:
        return [Phase(MATCHING, self.steps, self.learning_rate)]


class _VilbertWithHeads(nn.Module):
    """ViLBERT with heads of matching, which are not among the weights that the metric opens."""

    def __init__(self, architecture: dict[str, Any], task: int | None, dropout: float) -> None:
        super().__init__()
        self.task = task
        self.vilbert = Vilbert(architecture, dropout)
        self.matching_head = nn.Linear(architecture["co_attention"]["hidden_size"], 2)
        # No and yes of two questions: does the caption match the image, and does the word itself?
        self.word_matching_head = nn.Linear(architecture["text"]["hidden_size"], 4)
        for head in (self.matching_head, self.word_matching_head):
            nn.init.normal_(head.weight, std=_HEAD_SPREAD)
            nn.init.zeros_(head.bias)

    def forward(
        self, texts: Sequence[Ids], images: Sequence[LocatedBoxes]
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Tokens after the last co-attention, where the metric takes them; tokens and boxes at the end."""
        device = self.vilbert.device
        feature_rows = []
        location_rows = []
        box_counts = []
        for image in images:
            feature_rows.append(image.features)
            location_rows.append(image.locations)
            box_counts.append(len(image.locations))
        features = torch.from_numpy(np.concatenate(feature_rows)).to(device)  # (boxes of all, width)
        locations = torch.from_numpy(np.concatenate(location_rows)).to(device)  # (boxes of all, 5)
        # Each image goes through the layers below the first co-attention once, whatever its captions.
        regions = self.vilbert.lower_regions(features, locations, box_counts)
        lower = self.vilbert.lower_texts(texts, self.task)
        texts_per_image = len(texts) // len(images)
        pairs = [(text, text // texts_per_image) for text in range(len(texts))]
        *_, (words, _), (text_states, visual_states) = self.vilbert.states(lower, regions, pairs)
        return words, text_states, visual_states


class _Groups(NamedTuple):
    """Captions with negatives, the positive of each group first."""

    texts: list[Ids]
    images: list[LocatedBoxes]
    kinds: NDArray[Any]  # (images, captions of each)
    truths: list[NDArray[np.int64]]  # of each caption's words, see `_word_truths`


class VilbertObjective(RegionObjective):
    """ViLBERT with the loss of image-text matching.

    Beyond the paper, matching is also read off every word, where the metric takes its features: whether the
    caption matches, and, of right captions and foils, whether the word itself does.
    """

    encoder = VilbertEncoder
    prepare = staticmethod(located)
    form = LocatedBoxes

    model: _VilbertWithHeads

    def build(self, tensors: dict[str, Tensor]) -> _VilbertWithHeads:
        torch.manual_seed(self.training.seed)  # of the heads
        task = self.config["task"]
        model = _VilbertWithHeads(self.config["architecture"], task, self.training.dropout)
        model.vilbert.load_state_dict(tensors)
        self.task_tokens = int(task is not None)
        return model

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of ViLBERT itself, without the heads."""
        weights = {}
        for name, tensor in state.items():
            if name.startswith(_VILBERT_PREFIX):
                weights[name.removeprefix(_VILBERT_PREFIX)] = tensor
        return weights

    def batch(self, phase: str, number: int) -> _Groups:
        groups, images = self.groups(number)
        # The positive, captions of other images, and the foils; without UMIC's changed captions in between.
        size = len(groups[0].kinds)
        unchanged = 2 + self.training.random_negatives  # with the hard one
        places = [*range(unchanged), *range(size - self.training.foils, size)]
        captions: list[str] = []
        kinds: list[str] = []
        for group in groups:
            for place in places:
                captions.append(group.captions[place])
                kinds.append(group.kinds[place])
        texts = self.tokenizer.encode(captions).ids
        words = list(map(self._without_marks, texts))
        truths = []
        for index, kind in enumerate(kinds):
            positive = words[index - index % len(places)]  # the first of the same group
            truths.append(_word_truths(words[index], positive, kind))
        return _Groups(texts, images, np.array(kinds).reshape(len(groups), -1), truths)

    def _without_marks(self, ids: Ids) -> Ids:
        """The words of a text; one that was cut has no mark of its end."""
        return ids[1:-1] if ids[-1] == self.tokenizer.end else ids[1:]

    def losses(self, phase: str, batch: _Groups) -> tuple[Tensor, ReadTerms]:
        group_size = batch.kinds.shape[1]
        word_states, text_states, visual_states = self.model(batch.texts, batch.images)
        by_word, right_words = self._word_losses(batch, word_states)
        pooled_text, pooled_image = self.model.vilbert.pooled(text_states, visual_states)
        logits = self.model.matching_head(self.model.vilbert.dropout(pooled_text * pooled_image))
        losses = matching_loss(logits, group_size) + by_word
        # A positive weighs as much as all of its negatives.
        matching = losses[:, 0].mean() + losses[:, 1:].mean()
        terms = {"right_words": right_words}
        return matching + right_words, lambda: {**scalar_terms(terms), **terms_of(by_word, batch.kinds)}

    def _word_losses(self, batch: _Groups, states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(groups, size) losses of matching, read off the words; the loss of right and wrong words."""
        first = 1 + self.task_tokens  # row of a text's first word, behind the mark and the task's token
        word_rows = []
        for rows, truths_of_caption in zip(states, batch.truths, strict=True):
            word_rows.append(rows[first : first + len(truths_of_caption)])
        counts = torch.tensor([len(rows) for rows in batch.truths])
        logits = self.model.word_matching_head(torch.cat(word_rows)).float()  # (words of all, 4)
        caption_logits, word_logits = logits.split(2, dim=-1)
        group_size = batch.kinds.shape[1]
        caption_of_word = torch.arange(len(word_rows)).repeat_interleave(counts).to(logits.device)
        matches = (caption_of_word % group_size == 0).long()
        losses = functional.cross_entropy(caption_logits, matches, reduction="none")
        # The mean over the words of each caption, so that long captions weigh as much as short ones.
        sums = losses.new_zeros(len(word_rows)).index_add(0, caption_of_word, losses)
        by_word = (sums / counts.clamp(min=1).to(sums.device)).view(-1, group_size)
        truths = torch.from_numpy(np.concatenate(batch.truths)).to(logits.device)
        return by_word, functional.cross_entropy(word_logits, truths, ignore_index=UNKNOWN_TRUTH)


def _word_truths(ids: Sequence[int], positive: Sequence[int], kind: str) -> NDArray[np.int64]:
    """1 for each right token, 0 where it is the other word of a foil, else `UNKNOWN_TRUTH`."""
    # Of a caption of another image some words may be right.
    if kind not in ("positive", FOIL):
        return np.full(len(ids), UNKNOWN_TRUTH)
    truths = np.ones(len(ids), dtype=np.int64)
    if kind == FOIL:
        # The changed word, of one or several tokens, lies between the longest common beginning and end:
        #
        #     positive   a dog sit ##s on grass
        #     foil       a dog jump ##ed on grass
        #     truths     1  1   0    0   1   1
        shorter = min(len(ids), len(positive))
        start = 0
        while start < shorter and ids[start] == positive[start]:
            start += 1
        end = 0
        while end < shorter - start and ids[-1 - end] == positive[-1 - end]:
            end += 1
        truths[start : len(ids) - end] = 0
    return truths
