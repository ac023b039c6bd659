"""Floating-point operations that networks really carry out, shortcuts taken into account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import workload

ARCHITECTURES: dict[str, dict[str, Any]] = {
    **workload.ARCHITECTURES,
    "ViT-bigG-14": {
        "embed_dim": 1280,
        "vision": {
            **{"image_size": 224, "layers": 48, "width": 1664, "patch_size": 14},
            **{"head_width": 104, "mlp_ratio": 4.9231},
        },
        "text": {"context_length": 77, "vocab_size": 49408, "width": 1280, "heads": 20, "layers": 32},
    },
}


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


def uniter_flops(architecture: Mapping[str, Any], images: Sequence[int], pairs: Sequence[int]) -> float:
    """Of UNITER's ranking head over images with these many boxes and pairs of so many tokens and boxes."""
    width, hidden = architecture["hidden_size"], architecture["intermediate_size"]
    boxes = sum(images) * 2 * (architecture["region_size"] + 7) * width
    layers = architecture["num_hidden_layers"]
    heads = len(pairs) * 2 * (width**2 + width)
    return boxes + heads + sum(transformer_flops(rows, width, hidden, layers, read=1) for rows in pairs)


def vilbert_flops(
    architecture: Mapping[str, Any],
    texts: Sequence[int],
    images: Sequence[int],
    pairs: Sequence[tuple[int, int]],
) -> float:
    """Of ViLBERT's texts of so many tokens with images of so many boxes, up to the last co-attention block.

    pairs: positions in `texts` and `images`. What a text or an image needs alone runs once.
    """
    text, visual = architecture["text"], architecture["visual"]
    width, wide = text["hidden_size"], visual["hidden_size"]
    hidden, thick = text["intermediate_size"], visual["intermediate_size"]
    across = architecture["co_attention"]["hidden_size"]
    text_before, visual_before = architecture["text_layers_before"], architecture["visual_layers_before"]
    blocks, onward = len(text_before), len(text_before) - 1
    flops = sum(images) * 2 * (visual["region_size"] + 5) * wide
    # Before the first block, and its projections.
    flops += sum(transformer_flops(n, width, hidden, text_before[0]) for n in texts)
    flops += sum(transformer_flops(n, wide, thick, visual_before[0]) for n in images)
    of_text, of_visual = 2 * width * across, 2 * wide * across
    flops += sum(texts) * (1 + 2 * bool(onward)) * of_text + sum(images) * (2 + bool(onward)) * of_visual
    for tokens, boxes in ((texts[i], images[j]) for i, j in pairs):
        flops += tokens * onward * of_text + boxes * onward * 2 * of_visual
        flops += tokens * max(0, onward - 1) * 2 * of_text + boxes * max(0, onward - 1) * of_visual
        attention = 4 * tokens * boxes * across
        flops += blocks * (attention + tokens * (of_text + 4 * width * hidden))
        flops += onward * (attention + boxes * (of_visual + 4 * wide * thick))
        flops += transformer_flops(tokens, width, hidden, text_before[-1] - text_before[0])
        flops += transformer_flops(boxes, wide, thick, visual_before[-1] - visual_before[0])
    return flops


def vision_flops(architecture: Mapping[str, Any], read: int | None = 1) -> float:
    """Operations for one image; `read` rows of the last block, None for all of them."""
    vision = architecture["vision"]
    width, patch = vision["width"], vision["patch_size"]
    cells = (vision["image_size"] // patch) ** 2
    tower = transformer_flops(cells + 1, width, _hidden(vision), vision["layers"], read=read)
    return 6 * cells * patch**2 * width + tower + 2 * width * architecture["embed_dim"]


def text_flops(architecture: Mapping[str, Any], lengths: Iterable[int], shared: int = 0) -> float:
    """Operations for texts of these many tokens, the first `shared` of which run once."""
    text = architecture["text"]
    width, total = text["width"], 0.0
    for length in lengths:
        own = length - shared
        total += transformer_flops(own, width, _hidden(text), text["layers"], read=1)
        total += 4 * width * shared * ((text["layers"] - 1) * own + 1)  # what they see of the shared ones
    return total


def _hidden(tower: Mapping[str, Any]) -> int:
    return int(tower["width"] * tower.get("mlp_ratio", 4.0))
