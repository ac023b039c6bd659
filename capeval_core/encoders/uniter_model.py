"""UNITER's modules and its forward pass over sequences without padding.

Chen, Li, Yu, El Kholy, Ahmed, Gan, Cheng, Liu: UNITER: UNiversal Image-TExt Representation Learning, ECCV
2020, https://arxiv.org/abs/1909.11740

The tokens of a text and the boxes of an image form one sequence. The original pads every sequence of a batch
to the longest; here the sequences stand one after another in one tensor, and attention runs within each
(`packed`). Boxes are embedded once per image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capeval_core.encoders.bert import bert_layer
from capeval_core.encoders.packed import Packing, groups_of, rows_of_sequences, starts_of
from capeval_core.encoders.tokenizers import Ids
from capeval_core.models.architecture import filled, is_whole, shown, size_problems
from capeval_core.models.copies import indices_on_device
from capeval_core.models.device import DTYPES

POSITION = 7
"""Numbers of a box's position: x0, y0, x1, y1, width, height, area, all relative to the image."""
EPS = 1e-12
"""Of layer norms."""
_SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "region_size",
)


class RegionEmbeddings(nn.Module):
    """Boxes as tokens: LN(LN(feature W) + LN(position W) + type)."""

    def __init__(self, region_size: int, hidden_size: int) -> None:
        super().__init__()
        self.feature = nn.Linear(region_size, hidden_size)
        self.feature_norm = nn.LayerNorm(hidden_size, eps=EPS)
        self.position = nn.Linear(POSITION, hidden_size)
        self.position_norm = nn.LayerNorm(hidden_size, eps=EPS)
        self.norm = nn.LayerNorm(hidden_size, eps=EPS)

    def forward(self, features: Tensor, positions: Tensor, type_embedding: Tensor) -> Tensor:
        """(n, hidden) of features (n, region_size) and positions (n, 7)."""
        feature = self.feature_norm(self.feature(features))
        embedded: Tensor = self.norm(feature + self.position_norm(self.position(positions)) + type_embedding)
        return embedded


class Uniter(nn.Module):
    """UNITER with its matching head (image and text belong together: no, yes) and UMIC's ranking head.

    Layers are transformers' BERT layers. `architecture` has the sizes under transformers' names, and
    `region_size`, the width of a box's features.
    """

    def __init__(self, architecture: dict[str, Any], dropout: float = 0.0) -> None:
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer

        super().__init__()
        sizes = {name: architecture[name] for name in _SIZES if name != "region_size"}
        config = BertConfig(
            **sizes,
            type_vocab_size=2,
            layer_norm_eps=EPS,
            hidden_act="gelu",
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
        hidden = architecture["hidden_size"]
        self.heads = architecture["num_attention_heads"]
        self.embeddings: Any = BertEmbeddings(config)  # type: ignore[no-untyped-call]
        # Buffers that are in no file, and which only transformers' own forward reads.
        del self.embeddings.position_ids, self.embeddings.token_type_ids
        self.region_embeddings = RegionEmbeddings(architecture["region_size"], hidden)
        layers = [BertLayer(config) for _ in range(config.num_hidden_layers)]  # type: ignore[no-untyped-call]
        self.layers = nn.ModuleList(layers)
        self.pooler = nn.Linear(hidden, hidden)
        self.matching_head = nn.Linear(hidden, 2)
        self.ranking_head = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)

    def embed_texts(self, ids: Tensor, positions: Tensor) -> Tensor:
        """(n, hidden) of token ids (n,) at their positions (n,) in their texts."""
        table = self.embeddings
        embedded = table.word_embeddings(ids) + table.position_embeddings(positions)
        normed = table.LayerNorm(embedded + table.token_type_embeddings.weight[0])
        dropped: Tensor = self.dropout(normed)
        return dropped

    def embed_regions(self, features: Tensor, positions: Tensor) -> Tensor:
        """(n, hidden) of features (n, region_size) and positions (n, 7) of boxes."""
        types = self.embeddings.token_type_embeddings.weight
        dropped: Tensor = self.dropout(self.region_embeddings(features, positions, types[1]))
        return dropped

    def states(self, regions: Sequence[Tensor], texts: Sequence[Ids]) -> list[Tensor]:
        """Hidden states of all layers, embeddings first, of each pair: (tokens + boxes, hidden) one by one.

        regions: per pair (boxes, hidden) embeddings of its image's boxes. Each item of the result holds the
        pairs one after another, in order.
        """
        batch = Sequences.of(self, regions, texts)
        states = [batch.rows]
        for layer in self.layers:
            states.append(self._layer(layer, states[-1], batch))
        return [batch.in_order(rows) for rows in states]

    def pooled(self, regions: Sequence[Tensor], texts: Sequence[Ids]) -> Tensor:
        """(pairs, hidden): tanh(W h) of each pair's first token. `regions` as for `states`."""
        batch = Sequences.of(self, regions, texts)
        rows = batch.rows
        for layer in self.layers[:-1]:
            rows = self._layer(layer, rows, batch)
        first = self._layer(self.layers[-1], rows, batch, first=True)
        return torch.tanh(self.pooler(first[batch.rank]))

    def ranking_logits(self, regions: Sequence[Tensor], texts: Sequence[Ids]) -> Tensor:
        """(pairs,) logits of the ranking head. `regions` as for `states`."""
        logits: Tensor = self.ranking_head(self.pooled(regions, texts))
        return logits[:, 0]

    def matching_logits(self, regions: Sequence[Tensor], texts: Sequence[Ids]) -> Tensor:
        """(pairs, 2) logits of the matching head: no match, match. `regions` as for `states`."""
        logits: Tensor = self.matching_head(self.dropout(self.pooled(regions, texts)))
        return logits

    def init_ranking_head(self) -> None:
        """Set the ranking head to the matching head's row for a match, from which UMIC's training starts."""
        with torch.no_grad():
            self.ranking_head.weight.copy_(self.matching_head.weight[1:])
            self.ranking_head.bias.copy_(self.matching_head.bias[1:])

    def _layer(self, layer: Any, rows: Tensor, batch: Sequences, *, first: bool = False) -> Tensor:
        """The rows after a layer; `first`: only each sequence's first row, (pairs, hidden)."""
        starts, dropout = batch.starts if first else None, self.dropout.p if self.training else 0.0
        return bert_layer(layer, rows, batch.packing, self.heads, starts=starts, dropout=dropout)


@dataclass(frozen=True)
class Sequences:
    """Embedded tokens and boxes of pairs, one sequence after another, the shortest first.

    rows: (sum of lengths, hidden). starts: (pairs,) first row of each sequence. rank: (pairs,) the position
    of each pair among the sorted sequences. order: (sum of lengths,) rows in the order of the pairs.
    packing: where each stands.
    """

    rows: Tensor
    starts: Tensor
    rank: Tensor
    order: Tensor
    packing: Packing

    @classmethod
    def of(cls, model: Uniter, regions: Sequence[Tensor], texts: Sequence[Ids]) -> Sequences:
        """Embed texts and put each before its image's boxes."""
        device = model.pooler.weight.device
        lengths = [len(ids) + len(boxes) for ids, boxes in zip(texts, regions, strict=True)]
        by_length = sorted(range(len(texts)), key=lengths.__getitem__)
        sorted_lengths = [lengths[i] for i in by_length]
        begin, rank = starts_of(sorted_lengths), np.argsort(by_length)
        ids, positions, offsets, rank_there, order = indices_on_device(
            device,
            [index for i in by_length for index in texts[i]],
            np.concatenate([np.arange(len(texts[i])) for i in by_length]),
            begin,
            rank,
            rows_of_sequences(sorted_lengths, rank),
        )
        embedded = torch.split(model.embed_texts(ids, positions), [len(texts[i]) for i in by_length])
        rows = torch.cat(
            [part for own, i in zip(embedded, by_length, strict=True) for part in (own, regions[i])]
        )
        packing = Packing(sorted_lengths, groups_of(sorted_lengths), offsets.int())
        return cls(rows, offsets[:-1], rank_there, order, packing)

    def in_order(self, rows: Tensor) -> Tensor:
        """Rows as the pairs were given."""
        return rows[self.order]


def build_uniter(architecture: dict[str, Any], tensors: dict[str, Tensor], dtype: str) -> Uniter:
    """UNITER with exactly these tensors, in eval mode.

    Raises:
        WeightsError: an architecture that cannot be built; tensors that are missing, extra or misshaped.
    """
    return filled(empty_uniter(architecture), tensors, DTYPES[dtype])


def empty_uniter(architecture: dict[str, Any]) -> Uniter:
    """UNITER on torch's meta device: no memory, and no random numbers for what is overwritten."""
    with torch.device("meta"):
        return Uniter(architecture)


def config_problems(config: dict[str, Any]) -> list[str]:
    """What is missing or of the wrong kind, in words; an empty list if all is well."""
    shape = config["architecture"]
    if not isinstance(shape, dict):
        return [f"architecture is {shown(shape)}, expected an object"]
    problems = size_problems(shape, "architecture")
    if lacking := [name for name in _SIZES if shape.get(name) is None]:
        problems.append(f"architecture lacks {', '.join(lacking)}")
    if problems:
        return problems
    if shape["hidden_size"] % shape["num_attention_heads"]:
        problems.append(
            f"hidden_size {shape['hidden_size']} is no multiple of the {shape['num_attention_heads']} heads"
        )
    longest = shape["max_position_embeddings"]
    if not is_whole(config["context_length"], range(3, longest + 1)):
        problems.append(
            f"context_length is {shown(config['context_length'])}, expected a whole number from 3 to "
            f"{longest}"
        )
    return problems
