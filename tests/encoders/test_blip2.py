"""BLIP-2: against transformers' own forward, images counted, repositories of transformers, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from tests.golden import blip2_itm
from tests.golden.case import Case
from tests.support import seams
from tests.support.seeded import CASES, blip2_weights, kept

CASE = Case(CASES / "blip2-itm")


@pytest.fixture(scope="module")
def weights() -> Path:
    """A weights folder of the seeded model; not to be changed."""
    return kept("blip2-seeded", lambda place: [place.mkdir(), blip2_weights(place)]) / "blip2"


@pytest.fixture(scope="module")
def encoder(weights: Path) -> Any:
    return seams.network("blip2", weights)


def image(seed: int, height: int = 40, width: int = 56) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def captions(count: int, seed: int = 0) -> list[str]:
    """Distinct texts of one to ten words."""
    rng = np.random.default_rng([seed, 3])
    words = [" ".join(f"w{word}" for word in rng.integers(1, 99, rng.integers(1, 11))) for _ in range(count)]
    return [f"{text} w{index % 99 + 1}" for index, text in enumerate(words)]


def match(encoder: Any, images: Any, texts: Any, **more: Any) -> list[dict[str, Any]]:
    return list(seams.encode(encoder, images, texts, **more))


def itc(found: dict[str, Any]) -> NDArray[np.float32]:
    """Cosine of each caption with the image's best query token."""
    queries, texts = (rows / np.linalg.norm(rows, axis=1)[:, None] for rows in
                      (found["queries"], found["text_features"]))  # fmt: skip
    return np.asarray((texts @ queries.T).max(axis=1))


@torch.inference_mode()
def plain_loop(encoder: Any, shown: NDArray[np.uint8], texts: list[str]) -> tuple[Any, Any]:
    """Cosines and logits by transformers' own forward, image and caption by caption."""
    pixels = torch.from_numpy(encoder.preprocess(Image.fromarray(shown)))[None]
    positions = encoder.text_sizes(encoder.settings).max_position_embeddings
    encoder.model.embeddings.position_ids = torch.arange(positions)[None]  # which is in no file
    contrast, logits = [], []
    for ids in encoder.tokenizer.encode(texts).ids:
        given = {
            "pixel_values": pixels,
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        }
        contrast.append(encoder.model(**given).logits_per_image[0, 0])
        logits.append(encoder.model(**given, use_image_text_matching_head=True).logits_per_image[0])
    return torch.stack(contrast).numpy(), torch.stack(logits).numpy()


@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_it_is_transformers_own_forward(encoder: Any, batch_size: int | None) -> None:
    shown = [image(seed, 40 + 9 * seed, 90 - 11 * seed) for seed in range(5)]
    pools = [captions(7, 1), captions(7, 2), captions(2, 3), captions(1, 4), []]
    found = match(encoder, iter(shown), iter(pools), batch_size=batch_size)
    for one, texts, each in zip(shown[:4], pools, found, strict=False):
        contrast, logits = plain_loop(encoder, one, texts)
        assert np.allclose(itc(each), contrast, atol=2e-6) and np.allclose(each["logits"], logits, atol=1e-5)
        assert (each["error"], each["truncated"]) == (None, [0] * len(texts))
    assert found[4]["logits"].shape == (0, 2) and found[4]["text_features"].shape[0] == 0


# ---- the original's checkpoint


def convert(folder: Path, content: dict[str, torch.Tensor] | None = None, **more: Any) -> Any:
    path = blip2_itm.lavis(CASE, folder)
    if content is not None:
        torch.save(content, path)
    return seams.convert("blip2", path, **blip2_itm.settings(CASE, folder) | more)


@pytest.fixture
def content(tmp_path: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = torch.load(blip2_itm.lavis(CASE, tmp_path), weights_only=True)["model"]
    return tensors
