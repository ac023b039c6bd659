"""Scores by other people's code on the packaged tiny CLIP.

    python -m benchmarks.other_tools     writes `odd` of tests/support/known.json; `why_others` uses it, too

It needs `transformers`, `torchvision`, `torchmetrics`, `pycocoevalcap` (and Java), `nltk`, `rouge_score` and
`opencv-python-headless`. torchmetrics 1.9 expects tensors of `get_image_features`, which transformers 5 gives
in an object, and raises AttributeError: `Unwrapped` gives it what transformers 4 does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import capeval_core
from capeval_core.demo import demo_set

KNOWN = Path(__file__).parents[1] / "tests" / "support" / "known.json"
CROPS = (
    (3, 5, 192, 112),
    (0, 7, 97, 190),
    (11, 0, 188, 93),
    (5, 2, 84, 191),
    (0, 0, 191, 190),
    (9, 4, 66, 180),
)
"""Left, top, right and bottom: sides of odd lengths, whose half differences do not vanish."""
MODES = ("RGB", "RGBA", "P", "L", "RGB", "RGB", "RGBA", "RGB")


def odd_pictures(folder: Path) -> list[Path]:
    """Eight packaged drawings as PNG files of odd sizes, some of them transparent, grey or with a palette."""
    paths = []
    for number, (item, mode) in enumerate(zip(demo_set()[:8], MODES, strict=True)):
        image = Image.open(item.image).convert("RGB").crop(CROPS[number % len(CROPS)])
        if mode == "RGBA":
            image.putalpha(Image.linear_gradient("L").resize(image.size))
        elif mode != "RGB":
            image = image.convert(mode)
        paths.append(folder / f"{number}.png")
        image.save(paths[-1])
    return paths


@cache
def clip_model(dtype: torch.dtype = torch.float32) -> Any:
    """transformers' CLIPModel with the tensors of the packaged tiny CLIP."""
    from transformers import CLIPConfig, CLIPModel

    encoder: Any = capeval_core.load("pacs", weights="tiny").encoder
    sizes = encoder.config["architecture"]
    vision = sizes["vision"]
    text = sizes["text"]
    common = {"hidden_act": encoder.config["activation"], "projection_dim": sizes["embed_dim"]}
    config = CLIPConfig(
        text_config={
            **common,
            "hidden_size": text["width"],
            "intermediate_size": 4 * text["width"],
            "num_hidden_layers": text["layers"],
            "num_attention_heads": text["heads"],
            "bos_token_id": 49406,
            "eos_token_id": 49407,
            "pad_token_id": 49407,
        },
        vision_config={
            **common,
            "hidden_size": vision["width"],
            "intermediate_size": 4 * vision["width"],
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["width"] // vision["head_width"],
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
        },
        projection_dim=sizes["embed_dim"],
    )
    model = CLIPModel(config).eval()
    model.load_state_dict(_renamed(encoder.model.state_dict(), model.state_dict()))
    return model.to(dtype)


def _renamed(tensors: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of open_clip's names by those of transformers."""
    renamed = {"logit_scale": tensors["logit_scale"]}
    renamed["text_projection.weight"] = tensors["text_projection"].T
    renamed["visual_projection.weight"] = tensors["visual.proj"].T
    sides = {"text_model": "", "vision_model": "visual."}
    for side, prefix in sides.items():
        for name in (name for name in theirs if name.startswith(f"{side}.encoder.layers.")):
            _, _, _, layer, part = name.split(".", 4)
            block = f"{prefix}transformer.resblocks.{layer}"
            kind = part.rpartition(".")[2]
            if ".self_attn." in f".{part}" and "out_proj" not in part:
                place = ("q_proj", "k_proj", "v_proj").index(part.split(".")[1])
                renamed[name] = tensors[f"{block}.attn.in_proj_{kind}"].chunk(3)[place]
                continue
            for theirs_part, ours in (
                ("self_attn.out_proj", "attn.out_proj"),
                ("layer_norm1", "ln_1"),
                ("layer_norm2", "ln_2"),
                ("mlp.fc1", "mlp.c_fc"),
                ("mlp.fc2", "mlp.c_proj"),
            ):
                if part.startswith(theirs_part):
                    renamed[name] = tensors[f"{block}.{ours}.{kind}"]
    names = {
        "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
        "text_model.embeddings.position_embedding.weight": "positional_embedding",
        "text_model.final_layer_norm.weight": "ln_final.weight",
        "text_model.final_layer_norm.bias": "ln_final.bias",
        "vision_model.embeddings.class_embedding": "visual.class_embedding",
        "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
        "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
        "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
        "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
        "vision_model.post_layernorm.weight": "visual.ln_post.weight",
        "vision_model.post_layernorm.bias": "visual.ln_post.bias",
    }
    renamed |= {name: tensors[ours] for name, ours in names.items()}
    buffers = {name: tensor for name, tensor in theirs.items() if name.endswith("position_ids")}
    return {name: tensor.clone() for name, tensor in (renamed | buffers).items()}


def image_processor(fast: bool) -> Any:
    from transformers import CLIPImageProcessor, CLIPImageProcessorPil

    encoder: Any = capeval_core.load("pacs", weights="tiny").encoder
    size = encoder.preprocessing.image_size
    crop = {"height": size, "width": size}
    processor: Any = CLIPImageProcessor if fast else CLIPImageProcessorPil
    return processor(size={"shortest_edge": size}, crop_size=crop)


def pixels_of(images: Sequence[Any], fast: bool) -> torch.Tensor:
    """(n, 3, s, s) normalised pixels of CLIPImageProcessor, of images one by one."""
    processor = image_processor(fast)
    return torch.cat([processor(images=image, return_tensors="pt")["pixel_values"] for image in images])


@cache
def tokenizer() -> Any:
    """transformers' CLIPTokenizer, with the vocabulary in open_clip's package."""
    import open_clip
    from transformers import CLIPTokenizer

    theirs = open_clip.SimpleTokenizer()
    merges = [tuple(pair) for pair in theirs.bpe_ranks]
    vocabulary = dict(theirs.encoder)
    named = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {named.get(token, token): index for token, index in vocabulary.items()}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77)


def unit(features: torch.Tensor) -> torch.Tensor:
    return features / features.norm(dim=-1, keepdim=True)


@torch.no_grad()
def image_features(pixels: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(n, d) of normalised pixels, by transformers' model."""
    output = clip_model(dtype).get_image_features(pixel_values=pixels.to(dtype))
    return getattr(output, "pooler_output", output)


@torch.no_grad()
def text_features(
    texts: Sequence[str], dtype: torch.dtype = torch.float32, *, cut: bool = True
) -> torch.Tensor:
    """(n, d) of texts, by transformers' tokenizer and model; cut: by the tokenizer, which keeps the end."""
    tokens = tokenizer()(list(texts), return_tensors="pt", padding=True, truncation=cut, max_length=77)
    tokens = {name: ids[:, :77] for name, ids in tokens.items()}
    output = clip_model(dtype).get_text_features(**tokens)
    return getattr(output, "pooler_output", output)


class Unwrapped(torch.nn.Module):
    """A CLIPModel that gives features as tensors, as in transformers 4."""

    config: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.config = clip_model().config

    def get_image_features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return image_features(pixel_values)

    def get_text_features(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        output = clip_model().get_text_features(input_ids, attention_mask)
        return getattr(output, "pooler_output", output)


def of_torchmetrics(images: Sequence[torch.Tensor], captions: Sequence[str], fast: bool) -> list[float]:
    """CLIPScore of images (3, h, w) uint8, one by one, which its mean would hide."""
    from torchmetrics.functional.multimodal.clip_score import _clip_score_update
    from transformers import CLIPProcessor

    processor = CLIPProcessor(image_processor(fast), tokenizer())
    scores = []
    with torch.no_grad():
        for image, caption in zip(images, captions, strict=True):
            score, _ = _clip_score_update([image], [caption], Unwrapped(), processor)
            scores.append(float(score))
    return scores


def as_tensor(image: Any) -> torch.Tensor:
    from torchvision.transforms.functional import pil_to_tensor

    return pil_to_tensor(Image.open(image).convert("RGB"))


def main() -> None:
    """Numbers of the content cases on pictures of odd sizes, and with which versions they were made."""
    content = json.loads(KNOWN.read_text())
    captions = content["captions"]
    paths = odd_pictures(Path(tempfile.mkdtemp()))
    images = [Image.open(path) for path in paths]
    metric: Any = capeval_core.load("clips", weights="tiny")
    texts = unit(text_features([f"{metric.options.prompt}{caption}" for caption in captions]))
    plain = unit(text_features(captions))
    processed = {fast: unit(image_features(pixels_of(images, fast))) for fast in (True, False)}
    tensors = [as_tensor(path) for path in paths]
    odd = {
        "transformers, torchvision": 2.5 * (processed[True] * texts).sum(1).clamp(min=0),
        "transformers, Pillow": 2.5 * (processed[False] * texts).sum(1).clamp(min=0),
        "logits of transformers' CLIPModel": 100 * (processed[True] * plain).sum(1),
        "cosines of transformers' CLIPModel": (processed[True] * plain).sum(1),
        "torchmetrics' CLIPScore": of_torchmetrics(tensors, captions, fast=True),
        "torchmetrics' CLIPScore, transformers 4": of_torchmetrics(tensors, captions, fast=False),
    }
    content["odd"] = {}
    for name, scores in odd.items():
        content["odd"][name] = [float(f"{score:.8g}") for score in scores]
    packages = ("torch", "torchvision", "transformers", "torchmetrics", "pillow")
    content["odd versions"] = {name: version(name) for name in packages}
    KNOWN.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
