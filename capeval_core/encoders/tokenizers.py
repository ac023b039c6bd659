"""Texts as token ids, by CLIP's BPE or BERT's WordPiece as in the original codes; equal texts run once."""

from __future__ import annotations

import gzip
import html
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import regex

from capeval_core.cache import FeatureCache
from capeval_core.ragged import Floats

Ids = tuple[int, ...]

PAD = "[PAD]"
UNKNOWN = "[UNK]"
START = "[CLS]"
END = "[SEP]"
_CLIP_START = "<|startoftext|>"
_CLIP_END = "<|endoftext|>"
_MERGES = 48_894
"""Merges that CLIP reads of open_clip's file; its vocabulary also has each byte twice and two markers."""
_WORD_START = "\u2581"  # SentencePiece's mark of a piece that begins a word
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORDS = regex.compile(
    rf"{regex.escape(_CLIP_START)}|{regex.escape(_CLIP_END)}"
    r"|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    regex.IGNORECASE,
)


@dataclass(frozen=True)
class Tokens:
    """Token ids of some texts."""

    ids: list[Ids]  # per text, start and end token included, at most the context length, unpadded
    truncated: list[int]  # per text, how many ids did not fit

    @classmethod
    def of(cls, rows: Iterable[list[int]], context_length: int, *, keep_end: bool = True) -> Tokens:
        """Ids of any length; one that is too long keeps its first ids and, with `keep_end`, its last."""
        ids = []
        truncated = []
        for row in rows:
            truncated.append(max(0, len(row) - context_length))
            cut = [*row[: context_length - 1], row[-1]] if keep_end else row[:context_length]
            ids.append(tuple(cut if truncated[-1] else row))
        return cls(ids, truncated)


class ClipTokenizer:
    """CLIP's byte-level BPE over open_clip's vocabulary, with OpenAI's special markers. Texts are repaired
    (ftfy), HTML-unescaped twice, lower-cased and their white space collapsed. A text that is too long keeps
    its first `context_length - 1` ids and then the end token. The markers inside a text become the special
    ids, as in the original code (open_clip spells them differently, so there a caption with `<|endoftext|>`
    gets other ids)."""

    padding = 0  # by which the original code fills texts up; no state that is read depends on it

    def __init__(self, context_length: int = 77) -> None:
        self.context_length = context_length
        self.start, self.end = (_ids_of_word(marker)[0] for marker in (_CLIP_START, _CLIP_END))

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Ids of every text, in order; see `Tokens`."""
        rows = ([self.start, *self._inner(text), self.end] for text in texts)
        return Tokens.of(rows, self.context_length)

    def _inner(self, text: str) -> Iterator[int]:
        """The ids between the two markers."""
        # Printable ASCII without entities is what the repairs make of it.
        plain = text.isascii() and text.isprintable() and "&" not in text
        words = _WORDS.findall((text if plain else _repaired(text)).lower())
        return chain.from_iterable(map(_ids_of_word, words))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each id, for readers; a part of a character is shown as a replacement character."""
        byte_of = {character: byte for byte, character in enumerate(_characters())}
        bpe = _bpe()
        decoded = (bytes(map(byte_of.__getitem__, bpe.id_to_token(index))) for index in ids)
        return [piece.decode("utf-8", errors="replace").removesuffix("</w>") for piece in decoded]


def _repaired(text: str) -> str:
    import ftfy  # which takes longer to import than a plain text needs

    return " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())


@cache
def _characters() -> list[str]:
    """Of each byte the character that stands for it: itself where it can be printed, else one above 255."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    unprinted = (byte for byte in range(256) if byte not in printed)
    codes = {byte: byte for byte in printed} | {byte: 256 + n for n, byte in enumerate(unprinted)}
    return [chr(codes[byte]) for byte in range(256)]


@cache
def _bpe() -> Any:
    from tokenizers.models import BPE

    package: Any = find_spec("open_clip")  # found, not imported, which takes seconds
    vocabulary = Path(package.origin).with_name("bpe_simple_vocab_16e6.txt.gz")
    lines = gzip.decompress(vocabulary.read_bytes()).decode().split("\n")[1 : _MERGES + 1]
    merges = [(first, second) for first, second in map(str.split, lines)]
    singles = sorted(_characters())
    pieces = [
        *singles,
        *(f"{character}</w>" for character in singles),
        *map("".join, merges),
        _CLIP_START,
        _CLIP_END,
    ]
    return BPE({piece: index for index, piece in enumerate(pieces)}, merges, end_of_word_suffix="</w>")


@lru_cache(maxsize=1 << 16)
def _ids_of_word(word: str) -> Ids:
    if word in (_CLIP_START, _CLIP_END):
        return (_bpe().token_to_id(word),)
    characters = _characters()
    return tuple(token.id for token in _bpe().tokenize("".join(characters[byte] for byte in word.encode())))


class WordPiece:
    """BERT's tokenizer over a vocabulary: a piece of a word per id. `lowercase`: the uncased one. `split`:
    texts are split as by `str.split` first, as UNITER's code does: control characters that Python counts as
    white space, such as a vertical tab, part words; else they vanish. A text that is too long keeps its first
    `context_length - 1` ids and then the end mark; without `keep_end`, its first `context_length` ids and no
    end mark. The marks themselves have no meaning inside a text: `[SEP]` there is a word between two
    brackets."""

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
            problem = f"lacks {', '.join(missing)}" if missing else "holds a word twice"
            raise ValueError(f"the vocabulary is not one of BERT's: it {problem}")
        self.context_length = context_length
        self.keep_end = keep_end
        self.split = split
        self.start = ids[START]
        self.end = ids[END]
        self._pieces = Tokenizer(Pieces(ids, unk_token=UNKNOWN, max_input_chars_per_word=100))
        self._pieces.normalizer = BertNormalizer(lowercase=lowercase)
        self._pieces.pre_tokenizer = BertPreTokenizer()

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Ids of every text, start and end mark included, in order."""
        return Tokens.of(self.whole(texts), self.context_length, keep_end=self.keep_end)

    def whole(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of every text, start and end mark included, in order; none is cut."""
        split_texts = [" ".join(text.split()) for text in texts] if self.split else list(texts)
        pieces = self._pieces.encode_batch(split_texts, add_special_tokens=False)
        return [[self.start, *row.ids, self.end] for row in pieces]

    def to_json(self) -> str:
        """The tokenizer as the text of a tokenizer.json."""
        return str(self._pieces.to_str(pretty=True))


class TokenizerFile:
    """A tokenizer by the text of its tokenizer.json, SentencePiece's unigram among others.

    end, padding: its tokens that end a text and fill it up. clean: what is done to a text before. A text that
    is too long keeps its first `context_length - 1` ids and then the end token. ValueError: the file is not
    one of `tokenizers`, lacks these tokens, or does not end texts by `end`.
    """

    def __init__(
        self, content: str, context_length: int, *, end: str, padding: str, clean: Callable[[str], str] = str
    ) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_str(content)
        except Exception as error:  # a plain Exception is what `tokenizers` raises
            raise ValueError(f"the tokenizer cannot be read ({error})") from error
        # Padding and truncation of the file are its authors'; here texts run as the network takes them.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._clean = clean
        self.context_length = context_length
        self.end = self._id_of(end)
        self.padding = self._id_of(padding)
        if self._tokenizer.encode("").ids[-1:] != [self.end]:
            raise ValueError(f"the tokenizer does not end texts by {end!r}")

    def _id_of(self, token: str) -> int:
        index = self._tokenizer.token_to_id(token)
        if index is None:
            raise ValueError(f"the tokenizer has no token {token!r}")
        return int(index)

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Ids of every text, the end token included, in order."""
        rows = self._tokenizer.encode_batch([self._clean(text) for text in texts])
        return Tokens.of([row.ids for row in rows], self.context_length)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each id, for readers."""
        tokens: list[Any] = [self._tokenizer.id_to_token(index) for index in ids]
        return [token.replace(_WORD_START, "") for token in tokens]


def canonical(text: str) -> str:
    """A text repaired, without ASCII punctuation, in small letters, its white space collapsed.

    >>> canonical("A dog's   life_story: 5 &amp; 6!")
    'a dogs life story 5 6'
    """
    plain = _repaired(text).replace("_", " ").translate(_NO_PUNCTUATION)
    return " ".join(plain.lower().split())


def coverage(
    tokenizer: Any, captions: Sequence[str], truncated: Sequence[int], prompt: str = ""
) -> list[float]:
    """The share of each caption's words that is read whole, behind a prompt; `truncated`: as in `Tokens`."""
    marks, with_prompt = (len(ids) for ids in tokenizer.encode(["", prompt]).ids)
    room = tokenizer.context_length - with_prompt
    shares = []
    for caption, cut in zip(captions, truncated, strict=True):
        words = caption.split() if cut else []
        lengths = [len(ids) - marks for ids in tokenizer.encode(words).ids]
        shares.append(float(np.mean(np.cumsum(lengths) <= room)) if words else 1.0)
    return shares


@dataclass(frozen=True)
class TextFeatures:
    """Features of n texts."""

    features: Floats  # (n, d), un-normalised
    truncated: list[int]  # per text, token ids beyond the context length


@dataclass(frozen=True)
class TokenFeatures:
    """Features of the tokens of n texts."""

    features: list[Floats]  # per text (length, d), un-normalised; the last row is the text's own feature
    ids: list[Ids]  # of each text, one per row
    truncated: list[int]  # per text, token ids beyond the context length


class Distinct:
    """Arrays of texts, (d,) or (length, d), of which equal ones are one. key: the cache's key of token ids,
    by their bytes. missing: sorted, the ids that the cache does not have, whose arrays have to be added."""

    def __init__(self, ids: Sequence[Ids], key: Callable[[bytes], str], cache: FeatureCache) -> None:
        self._ids = ids
        self._cache = cache
        self._keys = {sequence: key(bytes_of(sequence)) for sequence in dict.fromkeys(ids)}
        self._arrays = cache.get(self._keys.values())
        absent = (sequence for sequence, name in self._keys.items() if name not in self._arrays)
        self.missing = sorted(absent, key=lambda sequence: (len(sequence), sequence))

    def add(self, part: slice, arrays: Iterable[Floats]) -> None:
        """The arrays of some missing sequences."""
        new = {self._keys[ids]: array for ids, array in zip(self.missing[part], arrays, strict=True)}
        self._cache.put(new)
        self._arrays.update(new)

    def arrays(self) -> list[Floats]:
        """One per text, in order."""
        return [self._arrays[self._keys[ids]] for ids in self._ids]


def bytes_of(ids: Ids) -> bytes:
    """Token ids for a key."""
    return np.array(ids, dtype="<u4").tobytes()
