"""UMIC: logits of images with their captions, against the release's loop over padded batches.

    python -m benchmarks.umic [--images 32] [--captions 4] [--boxes 36 | --boxes 10-100]

Weights are random, sizes those of UNITER-base (12x768, box features of 2048 numbers). The release's loop
takes pairs of image and caption in order, 128 at a time; it pads texts and boxes to the longest of the batch,
embeds an image's boxes again for each caption, and runs every layer over all rows, padding included. Both
are timed in turn in one run, on the CPU, and their logits are checked to agree to 1e-5. On a GPU the same is
measured by `python -m benchmarks.cuda --part umic`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.encoders.tokenizers import Ids
from capeval_core.encoders.uniter import RegionInput, UniterEncoder, region_input
from capeval_core.encoders.uniter_model import Uniter, empty_uniter
from capeval_core.inputs.boxes import InputBoxes

ARCHITECTURE = {
    "vocab_size": 28_996,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "region_size": 2048,
}
WORDS = [f"word{index}" for index in range(2000)]
PAIRS_AT_ONCE = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--captions", type=int, default=4, help="per image")
    parser.add_argument("--boxes", default="36", help="per image: a number, or two as in 10-100")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    encoder = seeded()
    images, captions = workload(given.images, given.captions, given.boxes)

    def ours() -> Any:
        ranked = encoder.rank(map(InputBoxes.of, images), captions, cache=FeatureCache(0))
        return np.concatenate([each.logits for each in ranked])

    def padded() -> Any:
        return padded_loop(encoder, images, captions)

    times: dict[str, list[float]] = {"ours": [], "padded": []}
    for _ in range(given.runs):  # in turn, so that what else the machine does meets both
        logits, seconds = timed(ours)
        times["ours"].append(seconds)
        expected, seconds = timed(padded)
        times["padded"].append(seconds)
    off = float(np.abs(logits - expected).max())
    best = {name: min(seconds) for name, seconds in times.items()}
    pairs = given.images * given.captions
    print(encoder.describe(encoder.config))
    print(f"{given.images} images with {given.boxes} boxes and {given.captions} captions each")
    print(f"padded loop  {best['padded']:8.2f} s  {pairs / best['padded']:8.1f} pairs/s")
    print(f"rank         {best['ours']:8.2f} s  {pairs / best['ours']:8.1f} pairs/s")
    print(f"{best['padded'] / best['ours']:.2f} times faster; logits agree to {off:.1e}")
    if not off <= 1e-5:
        raise SystemExit("logits differ by more than 1e-5")


def workload(images: int, captions: int, boxes: str, width: int = 2048) -> tuple[list[Any], list[list[str]]]:
    """Box features of images, `boxes` of each ("36", "10-100"), and captions of 6 to 18 words."""
    fewest, _, most = boxes.partition("-")
    rng = np.random.default_rng(0)
    made_up = [
        made_up_boxes(rng, int(rng.integers(int(fewest), int(most or fewest) + 1)), width)
        for _ in range(images)
    ]
    texts = [[" ".join(rng.choice(WORDS, rng.integers(6, 19))) for _ in range(captions)] for _ in made_up]
    return made_up, texts


def config_of(architecture: dict[str, Any]) -> dict[str, Any]:
    """The config of a UNITER of this architecture."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    return {"architecture": architecture, "context_length": 512, "vocabulary": words, "lowercase": True}


def seeded() -> UniterEncoder:
    torch.manual_seed(0)
    tensors = {
        name: torch.randn_like(tensor, device="cpu") * 0.02
        + (tensor.ndim == 1 and name.endswith("orm.weight"))
        for name, tensor in empty_uniter(ARCHITECTURE).state_dict().items()
    }
    return UniterEncoder(config_of(ARCHITECTURE), tensors, checksum="random", device="cpu")


def made_up_boxes(rng: np.random.Generator, count: int, width: int = 2048) -> dict[str, Any]:
    corners = rng.uniform(0, 300, (count, 2))
    return {
        "boxes": np.concatenate([corners, corners + rng.uniform(10, 300, (count, 2))], axis=1),
        "features": np.maximum(rng.normal(0, 1, (count, width)), 0).astype(np.float32),
        "size": (640, 640),
    }


@torch.inference_mode()
def padded_loop(encoder: UniterEncoder, images: Sequence[Any], captions: Sequence[Sequence[str]]) -> Any:
    inputs = [region_input(InputBoxes.of(image).load()) for image in images]
    pairs = [
        (boxes, ids)
        for boxes, texts in zip(inputs, captions, strict=True)
        for ids in encoder.tokenizer.encode(texts).ids
    ]
    batches = (pairs[start : start + PAIRS_AT_ONCE] for start in range(0, len(pairs), PAIRS_AT_ONCE))
    return np.concatenate([padded_batch(encoder.model, batch) for batch in batches])


def padded_batch(model: Uniter, pairs: Sequence[tuple[RegionInput, Ids]]) -> Any:
    weight = model.pooler.weight

    def padded(rows: Sequence[Any]) -> Tensor:
        tensors = [torch.as_tensor(row) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(weight.device)

    ids = padded([ids for _, ids in pairs])
    features, positions = (
        padded([getattr(boxes, name) for boxes, _ in pairs]).to(weight.dtype)
        for name in ("features", "positions")
    )
    texts, counts = [len(ids) for _, ids in pairs], [len(boxes.positions) for boxes, _ in pairs]
    length = max(map(sum, zip(texts, counts, strict=True)))
    gather = torch.arange(length).repeat(len(pairs), 1)
    for row, text, count in zip(gather, texts, counts, strict=True):
        row[text : text + count] = ids.shape[1] + torch.arange(count)
    real = torch.arange(length) < torch.tensor([[sum(each)] for each in zip(texts, counts, strict=True)])
    mask = ((~real).float() * -10_000).to(weight)[:, None, None]
    order = torch.arange(ids.shape[1], device=weight.device).expand_as(ids)
    embedded = torch.cat([model.embed_texts(ids, order), model.embed_regions(features, positions)], dim=1)
    x = embedded.gather(
        1,
        gather.clamp(max=embedded.shape[1] - 1)
        .to(weight.device)[..., None]
        .expand(-1, -1, embedded.shape[2]),
    )
    for layer in model.layers:
        x = padded_layer(layer, x, mask, model.heads)
    pooled = torch.tanh(model.pooler(x[:, 0]))
    return model.ranking_head(pooled)[:, 0].float().cpu().numpy()


def padded_layer(layer: Any, x: Tensor, mask: Tensor, heads: int) -> Tensor:
    own = layer.attention.self
    query, keys, values = (
        part(x).view(*x.shape[:2], heads, -1).transpose(1, 2) for part in (own.query, own.key, own.value)
    )
    weights = (query @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5 + mask).softmax(-1)
    attended = (weights @ values).transpose(1, 2).flatten(2)
    output: Tensor = layer.feed_forward_chunk(layer.attention.output(attended, x))
    return output


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """What `run` gives, and its seconds of the processor."""
    start = time.process_time()
    return run(), time.process_time() - start


if __name__ == "__main__":
    main()
