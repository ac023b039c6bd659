"""Greedy matching beside the padded way of BERTScore and EMScore: 64 pairs at once, bmm and masks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from capeval_core.matching.greedy import greedy_match

BATCH = 64


@dataclass(frozen=True)
class Shape:
    """Lengths of x and y sets, drawn evenly; `partners` pairs share an x set, and `readers` a y set."""

    x: tuple[int, int]
    y: tuple[int, int]
    partners: int = 1
    readers: int = 1


SHAPES = {
    "5-100": Shape((5, 100), (5, 100)),
    "3-20": Shape((3, 20), (3, 20)),
    "words x many frames": Shape((30, 30), (300, 300)),
    "words x frames": Shape((5, 25), (3, 40), partners=1, readers=10),  # captions of one video
    "tokens x tokens": Shape((7, 30), (7, 30), partners=5),  # a caption and its references
}


@dataclass(frozen=True)
class Workload:
    x: Tensor
    y: Tensor
    x_lengths: Tensor
    y_lengths: Tensor
    x_of_pair: Tensor
    y_of_pair: Tensor

    @classmethod
    def of(cls, shape: Shape, pairs: int, width: int, device: str) -> Workload:
        rng = np.random.default_rng(0)
        number = np.arange(pairs)
        group = shape.partners * shape.readers
        x_of_pair = number // group * shape.readers + number % group // shape.partners
        y_of_pair = number // group * shape.partners + number % shape.partners
        sizes = []
        for (low, high), set_of_pair in ((shape.x, x_of_pair), (shape.y, y_of_pair)):
            sizes.append(rng.integers(low, high + 1, int(set_of_pair.max()) + 1))
        # Not around 0: where all cosines are positive, padding does not change the maxima.
        rows = (torch.randn(int(lengths.sum()), width, device=device).add_(1) for lengths in sizes)
        return cls(*rows, *(torch.from_numpy(values) for values in (*sizes, x_of_pair, y_of_pair)))

    def sets(self) -> tuple[list[Tensor], list[Tensor]]:
        """The rows of both sides of each pair, none of them copied."""
        x = self.x.split(self.x_lengths.tolist())
        y = self.y.split(self.y_lengths.tolist())
        return [x[i] for i in self.x_of_pair.tolist()], [y[j] for j in self.y_of_pair.tolist()]


def padded(work: Workload) -> Tensor:
    """(pairs, 3) as the scripts do it; padding is all ones, since an all-zero row would give NaN there."""
    values = []
    x, y = work.sets()
    for start in range(0, len(x), BATCH):
        sides = []
        masks = []
        for rows in (x[start : start + BATCH], y[start : start + BATCH]):
            side = pad_sequence(rows, batch_first=True, padding_value=1.0)
            sides.append(side.div_(torch.norm(side, dim=-1).unsqueeze(-1)))
            lengths = torch.tensor([len(row) for row in rows], device=side.device)
            masks.append((torch.arange(side.shape[1], device=side.device) < lengths[:, None]).to(side.dtype))
        similarity = torch.bmm(sides[0], sides[1].transpose(1, 2))
        similarity = similarity * torch.bmm(masks[0].unsqueeze(2), masks[1].unsqueeze(1))
        weights = [mask / mask.sum(dim=1, keepdim=True) for mask in masks]
        precision = (similarity.max(dim=2)[0] * weights[0]).sum(dim=1)
        recall = (similarity.max(dim=1)[0] * weights[1]).sum(dim=1)
        values.append(torch.stack([precision, recall, 2 * precision * recall / (precision + recall)], dim=1))
    return torch.cat(values)


def case(device: str, name: str) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Precision, recall and F of 1,000 pairs of 512 numbers a row."""
    work = Workload.of(SHAPES[name], 1000, 512, device)

    def ours() -> Tensor:
        lengths = work.x_lengths, work.y_lengths
        matches = greedy_match(work.x, work.y, *lengths, x_of_pair=work.x_of_pair, y_of_pair=work.y_of_pair)
        return torch.stack([matches.precision, matches.recall, matches.f], dim=1)

    return ours, lambda: padded(work)
