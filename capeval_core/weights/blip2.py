"""BLIP-2's matching model as LAVIS released it -> what a weights folder holds, under transformers' names.

An image's side is the one that the tower's positions are for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from capeval_core.errors import wrong_option
from capeval_core.options import option
from capeval_core.weights.blip2_transformers import CONTEXT, empty_model, preprocessing, read_words
from capeval_core.weights.catalogue import BLIP2
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.checksum import sha256_of
from capeval_core.weights.convert import as_float32, complete
from capeval_core.weights.release import Conversion, Release

Tensors = dict[str, torch.Tensor]

_VISION_HEAD, _QFORMER_HEAD = 88, 64
"""Widths of the heads of the released models' towers."""
_TOWER, _QUERIES, _BERT = "visual_encoder.", "query_tokens", "Qformer.bert."
_DEC = "[DEC]"
_LEFT_OUT = re.compile(r"temp$|Qformer\.cls\.|Qformer\.bert\.embeddings\.position_ids$")
"""What captioning or training needs, or what the model makes itself."""
_NAMES = (
    (r"visual_encoder\.cls_token", "vision_model.embeddings.class_embedding"),
    (r"visual_encoder\.pos_embed", "vision_model.embeddings.position_embedding"),
    (r"visual_encoder\.patch_embed\.proj", "vision_model.embeddings.patch_embedding"),
    (r"visual_encoder\.blocks\.(\d+)\.attn\.qkv", r"vision_model.encoder.layers.\1.self_attn.qkv"),
    (r"visual_encoder\.blocks\.(\d+)\.attn\.proj", r"vision_model.encoder.layers.\1.self_attn.projection"),
    (r"visual_encoder\.blocks\.(\d+)\.norm", r"vision_model.encoder.layers.\1.layer_norm"),
    (r"visual_encoder\.blocks\.(\d+)\.", r"vision_model.encoder.layers.\1."),
    (r"ln_vision", "vision_model.post_layernorm"),
    (r"Qformer\.bert\.embeddings\.LayerNorm", "qformer.layernorm"),
    (r"Qformer\.bert\.embeddings", "embeddings"),
    (r"Qformer\.bert\.(encoder\.layer\.\d+\.(?:cross)?attention)\.self\.", r"qformer.\1.attention."),
    (r"Qformer\.bert\.", "qformer."),
    (r"vision_proj\.", "vision_projection."),
    (r"text_proj\.", "text_projection."),
)


@dataclass(frozen=True, kw_only=True)
class Blip2Conversion(Conversion):
    """What a checkpoint of LAVIS does not hold or show, and what is recorded with the weights."""

    vocabulary: str | None = option(
        None, "vocab.txt of bert-base-uncased, whose tokenizer the model was trained with"
    )
    vision: str | None = option(
        None,
        "the frozen image tower (eva_vit_g.pth), where the checkpoint leaves it out; its last block goes",
    )
    vision_heads: int | None = option(None, "heads of the image tower; None: its width / 88", minimum=1)
    qformer_heads: int | None = option(None, "heads of the Q-Former; None: its width / 64", minimum=1)
    source: str | None = option(None, "name of the original; None: the file's")
    url: str | None = option(None, "where it was downloaded")
    licence: str | None = option(None, "as its authors state it; None: BSD-3-Clause, as their code")

    def read(self, path: Path) -> Release:
        """The checkpoint at `path`, by these settings.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: a file cannot be read safely, is not what it should be, or is incomplete. The message
                names the file and the mend.
        """
        content = read_checkpoint(path)
        try:
            content, notes = _own_names(content)
            content, more = self._with_vision(content)
            floats, widened = as_float32(content)
            tensors = translate_names(floats)
            architecture = self._architecture(tensors)
            tensors = _complete(tensors, architecture)
        except (ValueError, KeyError) as error:
            said = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            raise ValueError(f"{path}: no complete BLIP-2 with matching heads: {said}") from error
        notes = [*notes, *more, *widened]
        vocabulary, about = self._vocabulary(architecture["qformer"]["vocab_size"])
        notes.append(about)
        listed = next((entry for entry in BLIP2 if entry.original.endswith("/" + path.name)), None)
        config = {
            "format": 1,
            "encoder": "blip2",
            "architecture": architecture,
            "preprocessing": preprocessing(architecture),
            "context_length": CONTEXT,
            "vocabulary": vocabulary,
            "source": {
                "name": self.source or path.stem,
                "url": self.url or (listed.original if listed else None),
                "file": path.name,
                "size": path.stat().st_size,
                "sha256": sha256_of(path),
                "licence": self.licence or "BSD-3-Clause",
                "notes": notes,
            },
        }
        return Release(config, tensors, notes)

    def _with_vision(self, content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The tensors, with the frozen tower where one is given, and notes."""
        inside = any(name.startswith(_TOWER) for name in content)
        if self.vision is None:
            if not inside:
                raise ValueError(
                    "it holds no image tower, which was frozen and lies in a file of its own "
                    "(eva_vit_g.pth of the same release): pass it as vision (--vision)"
                )
            return dict(content), []
        if inside:
            raise ValueError("it holds its own image tower, tuned with the rest: pass no vision")
        tower = read_checkpoint(Path(self.vision).expanduser())
        blocks = [int(found[1]) for name in tower if (found := re.match(r"blocks\.(\d+)\.", name))]
        if not blocks:
            raise wrong_option("vision", self.vision, f"no such tower: it holds {name_some(tower)}")
        last = max(blocks)
        kept = {
            _TOWER + name: tensor
            for name, tensor in tower.items()
            if re.match(r"cls_token$|pos_embed$|patch_embed\.proj\.|blocks\.", name)
            and not name.startswith(f"blocks.{last}.")
        }
        note = f"image tower: of {Path(self.vision).name}, without its last block, as BLIP-2 uses it"
        return {**content, **kept}, [note]

    def _architecture(self, tensors: Tensors) -> dict[str, Any]:
        patches = tensors["vision_model.embeddings.patch_embedding.weight"]
        positions = tensors["vision_model.embeddings.position_embedding"].shape[1] - 1
        words = tensors["embeddings.word_embeddings.weight"]
        side, patch = math.isqrt(positions), patches.shape[-1]
        if side * side != positions:
            raise ValueError(f"{positions} positions of patches are no square")
        crossed = [
            int(found[1])
            for name in tensors
            if (found := re.match(r"qformer\.encoder\.layer\.(\d+)\.crossattention\.output\.dense\.w", name))
        ]
        vision = {
            "hidden_size": patches.shape[0],
            "intermediate_size": tensors["vision_model.encoder.layers.0.mlp.fc1.weight"].shape[0],
            "num_hidden_layers": _count(tensors, "vision_model.encoder.layers."),
            "num_attention_heads": _heads(patches.shape[0], self.vision_heads, _VISION_HEAD, "vision_heads"),
            "image_size": side * patch,
            "patch_size": patch,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
            "qkv_bias": "vision_model.encoder.layers.0.self_attn.qkv.bias" in tensors,
        }
        qformer = {
            "vocab_size": words.shape[0],
            "hidden_size": words.shape[1],
            "num_hidden_layers": _count(tensors, "qformer.encoder.layer."),
            "num_attention_heads": _heads(words.shape[1], self.qformer_heads, _QFORMER_HEAD, "qformer_heads"),
            "intermediate_size": tensors["qformer.encoder.layer.0.intermediate_query.dense.weight"].shape[0],
            "hidden_act": "gelu",
            "max_position_embeddings": tensors["embeddings.position_embeddings.weight"].shape[0],
            "layer_norm_eps": 1e-12,
            "pad_token_id": 0,
            "cross_attention_frequency": min((place for place in crossed if place), default=len(crossed) + 1),
            "encoder_hidden_size": patches.shape[0],
        }
        return {
            "vision": vision,
            "qformer": qformer,
            "num_query_tokens": tensors["query_tokens"].shape[1],
            "image_text_hidden_size": tensors["vision_projection.weight"].shape[0],
        }

    def _vocabulary(self, rows: int) -> tuple[list[str], str]:
        if self.vocabulary is None:
            raise ValueError(
                "the checkpoint holds no words: pass vocabulary, the file vocab.txt of "
                "https://huggingface.co/google-bert/bert-base-uncased (on the command line --vocabulary)"
            )
        file = Path(self.vocabulary).expanduser()
        words = read_words(file)
        if len(words) == rows - 1 and _DEC not in words:
            words.append(_DEC)  # the start mark of captioning, which BLIP-2 adds to BERT's words
        if len(words) != rows:
            found = f"{len(words)} words, but the model knows {rows}, {_DEC} included"
            fix = "pass that of bert-base-uncased"
            raise wrong_option("vocabulary", self.vocabulary, found, fix, verb="has")
        return words, f"words: {file.name}, sha256 {sha256_of(file)[:12]}..."


def translate_names(content: Mapping[str, torch.Tensor]) -> Tensors:
    """LAVIS's tensors under transformers' names; query and value biases of the tower become one."""
    tensors: Tensors = {}
    biases: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in content.items():
        if found := re.fullmatch(r"visual_encoder\.blocks\.(\d+)\.attn\.([qv])_bias", name):
            biases.setdefault(found[1], {})[found[2]] = tensor
            continue
        for pattern, replacement in _NAMES:
            renamed, count = re.subn("^" + pattern, replacement, name)
            if count:
                name = renamed
                break
        tensors[name] = tensor
    for layer, parts in biases.items():
        query, value = parts["q"], parts["v"]  # a bias of the keys would change no attention: there is none
        tensors[f"vision_model.encoder.layers.{layer}.self_attn.qkv.bias"] = torch.cat(
            [query, torch.zeros_like(query), value]
        )
    return tensors


def _own_names(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The tensors that are used, under LAVIS's own names, and notes."""
    anchors = [name for name in content if name == _QUERIES or name.endswith("." + _QUERIES)]
    if len(anchors) != 1 or not any(_BERT in name for name in content):
        raise ValueError(
            f"expected LAVIS's names, {_QUERIES} and {_BERT}... among them, found {name_some(content)}"
        )
    prefix = anchors[0][: -len(_QUERIES)]
    named = {name[len(prefix) :]: value for name, value in content.items() if name.startswith(prefix)}
    if outside := [name for name in content if not name.startswith(prefix)]:
        raise ValueError(f"the model lies under {prefix!r}, but there is more: {name_some(outside)}")
    left = [name for name in named if _LEFT_OUT.match(name)]
    notes = [f"the prefix {prefix!r} of all names was taken off"] if prefix else []
    if left:
        notes.append(f"left out {len(left)} tensors that matching does not use: {name_some(left, 3)}")
    return {name: value for name, value in named.items() if name not in left}, notes


def _complete(tensors: Tensors, architecture: Mapping[str, Any]) -> Tensors:
    with torch.device("meta"):
        expected = {
            name: tuple(tensor.shape) for name, tensor in empty_model(dict(architecture)).state_dict().items()
        }
    return complete(tensors, expected, called="BLIP-2")[0]


def _count(tensors: Tensors, prefix: str) -> int:
    return len({name[len(prefix) :].split(".")[0] for name in tensors if name.startswith(prefix)})


def _heads(width: int, given: int | None, usual: int, name: str) -> int:
    heads = given or width // usual
    if not heads or width % heads:
        flag = name.replace("_", "-")
        raise ValueError(f"how many heads share the width {width} cannot be told: pass {name} (--{flag})")
    return heads
