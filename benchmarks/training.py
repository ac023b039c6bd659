"""PAC-S's training: an epoch over cached outputs of the frozen towers against running them in each step.

    python -m benchmarks.training [--model ViT-B-32] [--images 64] [--batch 32] [--epochs 2]

Seeded full-size weights tune their projections on drawn JPEGs with captions and generated positives, as
`capeval train pacs` does, twice from the same start and over the same batches: once with the outputs that
`TowerOutputs` keeps on the disk, once with towers that run in every step, on pixels prepared beforehand, so
that neither side decodes images. Printed are the time of an epoch of both, their ratio, the largest
difference between their losses, and what computing the outputs once has cost.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.workload import make_weights, make_workload
from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.inputs.visual import InputImage
from capeval_core.training.pacs import PacsTraining
from capeval_core.training.pacs_objective import PacsObjective
from capeval_core.training.pairs import Lists, Numbers, PairLists, PairOrder
from capeval_core.training.projections import Projections
from capeval_core.training.towers import Inputs, TowerEncoder, TowerOutputs
from capeval_core.training.trainer import open_accelerator
from capeval_core.weights.folder import open_weights

TOLERANCE = 1e-5


class RunTowers:
    """Outputs of frozen towers that run anew for every batch."""

    def __init__(self, encoder: TowerEncoder, images: list[InputImage], texts: list[str]) -> None:
        self.encoder, self.all_texts = encoder, texts
        self.pixels = [encoder.preprocessing.pixels(image.load()) for image in images]

    def images(self, numbers: Numbers) -> torch.Tensor:
        return torch.from_numpy(self.encoder._image_forward([self.pixels[number] for number in numbers]))

    def texts(self, numbers: Numbers) -> torch.Tensor:
        texts = [self.all_texts[number] for number in numbers]
        return torch.from_numpy(self.encoder.encode_texts(texts, cache=FeatureCache(0)).features)


def epochs(objective: PacsObjective, count: int) -> tuple[float, list[float]]:
    """Seconds of an epoch, and the losses of all steps."""
    optimiser = torch.optim.AdamW(objective.model.parameters(), lr=objective.training.learning_rate)
    losses = []
    started = time.perf_counter()
    for number in range(count * objective.order.batches):
        optimiser.zero_grad()
        loss, _ = objective.losses("contrast", objective.batch("contrast", number))
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        objective.end_step()
        losses.append(loss.item())
    return (time.perf_counter() - started) / count, losses


def main() -> None:
    parser = argparse.ArgumentParser(description="An epoch with and without cached outputs of the towers.")
    parser.add_argument("--model", default="ViT-B-32", choices=["ViT-B-32", "ViT-L-14"])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    count = options.images
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        work = make_workload(folder, 2 * count / 1000)  # the second half stands for generated images
        start = open_weights(make_weights(options.model, folder), metric="pacs", tiny="pacs")
        images = [InputImage.of(path, path.name) for path in work.images[: 2 * count]]
        texts = [group[k] for k in range(2) for group in work.references[:count]]
        one_each = Lists.of([[index] for index in range(count)])
        further = Lists.of([[count + index] for index in range(count)])
        lists = PairLists(one_each, further, further, texts, 0)
        training = PacsTraining(start=start.path, batch_size=options.batch, device="cpu")
        tensors, config = start.tensors(), ClipEncoder.read_config(start)
        encoder = TowerEncoder.of(start, "cpu")
        order = PairOrder(lists, np.arange(count), options.batch, 1, training.seed)
        accelerator = open_accelerator(training, folder)

        def objective(inputs: Inputs) -> PacsObjective:
            model: Any = Projections(config, tensors, None)
            return PacsObjective(training, model, tensors, inputs, order, accelerator)

        begun = time.perf_counter()
        outputs = TowerOutputs(encoder, folder / "towers", images, texts)
        once = time.perf_counter() - begun
        cached, losses = epochs(objective(outputs), options.epochs)
        running, others = epochs(objective(RunTowers(encoder, images, texts)), options.epochs)
    difference = max(abs(one - other) for one, other in zip(losses, others, strict=True))
    if difference > TOLERANCE:
        raise SystemExit(f"losses differ by {difference:.1e}, more than {TOLERANCE:.0e}")
    command = f"--model {options.model} --images {count} --batch {options.batch} --epochs {options.epochs}"
    print(f"python -m benchmarks.training {command}")
    print(f"{'cached outputs':32s} {cached:10.3f} s per epoch")
    print(f"{'towers in each step':32s} {running:10.3f} s per epoch, {running / cached:,.0f} times as long")
    print(f"{'computing the outputs once':32s} {once:10.3f} s")
    print(f"{'largest difference of losses':32s} {difference:10.1e}, of {len(losses)} steps")


if __name__ == "__main__":
    main()
