"""ViLBERT's pre-training: batches of masked captions and boxes and of captions with negatives, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from capeval_core.encoders.tokenizers import Ids, WordPiece
from capeval_core.encoders.vilbert import LocatedBoxes, VilbertEncoder
from capeval_core.models.copies import on_device
from capeval_core.training.groups import FOIL
from capeval_core.training.masking import MaskedWords, mask_boxes, mask_id, mask_words
from capeval_core.training.objective import ReadTerms, Terms, matching_loss, scalar_terms, terms_of
from capeval_core.training.order import CaptionData
from capeval_core.training.vilbert import MATCHING, VilbertPretraining, VilbertTraining
from capeval_core.weights.folder import WeightsFolder

CAPTIONS_PER_GROUP = 4
"""Captions that are read with masked words before the matching, for each that is read during it."""
UNKNOWN_TRUTH = -1
"""Of a word in a caption of another image: it may be right or wrong."""
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
    """Captions with their negatives: those of each image together, the positive first.

    kinds: (images, captions). right: of each word of each text, 1 where it is right, 0 where it is the other
    word of a foil, else `UNKNOWN_TRUTH`.
    """

    texts: list[Ids]
    images: list[LocatedBoxes]
    kinds: NDArray[Any]
    right: list[NDArray[np.int64]]


class VilbertObjective:
    """ViLBERT with the losses of its pre-training.

    As in the paper: masked words are predicted; hidden boxes, too, their features by regression, since not
    all region encoders have classes; image-text matching is read off the pooled streams. Beyond the paper,
    matching is also read off every word, where the metric takes its features: whether the caption matches,
    and, of right captions and foils, whether the word itself does. The paper's matching alone would leave it
    to the first token to know.

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
        self.tasks = int(config["task"] is not None)
        torch.manual_seed(training.seed)  # of the heads
        self.model = VilbertPretraining(config["architecture"], config["task"], training.dropout)
        self.model.vilbert.load_state_dict({n: t.float() for n, t in folder.tensors().items()})

    def begin(self, phase: str) -> None:
        """Nothing changes between the phases."""

    def batch(self, phase: str, number: int) -> tuple[MaskedBatch, Groups | None]:
        if phase == MATCHING:
            return self._masked(number, self.data.size), self._groups(number)
        return self._masked(number, CAPTIONS_PER_GROUP * self.data.size), None

    def _masked(self, number: int, size: int) -> MaskedBatch:
        data, training = self.data, self.training
        chosen = [index for _, index in data.chosen(number, size)]
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

    def end_step(self) -> None:
        """Nothing has bounds."""

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
