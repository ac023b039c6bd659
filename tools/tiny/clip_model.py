"""The model `tiny`: its sizes, its untrained and its shipped weights, its towers as trainings run them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from open_clip.model import CLIP
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.encoders.tokenizers import ClipTokenizer
from capeval_core.weights.catalogue import CLIP_MEAN, CLIP_STD, PROMPT
from capeval_core.weights.folder import TINY, WeightsFolder, open_weights
from tools.tiny.lessons import Ints

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
PREPROCESSING: dict[str, Any] = {
    "image_size": SIDE,
    "mean": list(CLIP_MEAN),
    "std": list(CLIP_STD),
    "interpolation": "bicubic",
}


def empty_model() -> CLIP:
    """open_clip's CLIP of these sizes, its weights still random."""
    return CLIP(ARCHITECTURE["embed_dim"], ARCHITECTURE["vision"], ARCHITECTURE["text"], quick_gelu=True)


def shipped() -> WeightsFolder:
    """The trained weights that ship with the package."""
    return open_weights(TINY / "pacs", metric="pacs", tiny="pacs")


def build(seed: int) -> CLIP:
    """The untrained model: open_clip's CLIP with patch positions that begin as sines and cosines."""
    torch.manual_seed(seed)
    model = empty_model()
    with torch.no_grad():
        model.visual.positional_embedding[1:] = _waves(CELLS, ARCHITECTURE["vision"]["width"])
    return model


def _waves(cells: int, width: int) -> Tensor:
    """(cells * cells, width): sines and cosines of row and column, a quarter of the width each."""
    cell = torch.arange(cells, dtype=torch.float32)
    pace = math.pi / cells * 2 ** (torch.arange(width // 4) / (width // 4) * 3)
    angle = (cell[:, None] + 0.5) * pace
    line = torch.cat([angle.sin(), angle.cos()], -1)
    return torch.cat([line[:, None].expand(-1, cells, -1), line[None].expand(cells, -1, -1)], -1).flatten(
        0, 1
    )


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
        return list(self._tokenizer.encode([text]).ids[0][1:-1])


class UsedWords:
    """The few words of some texts. Only their embeddings are trained: all others keep what they have.

    Ids of the texts are replaced, in place, by rows of `embedding`.
    """

    def __init__(self, model: CLIP, *texts: Ints) -> None:
        self._ids = np.unique(np.concatenate([ids.reshape(-1) for ids in texts]))
        for ids in texts:
            ids[:] = np.searchsorted(self._ids, ids)
        every = model.token_embedding.weight.requires_grad_(False)
        self.embedding = nn.Parameter(every[self._ids].clone())

    def put_back(self, model: CLIP) -> None:
        """Give the model what was learnt."""
        with torch.no_grad():
            model.token_embedding.weight[self._ids] = self.embedding


def image_tokens(model: CLIP, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """The patch tokens before the last block, (B, patches, width); the class token after the last norm."""
    visual = model.visual
    tokens = visual._embeds(pixels)
    *blocks, last = visual.transformer.resblocks
    for block in blocks:
        tokens = block(tokens)
    return tokens[:, 1:], visual.ln_post(last(tokens)[:, 0])


def text_tokens(model: CLIP, embedding: Tensor, ids: Ints, lengths: Ints, parts: int = 4) -> Tensor:
    """The end tokens of B texts after the last norm, (B, width).

    ids (B, longest) are rows of `embedding`; lengths (B,) may be 0 where there is no text, and what comes out
    there means nothing. Padding behind the end token has no effect, because the attention is causal, so the
    sequences are only as long as the longest: sorted by length and run in `parts`, they need little padding.
    """
    tokens, sizes = torch.from_numpy(ids), torch.from_numpy(np.maximum(lengths, 1))
    order = sizes.argsort(stable=True)
    ends = []
    for rows in order.chunk(parts):
        longest = int(sizes[rows[-1]])
        hidden = (
            functional.embedding(tokens[rows, :longest], embedding) + model.positional_embedding[:longest]
        )
        hidden = model.transformer(hidden, attn_mask=model.attn_mask[:longest, :longest])
        ends.append(model.ln_final(hidden[torch.arange(len(rows)), sizes[rows] - 1]))
    return torch.cat(ends)[order.argsort()]


def normalised(pixels: npt.NDArray[np.uint8]) -> Tensor:
    """(B, side, side, 3) bytes to (B, 3, side, side) as CLIP sees them."""
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    return (batch - torch.tensor(CLIP_MEAN).view(3, 1, 1)) / torch.tensor(CLIP_STD).view(3, 1, 1)
