"""Visuals with texts: a visual runs once in a network, and then with each of its texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.encoders.engine import Encoded, Encoding, Item, Units, chunks, encode_stream, with_extras
from capeval_core.encoders.tokenizers import Ids, Tokens, WordPiece
from capeval_core.models.batching import BatchSize
from capeval_core.models.config import Switch, Width, Words
from capeval_core.models.copies import Arriving, arriving, made_of
from capeval_core.models.model import CheckedModel
from capeval_core.weights.folder import (
    TOKENIZER,
    WeightsError,
    WeightsFolder,
    words_beside,
    write_beside,
)

Floats = NDArray[np.float32]
Pair = tuple[int, Ids, str]
"""The position of a visual in its batch, a text's token ids, and the cache's key of both."""
Run = Callable[[Any, Sequence[Pair]], Iterable[Floats] | Tensor | Arriving]

_TOGETHER = 64
"""Visuals whose texts are tokenized at once."""


@dataclass(frozen=True)
class TextSettings:
    """Settings of a tokenizer. `texts` has the sizes of the tower that reads its ids."""

    context_length: Width
    vocabulary: Words
    lowercase: Switch | None

    @property
    def texts(self) -> Any:
        raise NotImplementedError

    def __post_init__(self) -> None:
        longest = self.texts.max_position_embeddings
        if not 3 <= self.context_length <= longest:
            raise ValueError(
                f"context_length is {self.context_length}, expected a whole number from 3 to {longest}"
            )


class PairEncoder(CheckedModel):
    """A network that runs a visual once (an image, box features), and then with each of its texts.

    The words of its tokenizer lie beside its weights.
    """

    words_file: ClassVar[str] = TOKENIZER
    keeps_end: ClassVar[bool] = True
    """Whether a text that is cut keeps its end mark."""
    splits: ClassVar[bool] = False
    """Whether texts are split as by `str.split` first."""
    images_at_once: ClassVar[tuple[int, int]] = (16, 256)
    """Visuals of an automatic batch, on the CPU and on a GPU."""

    @property
    @abstractmethod
    def visual_rows(self) -> int:
        """What a pair costs beside the tokens of its text."""

    @abstractmethod
    def prepare_visual(self, loaded: Any) -> Any:
        """The network's input of a loaded visual; runs in threads."""

    @abstractmethod
    def states(self, prepared: Sequence[Any]) -> Any:
        """States of visuals that all of their texts share, on the encoder's device."""

    def prepare(self) -> None:
        words, known = self.config["vocabulary"], self.settings.texts.vocab_size
        if len(words) > known:
            raise WeightsError(f"the vocabulary has {len(words)} words, but the model knows {known}")
        try:
            self.tokenizer = WordPiece(
                words,
                self.settings.context_length,
                lowercase=self.settings.lowercase is not False,
                keep_end=self.keeps_end,
                split=self.splits,
            )
        except ValueError as error:
            raise WeightsError(str(error)) from error
        on_gpu = self.device.type != "cpu"
        self._automatic_images = BatchSize(self.images_at_once[on_gpu], automatic=True)
        self._automatic_rows = BatchSize(65_536 if on_gpu else 2048, automatic=True)

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        config = super().read_config(folder)
        if isinstance(config["vocabulary"], list):
            return config
        return {**config, "vocabulary": words_beside(folder.path, cls.words_file, config["vocabulary"])}

    def save_beside(self, folder: Path) -> dict[str, Any]:
        in_json = self.words_file == TOKENIZER
        text = self.tokenizer.to_json() if in_json else "\n".join(self.config["vocabulary"]) + "\n"
        return {**self.config, "vocabulary": write_beside(folder, self.words_file, text)}

    def tokens(self, captions: Iterable[Sequence[str]]) -> Iterator[Tokens]:
        """Token ids of the texts of each visual; those of some visuals are made together, by several threads.

        Raises:
            ValueError: one text instead of a list.
        """
        for part in chunks(enumerate(captions), _TOGETHER):
            for index, texts in part:
                if isinstance(texts, str):
                    fix = f"expected a list of texts: write [{texts!r}]"
                    raise ValueError(f"captions[{index}] is one text, {fix}")
            found = self.tokenizer.encode([text for _, texts in part for text in texts])
            start = 0
            for _, texts in part:
                own = slice(start, start + len(texts))
                yield Tokens(found.ids[own], found.truncated[own])
                start = own.stop

    def encode_pairs(
        self,
        visuals: Iterable[Any],
        captions: Iterable[Sequence[str]],
        run: Run,
        kind: str,
        cache: FeatureCache,
        batch_size: int | None,
        image_features: Callable[[Any], Tensor] | None = None,
    ) -> Iterator[Encoded]:
        """Every visual with the rows of its texts, by `pair_key`, in order; its `extra` are their tokens.

        Args:
            visuals: any number; they are read ahead by threads, a few at a time.
            captions: per visual any number of texts. Equal ones run once.
            run: a row per pair, of the shared states of visuals; the pairs of a visual stand together.
            kind: of the rows, in their keys.
            cache: where rows are looked up and kept.
            batch_size: visuals, and texts, per forward pass; None: as many as fit into memory.
            image_features: of shared states the features of visuals alone, whose key is `image_key`; None:
                they mean nothing without a text.
        """
        items = with_extras(
            visuals, self.tokens(captions), "lists of captions", "give every image its captions"
        )
        pairs = _Pairs(self, run, kind, batch_size, image_features)
        return chain.from_iterable(encode_stream(items, pairs.encoding(), cache))

    def image_key(self, content: str) -> str:
        """The cache's key of the features of a visual alone, by its content key."""
        return self.key("image", content.encode())

    def pair_key(self, kind: str, content: str, ids: Ids) -> str:
        """The cache's key of what belongs to a visual, by its content key, and a text."""
        return self.key(kind, f"{content}\n".encode() + bytes_of(ids))

    def images_per_batch(self, batch_size: int | None) -> BatchSize:
        """The batch size that a user gave, or the automatic one."""
        return self._automatic_images if batch_size is None else BatchSize(batch_size, automatic=False)

    def rows_per_batch(self, batch_size: int | None, rows: int) -> tuple[BatchSize, int]:
        """The batch size, and what a sequence of so many rows costs in its unit."""
        if batch_size is not None:
            return BatchSize(batch_size, automatic=False), 1
        return self._automatic_rows, rows


@dataclass(frozen=True)
class _Pairs:
    """How the engine runs visuals with their texts; the arguments are those of `encode_pairs`."""

    encoder: PairEncoder
    run: Run
    kind: str
    batch_size: int | None
    image_features: Callable[[Any], Tensor] | None

    def encoding(self) -> Encoding:
        return Encoding(
            size=self.encoder.images_per_batch(self.batch_size),
            keys=self.keys,
            prepare=self.encoder.prepare_visual,
            forward=self.forward,
            units=self.units,
        )

    def keys(self, content: str, tokens: Tokens) -> tuple[str, ...]:
        """The visual's key, if it has one, then one per distinct text; none where there is no text."""
        own = [self.encoder.image_key(content)] if tokens.ids and self.image_features else []
        return *own, *dict.fromkeys(self.encoder.pair_key(self.kind, content, ids) for ids in tokens.ids)

    def units(self, item: Item, loaded: Any, prepared: Any, missing: Sequence[str]) -> Units:
        """One unit: the visual with the texts that are missing."""
        visual, tokens = item
        texts = {self.encoder.pair_key(self.kind, visual.key, ids): ids for ids in tokens.ids}
        own = self.encoder.image_key(visual.key) if self.image_features else ""
        wanted = {key: texts[key] for key in missing if key in texts}
        return Units([[(prepared, own, wanted)]], lambda values: values[0])

    def forward(self, units: list[tuple[Any, str, dict[str, Ids]]]) -> Arriving:
        """Per visual the rows of its texts and its own features, by key."""
        states = self.encoder.states([prepared for prepared, _, _ in units])
        places: list[tuple[int, str]] = []  # position and key of each row, in order
        running: list[Arriving] = []
        if self.image_features is not None:
            places += [(position, own) for position, (_, own, _) in enumerate(units)]
            running.append(arriving(self.image_features(states)))
        pairs = [
            (position, ids, key)
            for position, (_, _, texts) in enumerate(units)
            for key, ids in sorted(texts.items(), key=lambda text: len(text[1]))
        ]
        places += [(position, key) for position, _, key in pairs]
        longest = max((len(ids) for _, ids, _ in pairs), default=0)
        size, cost = self.encoder.rows_per_batch(self.batch_size, self.encoder.visual_rows + longest)
        parts = size.run(pairs, partial(self.run, states), cost=cost, after=arriving)
        running += [rows for _, rows in parts]
        visuals = len(units)  # which are not kept until the rows arrive

        def by_key(parts: list[Any]) -> list[dict[str, Floats]]:
            values: list[dict[str, Floats]] = [{} for _ in range(visuals)]
            for (position, key), row in zip(places, chain.from_iterable(parts), strict=True):
                values[position][key] = row
            return values

        return made_of(running, by_key)


def bytes_of(ids: Ids) -> bytes:
    """Token ids for a key."""
    return np.array(ids, dtype="<u4").tobytes()
