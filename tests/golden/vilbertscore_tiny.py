"""ViLBERTScore: precision, recall and F of each reference, as the release has them and of words alone.

A case is a folder with config.json (sizes, seeds, layers), manifest.json and manifest_pretrained.json,
inputs.npz (a candidate and its references per item, images, an idf table) and outputs.npz.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import capeval_core
from capeval_core.cache import FeatureCache
from capeval_core.result import Result
from tests.golden.case import Case, Comparison, Place, compare, opened
from tests.golden.vilbert_tiny import of_real_rows, real_texts, weights
from tests.support.device import device
from tests.support.seams import visual

PLAIN, WEIGHTED = 2e-6, 1e-5
"""The tolerances that the README gives, without and with idf weights."""
PARTS = {"P": "precision", "R": "recall", "F": "f"}


class Items:
    """Per item a candidate, its references, and the boxes of its image."""

    def __init__(self, case: Case) -> None:
        given = case.inputs
        pairs = zip(given["input_ids"], given["input_mask"], strict=True)
        self.texts = [real_texts(ids, mask) for ids, mask in pairs]
        self.images = [
            {
                "boxes": given[f"raw{i}_bbox"],
                "features": given["features"][i, 1:],
                "size": given[f"raw{i}_wh"],
            }
            for i in given["image_of_item"].tolist()
        ]
        self.idf = dict(zip(given["idf_ids"].tolist(), given["idf_values"].tolist(), strict=True))


def run(case: Case) -> Iterator[Comparison]:
    items, model, task = Items(case), case.config["model"], int(case.config["task_id"])
    with Place() as place:
        folder = weights(place, case.tensors(), model, task)
        table = yield from inputs(case, items, folder)
        for layer in case.config["layers"]:
            modes: tuple[tuple[str, float, dict[str, Any]], ...] = (
                ("plain_mask", PLAIN, {}),
                ("idf", WEIGHTED, {"statistics": table}),
            )
            for mode, tolerance, options in modes:
                found = score(items, folder, layer=layer, compat="released", **options)
                for letter, part in PARTS.items():
                    yield case.compare(f"{mode}_layer{layer}_{letter}", found.parts[part], tolerance)
                yield of_references(case, found, f"{mode}_layer{layer}_per_ref", tolerance)
            found = score(items, folder, layer=layer)
            yield of_references(case, found, f"words_only_layer{layer}_per_ref_f64", PLAIN)
    with Place() as place:
        tensors = case.tensors("manifest_pretrained", case.config["seed_pretrained"])
        found = score(items, weights(place, tensors, model, task))
        yield of_references(case, found, "pretrained_words_only_per_ref_f64", PLAIN)


def score(items: Items, folder: Path, **options: Any) -> Result:
    settings = {
        "weights": folder,
        "device": device(),
        "empty": "score",
        "cache": FeatureCache(),
        "regions": "tiny",
    }
    metric = capeval_core.load("vilbertscore", **{**settings, **options})
    return metric.score([own[0] for own in items.texts], items.images, [own[1:] for own in items.texts])


def of_references(case: Case, found: Result, name: str, tolerance: float) -> Comparison:
    ours = [np.array(found.parts[f"reference_{part}"]) for part in PARTS.values()]
    return case.compare(name, np.stack(ours, axis=2), tolerance)


def inputs(case: Case, items: Items, folder: Path) -> Generator[Comparison, None, Any]:
    """What the network takes, its states, and the idf table as `prepare` makes it. Returns the case's own."""
    encoder, visuals = opened("vilbert", folder), [visual("boxes", image) for image in items.images]
    theirs = case.inputs["spatials"][case.inputs["image_of_item"]]
    ours = np.stack([encoder.prepare_visual(each.load()).locations for each in visuals])
    yield compare("spatials", ours, theirs, PLAIN)
    texts = [own[:2] for own in items.texts]
    found = list(encoder.token_features(visuals, texts, cache=FeatureCache(0)))
    for slot, name in enumerate(("text_last_candidate", "text_last_reference0")):
        yield of_real_rows(case, name, [each.features[slot] for each in found])
    # How many references hold each id, by either table. The release counts whole references, but the case
    # holds the beginnings of those that were cut: each may hold one more id.
    references = [text for own in items.texts for text in own[1:]]
    cut = int((case.inputs["input_mask"][:, 1:].sum(axis=2) == case.config["max_text_tokens"]).sum())
    metric = capeval_core.load("vilbertscore", weights=folder, device=device(), regions="tiny")
    table = metric.prepare(references)
    made, theirs = table.of(list(items.idf)), list(items.idf.values())
    counts, expected = ((len(references) + 1) / np.exp(values) for values in (made, theirs))
    yield compare("idf_values, as counts", counts, expected, cut + 1e-6)
    return replace(table, weights=items.idf, unseen=max(theirs))  # of ids that the table lacks: the largest
