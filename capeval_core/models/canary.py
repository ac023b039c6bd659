"""Cosines saved with weights and computed again at load, so that silently wrong weights cannot happen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from capeval_core.weights.folder import WeightsError

TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
TEXTS = ("A photo depicts a dog", "two red circles", "A photo depicts a street at night in the rain")


def canary_images() -> list[Image.Image]:
    """Two images drawn from formulas: ramps and a chequerboard."""
    x, y = np.meshgrid(np.arange(120), np.arange(90))
    ramps = np.stack([2 * x, 255 - 2 * y, (x * y) % 256], axis=-1).astype(np.uint8)
    board = np.where((x // 20 + y // 15) % 2, 230, 40).astype(np.uint8)
    return [Image.fromarray(ramps), Image.fromarray(np.stack([board, board // 2, 255 - board], axis=-1))]


def cosines(image_features: NDArray[np.float32], text_features: NDArray[np.float32]) -> NDArray[np.float32]:
    """(images, texts) cosines of un-normalised features."""
    lengths = np.linalg.norm(image_features, axis=1)[:, None] * np.linalg.norm(text_features, axis=1)
    return np.asarray(image_features @ text_features.T / lengths, dtype=np.float32)


def check_form(canary: Any) -> None:
    """Refuse a config's canary that is none."""
    try:
        rows = np.array(canary["cosines"], dtype=np.float32)
        bounded = all(0 < canary["tolerance"][dtype] <= 1 for dtype in TOLERANCE)
        fit = rows.ndim == 2 and rows.size > 0 and bool(np.isfinite(rows).all()) and bounded
    except (KeyError, TypeError, ValueError, OverflowError):
        fit = False
    if not fit:
        wrong = "canary does not hold rows of cosines, and a tolerance from 0 to 1 per dtype"
        raise WeightsError(f"in the config, {wrong}: download or convert the weights again")


def check_canary(canary: dict[str, Any], computed: NDArray[np.float32], dtype: str) -> None:
    """Refuse weights whose cosines are not those that were saved with them, to the tolerance of `dtype`."""
    expected, tolerance = np.array(canary["cosines"], dtype=np.float32), canary["tolerance"][dtype]
    if expected.shape != computed.shape:
        found = f"canary holds {expected.shape} cosines, expected {computed.shape}"
        raise WeightsError(f"{found}: convert the weights again")
    difference = float(np.abs(computed - expected).max())
    if not difference <= tolerance:
        raise WeightsError(
            f"the canary cosines are off by {difference:.2g} (at most {tolerance:g} is allowed): tensors, "
            "activation, heads or preprocessing are not those that the weights were saved with; "
            "download or convert them again"
        )
