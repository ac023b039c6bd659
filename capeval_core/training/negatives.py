"""Negative captions: what UMIC is trained to score below the captions of an image.

Five kinds, from the captions that people wrote: words substituted, a caption of another image, a caption of a
similar image ("hard"), words repeated or removed, and words in another order. The functions here make them
from tokens and tags; `capeval_core.training.groups` makes the groups of a training set with them.

Source: Lee et al., "UMIC: An Unreferenced Metric for Image Captioning via Contrastive Learning", ACL 2021,
https://arxiv.org/abs/2106.14019, section 3.2. Where its released code leaves the original caption unchanged,
writes an empty one or never ends, these functions draw from the same law, given that the negative differs
from the original and holds a word; where no such negative exists they return None.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from scipy.special import gammaln

from capeval_core.training.tags import is_content

SUBSTITUTED = 0.30
"""Share of the verbs, nouns and adjectives that are substituted, as in the paper; its code draws 0.29."""
TOUCHED = 0.30
"""Share of the verbs, nouns and adjectives that are repeated or removed."""
REPEATED = 0.5
"""Share of those that are repeated; the others are removed."""
SHUFFLED = 0.5
"""Share of the captions of another word order that are shuffled; of the others words are left out."""
KEPT = 0.7
"""Share of the words that are kept where words are left out."""
TRIES = 64
"""Draws before what cannot fail is taken; its chance is below 1e-15 for every caption."""


class WordTable:
    """Words by tag with their counts, from which substitutes are drawn.

    Args:
        counts: tag -> word -> count, at least 1 (`capeval_core.training.tags.tag_word_counts`).

    >>> table = WordTable({"NN": {"cat": 3, "dog": 1}, "VBZ": {"is": 9}})
    >>> table.draw("NN", "cat", np.random.default_rng(0))
    'dog'
    >>> table.has_other("VBZ", "is"), table.has_other("JJ", "red")
    (False, False)
    """

    def __init__(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        # Words that differ in case only stand side by side, so that all of them are passed over at once.
        self._words = {
            tag: sorted(words, key=lambda word: (word.casefold(), word)) for tag, words in counts.items()
        }
        self._ends = {
            tag: list(accumulate(counts[tag][word] for word in words)) for tag, words in self._words.items()
        }
        self._spans: dict[str, dict[str, tuple[int, int]]] = {}
        for tag, words in self._words.items():
            spans = self._spans.setdefault(tag, {})
            for word, end in zip(words, self._ends[tag], strict=True):
                start = spans.get(word.casefold(), (end - counts[tag][word], 0))[0]
                spans[word.casefold()] = start, end

    def has_other(self, tag: str, word: str) -> bool:
        """Whether there is another word of this tag, not counting other cases of the word."""
        start, end = self._span(tag, word)
        return tag in self._ends and end - start < self._ends[tag][-1]

    def draw(self, tag: str, word: str, rng: np.random.Generator) -> str:
        """A word of this tag other than `word`, by frequency; ValueError where there is none."""
        if not self.has_other(tag, word):
            raise ValueError(f"no word of tag {tag!r} is there but {word!r}")
        start, end = self._span(tag, word)
        ends = self._ends[tag]
        # Each word is a stretch of 0 ... total, as long as its count; the original's stretch is jumped over.
        place = int(rng.integers(ends[-1] - (end - start)))
        return self._words[tag][bisect_right(ends, place if place < start else place + end - start)]

    def _span(self, tag: str, word: str) -> tuple[int, int]:
        return self._spans.get(tag, {}).get(word.casefold(), (0, 0))


def substitution(
    tokens: Sequence[str],
    tags: Sequence[str],
    table: WordTable,
    rng: np.random.Generator,
    *,
    probability: float = SUBSTITUTED,
) -> list[str] | None:
    """The caption with verbs, nouns or adjectives substituted by words of exactly the same tag, by frequency.

    Each word that has a substitute is substituted with the same probability, independently, given that
    at least one is. The original word is never its own substitute, in any case of letters.

    Args:
        tokens, tags: of the caption, in order, equally many.
        table: words by tag; the tags that it lacks have no substitutes.
        probability: of each word, more than 0 and less than 1.

    Returns:
        As many tokens; None for a caption of which no word can be substituted.

    >>> table = WordTable({"NN": {"cat": 3, "dog": 1}, "JJ": {"red": 1, "old": 1}})
    >>> substitution(["an", "old", "cat"], ["DT", "JJ", "NN"], table, np.random.default_rng(1))
    ['an', 'old', 'dog']
    >>> substitution(["over", "there"], ["IN", "RB"], table, np.random.default_rng(0)) is None
    True
    """
    eligible = [
        index
        for index, (token, tag) in enumerate(zip(tokens, tags, strict=True))
        if is_content(tag) and table.has_other(tag, token)
    ]
    if not eligible:
        return None
    negative = list(tokens)
    for index in random_subset(eligible, probability, rng):
        negative[index] = table.draw(tags[index], tokens[index], rng)
    return negative


def repetition_removal(
    tokens: Sequence[str], tags: Sequence[str], rng: np.random.Generator
) -> list[str] | None:
    """The caption with verbs, nouns or adjectives doubled or removed, at equal odds.

    Each of these words is touched with a probability of 0.30, independently, given that at least one is, that
    the caption changes and that a word is left.

    Returns:
        The tokens; None for a caption without verb, noun or adjective.

    >>> rng = np.random.default_rng(0)
    >>> [repetition_removal(["a", "dog"], ["DT", "NN"], rng) for _ in range(3)]
    [['a', 'dog', 'dog'], ['a', 'dog', 'dog'], ['a']]
    """
    eligible = [index for index, tag in enumerate(tags) if is_content(tag)]
    if not eligible:
        return None
    original = list(tokens)
    for _ in range(TRIES):
        touched = random_subset(eligible, TOUCHED, rng)
        copies = {
            index: 2 if draw < REPEATED else 0
            for index, draw in zip(touched, rng.random(len(touched)).tolist(), strict=True)
        }
        negative = [token for index, token in enumerate(tokens) for _ in range(copies.get(index, 1))]
        if negative and not _same(negative, original):
            return negative
    return [*original[: touched[0] + 1], *original[touched[0] :]]


def word_order(tokens: Sequence[str], rng: np.random.Generator) -> list[str] | None:
    """The caption shuffled, or, half of the times, with words left out.

    Where words are left out, each one of any tag is kept with a probability of 0.7, independently, given that
    at least one is left out and at least one is kept. A shuffled caption differs from the original; where all
    words are equal, so that none can, words are always left out.

    Returns:
        The tokens; None for a caption of a single word.

    >>> rng = np.random.default_rng(0)
    >>> [word_order(["a", "dog", "runs"], rng) for _ in range(3)]
    [['dog', 'runs'], ['a', 'runs', 'dog'], ['a', 'dog']]
    """
    if len(tokens) < 2:
        return None
    original = list(tokens)
    if rng.random() < SHUFFLED and not _same(original, [original[0]] * len(original)):
        for _ in range(TRIES):
            negative = [original[index] for index in rng.permutation(len(original)).tolist()]
            if not _same(negative, original):
                return negative
        return [*original[1:], original[0]]
    lost = set(random_subset(range(len(original)), 1 - KEPT, rng, most=len(original) - 1))
    return [token for index, token in enumerate(original) if index not in lost]


def random_subset(
    items: Sequence[int], probability: float, rng: np.random.Generator, *, most: int | None = None
) -> list[int]:
    """Items drawn independently with one probability, given that at least one and at most `most` are.

    Exact and without repeated draws: first how many, by the truncated binomial law, then which, uniformly.
    For one item of k this is probability / (1 - (1 - probability)^k).

    Args:
        items: at least one.
        most: None: all of them.

    Returns:
        The items in their order.

    >>> random_subset(range(5), 0.3, np.random.default_rng(1))
    [0, 4]
    """
    most = len(items) if most is None else most
    number = 1 + bisect_right(_count_law(len(items), probability, most), rng.random())
    if number == 1:
        return [items[int(rng.integers(len(items)))]]
    return [items[index] for index in sorted(rng.permutation(len(items))[:number].tolist())]


@lru_cache(maxsize=4096)
def _count_law(trials: int, probability: float, most: int) -> tuple[float, ...]:
    """P(1), P(1 or 2), ... of a binomial count, given that it is from 1 to `most`; without the last, 1."""
    if not 0 < probability < 1:
        raise ValueError(f"probability={probability}: expected more than 0 and less than 1")
    count = np.arange(1, most + 1)
    log = count * np.log(probability) + (trials - count) * np.log1p(-probability)
    log -= gammaln(count + 1) + gammaln(trials - count + 1)
    weights = np.exp(log - log.max())
    return tuple((np.cumsum(weights) / weights.sum())[:-1].tolist())


def _same(tokens: Sequence[str], others: Sequence[str]) -> bool:
    """Whether two captions have the same words, whatever their case."""
    return len(tokens) == len(others) and all(
        token == other or token.casefold() == other.casefold()
        for token, other in zip(tokens, others, strict=True)
    )


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
