"""What a caption has that a policy learns when it games a reward: marks beside a score that change no number.

Each mark has a rule that its reader can check by hand; none is a judgement. They are for dashboards and for
brakes of a trainer's own, since what is a trick in one training is a wanted style in another.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

REPEATED_WORDS = 3
"""Words of the sequences that are counted as repeated."""
REPEATED_SHARE = 0.25
"""From this share of its sequences that came before in the caption on, a caption is `repetitive`."""
QUOTED_WORDS = 8
"""Words in a row of the prompt from which on a caption is `quotes_prompt`."""
LETTER_SHARE = 0.5
"""Below this share of letters among what is not a blank a caption is `not_text`."""
FULLY_READ = 1.0
"""Below this coverage a caption is `unread`: the metric does not see its end."""

FLAGS = ("repetitive", "unread", "quotes_prompt", "not_text", "empty")


def flags_of(caption: str, *, coverage: float | None = None, prompt: str | None = None) -> list[str]:
    """The marks of a caption, in the order of `FLAGS`.

    coverage: the share of its words that the metric read, None where it reads all.

    >>> flags_of("a dog a dog a dog a dog a dog a dog")
    ['repetitive']
    >>> flags_of("Describe the picture in one short English sentence, please.",
    ...          prompt="Describe the picture in one short English sentence, please.")
    ['quotes_prompt']
    """
    words = caption.lower().split()
    flags = []
    if repeated_share(words) >= REPEATED_SHARE:
        flags.append("repetitive")
    if coverage is not None and coverage < FULLY_READ:
        flags.append("unread")
    if prompt is not None and quotes(words, prompt.lower().split()):
        flags.append("quotes_prompt")
    if caption.strip() and letter_share(caption) < LETTER_SHARE:
        flags.append("not_text")
    if not caption.strip():
        flags.append("empty")
    return flags


def repeated_share(words: Sequence[str]) -> float:
    """The share of a text's sequences of three words that came before in it; 0 of fewer than four words."""
    sequences = sequences_of(words, REPEATED_WORDS)
    if len(sequences) < 2:
        return 0.0
    return (len(sequences) - len(set(sequences))) / len(sequences)


def quotes(words: Sequence[str], prompt: Sequence[str]) -> bool:
    """Whether a text has so many words of a prompt in a row."""
    of_prompt = set(sequences_of(prompt, QUOTED_WORDS))
    return not of_prompt.isdisjoint(sequences_of(words, QUOTED_WORDS))


def sequences_of(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    """The sequences of so many words of a text, in order; none of a shorter one."""
    starts = range(len(words) - length + 1)
    return [tuple(words[start : start + length]) for start in starts]


def letter_share(text: str) -> float:
    """The share of letters, with their accents, among the characters that are not blanks."""
    characters = [character for character in text if not character.isspace()]
    letters = 0
    for character in characters:
        # L: letters of any script. M: marks, without which Hindi and Thai would be half of something else.
        letters += unicodedata.category(character)[0] in "LM"
    return letters / max(len(characters), 1)
