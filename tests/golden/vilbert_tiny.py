"""ViLBERT: the original checkpoints, converted, and the states of both streams after every block.

A case is a folder with config.json (per part its sizes and seed), a manifest of each part, inputs.npz and
outputs.npz, whose keys begin with the name of the part. Its texts are token ids: here every id is a word of
its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capeval_core.cache import FeatureCache
from tests.golden.case import (
    Array,
    Case,
    Comparison,
    Json,
    Place,
    compare,
    converted,
    on_host,
    opened,
    save,
    text_of,
    write_vocabulary,
)
from tests.support.seams import visual

STATES, INPUTS = 1e-5, 1e-6
"""The README's tolerance of all states, and ours of what the network takes, which it states in float32."""
DECODER, WORDS = "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"
POOLED = [f"pooled_{stream}_{where}" for where in ("from_last_co", "final") for stream in ("text", "visual")]


def weights(place: Path, tensors: dict[str, torch.Tensor], model: Json, task: int) -> Path:
    """A weights folder, made in `place`, of the original's checkpoint with the decoder tied to the words."""
    return converted(
        "vilbert",
        save({**tensors, DECODER: tensors[WORDS]}, place / "model.bin"),
        place / "ours",
        vocabulary=write_vocabulary(place, model["vocab_size"]),
        text_heads=model["num_attention_heads"],
        visual_heads=model["v_num_attention_heads"],
        co_heads=model["bi_num_attention_heads"],
        text_layers_before=",".join(map(str, model["t_biattention_id"])),
        visual_layers_before=",".join(map(str, model["v_biattention_id"])),
        task=task if any("task_embeddings" in name for name in tensors) else None,
    )


def real_texts(ids: Array, mask: Array) -> list[str]:
    """The texts whose ids, between the marks, are these."""
    return [text_of(row[: real.sum()]) for row, real in zip(ids, mask, strict=True)]


def run(case: Case) -> Iterator[Comparison]:
    """Part by part; rows of a part have tasks of their own, each a setting of the converted weights."""
    for part, settings in case.config["parts"].items():
        given = {name: case.inputs[f"{part}/{name}"] for name in ("input_ids", "input_mask", "task_ids")}
        texts, tasks = real_texts(given["input_ids"], given["input_mask"]), given["task_ids"][:, 0].tolist()
        tensors = case.tensors(f"manifest_{part}", settings["seed"])
        ours: dict[str, list[Array]] = {}
        for task in dict.fromkeys(tasks):
            rows = [row for row in range(len(texts)) if tasks[row] == task]
            with Place() as place:
                encoder = opened("vilbert", weights(place, tensors, settings["model"], task))
            found = states(
                encoder, [texts[row] for row in rows], [boxes(case, f"{part}/raw{row}") for row in rows]
            )
            for quantity, values in found.items():
                own = ours.setdefault(f"{part}/{quantity}", [np.empty(0)] * len(texts))
                for row, value in zip(rows, values, strict=True):
                    own[row] = np.asarray(on_host(value))
        for quantity, values in ours.items():
            yield of_real_rows(case, quantity, values)


def of_real_rows(case: Case, quantity: str, values: Sequence[Array]) -> Comparison:
    """What the original fills rows with to the length of the longest is left out."""
    name = quantity.partition(",")[0]
    is_input = name in case.inputs
    theirs = (case.inputs if is_input else case.outputs)[name]
    real = [rows[: len(own)] for rows, own in zip(theirs, values, strict=True)]
    limit = 0 if name.endswith("ids") else INPUTS if is_input else STATES
    return compare(quantity, np.concatenate(values), np.concatenate(real), limit)


def boxes(case: Case, raw: str) -> Any:
    """Box features of an image, as a detector hands them over."""
    names = {"boxes": "bbox", "features": "features", "size": "wh"}
    return visual("boxes", {name: case.inputs[f"{raw}_{own}"] for name, own in names.items()})


def states(encoder: Any, texts: list[str], visuals: list[Any]) -> dict[str, Sequence[Any]]:
    """What rows give, without padding."""
    tokens = encoder.tokenizer.encode(texts).ids
    prepared = [encoder.prepare_visual(each.load()) for each in visuals]
    found: dict[str, Sequence[Any]] = {
        "input_ids": tokens,
        "features": [each.features for each in prepared],
        "spatials": [each.locations for each in prepared],
    }
    with torch.inference_mode():
        regions = encoder.states(prepared)
        lower = encoder.text_states(tokens, FeatureCache(0), None)
        both = list(encoder.model.states(lower, regions, [(row, row) for row in range(len(texts))]))
        pools = [pool for index in (-2, -1) for pool in encoder.model.pooled(*both[index])]
    found |= dict(zip(POOLED, pools, strict=True))
    for block, pair in enumerate(both[:-1]):
        found |= {f"text_{block}": pair[0], f"visual_{block}": pair[1]}
        # Again, through the door that the metric takes.
        captions = [[text] for text in texts]
        features = encoder.token_features(visuals, captions, layer=block, cache=FeatureCache(0))
        found[f"text_{block}, token_features"] = [each.features[0] for each in features if each.features]
    return {**found, "final_text": both[-1][0], "final_visual": both[-1][1]}
