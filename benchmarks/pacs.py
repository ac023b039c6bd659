"""RefPAC-S on a Flickr8k-sized workload against the plain way, in one run.

    python -m benchmarks.pacs [--fraction 0.05]

The plain way is what the released scripts do: every row's image and references are encoded again, and
texts are padded to 77 tokens, in float32. Printed are ratios, plain over ours: more than 1 is faster (or
smaller) than the plain way.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.workload import Workload, in_own_process, make_weights, make_workload, peak_memory

PROMPT = "A photo depicts "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fraction", type=float, default=1.0, help="part of the workload")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(SIDES[arguments.side](arguments.folder, arguments.fraction)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_weights("ViT-B-32", Path(folder))
        compare(Path(folder), arguments.fraction)


def compare(folder: Path, fraction: float) -> None:
    workload = make_workload(folder, fraction)
    texts = len(workload.captions) + sum(map(len, workload.references))
    print(
        f"ViT-B/32, float32: {len(workload.captions)} captions, {len(workload.images)} JPEGs, {texts} texts"
    )
    found = {}
    for side in SIDES:
        where = ["--folder", str(folder), "--fraction", str(fraction)]
        found[side] = json.loads(in_own_process("benchmarks.pacs", "--side", side, *where))
    for what, a, b in (("whole workload", "plain", "ours"), ("distinct texts", "text-plain", "text-ours")):
        plain_way, our_way = found[a], found[b]
        difference = np.abs(np.array(plain_way["values"]) - np.array(our_way["values"])).max()
        time_ratio = plain_way["seconds"] / our_way["seconds"]
        memory_ratio = plain_way["memory"] / our_way["memory"]
        print(
            f"{what:15} time {time_ratio:5.1f}x  peak memory {memory_ratio:4.2f}x  "
            f"largest difference {difference:.1e}",
            flush=True,
        )


def ours(folder: Path, fraction: float) -> dict[str, object]:
    import capeval_core

    workload = make_workload(folder, fraction)
    metric = capeval_core.load("refpacs", weights=folder / "ViT-B-32", device="cpu")
    start = time.perf_counter()
    result = metric.score(
        workload.captions,
        [workload.images[i] for i in workload.owner],
        [workload.references[i] for i in workload.owner],
    )
    return _measured(start, result.scores)


def plain(folder: Path, fraction: float) -> dict[str, object]:
    import torch
    from PIL import Image

    workload = make_workload(folder, fraction)
    model, tokenize, preprocess = _open_clip(folder)
    scores = []
    start = time.perf_counter()
    with torch.inference_mode():
        for row in range(0, len(workload.captions), 32):
            owners = workload.owner[row : row + 32]
            images = torch.stack([preprocess(Image.open(workload.images[i])) for i in owners])
            image_features = model.encode_image(images, normalize=True)
            text_features = model.encode_text(
                tokenize(_prompted(workload.captions[row : row + 32])), normalize=True
            )
            pac = 2 * (image_features * text_features).sum(-1).clamp(min=0)
            for k, i in enumerate(owners):
                known = model.encode_text(tokenize(_prompted(workload.references[i])), normalize=True)
                nearest = (known @ text_features[k]).max().clamp(min=0)
                scores.append(
                    float(2 * pac[k] * nearest / (pac[k] + nearest)) if pac[k] + nearest > 0 else 0.0
                )
    return _measured(start, scores)


def text_ours(folder: Path, fraction: float) -> dict[str, object]:
    from capeval_core.encoders.clip import ClipEncoder
    from capeval_core.matching.cosine import unit

    texts = _distinct(make_workload(folder, fraction))
    encoder = ClipEncoder.from_pretrained(folder / "ViT-B-32", device="cpu")
    start = time.perf_counter()
    features = encoder.encode_texts(_prompted(texts)).features
    return _measured(start, unit(features)[:, :8].ravel().tolist())


def text_plain(folder: Path, fraction: float) -> dict[str, object]:
    import torch

    texts = _distinct(make_workload(folder, fraction))
    model, tokenize, _ = _open_clip(folder)
    features = []
    start = time.perf_counter()
    with torch.inference_mode():
        for row in range(0, len(texts), 64):
            features.append(model.encode_text(tokenize(_prompted(texts[row : row + 64])), normalize=True))
    return _measured(start, torch.cat(features)[:, :8].flatten().tolist())


def _distinct(workload: Workload) -> list[str]:
    return [*workload.captions, *(text for group in workload.references for text in group)]


def _prompted(texts: list[str]) -> list[str]:
    return [PROMPT + text for text in texts]


def _measured(start: float, values: list[float]) -> dict[str, object]:
    return {"seconds": time.perf_counter() - start, "memory": peak_memory(), "values": values}


def _open_clip(folder: Path):
    """The same weights in open_clip's own model, with its own tokenizer and torchvision's preprocessing."""
    from open_clip.model import CLIP
    from open_clip.tokenizer import SimpleTokenizer
    from safetensors.torch import load_file
    from torchvision import transforms as t

    config = json.loads((folder / "ViT-B-32" / "config.json").read_text())
    architecture, scaling = config["architecture"], config["preprocessing"]
    model = CLIP(
        architecture["embed_dim"], architecture["vision"], architecture["text"], quick_gelu=True
    ).eval()
    model.load_state_dict(load_file(folder / "ViT-B-32" / "model.safetensors"))
    preprocess = t.Compose(
        [
            t.Resize(224, interpolation=t.InterpolationMode.BICUBIC),
            t.CenterCrop(224),
            lambda image: image.convert("RGB"),
            t.ToTensor(),
            t.Normalize(scaling["mean"], scaling["std"]),
        ]
    )
    return model, SimpleTokenizer(), preprocess


SIDES = {"ours": ours, "plain": plain, "text-ours": text_ours, "text-plain": text_plain}


if __name__ == "__main__":
    main()
