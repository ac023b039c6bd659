"""The ResNeXt-152-32x8d FPN detector of 12-in-1: the checkpoint and the YAML file of its release.

The release is that of Lu et al., CVPR 2020, https://github.com/facebookresearch/vilbert-multi-task, of a fork
of maskrcnn-benchmark. Names of tensors are the release's, shortened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from capeval_core.weights.conversion import Shapes, Tensors, count_blocks, shape_of
from capeval_core.weights.detectors import DetectorConversion

STAGES = ("layer1", "layer2", "layer3", "layer4")
EXPANSION = 4
"""Times as many channels behind a residual block as it has planes."""
_ANCHORS = re.compile(r"rpn\.anchor_generator\.cell_anchors\.(\d)")
_LEVELS = 5

SHORTEST, LONGEST, MEAN, KEPT, OVERLAP = 800, 1333, [102.9801, 115.9465, 122.7717], 100, 0.5
"""Constants of the release's `extract_features.py`: sides, blue, green and red, boxes, suppression."""

RELEASED: Mapping[str, Any] = {
    "MODEL.RPN.PRE_NMS_TOP_N_TEST": 6000,
    "MODEL.RPN.POST_NMS_TOP_N_TEST": 1000,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST": 2000,
    "MODEL.RPN.NMS_THRESH": 0.7,
}
"""Settings that no tensor shows; the defaults of the code hold where the YAML file has none."""
FIXED: Mapping[str, Any] = {
    "MODEL.RPN.USE_FPN": True,
    "MODEL.RPN.ANCHOR_STRIDE": [4, 8, 16, 32, 64],
    "MODEL.RPN.MIN_SIZE": 0,
    "MODEL.RESNETS.STRIDE_IN_1X1": False,
    "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION": 7,
    "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO": 2,
    "MODEL.ROI_BOX_HEAD.POOLER_SCALES": [0.25, 0.125, 0.0625, 0.03125],
    "MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR": "FPN2MLPFeatureExtractor",
}


def _block(match: re.Match[str]) -> str:
    """`fpn_inner1` is the first of `inner_blocks`."""
    return f"fpn.{match[1]}_blocks.{int(match[2]) - 1}.0."


@dataclass(frozen=True, kw_only=True)
class X152Conversion(DetectorConversion):
    """The released checkpoint, or one that was trained by the same code with another size."""

    encoder = "x152"
    title = "ResNeXt FPN detector"
    anchors = ("backbone.body.stem.conv1.weight",)
    unused = r"roi_heads\.box\.predictor\.(?!cls_score\.)"
    names = (
        (r"^backbone\.fpn\.fpn_(inner|layer)(\d)\.", _block),
        (r"^backbone\.body\.", "body."),
        (r"^rpn\.head\.cls_logits\.", "head.objectness_logits."),
        (r"^rpn\.head\.bbox_pred\.", "head.anchor_deltas."),
        (r"^rpn\.head\.", "head."),
        (r"^roi_heads\.box\.(?:feature_extractor|predictor)\.", ""),
    )
    yaml = "detectron_config.yaml"
    released = RELEASED
    fixed = FIXED
    partial = True

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        tensors = super().translate(content, notes)
        levels = sorted(name for name in tensors if _ANCHORS.fullmatch(name))
        if len(levels) != _LEVELS:
            raise ValueError(
                f"rpn.anchor_generator.cell_anchors has {len(levels)} levels, expected {_LEVELS}"
            )
        tensors["head.anchors"] = torch.stack([tensors.pop(name) for name in levels])
        return tensors

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        settings = self.settings(notes)
        return {
            "architecture": _architecture(shapes),
            "preprocessing": {"shortest_side": SHORTEST, "longest_side": LONGEST, "mean": list(MEAN)},
            "proposals": {
                "before_nms": settings["MODEL.RPN.PRE_NMS_TOP_N_TEST"],
                "after_nms": settings["MODEL.RPN.POST_NMS_TOP_N_TEST"],
                "most": settings["MODEL.RPN.FPN_POST_NMS_TOP_N_TEST"],
                "overlap": settings["MODEL.RPN.NMS_THRESH"],
                "delta_weights": [1.0, 1.0, 1.0, 1.0],
            },
            "detections": {"most": KEPT, "overlap": OVERLAP, "threshold": 0.0},
        }


def _architecture(shapes: Shapes) -> dict[str, Any]:
    width, per_group, _, _ = shape_of(shapes, "body.layer1.0.conv2.weight", 4)
    return {
        "layers": [count_blocks(shapes, rf"body\.{stage}\.(\d+)\.") for stage in STAGES],
        "stem_width": shape_of(shapes, "body.stem.conv1.weight", 4)[0],
        "width": width,
        "groups": width // per_group,
        "out_width": shape_of(shapes, "body.layer1.0.conv3.weight", 4)[0],
        "pyramid_width": shape_of(shapes, "head.conv.weight", 4)[0],
        "anchors": shape_of(shapes, "head.objectness_logits.weight", 4)[0],
        "feature_width": shape_of(shapes, "fc7.weight", 2)[0],
        "classes": shape_of(shapes, "cls_score.weight", 2)[0] - 1,
    }
