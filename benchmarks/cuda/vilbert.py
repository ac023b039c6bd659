"""ViLBERTScore on CUDA: ViLBERT's full size, 100 boxes, 4 captions and 5 references of each of 128 images.

Against the release's loop on the same GPU, by images of which it is timed on few and scaled; the network's
share of the peak; matching on the device and on the host; bytes between the two; agreement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.cuda.agreement import Subject, agreement
from benchmarks.cuda.flops import vilbert_flops
from benchmarks.cuda.measuring import Gpu, Row, or_failure
from benchmarks.cuda.seeded import drawn, encoder_of
from benchmarks.umic import made_up_boxes
from benchmarks.vilbertscore import ARCHITECTURE, config_of, encoded_captions, made_up_texts, ours, released
from capeval_core.cache import FeatureCache
from capeval_core.encoders import packed
from capeval_core.encoders.vilbert import VilbertEncoder
from capeval_core.encoders.vilbert_model import empty_vilbert
from capeval_core.inputs.boxes import InputBoxes
from capeval_core.models.device import exact_float32
from capeval_core.scores.vilbert_rows import Matcher

IMAGES, CANDIDATES, REFERENCES, BOXES = 128, 4, 5, 100
SMALL = {
    **ARCHITECTURE,
    "text": {**ARCHITECTURE["text"], "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 48},
    "visual": {
        **ARCHITECTURE["visual"],
        "region_size": 16,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
    "co_attention": {"hidden_size": 32, "num_attention_heads": 2},
}


def measure(gpu: Gpu) -> Iterator[Row]:
    architecture = SMALL if gpu.small else ARCHITECTURE
    config, tensors = config_of(architecture), drawn(gpu, empty_vilbert(architecture))
    encoder = encoder_of(gpu, VilbertEncoder, config, tensors, "bfloat16")
    rng, count = np.random.default_rng(0), 3 if gpu.small else IMAGES
    boxes, width = 10 if gpu.small else BOXES, architecture["visual"]["region_size"]
    images = [made_up_boxes(rng, boxes, width) for _ in range(count)]
    texts = made_up_texts(rng, count, CANDIDATES + REFERENCES)
    for step in (speed, matching, one_launch):
        yield from or_failure(step.__name__, partial(step, gpu, encoder, images, texts))
    some = slice(2 if gpu.small else 8)

    def run(device: str, dtype: str) -> dict[str, Any]:
        own = encoder_of(gpu, VilbertEncoder, config, tensors, dtype, device)
        found = own.token_features(map(InputBoxes.of, images[some]), texts[some], cache=FeatureCache(0))
        features = [rows for image in found for rows in image.features or []]
        return {"features": features, "scores": ours(own, images[some], texts[some], CANDIDATES)}

    subject = Subject(("vilbertscore",), "ViLBERT 12x768 and 6x1024, seeded")
    yield from agreement(gpu, subject, run, dtypes=["bfloat16"])


def speed(gpu: Gpu, encoder: VilbertEncoder, images: list[Any], texts: list[list[str]]) -> Iterator[Row]:
    """The network alone, everything from box features to F, the release's loop, and memory."""
    setting = (
        f"{encoder.dtype}, {len(images)} images with {len(images[0]['boxes'])} boxes, {CANDIDATES} captions, "
        f"{REFERENCES} references"
    )
    batch, flops = resident(encoder, images, texts)
    pairs = len(batch[2])
    network = gpu.seconds(lambda: states_of(encoder, *batch))
    yield Row(f"network, {setting}: texts with their image/s", f"{pairs / network:,.0f}")
    share = flops / network / gpu.peak(torch.bfloat16)
    yield Row.at_least("network: share of the bf16 peak", share, 0.5)
    alone = gpu.device_seconds(lambda: states_of(encoder, *batch))
    yield Row("network on the device alone: texts with their image/s", f"{pairs / alone:,.0f}")
    whole = gpu.seconds(lambda: ours(encoder, images, texts, CANDIDATES), repeats=5)
    yield Row(f"scores, {setting}: captions/s", f"{len(images) * CANDIDATES / whole:,.0f}")
    few = 1 if gpu.small else 4
    loop = (
        gpu.seconds(lambda: released(encoder, images[:few], texts[:few], CANDIDATES), repeats=3, warm_up=1)
        / few
        * len(images)
    )
    yield Row.at_least(
        f"release's loop, by {few} of {len(images)} images: time over ours", loop / whole, 4, "{:.1f}"
    )
    held = gpu.memory(lambda: ours(encoder, images, texts, CANDIDATES)) / 1e6
    yield Row("memory on the device", f"{held:.0f} MB")


def matching(gpu: Gpu, encoder: VilbertEncoder, images: list[Any], texts: list[list[str]]) -> Iterator[Row]:
    """Matching of features that stay on the device, that are copied there again, and on the host."""
    captions = encoded_captions(encoder, images, texts, CANDIDATES)
    rows = [text for caption in captions for text in (caption.caption, *caption.references)]
    distinct = {id(text): text for text in rows}.values()
    host = sum(text.features.nbytes for text in distinct)
    yield Row(
        "features that cross to the host for the cache, float32; none cross back",
        f"{host / 1e6:.0f} MB, {host / len(distinct) / 1e3:.0f} kB a text",
    )
    from_cache = encoded_captions(encoder, images, texts, CANDIDATES, on_device=False)
    matcher, on_host = Matcher(encoder, None), Matcher(encoder, None)
    on_host.on_device = False
    ways = {
        "on the device": lambda: matcher.matched_words(captions, indices=False),
        "copied to the device": lambda: matcher.matched_words(from_cache),
        "on the host": lambda: on_host.matched_words(from_cache),
    }
    pairs = len(captions) * REFERENCES
    times = {name: gpu.seconds(way, repeats=5) for name, way in ways.items()}
    for name, seconds in times.items():
        yield Row(f"matching {name}: pairs/s", f"{pairs / seconds:,.0f}")
    values = [way().f.numpy() for way in ways.values()]
    off = max(float(np.abs(values[0] - other).max()) for other in values[1:])
    yield Row.at_most("matching on the device and on the host: largest difference of F", off, 1e-5)


def one_launch(gpu: Gpu, encoder: VilbertEncoder, images: list[Any], texts: list[list[str]]) -> Iterator[Row]:
    """Attention in one launch against padded groups, in a large batch and in a small one."""
    for few in (len(images), 1):
        batch, _ = resident(encoder, images[:few], texts[:few])
        found: list[tuple[float, Any]] = []
        for kernel in (packed.kernel_of, lambda *_: None):
            with patch.object(packed, "kernel_of", kernel):
                seconds = gpu.seconds(lambda batch=batch: states_of(encoder, *batch))
                found.append((seconds, torch.cat(states_of(encoder, *batch)).float().cpu()))
        (ours_time, rows), (time, grouped) = found
        yield Row.at_least(
            f"attention in padded groups, {encoder.dtype}, {len(batch[2])} pairs: time over one launch's",
            time / ours_time,
            1,
        )
        cosine = torch.nn.functional.cosine_similarity(rows, grouped).min()
        yield Row.at_least(
            "smallest cosine of features by groups and one launch", float(cosine), 0.99, "{:.4f}"
        )


def resident(
    encoder: VilbertEncoder, images: Sequence[Any], texts: Sequence[Sequence[str]]
) -> tuple[tuple[list[Any], list[Any], list[tuple[int, int]]], float]:
    """Texts as ids, embedded boxes on the device, and pairs of both; the operations that they need."""
    prepared = [encoder.prepare_visual(InputBoxes.of(image).load()) for image in images]
    regions = encoder.region_states(prepared)
    ids = [each for own in texts for each in encoder.tokenizer.encode(own).ids]
    pairs = [(i, i // len(texts[0])) for i in range(len(ids))]
    tokens, boxes = [len(own) + encoder.task_tokens for own in ids], [len(own) for own in regions]
    embedding = (
        sum(boxes) * 2 * (encoder.region_size + 5) * encoder.config["architecture"]["visual"]["hidden_size"]
    )
    flops = vilbert_flops(encoder.config["architecture"], tokens, boxes, pairs) - embedding
    return (ids, regions, pairs), flops


@torch.inference_mode()
def states_of(
    encoder: VilbertEncoder, ids: list[Any], regions: list[Any], pairs: list[tuple[int, int]]
) -> list[torch.Tensor]:
    with exact_float32(encoder.device):
        lower = encoder.model.lower_texts(ids, encoder.config["task"])
        return encoder.model.text_states(lower, regions, pairs, len(encoder.model.co_layers) - 1)
