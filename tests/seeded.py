"""Small CLIP encoders with seeded weights: equal everywhere, and no network."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from capeval_core.encoders.clip import ClipEncoder
from capeval_core.weights.convert import Release, read_release
from tests.golden import recipe

CASES = Path(__file__).parent / "golden" / "cases"
HEADS: dict[str, dict[str, Any]] = {
    "pacs-vit-tiny": {},  # OpenAI's naming, QuickGELU
    "pacs-resnet-tiny": {"head_width": 64},
    "pacs-openclip-tiny": {"head_width": 16, "text_heads": 4},  # exact GELU
}
"""What the tensors of each case cannot tell."""


@cache
def release(case: str = "pacs-vit-tiny") -> Release:
    """The converted checkpoint of a golden case; treat it as read-only."""
    manifest, config = (
        json.loads((CASES / case / name).read_text()) for name in ("manifest.json", "config.json")
    )
    tensors = {
        name: torch.from_numpy(array) for name, array in recipe.state_dict(manifest, config["seed"]).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        torch.save(tensors, Path(folder) / "original.pth")
        return read_release(Path(folder) / "original.pth", **HEADS[case])


@cache
def encoder(case: str = "pacs-vit-tiny", dtype: str = "float32") -> ClipEncoder:
    """The encoder of a golden case, on the CPU."""
    found = release(case)
    return ClipEncoder(found.config, found.tensors, device="cpu", dtype=dtype)
