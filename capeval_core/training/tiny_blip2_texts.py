"""The texts that the tiny BLIP-2 matches with each image of a step, and which of their words are false."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from capeval_core.encoders.tokenizers import UNKNOWN
from capeval_core.synthetic.scenes import COLOURS, SHAPES
from capeval_core.training.batches import Captions
from capeval_core.training.lessons import LONGEST, Bools, Ints, Lessons


class Texts(NamedTuple):
    """T texts for each of B images, those that are true first."""

    ids: Ints
    """(B, T, longest): zeros behind."""
    lengths: Ints
    """(B, T): tokens that count; 0 where there is no text."""
    true: Bools
    """(B, T)"""
    false_words: Bools
    """(B, T, longest): the tokens that make a caption false."""
    told: Bools
    """(B, T): whether it is known which tokens these are."""


def choose_texts(
    lessons: Lessons, captions: Captions, words: list[str], spoilt_words: float, rng: np.random.Generator
) -> Texts:
    """Texts for every image: two true captions, foils, a spoilt caption, another scene's.

    The spoilt one has by the share `spoilt_words` an unknown word of `words`; else its words are in disorder.
    """
    rows, wording, chosen = captions.rows, captions.wording, captions.foils
    batch = len(rows)
    lengths = lessons.lengths[rows]
    count = 2 + chosen.shape[1] + 2
    ids = np.zeros((batch, count, LONGEST), np.int64)
    sizes = np.zeros((batch, count), np.int64)
    false_words = np.zeros((batch, count, LONGEST), np.bool_)
    told = np.ones((batch, count), np.bool_)
    told[:, -1] = False
    own = lessons.tokens[rows]
    ids[:, 0], sizes[:, 0] = own[:, wording, 0], lengths[:, wording, 0]
    ids[:, 1], sizes[:, 1] = own[:, 1 - wording, 0], lengths[:, 1 - wording, 0]
    each = np.arange(batch)[:, None]
    ids[:, 2:-2], sizes[:, 2:-2] = own[each, wording, chosen], lengths[each, wording, chosen]
    false_words[:, 2:-2] = (ids[:, 2:-2] != ids[:, :1]) & (sizes[:, 2:-2] > 0)[:, :, None]
    content = [words.index(word) for word in (*COLOURS, *SHAPES)]
    for row in range(batch):
        spoilt, length = ids[row, 0].copy(), int(sizes[row, 0])
        if rng.random() < spoilt_words:
            place = int(rng.choice(np.flatnonzero(np.isin(spoilt, content))))
            spoilt[place], false_words[row, -2, place] = words.index(UNKNOWN), True
        else:
            spoilt[1 : length - 1] = rng.permutation(spoilt[1 : length - 1])
            told[row, -2] = False
        ids[row, -2], sizes[row, -2] = spoilt, length
        away = np.flatnonzero(~captions.alike[row])
        if len(away):
            other = int(rng.choice(away))
            ids[row, -1], sizes[row, -1] = own[other, wording, 0], lengths[other, wording, 0]
    true = np.zeros((batch, count), np.bool_)
    true[:, :2] = True
    return Texts(ids, sizes, true, false_words, told)
