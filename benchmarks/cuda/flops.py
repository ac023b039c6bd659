"""Floating-point operations that networks really carry out, shortcuts taken into account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def transformer_flops(tokens: int, width: int, hidden: int, layers: int, *, read: int | None = None) -> float:
    """Of one sequence through a transformer whose last layer runs for `read` tokens only (None: for all)."""
    read = tokens if read is None else read
    query = 2 * width**2 + 4 * tokens * width + 2 * width**2 + 4 * width * hidden
    keys = 4 * tokens * width**2
    return (layers - 1) * (tokens * query + keys) + read * query + keys


def alpha_clip_flops(architecture: Mapping[str, Any], images: int, rows: int) -> float:
    """Of Alpha-CLIP's image tower over rows, pairs of one of the images and a mask."""
    vision = architecture["vision"]
    width, patch = vision["width"], vision["patch_size"]
    cells = (vision["image_size"] // patch) ** 2
    tower = transformer_flops(cells + 1, width, 4 * width, vision["layers"], read=1)
    channel = 2 * cells * patch**2 * width
    return rows * (tower + channel + 2 * width * architecture["embed_dim"]) + images * 3 * channel


def blip2_flops(architecture: Mapping[str, Any], lengths: list[int]) -> float:
    """Of BLIP-2 over one image, its features and its matching with texts of these many tokens.

    The texts' own features are left out: they run once for all images.
    """
    vision, qformer = architecture["vision"], architecture["qformer"]
    cells = (vision["image_size"] // vision["patch_size"]) ** 2
    flops = 2 * cells * 3 * vision["patch_size"] ** 2 * vision["hidden_size"]
    flops += transformer_flops(
        cells + 1, vision["hidden_size"], vision["intermediate_size"], vision["num_hidden_layers"]
    )
    queries, width = architecture["num_query_tokens"], qformer["hidden_size"]
    crossed = -(-qformer["num_hidden_layers"] // qformer["cross_attention_frequency"])
    of_image = crossed * 4 * (cells + 1) * vision["hidden_size"] * width  # keys and values
    across = crossed * queries * (4 * width**2 + 4 * (cells + 1) * width)
    features = 2 * queries * width * architecture["image_text_hidden_size"]
    for length, heads in [(0, features), *((length, 4 * queries * width) for length in lengths)]:
        flops += (
            heads
            + across
            + transformer_flops(
                queries + length,
                width,
                qformer["intermediate_size"],
                qformer["num_hidden_layers"],
                read=queries,
            )
        )
    return flops + (1 + bool(lengths)) * of_image
