"""UMIC on CUDA: UNITER-base's logits of 256 images with 4 captions each, 36 boxes and 10 to 100.

Against the release's padded loop on the same GPU; the network's share of the peak; attention in one launch
against groups; memory; agreement of devices, types and runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.cuda.agreement import Subject, agreement
from benchmarks.cuda.flops import uniter_flops
from benchmarks.cuda.measuring import Gpu, Row, or_failure
from benchmarks.cuda.seeded import drawn, encoder_of
from benchmarks.umic import ARCHITECTURE, config_of, padded_loop, workload
from capeval_core.cache import FeatureCache
from capeval_core.encoders import packed
from capeval_core.encoders.uniter import UniterEncoder
from capeval_core.encoders.uniter_model import empty_uniter
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.models.device import exact_float32
from capeval_core.scores.umic import umic_score

IMAGES, CAPTIONS = 256, 4
FEW = 2
"""Images of a batch that is too small to fill a GPU."""
SMALL = {
    **ARCHITECTURE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "region_size": 16,
}


def measure(gpu: Gpu) -> Iterator[Row]:
    architecture = SMALL if gpu.small else ARCHITECTURE
    config, tensors = config_of(architecture), drawn(gpu, empty_uniter(architecture))
    encoder = encoder_of(gpu, UniterEncoder, config, tensors, "bfloat16")
    for boxes in ("36", "10-100"):
        images, captions = workload(8 if gpu.small else IMAGES, CAPTIONS, boxes, architecture["region_size"])
        yield from or_failure(boxes, partial(speed, gpu, encoder, images, captions, boxes))
    full = encoder_of(gpu, UniterEncoder, config, tensors, "float32")
    for one in (encoder, full):
        yield from or_failure("attention", partial(one_launch, gpu, one, images, captions))
    some = slice(4 if gpu.small else 64)

    def run(device: str, dtype: str) -> dict[str, Any]:
        own = encoder_of(gpu, UniterEncoder, config, tensors, dtype, device)
        logits = ranked(own, images[some], captions[some])
        return {"logits": logits, "scores": umic_score(logits.astype(np.float64))}

    yield from agreement(
        gpu, Subject(("umic",), "UNITER-base, seeded"), run, dtypes=["bfloat16"], device_goal=3e-6
    )


def speed(
    gpu: Gpu, encoder: UniterEncoder, images: list[Any], captions: list[list[str]], boxes: str
) -> Iterator[Row]:
    """The network alone, everything from box features to logits, the padded loop, and memory."""
    setting = f"{encoder.dtype}, {len(images)} images with {boxes} boxes, {CAPTIONS} captions"
    count = len(images) * CAPTIONS
    batch, lengths, sizes = resident(encoder, images, captions)
    network = gpu.seconds(lambda: logits_of(encoder, *batch))
    yield Row(f"network, {setting}: pairs/s", f"{count / network:,.0f}")
    flops = uniter_flops(encoder.config["architecture"], [], lengths)
    share = flops / network / gpu.peak(torch.bfloat16)
    yield Row.at_least(f"network, {boxes} boxes: share of the bf16 peak", share, 0.5)
    alone = f"network on the device alone, {boxes} boxes: pairs/s"
    yield Row(alone, f"{count / device_time(gpu, encoder, batch):,.0f}")
    whole = gpu.seconds(lambda: ranked(encoder, images, captions), repeats=5)
    yield Row(f"rank, {setting}: pairs/s", f"{count / whole:,.0f}")
    padded = gpu.seconds(lambda: padded_loop(encoder, images, captions), repeats=3, warm_up=1)
    yield Row.at_least(f"release's padded loop, {boxes} boxes: time over rank's", padded / whole, 2, "{:.1f}")
    held = [gpu.memory(lambda: ranked(encoder, images, captions)) / 1e6]
    held.append(gpu.memory(lambda: padded_loop(encoder, images, captions)) / 1e6)
    yield Row(
        f"memory on the device, {boxes} boxes, rank and the padded loop",
        f"{held[0]:.0f} and {held[1]:.0f} MB",
    )
    moved = sum(sizes) * 2 * encoder.region_size
    yield Row(
        f"box features that cross to the device, {boxes} boxes",
        f"{moved / 1e6:.0f} MB, {moved / count:,.0f} B a pair",
    )


def one_launch(
    gpu: Gpu, encoder: UniterEncoder, images: list[Any], captions: list[list[str]]
) -> Iterator[Row]:
    """Attention in one launch against padded groups, in a large batch and in a small one."""
    for few in (len(images), FEW):
        batch, lengths, _ = resident(encoder, images[:few], captions[:few])
        ours, grouped = [], []
        for found, kernel in ((ours, packed.kernel_of), (grouped, lambda *_: None)):
            with patch.object(packed, "kernel_of", kernel):
                found += [gpu.seconds(lambda batch=batch: logits_of(encoder, *batch))]
                found += [logits_of(encoder, *batch).float().cpu().numpy()]
        setting = f"{encoder.dtype}, {len(lengths)} pairs of {min(lengths)} to {max(lengths)} rows"
        yield Row.at_least(
            f"attention in padded groups, {setting}: time over one launch's", grouped[0] / ours[0], 1
        )
        off = float(np.abs(ours[1] - grouped[1]).max())
        yield Row.at_most(
            f"attention in groups and in one launch, {setting}: largest difference of logits",
            off,
            3e-6 if encoder.dtype == "float32" else 0.05,
        )


def resident(
    encoder: UniterEncoder, images: Sequence[Any], captions: Sequence[Sequence[str]]
) -> tuple[tuple[list[Any], list[Any]], list[int], list[int]]:
    """Pairs whose boxes are embedded on the device: what the network takes, rows of each, boxes of images."""
    prepared = [encoder.prepare_visual(InputBoxes.of(image).load()) for image in images]
    states = encoder.states(prepared)
    texts = [encoder.tokenizer.encode(own).ids for own in captions]
    regions = [state for state, own in zip(states, texts, strict=True) for _ in own]
    ids = [each for own in texts for each in own]
    lengths = [len(boxes) + len(own) for boxes, own in zip(regions, ids, strict=True)]
    return (regions, ids), lengths, [len(state) for state in states]


@torch.inference_mode()
def logits_of(encoder: UniterEncoder, regions: list[Any], ids: list[Any]) -> torch.Tensor:
    with exact_float32(encoder.device):
        return encoder.model.ranking_logits(regions, ids)


def device_time(gpu: Gpu, encoder: UniterEncoder, batch: Any) -> float:
    return gpu.device_seconds(lambda: logits_of(encoder, *batch))


def ranked(encoder: UniterEncoder, images: Sequence[Any], captions: Sequence[Sequence[str]]) -> Any:
    found = encoder.rank(map(InputBoxes.of, images), captions, cache=FeatureCache(0))
    return np.concatenate([each.logits for each in found])
