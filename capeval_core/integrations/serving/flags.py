"""What a caption has that a policy learns when it games a reward: marks beside a score that change no number.

Each mark has a rule that its reader can check by hand; none is a judgement. They are for dashboards and for
brakes of a trainer's own, since what is a trick in one training is a wanted style in another.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
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
    count = len(words) - REPEATED_WORDS + 1
    if count < 2:
        return 0.0
    sequences = Counter(tuple(words[start : start + REPEATED_WORDS]) for start in range(count))
    return (count - len(sequences)) / count


def quotes(words: Sequence[str], prompt: Sequence[str]) -> bool:
    """Whether a text has so many words of a prompt in a row."""
    if len(words) < QUOTED_WORDS or len(prompt) < QUOTED_WORDS:
        return False
    of_prompt = {
        tuple(prompt[start : start + QUOTED_WORDS]) for start in range(len(prompt) - QUOTED_WORDS + 1)
    }
    return any(
        tuple(words[start : start + QUOTED_WORDS]) in of_prompt
        for start in range(len(words) - QUOTED_WORDS + 1)
    )


def letter_share(text: str) -> float:
    """The share of letters, with their accents, among the characters that are not blanks."""
    characters = [character for character in text if not character.isspace()]
    letters = sum(unicodedata.category(character)[0] in "LM" for character in characters)
    return letters / max(len(characters), 1)
