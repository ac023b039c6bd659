"""Small CLIP encoders with seeded weights: equal everywhere, and no network."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.uniter import UniterEncoder
from capeval_core.encoders.uniter_model import Uniter
from capeval_core.encoders.vilbert import VilbertEncoder
from capeval_core.encoders.vilbert_model import Vilbert
from capeval_core.weights.conversion import Release
from capeval_core.weights.folder import config_checksum
from tests.golden import recipe

if TYPE_CHECKING:
    from capeval_core.encoders.faster_rcnn import FasterRcnn

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
        return ClipEncoder.convert(Path(folder) / "original.pth", **HEADS[case])


@cache
def encoder(case: str = "pacs-vit-tiny", dtype: str = "float32") -> ClipEncoder:
    """The encoder of a golden case, on the CPU."""
    found = release(case)
    return ClipEncoder(found.config, found.tensors, device="cpu", dtype=dtype)


def alpha_checkpoints(folder: Path) -> tuple[Path, Path]:
    """The original checkpoints of the golden Alpha-CLIP, written to `folder`: image tower and base."""
    case = CASES / "alphaclip-tiny"
    seed = json.loads((case / "config.json").read_text())["seed"]
    paths = []
    for name in ("manifest_alpha", "manifest"):
        tensors = recipe.state_dict(json.loads((case / f"{name}.json").read_text()), seed)
        paths.append(folder / f"{name}.pth")
        torch.save({key: torch.from_numpy(array) for key, array in tensors.items()}, paths[-1])
    return paths[0], paths[1]


@cache
def alpha_release(zero_mask: bool = False) -> Release:
    """The converted Alpha-CLIP, or its base with a mask channel of zeros; treat it as read-only."""
    with tempfile.TemporaryDirectory() as folder:
        tower, base = alpha_checkpoints(Path(folder))
        if zero_mask:
            return AlphaClipEncoder.convert(base, zero_mask=True)
        return AlphaClipEncoder.convert(tower, base=str(base))


@cache
def alpha_encoder(dtype: str = "float32", zero_mask: bool = False) -> AlphaClipEncoder:
    """The seeded Alpha-CLIP, on the CPU."""
    found = alpha_release(zero_mask)
    return AlphaClipEncoder(found.config, found.tensors, device="cpu", dtype=dtype)


def blip2_weights(folder: Path) -> Path:
    """A weights folder of the golden BLIP-2, made in `folder`; its words are w0, w1 and so on."""
    from capeval_core.encoders.blip2 import Blip2Encoder
    from tests.golden.blip2_itm import Case

    case = Case.read(CASES / "blip2-itm")
    (folder / "vocab.txt").write_text("\n".join(case.words) + "\n")
    settings = {"vocabulary": str(folder / "vocab.txt"), **case.heads}
    found = Blip2Encoder.convert(case.lavis_checkpoint(folder), **settings)
    Blip2Encoder(found.config, found.tensors, device="cpu").save_pretrained(folder / "blip2")
    return folder / "blip2"


@cache
def faster_rcnn_release() -> Release:
    """The converted Faster R-CNN of the golden case; treat it as read-only."""
    from capeval_core.encoders.faster_rcnn import FasterRcnn
    from tests.golden.frcnn_vg_tiny import write_checkpoint

    with tempfile.TemporaryDirectory() as folder:
        return FasterRcnn.convert(write_checkpoint(CASES / "frcnn-vg-tiny", Path(folder)))


@cache
def faster_rcnn(dtype: str = "float32") -> FasterRcnn:
    """The seeded Faster R-CNN, on the CPU."""
    from capeval_core.encoders.faster_rcnn import FasterRcnn

    found = faster_rcnn_release()
    return FasterRcnn(found.config, found.tensors, device="cpu", dtype=dtype)


def write_config(folder: Path, config: dict[str, Any], file: str = "config.json") -> None:
    """Write a config that was edited, with the checksum that a saved one has."""
    if file == "config.json" and isinstance(config.get("checksum"), dict):
        config = {**config, "checksum": {**config["checksum"], file: config_checksum(config)}}
    (folder / file).write_text(json.dumps(config))


LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "red", "dog"]


@cache
def uniter(region_size: int = 64, heads: int = 4, width: int = 32) -> UniterEncoder:
    """A seeded small UNITER on the CPU, for the features of the embedded region encoder."""
    architecture = {
        "vocab_size": len(WORDS),
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "intermediate_size": 64,
        "max_position_embeddings": 40,
        "region_size": region_size,
    }
    with torch.random.fork_rng():
        torch.manual_seed(3)
        tensors = Uniter(architecture).state_dict()
    tensors["ranking_head.weight"] *= 8  # scores that differ visibly
    config = {
        "format": 1,
        "encoder": "uniter",
        "architecture": architecture,
        "context_length": 40,
        "vocabulary": WORDS,
        "lowercase": True,
        "constants": {"regions": "tiny"},
        "source": {"licence": "MIT"},
    }
    return UniterEncoder(config, tensors, device="cpu")


@cache
def vilbert(task: int | None = 7, region_size: int = 64) -> VilbertEncoder:
    """A seeded small ViLBERT on the CPU, for the features of the embedded region encoder."""
    architecture = {
        "text": {
            "vocab_size": len(WORDS),
            "hidden_size": 32,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 40,
        },
        "visual": {
            "region_size": region_size,
            "hidden_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
            "intermediate_size": 40,
        },
        "co_attention": {"hidden_size": 64, "num_attention_heads": 2},
        "text_layers_before": [1, 3],
        "visual_layers_before": [1, 2],
        "tasks": 0 if task is None else 20,
    }
    with torch.random.fork_rng():
        torch.manual_seed(5)
        tensors = {
            # Of a standard deviation at which features of texts differ visibly.
            name: tensor + 0.2 * torch.randn_like(tensor) if tensor.ndim == 2 else tensor
            for name, tensor in Vilbert(architecture).state_dict().items()
        }
    config = {
        "format": 1,
        "encoder": "vilbert",
        "architecture": architecture,
        "task": task,
        "context_length": 37,
        "vocabulary": WORDS,
        "lowercase": True,
        "constants": {"regions": "tiny"},
        "source": {"licence": "MIT"},
    }
    return VilbertEncoder(config, tensors, device="cpu")


def made_up_boxes(count: int, width: int = 64, seed: int = 0) -> dict[str, Any]:
    """Random box features of an image of 320x240."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform([0, 0], [200, 150], (count, 2))
    return {
        "boxes": np.concatenate([corners, corners + rng.uniform(5, 90, (count, 2))], axis=1).astype(
            np.float32
        ),
        "features": rng.uniform(0, 2, (count, width)).astype(np.float32),
        "size": (320, 240),
        "scores": np.sort(rng.uniform(0.3, 1, count))[::-1].astype(np.float32),
    }
