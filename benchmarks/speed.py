"""How much faster than the plain way: each row of a table, ours and the plain way in turn.

    OMP_NUM_THREADS=1 python -m benchmarks.speed [NAME ...] [--device cuda] [--out FILE]

The file is by default `benchmarks/results/speed.jsonl`. Weights are seeded and of full size, float32. The
least of three runs of each way counts; both must agree. Rows are added to the file with machine, versions
and commit, in place of one of the same name, device and threads.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cache
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

import capeval_core
from benchmarks import blip2, hice, matching, umic, vilbertscore
from benchmarks.workload import Workload, make_weights, make_workload
from capeval_core.cache import FeatureCache
from tools.exactness import RESULTS

Way = Callable[[], Any]
Ways = tuple[Way, Way]
FILE = RESULTS / "speed.jsonl"
PROMPT = "A photo depicts "


@dataclass(frozen=True)
class Row:
    """What is compared: `make(folder, device)` gives our way and the plain one; `largest` may they differ.

    captions: so many are scored by one run, where a run is all that a metric computes.
    """

    about: str
    make: Callable[[Path, str], Ways]
    largest: float = 1e-5
    runs: int = 3
    captions: int | None = None


def prompted(texts: Sequence[str]) -> list[str]:
    return [PROMPT + text for text in texts]


class OpenClip:
    """open_clip's own model, tokenizer and transform with the weights of a folder."""

    def __init__(self, folder: Path, device: str) -> None:
        import open_clip
        from safetensors.torch import load_file

        config = json.loads((folder / "config.json").read_text())
        sizes = config["architecture"]
        scaling = config["preprocessing"]
        self.model = open_clip.model.CLIP(sizes["embed_dim"], sizes["vision"], sizes["text"], quick_gelu=True)
        self.model.load_state_dict(load_file(folder / "model.safetensors"))
        self.model.eval().to(device)
        self.transform = open_clip.image_transform(224, False, scaling["mean"], scaling["std"])
        self.tokenize = open_clip.tokenizer.SimpleTokenizer()
        self.device = device

    def texts(self, texts: Sequence[str]) -> torch.Tensor:
        tokens = self.tokenize(prompted(texts)).to(self.device)
        return self.model.encode_text(tokens, normalize=True).cpu()

    def images(self, paths: Sequence[Path]) -> torch.Tensor:
        from PIL import Image

        pixels = torch.stack([self.transform(Image.open(path)) for path in paths])
        return self.model.encode_image(pixels.to(self.device), normalize=True).cpu()


def clip(name: str) -> Callable[[Path, str], Ways]:
    """The plain way encodes every row's image and references again, with texts padded to 77 tokens."""

    def make(folder: Path, device: str) -> Ways:
        work = make_workload(folder, 0.02)
        weights = make_weights("ViT-B-32", folder)
        images = [work.images[i] for i in work.owner]
        references = [work.references[i] for i in work.owner]
        plain_clip = OpenClip(weights, device)
        referenced = name == "refpacs"

        def ours() -> Any:
            metric = capeval_core.load(name, weights=weights, device=device, cache=FeatureCache())
            return metric.score(work.captions, images, references if referenced else None).scores

        @torch.inference_mode()
        def plain() -> Any:
            scores = []
            for row in range(0, len(images), 32):
                captions = plain_clip.texts(work.captions[row : row + 32])
                pac = 2 * (plain_clip.images(images[row : row + 32]) * captions).sum(-1).clamp(min=0)
                for k, references_of_caption in enumerate(references[row : row + 32] if referenced else ()):
                    nearest = (plain_clip.texts(references_of_caption) @ captions[k]).max().clamp(min=0)
                    scores.append(float(2 * pac[k] * nearest / (pac[k] + nearest).clamp(min=1e-9)))
                scores += [] if referenced else pac.tolist()
            return scores

        return ours, plain

    return make


def texts(folder: Path, device: str) -> Ways:
    work = make_workload(folder, 0.1)
    weights = make_weights("ViT-B-32", folder)
    captions = distinct(work)
    plain_clip = OpenClip(weights, device)
    encoder = capeval_core.load("pacs", weights=weights, device=device, cache=FeatureCache(0)).encoder

    def ours() -> Any:
        features = encoder.encode_texts(prompted(captions), cache=FeatureCache(0)).features
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    @torch.inference_mode()
    def plain() -> Any:
        batches = [captions[row : row + 64] for row in range(0, len(captions), 64)]
        return torch.cat(list(map(plain_clip.texts, batches)))

    return ours, plain


def in_bfloat16(folder: Path, device: str) -> Ways:
    """Here the plain way is the same network in float32; features differ by the rounding of bfloat16."""
    work = make_workload(folder, 0.1)
    weights = make_weights("ViT-B-32", folder)
    opened = [
        capeval_core.load("pacs", weights=weights, device=device, dtype=dtype, cache=FeatureCache(0)).encoder
        for dtype in ("bfloat16", "float32")
    ]

    def way(encoder: Any) -> Way:
        def run() -> Any:
            features = encoder.encode_texts(prompted(distinct(work)), cache=FeatureCache(0)).features
            return features / np.linalg.norm(features, axis=1, keepdims=True)

        return run

    ours, plain = map(way, opened)
    return ours, plain


def distinct(work: Workload) -> list[str]:
    return [*work.captions, *chain.from_iterable(work.references)]


def evaluate_module(folder: Path, device: str) -> Ways:
    """Here the plain way is the core: the module may take a tenth longer."""
    import evaluate
    from PIL import Image

    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (480, 640, 3), dtype=np.uint8)) for _ in range(300)]
    captions = [f"image number {i} of noise" for i in range(len(images))]
    options = {"weights": "tiny", "device": device, "cache": FeatureCache(0)}
    core = capeval_core.load("pacs", **options)
    module = evaluate.load(capeval_core.module_path("pacs"), **options)
    return (
        lambda: module.compute(predictions=captions, images=images)["pac_s"],
        lambda: core.score(captions, images).mean,
    )


def eco(folder: Path, device: str) -> Ways:
    """The released consensus of 100 pools of 60 captions: the plain way fits a vectoriser on every pool."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.metrics.pairwise import cosine_similarity

    from capeval_core.phrases.ngrams import tfidf_consensus
    from tools.captions import describe
    from tools.scenes import sample_scene

    rng = np.random.default_rng(0)
    scenes = [sample_scene(rng) for _ in range(100)]
    pools = []
    for scene in scenes:
        pools.append([describe(scene, rng) for _ in range(60)])

    def plain() -> Any:
        scores = []
        for pool in pools:
            cosines = cosine_similarity(TfidfVectorizer(ngram_range=(1, 2)).fit_transform(pool))
            scores.append((cosines.sum(axis=1) - 1) / (len(pool) - 1))
        return np.concatenate(scores)

    return lambda: np.concatenate(tfidf_consensus(pools)), plain


def resamples(folder: Path, device: str) -> Ways:
    """100 clustered resamples of tau-b and tau-c over 17,000 rows of 1,000 images, beside scipy's."""
    from scipy.stats import kendalltau

    from capeval_core.judgements.correlation import Resamples, WeightedRows

    rng = np.random.default_rng(0)
    quality = rng.normal(size=5_667)
    scores = np.repeat(np.round(quality + rng.normal(size=len(quality)), 4), 3)
    levels = np.quantile(quality, [0.25, 0.5, 0.75])
    ratings = np.digitize(np.repeat(quality, 3) + rng.normal(size=len(scores)), levels)
    groups = [str(image) for image in np.repeat(rng.integers(0, 1_000, len(quality)), 3)]
    draws = Resamples(groups, draws=100)
    weights = [draws.weights(draw) for draw in range(len(draws))]

    def ours() -> Any:
        rows = WeightedRows(scores, ratings)
        return [rows.coefficients(counts, ("tau_b", "tau_c")) for counts in weights]

    def plain() -> Any:
        coefficients = []
        for counts in weights:
            x = np.repeat(scores, counts)
            y = np.repeat(ratings, counts)
            coefficients.append([kendalltau(x, y, variant=variant).statistic for variant in "bc"])
        return coefficients

    return ours, plain


def of(case: Callable[..., Ways], *setting: Any) -> Callable[[Path, str], Ways]:
    """A case that needs no folder."""
    return lambda folder, device: case(device, *setting)


ROWS = {
    "pacs": Row("PAC-S, ViT-B/32, 113 captions of 20 JPEGs", clip("pacs"), runs=1, captions=113),
    "refpacs": Row(
        "RefPAC-S, ViT-B/32, 113 captions of 20 JPEGs, 5 references", clip("refpacs"), runs=1, captions=113
    ),
    "texts": Row("text encoder alone, ViT-B/32, distinct texts", texts, runs=1),
    "bfloat16": Row(
        "text encoder in bfloat16 beside float32, ViT-B/32", in_bfloat16, 3e-2, runs=1
    ),
    "evaluate": Row("`evaluate` beside the core, 300 PIL images", evaluate_module, 1e-9),
    "hices": Row(
        "HICE-S, ViT-L/14, 4 captions and 30 regions of an image", hice.case, runs=1, captions=4
    ),
    "eco": Row("TF-IDF consensus of pools of 60", eco, 1e-9),
    "umic": Row("UMIC, UNITER-base, 4 captions an image, 36 boxes", of(umic.case, "36"), captions=128),
    "umic, ragged": Row("UMIC, UNITER-base, 4 captions an image, 10 to 100 boxes", of(umic.case, "10-100")),
    "vilbertscore": Row(
        "ViLBERTScore, 100 boxes, 5 references, 1 candidate", of(vilbertscore.case, 1), captions=2
    ),
    "vilbertscore, 4": Row("ViLBERTScore, 100 boxes, 5 references, 4 candidates", of(vilbertscore.case, 4)),
    "blip2": Row("BLIP-2, 12 captions of an image", of(blip2.case, 12), 1e-4, runs=1),
    **{
        f"matching, {name}": Row(f"greedy matching, {name}, 512 numbers", of(matching.case, name))
        for name in ("5-100", "3-20", "words x frames", "tokens x tokens", "words x many frames")
    },
    "resamples": Row("100 clustered resamples of tau-b and tau-c, 17,000 rows", resamples, 1e-12, runs=1),
}  # fmt: skip

PRODUCTS = {"pacs", "refpacs", "texts", "bfloat16", "hices"}
"""Rows whose time goes into products of matrices; the machine's own rate of these stands beside them."""


def measure(name: str, device: str) -> dict[str, Any]:
    """Seconds of both ways, their ratio, and the largest difference."""
    row = ROWS[name]
    clock = time.perf_counter if device.startswith("cuda") else time.process_time  # machines are shared
    with tempfile.TemporaryDirectory() as folder:
        ways = row.make(Path(folder), device)
        seconds: list[list[float]] = [[], []]
        values: list[Any] = [None, None]
        for _ in range(row.runs):
            for side, way in enumerate(ways):  # in turn, so that what else the machine does meets both
                start = clock()
                values[side] = on_host(way())
                seconds[side].append(clock() - start)
        operations = operations_of(ways[0]) if name in PRODUCTS else 0
    ours, plain = map(min, seconds)
    difference = float(np.abs(values[0] - values[1]).max())
    if not difference <= row.largest:
        raise SystemExit(f"{name}: both ways differ by {difference:.1e}, more than {row.largest:.0e}")
    numbers = {"name": name, "about": row.about, "ours": ours, "plain": plain, "ratio": plain / ours}
    if row.captions:
        numbers["captions"] = row.captions
    if name in PRODUCTS and not device.startswith("cuda"):
        numbers["sgemm"] = sgemm_rate() / 1e9
        numbers["share"] = operations / ours / 1e9 / numbers["sgemm"]
    return {**numbers, "difference": difference, **machine(device)}


def operations_of(way: Way) -> int:
    """Multiplications and additions of the products of matrices that a way computes, counted nominally."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        way()
    return counter.get_total_flops()


def sgemm_rate(size: int = 1536) -> float:
    """Operations per second of this machine's own product of matrices in float32, the best of several."""
    first, second = torch.randn(2, size, size)
    seconds = []
    for _ in range(5):
        start = time.process_time()
        torch.mm(first, second)
        seconds.append(time.process_time() - start)
    return 2 * size**3 / min(seconds)


def on_host(values: Any) -> Any:
    """Values in double precision, once the device has them."""
    return np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values, dtype=np.float64)


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """A variable of the environment for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@cache
def commit() -> str:
    """The commit at the beginning: a row that is stored changes a file, and makes no later one "dirty"."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return git.stdout.strip()


def machine(device: str) -> dict[str, Any]:
    """Everything that the numbers depend on."""
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else processor(),
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "capeval": capeval_core.__version__,
        "commit": commit(),
        "date": date.today().isoformat(),
    }


def processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def read(path: Path = FILE) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ROWS)}; none: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=FILE, metavar="FILE")
    flags = parser.parse_args(arguments)
    if commit().endswith("-dirty") and flags.out == FILE:
        parser.error("rows that are stored are of a commit: commit your changes, or pass --out")
    key_of = itemgetter("name", "device", "threads")
    for name in flags.names or ROWS:
        row = measure(name, flags.device)
        print(f"{row['about']}: {row['ratio']:.2f} times as fast, {row['difference']:.1e} apart", flush=True)
        rows = [stored_row for stored_row in read(flags.out) if key_of(stored_row) != key_of(row)]
        flags.out.write_text("".join(json.dumps(line) + "\n" for line in [*rows, row]))


if __name__ == "__main__":
    main()
