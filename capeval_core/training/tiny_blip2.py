"""Train the tiny BLIP-2 that ships with the package, on synthetic scenes.

    python -m capeval_core.training.tiny_blip2 --out DIR [--seed 0]

The recipe: the image tower starts as that of `tiny` of PAC-S, less its last block, as BLIP-2 starts from a
trained tower less its last block; the Q-Former starts from nothing. It learns the contrast and the matching
of Li et al., 2023, section 3.1, with one-word foils of the right caption as negatives of its own image.
Three plain questions go on beside them and their heads are thrown away: which facts does the image show?
which does the caption state? and, image and caption seen together, which of the words are false?
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.blip2_model import image_states, matched_states, query_states, text_states
from capeval_core.training.batches import Captions
from capeval_core.training.command import rounded, run_training, source_of
from capeval_core.training.contrast import contrast_both_ways
from capeval_core.training.lessons import LONGEST, Ints, Lessons, make_lessons
from capeval_core.training.recipe import Part, Recipe, descend, fading, timed
from capeval_core.training.tiny_blip2_model import QUERIES, WIDTH, Codec, architecture, build, vocabulary
from capeval_core.training.tiny_blip2_report import REPORT
from capeval_core.training.tiny_blip2_texts import Texts, choose_texts
from capeval_core.training.tiny_model import CELLS, PREPROCESSING, SIDE, normalised


@dataclass(frozen=True)
class Blip2Recipe(Recipe):
    """The recipe of the tiny BLIP-2; the defaults made the shipped model."""

    scenes: int = 12_000
    steps: int = 1_600
    batch: int = 20
    foils: int = 4
    rate: float = 1e-3
    warmup: int = 100
    scale: float = 16.0
    vision_pace: float = 0.4
    """How much slower the image tower learns, which has learnt before."""
    question_weight: float = 20.0
    questions_until: float = 0.7
    """The share of the training after which the questions about facts have faded."""
    words_weight: float = 4.0
    spoilt: float = 0.5
    """How often the further wrong caption has an unknown word; else its words are in disorder."""


def train(recipe: Blip2Recipe = Blip2Recipe(), seed: int = 0) -> tuple[Any, list[str], list[float]]:
    """Train on freshly drawn scenes; the model (float32), its words, and the loss of every step."""
    rng = np.random.default_rng([seed, 5])
    words = vocabulary()
    with timed(f"{recipe.scenes} scenes drawn and described"):
        lessons = make_lessons(recipe.scenes, rng, Codec(words), SIDE, CELLS)
    model = build(words, seed)
    questions = _Questions(lessons.facts.shape[1])

    def losses(done: float) -> tuple[Tensor, dict[str, Tensor]]:
        captions = _choose_captions(lessons, recipe, rng)
        texts = choose_texts(lessons, captions, words, recipe.spoilt, rng)
        terms = _terms(model, questions, lessons, captions, texts, recipe.scale)
        loss = (
            terms["contrast"]
            + 2 * terms["matching"]
            + recipe.words_weight * terms["words"]
            + recipe.question_weight * fading(done, recipe.questions_until) * terms["facts"]
        )
        return loss, terms

    history = descend(recipe, _parts(model, questions, recipe), losses)
    return model.eval(), words, history


class _Questions(nn.Module):
    """Heads of the plain questions."""

    def __init__(self, facts: int) -> None:
        super().__init__()
        self.shown = nn.Linear(WIDTH, facts)
        self.stated = nn.Linear(WIDTH, facts)
        self.word = nn.Linear(WIDTH, 1)


def _parts(model: nn.Module, questions: nn.Module, recipe: Blip2Recipe) -> list[Part]:
    """Weight decay is on matrices only, and the image tower is slower."""
    parts = []
    for name, parameter in [*model.named_parameters(), *questions.named_parameters()]:
        pace = recipe.vision_pace if name.startswith("vision_model.") else 1.0
        parts.append(Part([parameter], pace, decays=parameter.ndim == 2 and "embeddings" not in name))
    return parts


def _choose_captions(lessons: Lessons, recipe: Blip2Recipe, rng: np.random.Generator) -> Captions:
    """The captions of a step. Those of like length go together through the matching, which saves padding."""
    rows = rng.choice(recipe.scenes, recipe.batch, replace=False)
    wording = int(rng.integers(lessons.tokens.shape[1]))
    rows = rows[np.argsort(lessons.lengths[rows].max(axis=(1, 2)), kind="stable")]
    return Captions.choose(lessons, rows, wording, recipe.foils, rng)


def _terms(
    model: Any, questions: _Questions, lessons: Lessons, captions: Captions, texts: Texts, scale: float
) -> dict[str, Tensor]:
    """The terms of the loss of a step."""
    rows, wording = captions.rows, captions.wording
    states = image_states(model, normalised(lessons.pixels[rows]))
    seen = query_states(model, states)
    ask = functional.binary_cross_entropy_with_logits
    facts = ask(questions.shown(seen).amax(1), torch.from_numpy(lessons.facts[rows]))
    # Both captions and two of the foils are also read alone.
    ends = _read(model, texts.ids[:, :4].reshape(-1, LONGEST), texts.lengths[:, :4].reshape(-1))
    places = np.concatenate([np.zeros((len(rows), 2), np.int64), captions.foils[:, :2]], axis=1)
    stated = lessons.stated[rows[:, None], np.array([wording, 1 - wording, wording, wording]), places]
    facts = facts + ask(questions.stated(ends), torch.from_numpy(stated).flatten(0, 1).float())
    contrast = _contrast(
        functional.normalize(model.vision_projection(seen), dim=-1),
        functional.normalize(model.text_projection(ends), dim=-1).view(len(rows), 4, -1),
        torch.from_numpy(captions.told[:, :2]),
        torch.from_numpy(captions.alike),
        scale,
    )
    matching, false_words = _match(model, questions, states, texts)
    return {"contrast": contrast, "matching": matching, "words": false_words, "facts": facts}


def _read(model: Any, ids: Ints, lengths: Ints, parts: int = 3) -> Tensor:
    """(n, width) states of texts alone, run in parts of like length; those of length 0 mean nothing."""
    lengths = np.maximum(lengths, 1)
    order = np.argsort(lengths, kind="stable")
    ends = []
    for some in np.array_split(order, parts):
        longest = int(lengths[some].max())
        mask = torch.from_numpy(np.arange(longest) < lengths[some][:, None])
        ends.append(text_states(model, torch.from_numpy(ids[some, :longest]), mask))
    return torch.cat(ends)[torch.from_numpy(np.argsort(order))]


def _contrast(images: Tensor, texts: Tensor, told: Tensor, alike: Tensor, scale: float) -> Tensor:
    """Each image finds its caption among all captions and its own foils, each caption its image.

    images (B, queries, d); texts (B, 4, d): two captions, then two foils, of which told (B, 2) exist; all
    of unit length. alike (B, B): the caption of the column may also be true of the image of the row.
    """
    beside = scale * torch.einsum("bqd,bfd->bfq", images, texts[:, 2:]).amax(-1)
    beside = beside.masked_fill(~told, -torch.inf)
    total = torch.zeros(())
    for captions in texts[:, :2].unbind(1):
        logits = scale * torch.einsum("bqd,cd->bcq", images, captions).amax(-1)
        total = total + 0.5 * contrast_both_ways(logits, alike, beside)
    return total


def _match(model: Any, questions: _Questions, states: Tensor, texts: Texts) -> tuple[Tensor, Tensor]:
    """The loss of the matching head, and that of the question which words are false."""
    logits, words = [], []
    for some in np.array_split(np.arange(len(states)), 2):
        lengths = texts.lengths[some].reshape(-1)
        longest = int(lengths.max())
        ids = torch.from_numpy(texts.ids[some, :, :longest].reshape(len(lengths), longest))
        mask = np.arange(longest) < np.maximum(lengths, 1)[:, None]
        hidden = matched_states(model, states[some], ids, torch.from_numpy(mask), with_text=True)
        logits.append(model.itm_head(hidden[:, :QUERIES]).mean(1))
        asked = mask & (texts.told[some].reshape(-1) & (lengths > 0))[:, None]
        false = texts.false_words[some, :, :longest].reshape(len(lengths), longest)
        found = questions.word(hidden[:, QUERIES:])[..., 0][torch.from_numpy(asked)]
        weight = torch.from_numpy(np.where(false[asked], 6.0, 1.0).astype(np.float32))
        truth = torch.from_numpy(false[asked].astype(np.float32))
        words.append(functional.binary_cross_entropy_with_logits(found, truth, weight))
    there = texts.lengths.reshape(-1) > 0
    true = texts.true.reshape(-1)[there]
    matching = functional.cross_entropy(
        torch.cat(logits)[torch.from_numpy(there)],
        torch.from_numpy(true.astype(np.int64)),
        weight=torch.tensor([1.0, 2.0]),
    )
    return matching, torch.stack(words).mean()


def folder_of(model: Any, words: list[str], command: str) -> Blip2Encoder:
    """The model, rounded to float16, as the encoder whose `save_pretrained` writes a weights folder."""
    config: dict[str, Any] = {
        "format": 1,
        "encoder": "blip2",
        "architecture": architecture(len(words)),
        "preprocessing": PREPROCESSING,
        "context_length": LONGEST,
        "vocabulary": words,
        "source": source_of(f"Trained from the image tower `tiny` of PAC-S by: {command}"),
    }
    return Blip2Encoder(config, rounded(model))


def _make(seed: int, command: str) -> Blip2Encoder:
    model, words, _ = train(Blip2Recipe(), seed)
    return folder_of(model, words, command)


def main() -> int:
    """The command line: train, measure on fresh scenes, save; exit status 1 if a requirement is missed."""
    return run_training(
        "tiny_blip2", "Train the tiny BLIP-2 (about 11 minutes on a CPU core).", _make, REPORT
    )


if __name__ == "__main__":
    sys.exit(main())
