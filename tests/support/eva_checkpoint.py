"""EVA-CLIP written out: names as its authors release them, seeded values, and the forward pass step by step.

After the description of the architecture (Sun et al., 2023 and 2024): written for comparison, it shares
nothing with the package and does everything the long way.
"""

from __future__ import annotations

import math
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


def image_feature(tensors: Tensors, pixels: Tensor, sizes: Sizes = Sizes(), norm: str = "post") -> Tensor:
    """(dimension,) feature of the normalised pixels (3, s, s) of one image, in float64."""
    p = {
        name.removeprefix("visual."): tensor.double()
        for name, tensor in tensors.items()
        if name.startswith("visual.")
    }
    pixels = pixels.double()
    tokens = [p["cls_token"][0, 0]]
    for top in range(0, sizes.image, sizes.patch):
        for left in range(0, sizes.image, sizes.patch):
            patch = pixels[:, top : top + sizes.patch, left : left + sizes.patch]
            kernel = p["patch_embed.proj.weight"]
            tokens.append((kernel * patch).sum(dim=(1, 2, 3)) + p["patch_embed.proj.bias"])
    x = torch.stack(tokens) + p["pos_embed"][0]
    for layer in range(sizes.layers):
        b = {
            name.removeprefix(f"blocks.{layer}."): tensor
            for name, tensor in p.items()
            if name.startswith(f"blocks.{layer}.")
        }
        if norm == "post":
            x = x + _rms(_attention(b, x, sizes), b["norm1.weight"])
            x = x + _rms(_mlp(b, x), b["norm2.weight"])
        else:
            x = x + _attention(b, _rms(x, b["norm1.weight"]), sizes)
            x = x + _mlp(b, _rms(x, b["norm2.weight"]))
    return p["head.weight"] @ _rms(x, p["norm.weight"])[0]


def text_feature(tensors: Tensors, ids: list[int]) -> Tensor:
    """(dimension,) feature of a text's ids, padded to 77 and read at its end mark, in float64."""
    p = {
        name.removeprefix("text."): tensor.double()
        for name, tensor in tensors.items()
        if name.startswith("text.")
    }
    padded = ids + [0] * (77 - len(ids))
    x = p["token_embedding.weight"][padded] + p["positional_embedding"]
    layers = len({name.split(".")[2] for name in p if name.startswith("transformer.")})
    for layer in range(layers):
        b = {
            name.removeprefix(f"transformer.resblocks.{layer}."): tensor
            for name, tensor in p.items()
            if name.startswith(f"transformer.resblocks.{layer}.")
        }
        h = _layer_norm(x, b["ln_1.weight"], b["ln_1.bias"])
        query, keys, values = (h @ b["attn.in_proj_weight"].T + b["attn.in_proj_bias"]).chunk(3, dim=1)
        heads = []
        for start in range(0, x.shape[1], 64):
            part = slice(start, start + 64)
            logits = query[:, part] @ keys[:, part].T / 8
            later = torch.ones_like(logits).triu(1).bool()
            heads.append(logits.masked_fill(later, -math.inf).softmax(dim=1) @ values[:, part])
        x = x + torch.cat(heads, dim=1) @ b["attn.out_proj.weight"].T + b["attn.out_proj.bias"]
        h = _layer_norm(x, b["ln_2.weight"], b["ln_2.bias"])
        h = _gelu(h @ b["mlp.c_fc.weight"].T + b["mlp.c_fc.bias"])
        x = x + h @ b["mlp.c_proj.weight"].T + b["mlp.c_proj.bias"]
    x = _layer_norm(x, p["ln_final.weight"], p["ln_final.bias"])
    return x[ids.index(49407)] @ p["text_projection"]


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


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6) * weight


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(dim=-1, keepdim=True) + 1e-5) * weight + bias


def _gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def _attention(b: Tensors, x: Tensor, sizes: Sizes) -> Tensor:
    width, heads = sizes.width, []
    query, keys, values = (x @ b["attn.qkv.weight"][i * width : (i + 1) * width].T for i in range(3))
    for start in range(0, width, sizes.head_width):
        part = slice(start, start + sizes.head_width)
        weights = (query[:, part] @ keys[:, part].T / math.sqrt(sizes.head_width)).softmax(dim=1)
        heads.append(weights @ values[:, part])
    return torch.cat(heads, dim=1) @ b["attn.proj.weight"].T + b["attn.proj.bias"]


def _mlp(b: Tensors, x: Tensor) -> Tensor:
    return _gelu(x @ b["mlp.fc1.weight"].T + b["mlp.fc1.bias"]) @ b["mlp.fc2.weight"].T + b["mlp.fc2.bias"]
