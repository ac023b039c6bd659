"""Plain questions that `tiny` is asked while it learns: what lies in this patch? is there a red circle?"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from capeval_core.synthetic.scenes import COLOURS, MOST_ALIKE, SHAPES, SIZES
from capeval_core.training.tiny_model import ARCHITECTURE, CELLS

_TRAITS = len(SHAPES) + len(SIZES) + MOST_ALIKE + 4
"""What a patch tells of its object, each with the colour: shape, size, how many are alike, four sides."""


class Questions(nn.Module):
    """Heads for questions to both towers.

    Before its last block each patch tells whether an object is centred in it, and which shape, size,
    number and side of the image go with which colour there; this is what the class token then gathers. The
    class token tells which facts are true of the whole.
    """

    def __init__(self, facts: int) -> None:
        super().__init__()
        width = ARCHITECTURE["vision"]["width"]
        self._split = (1, len(SHAPES), len(COLOURS), len(SIZES), _TRAITS * len(COLOURS))
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
