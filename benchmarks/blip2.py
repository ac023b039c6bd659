"""BLIP-2 beside transformers' own forward of an image and a caption; seeded, a ViT-B at 224 pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from capeval_core.cache import FeatureCache
from capeval_core.encoders.blip2 import Blip2Encoder, Matches
from capeval_core.encoders.blip2_conversion import empty_model
from capeval_core.inputs.images import InputImage
from capeval_core.matching.cosine import best_query_cosine
from capeval_core.models.device import DTYPES
from capeval_core.weights.conversion import clip_preprocessing

VISION: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "qkv_bias": True,
}
WORDS = [f"word{index}" for index in range(2000)]


def values_of(matches: Matches) -> Any:
    """(n, 2) contrast and probability of a match."""
    return np.stack([best_query_cosine(matches.queries, matches.text_features), matches.itm], axis=1)


def drawn_pair(captions: int) -> tuple[InputImage, list[str]]:
    """An image of noise, 640x480, and captions of 5 to 20 words."""
    rng = np.random.default_rng(0)
    image = InputImage.of(rng.integers(0, 256, (480, 640, 3), dtype=np.uint8))
    return image, [" ".join(rng.choice(WORDS, rng.integers(5, 21))) for _ in range(captions)]


def config() -> dict[str, Any]:
    """The config of a BLIP-2 with this vision tower and the release's Q-Former."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    qformer = {
        "vocab_size": len(words),
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        "cross_attention_frequency": 2,
        "encoder_hidden_size": VISION["hidden_size"],
    }
    architecture = {
        "vision": VISION,
        "qformer": qformer,
        "num_query_tokens": 32,
        "image_text_hidden_size": 256,
    }
    return {
        "architecture": architecture,
        "preprocessing": clip_preprocessing(VISION["image_size"]),
        "context_length": 32,
        "vocabulary": words,
    }


def seeded(device: str) -> Blip2Encoder:
    settings = config()
    torch.manual_seed(0)
    tensors = {
        name: torch.randn_like(tensor) * (0.02 if tensor.ndim > 1 else 0.1) + ("norm" in name.lower())
        for name, tensor in empty_model(settings["architecture"]).state_dict().items()
    }
    encoder = Blip2Encoder(settings, tensors, checksum="random", device=device)
    # Which our steps do not read, but transformers' own.
    places = settings["architecture"]["qformer"]["max_position_embeddings"]
    encoder.model.embeddings.position_ids = torch.arange(places, device=device)[None]
    return encoder


def inputs(encoder: Blip2Encoder, image: InputImage, captions: list[str]) -> tuple[Any, Any, Any]:
    """Pixels (1, 3, n, n), ids and mask (captions, longest)."""
    dtype = DTYPES[encoder.dtype]
    pixels = torch.from_numpy(encoder.preprocess(image.load()))[None].to(encoder.device, dtype)
    rows = [torch.tensor(ids) for ids in encoder.tokenizer.encode(captions).ids]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(encoder.device)
    return pixels, ids, (ids != 0).long()


def loop(encoder: Blip2Encoder, image: InputImage, captions: list[str]) -> Any:
    values = []
    for caption in captions:
        pixels, ids, mask = inputs(encoder, image, [caption])
        model_inputs = {"pixel_values": pixels, "input_ids": ids, "attention_mask": mask}
        itc = encoder.model(**model_inputs).logits_per_image[0, 0]
        logits = encoder.model(**model_inputs, use_image_text_matching_head=True).logits_per_image
        values.append([float(itc), float(logits.float().softmax(-1)[0, 1])])
    return np.array(values)


def case(device: str, captions: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Both values of one image with its captions, by `match` and by a forward each."""
    encoder = seeded(device)
    image, texts = drawn_pair(captions)

    def ours() -> Any:
        (matches,) = encoder.match([image], [texts], cache=FeatureCache(0))
        return values_of(matches)

    def plain() -> Any:
        with torch.inference_mode():
            return loop(encoder, image, texts)

    return ours, plain
