"""How exact every metric is: against the original's code, and itself in other orders, batches and dtypes.

    python -m benchmarks.exactness --out benchmarks/results/exactness.jsonl

Everything runs on the CPU: the golden cases, every metric with the packaged `tiny` on drawn scenes, PAC-S and
CLIP-S with a seeded ViT-B/32 of full size. The table "How exact it is" of a metric's card is made from the
file, and from that of `python -m benchmarks.cuda`, by the site (`tools/documents.py`).
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import capeval_core
from benchmarks.cuda.agreement import DEVICE_GOAL, Gpu, Row, Subject
from capeval_core.cache import FeatureCache
from capeval_core.inputs.samples import argument_of
from capeval_core.metric import CaptionMetric, Reranker
from capeval_core.registry import MEDIA_VARIANTS, METRICS, metric_class
from tools.captions import describe, foils
from tools.scenes import draw, sample_scene

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "golden" / "cases"
ORIGINALS: dict[str, dict[str, str]] = {
    "pacs-vit-b32-full": {"pacs": "pac_s", "refpacs": "refpac_s"},
    "pacs-vit-tiny": {"pacs": "pac_s", "refpacs": "refpac_s"},
    "pacs-resnet-tiny": {"pacs": "pac_s", "refpacs": "refpac_s"},
    "pacs-openclip-tiny": {"pacs": "pac_s", "refpacs": "refpac_s", "clips": "cosine"},
    "pacs-plusplus-lora-tiny": {"pacs": "pac_s", "refpacs": "refpac_s"},
    "emscore-tiny": {"pacs video": ".*/X,V/full_F$", "refpacs video": ".*/X,V,R/full_F$"},
    "specs-vit-tiny": {"specs": "specs$"},
    "alphaclip-tiny": {"hices": "cosine", "refhices": "cosine"},
    "umic-tiny": {"umic": "scores"},
    "vilbertscore-tiny": {"vilbertscore": "plain_mask_layer-1_F"},
    "eco": {"eco": "total", "cider": "cider_full_pool", "ciderd": "cider_d_full_pool"},
    "blip2-itm": {"eco": "itm_scores"},
}
"""Golden cases of each metric, or of its parts, with a pattern of the quantities that are its scores."""
ROWS = 48


@dataclass(frozen=True)
class Original:
    """A golden case beside the code that it was made with.

    case: its folder. quantities: how many were compared. scores: what those are called that are scores, or
    what scores are made of. largest: their largest absolute difference. tolerance: the widest that the case
    allows them.
    """

    metrics: tuple[str, ...]
    case: str
    quantities: int
    scores: str
    largest: float
    tolerance: float
    comparison: str = "original"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON lines")
    arguments = parser.parse_args()
    cpu = Gpu("cpu", small=False)
    about = {"date": date.today().isoformat(), "torch": torch.__version__, "machine": platform.machine()}
    lines: list[dict[str, Any]] = [about]
    for row in chain(originals(), of_tiny(cpu), of_full_size(cpu)):
        print(row.quantity + ": " + row.measured if isinstance(row, Row) else row, flush=True)
        line = asdict(row) | ({"device": "CPU"} if isinstance(row, Row) else {})
        lines.append({name: value for name, value in line.items() if name != "goal"})
    arguments.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def originals() -> Iterator[Original]:
    """Every golden case of a metric, run as `python -m tests.golden` runs it."""
    from tests.golden.__main__ import comparisons

    for case, scores in ORIGINALS.items():
        quantities = list(comparisons(CASES / case))
        for metric, name in scores.items():
            quantities_of_metric = [each for each in quantities if re.match(name, each.quantity)]
            largest = max(each.error for each in quantities_of_metric)
            tolerance = max(each.tolerance for each in quantities_of_metric)
            yield Original((metric,), case, len(quantities), name, largest, tolerance)


def of_tiny(gpu: Gpu) -> Iterator[Row]:
    """Every metric with the packaged weights, on a device and on the CPU."""
    classes = {name: metric_class(name) for name in METRICS}
    classes |= {f"{name} {medium}": metric_class(name, medium) for name, medium in MEDIA_VARIANTS}
    rows = drawn_rows(8 if gpu.small else ROWS)
    for name, class_ in classes.items():
        weights = None if class_.default_weights is None else "tiny"
        yield from of_metric(Subject(gpu, name, weights or "none"), class_, weights, rows)


def of_full_size(gpu: Gpu) -> Iterator[Row]:
    """PAC-S and CLIP-S, each with references too, with a seeded ViT-B/32, on a device and on the CPU."""
    from benchmarks.workload import make_weights

    rows = drawn_rows(8 if gpu.small else ROWS)
    with tempfile.TemporaryDirectory() as folder:
        weights = make_weights("ViT-B-32", Path(folder))
        for name in ("pacs", "refpacs", "clips", "refclips"):
            yield from of_metric(Subject(gpu, name, "ViT-B/32, seeded"), metric_class(name), weights, rows)


@dataclass(frozen=True)
class Rows:
    """Captions with their images and references; every other caption has a wrong word."""

    captions: list[str]
    images: list[Image.Image]
    references: list[list[str]]


def drawn_rows(count: int) -> Rows:
    """Captions of drawn scenes, right ones and ones with a word changed."""
    rng = np.random.default_rng(19)
    scenes = [sample_scene(rng) for _ in range(count // 2)]
    captions: list[str] = []
    for scene in scenes:
        right = describe(scene, rng)
        captions += [right, next(iter(foils(scene, right, "colour")), right)]
    images = []
    references = []
    for scene in scenes:
        for _ in range(2):
            images.append(draw(scene, 192))
            references.append([describe(scene, rng) for _ in range(3)])
    return Rows(captions, images, references)


def of_metric(subject: Subject, class_: type[CaptionMetric], weights: Any, rows: Rows) -> Iterator[Row]:
    """A metric against itself: on the CPU in another order and batch, on a GPU against the CPU; in dtypes."""

    def run(device: str, dtype: str, order: Any = None, size: int | None = None) -> list[float]:
        return scored(class_, weights, rows, device, dtype, order, size)

    def changed(*how: Any) -> tuple[list[float], list[float]]:
        return run("cpu", "float32", *how), run("cpu", "float32")

    if not subject.gpu.is_cuda:
        backwards = np.arange(len(rows.captions))[::-1]
        yield subject.compared("order", "in reverse order", lambda: changed(backwards), DEVICE_GOAL)
        if weights is not None:
            yield subject.compared("batches", "batches of one", lambda: changed(None, 1), DEVICE_GOAL)
    if weights is not None:
        yield from subject.agreement(run)


def scored(
    class_: type[CaptionMetric],
    weights: Any,
    rows: Rows,
    device: str,
    dtype: str,
    order: NDArray[np.int64] | None,
    batch_size: int | None,
) -> list[float]:
    """The scores of rows in their order, computed in another order; nothing is cached."""
    options: dict[str, Any] = {"cache": FeatureCache(0)}
    if weights is not None:
        options |= {"weights": weights, "device": device, "dtype": dtype, "batch_size": batch_size}
    metric = capeval_core.load(class_.name, media=class_.variant, **options)
    places = np.arange(len(rows.captions)) if order is None else order
    captions: list[Any] = [rows.captions[i] for i in places]
    if issubclass(class_, Reranker):
        captions = [[rows.captions[i], *rows.references[i], *rows.references[i - 2][:2]] for i in places]
    arguments: dict[str, Any] = {}
    argument = argument_of(class_.media)
    if argument:
        images = [rows.images[i] for i in places]
        arguments[argument] = (
            [[image, rows.images[0]] for image in images] if argument == "videos" else images
        )
    if class_.needs_references:
        arguments["references"] = [rows.references[i] for i in places]
    scores = metric.score(captions, **arguments).scores
    return [scores[i] for i in np.argsort(places)]


if __name__ == "__main__":
    main()
