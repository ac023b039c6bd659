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
from typing import Any, Protocol

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
# Merges that CLIP reads of open_clip's file, which has more; its vocabulary also has each byte twice (alone
# and at the end of a word) and two markers: 48,894 + 512 + 2 = 49,408.
_MERGES = 48_894
_LONGEST_KEPT = 200  # characters of a word whose ids are kept
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
            beyond = max(0, len(row) - context_length)
            truncated.append(beyond)
            if beyond and keep_end:
                row = [*row[: context_length - 1], row[-1]]
            elif beyond:
                row = row[:context_length]
            ids.append(tuple(row))
        return cls(ids, truncated)


class _Tokenizer(Protocol):
    """A tokenizer of any network, as far as `coverage` needs it."""

    context_length: int

    def encode(self, texts: Sequence[str]) -> Tokens: ...


class ClipTokenizer:
    """CLIP's byte-level BPE over open_clip's vocabulary, with OpenAI's special markers. Texts are repaired
    (ftfy), HTML-unescaped twice, lower-cased and their white space collapsed. A text that is too long keeps
    its first `context_length - 1` ids and then the end token. The markers inside a text become the special
    ids, as in the original code (open_clip spells them differently, so there a caption with `<|endoftext|>`
    gets other ids)."""

    padding = 0  # by which the original code fills texts up; no state that is read depends on it

    def __init__(self, context_length: int = 77) -> None:
        self.context_length = context_length
        self.start = _ids_of_word(_CLIP_START)[0]
        self.end = _ids_of_word(_CLIP_END)[0]

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Ids of every text, in order; see `Tokens`."""
        rows = ([self.start, *self._inner(text), self.end] for text in texts)
        return Tokens.of(rows, self.context_length)

    def _inner(self, text: str) -> Iterator[int]:
        """The ids between the two markers."""
        # Printable ASCII without entities is what the repairs make of it; they take longer than the rest.
        plain = text.isascii() and text.isprintable() and "&" not in text
        words = _WORDS.findall((text if plain else _repaired(text)).lower())
        # Words repeat, and are kept by an lru_cache; but tens of thousands of 100,000 letters each, which a
        # client of a server can send, would fill the memory.
        is_kept = len(text) <= _LONGEST_KEPT or max(map(len, words), default=0) <= _LONGEST_KEPT
        ids_of_word = _ids_of_word if is_kept else _ids_of_word.__wrapped__
        return chain.from_iterable(map(ids_of_word, words))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each id, for readers; a part of a character is shown as a replacement character."""
        byte_of = {character: byte for byte, character in enumerate(_characters())}
        bpe = _bpe()
        pieces = []
        for index in ids:
            encoded = bytes(byte_of[character] for character in bpe.id_to_token(index))
            pieces.append(encoded.decode("utf-8", errors="replace").removesuffix("</w>"))
        return pieces


def _repaired(text: str) -> str:
    import ftfy  # which takes longer to import than a plain text needs

    # Twice, as in the original code: web texts hold `&amp;amp;`.
    return " ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())


@cache
def _characters() -> list[str]:
    """The character of each byte: itself where it can be printed, else one above 255."""
    # GPT-2's table: its file of merges is text, in which control characters and blanks would be lost.
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)}
    characters = []
    above = 256
    for byte in range(256):
        if byte in printed:
            characters.append(chr(byte))
        else:
            characters.append(chr(above))
            above += 1
    return characters


@cache
def _bpe() -> Any:
    from tokenizers.models import BPE

    package: Any = find_spec("open_clip")  # found, not imported, which takes seconds
    vocabulary = Path(package.origin).with_name("bpe_simple_vocab_16e6.txt.gz")
    lines = gzip.decompress(vocabulary.read_bytes()).decode().split("\n")[1 : _MERGES + 1]  # 0: its version
    # Ids are places in this list: CLIP's order of the bytes is that of their characters' codes.
    singles = sorted(_characters())
    pieces = [*singles, *(f"{character}</w>" for character in singles)]
    merges: list[tuple[str, str]] = []
    for line in lines:
        first, second = line.split()
        merges.append((first, second))
        pieces.append(first + second)
    pieces += [_CLIP_START, _CLIP_END]
    return BPE({piece: index for index, piece in enumerate(pieces)}, merges, end_of_word_suffix="</w>")


@lru_cache(maxsize=1 << 16)
def _ids_of_word(word: str) -> Ids:
    if word in (_CLIP_START, _CLIP_END):
        return (_bpe().token_to_id(word),)
    characters = _characters()
    printable = "".join([characters[byte] for byte in word.encode()])
    return tuple([token.id for token in _bpe().tokenize(printable)])


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
        if missing:
            raise ValueError(f"the vocabulary is not one of BERT's: it lacks {', '.join(missing)}")
        if len(ids) != len(vocabulary):
            raise ValueError("the vocabulary is not one of BERT's: it holds a word twice")
        self.context_length = context_length
        self.keep_end = keep_end
        self.split = split
        self.start = ids[START]
        self.end = ids[END]
        # As in transformers a word of more than 100 characters is unknown, not split.
        self._pieces = Tokenizer(Pieces(ids, unk_token=UNKNOWN, max_input_chars_per_word=100))
        self._pieces.normalizer = BertNormalizer(lowercase=lowercase)
        self._pieces.pre_tokenizer = BertPreTokenizer()

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Ids of every text, start and end mark included, in order."""
        return Tokens.of(self.whole(texts), self.context_length, keep_end=self.keep_end)

    def whole(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of every text, start and end mark included, in order; none is cut."""
        if self.split:
            texts = [" ".join(text.split()) for text in texts]
        # Marks are put around the ids here: in a text `[SEP]` is no mark, but a word between brackets.
        encodings = self._pieces.encode_batch(list(texts), add_special_tokens=False)
        return [[self.start, *encoding.ids, self.end] for encoding in encodings]

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
        # Else the feature of a text would be read at a token that differs from text to text.
        if self._tokenizer.encode("").ids[-1:] != [self.end]:
            raise ValueError(f"the tokenizer does not end texts by {end!r}")

    def _id_of(self, token: str) -> int:
        index = self._tokenizer.token_to_id(token)
        if index is None:
            raise ValueError(f"the tokenizer has no token {token!r}")
        return int(index)

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Ids of every text, the end token included, in order."""
        encodings = self._tokenizer.encode_batch([self._clean(text) for text in texts])
        return Tokens.of((encoding.ids for encoding in encodings), self.context_length)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each id, for readers."""
        tokens: list[Any] = [
            self._tokenizer.id_to_token(index) for index in ids
        ]  # of a network: each is known
        return [token.replace(_WORD_START, "") for token in tokens]


def canonical(text: str) -> str:
    """A text repaired, without ASCII punctuation, in small letters, its white space collapsed.

    >>> canonical("A dog's   life_story: 5 &amp; 6!")
    'a dogs life story 5 6'
    """
    plain = _repaired(text).replace("_", " ").translate(_NO_PUNCTUATION)
    return " ".join(plain.lower().split())


def coverage(
    tokenizer: _Tokenizer, captions: Sequence[str], truncated: Sequence[int], prompt: str = ""
) -> list[float]:
    """The share of each caption's words that is read whole, behind a prompt; `truncated`: as in `Tokens`."""
    no_words, prompt_alone = tokenizer.encode(["", prompt]).ids
    room = tokenizer.context_length - len(prompt_alone)
    shares = []
    for caption, beyond in zip(captions, truncated, strict=True):
        words = caption.split()
        if not beyond or not words:
            shares.append(1.0)
            continue
        # Word by word: pieces of a word that is cut in its middle do not count.
        lengths = [len(ids) - len(no_words) for ids in tokenizer.encode(words).ids]
        shares.append(float(np.mean(np.cumsum(lengths) <= room)))
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
        absent = [sequence for sequence, name in self._keys.items() if name not in self._arrays]
        # By length, so that attention pads little; then by ids, so that batches do not depend on the input.
        self.missing = sorted(absent, key=lambda sequence: (len(sequence), sequence))

    def add(self, part: slice, arrays: Iterable[Floats]) -> None:
        """The arrays of some missing sequences."""
        new: dict[str, Floats] = {}
        for ids, array in zip(self.missing[part], arrays, strict=True):
            new[self._keys[ids]] = array
        self._cache.put(new)
        self._arrays.update(new)  # the cache is bounded, and may have dropped them by the end

    def arrays(self) -> list[Floats]:
        """One per text, in order."""
        return [self._arrays[self._keys[ids]] for ids in self._ids]


def bytes_of(ids: Ids) -> bytes:
    """Token ids for a key."""
    return np.array(ids, dtype="<u4").tobytes()  # little-endian everywhere: caches move between machines
