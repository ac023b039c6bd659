"""Train the tiny UNITER of UMIC that ships with the package, on synthetic scenes, by `capeval train umic`.

    python -m tools.tiny.umic --out DIR [--seed 0]
    python -m tools.tiny.umic --measure DIR [--seed 1] [--scenes 3000]

The second command only prints the report: how often the score of a caption by `describe` is higher than that
of a negative of each kind, made as in the training, and the same where the regions are zeroed: words in
disorder betray themselves.

Scenes for the training have none of the pairs of shape and colour that are held out (`tools.sets`), nor
captions of the held-out templates; all scenes of the report have such a pair, and half of the captions such a
template. The training's phases: masked words, image-text matching, ranking. Without the first one
the network, which starts from nothing, reads captions alone for a very long time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capeval_core.cache import FeatureCache
from capeval_core.encoders.scene_regions import SceneRegionEncoder
from capeval_core.encoders.uniter import UniterEncoder
from capeval_core.encoders.uniter_model import Uniter
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.regions.features import BoxVisual
from capeval_core.training.groups import KINDS, Group, NegativeSampler
from capeval_core.training.similar_images import similar_by_captions, similar_by_features
from capeval_core.training.tags import open_tagger
from tools.captions import holds, read
from tools.scenes import SHAPES, Scene, draw
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

CONTEXT = 128
SIZES = {
    "hidden_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": CONTEXT,
}
REQUIRED: dict[str, float] = dict.fromkeys(KINDS, 0.85)
"""What the shipped model must reach."""
_AT_ONCE = 32


@dataclass(frozen=True)
class UmicRecipe(RegionRecipe):
    """Scenes, and flags of `capeval train umic`; the defaults made the shipped model."""

    scenes: int = 12_000
    word_steps: int = 2_400
    matching_steps: int = 1_400
    steps: int = 800
    flags: tuple[str, ...] = (
        *("--pretraining-rate", "1e-3", "--learning-rate", "4e-4", "--warmup", "100"),
        *("--batch-size", "16", "--accumulation", "1", "--clip", "1", "--dropout", "0"),
        *("--weight-decay", "0.01", "--log-every", "50", "--save-every", "500"),
    )

    def command(self, folder: Path, seed: int) -> list[str]:
        lengths = ("--word-steps", str(self.word_steps), "--matching-steps", str(self.matching_steps))
        return [*common_arguments("umic", folder, seed), *lengths, "--steps", str(self.steps), *self.flags]


def write_start(folder: Path, seed: int, sizes: dict[str, int] = SIZES) -> None:
    """Untrained weights: a folder that a training starts from."""
    words = vocabulary()
    region_size = SceneRegionEncoder.from_pretrained("tiny").region_size
    architecture = {"vocab_size": len(words), **sizes, "region_size": region_size}
    torch.manual_seed(seed)
    model = Uniter(architecture)
    draw_weights(model)
    config: dict[str, Any] = {
        "format": 1,
        "encoder": "uniter",
        "architecture": architecture,
        "context_length": sizes["max_position_embeddings"],
        "vocabulary": words,
        "lowercase": True,
        "source": source_of("It was not pretrained."),
    }
    UniterEncoder(config, model.state_dict()).save_pretrained(folder)


def train(recipe: UmicRecipe = UmicRecipe(), seed: int = 0, folder: Path | None = None) -> UniterEncoder:
    """Train on freshly drawn scenes. folder: for scenes and the training's files; None: a temporary one."""
    return train_on_scenes(recipe, write_start, UniterEncoder, seed, folder)


def _make(seed: int, command: str) -> UniterEncoder:
    encoder = train(UmicRecipe(), seed)
    encoder.config["source"] = source_of(f"Trained from scratch by: {command}")
    return encoder


@dataclass(frozen=True)
class Trials:
    """Scenes with box features, each with a caption and its negatives."""

    scenes: list[Scene]
    boxes: list[BoxVisual]
    groups: list[Group]


def make_trials(scenes: int, seed: int) -> Trials:
    """New scenes, all with a held-out pair, half of the captions of held-out templates."""
    rng = np.random.default_rng([seed, 22])
    worlds = [split_scene(rng, held_out=True) for _ in range(scenes)]
    captions = [split_caption(world, rng, held_out=index % 2 == 0) for index, world in enumerate(worlds)]
    encoder = SceneRegionEncoder.from_pretrained("tiny")
    boxes = list(encoder.encode_boxes(input_images(map(draw, worlds)), cache=FeatureCache(0)))
    ids = [str(index) for index in range(scenes)]
    means = np.stack([visual.load().features.mean(axis=0) for visual in boxes])
    similar = [similar_by_features(ids, means), similar_by_captions(ids, captions)]
    sampler = NegativeSampler(ids, captions, open_tagger("scenes").tags(captions), similar=similar, seed=seed)
    return Trials(worlds, boxes, [sampler.group(0, index) for index in range(scenes)])


def is_true(scene: Scene, caption: str) -> bool:
    """Whether a caption is one of the language of `describe`, and true of the scene.

    >>> from tools.captions import describe
    >>> from tools.scenes import sample_scene
    >>> scene = sample_scene(np.random.default_rng(3), groups=1)
    >>> caption = describe(scene, np.random.default_rng(0))
    >>> is_true(scene, caption), is_true(scene, " ".join(reversed(caption.split())))
    (True, False)
    """
    nouns = sum(word.strip(",").startswith(SHAPES) for word in caption.split())
    try:
        return len(read(caption)[0]) == nouns and holds(scene, caption, margin=0.0)
    except ValueError:
        return False


def measure(encoder: UniterEncoder, scenes: int = 3000, seed: int = 1) -> Comparisons:
    """Captions of new scenes against negatives of each kind, with the image and with zeroed regions.

    A substituted, random or similar caption that is true of the scene as well is no trial.
    """
    trials = make_trials(scenes, seed)
    comparisons = dict(compare(encoder, trials, trials.boxes))
    for name, comparison in compare(encoder, trials, blinded(trials.boxes)).items():
        comparisons[name + BLIND] = comparison
    return comparisons


def compare(encoder: UniterEncoder, trials: Trials, boxes: Sequence[BoxVisual | InputBoxes]) -> Comparisons:
    """Scores of captions against their negatives, by kind."""
    sides: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in KINDS}
    captions = [group.captions for group in trials.groups]
    rankings = encoder.rank(boxes, captions, cache=FeatureCache(0))
    for scene, group, ranking in zip(trials.scenes, trials.groups, rankings, strict=True):
        scores = 1 / (1 + np.exp(-ranking.logits.astype(np.float64)))
        for kind, caption, score in zip(group.kinds[1:], group.captions[1:], scores[1:], strict=True):
            if kind in ("random", "hard", "substitution") and is_true(scene, caption):
                continue
            sides[kind][0].append(float(scores[0]))
            sides[kind][1].append(float(score))
    return {kind: Comparison.of(*both) for kind, both in sides.items()}


TRAINING = Training(
    module="umic",
    about="Train the tiny UNITER of UMIC (about 25 minutes on a CPU core).",
    train=_make,
    encoder=UniterEncoder,
    measure=measure,
    scenes=3000,
    required=REQUIRED,
    title=lambda name: name.replace("_", " or " if name.startswith("repetition") else " "),
    against="right caption against",
    value="mean score",
)


if __name__ == "__main__":
    sys.exit(TRAINING.main())
