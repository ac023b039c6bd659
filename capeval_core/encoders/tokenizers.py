"""Tokenizers: CLIP's byte-level BPE and BERT's WordPiece, with the ids of the original codes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain

import regex
from open_clip.tokenizer import SimpleTokenizer

Ids = tuple[int, ...]

PAD, UNKNOWN, START, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
_CLIP_START, _CLIP_END = "<|startoftext|>", "<|endoftext|>"


@dataclass(frozen=True)
class Tokens:
    """Token ids of some texts.

    ids: per text, start and end token included, at most the context length, unpadded.
    truncated: per text, how many ids did not fit (0 if nothing was cut off).
    """

    ids: list[Ids]
    truncated: list[int]

    @classmethod
    def of(cls, rows: Iterable[list[int]], context_length: int, *, keep_end: bool = True) -> Tokens:
        """Ids of any length; one that is too long keeps its first ids and, with `keep_end`, its last."""
        ids, truncated = [], []
        for row in rows:
            truncated.append(max(0, len(row) - context_length))
            cut = [*row[: context_length - 1], row[-1]] if keep_end else row[:context_length]
            ids.append(tuple(cut if truncated[-1] else row))
        return cls(ids, truncated)


class ClipTokenizer:
    """CLIP's byte-level BPE over open_clip's vocabulary, with OpenAI's special markers.

    Texts are repaired (ftfy), HTML-unescaped twice, lower-cased and their white space collapsed.
    A text that is too long keeps its first `context_length - 1` ids and then the end token. The
    markers inside a text become the special ids, as in the original code (open_clip spells them
    differently, so there a caption with `<|endoftext|>` gets other ids).

    >>> ClipTokenizer().encode(["A photo depicts a dog", ""]).ids
    [(49406, 320, 1125, 29340, 320, 1929, 49407), (49406, 49407)]
    """

    def __init__(self, context_length: int = 77) -> None:
        self.context_length = context_length
        self._bpe = _openai_bpe()
        self.start: int = self._bpe.encoder[_CLIP_START]
        self.end: int = self._bpe.encoder[_CLIP_END]

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Ids of every text, in order; see `Tokens`."""
        rows = ([self.start, *self._inner(text), self.end] for text in texts)
        return Tokens.of(rows, self.context_length)

    def _inner(self, text: str) -> Iterator[int]:
        """The ids between the two markers."""
        # Printable ASCII without entities is what the repairs make of it.
        plain = text.isascii() and text.isprintable() and "&" not in text
        words = self._bpe.pat.findall(text.lower() if plain else self._bpe.clean_fn(text))
        return chain.from_iterable(map(_ids_of_word, words))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each id, for readers; a part of a character is shown as a replacement character.

        >>> ClipTokenizer().pieces((49406, 518, 1929, 49407))
        ['<|startoftext|>', 'the', 'dog', '<|endoftext|>']
        """
        decoded = ([self._bpe.byte_decoder[c] for c in self._bpe.decoder[index]] for index in ids)
        return [bytes(own).decode("utf-8", errors="replace").removesuffix("</w>") for own in decoded]


@cache
def _openai_bpe() -> SimpleTokenizer:
    bpe = SimpleTokenizer()
    # Same merges and ids as OpenAI's tokenizer, but other spellings of the two markers.
    for ours, theirs in ((_CLIP_START, "<start_of_text>"), (_CLIP_END, "<end_of_text>")):
        bpe.encoder[ours] = bpe.encoder.pop(theirs)
        bpe.cache.pop(theirs)
        bpe.cache[ours] = ours
    bpe.decoder = {index: token for token, index in bpe.encoder.items()}
    words = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    markers = "|".join(regex.escape(marker) for marker in (_CLIP_START, _CLIP_END))
    bpe.pat = regex.compile(f"{markers}|{words}", regex.IGNORECASE)
    return bpe


@lru_cache(maxsize=1 << 16)
def _ids_of_word(word: str) -> Ids:
    bpe = _openai_bpe()
    symbols = "".join(bpe.byte_encoder[byte] for byte in word.encode())
    return tuple(bpe.encoder[piece] for piece in bpe.bpe(symbols).split(" "))


class WordPiece:
    """BERT's tokenizer over a vocabulary: a piece of a word per id. `lowercase`: the uncased one.

    `split`: texts are split as by `str.split` first, as UNITER's code does: control characters that Python
    counts as white space, such as a vertical tab, part words; else they vanish.

    A text that is too long keeps its first `context_length - 1` ids and then the end mark; without
    `keep_end`, its first `context_length` ids and no end mark. The marks themselves have no meaning inside a
    text: `[SEP]` there is a word between two brackets.

    Raises:
        ValueError: the vocabulary lacks one of BERT's marks, or holds a word twice.

    >>> words = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "dog", "##s", "."], context_length=6)
    >>> words.encode(["Red dogs.", "a red, red dog"])
    Tokens(ids=[(2, 4, 5, 6, 7, 3), (2, 1, 4, 1, 4, 3)], truncated=[0, 1])
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        context_length: int,
        *,
        lowercase: bool = True,
        keep_end: bool = True,
        split: bool = False,
    ) -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece as Pieces
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.pre_tokenizers import BertPreTokenizer

        ids = {word: index for index, word in enumerate(vocabulary)}
        missing = [mark for mark in (PAD, UNKNOWN, START, END) if mark not in ids]
        if missing or len(ids) != len(vocabulary):
            wrong = f"lacks {', '.join(missing)}" if missing else "holds a word twice"
            raise ValueError(f"the vocabulary is not one of BERT's: it {wrong}")
        self.context_length, self.keep_end, self.split = context_length, keep_end, split
        self.start, self.end = ids[START], ids[END]
        self._pieces = Tokenizer(Pieces(ids, unk_token=UNKNOWN, max_input_chars_per_word=100))
        self._pieces.normalizer = BertNormalizer(lowercase=lowercase)
        self._pieces.pre_tokenizer = BertPreTokenizer()

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Ids of every text, start and end mark included, in order."""
        return Tokens.of(self.whole(texts), self.context_length, keep_end=self.keep_end)

    def whole(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of every text, start and end mark included, in order; none is cut."""
        given = [" ".join(text.split()) for text in texts] if self.split else list(texts)
        pieces = self._pieces.encode_batch(given, add_special_tokens=False)
        return [[self.start, *row.ids, self.end] for row in pieces]

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return str(self._pieces.to_str(pretty=True))
