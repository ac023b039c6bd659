"""Captions to BERT's WordPiece ids, as its own code makes them."""

from __future__ import annotations

from collections.abc import Sequence

from capeval_core.encoders.tokenizer import Tokens

PAD, UNKNOWN, START, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"


class WordPiece:
    """BERT's uncased tokenizer over a vocabulary, a piece of a word per id.

    A text that is too long keeps its first `context_length - 1` ids and then the end mark. The marks
    themselves have no meaning inside a text: `[SEP]` there is a word between two brackets.

    Raises:
        ValueError: the vocabulary lacks one of BERT's marks, or holds a word twice.

    >>> words = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "dog", "##s", "."], context_length=6)
    >>> words.encode(["Red dogs.", "a red, red dog"])
    Tokens(ids=[[2, 4, 5, 6, 7, 3], [2, 1, 4, 1, 4, 3]], dropped=[0, 1])
    """

    def __init__(self, vocabulary: Sequence[str], context_length: int) -> None:
        from tokenizers import Tokenizer
        from tokenizers.models import WordPiece as Pieces
        from tokenizers.normalizers import BertNormalizer
        from tokenizers.pre_tokenizers import BertPreTokenizer

        ids = {word: index for index, word in enumerate(vocabulary)}
        missing = [mark for mark in (PAD, UNKNOWN, START, END) if mark not in ids]
        if missing or len(ids) != len(vocabulary):
            wrong = f"lacks {', '.join(missing)}" if missing else "holds a word twice"
            raise ValueError(f"the vocabulary is not one of BERT's: it {wrong}")
        self.context_length = context_length
        self.start, self.end = ids[START], ids[END]
        self._pieces = Tokenizer(Pieces(ids, unk_token=UNKNOWN, max_input_chars_per_word=100))
        self._pieces.normalizer = BertNormalizer(lowercase=True)
        self._pieces.pre_tokenizer = BertPreTokenizer()

    def encode(self, texts: Sequence[str]) -> Tokens:
        """Ids of every text, start and end mark included, in order."""
        ids, dropped = [], []
        for pieces in self._pieces.encode_batch(list(texts), add_special_tokens=False):
            row = [self.start, *pieces.ids, self.end]
            dropped.append(max(0, len(row) - self.context_length))
            ids.append([*row[: self.context_length - 1], self.end] if dropped[-1] else row)
        return Tokens(ids, dropped)
