"""ViLBERTScore beside the release's loop, in which every candidate runs its references again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.umic import WORDS, made_up_boxes, seeded
from capeval_core.cache import FeatureCache
from capeval_core.encoders.vilbert import Vilbert, VilbertEncoder
from capeval_core.inputs.boxes import boxes_of
from capeval_core.scores.vilbert import EncodedText, Matcher, f_score

ARCHITECTURE: dict[str, Any] = {
    "text": {
        "vocab_size": 30_522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
    },
    "visual": {
        "region_size": 2048,
        "hidden_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "intermediate_size": 1024,
    },
    "co_attention": {"hidden_size": 1024, "num_attention_heads": 8},
    "text_layers_before": [6, 7, 8, 9, 10, 11],
    "visual_layers_before": [0, 1, 2, 3, 4, 5],
    "tasks": 20,
}
CONTEXT = 37
TASK = 7


def made_up_texts(rng: np.random.Generator, images: int, texts: int) -> list[list[str]]:
    """Texts of 8 to 15 words, so many of each image."""
    texts_of_images = []
    for _ in range(images):
        texts_of_images.append([" ".join(rng.choice(WORDS, rng.integers(8, 16))) for _ in range(texts)])
    return texts_of_images


def ours(
    encoder: VilbertEncoder, images: Sequence[Any], texts: Sequence[Sequence[str]], candidates: int
) -> Any:
    """(images * candidates,) F, averaged over references."""
    encoded = []
    features = encoder.token_features(map(boxes_of, images), texts, cache=FeatureCache(0))
    for text_features, texts_of_image in zip(features, texts, strict=True):
        ids = encoder.tokenizer.encode(texts_of_image).ids
        parts = zip(ids, text_features.features or [], text_features.on_device, strict=True)
        rows = [EncodedText(*each) for each in parts]
        encoded += [[caption, *rows[candidates:]] for caption in rows[:candidates]]
    match = Matcher(encoder, encoded).words()
    f = f_score(match.precision.double().numpy(), match.recall.double().numpy())
    return f.reshape(len(encoded), -1).mean(axis=1)


@torch.inference_mode()
def released(
    encoder: VilbertEncoder, images: Sequence[Any], texts: Sequence[Sequence[str]], candidates: int
) -> Any:
    """The same as the release computes it."""
    scores = []
    for image, texts_of_image in zip(images, texts, strict=True):
        ids = encoder.tokenizer.encode(texts_of_image).ids
        inputs = encoder.prepare_visual(boxes_of(image).load())
        boxes = [torch.from_numpy(part) for part in (inputs.features, inputs.locations)]
        for candidate in range(candidates):
            texts_to_compare = [ids[candidate], *ids[candidates:]]
            states = padded_pass(encoder.model, [part.to(encoder.device) for part in boxes], texts_to_compare)
            words = [
                rows[encoder.words(text)].float() for rows, text in zip(states, texts_to_compare, strict=True)
            ]
            unit = [rows / rows.norm(dim=1, keepdim=True) for rows in words]
            f = []
            for reference in unit[1:]:
                cosines = unit[0] @ reference.T
                precision = cosines.max(dim=1).values.mean()
                recall = cosines.max(dim=0).values.mean()
                f.append(2 * precision * recall / (precision + recall))
            scores.append(torch.stack(f).double().mean())
    return torch.stack(scores).cpu().numpy()


def padded_pass(model: Vilbert, boxes: Sequence[Tensor], texts: Sequence[Sequence[int]]) -> Tensor:
    """(texts, rows, hidden) after the last co-attention block; the layers behind it run, too."""
    device = model.device
    dtype = model.text_pooler.weight.dtype
    rows = [[*text, *[0] * (CONTEXT - len(text))] for text in texts]
    ids = torch.tensor(rows, device=device)
    real = torch.arange(CONTEXT + 1) <= torch.tensor([[len(text)] for text in texts])
    mask = ((~real).to(device, dtype) * -10_000)[:, None, None]
    table = model.embeddings
    text = table.word_embeddings(ids) + table.position_embeddings.weight[:CONTEXT]
    text = text + table.token_type_embeddings.weight[0]
    assert model.task_embeddings is not None
    task = model.task_embeddings.weight[TASK].expand(len(texts), 1, -1)
    text = table.LayerNorm(torch.cat([text[:, :1], task, text[:, 1:]], dim=1))
    features, locations = (part.to(dtype).expand(len(texts), -1, -1) for part in boxes)
    visual = model.embed_regions(features, locations)
    layers_run = {"text": 0, "visual": 0}

    def run(stream: str, rows: Tensor, until: int) -> Tensor:
        layers: Any = model.text_layers if stream == "text" else model.visual_layers
        for layer in layers[layers_run[stream] : until]:
            projections = layer.attention.self
            parts = projections.query(rows), projections.key(rows), projections.value(rows)
            attended = attention(*parts, model.heads[stream], mask if stream == "text" else None)
            rows = layer.feed_forward_chunk(layer.attention.output(attended, rows))
        layers_run[stream] = until
        return rows

    blocks: list[Any] = list(model.co_layers)
    for block, text_until, visual_until in zip(blocks, *model.before.values(), strict=True):
        text = run("text", text, text_until)
        visual = run("visual", visual, visual_until)
        of_text = block.text
        of_visual = block.visual
        for_text = attention(
            of_text.query(text), of_visual.key(visual), of_visual.value(visual), block.heads, None
        )
        for_visual = attention(
            of_visual.query(visual), of_text.key(text), of_text.value(text), block.heads, mask
        )
        text = merged(of_text, for_text, text)
        visual = merged(of_visual, for_visual, visual)
    states = text
    run("visual", visual, len(model.visual_layers))
    run("text", text, len(model.text_layers))
    return states


def merged(stream: Any, attended: Tensor, rows: Tensor) -> Tensor:
    met = stream.merge(attended, rows)
    output: Tensor = stream.output(stream.intermediate(met), met)
    return output


def attention(query: Tensor, keys: Tensor, values: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    query, keys, values = (
        part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in (query, keys, values)
    )
    weights = query @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5
    weights = (weights if mask is None else weights + mask).softmax(-1)
    return (weights @ values).transpose(1, 2).flatten(2)


def case(device: str, candidates: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """F of candidates of 2 images, of 100 boxes and 5 references each, by `token_features` and the loop."""
    settings = {"architecture": ARCHITECTURE, "context_length": CONTEXT, "task": TASK}
    encoder = seeded(VilbertEncoder, device, **settings)
    rng = np.random.default_rng(0)
    images = [made_up_boxes(rng, 100) for _ in range(2)]
    texts = made_up_texts(rng, 2, candidates + 5)
    return (
        lambda: ours(encoder, images, texts, candidates),
        lambda: released(encoder, images, texts, candidates),
    )
