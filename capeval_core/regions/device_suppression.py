"""Non-maximum suppression on a GPU, by the rule that NumPy follows on the host.

torchvision's kernel for CUDA compares with the bound in float32 and joins products and sums, so it may keep
other boxes than its kernel for the CPU where an overlap is about the bound. Here every step is rounded as
NumPy rounds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from capeval_core.models.copies import on_device
from capeval_core.regions.suppression import Suppression

_ROWS = 1 << 22
"""Pairs of boxes that are compared at a time."""
_STEPS = 8
"""Steps between two looks at whether they still change anything, for which the host waits."""


def best_on_device(
    rule: Suppression, groups: Sequence[Tensor], most: int, usable: Tensor | None = None
) -> list[Tensor]:
    """Of each group, indices of at most `most` boxes (n, 4) that survive: `rule.best` of each.

    Boxes come best first. A box survives if no better one that survives suppresses it. From all boxes on,
    each step is right for one more box of every chain in which each suppresses the next, so that a few steps
    do for thousands, and the host mostly waits once for all groups.

    Args:
        usable: boolean, of all boxes of all groups; the others neither survive nor suppress. None: all are.

    >>> boxes = torch.tensor([[0, 0, 9, 9], [0, 0, 9, 8], [20.0, 0, 29, 9]])
    >>> [best.tolist() for best in best_on_device(Suppression(0.7), [boxes, boxes[1:]], 10)]
    [[0, 2], [0, 1]]
    """
    lengths = [len(boxes) for boxes in groups]
    suppresses = [_pairs(rule, boxes).to(torch.float16) for boxes in groups]
    every = groups[0].new_ones(sum(lengths), dtype=torch.float16) if usable is None else usable.half()
    alive = torch.split(every, lengths)
    survives = alive
    while True:
        for _ in range(_STEPS):
            before = survives
            survives = tuple(
                ((state @ pairs) == 0).to(torch.float16) * own
                for state, pairs, own in zip(survives, suppresses, alive, strict=True)
            )
        last = torch.cat(survives)
        moved, kept = torch.stack([torch.cat(before) != last, last == 1]).cpu()
        if not moved.any():
            best = [own.nonzero()[:most, 0] for own in torch.split(kept, lengths)]
            there = on_device(torch.cat(best), every.device)
            return list(torch.split(there, [len(own) for own in best]))


def _pairs(rule: Suppression, boxes: Tensor) -> Tensor:
    """(n, n) whether a box suppresses a worse one, which stands behind it."""
    step = max(1, _ROWS // max(1, len(boxes)))
    parts = [_enough(rule, part[:, None], boxes) for part in torch.split(boxes, step)]
    return torch.cat(parts).triu_(1)


def _enough(rule: Suppression, boxes: Tensor, others: Tensor) -> Tensor:
    """`Suppression.pairs`, step for step."""
    (x0, y0, x1, y1), (u0, v0, u1, v1) = boxes.unbind(-1), others.unbind(-1)
    one = rule.pixel
    width = (torch.minimum(x1, u1) - torch.maximum(x0, u0) + one).clamp_(min=0)
    height = (torch.minimum(y1, v1) - torch.maximum(y0, v0) + one).clamp_(min=0)
    shared = width * height
    areas = (x1 - x0 + one) * (y1 - y0 + one), (u1 - u0 + one) * (v1 - v0 + one)
    ratio = shared / (areas[0] + areas[1] - shared)
    bound = float(rule.bound)
    return ratio >= bound if rule.at_bound else ratio > bound
