"""Train the small Long-CLIP of `specs` on crowds: scenes of up to 40 objects, captions of up to 200 words.

    python -m tools.tiny_long --out FIRST [--seed 0]
    python -m tools.tiny_long --start FIRST --out DIR

Long-CLIP's recipe for the text tower: that of the packaged PAC-S, of whose 77 positions 20 are kept and the
others stretched by four. The image tower starts from nothing. Each learns by itself which coloured shapes an
image shows or a caption names: its features are to be the sum of the directions of these, less the mean of
all. No size, count or position is learnt. The second run tunes both: an image is to be nearer to its caption
than to the same with a wrong fact.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.tokenizers import ClipTokenizer
from capeval_core.weights.conversion import clip_preprocessing
from tools.captions import describe, facts_of, wrong_fact
from tools.scenes import COLOURS, CROWD_SIDE, SHAPES, Scene, draw, sample_crowd, sample_scene

PATCH, CONTEXT, KEPT = 16, 248, 20
SIDE = CROWD_SIDE * PATCH
KINDS = len(SHAPES) * len(COLOURS)
VISION: dict[str, Any] = {
    "image_size": SIDE,
    "patch_size": PATCH,
    "width": 128,
    "layers": 2,
    "head_width": 32,
    "mlp_ratio": 4.0,
}
SCENES, STEPS, BATCH, RATE = 1500, 1600, 32, 2e-3
TUNING, SCALE = 120, 20.0
CONFIG = ("format", "encoder", "architecture", "activation", "preprocessing", "constants")
TOKENIZER = ClipTokenizer(CONTEXT)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.tiny_long", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the trained weights")
    parser.add_argument("--start", type=Path, metavar="DIR", help="weights of the first run, to be tuned")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the order of sums, and with it the result, depends on the threads
    made = train(options.seed) if options.start is None else tune(options.start, options.seed)
    made.save_pretrained(options.out)


def stretched(positions: Tensor) -> Tensor:
    """Positions by Long-CLIP's rule: the first 20 as they are, three more behind each of the others."""
    rest = positions[KEPT:]
    steps = torch.arange(4 * len(rest)) / 4
    before = steps.long().clamp(max=len(rest) - 2)
    return torch.cat(
        [positions[:KEPT], torch.lerp(rest[before], rest[before + 1], (steps - before)[:, None])]
    )


def start(seed: int) -> tuple[dict[str, Any], Any]:
    """Config and model to start from."""
    base: Any = ClipEncoder.from_pretrained("tiny")
    architecture = {**base.config["architecture"], "vision": VISION}
    architecture["text"] = {**architecture["text"], "context_length": CONTEXT}
    config = {"format": 1, "encoder": "clip", "architecture": architecture, "activation": "quick_gelu"}
    config |= {"preprocessing": clip_preprocessing(SIDE), "constants": {"prompt": ""}}
    torch.manual_seed(seed)
    model = ClipEncoder.modules(config).to_empty(device="cpu")
    for name, parameter in model.visual.named_parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=0.1 if "positional" in name else parameter[0].numel() ** -0.5)
        else:
            nn.init.constant_(parameter, float("ln_" in name and name.endswith("weight")))
    tensors = {name: own.float() for name, own in base.model.state_dict().items() if "visual." not in name}
    tensors["positional_embedding"] = stretched(tensors["positional_embedding"])
    model.load_state_dict(tensors, strict=False)
    return config, model


def kinds_of(scene: Scene) -> list[int]:
    """The number of shape and colour of every object."""
    return [
        SHAPES.index(thing.shape) + len(SHAPES) * list(COLOURS).index(thing.colour) for thing in scene.objects
    ]


class Crowds:
    """Crowds put together of the cells of drawn ones, by background, and a pool of ordinary scenes."""

    def __init__(self, rng: np.random.Generator, scenes: int = SCENES) -> None:
        self.rng = rng
        self.tiles: dict[str, list[list[Any]]] = {}
        for _ in range(scenes):
            scene = sample_crowd(rng, 40)
            cells = (
                np.asarray(draw(scene, SIDE)).reshape(CROWD_SIDE, PATCH, CROWD_SIDE, PATCH, 3).swapaxes(1, 2)
            )
            tiles = self.tiles.setdefault(scene.background, [[] for _ in range(KINDS + 1)])
            full = {}
            for kind, thing in zip(kinds_of(scene), scene.objects, strict=True):
                x, y = (int(place * CROWD_SIDE) for place in thing.centre)
                full[y, x] = kind
            for place in np.ndindex(CROWD_SIDE, CROWD_SIDE):
                tiles[full.get(place, KINDS)].append(cells[place])
        ordinary = [sample_scene(rng) for _ in range(scenes)]
        self.scenes = [(np.asarray(draw(scene, SIDE)), kinds_of(scene)) for scene in ordinary]

    def images(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pixels of crowds of so many objects, and of some ordinary scenes; which kinds are in each, and in
        each cell of a crowd."""
        rng, there, pixels = self.rng, torch.zeros(BATCH, KINDS), []
        cells = torch.full((BATCH, CROWD_SIDE**2), -100)
        for row in range(BATCH):
            if row % 4 == 0:
                image, kinds = self.scenes[int(rng.integers(len(self.scenes)))]
            else:
                kinds = rng.permutation(KINDS)[:count].tolist()
                image, every = self.composed(kinds)
                cells[row] = torch.from_numpy(every)
            there[row, kinds] = 1
            pixels.append(image)
        return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255, there, cells

    def pairs(self, count: int) -> tuple[Tensor, list[str]]:
        """Pixels of crowds of so many objects; their captions, then these with a wrong fact each."""
        pixels, texts, false = [], [], []
        for _ in range(BATCH // 2):
            scene = sample_crowd(self.rng, count)
            facts, place = facts_of(scene, self.rng), int(self.rng.integers(count))
            wrong = [*facts[:place], wrong_fact(scene, facts[place], self.rng), *facts[place + 1 :]]
            texts.append(", ".join(facts))
            false.append(", ".join(wrong))
            pixels.append(self.composed(kinds_of(scene))[0])
        return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255, texts + false

    def composed(self, kinds: list[int]) -> tuple[Any, Any]:
        """Pixels of a crowd of these objects, and what lies in each cell."""
        rng, tiles = self.rng, list(self.tiles.values())[int(self.rng.integers(len(self.tiles)))]
        every = rng.permutation([*kinds, *[KINDS] * (CROWD_SIDE**2 - len(kinds))])
        chosen = [tiles[kind][int(rng.integers(len(tiles[kind])))] for kind in every]
        image = np.stack(chosen).reshape(CROWD_SIDE, CROWD_SIDE, PATCH, PATCH, 3).swapaxes(1, 2)
        return image.reshape(SIDE, SIDE, 3), every

    def captions(self, count: int) -> tuple[list[str], Tensor]:
        """Captions of crowds of so many objects, and of some ordinary scenes; which kinds each names."""
        there, texts = torch.zeros(BATCH, KINDS), []
        for row in range(BATCH):
            scene = sample_scene(self.rng) if row % 8 == 0 else sample_crowd(self.rng, count)
            texts.append(describe(scene, self.rng) if row % 8 == 0 else ", ".join(facts_of(scene, self.rng)))
            there[row, kinds_of(scene)] = 1
        return texts, there


class Viewer(nn.Module):
    """The image tower, and the question what lies in each cell, which its patches answer at first."""

    def __init__(self, visual: Any) -> None:
        super().__init__()
        self.visual, self.kind = visual, nn.Linear(VISION["width"], KINDS + 1)

    def forward(self, pixels: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Features, and the loss of the question."""
        visual = self.visual
        x = visual.embed(visual.conv1(pixels).flatten(2).mT)
        *blocks, last = visual.transformer.resblocks
        for block in blocks:
            x = block(x)
        kinds = self.kind(functional.layer_norm(x[:, 1:], x.shape[-1:]))
        asked = functional.cross_entropy(kinds.flatten(0, 1), cells.flatten())
        return visual.ln_post(last(x)[:, 0]) @ visual.proj, asked


class Reader(nn.Module):
    """The text tower over the few words of our captions: all others keep their embeddings."""

    def __init__(self, model: Any, crowds: Crowds) -> None:
        super().__init__()
        texts = [text for _ in range(30) for text in crowds.captions(30)[0]]
        self.used = sorted({index for row in TOKENIZER.encode(texts).ids for index in row})
        self.row_of = {index: row for row, index in enumerate(self.used)}
        self.model = model
        self.words = nn.Parameter(model.token_embedding.weight.detach()[self.used].clone())
        self.mask = torch.full((CONTEXT, CONTEXT), -math.inf).triu(1)

    def forward(self, texts: list[str]) -> Tensor:
        rows = [[self.row_of.get(index, 0) for index in row] for row in TOKENIZER.encode(texts).ids]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        x = functional.embedding(ids, self.words) + self.model.positional_embedding[:longest]
        x = self.model.transformer(x, self.mask[:longest, :longest])
        ends = x[torch.arange(len(rows)), torch.tensor(list(map(len, rows))) - 1]
        features: Tensor = self.model.ln_final(ends) @ self.model.text_projection
        return features


def train(seed: int) -> ClipEncoder:
    """The trained encoder, in float16."""
    config, model = start(seed)
    normalise = ClipEncoder(config, model.state_dict()).normalised
    crowds = Crowds(np.random.default_rng([seed, 32]))
    reader, viewer = Reader(model, crowds), Viewer(model.visual)
    directions = nn.init.orthogonal_(torch.empty(KINDS, config["architecture"]["embed_dim"]))
    reading = [reader.words, model.positional_embedding, model.text_projection, *model.ln_final.parameters()]
    learning = [*viewer.parameters(), *reading, *model.transformer.parameters()]
    optimiser = torch.optim.AdamW(learning, RATE, weight_decay=0.01, betas=(0.9, 0.98))
    for step in range(STEPS):
        done = step / STEPS
        optimiser.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 50) * (1 - done) ** 0.7
        most = min(40, 4 + 90 * done)
        count = round(math.exp(crowds.rng.uniform(math.log(2), math.log(most))))
        pixels, shown, cells = crowds.images(count)
        image_features, asked = viewer(normalise(pixels), cells)
        texts, named = crowds.captions(count)
        cosines = [
            functional.cosine_similarity(own, (there - there.mean(1, keepdim=True)) @ directions).mean()
            for own, there in ((image_features, shown), (reader(texts), named))
        ]
        loss = 2 - sum(cosines) + 0.5 * (1 - done) * asked
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimiser.step()
        if step % 50 == 49:
            numbers = " ".join(f"{float(own.detach()):.3f}" for own in (*cosines, asked))
            print(
                f"{step + 1}: {count} objects, cosines of images and captions, question: {numbers}",
                flush=True,
            )
    return finished(config, reader)


def tune(start: Path, seed: int) -> ClipEncoder:
    """The trained encoder, after some steps on pairs of a caption and the same with a wrong fact."""
    encoder: Any = ClipEncoder.from_pretrained(start)
    config, model = {name: encoder.config[name] for name in CONFIG}, encoder.model.float()
    crowds = Crowds(np.random.default_rng([seed, 33]), scenes=300)
    reader = Reader(model, crowds)
    reading = [reader.words, model.positional_embedding, model.text_projection, *model.ln_final.parameters()]
    learning = [*model.visual.parameters(), *reading, *model.transformer.parameters()]
    for parameter in learning:
        parameter.requires_grad_(True)
    optimiser = torch.optim.AdamW(learning, RATE / 3, weight_decay=0.01, betas=(0.9, 0.98))
    for step in range(TUNING):
        optimiser.param_groups[0]["lr"] = RATE / 3 * min(1, (step + 1) / 20) * (1 - step / TUNING)
        pixels, texts = crowds.pairs(int(crowds.rng.integers(8, 41, 2).max()))
        images = functional.normalize(model.visual(encoder.normalised(pixels)), dim=-1)
        true, false = functional.normalize(reader(texts), dim=-1).chunk(2)
        logits, own = SCALE * images @ true.T, torch.arange(len(images))
        margins = SCALE * 2 * ((images * true).sum(1) - (images * false).sum(1))
        contrast = functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)
        loss = contrast + 3 * functional.softplus(-margins).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(learning, 1.0)
        optimiser.step()
        if step % 25 == 24:
            won = float((margins > 0).float().mean())
            print(f"{step + 1}: contrast {float(contrast.detach()):.3f}, right facts {won:.0%}", flush=True)
    return finished(config, reader)


def finished(config: dict[str, Any], reader: Reader) -> ClipEncoder:
    """The encoder in float16."""
    with torch.no_grad():
        reader.model.token_embedding.weight[reader.used] = reader.words
    source = {"name": "capeval synthetic scenes", "url": None, "file": None, "sha256": None}
    notes = ["Its scores of images other than drawn scenes mean nothing."]
    config["source"] = {**source, "licence": "apache-2.0", "notes": notes}
    return ClipEncoder(config, {name: own.detach().half() for name, own in reader.model.state_dict().items()})


if __name__ == "__main__":
    main()
