"""HICE-S with 4 captions and 30 masks per image, against a forward per mask and caption, in one run.

    python -m benchmarks.hice [--images 2]

The plain way runs the image tower for every caption on the image under every mask and as a whole: 4 x 31
forwards where ours takes 31. Weights are seeded and of full size (Alpha-CLIP ViT-L/14), in float32; masks and
phrases are given, so that what is timed is the score. Printed are ratios, plain over ours, of elapsed time
and of processor time, which other work on the machine moves less, and the largest difference of what the
score is made of: cosines, before they are scaled and clamped.

Then the peak memory for one large image with few masks and with many (the embedded small weights, whose own
memory hides nothing). A GPU is measured by `python -m benchmarks.cuda --part hice`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.workload import Workload, in_own_process, make_alpha_weights, make_workload, peak_memory

MODEL = "ViT-L-14"
CAPTIONS, MASKS = 4, 30
FEW, MANY = 64, 1024
"""Masks of one image, to see whether memory grows with them; from two full batches on."""
SIZE = (1500, 2000)
"""Height and width of that image: its many masks would take 3 GB."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(SIDES[arguments.side](arguments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_alpha_weights(MODEL, Path(folder))
        compare(Path(folder), arguments)


def compare(folder: Path, given: argparse.Namespace) -> None:
    def run(side: str) -> dict[str, Any]:
        where = ["--folder", str(folder), "--images", str(given.images)]
        found: dict[str, Any] = json.loads(in_own_process("benchmarks.hice", "--side", side, *where))
        return found

    what = f"{given.images} images with {CAPTIONS} captions and {MASKS} masks each"
    print(f"{MODEL}, float32, on the CPU: {what}", flush=True)
    ours, plain = run("ours"), run("plain")
    difference = np.abs(np.array(ours["values"]) - np.array(plain["values"])).max()
    print(
        f"HICE-S  time {plain['seconds'] / ours['seconds']:5.2f}x  processor time "
        f"{plain['processor'] / ours['processor']:5.2f}x  rows of the image tower "
        f"{plain['rows']} / {ours['rows']}  largest difference of g, P, R {difference:.1e}",
        flush=True,
    )
    few, many = run("few")["memory"], run("many")["memory"]
    size = f"{SIZE[1]} x {SIZE[0]} pixels"
    print(f"one image of {size}: peak memory {few:.0f} MB with {FEW} masks, {many:.0f} MB with {MANY}")


def ours(given: argparse.Namespace) -> dict[str, Any]:
    workload = make_captions(given.folder, given.images)
    metric = hice_metric(_weights(given.folder), MASKS, device="cpu")
    metric.score(["a dog"], [np.zeros((32, 32, 3), np.uint8)])  # warm-up
    rows = _count_rows(metric.encoder)
    clock = _Clock()
    given_in = workload.captions, [workload.images[i] for i in workload.owner]
    metric.score(*given_in)
    measured = {**clock.read(), "rows": sum(rows)}
    return {**measured, "values": terms_of(metric.encode_all(metric.check(*given_in)))}  # known by now


def terms_of(rows: Any) -> list[list[float]]:
    """g, P and R of each row: raw cosines and means of maxima."""
    return [
        [row["cosine"], _mean(row["phrase_maxima"]), _mean(row["region_maxima"])] for row in rows.to_pylist()
    ]


def plain(given: argparse.Namespace) -> dict[str, Any]:
    workload = make_captions(given.folder, given.images)
    weights = _weights(given.folder)
    metric = hice_metric(weights, MASKS, device="cpu")  # its preprocessing and its sources
    architecture = json.loads((weights / "config.json").read_text())["architecture"]
    loop = PlainLoop(architecture, metric.encoder.model.state_dict(), metric)
    loop.text("a dog")  # warm-up
    clock = _Clock()
    pairs = zip(workload.captions, workload.owner, strict=True)
    found = [loop.terms(workload.images[owner], caption) for caption, owner in pairs]
    return {**clock.read(), "rows": loop.rows, "values": found}


class PlainLoop:
    """As one would write it with the authors' model: open_clip's towers, a forward for each mask and caption.

    Args:
        architecture, tensors: of the weights, `visual.conv1_alpha.weight` among the tensors.
        metric: whose preprocessing and sources are used, and whose device and type.
    """

    def __init__(self, architecture: dict[str, Any], tensors: dict[str, Any], metric: Any) -> None:
        from capeval_core.models.device import DTYPES

        self.encoder, self.source, self.phrases = metric.encoder, metric.region_source, metric.phrase_source
        self.device, self.dtype = self.encoder.device, DTYPES[self.encoder.dtype]
        model, self._tokenize = _open_clip(architecture, dict(tensors))
        self.model = model.eval().to(self.device, self.dtype)
        self.model.attn_mask = self.model.attn_mask.to(self.dtype)
        self.rows = 0

    def image(self, pixels: NDArray[np.float32], mask: NDArray[np.float32]) -> Any:
        return self.images(np.concatenate([pixels, mask])[None])[0]

    def images(self, both: NDArray[np.float32]) -> Any:
        """(n, d) of pixels with their masks, (n, 4, s, s), in one forward."""
        import torch

        self.rows += len(both)
        with torch.inference_mode():
            given = torch.from_numpy(both).to(self.device, self.dtype)
            return self.model.encode_image(given, normalize=True).float()

    def text(self, text: str) -> Any:
        import torch

        with torch.inference_mode():
            return self.model.encode_text(self._tokenize([text]).to(self.device), normalize=True)[0].float()

    def prepared(self, path: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Pixels (3, s, s) and masks (1 + n, 1, s, s) of an image, the full one first."""
        from PIL import Image

        from capeval_core.inputs.visual import InputImage

        image = Image.open(path)
        found = self.source.find(InputImage.of(path)).masks()
        every = np.concatenate([np.ones((1, image.height, image.width), np.bool_), found])
        return self.encoder.preprocess(image), self.encoder.preprocess_masks(every)

    def terms(self, path: Path, caption: str) -> list[float]:
        """g, P and R of a caption with its image."""
        import torch

        pixels, masks = self.prepared(path)
        whole, *regions = [self.image(pixels, mask) for mask in masks]
        phrases = [self.text(phrase) for phrase in self.phrases.phrases([caption])[0].phrases]
        cosines = torch.stack(phrases) @ torch.stack(regions).T
        global_term = float(whole @ self.text(caption))
        return [global_term, float(cosines.amax(1).mean()), float(cosines.amax(0).mean())]


def memory_of(masks: int) -> Any:
    def run(given: argparse.Namespace) -> dict[str, Any]:
        metric = hice_metric("tiny", masks, device="cpu")
        metric.score(["a red circle"], [np.zeros((*SIZE, 3), np.uint8)])
        return {"memory": peak_memory()}

    return run


def make_captions(folder: Path, images: int) -> Workload:
    """The first images of the common workload, with four captions each."""
    made = make_workload(folder, images / 1000, references=0)
    count = images * CAPTIONS
    captions = [f"{text} number {i}" for i, text in enumerate((made.captions * count)[:count])]
    return Workload(captions, [i // CAPTIONS for i in range(count)], made.images[:images], [])


class _Clock:
    """Seconds since it was made: elapsed, and of all processors together."""

    def __init__(self) -> None:
        self.start = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        elapsed, processor = time.perf_counter() - self.start[0], time.process_time() - self.start[1]
        return {"seconds": elapsed, "processor": processor}


def _weights(folder: Path) -> Path:
    return folder / f"alpha-{MODEL}"


def hice_metric(weights: Path | str, masks: int, **options: Any) -> Any:
    """HICE-S with so many given masks of each image, and phrases by rules."""
    from capeval_core.cache import FeatureCache
    from capeval_core.inputs.visual import InputImage
    from capeval_core.regions.regions import Regions
    from capeval_core.regions.source import RegionSource
    from capeval_core.scores.hice import HiceOptions, HiceS

    class Ellipses(RegionSource):
        name, fingerprint = "ellipses", f"ellipses-{masks}"

        def find(self, image: InputImage) -> Regions:
            regions: Regions = ellipses(masks, *image.load().size)
            return regions

    own = {"weights": weights, "regions": Ellipses(), "phrases": "chunks", "cache": FeatureCache()}
    return HiceS(HiceOptions(**{**own, **options}))


@cache
def ellipses(count: int, width: int, height: int) -> Any:
    """So many ellipses in the middle of every image of this size."""
    from capeval_core.regions import rle
    from capeval_core.regions.regions import Regions

    rng = np.random.default_rng(0)
    x, found = np.arange(width), []
    for _ in range(count):
        across, down = rng.uniform(0.3, 0.7, 2) * (width, height)
        wide, high = rng.uniform(0.05, 0.25, 2) * (width, height)
        columns = x[np.abs(x - across) <= wide]
        half = high * np.sqrt(1 - ((columns - across) / wide) ** 2)
        top, bottom = np.ceil(down - half).astype(np.int64), np.floor(down + half).astype(np.int64) + 1
        some = top < bottom
        starts, ends = (columns * height + row for row in (top, bottom))
        found.append(rle.of_intervals(starts[some], ends[some], (height, width)))
    return Regions.of_runs(found, (height, width))


def _count_rows(encoder: Any) -> list[int]:
    rows: list[int] = []
    encoder.model.visual.ln_pre.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    return rows


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _open_clip(architecture: dict[str, Any], tensors: dict[str, Any]) -> tuple[Any, Any]:
    """open_clip's own model and tokenizer; its first layer takes a fourth channel, the mask."""
    import torch
    from open_clip.model import CLIP
    from open_clip.tokenizer import SimpleTokenizer

    class Both(torch.nn.Module):
        def __init__(self, image: torch.nn.Module, mask: torch.nn.Module) -> None:
            super().__init__()
            self.image, self.mask = image, mask

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            summed: torch.Tensor = self.image(given[:, :3]) + self.mask(given[:, 3:])
            return summed

    with torch.device("meta"):
        model = CLIP(architecture["embed_dim"], architecture["vision"], architecture["text"], quick_gelu=True)
    kernel = tensors.pop("visual.conv1_alpha.weight")
    model.load_state_dict(tensors, assign=True)
    length = architecture["text"].get("context_length", 77)
    model.attn_mask = torch.full((length, length), float("-inf"), device=kernel.device).triu_(1)
    mask = torch.nn.Conv2d(1, len(kernel), kernel.shape[-1], stride=kernel.shape[-1], bias=False)
    mask.load_state_dict({"weight": kernel})
    model.visual.conv1 = Both(model.visual.conv1, mask)
    return model, SimpleTokenizer()


SIDES = {"ours": ours, "plain": plain, "few": memory_of(FEW), "many": memory_of(MANY)}


if __name__ == "__main__":
    main()
