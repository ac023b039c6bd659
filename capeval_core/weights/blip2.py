"""BLIP-2's matching model: as LAVIS released it, and in transformers' format, whose names it keeps here.

An image's side is the one that the tower's positions are for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from capeval_core.errors import InputError, Problem, expanded_path, option_name, wrong_option
from capeval_core.options import option
from capeval_core.weights.catalogue import BLIP2_COCO
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.conversion import (
    Conversion,
    Shapes,
    Tensors,
    clip_preprocessing,
    count_blocks,
    heads_of,
    required_words,
    side_of,
)
from capeval_core.weights.folder import (
    TOKENIZER,
    VOCABULARY,
    WeightsError,
    WeightsFolder,
    read_config,
    read_words,
)

if TYPE_CHECKING:
    from transformers import Blip2ForImageTextRetrieval

CONTEXT = 32
"""Ids of a text in the original code, marks included."""
_VISION_HEAD, _QFORMER_HEAD = 88, 64
"""Widths of the heads of the released models' towers."""
_TOWER = "visual_encoder."
_IN_TOWER = r"cls_token$|pos_embed$|patch_embed\.proj\.|blocks\."
_BIAS = re.compile(r"(vision_model\.encoder\.layers\.\d+)\.attn\.([qv])_bias")
_LAYER = "vision_model.encoder.layers.0"
_VISION_KEYS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "image_size",
    "patch_size", "hidden_act", "layer_norm_eps", "qkv_bias",
)  # fmt: skip
_QFORMER_KEYS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "max_position_embeddings", "layer_norm_eps", "pad_token_id", "cross_attention_frequency",
    "encoder_hidden_size",
)  # fmt: skip
"""What the towers depend on, named as in transformers' configuration."""


@dataclass(frozen=True, kw_only=True)
class Blip2Conversion(Conversion):
    """BLIP-2 of LAVIS, with or without its frozen image tower."""

    encoder = "blip2"
    title = "BLIP-2 with matching heads"
    anchors = ("Qformer.bert.embeddings.word_embeddings.weight",)
    unused = r"temp$|Qformer\.cls\.|Qformer\.bert\.embeddings\.position_ids$"
    names = (
        (r"^visual_encoder\.cls_token", "vision_model.embeddings.class_embedding"),
        (r"^visual_encoder\.pos_embed", "vision_model.embeddings.position_embedding"),
        (r"^visual_encoder\.patch_embed\.proj", "vision_model.embeddings.patch_embedding"),
        (r"^visual_encoder\.blocks\.(\d+)\.attn\.qkv", r"vision_model.encoder.layers.\1.self_attn.qkv"),
        (
            r"^visual_encoder\.blocks\.(\d+)\.attn\.proj",
            r"vision_model.encoder.layers.\1.self_attn.projection",
        ),
        (r"^visual_encoder\.blocks\.(\d+)\.norm", r"vision_model.encoder.layers.\1.layer_norm"),
        (r"^visual_encoder\.blocks\.(\d+)\.", r"vision_model.encoder.layers.\1."),
        (r"^ln_vision", "vision_model.post_layernorm"),
        (r"^Qformer\.bert\.embeddings\.LayerNorm", "qformer.layernorm"),
        (r"^Qformer\.bert\.embeddings", "embeddings"),
        (r"^Qformer\.bert\.(encoder\.layer\.\d+\.(?:cross)?attention)\.self\.", r"qformer.\1.attention."),
        (r"^Qformer\.bert\.", "qformer."),
        (r"^vision_proj\.", "vision_projection."),
        (r"^text_proj\.", "text_projection."),
    )
    default_licence = "BSD-3-Clause"  # of their code

    vocabulary: str | None = option(
        None, "vocab.txt of bert-base-uncased, whose tokenizer the model was trained with"
    )
    vision: str | None = option(
        None,
        "the frozen image tower (eva_vit_g.pth), where the checkpoint leaves it out; its last block goes",
    )
    vision_heads: int | None = option(None, "heads of the image tower; None: its width / 88", minimum=1)
    qformer_heads: int | None = option(None, "heads of the Q-Former; None: its width / 64", minimum=1)

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        content = read_checkpoint(path)
        return content, [path, *([expanded_path(self.vision)] if self.vision else [])]

    def select(self, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        content = super().select(content, notes)
        inside = any(name.startswith(_TOWER) for name in content)
        if self.vision is None:
            if not inside:
                found = (
                    "it holds no image tower, which was frozen and lies in a file of its own "
                    "(eva_vit_g.pth of the same release)"
                )
                raise InputError(Problem("", found, f"pass it as {option_name('vision')}"))
            return content
        if inside:
            raise ValueError("it holds its own image tower, tuned with the rest: pass no vision")
        file = expanded_path(self.vision)
        tower = read_checkpoint(file)
        blocks = [int(block[1]) for name in tower if (block := re.match(r"blocks\.(\d+)\.", name))]
        if not blocks:
            raise wrong_option("vision", self.vision, f"no such tower: it holds {name_some(tower)}")
        last = f"blocks.{max(blocks)}."
        notes.append(f"image tower: of {file.name}, without its last block, as BLIP-2 uses it")
        return content | {
            _TOWER + name: tensor
            for name, tensor in tower.items()
            if re.match(_IN_TOWER, name) and not name.startswith(last)
        }

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        tensors = super().translate(content, notes)
        biases = {name: bias for name in tensors if (bias := _BIAS.fullmatch(name))}
        for layer in {bias[1]: None for bias in biases.values()}:
            query, value = (tensors[f"{layer}.attn.{part}_bias"] for part in "qv")
            # A bias of the keys would change no attention: there is none.
            tensors[f"{layer}.self_attn.qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])
        return {name: tensor for name, tensor in tensors.items() if name not in biases}

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        width, _, _, patch = shapes["vision_model.embeddings.patch_embedding.weight"]
        positions = shapes["vision_model.embeddings.position_embedding"][1] - 1
        words, hidden = shapes["embeddings.word_embeddings.weight"]
        side = side_of(positions, "visual_encoder.pos_embed")
        crossed = [
            int(layer[1])
            for name in shapes
            if (layer := re.match(r"qformer\.encoder\.layer\.(\d+)\.crossattention\.output\.dense\.w", name))
        ]
        vision = {
            "hidden_size": width,
            "intermediate_size": shapes[f"{_LAYER}.mlp.fc1.weight"][0],
            "num_hidden_layers": count_blocks(shapes, r"vision_model\.encoder\.layers\.(\d+)\."),
            "num_attention_heads": heads_of(width, self.vision_heads, _VISION_HEAD, "vision_heads"),
            "image_size": side * patch,
            "patch_size": patch,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
            "qkv_bias": f"{_LAYER}.self_attn.qkv.bias" in shapes,
        }
        qformer = {
            "vocab_size": words,
            "hidden_size": hidden,
            "num_hidden_layers": count_blocks(shapes, r"qformer\.encoder\.layer\.(\d+)\."),
            "num_attention_heads": heads_of(hidden, self.qformer_heads, _QFORMER_HEAD, "qformer_heads"),
            "intermediate_size": shapes["qformer.encoder.layer.0.intermediate_query.dense.weight"][0],
            "hidden_act": "gelu",
            "max_position_embeddings": shapes["embeddings.position_embeddings.weight"][0],
            "layer_norm_eps": 1e-12,
            "pad_token_id": 0,
            "cross_attention_frequency": min((layer for layer in crossed if layer), default=len(crossed) + 1),
            "encoder_hidden_size": width,
        }
        architecture = {
            "vision": vision,
            "qformer": qformer,
            "num_query_tokens": shapes["query_tokens"][1],
            "image_text_hidden_size": shapes["vision_projection.weight"][0],
        }
        return {
            "architecture": architecture,
            "preprocessing": preprocessing(architecture),
            "context_length": CONTEXT,
            # BLIP-2 adds the start mark of captioning to BERT's words.
            "vocabulary": required_words(
                self.vocabulary, "google-bert/bert-base-uncased", words, notes, added="[DEC]"
            ),
        }


def translate_transformers(folder: WeightsFolder) -> dict[str, Any]:
    """Our configuration of a repository in transformers' format."""
    model_type, architectures = folder.config.get("model_type"), folder.config.get("architectures")
    if model_type != "blip-2" or architectures != ["Blip2ForImageTextRetrieval"]:
        raise WeightsError(
            f"these are weights of {model_type!r} ({architectures}), expected a Blip2ForImageTextRetrieval "
            f"such as {BLIP2_COCO.repository}"
        )
    from transformers import Blip2Config

    vocabulary = folder.path / VOCABULARY
    try:
        whole = Blip2Config.from_dict(folder.config).to_dict()
        architecture = {
            "vision": {key: whole["vision_config"][key] for key in _VISION_KEYS},
            "qformer": {key: whole["qformer_config"][key] for key in _QFORMER_KEYS},
            "num_query_tokens": whole["num_query_tokens"],
            "image_text_hidden_size": whole["image_text_hidden_size"],
        }
    except Exception as error:  # versions of transformers refuse in different ways
        raise WeightsError(f"config.json cannot be understood ({error})") from error
    return {
        "encoder": "blip2",
        "architecture": architecture,
        "preprocessing": preprocessing(architecture, _processor(folder.path)),
        "context_length": CONTEXT,
        "vocabulary": read_words(vocabulary if vocabulary.is_file() else folder.path / TOKENIZER),
    }


def empty_model(architecture: dict[str, Any]) -> Blip2ForImageTextRetrieval:
    """The model of an architecture (names as in transformers' configuration), its weights still random."""
    from transformers import Blip2Config, Blip2ForImageTextRetrieval

    try:
        config = Blip2Config(
            vision_config=dict(architecture["vision"]),
            qformer_config={**architecture["qformer"], "use_qformer_text_input": True},
            num_query_tokens=architecture["num_query_tokens"],
            image_text_hidden_size=architecture["image_text_hidden_size"],
        )
        return Blip2ForImageTextRetrieval(config)
    except Exception as error:  # versions of transformers refuse in different ways
        raise WeightsError(f"the architecture of the config cannot be built ({error})") from error


def preprocessing(architecture: Mapping[str, Any], processor: Mapping[str, Any] = {}) -> dict[str, Any]:
    """How pixels are made of images, as a processor of transformers says where there is one."""
    if processor.get("resample", 3) != 3:
        raise WeightsError(f"images are resized by method {processor['resample']}, expected 3 (bicubic)")
    settings = clip_preprocessing(architecture["vision"]["image_size"])
    stated = {name: processor.get(f"image_{name}") for name in ("mean", "std")}
    return settings | {name: list(values) for name, values in stated.items() if values}


def _processor(folder: Path) -> dict[str, Any]:
    names = ("preprocessor_config.json", "processor_config.json")
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise WeightsError(f"{folder} has no {names[0]}: download the repository again")
    processor = read_config(path)
    return dict(processor.get("image_processor", processor))
