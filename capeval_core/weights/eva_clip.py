"""EVA-CLIP: original checkpoints as their authors release them. Nothing of them is run.

Two formats: the training code's, one file in float16, and transformers', shards in float32. Tensors keep the
type in which they are stored, and stay in their files until they are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from capeval_core.options import option
from capeval_core.weights.checkpoint import INDEX, read_checkpoint, read_shards
from capeval_core.weights.clip import head_width_of, read_text
from capeval_core.weights.conversion import (
    Conversion,
    Shapes,
    Tensors,
    as_released,
    clip_preprocessing,
    count_blocks,
    rename,
    shape_of,
    side_of,
)

Norm = Literal["post", "pre"]

_HEAD_WIDTH = 128
"""Of the models of 8 and of 18 billion parameters."""
_PRE_NORM_WIDTH = 4096
"""Of the model of 8 billion parameters, whose norms come first."""
_TRANSFORMERS = "vision_model.embeddings.patch_embedding.weight"
_PART = re.compile(r"(.*\.self_attn\.)([qkv])_proj\.(weight|bias)")


@dataclass(frozen=True, kw_only=True)
class EvaClipConversion(Conversion):
    """EVA-CLIP in its authors' own naming or in transformers', whole or in shards."""

    encoder = "eva_clip"
    title = "EVA-CLIP"
    anchors = ("visual.patch_embed.proj.weight", _TRANSFORMERS)
    unused = r"(text\.)?attn_mask$|.*\.position_ids$"
    names = (
        (r"^text\.", ""),
        (r"^text_model\.embeddings\.token_embedding\.", "token_embedding."),
        (r"^text_model\.embeddings\.position_embedding\.weight", "positional_embedding"),
        (r"^text_model\.final_layer_norm\.", "ln_final."),
        (r"^text_model\.encoder\.layers\.(\d+)\.layer_norm", r"transformer.resblocks.\1.ln_"),
        (r"^text_model\.encoder\.layers\.(\d+)\.mlp\.fc1", r"transformer.resblocks.\1.mlp.c_fc"),
        (r"^text_model\.encoder\.layers\.(\d+)\.mlp\.fc2", r"transformer.resblocks.\1.mlp.c_proj"),
        (
            r"^text_model\.encoder\.layers\.(\d+)\.self_attn\.out_proj",
            r"transformer.resblocks.\1.attn.out_proj",
        ),
        (r"^text_model\.encoder\.layers\.(\d+)\.self_attn\.qkv\.", r"transformer.resblocks.\1.attn.in_proj_"),
        (r"^vision_model\.embeddings\.class_embedding", "visual.cls_token"),
        (r"^vision_model\.embeddings\.position_embedding\.weight", "visual.pos_embed"),
        (r"^vision_model\.embeddings\.patch_embedding\.", "visual.patch_embed.proj."),
        (r"^vision_model\.post_layernorm\.", "visual.norm."),
        (r"^vision_model\.encoder\.layers\.(\d+)\.layer_norm", r"visual.blocks.\1.norm"),
        (r"^vision_model\.encoder\.layers\.(\d+)\.self_attn\.out_proj", r"visual.blocks.\1.attn.proj"),
        (r"^vision_model\.encoder\.layers\.(\d+)\.self_attn\.qkv\.", r"visual.blocks.\1.attn.qkv."),
        (r"^vision_model\.encoder\.layers\.(\d+)\.", r"visual.blocks.\1."),
        (r"^visual_projection\.", "visual.head."),
        (r"^text_projection\.weight$", "text_projection"),
    )

    head_width: int = option(_HEAD_WIDTH, "width of the image tower's heads", minimum=1)
    text_heads: int | None = option(None, "heads of the text tower; None: its width / 64", minimum=1)
    norm: Norm | None = option(
        None,
        "the image tower's norms follow attention and MLP (post, as in EVA-CLIP-18B) or come first (pre, "
        "as in EVA-CLIP-8B); None: as in the one of these models that has its width",
    )

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        if path.name.endswith(INDEX):
            return read_shards(path)
        return read_checkpoint(path, in_place=True), [path]

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        if _TRANSFORMERS in content:
            content = _from_transformers(content)
            notes.append("names: transformers', translated into the authors' own")
        return rename(as_released(content, notes), self.names)

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        width, _, patch, _ = shape_of(shapes, "visual.patch_embed.proj.weight", 4)
        _, positions, _ = shape_of(shapes, "visual.pos_embed", 3)
        embed_dim, _ = shape_of(shapes, "visual.head.weight", 2)
        norm = self.norm or ("pre" if width == _PRE_NORM_WIDTH else "post")
        vision: dict[str, Any] = {
            "image_size": side_of(positions - 1, "visual.pos_embed") * patch,
            "patch_size": patch,
            "width": width,
            "layers": count_blocks(shapes, r"visual\.blocks\.(\d+)\."),
            "head_width": head_width_of(width, self.head_width),
            "mlp_width": shape_of(shapes, "visual.blocks.0.mlp.fc1.weight", 2)[0],
            "norm": norm,
        }
        notes.append(f"image tower: heads {self.head_width} wide, {norm}-norm (not visible in the tensors)")
        text = read_text(shapes, notes, self.text_heads)
        return {
            "architecture": {"embed_dim": embed_dim, "vision": vision, "text": text},
            "activation": "gelu",
            "preprocessing": clip_preprocessing(vision["image_size"]),
        }


def _from_transformers(content: Mapping[str, Any]) -> dict[str, Any]:
    """transformers' tensors in the authors' shapes: query, keys and values in one, the projection turned."""
    parts: dict[str, dict[str, Any]] = {}
    tensors: dict[str, Any] = {}
    for name, value in content.items():
        if part := _PART.fullmatch(name):
            parts.setdefault(f"{part[1]}qkv.{part[3]}", {})[part[2]] = value
        else:
            tensors[name] = value
    for name, three in parts.items():
        if len(three) == 3:  # otherwise the whole is missing, and reported so
            tensors[name] = torch.cat([three[part] for part in "qkv"])
    bias = tensors.pop("visual_projection.bias", None)
    # transformers' class has a bias, which stays as it was initialised.
    if bias is not None and bool(bias.any()):
        raise ValueError("visual_projection.bias is not zero, but EVA-CLIP projects images without a bias")
    shapes: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "vision_model.embeddings.class_embedding": lambda x: x.reshape(1, 1, -1),
        "vision_model.embeddings.position_embedding.weight": lambda x: x[None],
        "text_projection.weight": lambda x: x.T,
    }
    return {name: shapes[name](x) if name in shapes else x for name, x in tensors.items()}
