"""EVA-CLIP checkpoints as their authors release them -> what a weights folder holds. Nothing of them is run.

Two formats: the training code's, one file in float16, and transformers', shards in float32. Tensors keep the
type in which they are stored, and stay in their files until they are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from capeval_core.errors import in_file, wrong_option
from capeval_core.options import option
from capeval_core.weights.architecture import (
    Shape,
    count_blocks,
    expected_shapes,
    read_text,
    shape_of,
    side_of,
)
from capeval_core.weights.catalogue import EVA_18B
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.checksum import sha256_of
from capeval_core.weights.constants import CLIP_MEAN, CLIP_STD, LICENCE_NOT_STATED
from capeval_core.weights.convert import checked_floats, complete
from capeval_core.weights.release import Conversion, Release
from capeval_core.weights.shards import INDEX, read_shards

Norm = Literal["post", "pre"]
Tensors = dict[str, torch.Tensor]

VISION_KEYS = {"image_size", "patch_size", "width", "layers", "head_width", "mlp_width", "norm"}
TEXT_KEYS = {"context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"}
STAND_IN = {"layers": 1, "width": 64, "head_width": 64, "patch_size": 1, "image_size": 1}
"""An image tower of open_clip's, for what is asked about the text tower beside it."""

_HEAD_WIDTH = 128
"""Of the models of 8 and of 18 billion parameters."""
_PRE_NORM_WIDTH = 4096
"""Of the model of 8 billion parameters, whose norms come first."""
_OWN, _TRANSFORMERS = "visual.patch_embed.proj.weight", "vision_model.embeddings.patch_embedding.weight"
_LEFT_OUT = re.compile(r"(text\.)?attn_mask$|.*\.position_ids$")
"""What the model makes itself."""


@dataclass(frozen=True, kw_only=True)
class EvaClipConversion(Conversion):
    """What a checkpoint's tensors may not show, and what is recorded with the weights."""

    head_width: int = option(_HEAD_WIDTH, "width of the image tower's heads", minimum=1)
    text_heads: int | None = option(None, "heads of the text tower; None: its width / 64", minimum=1)
    norm: Norm | None = option(
        None,
        "the image tower's norms follow attention and MLP (post, as in EVA-CLIP-18B) or come first (pre, "
        "as in EVA-CLIP-8B); None: as in these models, told by the width",
    )
    source: str | None = option(None, "name of the original; None: the file's")
    url: str | None = option(
        None, "where it was downloaded; None: as in the catalogue, if the file is listed"
    )
    licence: str | None = option(None, "as its authors state it; None: as in the catalogue")

    def read(self, path: Path) -> Release:
        """The checkpoint at `path`, or that of the shards beside it if it is an index, by these settings.

        Raises:
            FileNotFoundError: there is no such file, or a shard is missing.
            ValueError: a file cannot be read safely, or this is no complete EVA-CLIP. The message names the
                file and the mend.
        """
        if path.name.endswith(INDEX):
            content, size = read_shards(path)
        else:
            content, size = read_checkpoint(path, in_place=True), path.stat().st_size
        try:
            tensors, notes = _own_names(content)
            architecture, told = self._architecture({name: tuple(t.shape) for name, t in tensors.items()})
            tensors, _ = complete(tensors, _expected(architecture), called="EVA-CLIP")
            tensors = {name: _alone(checked_floats(name, tensor)) for name, tensor in tensors.items()}
        except ValueError as error:
            raise in_file(path, error) from error
        stored = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})
        notes = [*notes, *told, f"tensors are kept in {' and '.join(stored)}, as released"]
        return Release(self._config(path, size, architecture, notes), tensors, notes)

    def _config(
        self, path: Path, size: int, architecture: dict[str, Any], notes: list[str]
    ) -> dict[str, Any]:
        listed = EVA_18B if path.name == EVA_18B.checkpoint else None
        return {
            "format": 1,
            "encoder": "eva_clip",
            "architecture": architecture,
            "activation": "gelu",
            "preprocessing": {
                "image_size": architecture["vision"]["image_size"],
                "mean": list(CLIP_MEAN),
                "std": list(CLIP_STD),
                "interpolation": "bicubic",
            },
            "source": {
                "name": self.source or path.name.partition(".")[0],
                "url": self.url or (listed.original if listed else None),
                "file": path.name,
                "size": size,
                "sha256": sha256_of(path),
                "licence": self.licence or (listed and listed.licence) or LICENCE_NOT_STATED,
                "notes": notes,
            },
        }

    def _architecture(self, shapes: Mapping[str, Shape]) -> tuple[dict[str, Any], list[str]]:
        width, _, patch, _ = shape_of(shapes, _OWN, 4)
        _, positions, _ = shape_of(shapes, "visual.pos_embed", 3)
        embed_dim, _ = shape_of(shapes, "visual.head.weight", 2)
        text, about_text = read_text(shapes, self.text_heads)
        if width % self.head_width:
            found = f"the width {width} of the image tower"
            fix = "pass the width of its heads"
            raise wrong_option("head_width", self.head_width, found, fix, verb="does not divide")
        norm = self.norm or ("pre" if width == _PRE_NORM_WIDTH else "post")
        vision = {
            "image_size": side_of(positions - 1, "visual.pos_embed") * patch,
            "patch_size": patch,
            "width": width,
            "layers": count_blocks(shapes, r"visual\.blocks\.(\d+)\."),
            "head_width": self.head_width,
            "mlp_width": shape_of(shapes, "visual.blocks.0.mlp.fc1.weight", 2)[0],
            "norm": norm,
        }
        about = (
            f"image tower: {vision['layers']} layers, width {width}, patch {patch}, image "
            f"{vision['image_size']}, heads {self.head_width} wide, {norm}-norm (heads and norm are not "
            "visible in the tensors)"
        )
        return {"embed_dim": embed_dim, "vision": vision, "text": text}, [about, about_text]


def _own_names(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The tensors under our names, and notes."""
    anchors = [name for name in content if name.endswith((_OWN, _TRANSFORMERS))]
    if len(anchors) != 1:
        raise ValueError(
            f"no EVA-CLIP: expected {_OWN} (the authors' own naming) or {_TRANSFORMERS} (transformers') "
            f"once among the tensors, found {name_some(anchors or content)}"
        )
    naming = _OWN if anchors[0].endswith(_OWN) else _TRANSFORMERS
    prefix = anchors[0][: -len(naming)]
    if outside := [name for name in content if not name.startswith(prefix)]:
        raise ValueError(
            f"the model lies under {prefix!r}, but there is more: {name_some(outside)}; save the model alone"
        )
    named = {name[len(prefix) :]: value for name, value in content.items()}
    named = {name: value for name, value in named.items() if not _LEFT_OUT.match(name)}
    notes = [f"the prefix {prefix!r} of all names was taken off"] if prefix else []
    if naming == _OWN:
        return {name.removeprefix("text."): value for name, value in named.items()}, notes
    return translate_transformers(named), [*notes, "names: transformers', translated into the authors' own"]


_IN_TEXT = (
    (r"text_model\.embeddings\.token_embedding\.", "token_embedding."),
    (r"text_model\.embeddings\.position_embedding\.weight", "positional_embedding"),
    (r"text_model\.final_layer_norm\.", "ln_final."),
    (r"text_model\.encoder\.layers\.(\d+)\.layer_norm", r"transformer.resblocks.\1.ln_"),
    (r"text_model\.encoder\.layers\.(\d+)\.mlp\.fc1", r"transformer.resblocks.\1.mlp.c_fc"),
    (r"text_model\.encoder\.layers\.(\d+)\.mlp\.fc2", r"transformer.resblocks.\1.mlp.c_proj"),
    (r"text_model\.encoder\.layers\.(\d+)\.self_attn\.out_proj", r"transformer.resblocks.\1.attn.out_proj"),
    (r"text_model\.encoder\.layers\.(\d+)\.self_attn\.qkv\.", r"transformer.resblocks.\1.attn.in_proj_"),
)
_IN_VISION = (
    (r"vision_model\.embeddings\.class_embedding", "visual.cls_token"),
    (r"vision_model\.embeddings\.position_embedding\.weight", "visual.pos_embed"),
    (r"vision_model\.embeddings\.patch_embedding\.", "visual.patch_embed.proj."),
    (r"vision_model\.post_layernorm\.", "visual.norm."),
    (r"vision_model\.encoder\.layers\.(\d+)\.layer_norm", r"visual.blocks.\1.norm"),
    (r"vision_model\.encoder\.layers\.(\d+)\.self_attn\.out_proj", r"visual.blocks.\1.attn.proj"),
    (r"vision_model\.encoder\.layers\.(\d+)\.self_attn\.qkv\.", r"visual.blocks.\1.attn.qkv."),
    (r"vision_model\.encoder\.layers\.(\d+)\.", r"visual.blocks.\1."),
    (r"visual_projection\.", "visual.head."),
)


def translate_transformers(content: Mapping[str, Any]) -> dict[str, Any]:
    """transformers' tensors under our names: query, keys and values in one, the projection turned.

    Raises:
        ValueError: the projection of images has a bias, which the released models do not have.
    """
    parts: dict[str, dict[str, Any]] = {}
    whole: dict[str, Any] = {}
    for name, value in content.items():
        if found := re.fullmatch(r"(.*\.self_attn\.)([qkv])_proj\.(weight|bias)", name):
            parts.setdefault(f"{found[1]}qkv.{found[3]}", {})[found[2]] = value
        else:
            whole[name] = value
    for name, three in parts.items():
        if len(three) == 3:  # otherwise the whole is missing, and said to be
            whole[name] = torch.cat([three[part] for part in "qkv"])
    tensors = {_renamed(name): value for name, value in whole.items()}
    bias = tensors.get("visual.head.bias")
    if bias is not None:  # transformers' class has one, which stays as it was initialised
        if bool(bias.any()):
            raise ValueError(
                "visual_projection.bias is not zero, but EVA-CLIP projects images without a bias"
            )
        del tensors["visual.head.bias"]
    if "visual.cls_token" in tensors:
        tensors["visual.cls_token"] = tensors["visual.cls_token"].reshape(1, 1, -1)
    if "visual.pos_embed" in tensors:
        tensors["visual.pos_embed"] = tensors["visual.pos_embed"][None]
    if "text_projection" in tensors:
        tensors["text_projection"] = tensors["text_projection"].T
    return tensors


def _renamed(name: str) -> str:
    """
    >>> _renamed("vision_model.encoder.layers.3.mlp.fc1.weight")
    'visual.blocks.3.mlp.fc1.weight'
    """
    if name == "text_projection.weight":
        return "text_projection"
    for pattern, replacement in (*_IN_TEXT, *_IN_VISION):
        renamed, count = re.subn("^" + pattern, replacement, name)
        if count:
            return renamed
    return name


def _expected(architecture: Mapping[str, Any]) -> dict[str, Shape]:
    """Names and shapes of every tensor of an EVA-CLIP."""
    vision, embed_dim = architecture["vision"], architecture["embed_dim"]
    width, hidden, patch = vision["width"], vision["mlp_width"], vision["patch_size"]
    shapes: dict[str, Shape] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, (vision["image_size"] // patch) ** 2 + 1, width),
        "patch_embed.proj.weight": (width, 3, patch, patch),
        "patch_embed.proj.bias": (width,),
    }
    block: dict[str, Shape] = {
        "norm1.weight": (width,),
        "attn.qkv.weight": (3 * width, width),
        "attn.proj.weight": (width, width),
        "attn.proj.bias": (width,),
        "norm2.weight": (width,),
        "mlp.fc1.weight": (hidden, width),
        "mlp.fc1.bias": (hidden,),
        "mlp.fc2.weight": (width, hidden),
        "mlp.fc2.bias": (width,),
    }
    for layer in range(vision["layers"]):
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in block.items()}
    shapes |= {"norm.weight": (width,), "head.weight": (embed_dim, width)}
    beside = expected_shapes({"embed_dim": embed_dim, "vision": STAND_IN, "text": architecture["text"]})
    text = {name: shape for name, shape in beside.items() if not name.startswith("visual.")}
    return {f"visual.{name}": shape for name, shape in shapes.items()} | text


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own: slices of one buffer cannot be saved under several names."""
    tensor = tensor.contiguous()
    shared = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
    return tensor.clone() if shared else tensor
