"""Captions to CLIP token ids, as the original CLIP code makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import regex
from open_clip.tokenizer import SimpleTokenizer

START, END = "<|startoftext|>", "<|endoftext|>"


@dataclass(frozen=True)
class Tokens:
    """Token ids of some texts.

    ids: one list per text, start and end token included, at most the context length, unpadded.
    dropped: per text, how many ids did not fit (0 if nothing was cut off).
    """

    ids: list[list[int]]
    dropped: list[int]


class ClipTokenizer:
    """CLIP's byte-level BPE over open_clip's vocabulary, with OpenAI's special markers.

    Texts are repaired (ftfy), HTML-unescaped twice, lower-cased and their white space collapsed.
    A text that is too long keeps its first `context_length - 1` ids and then the end token. The
    markers inside a text become the special ids, as in the original code (open_clip spells them
    differently, so there a caption with `<|endoftext|>` gets other ids).

    >>> ClipTokenizer().encode(["A photo depicts a dog", ""]).ids
    [[49406, 320, 1125, 29340, 320, 1929, 49407], [49406, 49407]]
    """

    def __init__(self, context_length: int = 77) -> None:
        self.context_length = context_length
        self._bpe = _openai_bpe()
        self.start: int = self._bpe.encoder[START]
        self.end: int = self._bpe.encoder[END]

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Ids of every text, in order; see `Tokens`."""
        ids, dropped = [], []
        for text in texts:
            row = [self.start, *self._bpe.encode(text), self.end]
            dropped.append(max(0, len(row) - self.context_length))
            if dropped[-1]:
                row = [*row[: self.context_length - 1], self.end]
            ids.append(row)
        return Tokens(ids, dropped)


@cache
def _openai_bpe() -> SimpleTokenizer:
    bpe = SimpleTokenizer()
    # Same merges and ids as OpenAI's tokenizer, but other spellings of the two markers.
    for ours, theirs in ((START, "<start_of_text>"), (END, "<end_of_text>")):
        bpe.encoder[ours] = bpe.encoder.pop(theirs)
        bpe.cache.pop(theirs)
        bpe.cache[ours] = ours
    bpe.decoder = {index: token for token, index in bpe.encoder.items()}
    words = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    markers = "|".join(regex.escape(marker) for marker in (START, END))
    bpe.pat = regex.compile(f"{markers}|{words}", regex.IGNORECASE)
    return bpe
