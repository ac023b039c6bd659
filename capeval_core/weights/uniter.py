"""UMIC's released scorer and the UNITER it was tuned from: names, sizes and words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from capeval_core.options import option
from capeval_core.weights.conversion import (
    Conversion,
    Shapes,
    Tensors,
    as_released,
    count_blocks,
    heads_of,
    rename,
    required_words,
    shape_of,
)

_HEAD = 64
"""Width of the heads of the released models."""
_RANKING = "ranking_head"


@dataclass(frozen=True, kw_only=True)
class UniterConversion(Conversion):
    """UMIC's scorer, or a UNITER with its matching head, whose row for a match becomes the ranking head."""

    encoder = "uniter"
    title = "UNITER with matching and ranking heads"
    anchors = ("uniter.embeddings.word_embeddings.weight",)
    # Heads of other pretraining tasks, and the vector of boxes that those tasks mask.
    unused = r"cls\.|feat_regress\.|region_classifier\.|uniter\.img_embeddings\.mask_embedding\."
    names = (
        (r"^uniter\.img_embeddings\.img_linear\.", "region_embeddings.feature."),
        (r"^uniter\.img_embeddings\.img_layer_norm\.", "region_embeddings.feature_norm."),
        (r"^uniter\.img_embeddings\.pos_linear\.", "region_embeddings.position."),
        (r"^uniter\.img_embeddings\.pos_layer_norm\.", "region_embeddings.position_norm."),
        (r"^uniter\.img_embeddings\.LayerNorm\.", "region_embeddings.norm."),
        (r"^uniter\.embeddings\.", "embeddings."),
        (r"^uniter\.encoder\.layer\.", "layers."),
        (r"^uniter\.pooler\.dense\.", "pooler."),
        (r"^itm_output\.", "matching_head."),
        (r"^rank_output\.", f"{_RANKING}."),
        (r"\.gamma$", ".weight"),  # of norms, in checkpoints of the first versions of BERT's code
        (r"\.beta$", ".bias"),
    )
    default_licence = "MIT"  # of their code

    vocabulary: str | None = option(
        None, "vocab.txt of bert-base-cased, whose tokenizer the model was trained with"
    )
    heads: int | None = option(None, "attention heads; None: the width / 64", minimum=1)

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        tensors = rename(as_released(content, notes), self.names)  # of UMIC float16: half the size, no loss
        if not any(name.startswith(f"{_RANKING}.") for name in tensors):
            for part in ("weight", "bias"):
                head: Tensor = tensors[f"matching_head.{part}"]
                if not head.ndim:
                    raise ValueError(f"itm_output.{part} is a single number, expected a row for a match")
                tensors[f"{_RANKING}.{part}"] = head[1:].clone()
            notes.append(
                "there is no ranking head, so this is not UMIC but what its training starts from: the "
                "matching head's row for a match stands in"
            )
        return tensors

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        rows, width = shape_of(shapes, "embeddings.word_embeddings.weight", 2)
        positions, _ = shape_of(shapes, "embeddings.position_embeddings.weight", 2)
        words = required_words(self.vocabulary, "google-bert/bert-base-cased", rows, notes)
        return {
            "architecture": {
                "vocab_size": rows,
                "hidden_size": width,
                "num_hidden_layers": count_blocks(shapes, r"layers\.(\d+)\."),
                "num_attention_heads": heads_of(width, self.heads, _HEAD, "heads"),
                "intermediate_size": shape_of(shapes, "layers.0.intermediate.dense.weight", 2)[0],
                "max_position_embeddings": positions,
                "region_size": shape_of(shapes, "region_embeddings.feature.weight", 2)[1],
            },
            "context_length": positions,
            "vocabulary": words,
            "lowercase": False,
        }
