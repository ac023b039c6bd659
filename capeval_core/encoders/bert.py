"""Layers of BERT on packed rows, as transformers builds them; on CUDA with fewer passes over memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from capeval_core.encoders.packed import Packing, attend


def bert_layer(
    layer: Any,
    rows: Tensor,
    packing: Packing,
    heads: int,
    *,
    starts: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """One of transformers' BERT layers on packed rows; with `starts`, the first row of each sequence only."""
    own, of_own = (rows, packing) if starts is None else (rows[starts], packing.firsts)
    attention = layer.attention.self
    query, keys, values = attention.query(own), attention.key(rows), attention.value(rows)
    attended = attend(query, keys, values, heads, of_own, packing, dropout=dropout)
    merged = merge(layer.attention.output, attended, own)
    return merge(layer.output, layer.intermediate(merged), merged)


def merge(output: Any, rows: Tensor, before: Tensor) -> Tensor:
    """The layer norm of W rows + b + before, by the module of transformers that ends a half of a layer."""
    if rows.device.type == "cuda" and not (torch.is_grad_enabled() or output.training):  # no gradient here
        from capeval_core.encoders.cuda_blocks import usable_kernels

        if usable_kernels(rows.device, rows.dtype).passes:
            from capeval_core.encoders.cuda_bert import add_norm

            norm = output.LayerNorm
            return add_norm(output.dense(rows), before, norm.weight, norm.bias, norm.eps)
    merged: Tensor = output(rows, before)
    return merged
