"""ViLBERT's pre-training: batches of masked captions and boxes and of captions with negatives, and losses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from capeval_core.encoders.tokenizers import Ids, WordPiece
from capeval_core.encoders.vilbert import LocatedBoxes, VilbertEncoder
from capeval_core.training.masking import MaskedWords, mask_boxes, mask_id, mask_words
from capeval_core.training.objective import Terms, terms_of
from capeval_core.training.order import CaptionData
from capeval_core.training.umic import matching_loss
from capeval_core.training.vilbert import MATCHING, VilbertPretraining, VilbertTraining
from capeval_core.weights.folder import WeightsFolder

CAPTIONS_PER_GROUP = 4
"""Captions that are read with masked words per caption that is read with negatives."""
_SHOWN = 0.1
"""Share of the masked words that stay as they are."""
_PART = "vilbert."


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
    """Captions with their negatives: of each image, the positive first. kinds: (images, captions)."""

    texts: list[Ids]
    images: list[LocatedBoxes]
    kinds: np.ndarray


class VilbertObjective:
    """ViLBERT with the losses of its pre-training.

    Masked words are predicted, and the features of hidden boxes by regression. Image-text matching is read
    off the pooled streams as in the paper, and, which the paper has not, off the state of every word where
    the metric takes it: of a caption that is wrong, no word's state is that of a right one.

    Args:
        training: the settings.
        folder: ViLBERT's weights to start from.
        data: captions, their negatives and box features.
    """

    def __init__(
        self, training: VilbertTraining, folder: WeightsFolder, data: CaptionData[LocatedBoxes]
    ) -> None:
        self.training, self.data = training, data
        config = VilbertEncoder.read_config(folder)
        words, length = config["vocabulary"], min(config["context_length"], training.caption_length)
        self.tokenizer = WordPiece(words, length, lowercase=config["lowercase"], keep_end=False)
        self.mask = mask_id(words)
        self.before = 1 + (config["task"] is not None)  # rows of a text before its words
        torch.manual_seed(training.seed)
        self.model = VilbertPretraining(config["architecture"], config["task"], training.dropout)
        self.model.vilbert.load_state_dict({n: t.float() for n, t in folder.tensors().items()})

    def begin(self, phase: str) -> None:
        pass

    def batch(self, phase: str, number: int) -> tuple[MaskedBatch, Groups | None]:
        return self._masked(number), self._groups(number) if phase == MATCHING else None

    def _masked(self, number: int) -> MaskedBatch:
        data, training = self.data, self.training
        chosen = [index for _, index in data.chosen(number, CAPTIONS_PER_GROUP * data.size)]
        rng = np.random.default_rng([data.seed, 2, number])
        texts = self.tokenizer.encode([data.captions[index] for index in chosen]).ids
        words = mask_words(texts, training.masked, self.mask, rng, shown=_SHOWN)
        images = data.regions(chosen)
        masked = [mask_boxes(image, training.masked_boxes, rng) for image in images]
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
        return Groups(self.tokenizer.encode(texts).ids, images, np.array(kinds))

    def losses(self, phase: str, batch: tuple[MaskedBatch, Groups | None]) -> tuple[Tensor, Terms]:
        masked, groups = batch
        loss, terms = self._masked_loss(masked)
        if groups is None:
            return loss, terms
        matching, more = self._matching_loss(groups)
        return loss + matching, {**terms, **more}

    def _masked_loss(self, batch: MaskedBatch) -> tuple[Tensor, Terms]:
        model, device = self.model, self.model.vilbert.device
        outputs = model(batch.words.texts, batch.images)
        rows = torch.tensor(rows_of_words(batch.words, self.before - 1), device=device)
        words = model.word_loss(
            torch.cat(outputs.text)[rows], torch.tensor(batch.words.tokens, device=device)
        )
        terms: Terms = {"words": (words.item(), 1)}
        if not len(batch.features):
            return words, terms
        states = torch.cat(outputs.regions)[batch.hidden.to(device)]
        boxes = model.region_loss(states, batch.features.to(device))
        return words + boxes, {**terms, "boxes": (boxes.item(), 1)}

    def _matching_loss(self, groups: Groups) -> tuple[Tensor, Terms]:
        model, size = self.model, groups.kinds.shape[1]
        outputs = model(groups.texts, groups.images)
        pooled = matching_loss(model.matching_logits(outputs), size)
        words = self._word_matching(outputs.words, groups.texts, size)
        losses = pooled + words
        loss = losses[:, 0].mean() + losses[:, 1:].mean()
        return loss, terms_of(words, groups.kinds)

    def _word_matching(self, states: list[Tensor], texts: list[Ids], size: int) -> Tensor:
        """(images, size) mean over the words of each text of the loss of matching read off a word."""
        spans = [
            rows[self.before : len(rows) - (ids[-1] == self.tokenizer.end)]
            for rows, ids in zip(states, texts, strict=True)
        ]
        counts = torch.tensor([len(rows) for rows in spans])
        owner = torch.arange(len(spans)).repeat_interleave(counts).to(states[0].device)
        truth = (owner % size == 0).long()
        logits = self.model.word_matching_head(torch.cat(spans)).float()
        losses = functional.cross_entropy(logits, truth, reduction="none")
        sums = losses.new_zeros(len(spans)).index_add(0, owner, losses)
        return (sums / counts.clamp(min=1).to(sums.device)).view(-1, size)

    def weights(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name[len(_PART) :]: tensor for name, tensor in state.items() if name.startswith(_PART)}


def rows_of_words(words: MaskedWords, tasks: int) -> list[int]:
    """The rows of masked words among those of all texts, each with `tasks` task tokens behind its first."""
    ends = np.cumsum([len(ids) for ids in words.texts])
    texts = np.searchsorted(ends, words.places, side="right")
    rows: list[int] = (np.array(words.places) + tasks * (texts + 1)).tolist()
    return rows
