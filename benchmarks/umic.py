"""UMIC beside the release's loop over padded batches, on a seeded UNITER-base."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capeval_core.cache import FeatureCache
from capeval_core.encoders.tokenizers import Ids
from capeval_core.encoders.uniter import RegionInput, Uniter, UniterEncoder, region_input
from capeval_core.inputs.boxes import boxes_of

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


def workload(boxes: str) -> tuple[list[Any], list[list[str]]]:
    """Box features of 32 images, `boxes` of each ("36", "10-100"), and 4 captions of 6 to 18 words."""
    fewest, _, most = boxes.partition("-")
    rng = np.random.default_rng(0)
    images = [made_up_boxes(rng, int(rng.integers(int(fewest), int(most or fewest) + 1))) for _ in range(32)]
    captions = []
    for _ in images:
        captions.append([" ".join(rng.choice(WORDS, rng.integers(6, 19))) for _ in range(4)])
    return images, captions


def seeded(network: Any, device: str, **config: Any) -> Any:
    """An encoder of this config over words that are made up, with random weights."""
    torch.manual_seed(0)
    tensors = {
        name: torch.randn_like(tensor, device="cpu") * 0.02
        + (tensor.ndim == 1 and name.endswith("orm.weight"))
        for name, tensor in network.empty(config).state_dict().items()
    }
    config |= {"vocabulary": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS], "lowercase": True}
    return network(config, tensors, checksum="random", device=device)


def made_up_boxes(rng: np.random.Generator, count: int) -> dict[str, Any]:
    corners = rng.uniform(0, 300, (count, 2))
    return {
        "boxes": np.concatenate([corners, corners + rng.uniform(10, 300, (count, 2))], axis=1),
        "features": np.maximum(rng.normal(0, 1, (count, 2048)), 0).astype(np.float32),
        "size": (640, 640),
    }


@torch.inference_mode()
def padded_loop(encoder: UniterEncoder, images: Sequence[Any], captions: Sequence[Sequence[str]]) -> Any:
    inputs = [region_input(boxes_of(image).load()) for image in images]
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
    features = padded([boxes.features for boxes, _ in pairs]).to(weight.dtype)
    positions = padded([boxes.positions for boxes, _ in pairs]).to(weight.dtype)
    texts = [len(ids) for _, ids in pairs]
    counts = [len(boxes.positions) for boxes, _ in pairs]
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
    projections = layer.attention.self
    query, keys, values = (
        part(x).view(*x.shape[:2], heads, -1).transpose(1, 2)
        for part in (projections.query, projections.key, projections.value)
    )
    weights = (query @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5 + mask).softmax(-1)
    attended = (weights @ values).transpose(1, 2).flatten(2)
    output: Tensor = layer.feed_forward_chunk(layer.attention.output(attended, x))
    return output


def case(device: str, boxes: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Logits of 32 images with 4 captions each, by `rank` and by the padded loop."""
    encoder = seeded(UniterEncoder, device, architecture=ARCHITECTURE, context_length=512)
    images, captions = workload(boxes)

    def ours() -> Any:
        ranked = encoder.rank(map(boxes_of, images), captions, cache=FeatureCache(0))
        return np.concatenate([each.logits for each in ranked])

    return ours, lambda: padded_loop(encoder, images, captions)
