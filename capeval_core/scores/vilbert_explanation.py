"""Explanations of ViLBERTScore: which word of a caption met which word of each reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from capeval_core.matching.cosine import unit
from capeval_core.reports.explained import MatchExplanation, word_matches
from capeval_core.scores.vilbert_rows import EncodedCaption, Matcher


def explain(
    numbers: Mapping[str, Any],
    caption: EncodedCaption | None,
    references: Sequence[str],
    error: str | None,
    matcher: Matcher,
) -> MatchExplanation:
    """The explanation of a row.

    Args:
        numbers: its caption, image and parts.
        caption: its words with their features; None where there is an error.
        references: its references.
        error: why there is no score.
    """
    if caption is None:
        return MatchExplanation({**numbers, "matches": [], "best": None, "error": error})
    tokens = matcher.encoder.config["vocabulary"]
    words = [tokens[index] for index in matcher.encoder.word_ids(caption.caption.ids)]
    notes: list[dict[str, Any]] = []
    for number, (text, reference) in enumerate(zip(references, caption.references, strict=True)):
        cosines = unit(matcher.words(caption.caption)) @ unit(matcher.words(reference)).T
        others = [tokens[index] for index in matcher.encoder.word_ids(reference.ids)]
        cosines = np.clip(cosines, -1, 1)
        notes.append(
            {
                "reference": text,
                "precision": numbers["reference_precision"][number],
                "recall": numbers["reference_recall"][number],
                "f": numbers["reference_f"][number],
                "caption_matches": word_matches(words, others, cosines.tolist()),
                "reference_matches": word_matches(others, words, cosines.T.tolist()),
                "words": words,
                "reference_words": others,
                "cosines": cosines.tolist(),
            }
        )
    f = numbers["reference_f"]
    return MatchExplanation({**numbers, "matches": notes, "best": int(np.argmax(f))})
