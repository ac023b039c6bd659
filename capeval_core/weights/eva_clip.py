"""EVA-CLIP: original checkpoints as their authors release them. Nothing of them is run.

Two formats: the training code's, one file in float16, and transformers', shards in float32. Tensors keep the
type in which they are stored, and stay in their files until they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from capeval_core.options import option
from capeval_core.weights.checkpoint import INDEX, read_checkpoint, read_shards
from capeval_core.weights.clip import head_width_of, read_text
from capeval_core.weights.conversion import Conversion, Shapes, Tensors, clip_preprocessing, joined, side_of

_PRE_NORM_WIDTH = 4096  # of the model of 8 billion parameters, whose norms come first
_VISION, _TEXT = "vision_model.embeddings.", "text_projection.weight"


@dataclass(frozen=True, kw_only=True)
class EvaClipConversion(Conversion):
    """EVA-CLIP in its authors' own naming or in transformers', whole or in shards."""

    encoder = "eva_clip"
    keeps_type = True

    head_width: int = option(128, "width of the image tower's heads", minimum=1)
    text_heads: int | None = option(None, "heads of the text tower; None: its width / 64", minimum=1)
    norm: Literal["post", "pre"] | None = option(
        None,
        "the image tower's norms follow attention and MLP (post, as in EVA-CLIP-18B) or come first (pre, "
        "as in EVA-CLIP-8B); None: as in the one of these models that has its width",
    )

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        if path.name.endswith(INDEX):
            return read_shards(path)
        return read_checkpoint(path, in_place=True), [path]

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        if any(name.startswith(_VISION) for name in content):
            content = _from_transformers(content)
            notes.append("names: transformers', translated into the authors' own")
        return super().translate(content, notes)

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        config = super().config(shapes, content, notes)
        vision = config["architecture"]["vision"]
        width, positions = vision["width"], shapes["visual.pos_embed"][1] - 1
        vision["norm"] = norm = self.norm or ("pre" if width == _PRE_NORM_WIDTH else "post")
        vision["head_width"] = head_width_of(width, self.head_width)
        vision["image_size"] = side_of(positions, "visual.pos_embed") * vision["patch_size"]
        notes.append(f"image tower: heads {self.head_width} wide, {norm}-norm (not visible in the tensors)")
        config["architecture"]["text"] = read_text(shapes, notes, self.text_heads)
        return {**config, "preprocessing": clip_preprocessing(vision["image_size"])}


def _from_transformers(content: Mapping[str, Any]) -> dict[str, Any]:
    """transformers' tensors in the authors' shapes: query, keys and values in one, the projection turned."""
    tensors = joined(content)
    bias = tensors.pop("visual_projection.bias", None)
    # transformers' class has a bias, which stays as it was initialised.
    if bias is not None and bool(bias.any()):
        raise ValueError("visual_projection.bias is not zero, but EVA-CLIP projects images without a bias")
    places = f"{_VISION}position_embedding.weight"
    tensors[f"{_VISION}class_embedding"] = tensors[f"{_VISION}class_embedding"].reshape(1, 1, -1)
    tensors[places], tensors[_TEXT] = tensors[places][None], tensors[_TEXT].T
    return tensors
