"""Train the tiny region encoder that ships with the package, on boxes of synthetic scenes.

    python -m tools.tiny.scene_regions --out DIR [--seed 0]
    python -m tools.tiny.scene_regions --measure DIR [--seed 1] [--scenes 600]

The network learns to answer plain questions about what a box shows: how many objects are centred in it, of
which shape and colour, which shape has which colour, of which size, and whether it is one whole object. The
boxes are the encoder's own and some at random. All heads but the last are thrown away; the answer to the
last question is a box's confidence. The second command prints how well a linear classifier, fitted on
features of other scenes, reads shape, colour and number off the features.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.cache import FeatureCache
from capeval_core.encoders.scene_regions import SceneNet, SceneRegionEncoder, cut, scaled, scene_boxes
from tools.scenes import COLOURS, MOST_OBJECTS, SHAPES, SIZES, Scene, draw, sample_scene
from tools.sets import split_scene
from tools.tiny.command import Comparison, Comparisons, Training, input_images, rounded, source_of
from tools.tiny.training import Part, Recipe, descend, timed

ARCHITECTURE = {"image_size": 24, "width": 16, "region_size": 64}
REQUIRED = {"shape": 0.97, "colour": 0.99, "number": 0.85, "whole object": 0.97}
"""What the shipped model must reach."""
_DRAWN_AT = (96, 128, 192, 256)  # sides in pixels, at random
_RANDOM_BOXES = 4
_VISIBLE = 0.25
"""Share of an object's square in a box from which on the box shows it."""
_OVERLAP = 0.5
"""Share of the union that a box and an object's square have in common where the box is the object."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RegionRecipe(Recipe):
    """The recipe of the region encoder; the defaults made the shipped model."""

    scenes: int = 5_000
    steps: int = 2_500
    batch: int = 192
    """Boxes per step."""
    foils: int = 0
    rate: float = 2e-3
    warmup: int = 100
    scale: float = 1.0


class Answers(NamedTuple):
    """What n boxes show."""

    pairs: Floats
    """(n, shapes, colours): 1 where the box shows such an object."""
    number: npt.NDArray[np.int64]
    """(n,): objects whose centre is in the box."""
    size: npt.NDArray[np.int64]
    """(n,): of the one object that the box is; -1 where it is none."""


def answers(scene: Scene, boxes: Floats, side: int) -> Answers:
    """The answers to the questions about boxes (n, 4), in pixels of the scene drawn at `side`.

    >>> from tools.scenes import SceneObject
    >>> scene = Scene((SceneObject("square", "red", "large", (0.5, 0.5), 0.3),), "white")
    >>> found = answers(scene, np.float32([[35, 35, 65, 65], [0, 0, 20, 20]]), 100)
    >>> found.pairs.sum(axis=(1, 2)).tolist(), found.number.tolist(), found.size.tolist()
    ([1.0, 0.0], [1, 0], [1, -1])
    """
    pairs = np.zeros((len(boxes), len(SHAPES), len(COLOURS)), np.float32)
    number, size = np.zeros(len(boxes), np.int64), np.full(len(boxes), -1)
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    for thing in scene.objects:
        centre, half = np.array(thing.centre) * side, thing.extent * side / 2
        shared = np.minimum(boxes[:, 2:], centre + half) - np.maximum(boxes[:, :2], centre - half)
        common = np.prod(np.maximum(shared, 0), axis=1)
        visible = common >= _VISIBLE * (2 * half) ** 2
        pairs[visible, SHAPES.index(thing.shape), list(COLOURS).index(thing.colour)] = 1
        number += ((boxes[:, :2] <= centre) & (centre < boxes[:, 2:])).all(axis=1)
        size[common >= _OVERLAP * (area + (2 * half) ** 2 - common)] = list(SIZES).index(thing.size)
    return Answers(pairs, np.minimum(number, MOST_OBJECTS), size)


def make_boxes(count: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.uint8], Answers]:
    """Crops (n, 3, side, side) of the boxes of `count` new scenes, and the answers."""
    crops, parts = [], []
    for _ in range(count):
        scene, side = split_scene(rng, held_out=False), _DRAWN_AT[int(rng.integers(len(_DRAWN_AT)))]
        image = draw(scene, side)
        corners = rng.random((_RANDOM_BOXES, 2, 2)) * side
        random = np.concatenate([corners.min(axis=1), np.minimum(corners.max(axis=1) + 8, side)], axis=1)
        boxes = np.concatenate([scene_boxes(image), random]).astype(np.float32)
        crops.append(cut(image, boxes, ARCHITECTURE["image_size"]))
        parts.append(answers(scene, boxes, side))
    return np.concatenate(crops), joined(parts)


def joined(parts: list[Answers]) -> Answers:
    """The answers for the boxes of several scenes."""
    return Answers(
        np.concatenate([part.pairs for part in parts]),
        np.concatenate([part.number for part in parts]),
        np.concatenate([part.size for part in parts]),
    )


class _Questions(nn.Module):
    """Heads of the questions whose answers are thrown away."""

    def __init__(self) -> None:
        super().__init__()
        width = ARCHITECTURE["region_size"]
        self.pairs = nn.Linear(width, len(SHAPES) * len(COLOURS))
        self.shapes, self.colours = nn.Linear(width, len(SHAPES)), nn.Linear(width, len(COLOURS))
        self.number, self.size = nn.Linear(width, MOST_OBJECTS + 1), nn.Linear(width, len(SIZES))

    def losses(self, features: Tensor, confidence: Tensor, answer: Answers) -> dict[str, Tensor]:
        pairs, number, size = map(torch.from_numpy, answer)
        ask = functional.binary_cross_entropy_with_logits
        whole = size >= 0
        return {
            "pairs": 10 * ask(self.pairs(features), pairs.flatten(1)),
            "shapes": 2 * ask(self.shapes(features), pairs.amax(2)),
            "colours": 2 * ask(self.colours(features), pairs.amax(1)),
            "number": functional.cross_entropy(self.number(features), number),
            "size": 0.3 * functional.cross_entropy(self.size(features[whole]), size[whole]),
            "whole": ask(confidence, whole.float()),
        }


def train(recipe: RegionRecipe = RegionRecipe(), seed: int = 0) -> tuple[SceneNet, list[float]]:
    """Train on boxes of freshly drawn scenes; the model (float32) and the loss of every step."""
    rng = np.random.default_rng([seed, 11])
    with timed(f"boxes of {recipe.scenes} scenes"):
        crops, answer = make_boxes(recipe.scenes, rng)
    torch.manual_seed(seed)
    model, questions = SceneNet(ARCHITECTURE), _Questions()

    def losses(done: float) -> tuple[Tensor, dict[str, Tensor]]:
        rows = rng.integers(len(crops), size=recipe.batch)
        features, confidence = model(scaled(torch.from_numpy(crops[rows])))
        asked = Answers(answer.pairs[rows], answer.number[rows], answer.size[rows])
        terms = questions.losses(features, confidence, asked)
        return torch.stack(list(terms.values())).sum(), terms

    parts = [
        Part([p for p in [*model.parameters(), *questions.parameters()] if (p.ndim > 1) == matrix], 1, matrix)
        for matrix in (True, False)
    ]
    history = descend(recipe, parts, losses)
    return model.eval(), history


def folder_of(model: SceneNet, command: str) -> SceneRegionEncoder:
    """The model, rounded to float16, as the encoder whose `save_pretrained` writes a weights folder."""
    config: dict[str, Any] = {
        "format": 1,
        "encoder": "scene_regions",
        "architecture": ARCHITECTURE,
        "source": source_of(f"Trained from scratch by: {command}"),
    }
    return SceneRegionEncoder(config, rounded(model))


def measure(encoder: SceneRegionEncoder, scenes: int = 600, seed: int = 1) -> Comparisons:
    """How well a linear classifier reads features of boxes of new scenes, and how confidence tells boxes.

    The classifier is fitted on one half of the scenes and asked about the other half.
    """
    rng = np.random.default_rng([seed, 12])
    worlds = [sample_scene(rng) for _ in range(scenes)]
    images: list[Image.Image] = [draw(world) for world in worlds]
    features, parts, scores = [], [], []
    encoded = encoder.encode_boxes(input_images(images), cache=FeatureCache(0))
    for world, image, visual in zip(worlds, images, encoded, strict=True):
        boxes = visual.load()
        assert boxes.scores is not None
        features.append(boxes.features)
        scores.append(boxes.scores)
        parts.append(answers(world, boxes.boxes, image.width))
    half = sum(map(len, features[: scenes // 2]))
    rows = np.concatenate(features)
    inputs = np.concatenate([rows, np.ones_like(rows[:, :1])], axis=1).astype(np.float64)
    answer = joined(parts)
    whole = answer.size >= 0
    classes = {
        "shape": np.where(whole, answer.pairs.any(2).argmax(1), -1),
        "colour": np.where(whole, answer.pairs.any(1).argmax(1), -1),
        "number": np.where(whole, -1, answer.number),
    }
    comparisons: Comparisons = {}
    for name, known in classes.items():
        asked = known >= 0
        fit, test = np.flatnonzero(asked[:half]), half + np.flatnonzero(asked[half:])
        truth = np.eye(int(known.max()) + 1)[known]
        gram = inputs[fit].T @ inputs[fit] + 1e-3 * np.eye(inputs.shape[1])
        values = inputs[test] @ np.linalg.solve(gram, inputs[fit].T @ truth[fit])
        chosen = truth[test] == 1
        right, wrong = values[chosen], np.where(chosen, -np.inf, values).max(axis=1)
        comparisons[name] = Comparison.of(list(right), list(wrong))
    confidence = np.concatenate(scores)
    right_side = np.where(whole, confidence, 1 - confidence)
    comparisons["whole object"] = Comparison.of(list(right_side), [0.5] * len(right_side))
    return comparisons


def _make(seed: int, command: str) -> SceneRegionEncoder:
    return folder_of(train(RegionRecipe(), seed)[0], command)


TRAINING = Training(
    module="scene_regions",
    about="Train the tiny region encoder of UMIC (about 5 minutes on a CPU core).",
    train=_make,
    encoder=SceneRegionEncoder,
    measure=measure,
    scenes=600,
    required=REQUIRED,
    title=lambda name: name,
    against="answer read off the feature",
    value="mean value",
)


if __name__ == "__main__":
    sys.exit(TRAINING.main())
