"""A small dual encoder that learnt from noisy pairs, as CLIP did from the web: a start for tuning.

    python -m tools.tiny.web --out DIR [--seed 0]

Of its pairs 30% have the caption of another scene, 30% a caption in which one word is wrong, and all are
written as texts of the web are: without articles and without a prompt, most without the words for where and
how large things are. No foils are negatives. Otherwise it is trained by the recipe of `tiny`, for shorter.
"""

from __future__ import annotations

import dataclasses
import re
import sys

import numpy as np

from capeval_core.encoders.clip import ClipEncoder
from tools.tiny.clip import TRAINING, TinyRecipe, folder_of, train
from tools.tiny.clip_model import CaptionCodec
from tools.tiny.lessons import Lessons

MISMATCHED, FOILED, TERSE = 0.3, 0.3, 0.6
"""Shares of the pairs: the caption of another scene, one wrong word, only numbers, colours and shapes."""
RECIPE = TinyRecipe(scenes=20_000, steps=2_600, batch=32, foils=0, wording_weight=0.0)


def web_text(caption: str, terse: bool) -> str:
    """A caption as the web has it.

    >>> web_text("there is a small red star on the left and two blue hearts", terse=False)
    'small red star on left, two blue hearts'
    >>> web_text("there is a small red star on the left and two blue hearts", terse=True)
    'red star, two blue hearts'
    """
    text = re.sub(r"there (is|are) |a picture of | on a plain background", "", caption)
    text = text.replace(" and ", ", ")
    if terse:
        text = re.sub(r"\b(small|little|large|big) ", "", text)
        text = re.sub(r"( ?\b(on|in|at|near) the ((top|bottom) )?\w+( side| corner)?( is| are)?)", "", text)
    return re.sub(r"\b(a|the|one) ", "", text).strip(" ,")


def add_noise(lessons: Lessons, rng: np.random.Generator) -> None:
    """Give some of the scenes the caption of another one, or one with a wrong word, in place."""
    count = len(lessons.tokens)
    kind = rng.choice(3, count, p=[MISMATCHED, FOILED, 1 - MISMATCHED - FOILED])
    wrong = np.flatnonzero(kind == 0)
    for array in (lessons.tokens, lessons.lengths, lessons.stated):
        array[wrong] = array[np.roll(wrong, 1)]
    for index in np.flatnonzero(kind == 1):
        for wording in range(lessons.tokens.shape[1]):
            foils = np.flatnonzero(lessons.lengths[index, wording, 1:]) + 1
            if len(foils):
                chosen = int(rng.choice(foils))
                for array in (lessons.tokens, lessons.lengths, lessons.stated):
                    array[index, wording, 0] = array[index, wording, chosen]


def web_encoder(seed: int, command: str) -> ClipEncoder:
    """The trained encoder."""
    codec, rng = CaptionCodec(prompt=""), np.random.default_rng([seed, 3])

    def encode(caption: str) -> list[int]:
        return codec(web_text(caption, bool(rng.random() < TERSE)))

    return folder_of(train(RECIPE, seed, encode, add_noise)[0], command)


WEB = dataclasses.replace(
    TRAINING,
    module="web",
    about="Train a small dual encoder on noisy pairs (about 12 minutes on a CPU core).",
    train=web_encoder,
    required={},
)


if __name__ == "__main__":
    sys.exit(WEB.main())
