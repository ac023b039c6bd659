"""UNITER: one transformer over the tokens of a caption and the boxes of an image.

Chen, Li, Yu, El Kholy, Ahmed, Gan, Cheng, Liu: UNITER: UNiversal Image-TExt Representation Learning, ECCV
2020, https://arxiv.org/abs/1909.11740

The original pads every sequence of a batch to the longest; here the sequences stand one after another in one
tensor, and attention runs within each (`packed`). Boxes are embedded once per image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.blocks import bert_layer
from capeval_core.encoders.packed import Packing, Sorted
from capeval_core.encoders.pairs import (
    EPS,
    BertSizes,
    Pair,
    RegionTextEncoder,
    TextSettings,
    bert_embeddings,
    bert_layers,
)
from capeval_core.encoders.tokenizers import Ids
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.models.config import Switch, Width, read
from capeval_core.models.device import DTYPES, exact, indices_on_device, rows_on_device
from capeval_core.models.model import TEXTS
from capeval_core.options import option
from capeval_core.ragged import Floats, ranges
from capeval_core.weights.conversion import BertConversion, Shapes, Tensors


@dataclass(frozen=True)
class _UniterSizes(BertSizes):
    region_size: Width


@dataclass(frozen=True)
class _UniterSettings(TextSettings):
    architecture: _UniterSizes
    lowercase: Switch


class RegionInput(NamedTuple):
    """UNITER's input for n boxes: features (n, region_size) float16 and positions (n, 7) float32."""

    features: NDArray[np.float16]
    positions: Floats


@dataclass(frozen=True)
class Rankings:
    """An image and the (n,) logits of its captions; NaN where its boxes could not be read, for an `error`."""

    logits: Floats
    key: str
    error: str | None


def region_input(boxes: BoxFeatures) -> RegionInput:
    """Features and positions of boxes as UNITER was trained with them. A position is x0, y0, x1, y1, width
    and height relative to the image, and their area. UNITER's training data holds features and positions in
    float16, so both are rounded to it; the area is the product of the rounded width and height. ValueError
    where the size of the image is not known."""
    with np.errstate(over="ignore"):  # an infinity is refused below, in words
        features = boxes.features.astype(np.float16)
    if not np.isfinite(features).all():
        raise ValueError("a feature exceeds the range of float16, in which this network was trained")
    relative = boxes.relative().astype(np.float16).astype(np.float32)
    area = relative[:, 4:5] * relative[:, 5:6]
    return RegionInput(features, np.concatenate([relative, area], axis=1))


class Uniter(nn.Module):
    """UNITER with its matching head (image and text belong together: no, yes) and UMIC's ranking head.
    `regions` of its methods are, per pair, the (boxes, hidden) embeddings of its image's boxes."""

    def __init__(self, architecture: Mapping[str, Any], dropout: float = 0.0) -> None:
        super().__init__()
        sizes = read(_UniterSizes, architecture)
        config, layers = bert_layers(sizes, dropout)
        self.heads = sizes.num_attention_heads
        hidden = sizes.hidden_size
        self.embeddings = bert_embeddings(config)
        self.region_embeddings = nn.ModuleDict(
            {
                "feature": nn.Linear(sizes.region_size, hidden),
                "feature_norm": nn.LayerNorm(hidden, eps=EPS),
                "position": nn.Linear(7, hidden),
                "position_norm": nn.LayerNorm(hidden, eps=EPS),
                "norm": nn.LayerNorm(hidden, eps=EPS),
            }
        )
        self.layers = layers
        self.pooler = nn.Linear(hidden, hidden)
        self.matching_head = nn.Linear(hidden, 2)
        self.ranking_head = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)

    def embed_texts(self, ids: Tensor, positions: Tensor) -> Tensor:
        """(n, hidden) of token ids (n,) at their positions (n,) in their texts."""
        table = self.embeddings
        embedded = table.word_embeddings(ids) + table.position_embeddings(positions)
        dropped: Tensor = self.dropout(table.LayerNorm(embedded + table.token_type_embeddings.weight[0]))
        return dropped

    def embed_regions(self, features: Tensor, positions: Tensor) -> Tensor:
        """Boxes as tokens, (n, hidden): LN(LN(feature W) + LN(position W) + type)."""
        table: Any = self.region_embeddings
        feature = table.feature_norm(table.feature(features))
        position = table.position_norm(table.position(positions))
        embedded = table.norm(feature + position + self.embeddings.token_type_embeddings.weight[1])
        dropped: Tensor = self.dropout(embedded)
        return dropped

    def states(self, regions: Sequence[Tensor], texts: Sequence[Ids]) -> list[Tensor]:
        """Hidden states of all layers, embeddings first: (tokens + boxes, hidden) of each pair in order."""
        rows, packed = self._embedded(regions, texts)
        states = [rows[packed.back]]
        for layer in self.layers:
            rows = self._layer(layer, rows, packed.packing)
            states.append(rows[packed.back])
        return states

    def pooled(self, regions: Sequence[Tensor], texts: Sequence[Ids]) -> Tensor:
        """(pairs, hidden): tanh(W h) of each pair's first token."""
        rows, packed = self._embedded(regions, texts)
        for layer in self.layers[:-1]:
            rows = self._layer(layer, rows, packed.packing)
        # Of the last layer only the first token is read: its other rows give keys and values alone.
        first = self._layer(self.layers[-1], rows, packed.packing, packed.packing.offsets[:-1])
        return torch.tanh(self.pooler(first[packed.rank]))

    def _embedded(self, regions: Sequence[Tensor], texts: Sequence[Ids]) -> tuple[Tensor, Sorted]:
        """Tokens of texts, each before its image's boxes, the shortest pair first, and their packing."""
        lengths = [len(text) + len(boxes) for text, boxes in zip(texts, regions, strict=True)]
        by_length = sorted(range(len(texts)), key=lengths.__getitem__)  # in which dropout is drawn
        token_ids: list[int] = []
        text_lengths = []
        for i in by_length:
            token_ids.extend(texts[i])
            text_lengths.append(len(texts[i]))
        sizes = np.array(text_lengths)
        ids, positions = indices_on_device(
            self.pooler.weight.device, token_ids, ranges(np.zeros_like(sizes), sizes)
        )
        rows: list[Tensor] = []
        tokens = torch.split(self.embed_texts(ids, positions), text_lengths)
        for i, text in zip(by_length, tokens, strict=True):
            rows += [text, regions[i]]
        return torch.cat(rows), Sorted.of(lengths, ids.device)

    def _layer(self, layer: Any, rows: Tensor, packing: Packing, starts: Tensor | None = None) -> Tensor:
        """The rows after a layer; with `starts`, only each sequence's first row, (pairs, hidden)."""
        dropout = self.dropout.p if self.training else 0.0
        return bert_layer(layer, rows, packing, self.heads, starts=starts, dropout=dropout)

    def ranking_logits(self, regions: Sequence[Tensor], texts: Sequence[Ids]) -> Tensor:
        """(pairs,) logits of the ranking head."""
        logits: Tensor = self.ranking_head(self.pooled(regions, texts))
        return logits[:, 0]

    def matching_logits(self, regions: Sequence[Tensor], texts: Sequence[Ids]) -> Tensor:
        """(pairs, 2) logits of the matching head: no match, match."""
        logits: Tensor = self.matching_head(self.dropout(self.pooled(regions, texts)))
        return logits

    def init_ranking_head(self) -> None:
        """Set the ranking head to the matching head's row for a match, from which UMIC's training starts."""
        with torch.no_grad():
            # [1:], not [1], which would lose the axis of outputs.
            self.ranking_head.weight.copy_(self.matching_head.weight[1:])
            self.ranking_head.bias.copy_(self.matching_head.bias[1:])


@dataclass(frozen=True, kw_only=True)
class UniterConversion(BertConversion):
    """UMIC's scorer, or a UNITER with its matching head, whose row for a match becomes the ranking head."""

    encoder = "uniter"
    keeps_type = True  # of UMIC float16: half the size, no loss

    heads: int | None = option(None, "attention heads; None: the width / 64", minimum=1)

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        tensors = super().translate(content, notes)
        if "ranking_head.weight" not in tensors:
            for part in ("weight", "bias"):
                head = tensors[f"matching_head.{part}"]
                if not head.ndim:
                    raise ValueError(f"itm_output.{part} is a single number, expected a row for a match")
                # A copy: safetensors refuses to save two names of one memory.
                tensors[f"ranking_head.{part}"] = head[1:].clone()
            start = "so this is not UMIC but what its training starts from"
            notes.append(f"no ranking head, {start}: the matching head's row for a match stands in")
        return tensors

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        config = super().config(shapes, content, notes)
        return {**config, "vocabulary": self.words(config["architecture"]["vocab_size"], notes)}


class UniterEncoder(RegionTextEncoder, tags=["image-captioning", "uniter"]):
    """UNITER with a ranking head, on transformers' BERT layers. Boxes are embedded once per image, however
    many captions it is ranked with; no caption or box is padded."""

    kind = "uniter"
    described = (
        "UNITER {num_hidden_layers}x{hidden_size}, box features of {region_size} numbers, {vocab_size} words"
    )
    revision = 2  # texts are split as by `str.split`
    Settings = _UniterSettings
    Network = Uniter
    text_sizes = attrgetter("architecture")
    depends_on = ("architecture", "context_length", "vocabulary", "lowercase")
    Conversion = UniterConversion
    splits = True

    model: Uniter

    def rank(
        self,
        boxes: Iterable[Any],
        captions: Iterable[Sequence[str]],
        *,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[Rankings]:
        """Ranking logits of every image with each of its captions, in order; see `encode_pairs`."""
        for item in self.encode_pairs(boxes, captions, self._run_pairs, "rank", cache, batch_size):
            logits = np.full(len(item.extra.ids), np.nan, dtype=np.float32)
            if item.arrays:
                for row, ids in enumerate(item.extra.ids):
                    logits[row] = item.arrays[self.pair_key("rank", item.content, ids)][0]
            yield Rankings(logits, item.content, item.error)

    def prepare_visual(self, loaded: BoxFeatures) -> RegionInput:
        loaded.check_width(self.region_size)
        return region_input(loaded)

    @exact
    def states(self, prepared: Sequence[RegionInput]) -> list[Tensor]:
        """(boxes, hidden) embedded boxes of each image, on the encoder's device."""
        dtype = DTYPES[self.dtype]
        features = rows_on_device(self.device, [boxes.features for boxes in prepared], dtype)
        positions = rows_on_device(self.device, [boxes.positions for boxes in prepared], dtype)
        embedded = self.model.embed_regions(features, positions)  # (boxes of all images, hidden)
        return list(torch.split(embedded, [len(boxes.positions) for boxes in prepared]))

    @exact
    def _run_pairs(self, states: list[Tensor], pairs: Sequence[Pair]) -> Tensor:
        """(n, 1) ranking logits of pairs."""
        regions = [states[position] for position, _, _ in pairs]
        return self.model.ranking_logits(regions, [ids for _, ids, _ in pairs])[:, None]  # an array per pair

    def canary(self) -> Floats:
        """(2, 3): probabilities by the ranking head of two made-up images with three captions."""
        ranked = self.rank(self.canary_boxes(), [TEXTS, TEXTS], cache=FeatureCache(0))
        return np.stack([1 / (1 + np.exp(-ranking.logits)) for ranking in ranked])
