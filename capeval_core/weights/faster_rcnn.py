"""Bottom-up attention's Faster R-CNN: the checkpoint and the config.yaml of its PyTorch release.

The release is the one of LXMERT in transformers' research projects, `unc-nlp/frcnn-vg-finetuned`: 1600
classes and 400 attributes of Visual Genome on ResNet-101. Names of tensors are the release's, shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from capeval_core.errors import FileError, file_problem, wrong_option
from capeval_core.options import option
from capeval_core.values import described
from capeval_core.weights.clip import shape_of
from capeval_core.weights.conversion import Conversion, Empty, Release, Shapes, count_blocks

STAGES = ("res2", "res3", "res4", "res5")
STRIDE = 16
"""Pixels of the image per cell of the feature map."""
YAML = "config.yaml"
"""The release's file of settings, which lies beside its checkpoint."""
_YAML_BYTES = 1 << 20
_LONGEST = 100
"""Of a text, and of a list, in that file."""

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
class FasterRcnnConversion(Conversion):
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

    release_config: str | PathLike[str] | None = option(
        None,
        f"the release's {YAML}; None: the one beside CHECKPOINT, or if there is none the released values",
    )

    def read(self, path: Path, empty: Empty) -> Release:
        beside = path.with_name(YAML)
        if self.release_config is None and beside.is_file():
            return replace(self, release_config=beside).read(path, empty)
        if self.release_config is not None:
            read_settings(Path(self.release_config))  # before the checkpoint, which takes longer
        return super().read(path, empty)

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        content, files = super().load(path)
        return content, files if self.release_config is None else [*files, Path(self.release_config)]

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        if self.release_config is None:
            settings = dict(RELEASED)
            notes.append(f"sizes, thresholds and means: as released, since there is no {YAML}")
        else:
            settings = read_settings(Path(self.release_config))
            notes.append(f"sizes, thresholds and means: of {Path(self.release_config).name}")
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


def read_settings(path: Path) -> dict[str, Any]:
    """The values of `RELEASED` in a config.yaml.

    Raises:
        InputError, FileError: there is no such file, it is no YAML, lacks a setting, or is of a network that
            is built otherwise.
    """
    import yaml

    if not path.is_file():
        fix = f"pass the {YAML} of the release, which lies beside its checkpoint"
        raise wrong_option("release_config", str(path), "no file", fix)
    try:
        if path.stat().st_size > _YAML_BYTES:
            raise ValueError(f"it takes more than {_YAML_BYTES:,} bytes")
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(file_problem(path, f"no {YAML} of a release ({reason})", verb="is")) from error
    found = {name: _value(content, name) for name in (*RELEASED, *FIXED)}
    fix = "pass the one that lies beside this checkpoint"
    if missing := [name for name in RELEASED if found[name] is None]:
        raise FileError(file_problem(path, f"{', '.join(missing)} is missing", fix))
    for name, value in found.items():
        if not _is_plain(value):
            problem = f"{name} is {described(value)}, expected a number, a short text, or a list of some"
            raise FileError(file_problem(path, problem, fix))
    for name, value in FIXED.items():
        if found[name] not in (None, value):
            problem = f"{name} is {found[name]!r}, but only {value!r} is known here"
            raise FileError(file_problem(path, problem, fix))
    return {name: found[name] for name in RELEASED}


def _is_plain(value: Any) -> bool:
    """Whether a value is a number or a short text, or a short list of such: aliases of YAML nest for ever."""
    if isinstance(value, list):
        return len(value) <= _LONGEST and all(
            not isinstance(each, list) and _is_plain(each) for each in value
        )
    if isinstance(value, str):
        return len(value) <= _LONGEST
    return value is None or isinstance(value, (bool, int, float))


def _value(content: Any, name: str) -> Any:
    """The value under a dotted name, None where there is none."""
    for part in name.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


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
