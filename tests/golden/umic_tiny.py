"""UMIC: the original checkpoint, converted, run through the public doors; its batches, losses and box rule.

A case is a folder with config.json (sizes and the seed), manifest.json (the original's tensors), inputs.npz,
batch.npz, outputs.npz and outputs.json. Its texts are token ids: here every id is a word of its own.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

import capeval_core
from capeval_core.cache import FeatureCache
from tests.golden.case import (
    Array,
    Case,
    Comparison,
    Place,
    compare,
    converted,
    opened,
    padded,
    save,
    text_of,
    write_vocabulary,
)
from tests.support.device import device
from tests.support.seams import first_boxes, ranking_loss

STATES, LOGITS, SCORES = 1e-5, 3e-6, 1e-6
"""The tolerances that the README gives: hidden states and pooled, logits, scores and losses."""


def run(case: Case) -> Iterator[Comparison]:
    model = case.config["model"]
    with Place() as place:
        checkpoint, vocabulary = (
            save(case.tensors(), place / "umic.pt"),
            write_vocabulary(place, model["vocab_size"]),
        )
        heads = model["num_attention_heads"]
        weights = converted("uniter", checkpoint, place / "ours", vocabulary=vocabulary, heads=heads)
        encoder = opened("uniter", weights)
        for k in range(len(case.config["images"])):
            arrays = {part: case.inputs[f"img{k}_{part}"] for part in ("features", "norm_bb", "conf")}
            np.savez(place / f"{k}.npz", **arrays)
        yield from scores(case, weights, place)
        yield from batch(case, encoder, place)
        yield from losses(case, encoder, place)
        for name in names(case, r"filter_(.+)_conf"):
            yield from box_rule(case, name, place)


def names(case: Case, pattern: str) -> list[str]:
    """What is named in the inputs by a pattern with a group."""
    return sorted(found[1] for name in case.inputs if (found := re.fullmatch(pattern, name)))


def texts(case: Case, name: str) -> list[str]:
    """The texts whose ids are those of `cap`, `grp5`, ..."""
    rows = zip(case.inputs[f"{name}_ids"], case.inputs[f"{name}_len"], strict=True)
    return [text_of(ids[:length]) for ids, length in rows]


def boxes(place: Path, images: Array) -> list[Any]:
    return [first_boxes(place / f"{k}.npz") for k in images.tolist()]


def scores(case: Case, weights: Path, place: Path) -> Iterator[Comparison]:
    """The metric, on stored box features."""
    metric = capeval_core.load("umic", weights=str(weights), regions=place, device=device(), empty="score")
    result = metric.score(texts(case, "cap"), case.inputs["cap_img"].tolist())
    found = (("logits", LOGITS, result.parts["logit"]), ("scores", SCORES, result.scores))
    for kind, tolerance, ours in found:
        yield case.compare(kind, ours, tolerance)
        yield case.compare(f"{kind}_f64", ours, tolerance)


def batch(case: Case, encoder: Any, place: Path) -> Iterator[Comparison]:
    """The network's input laid out as the original does, then its states but for the original's filler."""
    ids, theirs = encoder.tokenizer.encode(texts(case, "cap")).ids, case.npz("batch")
    prepared = [encoder.prepare_visual(each.load()) for each in boxes(place, case.inputs["cap_img"])]
    lengths, counts = [len(row) for row in ids], [len(each.positions) for each in prepared]
    longest, boxes_at = max(map(sum, zip(lengths, counts, strict=True))), max(lengths)
    gather, mask = np.tile(np.arange(longest), (len(ids), 1)), np.zeros((len(ids), longest), dtype=np.int64)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        gather[row, length : length + count] = boxes_at + np.arange(count)
        mask[row, : length + count] = 1
    ours = {
        "input_ids": padded(ids),
        "position_ids": np.arange(boxes_at)[None],
        "img_feat": padded([each.features for each in prepared]),
        "img_pos_feat": padded([each.positions for each in prepared]),
        "attn_masks": mask,
        "gather_index": gather,
        "txt_lens": lengths,
        "num_bbs": counts,
    }
    for name, values in ours.items():
        yield compare(name, values, theirs[name], 0)
    with torch.inference_mode():
        regions = encoder.states(prepared)
        states = encoder.model.states(regions, ids)
        pooled = encoder.model.pooled(regions, ids)
        model = deepcopy(encoder.model)
        model.init_ranking_head()
        initial = model.ranking_logits(regions, ids)
    layers = ["embedding_output", *(f"hidden_{layer}" for layer in range(len(states) - 1))]
    for name, state in zip([*layers, "sequence_output"], [*states, states[-1]], strict=True):
        yield case.compare(name, state, STATES, theirs["attn_masks"] == 1)
    yield case.compare("pooled", pooled, STATES)
    yield case.compare("pooled_f64", pooled, STATES)
    yield case.compare("logits_after_init_output", initial, LOGITS)


def losses(case: Case, encoder: Any, place: Path) -> Iterator[Comparison]:
    """Logits of ranking groups, and the loss of each; then losses of logits alone."""

    def loss(name: str, logits: Array, size: int) -> Comparison:
        ours = ranking_loss(torch.from_numpy(logits), size, margin=case.config["margin"])
        return case.compare(f"{name}_loss", ours, SCORES)

    for name in names(case, r"(grp.+)_ids"):
        captions = [[text] for text in texts(case, name)]
        ranked = encoder.rank(boxes(place, case.inputs[f"{name}_img"]), captions, cache=FeatureCache(0))
        logits = np.concatenate([each.logits for each in ranked])
        yield case.compare(f"{name}_logits", logits, LOGITS)
        yield loss(name, logits, case.json("outputs")["ranking_loss"][name]["sample_size"])
    for name in names(case, r"(pure.+)_logits"):
        yield loss(name, case.inputs[f"{name}_logits"], int(case.inputs[f"{name}_sample_size"]))


def box_rule(case: Case, name: str, place: Path) -> Iterator[Comparison]:
    """How many boxes are kept, and which: column 0 of the features is the row's number."""
    expected = case.json("outputs")["box_filter"][name]
    arrays = {part: case.inputs[f"filter_{name}_{part}"] for part in ("conf", "features", "norm_bb")}
    np.savez(place / f"{name}.npz", **arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # one case is not sorted by confidence
        kept, fixed = (first_boxes(place / f"{name}.npz", rule).load() for rule in ("bua10_100", "lxmert36"))
    rows, first = expected["rows_returned"], expected["rows_with_conf_th_-1_num_bb_36"]
    yield compare(f"box_filter {name}", len(kept.features), rows, 0)
    yield compare(f"box_filter {name}, first rows", len(fixed.features), first, 0)
    yield compare(f"box_filter {name}, rows", kept.features[:, 0], np.arange(rows), 0)
