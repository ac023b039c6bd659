"""Train the tiny BLIP-2 that ships with the package, on synthetic scenes.

    python -m capeval_core.training.tiny_blip2 --out DIR [--seed 0]

The recipe: the picture tower starts as that of `tiny` of PAC-S, less its last block, as BLIP-2 starts from a
trained tower less its last block; the Q-Former starts from nothing. It learns the contrast and the matching
of Li et al., 2023, section 3.1, with one-word foils of the right caption as negatives of its own picture.
Three plain questions go on beside them and their heads are thrown away: which facts does the picture show?
which does the caption state? and, picture and caption seen together, which of the words are false?
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.blip2 import Blip2Encoder
from capeval_core.encoders.blip2_model import matched_states, picture_states, query_states, text_states
from capeval_core.encoders.wordpiece import END, PAD, START, UNKNOWN, WordPiece
from capeval_core.synthetic import KINDS, describe, draw, sample_scene
from capeval_core.synthetic.scenes import COLOURS, SHAPES
from capeval_core.training.lessons import LONGEST, Lessons, make_lessons, shrink
from capeval_core.training.tiny import CELLS, MEAN, SIDE, STD, normalised
from capeval_core.training.tiny_blip2_report import measure_matching, missed, table
from capeval_core.weights.blip2_transformers import empty_model
from capeval_core.weights.folder import TINY, open_weights

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

VISION_LAYERS = 3
WIDTH, QUERIES, DIMENSION = 96, 12, 64


@dataclass(frozen=True)
class Recipe:
    """How long and how hard to train; the defaults made the shipped model."""

    scenes: int = 12_000
    steps: int = 1_600
    batch: int = 20
    foils: int = 4
    """Foils of the caption per picture and step."""
    rate: float = 1e-3
    vision_pace: float = 0.4
    """How much slower the picture tower learns, which has learnt before."""
    warmup: int = 100
    scale: float = 16.0
    """The fixed inverse temperature of the contrast."""
    question_weight: float = 20.0
    questions_until: float = 0.7
    """The share of the training after which the questions about facts have faded."""
    words_weight: float = 4.0
    spoilt: float = 0.5
    """How often the further wrong caption has an unknown word; else its words are in disorder."""


class Texts(NamedTuple):
    """T texts for each of B pictures, those that are true first."""

    ids: Ints
    """(B, T, longest): zeros behind."""
    lengths: Ints
    """(B, T): tokens that count; 0 where there is no text."""
    true: Bools
    """(B, T)"""
    false_words: Bools
    """(B, T, longest): the tokens that make a caption false."""
    told: Bools
    """(B, T): whether it is known which tokens these are."""


def train(recipe: Recipe = Recipe(), seed: int = 0) -> tuple[Any, list[str], list[float]]:
    """Train on freshly drawn scenes; the model (float32), its words, and the loss of every step."""
    started = time.monotonic()
    rng = np.random.default_rng([seed, 5])
    words = vocabulary()
    lessons = make_lessons(recipe.scenes, rng, Codec(words), SIDE, CELLS)
    log.info("%d scenes drawn and described in %.0f s", recipe.scenes, time.monotonic() - started)
    model = build(words, seed)
    questions = _Questions(lessons.facts.shape[1])
    optimiser = _optimiser(model, questions, recipe)
    trained = [p for group in optimiser.param_groups for p in group["params"]]
    losses: list[float] = []
    said: dict[str, float] = {}
    for step in range(recipe.steps):
        done = step / recipe.steps
        rate = recipe.rate * min((step + 1) / recipe.warmup, 0.5 + 0.5 * math.cos(math.pi * done))
        for group in optimiser.param_groups:
            group["lr"] = group["pace"] * rate
        rows = rng.choice(recipe.scenes, recipe.batch, replace=False)
        parts = _losses(model, questions, lessons, rows, words, recipe, rng)
        fading = recipe.question_weight * max(0.0, 1 - done / recipe.questions_until)
        loss = (
            parts["contrast"]
            + 2 * parts["matching"]
            + recipe.words_weight * parts["words"]
            + fading * parts["facts"]
        )
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimiser.step()
        losses.append(loss.item())
        for name, part in parts.items():
            said[name] = said.get(name, 0.0) + part.item()
        if (step + 1) % 100 == 0:
            means = "  ".join(f"{name} {total / 100:.3f}" for name, total in said.items())
            log.info("step %d  %s  %.0f s", step + 1, means, time.monotonic() - started)
            said.clear()
    return model.eval(), words, losses


def vocabulary() -> list[str]:
    """BERT's marks, every word that captions of scenes are made of, the comma and the full stop."""
    rng = np.random.default_rng(0)
    said = {word for _ in range(4000) for word in describe(sample_scene(rng), rng).split()}
    return [PAD, UNKNOWN, START, END, *sorted({",", "."} | {word.rstrip(",") for word in said})]


class Codec:
    """Captions to ids, by the encoder's own tokenizer, each caption once."""

    def __init__(self, words: list[str]) -> None:
        self._tokenizer = WordPiece(words, LONGEST)

    def __call__(self, caption: str) -> list[int]:
        return self._tokenizer.encode([caption]).ids[0]


def architecture(words: int) -> dict[str, Any]:
    """Of the tiny model, with a vocabulary of so many words."""
    vision = {
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": VISION_LAYERS,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": SIDE // CELLS,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "qkv_bias": True,
    }
    qformer = {
        "vocab_size": words,
        "hidden_size": WIDTH,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 2 * WIDTH,
        "hidden_act": "gelu",
        "max_position_embeddings": LONGEST,
        "layer_norm_eps": 1e-6,
        "pad_token_id": 0,
        "cross_attention_frequency": 1,
        "encoder_hidden_size": 128,
    }
    return {
        "vision": vision,
        "qformer": qformer,
        "num_query_tokens": QUERIES,
        "image_text_hidden_size": DIMENSION,
    }


def build(words: list[str], seed: int) -> Any:
    """The untrained model, its picture tower that of `tiny`."""
    torch.manual_seed(seed)
    model: Any = empty_model(architecture(len(words)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and not name.startswith("vision_model."):
                # transformers begins with numbers made for widths of thousands.
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
        model.query_tokens.normal_()  # equal ones would stay equal
    tensors = open_weights(TINY / "pacs", metric="pacs", tiny="pacs").tensors()
    given = {
        name.removeprefix("visual."): t.float() for name, t in tensors.items() if name.startswith("visual.")
    }
    model.vision_model.load_state_dict(_tower(given))
    return model.eval()  # it has no dropout


def _tower(clip: dict[str, Tensor]) -> dict[str, Tensor]:
    """CLIP's picture tower without its last block, as BLIP-2's, which has no norm before the first block.

    Of that norm everything but the division by each patch's own deviation is linear and goes into the
    embedding; the division is by the usual deviation.
    """
    kernel = clip["conv1.weight"] - clip["conv1.weight"].mean(0)
    places = clip["positional_embedding"].clone()
    places[0] += clip["class_embedding"]
    places = places - places.mean(-1, keepdim=True)
    gain, bias = clip["ln_pre.weight"], clip["ln_pre.bias"]
    rng = np.random.default_rng(0)
    drawn = np.stack([shrink(draw(sample_scene(rng)), SIDE) for _ in range(32)])
    patches = functional.conv2d(normalised(drawn), kernel, stride=kernel.shape[-1]).flatten(2).transpose(1, 2)
    deviation = (patches + places[1:]).std(-1).median()
    mark = functional.layer_norm(places[0], places[0].shape, gain, bias)
    width = len(gain)
    tower = {
        "embeddings.class_embedding": mark.view(1, 1, width),
        "embeddings.position_embedding": torch.cat(
            [torch.zeros(1, width), places[1:] / deviation * gain + bias]
        )[None],
        "embeddings.patch_embedding.weight": kernel / deviation * gain[:, None, None, None],
        "embeddings.patch_embedding.bias": torch.zeros(width),
        "post_layernorm.weight": torch.ones(width),
        "post_layernorm.bias": torch.zeros(width),
    }
    names = {
        "ln_1": "layer_norm1",
        "ln_2": "layer_norm2",
        "attn.out_proj": "self_attn.projection",
        "mlp.c_fc": "mlp.fc1",
        "mlp.c_proj": "mlp.fc2",
    }
    for layer in range(VISION_LAYERS):
        theirs, ours = f"transformer.resblocks.{layer}.", f"encoder.layers.{layer}."
        for end in ("weight", "bias"):
            tower[f"{ours}self_attn.qkv.{end}"] = clip[f"{theirs}attn.in_proj_{end}"]
            for name, translated in names.items():
                tower[f"{ours}{translated}.{end}"] = clip[f"{theirs}{name}.{end}"]
    return tower


class _Questions(nn.Module):
    """Heads of the plain questions."""

    def __init__(self, facts: int) -> None:
        super().__init__()
        self.shown = nn.Linear(WIDTH, facts)
        self.stated = nn.Linear(WIDTH, facts)
        self.word = nn.Linear(WIDTH, 1)


def _optimiser(model: nn.Module, questions: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW, with weight decay on matrices only."""
    groups = []
    for name, parameter in [*model.named_parameters(), *questions.named_parameters()]:
        pace = recipe.vision_pace if name.startswith("vision_model.") else 1.0
        decay = 0.05 if parameter.ndim == 2 and "embeddings" not in name else 0.0
        groups.append({"params": [parameter], "weight_decay": decay, "pace": pace})
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), fused=True)


def _losses(
    model: Any,
    questions: _Questions,
    lessons: Lessons,
    rows: Ints,
    words: list[str],
    recipe: Recipe,
    rng: np.random.Generator,
) -> dict[str, Tensor]:
    # Scenes with captions of like length go together through the matching, which saves padding.
    wording = int(rng.integers(lessons.tokens.shape[1]))
    rows = rows[np.argsort(lessons.lengths[rows].max(axis=(1, 2)), kind="stable")]
    members = lessons.members[rows]
    # A caption names every group of its scene, so it can be true only where all of them are.
    alike = (members[None, :] & ~members[:, None]) == 0
    texts, kinds = choose_texts(lessons, rows, wording, alike, words, recipe, rng)
    states = picture_states(model, normalised(lessons.pixels[rows]))
    seen = query_states(model, states)
    shown = questions.shown(seen).amax(1)
    facts = functional.binary_cross_entropy_with_logits(shown, torch.from_numpy(lessons.facts[rows]))
    # Both captions and two of the foils are also read alone.
    alone = texts.ids[:, :4].reshape(-1, texts.ids.shape[-1])
    counts = texts.lengths[:, :4]
    ends = _read(model, alone, np.maximum(counts.reshape(-1), 1))
    stated = lessons.stated[rows[:, None], np.array([wording, 1 - wording, wording, wording]), kinds]
    answers = questions.stated(ends)
    facts = facts + functional.binary_cross_entropy_with_logits(
        answers, torch.from_numpy(stated.reshape(len(ends), -1).astype(np.float32))
    )
    contrast = _contrast(
        functional.normalize(model.vision_projection(seen), dim=-1),
        functional.normalize(model.text_projection(ends), dim=-1).view(len(rows), 4, -1),
        torch.from_numpy(counts[:, 2:] > 0),
        torch.from_numpy(alike),
        recipe.scale,
    )
    matching, false_words = _match(model, questions, states, texts)
    return {"contrast": contrast, "matching": matching, "words": false_words, "facts": facts}


def choose_texts(
    lessons: Lessons,
    rows: Ints,
    wording: int,
    alike: Bools,
    words: list[str],
    recipe: Recipe,
    rng: np.random.Generator,
) -> tuple[Texts, Ints]:
    """Texts for every picture: two true captions, foils, a spoilt caption, another scene's.

    Also the places, (B, 4), of the first four among the texts of their lessons.
    """
    batch = len(rows)
    lengths = lessons.lengths[rows]
    lots = rng.random((batch, len(KINDS)))
    chosen = 1 + np.argsort(lots + 2 * (lengths[:, wording, 1:] == 0), axis=1)[:, : recipe.foils]
    count = 2 + recipe.foils + 2
    ids = np.zeros((batch, count, LONGEST), np.int64)
    sizes = np.zeros((batch, count), np.int64)
    false_words = np.zeros((batch, count, LONGEST), np.bool_)
    told = np.ones((batch, count), np.bool_)
    told[:, -1] = False
    own = lessons.tokens[rows]
    ids[:, 0], sizes[:, 0] = own[:, wording, 0], lengths[:, wording, 0]
    ids[:, 1], sizes[:, 1] = own[:, 1 - wording, 0], lengths[:, 1 - wording, 0]
    each = np.arange(batch)[:, None]
    ids[:, 2:-2], sizes[:, 2:-2] = own[each, wording, chosen], lengths[each, wording, chosen]
    false_words[:, 2:-2] = (ids[:, 2:-2] != ids[:, :1]) & (sizes[:, 2:-2] > 0)[:, :, None]
    content = [words.index(word) for word in (*COLOURS, *SHAPES)]
    for row in range(batch):
        spoilt, length = ids[row, 0].copy(), int(sizes[row, 0])
        if rng.random() < recipe.spoilt:
            place = int(rng.choice(np.flatnonzero(np.isin(spoilt, content))))
            spoilt[place], false_words[row, -2, place] = words.index(UNKNOWN), True
        else:
            spoilt[1 : length - 1] = rng.permutation(spoilt[1 : length - 1])
            told[row, -2] = False
        ids[row, -2], sizes[row, -2] = spoilt, length
        away = np.flatnonzero(~alike[row])
        if len(away):
            other = int(rng.choice(away))
            ids[row, -1], sizes[row, -1] = own[other, wording, 0], lengths[other, wording, 0]
    true = np.zeros((batch, count), np.bool_)
    true[:, :2] = True
    kinds = np.concatenate([np.zeros((batch, 2), np.int64), chosen[:, :2]], axis=1)
    return Texts(ids, sizes, true, false_words, told), kinds


def _read(model: Any, ids: Ints, lengths: Ints, parts: int = 3) -> Tensor:
    """(n, width) states of texts alone, run in parts of like length."""
    order = np.argsort(lengths, kind="stable")
    ends = []
    for some in np.array_split(order, parts):
        longest = int(lengths[some].max())
        mask = torch.from_numpy(np.arange(longest) < lengths[some][:, None])
        ends.append(text_states(model, torch.from_numpy(ids[some, :longest]), mask))
    return torch.cat(ends)[torch.from_numpy(np.argsort(order))]


def _contrast(pictures: Tensor, texts: Tensor, told: Tensor, alike: Tensor, scale: float) -> Tensor:
    """Each picture finds its caption among all captions and its own foils, each caption its picture.

    pictures (B, queries, d); texts (B, 4, d): two captions, then two foils, of which told (B, 2) exist; all
    of unit length. alike (B, B): the caption of the column may also be true of the picture of the row.
    """
    batch = len(pictures)
    own = torch.arange(batch)
    others = alike & ~torch.eye(batch, dtype=torch.bool)
    beside = scale * torch.einsum("bqd,bfd->bfq", pictures, texts[:, 2:]).amax(-1)
    beside = beside.masked_fill(~told, -torch.inf)
    total = torch.zeros(())
    for captions in texts[:, :2].unbind(1):
        logits = scale * torch.einsum("bqd,cd->bcq", pictures, captions).amax(-1)
        logits = logits.masked_fill(others, -torch.inf)
        total = total + 0.25 * (
            functional.cross_entropy(torch.cat([logits, beside], 1), own)
            + functional.cross_entropy(logits.T, own)
        )
    return total


def _match(model: Any, questions: _Questions, states: Tensor, texts: Texts) -> tuple[Tensor, Tensor]:
    """The loss of the matching head, and that of the question which words are false."""
    logits, words = [], []
    for some in np.array_split(np.arange(len(states)), 2):
        lengths = texts.lengths[some].reshape(-1)
        longest = int(lengths.max())
        ids = torch.from_numpy(texts.ids[some, :, :longest].reshape(len(lengths), longest))
        mask = np.arange(longest) < np.maximum(lengths, 1)[:, None]
        hidden = matched_states(model, states[some], ids, torch.from_numpy(mask), words=True)
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
        "preprocessing": {
            "image_size": SIDE,
            "mean": list(MEAN),
            "std": list(STD),
            "interpolation": "bicubic",
        },
        "context_length": LONGEST,
        "vocabulary": words,
        "source": {
            "name": "capeval synthetic scenes",
            "url": None,
            "file": None,
            "sha256": None,
            "licence": "apache-2.0",
            "notes": [
                "It knows nothing but synthetic scenes of coloured shapes.",
                "Its scores of any other picture or caption mean nothing.",
                f"Trained from the picture tower `tiny` of PAC-S by: {command}",
            ],
        },
    }
    return Blip2Encoder(config, {name: tensor.half() for name, tensor in model.state_dict().items()})


def main() -> int:
    """The command line: train, measure on fresh scenes, save; exit status 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m capeval_core.training.tiny_blip2",
        description="Train the tiny BLIP-2 (about 11 minutes on a CPU core).",
    )
    parser.add_argument("--out", type=Path, required=True, help="the weights folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)  # the order of sums, and with it the result, depends on the number of threads
    started = time.monotonic()
    model, words, _ = train(Recipe(), options.seed)
    log.info("trained in %.1f minutes", (time.monotonic() - started) / 60)
    encoder = folder_of(model, words, f"python -m capeval_core.training.tiny_blip2 --seed {options.seed}")
    found = measure_matching(encoder, seed=options.seed + 1)
    encoder.config["source"]["report"] = {
        "command": f"python -m capeval_core.training.tiny_blip2_report DIR --seed {options.seed + 1}",
        **{name: {"accuracy": round(row.accuracy, 4), "trials": row.trials} for name, row in found.items()},
    }
    encoder.save_pretrained(options.out)
    log.info("%s", table(found))
    for failure in missed(found):
        log.error("%s", failure)
    return 1 if missed(found) else 0


if __name__ == "__main__":
    sys.exit(main())
