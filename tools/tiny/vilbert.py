"""Train the tiny ViLBERT that ships with the package, on synthetic scenes, by `capeval train vilbert`.

    python -m tools.tiny.vilbert --out DIR [--seed 0]
    python -m tools.tiny.vilbert --measure DIR [--seed 1] [--scenes 2500]

The second command only prints the report: how often F of ViLBERTScore, with the same references, is higher
for a right caption than for a one-word foil, with the image and with zeroed regions.

Scenes for the training have none of the pairs of shape and colour that are held out (`tools.sets`), nor
captions of the held-out templates; all scenes of the report have such a pair, and half of the right captions
such a template.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from capeval_core.cache import FeatureCache
from capeval_core.encoders.scene_regions import SceneRegionEncoder
from capeval_core.encoders.vilbert import VilbertEncoder
from capeval_core.encoders.vilbert_model import Vilbert
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.regions.features import BoxVisual
from capeval_core.scores.vilbert import f_score
from capeval_core.scores.vilbert_rows import EncodedCaption, EncodedText, Matcher
from tools.captions import KINDS, foil
from tools.scenes import Scene, draw
from tools.sets import split_caption, split_scene
from tools.tiny.command import Comparison, Comparisons, Training, input_images, source_of
from tools.tiny.region_training import (
    BLIND,
    RegionRecipe,
    blinded,
    common_arguments,
    draw_weights,
    train_on_scenes,
    vocabulary,
)

OF_PARAPHRASE, OF_REFERENCE = "foil of the paraphrase", "foil of a reference"
"""Kinds of comparisons, by the caption that the foil differs from in one word."""
REFERENCES = 2
"""References of a scene."""
CONTEXT = 128
HIDDEN = 128
SIZES: dict[str, Any] = {
    "text": {
        "hidden_size": HIDDEN,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": CONTEXT,
    },
    "visual": {
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
    },
    "co_attention": {"hidden_size": HIDDEN, "num_attention_heads": 4},
    "text_layers_before": [2, 3, 4],
    "visual_layers_before": [0, 1, 2],
    "tasks": 1,
}
REQUIRED: dict[str, float] = dict.fromkeys((OF_PARAPHRASE, OF_REFERENCE), 0.80)
"""What the shipped model must reach."""
_LOCATION_SPREAD = 2.0
"""Deviation of the first weights of locations: their five numbers are added to 64 larger ones of features."""
_TRIES = 50


@dataclass(frozen=True)
class VilbertRecipe(RegionRecipe):
    """Scenes, and flags of `capeval train vilbert`; the defaults made the shipped model."""

    scenes: int = 12_000
    masking_steps: int = 900
    steps: int = 1_300
    flags: tuple[str, ...] = (
        *("--masking-rate", "1e-3", "--learning-rate", "8e-4", "--warmup", "100", "--masked", "0.3"),
        *("--batch-size", "16", "--accumulation", "1", "--clip", "1", "--dropout", "0"),
        *("--weight-decay", "0.01", "--log-every", "50", "--save-every", "250"),
        *("--foils", "4", "--random-negatives", "0", "--hard", "none"),
    )

    def command(self, folder: Path, seed: int) -> list[str]:
        lengths = ("--masking-steps", str(self.masking_steps), "--steps", str(self.steps))
        return [*common_arguments("vilbert", folder, seed), *lengths, *self.flags]


def write_start(folder: Path, seed: int, sizes: dict[str, Any] = SIZES) -> None:
    """Untrained weights: a folder that a training starts from."""
    words = vocabulary()
    region_size = SceneRegionEncoder.from_pretrained("tiny").region_size
    architecture = {
        **sizes,
        "text": {**sizes["text"], "vocab_size": len(words)},
        "visual": {**sizes["visual"], "region_size": region_size},
    }
    torch.manual_seed(seed)
    model = Vilbert(architecture)
    draw_weights(model)
    nn.init.normal_(model.region_embeddings.location.weight, std=_LOCATION_SPREAD)
    config: dict[str, Any] = {
        "format": 1,
        "encoder": "vilbert",
        "architecture": architecture,
        "task": 0 if sizes["tasks"] else None,
        "context_length": architecture["text"]["max_position_embeddings"],
        "vocabulary": words,
        "lowercase": True,
        "source": source_of("It was not pretrained."),
    }
    VilbertEncoder(config, model.state_dict()).save_pretrained(folder)


def train(
    recipe: VilbertRecipe = VilbertRecipe(), seed: int = 0, folder: Path | None = None
) -> VilbertEncoder:
    """Train on freshly drawn scenes. folder: for scenes and the training's files; None: a temporary one."""
    return train_on_scenes(recipe, write_start, VilbertEncoder, seed, folder)


def _make(seed: int, command: str) -> VilbertEncoder:
    encoder = train(VilbertRecipe(), seed)
    encoder.config["source"] = source_of(f"Trained from scratch by: {command}")
    return encoder


@dataclass(frozen=True)
class Trial:
    """A scene with references, a right caption, and foils of it and of the first reference.

    kinds: what each foil has another word for.
    """

    scene: Scene
    references: list[str]
    paraphrase: str
    foils: dict[str, str]
    kinds: dict[str, str]


def make_trials(count: int, seed: int) -> list[Trial]:
    """Of new scenes with a held-out pair; half of the paraphrases are of held-out templates."""
    rng = np.random.default_rng([seed, 23])
    trials: list[Trial] = []
    while len(trials) < count:
        trial = _trial(split_scene(rng, held_out=True), rng, held_out=len(trials) % 2 == 0)
        trials += [trial] if trial is not None else []
    return trials


def _trial(scene: Scene, rng: np.random.Generator, held_out: bool) -> Trial | None:
    """None where the scene has too few wordings."""
    references: list[str] = []
    for _ in range(_TRIES):
        caption = split_caption(scene, rng, held_out=False)
        references += [caption] if caption not in references else []
        if len(references) == REFERENCES:
            break
    paraphrase = split_caption(scene, rng, held_out=held_out)
    if len(references) < REFERENCES or paraphrase in references:
        return None
    foils, kinds = {}, {}
    for name, caption in ((OF_PARAPHRASE, paraphrase), (OF_REFERENCE, references[0])):
        for kind in rng.permutation(KINDS):
            try:
                foils[name], kinds[name] = foil(scene, caption, str(kind), rng), str(kind)
                break
            except ValueError:  # the caption has no word of this kind
                continue
    return Trial(scene, references, paraphrase, foils, kinds)


def measure(encoder: VilbertEncoder, scenes: int = 2500, seed: int = 1) -> Comparisons:
    """Right captions of new scenes against one-word foils, with the image and with zeroed regions."""
    trials = make_trials(scenes, seed)
    regions = SceneRegionEncoder.from_pretrained("tiny")
    images = input_images(draw(trial.scene) for trial in trials)
    boxes = list(regions.encode_boxes(images, cache=FeatureCache(0)))
    comparisons = compare(encoder, trials, boxes)
    for name, comparison in compare(encoder, trials, blinded(boxes)).items():
        comparisons[name + BLIND] = comparison
    return comparisons


def compare(
    encoder: VilbertEncoder, trials: Sequence[Trial], boxes: Sequence[BoxVisual | InputBoxes], layer: int = -1
) -> Comparisons:
    """F of right captions against F of their foils: all, and those of each kind."""
    texts = [[*t.references, t.paraphrase, *t.foils.values()] for t in trials]
    images = encoder.token_features(boxes, texts, layer=layer, cache=FeatureCache(0))
    matcher = Matcher(encoder, None)
    sides: dict[str, tuple[list[float], list[float]]] = {}
    for trial, own, image in zip(trials, texts, images, strict=True):
        ids = encoder.tokenizer.encode(own).ids
        encoded = [EncodedText(*pair) for pair in zip(ids, image.features or [], strict=True)]
        references, candidates = encoded[:REFERENCES], encoded[REFERENCES:]
        match = matcher.matched_words([EncodedCaption(each, references) for each in candidates])
        f = (
            f_score(match.precision.double().numpy(), match.recall.double().numpy())
            .reshape(-1, REFERENCES)
            .mean(axis=1)
            .tolist()
        )
        for name, wrong in zip(trial.foils, f[1:], strict=True):
            for title in (name, f"{name}, {trial.kinds[name]}"):
                right_, wrong_ = sides.setdefault(title, ([], []))
                right_.append(f[0])
                wrong_.append(wrong)
    return {title: Comparison.of(*sides[title]) for title in sorted(sides)}


TRAINING = Training(
    module="vilbert",
    about="Train the tiny ViLBERT of ViLBERTScore (about 20 minutes on two CPU cores).",
    train=_make,
    encoder=VilbertEncoder,
    measure=measure,
    scenes=2500,
    required=REQUIRED,
    title=lambda name: name,
    against="right caption against",
    value="mean F",
)


if __name__ == "__main__":
    sys.exit(TRAINING.main())
