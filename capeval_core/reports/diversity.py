"""Diversity of captions: a captioner that writes one safe sentence for every image may score well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from capeval_core.phrases.ptb import shared_words


@dataclass(frozen=True)
class Diversity:
    """What a set of captions repeats, and how long they are.

    captions: their number. distinct: how many differ in words. words: the mean number of words.
    distinct_1, distinct_2: distinct words, and pairs of neighbouring words, divided by the number of all of
    them in the set (Li et al., 2016); they fall as a set grows, so compare sets of one size.
    from_training: the share whose words are those of a training caption; None: no training captions.
    truncated: the share that a metric's network read in part, from 0 to 1.
    """

    captions: int
    distinct: int
    words: float
    distinct_1: float
    distinct_2: float
    truncated: float
    from_training: float | None = None

    def numbers(self) -> dict[str, float]:
        """Values by name, for logs; `distinct` as a share of the captions."""
        numbers = {
            "captions_distinct": self.distinct / max(self.captions, 1),
            "caption_words": self.words,
            "distinct_1": self.distinct_1,
            "distinct_2": self.distinct_2,
            "captions_truncated": self.truncated,
        }
        if self.from_training is not None:
            numbers["captions_from_training"] = self.from_training
        return numbers

    def __str__(self) -> str:
        """Values in a line, for readers; `truncated` has a line of its own wherever this is shown."""
        text = (
            f"{self.distinct:,} distinct, {self.words:.1f} words on average, "
            f"{self.distinct_1:.1%} of words and {self.distinct_2:.1%} of word pairs distinct"
        )
        if self.from_training is not None:
            text += f", {self.from_training:.1%} equal a training caption"
        return text


def diversity(
    captions: Sequence[str], training_captions: Iterable[str] | None = None, *, truncated: int = 0
) -> Diversity:
    """Count what captions repeat. Words are PTB tokens in lower case, without punctuation.

    truncated: how many of the captions a network read in part.

    >>> found = diversity(["A dog runs.", "a dog runs", "a cat"], ["A cat"])
    >>> found.distinct, found.distinct_1, found.distinct_2, found.from_training
    (2, 0.5, 0.6, 0.3333333333333333)
    >>> print(diversity(["A dog runs.", "a dog runs", "a cat"]))
    2 distinct, 2.7 words on average, 50.0% of words and 60.0% of word pairs distinct
    >>> diversity(["a dog", "a cat"], truncated=1).numbers()["captions_truncated"]
    0.5
    """
    sentences = [_words(caption) for caption in captions]
    words: set[str] = set()
    pairs: set[tuple[str, str]] = set()
    word_count = 0
    pair_count = 0
    for sentence in sentences:
        words.update(sentence)
        pairs.update(pairwise(sentence))  # not over captions, which are no neighbours
        word_count += len(sentence)
        pair_count += max(len(sentence) - 1, 0)
    from_training = None
    if training_captions is not None:
        # Compared by words: a caption that differs in capitals or in its full stop is a copy all the same.
        of_training = {_words(caption) for caption in training_captions}
        copies = sum(sentence in of_training for sentence in sentences)
        from_training = copies / max(len(captions), 1)
    return Diversity(
        captions=len(captions),
        distinct=len(set(sentences)),
        words=word_count / max(len(captions), 1),
        distinct_1=len(words) / max(word_count, 1),
        distinct_2=len(pairs) / max(pair_count, 1),
        truncated=truncated / max(len(captions), 1),
        from_training=from_training,
    )


def _words(caption: str) -> tuple[str, ...]:
    """The words of a caption; one without any that the tokenizer reads, such as an emoji, is one word."""
    return tuple(shared_words(caption)) or tuple(caption.split())
