"""ViLBERT: a transformer with a stream for the tokens of a text and one for the boxes of an image.

Lu, Batra, Parikh, Lee: ViLBERT: Pretraining Task-Agnostic Visiolinguistic Representations for
Vision-and-Language Tasks, NeurIPS 2019, https://arxiv.org/abs/1908.02265
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.cache import SHARED, FeatureCache, feature_key
from capeval_core.encoders.engine import Encoded, encode_stream, with_extras
from capeval_core.encoders.pairs import Pairs
from capeval_core.encoders.region_text import RegionTextEncoder, canary_boxes
from capeval_core.encoders.texts import encode_distinct
from capeval_core.encoders.tokenizers import Ids, Tokens
from capeval_core.encoders.vilbert_model import Vilbert, build_vilbert, config_problems, empty_vilbert
from capeval_core.inputs.boxes import BoxFeatures, InputBoxes
from capeval_core.inputs.visual import Visual
from capeval_core.models.batching import BatchSize
from capeval_core.models.canary import TEXTS, cosines
from capeval_core.models.copies import Arriving, arrays_of, rows_on_device
from capeval_core.models.device import DTYPES, exact_float32
from capeval_core.weights.vilbert import VilbertConversion

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class LocatedBoxes:
    """What ViLBERT takes of n boxes, the whole image first: features (n + 1, region_size) and locations
    (n + 1, 5), float32."""

    features: Floats
    locations: Floats


@dataclass(frozen=True)
class TokenFeatures:
    """An image and its texts.

    features: per text (rows, hidden) float32: the first token, the task token where the model has one, the
        words, the end token unless the text was cut; None where the boxes could not be read.
    key: content key of the boxes, '' where they could not be read.
    error: why they could not be read, None where they could.
    on_device: per text the same on CUDA, in the encoder's dtype, where they were computed there just now;
        None where they come from the cache, or the encoder runs elsewhere.
    """

    features: list[Floats] | None
    key: str
    error: str | None
    on_device: Sequence[Tensor | None] = ()


def located(boxes: BoxFeatures) -> LocatedBoxes:
    """Features and locations of boxes as ViLBERT was trained with them.

    A location is x0, y0, x1, y1 relative to the image, and the share of the image that the box covers. The
    first row is the whole image, and its feature the mean of those of all boxes.

    Raises:
        ValueError: the size of the image is not known.

    >>> boxes = BoxFeatures(np.float32([[0, 0, 30, 10]]), np.float32([[0.5]]), size=(40, 40))
    >>> located(boxes).locations
    array([[0.    , 0.    , 1.    , 1.    , 1.    ],
           [0.    , 0.    , 0.75  , 0.25  , 0.1875]], dtype=float32)
    """
    relative = boxes.relative()
    locations = np.ones((len(boxes) + 1, 5), dtype=np.float32)
    locations[0, :2] = 0
    locations[1:, :4] = relative[:, :4]
    locations[1:, 4] = relative[:, 4] * relative[:, 5]
    features = np.concatenate([boxes.features.mean(axis=0, keepdims=True), boxes.features])
    return LocatedBoxes(features, locations)


class VilbertEncoder(RegionTextEncoder, tags=["image-captioning", "vilbert"]):
    """ViLBERT, on transformers' BERT layers: features of a text's tokens in the light of an image.

    Boxes are embedded once per image, and the text layers that do not see it run once per text; no text or
    box is padded. In float32 a value does not depend on what else is in the batch, up to rounding. A text
    that is too long is cut as in the released code, which drops its end token with the rest.

    Arguments and errors are those of `CheckedModel`.
    """

    kind = "vilbert"
    revision = 2  # rows with released idf weights of unseen words
    depends_on = ("architecture", "context_length", "vocabulary", "lowercase", "task")
    Conversion = VilbertConversion
    keeps_end = False

    model: Vilbert

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Vilbert:
        return build_vilbert(config["architecture"], tensors, self.dtype)

    @classmethod
    def empty(cls, config: dict[str, Any]) -> Vilbert:
        return empty_vilbert(config["architecture"])

    @classmethod
    def problems(cls, config: dict[str, Any]) -> list[str]:
        return config_problems(config)

    def prepare(self) -> None:
        super().prepare()
        self._automatic_texts = BatchSize(64 if self.device.type == "cpu" else 2048, automatic=True)

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        """The architecture in one line.

        >>> text = {"num_hidden_layers": 12, "hidden_size": 768, "vocab_size": 30522}
        >>> visual = {"num_hidden_layers": 6, "hidden_size": 1024, "region_size": 2048}
        >>> shape = {"text": text, "visual": visual, "text_layers_before": [6, 7, 8], "tasks": 20}
        >>> VilbertEncoder.describe({"architecture": shape})
        'ViLBERT 12x768 and 6x1024, 3 co-attentions, box features of 2048 numbers, 30522 words, 20 tasks'
        """
        shape = config["architecture"]
        text, visual = shape["text"], shape["visual"]
        return (
            f"ViLBERT {text['num_hidden_layers']}x{text['hidden_size']} and {visual['num_hidden_layers']}x"
            f"{visual['hidden_size']}, {len(shape['text_layers_before'])} co-attentions, box features "
            f"of {visual['region_size']} numbers, {text['vocab_size']} words, {shape['tasks']} tasks"
        )

    @property
    def rows_of_words(self) -> int:
        return int(self.config["architecture"]["text"]["vocab_size"])

    @classmethod
    def region_size_of(cls, config: dict[str, Any]) -> int:
        return int(config["architecture"]["visual"]["region_size"])

    @property
    def hidden_size(self) -> int:
        """Numbers of a token's features."""
        return int(self.config["architecture"]["text"]["hidden_size"])

    @property
    def task_tokens(self) -> int:
        """Task tokens in a text: 1, or 0 for a model without tasks."""
        return int(self.config["task"] is not None)

    def words(self, ids: Ids) -> slice:
        """The rows of a text's features that are its words."""
        first = 1 + self.task_tokens
        return slice(first, first + len(self.word_ids(ids)))

    def word_ids(self, ids: Ids) -> Ids:
        """The ids of a text's words alone."""
        return ids[1:-1] if ids[-1] == self.tokenizer.end else ids[1:]

    def token_features(
        self,
        boxes: Iterable[Visual[BoxFeatures]],
        captions: Iterable[Sequence[str]],
        *,
        layer: int = -1,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[TokenFeatures]:
        """Token features of texts with every image, image by image, in order.

        Args:
            boxes: box features of any number of images; they are read ahead by threads, a few at a time.
            captions: per image any number of texts. Equal ones run once.
            layer: the co-attention block after which the features are taken, from 0 or from the end.
            cache: where features are looked up and kept.
            batch_size: images, and captions, per forward pass; None: as many as fit into memory.

        Raises:
            ValueError: there is no such layer; more images than lists of captions, or fewer.
            MemoryError: the given `batch_size`, or a single item, does not fit into memory.
        """
        run = _Run(self, self.block(layer), cache, batch_size)
        tokens = self.tokens(captions)
        items = with_extras(boxes, tokens, "lists of captions", "give every image its captions")
        encoding = Pairs(run, self.images_per_batch(batch_size), batch_size).encoding()
        return map(run.features, chain.from_iterable(encode_stream(items, encoding, cache)))

    def block(self, layer: int) -> int:
        """The number of a co-attention block that is counted from either end.

        Raises:
            ValueError: there is none.
        """
        return block_of(self.config, layer)

    def prepare_visual(self, boxes: BoxFeatures) -> LocatedBoxes:
        """What the network takes of boxes.

        Raises:
            ValueError: their features have another width than these weights take, or see `located`.
        """
        boxes.check_width(self.region_size)
        return located(boxes)

    @torch.inference_mode()
    def region_states(self, prepared: Sequence[LocatedBoxes]) -> list[Tensor]:
        """(boxes + 1, hidden) of each image before it meets a text, on the encoder's device."""
        with exact_float32(self.device):
            features, locations = (
                rows_on_device(self.device, arrays, DTYPES[self.dtype])
                for arrays in ([p.features for p in prepared], [p.locations for p in prepared])
            )
            return self.model.lower_regions(features, locations, [len(p.locations) for p in prepared])

    def text_states(self, texts: Sequence[Ids], cache: FeatureCache, batch_size: int | None) -> list[Tensor]:
        """(rows, hidden) of each text before it meets an image, on the encoder's device.

        On CUDA they are kept nowhere: to wait for what the cache needs costs more than to run them again.
        """
        if self.device.type == "cuda":
            return self._lower_texts(list(texts))
        size = self._automatic_texts if batch_size is None else BatchSize(batch_size, automatic=False)

        def key(ids: Ids) -> str:
            return feature_key(self.fingerprint, self.dtype, "lower", _packed(ids))

        def forward(texts: list[Ids]) -> Iterator[tuple[slice, list[Floats]]]:
            for part, rows in size.run(texts, self._lower_texts):
                yield part, arrays_of(rows).values()

        arrays = encode_distinct(Tokens(list(texts), []), key, forward, cache)
        packed = rows_on_device(self.device, arrays, DTYPES[self.dtype])
        return list(torch.split(packed, [len(array) for array in arrays]))

    @torch.inference_mode()
    def _lower_texts(self, texts: list[Ids]) -> list[Tensor]:
        with exact_float32(self.device):
            return self.model.lower_texts(texts, self.config["task"])

    def canary(self) -> Floats:
        """(3, 2): of three captions, cosines of their words' mean features with two made-up images."""
        visuals = [InputBoxes.of(canary_boxes(count, self.region_size)) for count in (5, 12)]
        found = list(self.token_features(visuals, [TEXTS, TEXTS], cache=FeatureCache(0)))
        ids = self.tokenizer.encode(TEXTS).ids
        means = [
            np.stack(
                [rows[self.words(own)].mean(axis=0) for rows, own in zip(each.features, ids, strict=True)]
            )
            for each in found
            if each.features is not None
        ]
        return cosines(means[0], means[1])


class _Run:
    """Pairs of an image and a text up to one co-attention block, for the engine."""

    def __init__(
        self, encoder: VilbertEncoder, block: int, cache: FeatureCache, batch_size: int | None
    ) -> None:
        self.encoder, self.block, self.cache, self.batch_size = encoder, block, cache, batch_size
        self.keeps = encoder.device.type == "cuda"
        self.on_device: dict[str, Tensor] = {}  # features by key, until they are given out
        self.prepare_visual, self.states = encoder.prepare_visual, encoder.region_states
        self.pairs_per_batch = encoder.pairs_per_batch

    def image_key(self, content: str) -> None:
        """Boxes have no features without a text."""

    def pair_key(self, content: str, ids: Ids) -> str:
        """The cache's key of a text's features with an image's boxes, by their content key."""
        kind = f"tokens{self.block}"
        return feature_key(
            self.encoder.fingerprint, self.encoder.dtype, kind, f"{content}\n".encode() + _packed(ids)
        )

    def image_features(self, states: list[Tensor]) -> Floats:
        """There are none."""
        return np.empty((len(states), 0), dtype=np.float32)

    @torch.inference_mode()
    def run_pairs(self, states: list[Tensor], pairs: Sequence[tuple[int, Ids, str]]) -> Arriving:
        """(rows, hidden) of pairs (position in `states`, token ids, key)."""
        images = {position: number for number, position in enumerate(dict.fromkeys(p for p, _, _ in pairs))}
        texts = {ids: number for number, ids in enumerate(dict.fromkeys(ids for _, ids, _ in pairs))}
        lower = self.encoder.text_states(list(texts), self.cache, self.batch_size)
        with exact_float32(self.encoder.device):
            found = self.encoder.model.text_states(
                lower,
                [states[position] for position in images],
                [(texts[ids], images[position]) for position, ids, _ in pairs],
                self.block,
            )
        if self.keeps:
            self.on_device.update((key, rows) for (_, _, key), rows in zip(pairs, found, strict=True))
        return arrays_of(found)

    def features(self, item: Encoded) -> TokenFeatures:
        """The features of an item's texts, in order."""
        arrays = item.arrays
        if arrays is None:
            return TokenFeatures(None, item.content, item.error)
        keys = [self.pair_key(item.content, ids) for ids in item.extra.ids]
        there = {key: self.on_device.pop(key, None) for key in dict.fromkeys(keys)}
        features = [arrays[key] for key in keys]
        return TokenFeatures(features, item.content, None, [there[key] for key in keys])


def block_of(config: dict[str, Any], layer: int) -> int:
    """The number of a co-attention block of a config's model, by a number from either end.

    Raises:
        ValueError: there is none.

    >>> block_of({"architecture": {"text_layers_before": [6, 7, 8, 9, 10, 11]}}, -1)
    5
    """
    count = len(config["architecture"]["text_layers_before"])
    if not -count <= layer < count:
        raise ValueError(
            f"layer={layer}: these weights have {count} co-attention blocks: give a number from 0 to "
            f"{count - 1}, or from -{count} to -1"
        )
    return layer % count


def _packed(ids: Ids) -> bytes:
    return np.array(ids, dtype="<u4").tobytes()
