"""What networks over a text and the boxes of an image share: BERT's layers, and how boxes get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capeval_core.encoders.packed import Packing, groups_of, rows_of_sequences, starts_of
from capeval_core.encoders.pairs import PairEncoder
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.models.config import Layers, Width, read
from capeval_core.models.copies import indices_on_device

EPS = 1e-12
"""Of layer norms."""


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of transformer layers, under transformers' names."""

    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Width
    intermediate_size: Width

    def __post_init__(self) -> None:
        check_heads(self.hidden_size, self.num_attention_heads)


@dataclass(frozen=True)
class BertSizes(LayerSizes):
    """Sizes of a transformer over texts."""

    vocab_size: Width
    max_position_embeddings: Width


def check_heads(width: int, heads: int) -> None:
    """Raise ValueError where heads do not share a width."""
    if width % heads:
        raise ValueError(f"hidden_size {width} is no multiple of the {heads} heads")


def bert_config(sizes: Mapping[str, Any], dropout: float) -> Any:
    """transformers' configuration of BERT layers of these sizes."""
    from transformers import BertConfig

    common = {
        **{"type_vocab_size": 2, "layer_norm_eps": EPS, "hidden_act": "gelu"},
        **{"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout},
    }
    return BertConfig(**{**sizes, **common})


def bert_embeddings(config: Any) -> Any:
    """transformers' embeddings of tokens, without buffers that are in no file and only its forward reads."""
    from transformers.models.bert.modeling_bert import BertEmbeddings

    embeddings: Any = BertEmbeddings(config)  # type: ignore[no-untyped-call]
    del embeddings.position_ids, embeddings.token_type_ids
    return embeddings


def bert_layers(config: Any) -> nn.ModuleList:
    """transformers' layers."""
    from transformers.models.bert.modeling_bert import BertLayer

    return nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Sorted:
    """Sequences of rows, the shortest first.

    packing: where they stand. order: rows of the sequences as they came, in that order. back: the reverse.
    rank: (sequences,) the position of each among the sorted ones.
    """

    packing: Packing
    order: Tensor
    back: Tensor
    rank: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device, *padding: float) -> Sorted:
        """Sequences of these lengths; `padding` as for `groups_of`."""
        by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
        own, rank = [lengths[i] for i in by_length], np.argsort(by_length)
        offsets, *rows = indices_on_device(
            device,
            starts_of(own),
            rows_of_sequences(lengths, by_length),
            rows_of_sequences(own, rank),
            rank,
        )
        return cls(Packing(own, groups_of(own, *padding), offsets.int()), *rows)


class RegionTextEncoder(PairEncoder):
    """A network over the tokens of a text and the boxes of an image."""

    visual_rows = 100  # about

    @classmethod
    def region_size_of(cls, config: dict[str, Any]) -> int:
        """Numbers of a box's features, by the config of weights."""
        return int(read(cls.Settings, config, "").region_size)

    @property
    def region_size(self) -> int:
        """Numbers of a box's features."""
        return int(self.settings.region_size)

    def canary_boxes(self) -> list[InputBoxes]:
        """Box features from formulas: diagonals of 5 and of 12 boxes whose features are waves."""
        found = []
        for count in (5, 12):
            corners = np.arange(count, dtype=np.float32)[:, None] * [3, 2]
            phase = np.outer(np.arange(1, count + 1), np.arange(self.region_size))
            boxes = {
                "boxes": np.concatenate([corners, np.add(corners, [20, 15])], axis=1).astype(np.float32),
                "features": np.maximum(np.sin(phase), 0).astype(np.float32),
                "size": (20 + 3 * count, 15 + 2 * count),
            }
            found.append(InputBoxes.of(boxes))
        return found
