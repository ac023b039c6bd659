"""The configuration of a BLIP-2, and its modules filled strictly and run without repeating an image.

transformers' own forward asks for as many images as captions. Here the captions of an image look at its
states together: cross-attention treats every query by itself, so the queries of all captions of an image are
one long sequence to it, and the image's keys and values are made once for all of them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.cuda_blocks import Dense, Kernels, run_packed
from capeval_core.models.architecture import (
    filled,
    is_whole,
    scaling_problems,
    shown,
    size_problems,
)
from capeval_core.models.device import DTYPES
from capeval_core.weights.blip2 import empty_model

_READ = {
    "vision": ("image_size",),
    "qformer": ("vocab_size", "max_position_embeddings"),
    "": ("num_query_tokens", "image_text_hidden_size"),
}
"""Sizes that are read here; the others are transformers' business, which has defaults."""


def build_blip2(architecture: dict[str, Any], tensors: dict[str, Tensor], dtype: str) -> nn.Module:
    """BLIP-2 with exactly these tensors, in eval mode.

    Raises:
        WeightsError: an architecture that cannot be built; tensors that are missing, extra or misshaped.
    """
    model: Any = filled(empty_blip2(architecture), tensors, DTYPES[dtype])
    # A buffer that is in no file, and which only transformers' own forward reads.
    positions = architecture["qformer"]["max_position_embeddings"]
    model.embeddings.position_ids = torch.arange(positions).expand(1, -1)
    built: nn.Module = model
    return built


def empty_blip2(architecture: dict[str, Any]) -> nn.Module:
    """BLIP-2 on torch's meta device: no memory, and no random numbers for what is overwritten.

    Raises:
        WeightsError: an architecture that cannot be built.
    """
    with torch.device("meta"):
        return empty_model(architecture)


def image_states(model: Any, pixels: Tensor, kernels: Kernels | None = None) -> Tensor:
    """(images, patches + 1, width): the vision tower's states of normalised pixels (images, 3, n, n).

    `kernels` are what its blocks run with on CUDA, without gradients; None: transformers' own steps.
    """
    tower = model.vision_model
    if kernels is None or tower.config.hidden_act != "gelu":
        states: Tensor = tower(pixel_values=pixels).last_hidden_state
        return states
    x = tower.embeddings(pixels)
    blocks = [_Block(layer) for layer in tower.encoder.layers]
    attention = Dense(len(x), tower.config.num_attention_heads)
    rows = run_packed(blocks, x.flatten(0, 1), attention, kernels)
    normed: Tensor = tower.post_layernorm(rows)
    return normed.view(x.shape)


class _Block:
    """A layer of the vision tower under the names of CLIP's blocks, whose steps are the same."""

    def __init__(self, layer: Any) -> None:
        own = layer.self_attn
        self.ln_1, self.ln_2, self.mlp = layer.layer_norm1, layer.layer_norm2, _Mlp(layer.mlp)
        self.attn = SimpleNamespace(
            in_proj_weight=own.qkv.weight, in_proj_bias=own.qkv.bias, out_proj=own.projection
        )


class _Mlp:
    """Two linear layers and the activation between them."""

    def __init__(self, mlp: Any) -> None:
        self.c_fc, self.gelu, self.c_proj = mlp.fc1, mlp.activation_fn, mlp.fc2

    def __call__(self, x: Tensor) -> Tensor:
        done: Tensor = self.c_proj(self.gelu(self.c_fc(x)))
        return done


def embed_tokens(model: Any, ids: Tensor) -> Tensor:
    """(n, length, width) embeddings of token ids (n, length), before the first norm."""
    positions = model.embeddings.position_embeddings.weight[: ids.shape[1]]
    embedded: Tensor = model.embeddings.word_embeddings(ids) + positions
    return embedded


def query_states(model: Any, states: Tensor) -> Tensor:
    """(images, queries, width): the query tokens after looking at each image alone."""
    queries = model.query_tokens.expand(len(states), -1, -1)
    count = queries.shape[1]
    return run_qformer(model.qformer, queries, queries=count, read=count, states=states)


def text_states(model: Any, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """(n, width): the first token of each text, read without an image. mask: (n, length), true on tokens."""
    return run_qformer(model.qformer, embed_tokens(model, ids), queries=0, read=1, mask=mask)[:, 0]


def matched_states(
    model: Any, states: Tensor, ids: Tensor, mask: Tensor | None = None, *, with_text: bool = False
) -> Tensor:
    """(n, queries, width): the query tokens after looking at an image and its text together.

    states (images, patches + 1, width); ids (n, length) hold equally many texts per image, those of the
    first image first; mask (n, length) is true on tokens, None where there is no padding. `with_text`: the
    states of the text's tokens follow.
    """
    queries = model.query_tokens.expand(len(ids), -1, -1)
    count = queries.shape[1]
    if mask is not None:
        mask = functional.pad(mask, (count, 0), value=True)
    both = torch.cat([queries, embed_tokens(model, ids)], dim=1)
    read = both.shape[1] if with_text else count
    return run_qformer(model.qformer, both, queries=count, read=read, states=states, mask=mask)


def run_qformer(
    qformer: Any,
    x: Tensor,
    *,
    queries: int,
    read: int,
    states: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """(n, read, width): the last states of the first tokens of `x` (n, length, width).

    The `queries` query tokens stand first. They and only they look at `states` (images, patches + 1,
    width), n being a multiple of the images. mask: (n, length), true where a token may be looked at.
    """
    x = qformer.layernorm(x)
    attention_mask = None if mask is None else mask[:, None, None, :]
    layers = qformer.encoder.layer
    for depth, layer in enumerate(layers):
        rows = x[:, :read] if depth == len(layers) - 1 else x  # all that depends on these alone
        rows = _attend(layer.attention, rows, x, attention_mask)
        if not queries:
            x = layer.feed_forward_chunk(rows)
            continue
        query_rows = rows[:, :queries].contiguous()  # linear layers are slow on what is not
        if layer.has_cross_attention and states is not None:
            together = query_rows.reshape(len(states), -1, query_rows.shape[-1])
            query_rows = _attend(layer.crossattention, together, states).view(query_rows.shape)
        query_rows = layer.feed_forward_chunk_query(query_rows)
        if rows.shape[1] > queries:
            query_rows = torch.cat(
                [query_rows, layer.feed_forward_chunk(rows[:, queries:].contiguous())], dim=1
            )
        x = query_rows
    return x


def _attend(module: Any, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of `x` to `context`, with its projection, residual sum and norm."""
    attention = module.attention
    heads = attention.num_attention_heads
    query, keys, values = (
        projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)
        for projected in (attention.query(x), attention.key(context), attention.value(context))
    )
    attended = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    output: Tensor = module.output(attended.transpose(1, 2).flatten(2), x)
    return output


def config_problems(config: dict[str, Any]) -> list[str]:
    """What is missing or of the wrong kind, in words; an empty list if all is well."""
    shape, preprocessing = config["architecture"], config["preprocessing"]
    if not isinstance(shape, dict):
        return [f"architecture is {shown(shape)}, expected an object"]
    problems = size_problems(shape, "architecture")
    for tower, keys in _READ.items():
        part = shape.get(tower) if tower else shape
        lacks = [key for key in keys if not isinstance(part, dict) or part.get(key) is None]
        problems += [f"architecture{tower and '.'}{tower} lacks {', '.join(lacks)}"] if lacks else []
    if not isinstance(preprocessing, dict):
        problems.append(f"preprocessing is {shown(preprocessing)}, expected an object")
    if problems:
        return problems
    sized = shape["vision"]["image_size"]
    if (preprocessing.get("image_size"), preprocessing.get("interpolation")) != (sized, "bicubic"):
        problems.append(
            f"preprocessing says {shown(preprocessing.get('interpolation'))}, "
            f"{shown(preprocessing.get('image_size'))} pixels, "
            f"but the tower takes bicubic, {sized} pixels"
        )
    problems += scaling_problems(preprocessing)
    longest = shape["qformer"]["max_position_embeddings"]
    if not is_whole(config["context_length"], range(3, longest + 1)):
        problems.append(
            f"context_length is {shown(config['context_length'])}, expected a whole number from 3 to "
            f"{longest}"
        )
    if not isinstance(config["vocabulary"], (dict, list)):
        problems.append(f"vocabulary is {shown(config['vocabulary'])}, expected an object")
    return problems
