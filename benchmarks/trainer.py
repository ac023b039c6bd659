"""What an evaluation costs in a training once its images and references are known.

    python -m benchmarks.trainer [--fraction 0.1] [--evaluations 4]

A Seq2SeqTrainer evaluates a captioner several times and trains it in between, so that its captions change.
They are scored with PAC-S and RefPAC-S by seeded full-size ViT-B/32 weights, with 5 references each. Printed
is the time of later evaluations over that of the first: in the metrics alone, and of the whole
`trainer.evaluate()`, in which the captioner writes its captions. The goal is at most a third.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from benchmarks.cuda.measuring import Gpu, Row
from benchmarks.extras import needed
from benchmarks.workload import Workload, make_weights, make_workload
from capeval_core.integrations import CaptionMetrics
from tests.integrations.captioner import SIDE, captioner, make_trainer, word_tokenizer


class Timed:
    """`compute_metrics` that notes how long each evaluation takes."""

    def __init__(self, metrics: CaptionMetrics) -> None:
        self.metrics = metrics
        self.seconds: list[float] = []
        self.captions: list[list[str]] = []

    def __call__(self, evaluation: Any) -> dict[str, float]:
        start = time.perf_counter()
        values = self.metrics(evaluation)
        self.seconds.append(time.perf_counter() - start)
        self.captions.append(self.metrics.captions)
        return values


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The images of the workload, small enough for a small captioner, with a reference as labels."""

    def __init__(self, work: Workload) -> None:
        self.tokenizer = word_tokenizer([text for texts in work.references for text in texts])
        pairs = zip(work.images, work.references, strict=True)
        self.rows = [self._row(path, texts[0]) for path, texts in pairs]

    def _row(self, path: Path, text: str) -> dict[str, torch.Tensor]:
        pixels = np.asarray(Image.open(path).resize((SIDE, SIDE)), dtype=np.float32) / 127.5 - 1
        ids = [*self.tokenizer(text).input_ids, self.tokenizer.eos_token_id]
        labels = torch.tensor(ids + [-100] * (32 - len(ids)))
        return {"pixel_values": torch.tensor(pixels).permute(2, 0, 1), "labels": labels}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return self.rows[row]


@dataclass(frozen=True)
class Evaluations:
    """Seconds of the evaluations of one training. metrics: in the metrics alone. whole: `trainer.evaluate()`.

    new: captions of the last evaluation that the one before had not.
    """

    metrics: list[float]
    whole: list[float]
    new: int


def evaluate_often(work: Workload, folder: Path, weights: Any, turns: int, **arguments: Any) -> Evaluations:
    """Evaluate a captioner `turns` times, with some steps of training in between.

    arguments: of `make_trainer`.
    """
    rows = Rows(work)
    metrics = Timed(
        CaptionMetrics(rows.tokenizer, images=work.images, references=work.references, weights=weights)
    )
    model = captioner(rows.tokenizer)
    # Drawn by lot, so that captions are as different as those of a captioner that has learnt something.
    model.generation_config.update(max_length=14, min_length=10, do_sample=True)
    chosen = {"per_device_eval_batch_size": 50, "max_steps": 10, "eval_strategy": "no", **arguments}
    trainer = make_trainer(rows, folder / "checkpoints", metrics, model, **chosen)
    trainer.remove_callback(transformers.PrinterCallback)
    whole = []
    for turn in range(turns):
        if turn:
            trainer.train()
        start = time.perf_counter()
        trainer.evaluate()
        whole.append(time.perf_counter() - start)
    new = len(set(metrics.captions[-1]) - set(metrics.captions[-2]))
    return Evaluations(metrics.seconds, whole, new)


def measure(gpu: Gpu) -> Iterator[Row]:
    """Later evaluations over the first one, of a captioner in bfloat16 on the same device."""
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        work = make_workload(folder, 0.01 if gpu.small else 0.2)
        weights = "tiny" if gpu.small else make_weights("ViT-B-32", folder)
        found = evaluate_often(work, folder, weights, 3, use_cpu=not gpu.is_cuda, bf16=gpu.is_cuda)
    what = f"Trainer, PAC-S and RefPAC-S of {len(work.images)} images"
    for name, seconds in (("in the metrics", found.metrics), ("trainer.evaluate()", found.whole)):
        first, later = seconds[0], statistics.median(seconds[1:])
        yield Row(f"{what}, {name}: first evaluation, later ones", f"{first:.2f} s, {later:.2f} s")
    ratio = statistics.median(found.metrics[1:]) / found.metrics[0]
    yield Row.at_most(f"{what}: later over first in the metrics", ratio, 1 / 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fraction", type=float, default=0.1, help="of 1,000 images with 5 references each")
    parser.add_argument("--evaluations", type=int, default=4)
    arguments = parser.parse_args()
    with needed("trainer"):
        import accelerate  # noqa: F401 (the Trainer imports it)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        work = make_workload(folder, arguments.fraction)
        weights, pinned = make_weights("ViT-B-32", folder), torch.cuda.is_available()
        found = evaluate_often(
            work, folder, weights, arguments.evaluations, use_cpu=False, dataloader_pin_memory=pinned
        )
    print(
        f"{len(work.images)} images, {len(work.references[0])} references each, "
        f"{found.new} of the last evaluation's captions are new"
    )
    for name, seconds in (("metrics alone", found.metrics), ("trainer.evaluate()", found.whole)):
        ratios = [later / seconds[0] for later in seconds[1:]]
        print(
            f"{name}: first {seconds[0]:.2f} s, later {statistics.median(seconds[1:]):.2f} s, "
            f"later / first = {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
