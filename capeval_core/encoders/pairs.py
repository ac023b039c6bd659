"""Visuals with texts: a visual runs once in a network, then with each of its texts; layers of BERT."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from capeval_core.cache import FeatureCache
from capeval_core.encoders.engine import Encoded, Encoding, Item, Units, chunks, encode_stream, with_extras
from capeval_core.encoders.tokenizers import Ids, Tokens, WordPiece, bytes_of
from capeval_core.inputs.boxes import InputBoxes, boxes_of
from capeval_core.models.batching import BatchSize
from capeval_core.models.config import Layers, Switch, Width, Words, read
from capeval_core.models.device import Arriving
from capeval_core.models.model import CheckedModel
from capeval_core.ragged import Floats
from capeval_core.store import write_whole
from capeval_core.weights.folder import TOKENIZER, WeightsError, WeightsFolder, read_words, sha256_of

Pair = tuple[int, Ids, str]  # position of a visual in its batch, a text's token ids, the cache's key of both
Run = Callable[[Any, Sequence[Pair]], Iterable[Floats] | Tensor | Arriving]

EPS = 1e-12  # of BERT's layer norms
_TOGETHER = 64  # visuals whose texts are tokenized at once


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of attention, under transformers' names."""

    hidden_size: Width
    num_attention_heads: Width

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            problem = f"hidden_size {self.hidden_size} is no multiple of the {self.num_attention_heads} heads"
            raise ValueError(problem)


@dataclass(frozen=True)
class LayerSizes(AttentionSizes):
    """Sizes of transformer layers."""

    num_hidden_layers: Layers
    intermediate_size: Width


@dataclass(frozen=True)
class BertSizes(LayerSizes):
    """Sizes of a transformer over texts."""

    vocab_size: Width
    max_position_embeddings: Width


@dataclass(frozen=True)
class TextSettings:
    """Settings of a tokenizer."""

    context_length: Width
    vocabulary: Words
    lowercase: Switch | None


def bert_layers(sizes: LayerSizes, dropout: float) -> tuple[Any, nn.ModuleList]:
    """transformers' configuration of BERT layers of these sizes, and the layers."""
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    common = {"type_vocab_size": 2, "layer_norm_eps": EPS, "hidden_act": "gelu"}
    # Names of the sizes are transformers' own; those of a subclass that it does not know it keeps.
    config: Any = BertConfig(**{**vars(sizes), **common, **dropouts})
    layers = nn.ModuleList()
    for _ in range(sizes.num_hidden_layers):
        layers.append(BertLayer(config))  # type: ignore[no-untyped-call]
    return config, layers


def bert_embeddings(config: Any) -> Any:
    """transformers' embeddings of tokens, without buffers that are in no file and only its forward reads."""
    from transformers.models.bert.modeling_bert import BertEmbeddings

    embeddings: Any = BertEmbeddings(config)  # type: ignore[no-untyped-call]
    # Built on torch's meta device, they would stay without numbers.
    del embeddings.position_ids, embeddings.token_type_ids
    return embeddings


class PairEncoder(CheckedModel):
    """A network that runs a visual once (an image, box features), and then with each of its texts. The words
    of its tokenizer lie beside its weights."""

    text_sizes: ClassVar[attrgetter[BertSizes]]
    """The sizes of the tower that reads token ids, by the settings."""
    words_file: ClassVar[str] = TOKENIZER
    keeps_end: ClassVar[bool] = True  # whether a text that is cut keeps its end mark
    splits: ClassVar[bool] = False  # whether texts are split as by `str.split` first
    automatic: ClassVar[dict[str, tuple[int, int]]] = {"images": (16, 256), "rows": (2048, 65_536)}
    visual_rows: int = 100  # what a pair costs beside the tokens of its text, about

    @abstractmethod
    def prepare_visual(self, loaded: Any) -> Any:
        """The network's input of a loaded visual; runs in threads."""

    @abstractmethod
    def states(self, prepared: Sequence[Any]) -> Any:
        """States of visuals that all of their texts share, on the encoder's device."""

    def prepare(self) -> None:
        self.tokenizer = self.tokenizer_of(self.config)

    @classmethod
    def tokenizer_of(cls, config: dict[str, Any]) -> WordPiece:
        """The tokenizer of a config, without tensors; WeightsError where it does not fit the network."""
        settings = read(cls.Settings, config, "")
        sizes = cls.text_sizes(settings)
        words = config["vocabulary"]
        length = settings.context_length
        longest = sizes.max_position_embeddings
        # Fewer words than embeddings are fine: tables are often padded to a round number.
        if len(words) > sizes.vocab_size:
            limit = f"the model knows {sizes.vocab_size}"
            raise WeightsError(f"the vocabulary has {len(words)} words, but {limit}")
        if not 3 <= length <= longest:  # start, a word, end
            raise WeightsError(f"context_length is {length}, expected a whole number from 3 to {longest}")
        try:
            return WordPiece(
                words,
                length,
                lowercase=settings.lowercase is not False,
                keep_end=cls.keeps_end,
                split=cls.splits,
            )
        except ValueError as error:
            raise WeightsError(str(error)) from error

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        config = super().read_config(folder)
        if isinstance(config["vocabulary"], list):
            return config
        file = folder.path / cls.words_file
        words = read_words(file)
        # Another vocabulary of equal length would give wrong numbers without a word.
        if sha256_of(file) != config["vocabulary"].get("sha256"):
            raise WeightsError(f"{file.name} is not the one that these weights were saved with")
        return {**config, "vocabulary": words}

    def save_beside(self, folder: Path) -> dict[str, Any]:
        in_json = self.words_file == TOKENIZER
        text = self.tokenizer.to_json() if in_json else "\n".join(self.config["vocabulary"]) + "\n"
        write_whole(folder / self.words_file, text)
        stated = {"file": self.words_file, "sha256": sha256_of(folder / self.words_file)}
        return {**self.config, "vocabulary": stated}

    def _tokens(self, captions: Iterable[Sequence[str]]) -> Iterator[Tokens]:
        """Token ids of the texts of each visual; those of some are made together, by several threads."""
        for part in chunks(captions, _TOGETHER):
            tokens = self.tokenizer.encode(list(chain.from_iterable(part)))
            start = 0
            for texts in part:
                of_visual = slice(start, start + len(texts))
                yield Tokens(tokens.ids[of_visual], tokens.truncated[of_visual])
                start = of_visual.stop

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
        """Encode every visual with its texts: rows by `pair_key`, in order; its `extra` are their tokens.
        run: a row per pair, of the shared states of visuals; the pairs of a visual stand together.
        image_features: of shared states the features of visuals alone, whose key is `image_key`."""

        def keys(content: str, tokens: Tokens) -> tuple[str, ...]:
            distinct: dict[str, None] = {}  # equal texts of a visual run once, in order
            if tokens.ids and image_features:  # first, as `Encoded.array` reads it
                distinct[self.image_key(content)] = None
            for ids in tokens.ids:
                distinct[self.pair_key(kind, content, ids)] = None
            return tuple(distinct)

        def units(item: Item, loaded: object, prepared: object, missing: Sequence[str]) -> Units:
            content = item[0].key
            texts = {self.pair_key(kind, content, ids): ids for ids in item[1].ids}
            missing_texts = {key: texts[key] for key in missing if key in texts}  # less the image's own key
            # A visual is one unit, with all of its texts: its states are in memory once.
            return Units([[(prepared, self.image_key(content), missing_texts)]], lambda values: values[0])

        encoding = Encoding(
            size=self.batch("images", batch_size),
            keys=keys,
            prepare=self.prepare_visual,
            forward=partial(self._run_units, run, batch_size, image_features),
            units=units,
        )
        items = with_extras(visuals, self._tokens(captions), "lists of captions", "give every image its own")
        return chain.from_iterable(encode_stream(items, encoding, cache))

    def _run_units(
        self,
        run: Run,
        batch_size: int | None,
        image_features: Callable[[Any], Tensor] | None,
        units: list[tuple[Any, str, dict[str, Ids]]],
    ) -> Arriving:
        """The rows of the texts and the features of each visual, by key."""
        states = self.states([prepared for prepared, _, _ in units])
        places: list[tuple[int, str]] = []  # position and key of each row, in order
        running: list[Arriving] = []
        if image_features is not None:
            for position, (_, image_key, _) in enumerate(units):
                places.append((position, image_key))
            running.append(Arriving.of(image_features(states)))
        pairs: list[Pair] = []
        longest = 0
        for position, (_, _, texts) in enumerate(units):
            # Texts of nearly equal length stand together, so that attention pads little.
            for key, ids in sorted(texts.items(), key=lambda text: len(text[1])):
                pairs.append((position, ids, key))
                places.append((position, key))
                longest = max(longest, len(ids))
        size, cost = self.rows_per_batch(batch_size, self.visual_rows + longest)
        for _, rows in size.run(pairs, partial(run, states), cost=cost, after=Arriving.of):
            running.append(rows)
        visuals = len(units)  # which are not kept until the rows arrive

        def by_key() -> list[dict[str, Floats]]:
            values: list[dict[str, Floats]] = [{} for _ in range(visuals)]
            rows = chain.from_iterable([part.values() for part in running])
            for (position, key), row in zip(places, rows, strict=True):
                values[position][key] = row
            return values

        return Arriving(by_key, lambda: all(part.arrived() for part in running))

    def image_key(self, content: str) -> str:
        """The cache's key of the features of a visual alone, by its content key."""
        return self.key("image", content.encode())

    def pair_key(self, kind: str, content: str, ids: Ids) -> str:
        """The cache's key of a visual, by its content key, with a text."""
        return self.key(kind, f"{content}\n".encode() + bytes_of(ids))

    def rows_per_batch(self, batch_size: int | None, rows: int) -> tuple[BatchSize, int]:
        """The batch size, and what a sequence of so many rows costs in its unit."""
        return self.batch("rows", batch_size), rows if batch_size is None else 1


class RegionTextEncoder(PairEncoder):
    """A network over the tokens of a text and the boxes of an image."""

    def prepare(self) -> None:
        super().prepare()
        self.region_size = self.region_size_of(self.config)

    @staticmethod
    def region_size_of(config: dict[str, Any]) -> int:
        """Numbers of a box's features, by the config of weights."""
        sizes = config["architecture"]
        return int(sizes.get("visual", sizes)["region_size"])

    def canary_boxes(self) -> list[InputBoxes]:
        """Box features from formulas: diagonals of 5 and of 12 boxes whose features are waves."""
        canaries = []
        for count in (5, 12):
            corners = np.arange(count, dtype=np.float32)[:, None] * [3, 2]
            phase = np.outer(np.arange(1, count + 1), np.arange(self.region_size))
            boxes = {
                "boxes": np.concatenate([corners, np.add(corners, [20, 15])], axis=1).astype(np.float32),
                "features": np.maximum(np.sin(phase), 0).astype(np.float32),
                "size": (20 + 3 * count, 15 + 2 * count),
            }
            canaries.append(boxes_of(boxes))
        return canaries
