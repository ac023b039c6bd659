"""CLIP-S and RefCLIP-S: the checkpoint, converted, scored through the public doors.

A case is a folder with config.json, manifest.json, inputs/pairs.json with its images, and outputs.npz.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import capeval_core
from tests.golden.case import Case, Comparison, Place, converted, opened, save, unit
from tests.golden.pacs import heads, preprocessing
from tests.support.device import device
from tests.support.seams import visual


def run(case: Case) -> Iterator[Comparison]:
    pairs, score = case.json("pairs"), case.config["score"]
    texts = [pair["caption"] for pair in pairs["pairs"]]
    shown = [case.path(pair["image"]) for pair in pairs["pairs"]]
    references = [pair["references"] for pair in pairs["pairs"]]
    config = {"constants": {"prompt": score["prefix"]}, "preprocessing": preprocessing(case.config)}
    with Place() as place:
        checkpoint = save(case.tensors(), place / "original.pt")
        weights = converted("clip", checkpoint, place / "ours", config, **heads(case.config["model"]))
        encoder = opened("clip", weights)
        options = {"weights": str(weights), "device": device(), "empty": "score"}
        clips, refclips = (capeval_core.load(name, **options) for name in ("clips", "refclips"))
    images = [visual("image", case.path(name)) for name in pairs["images"]]
    parts, prompted = encoder.encode_images(images), [score["prefix"] + text for text in texts]
    plain, found = clips.score(texts, shown), refclips.score(texts, shown, references)
    ours = {
        "image_features": unit(np.concatenate([part.features for part in parts])),
        "text_features": unit(encoder.encode_texts(prompted).features),
        "cosine": plain.parts["cosine"],
        "reference_cosine": found.parts["reference_cosine"],
        "clip_s": plain.scores,
        "refclip_s": found.scores,
        "mean_clip_s": plain.mean,
        "mean_refclip_s": found.mean,
    }

    def tolerance(quantity: str) -> float:
        kinds = ("features", "cosine", "refclip_s", "clip_s")
        return case.tolerance(next(kind for kind in kinds if quantity.endswith(kind)))

    yield from case.compare_all(ours, tolerance)
