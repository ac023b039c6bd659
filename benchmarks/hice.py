"""HICE-S with 4 captions and 30 masks per image, against a forward per mask and caption, in one run.

    python -m benchmarks.hice [--images 2] [--device cuda] [--peak TFLOPS]

The plain way runs the image tower for every caption on the image under every mask and as a whole: 4 x 31
forwards where ours takes 31. Weights are seeded and of full size (Alpha-CLIP ViT-L/14), in float32; masks and
phrases are given, so that what is timed is the score. Printed are ratios, plain over ours, of elapsed time
and of processor time, which other work on the machine moves less, and the largest difference of what the
score is made of: cosines, before they are scaled and clamped.

Then the peak memory for one large image with few masks and with many (the embedded small weights, whose own
memory hides nothing); and on a GPU the share of the bfloat16 peak that the region encoder reaches. The peak
is measured in the same run (a large matrix product) unless it is given.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
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
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peak", type=float, help="bfloat16 TFLOP/s to compare with; default: measured here")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(SIDES[arguments.side](arguments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_alpha_weights(MODEL, Path(folder))
        compare(Path(folder), arguments)
        if arguments.device.startswith("cuda"):
            report_gpu(Path(folder), arguments)


def compare(folder: Path, given: argparse.Namespace) -> None:
    def run(side: str) -> dict[str, Any]:
        where = ["--folder", str(folder), "--images", str(given.images), "--device", given.device]
        found: dict[str, Any] = json.loads(in_own_process("benchmarks.hice", "--side", side, *where))
        return found

    what = f"{given.images} images with {CAPTIONS} captions and {MASKS} masks each"
    print(f"{MODEL}, float32, {given.device}: {what}", flush=True)
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
    workload = _workload(given)
    metric = _metric(_weights(given.folder), MASKS, device=given.device)
    metric.score(["a dog"], [np.zeros((32, 32, 3), np.uint8)])  # warm-up
    rows = _count_rows(metric.encoder)
    clock = _Clock()
    given_in = workload.captions, [workload.images[i] for i in workload.owner]
    metric.score(*given_in)
    measured = {**clock.read(), "rows": sum(rows)}
    found = metric.encode_all(metric.check(*given_in)).to_pylist()  # all of it known by now
    terms = [[row["cosine"], _mean(row["phrase_maxima"]), _mean(row["region_maxima"])] for row in found]
    return {**measured, "values": terms}


def plain(given: argparse.Namespace) -> dict[str, Any]:
    """As one would write it with the authors' model: open_clip's towers, a forward for each mask."""
    import torch
    from PIL import Image

    from capeval_core.inputs.visual import InputImage
    from capeval_core.phrases.opening import phrase_opener

    workload = _workload(given)
    weights = _weights(given.folder)
    metric = _metric(weights, MASKS, device=given.device)  # its preprocessing and its sources
    encoder, phrases = metric.encoder, phrase_opener("chunks")()
    model, tokenize = _open_clip(weights, given.device)
    rows = 0

    def see(pixels: NDArray[np.float32], mask: NDArray[np.float32]) -> Any:
        nonlocal rows
        rows += 1
        both = np.concatenate([pixels, mask])[None]
        return model.encode_image(torch.from_numpy(both).to(given.device), normalize=True)[0]

    def say(text: str) -> Any:
        return model.encode_text(tokenize([text]).to(given.device), normalize=True)[0]

    found_terms = []
    with torch.inference_mode():
        say("a dog")  # warm-up
        clock = _Clock()
        for caption, owner in zip(workload.captions, workload.owner, strict=True):
            path = workload.images[owner]
            image = Image.open(path)
            found = metric.region_source.find(InputImage.of(path)).masks()
            pixels, masks = encoder.preprocess(image), encoder.preprocess_masks(found)
            full = encoder.preprocess_masks(np.ones((1, image.height, image.width), np.bool_))[0]
            whole, said = see(pixels, full), say(caption)
            regions = torch.stack([see(pixels, mask) for mask in masks])
            parts = torch.stack([say(phrase) for phrase in phrases.phrases([caption])[0].phrases])
            cosines = parts @ regions.T
            terms = [float(whole @ said), float(cosines.amax(1).mean()), float(cosines.amax(0).mean())]
            found_terms.append(terms)
    return {**clock.read(), "rows": rows, "values": found_terms}


def memory_of(masks: int) -> Any:
    def run(given: argparse.Namespace) -> dict[str, Any]:
        metric = _metric("tiny", masks, device=given.device)
        metric.score(["a red circle"], [np.zeros((*SIZE, 3), np.uint8)])
        return {"memory": peak_memory()}

    return run


def report_gpu(folder: Path, given: argparse.Namespace) -> None:
    """Rows a second of the region encoder in bfloat16, and their share of the peak."""
    from benchmarks.encoders import image_flops, matmul_peak, timed
    from capeval_core.cache import FeatureCache
    from capeval_core.inputs.visual import InputImage

    peak = given.peak or matmul_peak(given.device)
    metric = _metric(_weights(folder), MASKS, device=given.device, dtype="bfloat16")
    shown = [InputImage.of(path) for path in make_workload(folder, 64 / 1000, references=0).images]
    nothing = FeatureCache(0)
    seconds = timed(
        lambda: [None for _ in metric.encoder.encode_regions(shown, metric.region_source, cache=nothing)],
        given.device,
    )
    rows = len(shown) * (1 + MASKS)
    share = image_flops(MODEL) * rows / seconds / peak / 1e12
    print(
        f"{MODEL}, bfloat16: {rows / seconds:.0f} rows/s, {share:.1%} of the {peak:.0f} TFLOP/s of the peak"
    )


def _workload(given: argparse.Namespace) -> Workload:
    """The first images of the common workload, with four captions each."""
    made = make_workload(given.folder, given.images / 1000, references=0)
    count = given.images * CAPTIONS
    captions = [f"{text} number {i}" for i, text in enumerate((made.captions * count)[:count])]
    return Workload(captions, [i // CAPTIONS for i in range(count)], made.images[: given.images], [])


class _Clock:
    """Seconds since it was made: elapsed, and of all processors together."""

    def __init__(self) -> None:
        self.start = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        elapsed, processor = time.perf_counter() - self.start[0], time.process_time() - self.start[1]
        return {"seconds": elapsed, "processor": processor}


def _weights(folder: Path) -> Path:
    return folder / f"alpha-{MODEL}"


def _metric(weights: Path | str, masks: int, **options: Any) -> Any:
    from capeval_core.cache import FeatureCache
    from capeval_core.inputs.visual import InputImage
    from capeval_core.regions import rle
    from capeval_core.regions.regions import Regions
    from capeval_core.regions.source import RegionSource
    from capeval_core.scores.hice import HiceOptions, HiceS

    class Ellipses(RegionSource):
        """So many ellipses in the middle of every image."""

        name, fingerprint = "ellipses", f"ellipses-{masks}"

        def find(self, image: InputImage) -> Regions:
            width, height = image.load().size
            rng = np.random.default_rng(0)
            y, x = np.mgrid[:height, :width]
            found = []
            for _ in range(masks):
                across, down = rng.uniform(0.3, 0.7, 2) * (width, height)
                wide, high = rng.uniform(0.05, 0.25, 2) * (width, height)
                found.append(rle.encode(((x - across) / wide) ** 2 + ((y - down) / high) ** 2 <= 1))
            return Regions.of_runs(found, (height, width))

    own: dict[str, Any] = {"regions": Ellipses(), "phrases": "chunks", "cache": FeatureCache()}
    return HiceS(HiceOptions(weights=weights, **own, **options))


def _count_rows(encoder: Any) -> list[int]:
    rows: list[int] = []
    encoder.model.visual.ln_pre.register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    return rows


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _open_clip(folder: Path, device: str) -> Any:
    """The same weights in open_clip's own model, whose first layer takes a fourth channel: the mask."""
    import torch
    from open_clip.model import CLIP
    from open_clip.tokenizer import SimpleTokenizer
    from safetensors.torch import load_file

    class Both(torch.nn.Module):
        def __init__(self, image: torch.nn.Module, mask: torch.nn.Module) -> None:
            super().__init__()
            self.image, self.mask = image, mask

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            summed: torch.Tensor = self.image(given[:, :3]) + self.mask(given[:, 3:])
            return summed

    architecture = json.loads((folder / "config.json").read_text())["architecture"]
    model = CLIP(architecture["embed_dim"], architecture["vision"], architecture["text"], quick_gelu=True)
    tensors = load_file(folder / "model.safetensors")
    kernel = tensors.pop("visual.conv1_alpha.weight")
    model.load_state_dict(tensors)
    mask = torch.nn.Conv2d(1, len(kernel), kernel.shape[-1], stride=kernel.shape[-1], bias=False)
    mask.load_state_dict({"weight": kernel})
    model.visual.conv1 = Both(model.visual.conv1, mask)
    return model.eval().to(device), SimpleTokenizer()


SIDES = {"ours": ours, "plain": plain, "few": memory_of(FEW), "many": memory_of(MANY)}


if __name__ == "__main__":
    main()
