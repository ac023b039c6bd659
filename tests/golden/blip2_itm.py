"""BLIP-2: the original checkpoint, converted, asked through the public doors; and transformers' own format.

A case is a folder with config.json (transformers' sizes and the seed), manifest.json (transformers' tensors),
scales.json, lavis_key_map.json, images image0.png and so on, and golden.npz. Its texts are token ids: here
every id is a word of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from capeval_core.cache import FeatureCache
from tests.golden.case import (
    Array,
    Case,
    Comparison,
    Json,
    Place,
    converted,
    cosine,
    opened,
    padded,
    save,
    text_of,
    unit,
    write_vocabulary,
)
from tests.support.seams import blip2_states, visual

SCORES, STATES = 1e-4, 1e-3
"""The tolerances that the README gives, of scores and of hidden states."""
IGNORED = ("attention_mask",)


def run(case: Case) -> Iterator[Comparison]:
    """Everything that the case pins, converted from LAVIS; then values of transformers' format."""
    case.outputs = case.npz("golden")
    images = [visual("image", case.path(f"image{i}.png")) for i in range(len(case.outputs["pixel_values"]))]
    texts = [text_of(ids) for ids in case.outputs["input_ids"]]
    with Place() as place:
        ours = opened(
            "blip2", converted("blip2", lavis(case, place), place / "ours", **settings(case, place))
        )
        direct = opened("blip2", transformers(case, place))
    yield from states(case, ours, images, texts)
    yield from case.compare_all(matched(ours, images, texts), lambda _: SCORES)
    for name, values in matched(direct, images, texts).items():
        yield case.compare(f"{name} of transformers' format", values, SCORES, output=name)


def settings(case: Case, place: Path) -> Json:
    """What the tensors cannot tell."""
    return {
        "vocabulary": write_vocabulary(place, case.config["qformer_config"]["vocab_size"]),
        "vision_heads": case.config["vision_config"]["num_attention_heads"],
        "qformer_heads": case.config["qformer_config"]["num_attention_heads"],
    }


def lavis(case: Case, place: Path) -> Path:
    """The original's file, under the original's names."""
    tensors, content = case.tensors(scales="scales"), dict[str, torch.Tensor]()
    for name, original in case.json("lavis_key_map").items():
        names = [original] if isinstance(original, str) else original
        parts = tensors[name].chunk(len(names))
        content |= {own: part.clone() for own, part in zip(names, parts, strict=True) if own}
    return save({"model": content}, place / "lavis.pth")


def transformers(case: Case, place: Path) -> Path:
    """A repository as transformers writes it."""
    folder = place / "transformers"
    folder.mkdir()
    keys = ("vision_config", "qformer_config", "num_query_tokens", "image_text_hidden_size")
    config = {
        "model_type": "blip-2",
        "architectures": ["Blip2ForImageTextRetrieval"],
        "image_token_index": 30523,
        **{key: case.config[key] for key in keys},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps({"resample": 3}))
    write_vocabulary(folder, case.config["qformer_config"]["vocab_size"])
    save_file(case.tensors(scales="scales"), folder / "model.safetensors")
    return folder


def states(case: Case, encoder: Any, images: list[Any], texts: list[str]) -> Iterator[Comparison]:
    """Inputs, features, and the states of the first caption."""
    tokens = encoder.tokenizer.encode(texts).ids
    yield case.compare("input_ids", padded(tokens, case.outputs["input_ids"].shape[1]), 0)
    decoded = [image.load() for image in images]
    yield case.compare("pixel_values", [encoder.preprocess(each) for each in decoded], SCORES)
    image_states = encoder.states([encoder.prepare_visual(each) for each in decoded])
    found = list(encoder.match(images, [texts] * len(images), cache=FeatureCache(0)))
    ours = {
        "itm_query_hidden_caption0": blip2_states(encoder, image_states, tokens[0]),
        "image_embeds": image_states,
        "itc_image_feats": unit(np.stack([part.queries for part in found])),
        "itc_text_feats": unit(found[0].text_features),
    }
    yield from case.compare_all(ours, lambda _: STATES)


def matched(encoder: Any, images: list[Any], texts: list[str]) -> dict[str, Array]:
    found = list(encoder.match(images, [texts] * len(images), cache=FeatureCache(0)))
    best = [cosine(part.queries[:, None], part.text_features[None]).max(axis=0) for part in found]
    return {
        "itc_images_x_captions": np.stack(best),
        "itm_logits": np.stack([part.logits for part in found]),
        "itm_scores": np.stack([part.itm for part in found]),
    }
