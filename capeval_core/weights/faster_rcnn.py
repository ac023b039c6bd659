"""Bottom-up attention's Faster R-CNN: the checkpoint and the config.yaml of its PyTorch release.

The release is the one of LXMERT in transformers' research projects, `unc-nlp/frcnn-vg-finetuned`: 1600
classes and 400 attributes of Visual Genome on ResNet-101. Names of tensors are the release's, shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from capeval_core.weights.conversion import Shapes, count_blocks, shape_of
from capeval_core.weights.detectors import DetectorConversion

STAGES = ("res2", "res3", "res4", "res5")
STRIDE = 16
"""Pixels of the image per cell of the feature map."""

RELEASED: Mapping[str, Any] = {
    "input.min_size_test": 800,
    "input.max_size_test": 1333,
    "model.pixel_mean": [102.9801, 115.9465, 122.7717],
    "model.pixel_std": [1.0, 1.0, 1.0],
    "rpn.pre_nms_topk_test": 6000,
    "rpn.post_nms_topk_test": 300,
    "rpn.nms_thresh": 0.7,
    "rpn.bbox_reg_weights": [1.0, 1.0, 1.0, 1.0],
    "roi_box_head.bbox_reg_weights": [10.0, 10.0, 5.0, 5.0],
    "roi_heads.nms_thresh_test": [0.5, 0.6, 0.7],
    "min_detections": 36,
    "max_detections": 36,
}
"""Settings that no tensor shows, as the released config.yaml has them."""
FIXED: Mapping[str, Any] = {
    "input.format": "BGR",
    "model.max_pool": True,
    "resnets.norm": "BN",
    "resnets.num_groups": 1,
    "resnets.stride_in_1x1": True,
    "anchor_generator.offset": 0,
    "proposal_generator.min_size": 0,
    "roi_box_head.attr": True,
    "roi_box_head.cls_agnostic_bbox_reg": False,
    "roi_box_head.num_conv": 0,
    "roi_box_head.num_fc": 0,
    "roi_box_head.pooler_resolution": 14,
    "roi_box_head.res5halve": False,
    "size_divisibility": 0,
}
"""Settings of which the network here knows one value only."""


@dataclass(frozen=True, kw_only=True)
class FasterRcnnConversion(DetectorConversion):
    """The released checkpoint, or one that was trained by the same code with another size."""

    encoder = "faster_rcnn"
    title = "Faster R-CNN with attributes"
    anchors = ("backbone.stem.conv1.weight",)
    names = (
        (r"^proposal_generator\.anchor_generator\.cell_anchors\.0$", "head.anchors"),
        (r"^proposal_generator\.rpn_head\.", "head."),
        (r"^roi_heads\.res5\.", "res5."),
        (r"^roi_heads\.box_predictor\.", "predictor."),
    )
    yaml = "config.yaml"
    released = RELEASED
    fixed = FIXED

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        settings = self.settings(notes)
        return {
            "architecture": _architecture(shapes),
            "preprocessing": {
                "shortest_side": settings["input.min_size_test"],
                "longest_side": settings["input.max_size_test"],
                "mean": settings["model.pixel_mean"],
                "std": settings["model.pixel_std"],
            },
            "proposals": {
                "before_nms": settings["rpn.pre_nms_topk_test"],
                "after_nms": settings["rpn.post_nms_topk_test"],
                "overlap": settings["rpn.nms_thresh"],
                "delta_weights": settings["rpn.bbox_reg_weights"],
            },
            "detections": {
                "delta_weights": settings["roi_box_head.bbox_reg_weights"],
                "overlaps": settings["roi_heads.nms_thresh_test"],
                "least": settings["min_detections"],
                "most": settings["max_detections"],
            },
        }


def _architecture(shapes: Shapes) -> dict[str, Any]:
    classes, _ = shape_of(shapes, "predictor.cls_score.weight", 2)
    attributes, attribute_width = shape_of(shapes, "predictor.attr_score.weight", 2)
    return {
        "layers": [count_blocks(shapes, rf"(?:backbone\.)?{stage}\.(\d+)\.") for stage in STAGES],
        "stem_width": shape_of(shapes, "backbone.stem.conv1.weight", 4)[0],
        "width": shape_of(shapes, "backbone.res2.0.conv1.weight", 4)[0],
        "out_width": shape_of(shapes, "backbone.res2.0.conv3.weight", 4)[0],
        "proposal_width": shape_of(shapes, "head.conv.weight", 4)[0],
        "anchors": shape_of(shapes, "head.objectness_logits.weight", 4)[0],
        "classes": classes - 1,
        "attributes": attributes - 1,
        "class_width": shape_of(shapes, "predictor.cls_embedding.weight", 2)[1],
        "attribute_width": attribute_width,
    }
