"""SPECS: the original checkpoint of Long-CLIP, converted, scored through the public doors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import capeval_core
from tests.golden.case import Case, Comparison, Place, converted, cosine, opened, padded, save, unit
from tests.golden.pacs import preprocessing
from tests.support.device import device
from tests.support.seams import visual

IGNORED = ("table_", "pixels_", "mean_")


def run(case: Case) -> Iterator[Comparison]:
    pairs = case.json("pairs")
    texts = [pair["caption"] for pair in pairs["pairs"]]
    shown = [case.path(pair["image"]) for pair in pairs["pairs"]]
    tensors = {name: own.half().float() for name, own in case.tensors().items()}
    with Place() as place:
        checkpoint = save(tensors, place / "spec.pt")
        weights = converted("clip", checkpoint, place / "ours", {"preprocessing": preprocessing(case.config)})
        encoder = opened("clip", weights)
        options = {"weights": str(weights), "device": device()}
        raw, scaled = (capeval_core.load("specs", **options, scale=scale) for scale in ("cosine", "unit"))
    tokens = encoder.tokenizer.encode(texts)
    images = [visual("image", case.path(name)) for name in pairs["images"]]
    image_features = np.concatenate([part.features for part in encoder.encode_images(images)])
    text_features = encoder.encode_texts(texts).features
    ours = {
        "input_ids": padded(tokens.ids, 248),
        "truncated": tokens.truncated,
        "image_features": unit(image_features),
        "text_features": unit(text_features),
        "cosine_matrix": cosine(image_features[:, None], text_features[None]),
        "specs": raw.score(texts, shown).scores,
        "readme_score": scaled.score(texts, shown).scores,
    }
    yield from case.compare_all(ours, lambda _: 1e-6)
