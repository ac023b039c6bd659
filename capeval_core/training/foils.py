"""One-word foils: captions in which one word is replaced by another that fits in its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from capeval_core.training.negatives import WordTable
from capeval_core.training.tags import is_content

NUMBERS, PREPOSITIONS = "CD", "IN"
BEFORE = 2
"""Words before a word that tell its place; of those behind, one does."""
_SEPARATOR = "\t"


def place_table(tagged: Iterable[Sequence[tuple[str, str]]]) -> WordTable:
    """Words by place: their tag, the two words before and the one behind. Places of one word are left out.

    >>> table = place_table([[("a", "DT"), (colour, "JJ"), ("star", "NN")] for colour in ("red", "blue")])
    >>> one_word_foil(["a", "red", "star"], ["DT", "JJ", "NN"], table, np.random.default_rng(0))
    ['a', 'blue', 'star']
    """
    counts: dict[str, Counter[str]] = {}
    for caption in tagged:
        tokens, tags = [token for token, _ in caption], [tag for _, tag in caption]
        for place, token in enumerate(tokens):
            if _replaceable(tags[place]):
                counts.setdefault(_place(tokens, tags, place), Counter())[token] += 1
    return WordTable({place: words for place, words in counts.items() if len(words) > 1})


def one_word_foil(
    tokens: Sequence[str], tags: Sequence[str], table: WordTable, rng: np.random.Generator
) -> list[str] | None:
    """The caption with one verb, noun, adjective, number or preposition replaced.

    The other word stands between the same words elsewhere, with the same tag, and is drawn by frequency. It
    may mean the same; of many foils few are true.

    Args:
        tokens, tags: of the caption, in order, equally many.
        table: of `place_table`.

    Returns:
        As many tokens; None for a caption of which no word can be replaced.
    """
    places = {
        index: _place(tokens, tags, index)
        for index, tag in enumerate(tags)
        if _replaceable(tag) and table.has_other(_place(tokens, tags, index), tokens[index])
    }
    if not places:
        return None
    index = list(places)[int(rng.integers(len(places)))]
    foil = list(tokens)
    foil[index] = table.draw(places[index], tokens[index], rng)
    return foil


def _replaceable(tag: str) -> bool:
    return is_content(tag) or tag in (NUMBERS, PREPOSITIONS)


def _place(tokens: Sequence[str], tags: Sequence[str], index: int) -> str:
    before, after = tokens[max(index - BEFORE, 0) : index], tokens[index + 1 : index + 2]
    return _SEPARATOR.join([tags[index], *map(str.casefold, before), "", *map(str.casefold, after)])
