"""A small seeded network of the ResNeXt FPN detector, and its checkpoint as the release saves one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from capeval_core.encoders.x152 import X152
from capeval_core.weights.x152 import MEAN

CONFIG: dict[str, Any] = {
    "format": 1,
    "encoder": "x152",
    "architecture": {
        **{"layers": [1, 2, 1, 1], "stem_width": 4, "width": 4, "groups": 2, "out_width": 8},
        **{"pyramid_width": 6, "anchors": 2, "feature_width": 10, "classes": 5},
    },
    "preprocessing": {"shortest_side": 64, "longest_side": 96, "mean": list(MEAN)},
    "proposals": {
        **{"before_nms": 60, "after_nms": 20, "most": 40, "overlap": 0.7},
        "delta_weights": [1.0, 1.0, 1.0, 1.0],
    },
    "detections": {"most": 8, "overlap": 0.5, "threshold": 0.0},
}


@cache
def tensors() -> dict[str, torch.Tensor]:
    """Seeded weights; treat them as read-only."""
    generator = torch.Generator().manual_seed(3)
    drawn = {}
    for name, tensor in X152.modules(CONFIG).state_dict().items():
        values = torch.randn(tensor.shape, generator=generator)
        if name == "head.anchors":
            sides = torch.tensor([4.0, 8, 16, 32, 64])[:, None, None]
            values = sides * torch.tensor([[-0.5, -0.5, 1, 1], [-1, -0.25, 1.5, 0.75]])
        elif "running_var" in name or (tensor.ndim == 1 and name.endswith("weight")):
            values = 1 + values.abs() / 4
        elif tensor.ndim > 1:
            gain = {"body.stem.conv1.weight": 1 / 64, "head.anchor_deltas.weight": 0.2}.get(name, 1)
            values *= gain * tensor[0].numel() ** -0.5
        else:
            values *= 0.1
        drawn[name] = values
    return drawn


@cache
def network(dtype: str = "float32") -> X152:
    return X152(CONFIG, tensors(), device="cpu", dtype=dtype)


def checkpoint(path: Path, **more: torch.Tensor) -> Path:
    """The seeded weights under the release's names, with what it holds beside."""
    named = {}
    for name, tensor in tensors().items():
        if name == "head.anchors":
            for level, cells in enumerate(tensor):
                named[f"rpn.anchor_generator.cell_anchors.{level}"] = cells.clone()
            continue
        for ours, theirs in (
            ("body.", "backbone.body."),
            ("head.objectness_logits.", "rpn.head.cls_logits."),
            ("head.anchor_deltas.", "rpn.head.bbox_pred."),
            ("head.", "rpn.head."),
            ("fc", "roi_heads.box.feature_extractor.fc"),
            ("cls_score.", "roi_heads.box.predictor.cls_score."),
        ):
            if name.startswith(ours):
                named[theirs + name.removeprefix(ours)] = tensor
                break
        else:
            _, kind, index, _, leaf = name.split(".")
            named[f"backbone.fpn.fpn_{kind.removesuffix('_blocks')}{int(index) + 1}.{leaf}"] = tensor
    predictor = "roi_heads.box.predictor."
    named |= {
        f"{predictor}bbox_pred.weight": torch.ones(24, 10),
        f"{predictor}bbox_pred.bias": torch.ones(24),
    }
    named |= {f"{predictor}attr_linear1.weight": torch.ones(3, 3)}
    module = {f"module.{name}": tensor for name, tensor in named.items()}
    torch.save({"model": module | more, "iteration": 7}, path)
    return path
