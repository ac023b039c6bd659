"""PAC-S and RefPAC-S: the original checkpoint, converted, scored through the public doors.

A case is a folder with config.json, manifest.json, inputs/pairs.json with its images, and outputs.npz.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import capeval_core
from capeval_core.scores.pac import pac_score, ref_pac_score
from tests.golden.case import Case, Comparison, Json, Place, converted, cosine, opened, padded, save
from tests.support.device import device
from tests.support.seams import visual

VARIANTS = {"": "released", "alllora_": "all", "nolora_": "none"}
"""Prefix of a set of outputs -> the adapters that it was made with."""
IGNORED = ("debug_", "alllora_debug_", "pair_image", "reference_offsets", "arith_reference_offsets",
           "arith_image_features", "arith_text_features", "arith_reference_features")  # fmt: skip
TOLERANCES = {"image_features": "image_features", "text_features": "text_features",
              "reference_features": "text_features", "pac_s": "pac_s", "refpac_s": "refpac_s"}  # fmt: skip


def run(case: Case) -> Iterator[Comparison]:
    given = Pairs(case)
    config = {"constants": {"prompt": given.prompt}, "preprocessing": preprocessing(case.config)}
    with Place() as place:
        checkpoint = save({"state_dict": case.tensors()}, place / "original.pth")
        for prefix, adapters in VARIANTS.items():
            if not case.of(f"{prefix}image_features"):
                continue
            settings = {"adapters": adapters, **heads(case.config["model"])}
            weights = converted("clip", checkpoint, place / adapters, config, **settings)
            encoder = opened("clip", weights)
            if not prefix:
                yield from inputs(given, encoder)
            yield from case.compare_all(features(given, encoder), given.tolerance, prefix)
            if case.of(f"{prefix}pac_s"):
                yield from scores(given, weights, prefix)
    if case.of("arith_"):
        yield from arithmetic(given)


class Pairs:
    """Images, captions and references of a case."""

    def __init__(self, case: Case) -> None:
        inputs, score = case.json("pairs"), case.config["score"]
        self.case, self.scale = case, float(score["w"])
        self.prompt = str(inputs.get("prefix", score["prefix"]))
        self.paths = [case.path(name) for name in inputs["images"]]
        self.images = [visual("image", path) for path in self.paths]
        self.shown = [case.path(pair["image"]) for pair in inputs["pairs"]]
        self.captions = [pair["caption"] for pair in inputs["pairs"]]
        self.references = [list(pair["references"]) for pair in inputs["pairs"]]
        self.texts = {
            "input": [self.prompt + text for text in self.captions],
            "reference": [self.prompt + text for own in self.references for text in own],
        }
        self.owners = np.repeat(np.arange(len(self.captions)), [len(own) for own in self.references])

    def tolerance(self, quantity: str) -> float:
        return self.case.tolerance(TOLERANCES.get(quantity.removeprefix("mean_"), "cosine"))


def preprocessing(config: Json) -> Json:
    model = config["model"]
    size = model["vision_cfg"]["image_size"] if "vision_cfg" in model else model["image_resolution"]
    return {"image_size": size, "mean": config["image_mean"], "std": config["image_std"]}


def heads(model: Json) -> Json:
    """What the tensors of the checkpoint cannot tell, and only where it differs from the usual."""
    if "vision_cfg" in model:
        width, text_heads = model["text_cfg"]["width"], model["text_cfg"]["heads"]
        head_width = model["vision_cfg"].get("head_width", 64)
    else:
        width, text_heads = model["text_width"], model["text_heads"]
        is_resnet = isinstance(model["vision_layers"], list)
        head_width = model["vision_width"] * (32 if is_resnet else 1) // model["vision_heads"]
    given: Json = {"head_width": head_width} if head_width != 64 else {}
    given |= {"text_heads": text_heads} if text_heads != width // 64 else {}
    # open_clip's own models have the exact GELU; one that holds OpenAI's weights has to say so.
    return {**given, "activation": "quick_gelu"} if model.get("quick_gelu") else given


def inputs(given: Pairs, encoder: Any) -> Iterator[Comparison]:
    """Pixels and token ids."""
    case = given.case
    pixels = np.stack([encoder.preprocess(image.load()) for image in given.images])
    wide = pixels.astype(np.float64)
    ours = {
        "pixels": pixels,
        "pixels_mean": wide.mean(axis=(2, 3)),
        "pixels_std": wide.std(axis=(2, 3), ddof=1),  # torch's std divides by n - 1
    }
    for name in case.outputs:
        if every := re.fullmatch(r"pixels_every(\d+)", name):
            ours[name] = pixels[:, :, :: int(every[1]), :: int(every[1])]
    yield from case.compare_all(ours, lambda _: case.tolerance("pixels"))
    for name, texts in given.texts.items():
        if theirs := case.of(f"{name}_ids"):
            ids = padded(encoder.tokenizer.encode(texts).ids, theirs[""].shape[1])
            yield case.compare(f"{name}_ids", ids, 0)


def features(given: Pairs, encoder: Any) -> Json:
    """Features, and the cosine of every image with every caption."""
    images = np.concatenate([part.features for part in encoder.encode_images(given.images)])
    texts, references = (encoder.encode_texts(texts).features for texts in given.texts.values())
    return {
        "image_features": images,
        "text_features": texts,
        "reference_features": references,
        "image_text_cosine_matrix": cosine(images[:, None], texts[None]),
        "reference_cosine": cosine(texts[given.owners], references),
    }


def scores(given: Pairs, weights: Path, prefix: str) -> Iterator[Comparison]:
    """Scores, parts and means: as released and, where they coincide, as in the paper."""
    case, options = (
        given.case,
        {"weights": str(weights), "device": device(), "empty": "score", "w": given.scale},
    )
    pacs, refpacs = (capeval_core.load(name, compat="released", **options) for name in ("pacs", "refpacs"))
    found = pacs.score(given.captions, given.shown)
    with_references = refpacs.score(given.captions, given.shown, given.references)
    nearest = with_references.parts["reference_cosine"]
    ours = {
        "cosine": found.parts["cosine"],
        "pac_s": found.scores,
        "mean_pac_s": found.mean,
        "ref_similarity": nearest,
        "mean_ref_similarity": np.mean(nearest),
        "refpac_s": with_references.scores,
        "mean_refpac_s": with_references.mean,
    }
    yield from case.compare_all(ours, given.tolerance, prefix)
    paper = capeval_core.load("refpacs", **options).score(given.captions, given.shown, given.references)
    same = case.outputs[f"{prefix}ref_similarity"] >= 0
    for name, values in {"pac_s": paper.parts["pac_s"], "refpac_s": paper.scores}.items():
        mine, limit = np.array(values)[same], given.tolerance(name)
        yield case.compare(f"{prefix}paper_{name}", mine, limit, same, output=prefix + name)


def arithmetic(given: Pairs) -> Iterator[Comparison]:
    """The formulas alone, on features that the case made up."""
    case, made = given.case, given.case.of("arith_")
    image, text, references = (made[f"{kind}_features"] for kind in ("image", "text", "reference"))
    starts = made["reference_offsets"]
    flat = cosine(np.repeat(text, np.diff(starts), axis=0), references)
    nearest = np.maximum.reduceat(flat, starts[:-1]).astype(np.float64)
    pac = pac_score(cosine(image, text).astype(np.float64), given.scale)
    ours = {"pac_s": pac, "ref_similarity": nearest, "refpac_s": ref_pac_score(pac, nearest, released=True)}
    yield from case.compare_all(ours, given.tolerance, "arith_")
    same = made["ref_similarity"] >= 0
    paper = ref_pac_score(pac, nearest)[same]
    yield case.compare(
        "arith_paper_refpac_s", paper, given.tolerance("refpac_s"), same, output="arith_refpac_s"
    )
