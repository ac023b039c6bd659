"""What networks over a text and the boxes of an image share: BERT's layers, and how boxes get there."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from capeval_core.encoders.pairs import LayerSizes, PairEncoder
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.models.config import read

EPS = 1e-12
"""Of layer norms."""


def bert_config(sizes: LayerSizes, dropout: float) -> Any:
    """transformers' configuration of BERT layers of these sizes."""
    from transformers import BertConfig

    common: dict[str, Any] = {
        **{"type_vocab_size": 2, "layer_norm_eps": EPS, "hidden_act": "gelu"},
        **{"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout},
    }
    return BertConfig(**{**vars(sizes), **common})


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


class RegionTextEncoder(PairEncoder):
    """A network over the tokens of a text and the boxes of an image."""

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
