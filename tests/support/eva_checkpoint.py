"""Checkpoints of EVA-CLIP: names as its authors release them, seeded values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    image: int = 28
    patch: int = 7
    width: int = 48
    head_width: int = 12
    hidden: int = 240
    layers: int = 3
    text_width: int = 128
    text_layers: int = 2
    dimension: int = 40


def seeded(sizes: Sizes = Sizes(), seed: int = 18) -> Tensors:
    """A checkpoint in the authors' naming."""
    draw = torch.Generator().manual_seed(seed)

    def some(*shape: int, scale: float = 1.0, mean: float = 0.0) -> Tensor:
        return torch.randn(*shape, generator=draw) * scale + mean

    def weight(out: int, into: int) -> Tensor:
        return some(out, into, scale=into**-0.5)

    def norm(width: int) -> Tensor:
        return some(width, scale=0.1, mean=1.0)

    w, t = sizes.width, sizes.text_width
    tensors = {
        "visual.cls_token": some(1, 1, w),
        "visual.pos_embed": some(1, (sizes.image // sizes.patch) ** 2 + 1, w, scale=0.5),
        "visual.patch_embed.proj.weight": some(w, 3, sizes.patch, sizes.patch, scale=0.1),
        "visual.patch_embed.proj.bias": some(w, scale=0.1),
    }
    for layer in range(sizes.layers):
        tensors |= {
            f"visual.blocks.{layer}.{name}": tensor
            for name, tensor in {
                "norm1.weight": norm(w),
                "attn.qkv.weight": weight(3 * w, w) * 2,
                "attn.proj.weight": weight(w, w),
                "attn.proj.bias": some(w, scale=0.1),
                "norm2.weight": norm(w),
                "mlp.fc1.weight": weight(sizes.hidden, w),
                "mlp.fc1.bias": some(sizes.hidden, scale=0.1),
                "mlp.fc2.weight": weight(w, sizes.hidden),
                "mlp.fc2.bias": some(w, scale=0.1),
            }.items()
        }
    tensors |= {"visual.norm.weight": norm(w), "visual.head.weight": weight(sizes.dimension, w)}
    tensors |= {
        "text.positional_embedding": some(77, t, scale=0.3),
        "text.text_projection": weight(sizes.dimension, t).T.contiguous(),
        "text.token_embedding.weight": some(49408, t),
    }
    for layer in range(sizes.text_layers):
        tensors |= {
            f"text.transformer.resblocks.{layer}.{name}": tensor
            for name, tensor in {
                "ln_1.weight": norm(t),
                "ln_1.bias": some(t, scale=0.1),
                "attn.in_proj_weight": weight(3 * t, t) * 2,
                "attn.in_proj_bias": some(3 * t, scale=0.1),
                "attn.out_proj.weight": weight(t, t),
                "attn.out_proj.bias": some(t, scale=0.1),
                "ln_2.weight": norm(t),
                "ln_2.bias": some(t, scale=0.1),
                "mlp.c_fc.weight": weight(4 * t, t),
                "mlp.c_fc.bias": some(4 * t, scale=0.1),
                "mlp.c_proj.weight": weight(t, 4 * t),
                "mlp.c_proj.bias": some(t, scale=0.1),
            }.items()
        }
    return tensors | {
        "text.ln_final.weight": norm(t),
        "text.ln_final.bias": some(t, scale=0.1),
        "logit_scale": torch.tensor(4.6),
    }


def as_transformers(tensors: Tensors) -> Tensors:
    """The same checkpoint as transformers' class of the authors saves it."""
    renamed: Tensors = {"logit_scale": tensors["logit_scale"]}
    vision, text = "vision_model", "text_model"
    for name, tensor in tensors.items():
        side, _, rest = name.partition(".")
        if rest.startswith("blocks.") or rest.startswith("transformer."):
            layer, of_layer = rest.removeprefix("transformer.").split(".", 2)[1:]
            model = vision if side == "visual" else text
            for part, whole in _parts(of_layer, tensor).items():
                renamed[f"{model}.encoder.layers.{layer}.{part}"] = whole
    width = tensors["visual.head.weight"].shape[0]
    return renamed | {
        f"{vision}.embeddings.class_embedding": tensors["visual.cls_token"][0, 0],
        f"{vision}.embeddings.position_embedding.weight": tensors["visual.pos_embed"][0],
        f"{vision}.embeddings.patch_embedding.weight": tensors["visual.patch_embed.proj.weight"],
        f"{vision}.embeddings.patch_embedding.bias": tensors["visual.patch_embed.proj.bias"],
        f"{vision}.post_layernorm.weight": tensors["visual.norm.weight"],
        "visual_projection.weight": tensors["visual.head.weight"],
        "visual_projection.bias": torch.zeros(width),
        f"{text}.embeddings.token_embedding.weight": tensors["text.token_embedding.weight"],
        f"{text}.embeddings.position_embedding.weight": tensors["text.positional_embedding"],
        f"{text}.embeddings.position_ids": torch.arange(77)[None],
        f"{text}.final_layer_norm.weight": tensors["text.ln_final.weight"],
        f"{text}.final_layer_norm.bias": tensors["text.ln_final.bias"],
        "text_projection.weight": tensors["text.text_projection"].T.contiguous(),
    }


def _parts(name: str, tensor: Tensor) -> Tensors:
    for packed in ("attn.qkv.", "attn.in_proj_"):
        if name.startswith(packed):
            kind = name.removeprefix(packed)
            return {
                f"self_attn.{p}_proj.{kind}": part.clone()
                for p, part in zip("qkv", tensor.chunk(3), strict=True)
            }
    for own, theirs in (
        ("attn.proj.", "self_attn.out_proj."),
        ("attn.out_proj.", "self_attn.out_proj."),
        ("norm", "layer_norm"),
        ("ln_", "layer_norm"),
        ("mlp.c_fc.", "mlp.fc1."),
        ("mlp.c_proj.", "mlp.fc2."),
    ):
        if name.startswith(own):
            return {theirs + name.removeprefix(own): tensor}
    return {name: tensor}
