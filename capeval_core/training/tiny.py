"""Train `tiny`, the dual encoder that ships with the package, on synthetic scenes.

    python -m capeval_core.training.tiny --out DIR [--seed 0]

The recipe: picture-to-caption contrast as in CLIP (Radford et al., 2021, section 2.3), with one-word foils
of the right caption as further negatives of its own picture, captions of like scenes taken out of the
negatives, simple scenes first, and patch positions that begin as sines and cosines. At first each
tower learns by itself, from plain questions: what lies in this patch? is there a red circle? does the
caption say so? They go on beside the contrast, fade, and their heads are thrown away. Without them, places
in the picture were still at chance after a quarter of the training, and sizes were not told apart where a
scene has both.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from open_clip.model import CLIP
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.tokenizer import ClipTokenizer
from capeval_core.synthetic import KINDS
from capeval_core.synthetic.scenes import COLOURS, MOST_ALIKE, SHAPES, SIZES
from capeval_core.training.lessons import Lessons, make_lessons
from capeval_core.training.tiny_report import measure_encoder, missed, table

log = logging.getLogger(__name__)

PROMPT = "A photo depicts "
SIDE, PATCH = 48, 8
CELLS = SIDE // PATCH
ARCHITECTURE: dict[str, Any] = {
    "embed_dim": 128,
    "vision": {
        "image_size": SIDE,
        "patch_size": PATCH,
        "width": 128,
        "layers": 4,
        "head_width": 32,
        "mlp_ratio": 4.0,
    },
    "text": {
        "context_length": 77,
        "vocab_size": 49408,
        "width": 56,
        "heads": 4,
        "layers": 3,
        "mlp_ratio": 4.0,
    },
}
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class Recipe:
    """How long and how hard to train; the defaults made the shipped model."""

    scenes: int = 40_000
    steps: int = 4_400
    batch: int = 32
    foils: int = 3
    """Foils per picture and step, drawn from those its caption allows."""
    rate: float = 1e-3
    text_pace: float = 3.0
    """How much faster the text tower learns."""
    warmup: int = 200
    scale: float = 16.0
    """The fixed inverse temperature; a low one spreads the cosines out."""
    wording_weight: float = 0.2
    question_weight: float = 1.0
    questions_until: float = 0.8
    """The share of the training after which the questions have faded."""
    apart_until: float = 0.25
    """Up to this share of the training each tower only answers questions; the contrast comes after."""
    lone_until: float = 0.28
    """Then scenes of one group only, up to this share; of at most two groups up to `few_until`."""
    few_until: float = 0.34


class CaptionCodec:
    """Captions to CLIP's token ids, prompt, start and end included, word by word from memory."""

    def __init__(self, prompt: str = PROMPT) -> None:
        self._tokenizer = ClipTokenizer()
        self._words: dict[str, list[int]] = {}
        self._prompt = self._encode(prompt)

    def __call__(self, caption: str) -> list[int]:
        ids = [self._tokenizer.start, *self._prompt]
        for word in caption.split(" "):
            if word not in self._words:
                self._words[word] = self._encode(word)
            ids += self._words[word]
        return [*ids, self._tokenizer.end]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode([text]).ids[0][1:-1]


_TRAITS = len(SHAPES) + len(SIZES) + MOST_ALIKE + 4
"""What a patch tells of its object, each with the colour: shape, size, how many are alike, four sides."""


class _Questions(nn.Module):
    """Plain questions to both towers.

    Before its last block each patch tells whether an object is centred in it, and which shape, size,
    number and side of the picture go with which colour there; this is what the class token then gathers. The
    class token tells which facts are true of the whole.
    """

    def __init__(self, width: int, facts: int) -> None:
        super().__init__()
        self._split = (
            1,
            len(SHAPES),
            len(COLOURS),
            len(SIZES),
            _TRAITS * len(COLOURS),
        )
        self.patch = nn.Linear(width, sum(self._split))
        self.whole = nn.Linear(width, facts)
        self.text = nn.Linear(ARCHITECTURE["text"]["width"], facts)

    def read(self, ends: Tensor, stated: Tensor) -> Tensor:
        """The loss of the question which facts a caption states; ends (B, width), stated (B, facts)."""
        return 60 * functional.binary_cross_entropy_with_logits(self.text(ends), stated.float())

    def loss(self, patches: Tensor, whole: Tensor, objects: Tensor, facts: Tensor) -> Tensor:
        """patches (B, patches, width), whole (B, width); objects and facts as in `Lessons`, B rows."""
        answers = self.patch(functional.layer_norm(patches, patches.shape[-1:]))
        there, *kinds, paired = answers.split(self._split, -1)
        row, slot = (objects[:, :, 0] >= 0).nonzero(as_tuple=True)
        cell, shape, colour, size, alike = objects[row, slot].unbind(-1)
        centred = torch.zeros_like(there[..., 0])
        centred[row, cell] = 1
        across, down = cell % CELLS < CELLS // 2, cell < CELLS * CELLS // 2
        traits = torch.cat(
            [
                functional.one_hot(shape, len(SHAPES)),
                functional.one_hot(size, len(SIZES)),
                functional.one_hot(alike, MOST_ALIKE),
                torch.stack([across, ~across, down, ~down], -1),
            ],
            -1,
        )
        pairs = traits[:, :, None] * functional.one_hot(colour, len(COLOURS))[:, None]
        ask = functional.binary_cross_entropy_with_logits
        return (
            4 * ask(there[..., 0], centred)
            + 20 * ask(paired[row, cell], pairs.flatten(1).float())
            + sum(
                1.5 * functional.cross_entropy(logits[row, cell], kind)
                for logits, kind in zip(kinds, (shape, colour, size), strict=True)
            )
            + 60 * ask(self.whole(whole), facts)
        )


def build(seed: int) -> CLIP:
    """The untrained model: open_clip's CLIP with patch positions that begin as sines and cosines."""
    torch.manual_seed(seed)
    model = CLIP(ARCHITECTURE["embed_dim"], ARCHITECTURE["vision"], ARCHITECTURE["text"], quick_gelu=True)
    with torch.no_grad():
        model.visual.positional_embedding[1:] = _waves(CELLS, ARCHITECTURE["vision"]["width"])
    return model


def _waves(cells: int, width: int) -> Tensor:
    """(cells * cells, width): sines and cosines of row and column, a quarter of the width each."""
    place = torch.arange(cells, dtype=torch.float32)
    pace = math.pi / cells * 2 ** (torch.arange(width // 4) / (width // 4) * 3)
    angle = (place[:, None] + 0.5) * pace
    line = torch.cat([angle.sin(), angle.cos()], -1)
    return torch.cat([line[:, None].expand(-1, cells, -1), line[None].expand(cells, -1, -1)], -1).flatten(
        0, 1
    )


def picture_tokens(model: CLIP, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """The patch tokens before the last block, (B, patches, width); the class token after the last norm."""
    visual = model.visual
    tokens = visual._embeds(pixels)
    *blocks, last = visual.transformer.resblocks
    for block in blocks:
        tokens = block(tokens)
    return tokens[:, 1:], visual.ln_post(last(tokens)[:, 0])


def text_tokens(model: CLIP, embedding: Tensor, ids: Tensor, lengths: Tensor, parts: int = 1) -> Tensor:
    """The end tokens of captions after the last norm, (B, width). `ids` index the rows of `embedding`;
    padding behind the end token is never seen, because the attention is causal, so the sequences are only
    as long as the longest: sorted by length and run in `parts`, they need little padding."""
    order = lengths.argsort(stable=True)
    ends = []
    for rows in order.chunk(parts):
        longest = int(lengths[rows[-1]])
        hidden = functional.embedding(ids[rows, :longest], embedding) + model.positional_embedding[:longest]
        hidden = model.transformer(hidden, attn_mask=model.attn_mask[:longest, :longest])
        ends.append(model.ln_final(hidden[torch.arange(len(rows)), lengths[rows] - 1]))
    return torch.cat(ends)[order.argsort()]


def normalised(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """(B, side, side, 3) bytes to (B, 3, side, side) as CLIP sees them."""
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    return (batch - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def contrast(
    pictures: Tensor, captions: Tensor, foils: Tensor, told: Tensor, alike: Tensor, scale: float
) -> Tensor:
    """The loss of a batch: each picture finds its caption among all captions and its own foils, each
    caption its picture among all pictures.

    pictures, captions (B, d) and foils (B, F, d) have unit length; told (B, F) is false where a foil is
    missing; alike (B, B) is true where the caption of the column may also be true of the picture of the
    row.
    """
    logits = scale * pictures @ captions.T
    logits = logits.masked_fill(alike & ~torch.eye(len(alike), dtype=torch.bool), -torch.inf)
    beside = (scale * torch.einsum("bd,bfd->bf", pictures, foils)).masked_fill(~told, -torch.inf)
    own = torch.arange(len(logits))
    return 0.5 * (
        functional.cross_entropy(torch.cat([logits, beside], 1), own)
        + functional.cross_entropy(logits.T, own)
    )


def train(recipe: Recipe = Recipe(), seed: int = 0) -> tuple[CLIP, list[float]]:
    """Train on freshly drawn scenes; the model (float32) and the loss of every step."""
    started = time.monotonic()
    rng = np.random.default_rng([seed, 1])
    lessons = make_lessons(recipe.scenes, rng, CaptionCodec(), SIDE, CELLS)
    log.info("%d scenes drawn and described in %.0f s", recipe.scenes, time.monotonic() - started)
    # Only the few words of the captions are trained: the other rows of the embedding keep their random start.
    words, places = np.unique(lessons.tokens, return_inverse=True)
    lessons.tokens[:] = places.reshape(lessons.tokens.shape)
    model = build(seed)
    embedding = nn.Parameter(model.token_embedding.weight.detach()[words].clone())
    model.token_embedding.weight.requires_grad_(False)
    model.logit_scale.requires_grad_(False).fill_(math.log(recipe.scale))
    questions = _Questions(ARCHITECTURE["vision"]["width"], lessons.facts.shape[1])
    optimiser = _optimiser(model, questions, embedding, recipe)
    losses: list[float] = []
    for step in range(recipe.steps):
        done = step / recipe.steps
        for group in optimiser.param_groups:
            rate = recipe.rate * min((step + 1) / recipe.warmup, 0.5 + 0.5 * math.cos(math.pi * done))
            group["lr"] = group["pace"] * rate
        rows = _next_rows(lessons, recipe, done, rng)
        asked, pictures = _asked(model, questions, lessons, rows)
        told, asked_back = _told(model, questions, embedding, pictures, lessons, rows, recipe, rng)
        asked = asked + asked_back
        loss = recipe.question_weight * max(0.0, 1 - done / recipe.questions_until) * asked
        if done >= recipe.apart_until:
            loss = loss + told
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        trained = [p for group in optimiser.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimiser.step()
        losses.append(loss.item())
        if (step + 1) % 200 == 0:
            recent = sum(losses[-200:]) / 200
            log.info(
                "step %d  loss %.4f  questions %.3f  %.0f s",
                step + 1,
                recent,
                asked.item(),
                time.monotonic() - started,
            )
    with torch.no_grad():
        model.token_embedding.weight[words] = embedding
    return model.eval(), losses


def _optimiser(model: CLIP, questions: nn.Module, embedding: Tensor, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW, with weight decay on matrices only, and faster for the narrow text tower."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    seeing = [p for name, p in named if name.startswith("visual.")] + list(questions.parameters())
    reading = [p for name, p in named if not name.startswith("visual.")]
    groups = []
    for parameters, pace in ((seeing, 1.0), (reading, recipe.text_pace)):
        matrices = [p for p in parameters if p.ndim >= 2]
        groups.append({"params": matrices, "weight_decay": 0.05, "pace": pace})
        groups.append({"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, "pace": pace})
    groups.append({"params": [embedding], "weight_decay": 0.0, "pace": recipe.text_pace})
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), fused=True)


def _next_rows(
    lessons: Lessons, recipe: Recipe, done: float, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """The scenes of the next batch, simple ones first."""
    if done < recipe.apart_until:
        most = 3
    else:
        most = 1 if done < recipe.lone_until else 2 if done < recipe.few_until else 3
    allowed = np.flatnonzero(lessons.groups <= most) if most < 3 else np.arange(len(lessons.groups))
    return rng.choice(allowed, recipe.batch, replace=len(allowed) < recipe.batch)


def _asked(
    model: CLIP, questions: _Questions, lessons: Lessons, rows: np.ndarray[Any, Any]
) -> tuple[Tensor, Tensor]:
    """The loss of the questions, and the pictures' features, (B, embed_dim), of unit length."""
    patches, whole = picture_tokens(model, normalised(lessons.pixels[rows]))
    asked = questions.loss(
        patches, whole, torch.from_numpy(lessons.objects[rows]), torch.from_numpy(lessons.facts[rows])
    )
    return asked, functional.normalize(whole @ model.visual.proj, dim=-1)


def _told(
    model: CLIP,
    questions: _Questions,
    embedding: Tensor,
    pictures: Tensor,
    lessons: Lessons,
    rows: np.ndarray[Any, Any],
    recipe: Recipe,
    rng: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """The contrastive loss of pictures with captions and foils, and between two wordings of a scene; and the
    loss of the questions to the captions."""
    batch, wording = len(rows), int(rng.integers(lessons.tokens.shape[1]))
    lengths = lessons.lengths[rows]
    # Foils that exist, in random order, colours (which are learnt soon) seldom; the rest is left out.
    lots = rng.random((batch, len(KINDS))) + (np.array(KINDS) == "colour") * 0.5
    order = np.argsort(lots + 2 * (lengths[:, wording, 1:] == 0), axis=1)
    chosen = 1 + order[:, : recipe.foils]
    ids = [
        lessons.tokens[rows, wording, 0],
        lessons.tokens[rows, 1 - wording, 0],
        lessons.tokens[rows[:, None], wording, chosen].reshape(batch * recipe.foils, -1),
    ]
    told = np.take_along_axis(lengths[:, wording], chosen, axis=1)
    sizes = np.concatenate([lengths[:, wording, 0], lengths[:, 1 - wording, 0], told.reshape(-1)])
    ends = text_tokens(
        model,
        embedding,
        torch.from_numpy(np.concatenate(ids)),
        torch.from_numpy(np.maximum(sizes, 1)),
        parts=4,
    )
    texts = functional.normalize(ends @ model.text_projection, dim=-1)
    captions, others, foils = texts[:batch], texts[batch : 2 * batch], texts[2 * batch :]
    members = lessons.members[rows]
    # A caption names every group of its scene, so it can be true only where all of them are.
    alike = torch.from_numpy((members[None, :] & ~members[:, None]) == 0)
    loss = contrast(
        pictures,
        captions,
        foils.view(batch, recipe.foils, -1),
        torch.from_numpy(told > 0),
        alike,
        recipe.scale,
    )
    wordings = (recipe.scale * captions @ others.T).masked_fill(
        (alike | alike.T) & ~torch.eye(batch, dtype=torch.bool), -torch.inf
    )
    stated = lessons.stated[rows]
    asked = questions.read(
        ends,
        torch.from_numpy(
            np.concatenate(
                [
                    stated[:, wording, 0],
                    stated[:, 1 - wording, 0],
                    stated[np.arange(batch)[:, None], wording, chosen].reshape(batch * recipe.foils, -1),
                ]
            )
        ),
    )
    return loss + recipe.wording_weight * functional.cross_entropy(wordings, torch.arange(batch)), asked


def folder_of(model: CLIP, command: str) -> ClipEncoder:
    """The model, rounded to float16, as the encoder whose `save_pretrained` writes a weights folder."""
    config: dict[str, Any] = {
        "format": 1,
        "encoder": "clip",
        "architecture": ARCHITECTURE,
        "activation": "quick_gelu",
        "preprocessing": {
            "image_size": SIDE,
            "mean": list(MEAN),
            "std": list(STD),
            "interpolation": "bicubic",
        },
        "constants": {"prompt": PROMPT},
        "source": {
            "name": "capeval synthetic scenes",
            "url": None,
            "file": None,
            "sha256": None,
            "licence": "apache-2.0",
            "notes": [
                "It knows nothing but synthetic scenes of coloured shapes.",
                "Its scores of any other picture or caption mean nothing.",
                f"Trained from scratch by: {command}",
            ],
        },
    }
    return ClipEncoder(config, {name: tensor.half() for name, tensor in model.state_dict().items()})


def main() -> int:
    """The command line: train, measure on fresh scenes, save; exit status 1 if a requirement is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m capeval_core.training.tiny",
        description="Train `tiny` (about 25 minutes on a CPU core).",
    )
    parser.add_argument("--out", type=Path, required=True, help="the weights folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)  # the order of sums, and with it the result, depends on the number of threads
    started = time.monotonic()
    model, _ = train(Recipe(), options.seed)
    log.info("trained in %.1f minutes", (time.monotonic() - started) / 60)
    encoder = folder_of(model, f"python -m capeval_core.training.tiny --seed {options.seed}")
    found = measure_encoder(encoder, seed=options.seed + 1)
    encoder.config["source"]["report"] = {
        "command": f"python -m capeval_core.training.tiny_report DIR --seed {options.seed + 1}",
        **{name: {"accuracy": round(row.accuracy, 4), "trials": row.trials} for name, row in found.items()},
    }
    encoder.save_pretrained(options.out)
    log.info("%s", table(found))
    for failure in missed(found):
        log.error("%s", failure)
    return 1 if missed(found) else 0


if __name__ == "__main__":
    sys.exit(main())
