"""Train `tiny`, the dual encoder that ships with the package, on synthetic scenes.

    python -m capeval_core.training.tiny --out DIR [--seed 0]

The recipe: image-to-caption contrast as in CLIP (Radford et al., 2021, section 2.3), with one-word foils
of the right caption as further negatives of its own image, captions of like scenes taken out of the
negatives, simple scenes first, and patch positions that begin as sines and cosines. At first each
tower learns by itself, from plain questions: what lies in this patch? is there a red circle? does the
caption say so? They go on beside the contrast, fade, and their heads are thrown away. Without them, places
in the image were still at chance after a quarter of the training, and sizes were not told apart where a
scene has both.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.training.batches import Captions
from capeval_core.training.command import rounded, run_training, source_of
from capeval_core.training.contrast import scene_contrast
from capeval_core.training.lessons import Ints, Lessons, make_lessons
from capeval_core.training.recipe import Part, Recipe, descend, fading, timed
from capeval_core.training.tiny_model import (
    ARCHITECTURE,
    CELLS,
    PREPROCESSING,
    SIDE,
    CaptionCodec,
    UsedWords,
    build,
    image_tokens,
    normalised,
    text_tokens,
)
from capeval_core.training.tiny_questions import Questions
from capeval_core.training.tiny_report import REPORT
from capeval_core.weights.catalogue import PROMPT


@dataclass(frozen=True)
class TinyRecipe(Recipe):
    """The recipe of `tiny`; the defaults made the shipped model."""

    scenes: int = 40_000
    steps: int = 4_400
    batch: int = 32
    foils: int = 3
    rate: float = 1e-3
    warmup: int = 200
    scale: float = 16.0
    text_pace: float = 3.0
    """How much faster the text tower learns."""
    wording_weight: float = 0.2
    question_weight: float = 1.0
    questions_until: float = 0.8
    """The share of the training after which the questions have faded."""
    apart_until: float = 0.25
    """Up to this share of the training each tower only answers questions; the contrast comes after."""
    lone_until: float = 0.28
    """Then scenes of one group only, up to this share; of at most two groups up to `few_until`."""
    few_until: float = 0.34


def train(recipe: TinyRecipe = TinyRecipe(), seed: int = 0) -> tuple[CLIP, list[float]]:
    """Train on freshly drawn scenes; the model (float32) and the loss of every step."""
    rng = np.random.default_rng([seed, 1])
    with timed(f"{recipe.scenes} scenes drawn and described"):
        lessons = make_lessons(recipe.scenes, rng, CaptionCodec(), SIDE, CELLS)
    model = build(seed)
    model.logit_scale.requires_grad_(False).fill_(math.log(recipe.scale))
    words = UsedWords(model, lessons.tokens)
    questions = Questions(lessons.facts.shape[1])

    def losses(done: float) -> tuple[Tensor, dict[str, Tensor]]:
        rows = _next_rows(lessons, recipe, done, rng)
        images, shown = _see(model, questions, lessons, rows)
        wording = int(rng.integers(lessons.tokens.shape[1]))
        seldom = ("colour",)  # is learnt soon
        captions = Captions.choose(lessons, rows, wording, recipe.foils, rng, seldom)
        texts, stated = _read(model, questions, words.embedding, lessons, captions)
        asked = shown + stated
        loss = recipe.question_weight * fading(done, recipe.questions_until) * asked
        if done >= recipe.apart_until:
            loss = loss + scene_contrast(images, texts, captions, recipe.scale, recipe.wording_weight)
        return loss, {"questions": asked}

    history = descend(recipe, _parts(model, questions, words.embedding, recipe), losses)
    words.put_back(model)
    return model.eval(), history


def _parts(model: CLIP, questions: nn.Module, embedding: nn.Parameter, recipe: TinyRecipe) -> list[Part]:
    """Weight decay is on matrices only, and the narrow text tower is faster."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    seeing = [p for name, p in named if name.startswith("visual.")] + list(questions.parameters())
    reading = [p for name, p in named if not name.startswith("visual.")]
    parts = []
    for parameters, pace in ((seeing, 1.0), (reading, recipe.text_pace)):
        parts.append(Part([p for p in parameters if p.ndim >= 2], pace, decays=True))
        parts.append(Part([p for p in parameters if p.ndim < 2], pace, decays=False))
    return [*parts, Part([embedding], recipe.text_pace, decays=False)]


def _next_rows(lessons: Lessons, recipe: TinyRecipe, done: float, rng: np.random.Generator) -> Ints:
    """The scenes of the next batch, simple ones first."""
    if done < recipe.apart_until:
        most = 3
    else:
        most = 1 if done < recipe.lone_until else 2 if done < recipe.few_until else 3
    allowed = np.flatnonzero(lessons.groups <= most) if most < 3 else np.arange(len(lessons.groups))
    return rng.choice(allowed, recipe.batch, replace=len(allowed) < recipe.batch)


def _see(model: CLIP, questions: Questions, lessons: Lessons, rows: Ints) -> tuple[Tensor, Tensor]:
    """The images' features, (B, embed_dim), of unit length, and the loss of the questions to them."""
    patches, whole = image_tokens(model, normalised(lessons.pixels[rows]))
    asked = questions.loss(
        patches, whole, torch.from_numpy(lessons.objects[rows]), torch.from_numpy(lessons.facts[rows])
    )
    return functional.normalize(whole @ model.visual.proj, dim=-1), asked


def _read(
    model: CLIP, questions: Questions, embedding: Tensor, lessons: Lessons, captions: Captions
) -> tuple[Tensor, Tensor]:
    """The features of captions and foils, of unit length, and the loss of the questions to them."""
    ends = text_tokens(model, embedding, captions.of(lessons.tokens), captions.of(lessons.lengths))
    asked = questions.read(ends, torch.from_numpy(captions.of(lessons.stated)))
    return functional.normalize(ends @ model.text_projection, dim=-1), asked


def folder_of(model: CLIP, command: str) -> ClipEncoder:
    """The model, rounded to float16, as the encoder whose `save_pretrained` writes a weights folder."""
    config: dict[str, Any] = {
        "format": 1,
        "encoder": "clip",
        "architecture": ARCHITECTURE,
        "activation": "quick_gelu",
        "preprocessing": PREPROCESSING,
        "constants": {"prompt": PROMPT},
        "source": source_of(f"Trained from scratch by: {command}"),
    }
    return ClipEncoder(config, rounded(model))


def main() -> int:
    """The command line: train, measure on fresh scenes, save; exit status 1 if a requirement is missed."""
    return run_training(
        "tiny",
        "Train `tiny` (about 25 minutes on a CPU core).",
        lambda seed, command: folder_of(train(TinyRecipe(), seed)[0], command),
        REPORT,
    )


if __name__ == "__main__":
    sys.exit(main())
