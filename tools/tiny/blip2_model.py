"""The tiny BLIP-2 before its training: its words, its sizes, and the image tower of `tiny`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.tokenizers import END, PAD, START, UNKNOWN, WordPiece
from capeval_core.weights.blip2 import empty_model
from tools.captions import describe
from tools.scenes import draw, sample_scene
from tools.tiny.clip_model import PATCH, SIDE, normalised, shipped
from tools.tiny.lessons import LONGEST, shrink

VISION_LAYERS = 3
WIDTH, QUERIES, DIMENSION = 96, 12, 64


def vocabulary() -> list[str]:
    """BERT's marks, every word that captions of scenes are made of, the comma and the full stop."""
    rng = np.random.default_rng(0)
    words = {word for _ in range(4000) for word in describe(sample_scene(rng), rng).split()}
    return [PAD, UNKNOWN, START, END, *sorted({",", "."} | {word.rstrip(",") for word in words})]


class Codec:
    """Captions to ids, by the encoder's own tokenizer, each caption once."""

    def __init__(self, words: list[str]) -> None:
        self._tokenizer = WordPiece(words, LONGEST)

    def __call__(self, caption: str) -> list[int]:
        return list(self._tokenizer.encode([caption]).ids[0])


def architecture(words: int) -> dict[str, Any]:
    """Of the tiny model, with a vocabulary of so many words."""
    vision = {
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": VISION_LAYERS,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": PATCH,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "qkv_bias": True,
    }
    qformer = {
        "vocab_size": words,
        "hidden_size": WIDTH,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 2 * WIDTH,
        "hidden_act": "gelu",
        "max_position_embeddings": LONGEST,
        "layer_norm_eps": 1e-6,
        "pad_token_id": 0,
        "cross_attention_frequency": 1,
        "encoder_hidden_size": 128,
    }
    return {
        "vision": vision,
        "qformer": qformer,
        "num_query_tokens": QUERIES,
        "image_text_hidden_size": DIMENSION,
    }


def build(words: list[str], seed: int) -> Any:
    """The untrained model, its image tower that of `tiny`."""
    torch.manual_seed(seed)
    model: Any = empty_model(architecture(len(words)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and not name.startswith("vision_model."):
                # transformers begins with numbers made for widths of thousands.
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        model.query_tokens.normal_()  # equal ones would stay equal
    tensors = shipped().tensors()
    vision = {
        name.removeprefix("visual."): t.float() for name, t in tensors.items() if name.startswith("visual.")
    }
    model.vision_model.load_state_dict(_tower(vision))
    return model.eval()  # it has no dropout


def _tower(clip: dict[str, Tensor]) -> dict[str, Tensor]:
    """CLIP's image tower without its last block, as BLIP-2's, which has no norm before the first block.

    Of that norm everything but the division by each patch's own deviation is linear and goes into the
    embedding; the division is by the usual deviation.
    """
    kernel = clip["conv1.weight"] - clip["conv1.weight"].mean(0)
    positions = clip["positional_embedding"].clone()
    positions[0] += clip["class_embedding"]
    positions = positions - positions.mean(-1, keepdim=True)
    gain, bias = clip["ln_pre.weight"], clip["ln_pre.bias"]
    rng = np.random.default_rng(0)
    drawn = np.stack([shrink(draw(sample_scene(rng)), SIDE) for _ in range(32)])
    patches = functional.conv2d(normalised(drawn), kernel, stride=kernel.shape[-1]).flatten(2).transpose(1, 2)
    deviation = (patches + positions[1:]).std(-1).median()
    mark = functional.layer_norm(positions[0], positions[0].shape, gain, bias)
    width = len(gain)
    tower = {
        "embeddings.class_embedding": mark.view(1, 1, width),
        "embeddings.position_embedding": torch.cat(
            [torch.zeros(1, width), positions[1:] / deviation * gain + bias]
        )[None],
        "embeddings.patch_embedding.weight": kernel / deviation * gain[:, None, None, None],
        "embeddings.patch_embedding.bias": torch.zeros(width),
        "post_layernorm.weight": torch.ones(width),
        "post_layernorm.bias": torch.zeros(width),
    }
    names = {
        "ln_1": "layer_norm1",
        "ln_2": "layer_norm2",
        "attn.out_proj": "self_attn.projection",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
    }
    for layer in range(VISION_LAYERS):
        theirs, ours = f"transformer.resblocks.{layer}.", f"encoder.layers.{layer}."
        for end in ("weight", "bias"):
            tower[f"{ours}self_attn.qkv.{end}"] = clip[f"{theirs}attn.in_proj_{end}"]
            for name, translated in names.items():
                tower[f"{ours}{translated}.{end}"] = clip[f"{theirs}{name}.{end}"]
    return tower
