"""The small Long-CLIP of `specs`: crowds of up to 40 objects, captions of up to 200 words.

The text tower is that of the packaged PAC-S, of whose 77 positions 20 are kept and the others stretched by
four, as in Long-CLIP; the image tower starts from nothing. Features are to be the sum of the directions of
the coloured shapes that an image shows or a caption names, less the mean of all. A second run tunes both: an
image is to be nearer to its caption than to the same with a wrong fact.
"""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, layer_norm, normalize, softplus

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.weights.conversion import clip_preprocessing
from tools.captions import describe, facts_of, wrong_fact
from tools.scenes import COLOURS, CROWD_SIDE, SHAPES, Scene, draw, sample_crowd, sample_scene

CONTEXT, KEPT, KINDS = 248, 20, list(product(COLOURS, SHAPES))
VISION = {"image_size": 112, "patch_size": 16, "width": 128, "layers": 2, "head_width": 32, "mlp_ratio": 4.0}
STEPS, TUNING, BATCH, RATE, SCALE = 1600, 120, 32, 2e-3, 20.0
SETTINGS = ("format", "encoder", "architecture", "activation", "preprocessing", "constants")


def train(start: Path | None, seed: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors after a first run, or after a second one that starts from those weights."""
    encoder: Any = beginning() if start is None else ClipEncoder.from_pretrained(start)
    crowds = Crowds(encoder, np.random.default_rng([seed, 32]))
    steps, rate = (STEPS, RATE) if start is None else (TUNING, RATE / 3)
    optimiser = torch.optim.Adam(crowds.parameters(), rate, betas=(0.9, 0.98))
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = rate * min(1, (step + 1) / 50) * (1 - step / steps) ** 0.7
        loss = crowds.naming(step / steps) if start is None else crowds.telling()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(crowds.parameters(), 1.0)
        optimiser.step()
        if step % 20 == 0:
            print(f"{step}: loss {float(loss.detach()):.3f}", flush=True)
    config = {name: encoder.config[name] for name in SETTINGS}
    return config, {name: own.detach().half() for name, own in crowds.model.state_dict().items()}


def beginning() -> ClipEncoder:
    base: Any = ClipEncoder.from_pretrained("tiny")
    architecture = {**base.config["architecture"], "vision": VISION}
    architecture["text"] = {**architecture["text"], "context_length": CONTEXT}
    config = {"format": 1, "encoder": "clip", "architecture": architecture, "activation": "quick_gelu"}
    config |= {"preprocessing": clip_preprocessing(112), "constants": {"prompt": ""}}
    tensors = {name: own.float() for name, own in base.model.state_dict().items() if "visual." not in name}
    kept, rest = tensors["positional_embedding"].split([KEPT, 77 - KEPT])
    places = torch.arange(4 * len(rest)) / 4
    before = places.long().clamp(max=len(rest) - 2)
    between = torch.lerp(rest[before], rest[before + 1], (places - before)[:, None])
    tensors["positional_embedding"] = torch.cat([kept, between])
    for name, parameter in ClipEncoder.modules(config).visual.named_parameters():
        own = torch.full(parameter.shape, float("ln_" in name and name.endswith("weight")))
        if own.ndim >= 2:
            nn.init.normal_(own, std=0.1 if "positional" in name else own[0].numel() ** -0.5)
        tensors[f"visual.{name}"] = own
    return ClipEncoder(config, tensors)


class Crowds(nn.Module):
    """The towers, and the question what lies in each cell of a crowd, which patches answer at first."""

    def __init__(self, encoder: Any, rng: np.random.Generator) -> None:
        super().__init__()
        self.normalised, self.tokenizer, self.rng = encoder.normalised, encoder.tokenizer, rng
        self.model: Any = encoder.model.float().requires_grad_(True)
        self.question = nn.Linear(128, len(KINDS) + 1)
        self.directions = nn.init.orthogonal_(torch.empty(len(KINDS), encoder.dimension))

    def naming(self, done: float) -> Tensor:
        """The loss of the first run, with more and more objects; each fourth scene is an ordinary one."""
        count = round(math.exp(self.rng.uniform(math.log(2), math.log(min(40, 4 + 90 * done)))))
        there, cells = torch.zeros(BATCH, len(KINDS)), torch.full((BATCH, CROWD_SIDE**2), -100)
        scenes, texts = [], []
        for row in range(BATCH):
            crowded = row % 4 > 0
            scene = sample_crowd(self.rng, count) if crowded else sample_scene(self.rng)
            scenes.append(scene)
            texts.append(", ".join(facts_of(scene, self.rng)) if crowded else describe(scene, self.rng))
            kinds = [KINDS.index((thing.colour, thing.shape)) for thing in scene.objects]
            there[row, kinds] = 1
            if crowded:
                x, y = (np.array([thing.centre for thing in scene.objects]) * CROWD_SIDE).astype(int).T
                cells[row] = len(KINDS)
                cells[row, y * CROWD_SIDE + x] = torch.tensor(kinds)
        visual = self.model.visual
        *blocks, last = visual.transformer.resblocks
        x = nn.Sequential(*blocks)(visual.embed(visual.conv1(self.pixels(scenes)).flatten(2).mT))
        answers = self.question(layer_norm(x[:, 1:], x.shape[-1:])).flatten(0, 1)
        target = (there - there.mean(1, keepdim=True)) @ self.directions
        features = visual.ln_post(last(x)[:, 0]) @ visual.proj, self.read(texts)
        off: Tensor = sum(1 - cosine_similarity(own, target).mean() for own in features)  # type: ignore[assignment]
        return off + 0.5 * (1 - done) * cross_entropy(answers, cells.flatten())

    def telling(self) -> Tensor:
        """The loss of the second run: each image beside its caption, those of others, and a wrong fact."""
        count = int(self.rng.integers(8, 41, 2).max())
        scenes, true, false = [sample_crowd(self.rng, count) for _ in range(BATCH // 2)], [], []
        for scene in scenes:
            facts, place = facts_of(scene, self.rng), int(self.rng.integers(count))
            true.append(", ".join(facts))
            facts[place] = wrong_fact(scene, facts[place], self.rng)
            false.append(", ".join(facts))
        images = normalize(self.model.visual(self.pixels(scenes)), dim=-1)
        right, wrong = normalize(self.read(true + false), dim=-1).chunk(2)
        logits, own = SCALE * images @ right.T, torch.arange(len(images))
        contrast = cross_entropy(logits, own) + cross_entropy(logits.T, own)
        return contrast + 3 * softplus(-2 * SCALE * (images * (right - wrong)).sum(1)).mean()

    def pixels(self, scenes: list[Scene]) -> Any:
        drawn = np.stack([np.asarray(draw(scene, 112)) for scene in scenes])
        return self.normalised(torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 255)

    def read(self, texts: list[str]) -> Any:
        rows = [torch.tensor(ids) for ids in self.tokenizer.encode(texts).ids]
        ids, model = nn.utils.rnn.pad_sequence(rows, batch_first=True), self.model
        x = model.token_embedding(ids) + model.positional_embedding[: ids.shape[1]]
        x = model.transformer(x, torch.full((ids.shape[1],) * 2, -math.inf).triu(1))
        ends = x[torch.arange(len(rows)), torch.tensor(list(map(len, rows))) - 1]
        return model.ln_final(ends) @ model.text_projection
