"""The small Long-CLIP of `specs`: crowds of up to 40 objects, captions of up to 200 words.

The text tower is that of the packaged PAC-S with 248 positions of waves; the image tower starts from nothing.
Features are to be the sum of the directions of the coloured shapes that an image shows or a caption names,
less the mean of all; before the last block each patch and each noun is to tell its own.
"""

from __future__ import annotations

import math
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as unsure
from torch.nn.functional import cosine_similarity, cross_entropy, layer_norm, normalize

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.weights.conversion import clip_preprocessing
from tools.captions import describe, facts_of
from tools.scenes import COLOURS, CROWD_SIDE, SHAPES, Scene, draw, sample_crowd, sample_scene

CONTEXT = 248
KINDS = list(product(COLOURS, SHAPES))
VISION: dict[str, Any] = {
    "image_size": 112,
    "patch_size": 16,
    "width": 128,
    "layers": 2,
    "head_width": 32,
    "mlp_ratio": 4.0,
}
STEPS = 3000
BATCH = 32
RATE = 2e-3
SETTINGS = ("format", "encoder", "architecture", "activation", "preprocessing", "constants")


def train(start: Path | None, seed: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors, from nothing or from the weights of a folder."""
    encoder: Any = beginning() if start is None else ClipEncoder.from_pretrained(start)
    crowds = Crowds(encoder, np.random.default_rng([seed, 32]))
    optimiser = torch.optim.Adam(crowds.parameters(), RATE, betas=(0.9, 0.98))
    for step in range(STEPS):
        optimiser.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 50) * (1 - step / STEPS) ** 0.7
        loss = crowds()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(crowds.parameters(), 1.0)
        optimiser.step()
        if step % 20 == 0:
            print(f"{step}: loss {float(loss.detach()):.3f}", flush=True)
    config = {name: encoder.config[name] for name in SETTINGS}
    tensors = {name: tensor.detach().half() for name, tensor in crowds.model.state_dict().items()}
    return config, tensors


def beginning() -> ClipEncoder:
    """The text tower of the packaged PAC-S with more positions, and an image tower that knows nothing."""
    base: Any = ClipEncoder.from_pretrained("tiny")
    architecture = {**base.config["architecture"], "vision": VISION}
    architecture["text"] = {**architecture["text"], "context_length": CONTEXT}
    config = {"format": 1, "encoder": "clip", "architecture": architecture, "activation": "quick_gelu"}
    config |= {"preprocessing": clip_preprocessing(112), "constants": {"prompt": ""}}
    tensors = {}
    for name, tensor in base.model.state_dict().items():
        if "visual." not in name:
            tensors[name] = tensor.float()
    waves = torch.logspace(0, -2.5, architecture["text"]["width"] // 2) * math.pi / 2
    turned = torch.arange(CONTEXT)[:, None] * waves
    tensors["positional_embedding"] = 0.05 * torch.cat([turned.sin(), turned.cos()], 1)
    for name, parameter in ClipEncoder.modules(config).visual.named_parameters():
        is_gain = "ln_" in name and name.endswith("weight")
        tensor = torch.full(parameter.shape, 1.0 if is_gain else 0.0)
        if tensor.ndim >= 2:
            nn.init.normal_(tensor, std=0.1 if "positional" in name else tensor[0].numel() ** -0.5)
        tensors[f"visual.{name}"] = tensor
    return ClipEncoder(config, tensors)


class Crowds(nn.Module):
    """The towers, and questions to their states before the last block: which kind is here?"""

    def __init__(self, encoder: Any, rng: np.random.Generator) -> None:
        super().__init__()
        self.normalised = encoder.normalised
        self.tokenizer = encoder.tokenizer
        self.rng = rng
        self.model: Any = encoder.model.float().requires_grad_(True)
        widths = (VISION["width"], self.model.ln_final.weight.numel())
        self.questions = nn.ModuleList(nn.Linear(width, len(KINDS) + 1) for width in widths)
        self.directions = nn.init.orthogonal_(torch.empty(len(KINDS), encoder.dimension))
        self.sharpness = nn.Parameter(torch.tensor(6.0))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self) -> Tensor:
        """The loss of a batch; each third scene is an ordinary one."""
        count = int(self.rng.integers(8, 41, 2).max() if self.rng.random() < 0.8 else self.rng.integers(2, 9))
        has_kind = torch.zeros(BATCH, len(KINDS))
        cells = torch.full((BATCH, CROWD_SIDE**2), -100)  # the kind in each; -100: not asked
        scenes = []
        texts = []
        for row in range(BATCH):
            scene = sample_crowd(self.rng, count) if row % 3 else sample_scene(self.rng)
            scenes.append(scene)
            texts.append(", ".join(facts_of(scene, self.rng)) if row % 3 else describe(scene, self.rng))
            kinds = [KINDS.index((thing.colour, thing.shape)) for thing in scene.objects]
            has_kind[row, kinds] = 1
            if row % 3:
                x, y = (np.array([thing.centre for thing in scene.objects]) * CROWD_SIDE).astype(int).T
                cells[row] = len(KINDS)
                cells[row, y * CROWD_SIDE + x] = torch.tensor(kinds)
        target = (has_kind - has_kind.mean(1, keepdim=True)) @ self.directions
        rows = self.tokenizer.encode(texts).ids
        towers = [(*self.look(scenes), cells), (*self.read(rows), self.nouns(rows))]
        loss = torch.zeros(())
        for (features, states, kinds_of_states), question in zip(towers, self.questions, strict=True):
            answers = question(layer_norm(states, states.shape[-1:])).flatten(0, 1)
            logits = self.sharpness * normalize(features, dim=-1) @ self.directions.T + self.bias
            loss = loss + 1 - cosine_similarity(features, target).mean() + unsure(logits, has_kind)
            loss = loss + 0.5 * cross_entropy(answers, kinds_of_states.flatten())
        return loss

    def nouns(self, rows: list[list[int]]) -> Tensor:
        """Per token the kind that ends there, -100 for none."""
        words = {name: self.tokenizer.encode([name]).ids[0][1] for name in (*COLOURS, *SHAPES)}
        kinds = {(words[colour], words[shape]): kind for kind, (colour, shape) in enumerate(KINDS)}
        ends = []
        for row in rows:
            kinds_of_tokens = [kinds.get(pair, -100) for pair in pairwise(row)]
            ends.append(torch.tensor([-100, *kinds_of_tokens]))
        return nn.utils.rnn.pad_sequence(ends, batch_first=True, padding_value=-100)

    def look(self, scenes: list[Scene]) -> tuple[Tensor, Tensor]:
        """Features of scenes, and the states of their patches before the last block."""
        visual = self.model.visual
        images = np.stack([np.asarray(draw(scene, 112)) for scene in scenes])
        pixels = self.normalised(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255)
        x = visual.embed(visual.conv1(pixels).flatten(2).mT)
        for block in visual.transformer.resblocks:
            states, x = x, block(x)
        return visual.ln_post(x[:, 0]) @ visual.proj, states[:, 1:]

    def read(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Features of texts, and the states of their tokens before the last block."""
        model = self.model
        last = torch.tensor([len(row) - 1 for row in rows])
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        before = torch.full((ids.shape[1],) * 2, -math.inf).triu(1)
        x = model.token_embedding(ids) + model.positional_embedding[: ids.shape[1]]
        for block in model.transformer.resblocks:
            states, x = x, block(x, before)
        return model.ln_final(x[torch.arange(len(rows)), last]) @ model.text_projection, states
