"""What trainings of tiny networks on regions share: scenes on the disk, words, first weights, the command."""

from __future__ import annotations

import json
import string
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import nn

from capeval_core.cli import main
from capeval_core.encoders.tokenizers import END, PAD, START, UNKNOWN
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.models.model import CheckedModel
from capeval_core.regions.features import BoxVisual
from capeval_core.training.masking import MASK
from tools.captions import describe
from tools.scenes import draw, sample_scene
from tools.sets import split_caption, split_scene
from tools.tiny.training import timed

Encoder = TypeVar("Encoder", bound=CheckedModel)

BLIND = " without the image"
"""Behind the kinds of comparisons in which the regions are zeroed."""
_DRAWN_AT = (96, 128, 192)  # sides in pixels, at random
_WORDINGS = 2
_SPREAD = 0.05
"""Deviation of the first weights."""


class RegionRecipe(Protocol):
    """How a network is trained by `capeval train`."""

    @property
    def scenes(self) -> int:
        """How many are drawn and described."""

    def command(self, folder: Path, seed: int) -> list[str]:
        """Arguments of `capeval` that train on the scenes in a folder."""


def common_arguments(name: str, folder: Path, seed: int) -> list[str]:
    """Arguments of `capeval train NAME` for the scenes in a folder."""
    named = {
        "--captions": folder / "captions.jsonl",
        "--images": folder / "images",
        "--start": folder / "start",
        "--out": folder / "run",
        "--regions": "tiny",
        "--tagger": "scenes",
        "--data": "drawn scenes",
        "--seed": seed,
        "--device": "cpu",
    }
    return ["train", name, *(str(part) for pair in named.items() for part in pair)]


def train_on_scenes(
    recipe: RegionRecipe,
    write_start: Callable[[Path, int], None],
    encoder: type[Encoder],
    seed: int,
    folder: Path | None,
) -> Encoder:
    """Train on freshly drawn scenes.

    write_start: writes untrained weights of a seed. folder: for scenes and the training's files; None: a
    temporary one.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = folder or Path(temporary)
        with timed(f"{recipe.scenes} scenes drawn and described"):
            write_scenes(folder, recipe.scenes, seed)
        write_start(folder / "start", seed)
        if status := main(recipe.command(folder, seed)):
            raise RuntimeError(f"the training ended with status {status}")
        return encoder.from_pretrained(folder / "run" / "weights")


@cache
def scene_words() -> frozenset[str]:
    """The words of captions of scenes."""
    rng = np.random.default_rng(0)
    texts = (describe(sample_scene(rng), rng) for _ in range(4000))
    return frozenset(word.rstrip(",") for text in texts for word in text.split())


def vocabulary() -> list[str]:
    """BERT's marks, the words of captions of scenes, and all printable ASCII at the start and within words.

    So every English word has ids: an unknown one those of its characters.
    """
    words = scene_words()
    characters = [c for c in string.printable if c.isprintable() and c != " " and not c.isupper()]
    return [
        PAD,
        UNKNOWN,
        START,
        END,
        MASK,
        *sorted(words - {*characters}),
        *characters,
        *(f"##{c}" for c in characters),
    ]


def write_scenes(folder: Path, count: int, seed: int) -> None:
    """Draw and describe scenes: `images/<id>.png` and `captions.jsonl`."""
    rng = np.random.default_rng([seed, 21])
    (folder / "images").mkdir(parents=True)
    with (folder / "captions.jsonl").open("w", encoding="utf-8") as file:
        for index in range(count):
            scene = split_scene(rng, held_out=False)
            side = _DRAWN_AT[int(rng.integers(len(_DRAWN_AT)))]
            draw(scene, side).save(folder / "images" / f"{index}.png", compress_level=1)
            captions = [split_caption(scene, rng, held_out=False) for _ in range(_WORDINGS)]
            file.write(json.dumps({"image_id": str(index), "captions": captions}) + "\n")


def draw_weights(model: nn.Module) -> None:
    """Draw the weights of linear layers and embeddings from a normal distribution; biases are 0."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=_SPREAD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def blinded(boxes: Sequence[BoxVisual]) -> list[InputBoxes]:
    """As many boxes, with zeros for features and positions."""
    return [InputBoxes.of(arrays) for arrays in _zeros(boxes)]


def _zeros(boxes: Sequence[BoxVisual]) -> Iterator[dict[str, Any]]:
    for visual in boxes:
        found = visual.load()
        zeros = {"boxes": np.zeros_like(found.boxes), "features": np.zeros_like(found.features)}
        yield {**zeros, "size": found.size}
