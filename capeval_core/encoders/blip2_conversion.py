"""BLIP-2's matching model: as LAVIS released it, and in transformers' format, whose names it keeps here.

An image's side is the one that the tower's positions are for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from capeval_core.errors import InputError, Problem, expanded_path, setting, wrong_option
from capeval_core.options import option
from capeval_core.weights.catalogue import BLIP2_COCO
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.conversion import BertConversion, Shapes, Tensors, clip_preprocessing, side_of
from capeval_core.weights.folder import (
    TOKENIZER,
    VOCABULARY,
    WeightsError,
    WeightsFolder,
    read_config,
    read_words,
)

_TOWER = "visual_encoder."
_IN_TOWER = r"cls_token$|pos_embed$|patch_embed\.proj\.|blocks\."
_BIAS = re.compile(r"(vision_model\.encoder\.layers\.\d+)\.attn\.q_bias")
_CROSS_ATTENTION = re.compile(r"qformer\.encoder\.layer\.(\d+)\.crossattention\.output\.dense\.weight")
_LAYERS = "hidden_size intermediate_size num_hidden_layers num_attention_heads hidden_act layer_norm_eps"
# What the towers depend on, named as in transformers' configuration; it states much more (dropouts, dtypes),
# in which copies of the same weights differ.
_VISION_KEYS = f"{_LAYERS} image_size patch_size qkv_bias".split()
_QFORMER_KEYS = (
    f"{_LAYERS} vocab_size max_position_embeddings pad_token_id cross_attention_frequency encoder_hidden_size"
).split()


@dataclass(frozen=True, kw_only=True)
class Blip2Conversion(BertConversion):
    """BLIP-2 of LAVIS, with or without its frozen image tower."""

    encoder = "blip2"

    vision: str | None = option(
        None,
        "the frozen image tower (eva_vit_g.pth), where the checkpoint leaves it out; its last block goes",
    )
    vision_heads: int | None = option(None, "heads of the image tower; None: its width / 88", minimum=1)
    qformer_heads: int | None = option(None, "heads of the Q-Former; None: its width / 64", minimum=1)

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        files = [path]
        if self.vision:
            files.append(expanded_path(self.vision))
        return read_checkpoint(path), files

    def select(self, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        content = super().select(content, notes)
        has_tower = any(name.startswith(_TOWER) for name in content)
        if self.vision is None:
            if not has_tower:
                problem = (
                    "it holds no image tower, which was frozen and lies in a file of its own "
                    "(eva_vit_g.pth of the same release)"
                )
                raise InputError(Problem("", problem, f"pass it as {setting('vision', 'eva_vit_g.pth')}"))
            return content
        if has_tower:
            # Tuned together: the frozen tower would give other numbers without a word.
            raise ValueError("it holds its own image tower, tuned with the rest: pass no vision")
        return content | self._frozen_tower(notes)

    def _frozen_tower(self, notes: list[str]) -> dict[str, Any]:
        """The tensors of the file of the frozen image tower, named as inside a checkpoint."""
        file = expanded_path(str(self.vision))
        tower = read_checkpoint(file)
        blocks = []
        for name in tower:
            block = re.match(r"blocks\.(\d+)\.", name)
            if block:
                blocks.append(int(block[1]))
        if not blocks:
            raise wrong_option("vision", self.vision, f"is no such tower: it holds {name_some(tower)}")
        # The paper removes the last layer of the ViT, since the states before it gave better numbers.
        last = f"blocks.{max(blocks)}."
        notes.append(f"image tower: of {file.name}, without its last block, as BLIP-2 uses it")
        tensors = {}
        for name, tensor in tower.items():
            if re.match(_IN_TOWER, name) and not name.startswith(last):
                tensors[_TOWER + name] = tensor
        return tensors

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        tensors = super().translate(content, notes)
        for name in list(tensors):  # a copy, since names are taken out
            match = _BIAS.fullmatch(name)
            if match is None:
                continue
            layer = match[1]
            query = tensors.pop(name)
            value = tensors.pop(f"{layer}.attn.v_bias")
            # A bias of the keys would change no attention: there is none.
            tensors[f"{layer}.self_attn.qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])
        return tensors

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        config = super().config(shapes, content, notes)
        vision = config["architecture"]["vision"]
        qformer = config["architecture"]["qformer"]
        positions = shapes["vision_model.embeddings.position_embedding"][1] - 1  # less the class token's
        vision["image_size"] = side_of(positions, "visual_encoder.pos_embed") * vision["patch_size"]
        vision["qkv_bias"] = "vision_model.encoder.layers.0.self_attn.qkv.bias" in shapes
        qformer["cross_attention_frequency"] = _cross_attention_frequency(shapes)
        words = self.words(qformer["vocab_size"], notes)
        return {**config, "preprocessing": clip_preprocessing(vision["image_size"]), "vocabulary": words}


def _cross_attention_frequency(shapes: Shapes) -> int:
    """The step from one layer of the Q-Former that looks at the image to the next; layer 0 looks always."""
    layers = []
    for name in shapes:
        match = _CROSS_ATTENTION.fullmatch(name)
        if match:
            layers.append(int(match[1]))
    behind_first = [layer for layer in layers if layer > 0]
    # Where only layer 0 looks, any step beyond the last layer says so.
    return min(behind_first, default=len(layers) + 1)


def translate_transformers(folder: WeightsFolder) -> dict[str, Any]:
    """Our configuration of a repository in transformers' format."""
    model_type = folder.config.get("model_type")
    architectures = folder.config.get("architectures")
    if model_type != "blip-2" or architectures != ["Blip2ForImageTextRetrieval"]:
        raise WeightsError(
            f"these are weights of {model_type!r} ({architectures}), expected a Blip2ForImageTextRetrieval "
            f"such as {BLIP2_COCO.repository}"
        )
    from transformers import Blip2Config

    try:
        settings = Blip2Config.from_dict(folder.config).to_dict()
        architecture = {
            "vision": {key: settings["vision_config"][key] for key in _VISION_KEYS},
            "qformer": {key: settings["qformer_config"][key] for key in _QFORMER_KEYS},
            "num_query_tokens": settings["num_query_tokens"],
            "image_text_hidden_size": settings["image_text_hidden_size"],
        }
    except Exception as error:  # versions of transformers refuse in different ways
        raise WeightsError(f"config.json cannot be understood ({error})") from error
    processors = [folder.path / name for name in ("preprocessor_config.json", "processor_config.json")]
    processor_file = next(filter(Path.is_file, processors), None)
    if processor_file is None:
        raise WeightsError(f"{folder.path} has no {processors[0].name}: download the repository again")
    processor = read_config(processor_file)
    processor = processor.get("image_processor", processor)
    if processor.get("resample", 3) != 3:
        raise WeightsError(f"images are resized by method {processor['resample']}, expected 3 (bicubic)")
    preprocessing = clip_preprocessing(architecture["vision"]["image_size"])
    for name in ("mean", "std"):
        stated = processor.get(f"image_{name}")
        if stated:
            preprocessing[name] = list(stated)
    # Repositories hold the list of words, the tokenizer's JSON, or both; the list needs no parsing.
    vocabulary = folder.path / VOCABULARY
    return {
        "encoder": "blip2",
        "architecture": architecture,
        "preprocessing": preprocessing,
        "context_length": Blip2Conversion.facts["config"]["context_length"],
        "vocabulary": read_words(vocabulary if vocabulary.is_file() else folder.path / TOKENIZER),
    }


def empty_model(architecture: dict[str, Any]) -> Any:
    """transformers' Blip2ForImageTextRetrieval of an architecture, its weights still random."""
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
