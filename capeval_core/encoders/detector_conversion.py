"""The two Faster R-CNNs whose boxes metrics were trained on; names and settings are in `networks.toml`.

Bottom-up attention's is of LXMERT's PyTorch release, `unc-nlp/frcnn-vg-finetuned`: 1600 classes and 400
attributes of Visual Genome on ResNet-101. 12-in-1's ResNeXt-152-32x8d FPN is of Lu et al., CVPR 2020,
https://github.com/facebookresearch/vilbert-multi-task, trained by a fork of maskrcnn-benchmark.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from capeval_core.errors import described, file_error, wrong_option
from capeval_core.options import option
from capeval_core.weights.conversion import Conversion, Empty, Release, Shapes, Tensors

_LEVELS = 5


@dataclass(frozen=True, kw_only=True)
class _DetectorConversion(Conversion):
    """A checkpoint of a detector, with the file of settings that lies beside it."""

    release_config: str | PathLike[str] | None = option(
        None,
        "the release's file of settings; None: the one beside CHECKPOINT, or if there is none the released "
        "values",
    )

    def read(self, path: Path, empty: Empty) -> Release:
        neighbour = path.with_name(self.facts["yaml"])
        if self.release_config is None and neighbour.is_file():
            return replace(self, release_config=neighbour).read(path, empty)
        self.settings([])  # before the checkpoint, which takes longer
        return super().read(path, empty)

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        content, files = super().load(path)
        if self.release_config is not None:
            files = [*files, Path(self.release_config)]
        return content, files

    def settings(self, notes: list[str]) -> dict[str, Any]:
        """The settings that no tensor shows, and a note that says where they come from."""
        import yaml

        name = self.facts["yaml"]
        released = self.facts["released"]
        if self.release_config is None:
            notes.append(f"sizes, thresholds and means: as released, since there is no {name}")
            return dict(released)
        path = Path(self.release_config)
        if not path.is_file():
            fix = f"pass the {name} of the release, which lies beside its checkpoint"
            raise wrong_option("release_config", str(path), "is no file", fix)
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            problem = f"is no {name} of a release ({' '.join(str(error).split())[:200]})"
            raise file_error(path, problem) from error
        settings: dict[str, Any] = {}
        problems: list[str] = []
        for key, default in released.items():
            value = _value(content, key)
            # maskrcnn-benchmark writes what differs from its defaults, LXMERT's release writes all.
            if value is None and not self.facts.get("partial"):
                problems.append(f"{key} is missing")
            settings[key] = default if value is None else value
        # Settings that change the arithmetic in ways that are not implemented: any other value is refused.
        for key, fixed_value in self.facts["fixed"].items():
            value = _value(content, key)
            if value not in (None, fixed_value):
                problems.append(f"{key} is {described(value)}, but only {fixed_value!r} is known")
        if problems:
            fix = "pass the one that lies beside this checkpoint"
            raise file_error(path, problems[0], fix, sentence=True)
        notes.append(f"sizes, thresholds and means: of {path.name}")
        return settings


def _value(content: object, name: str) -> Any:
    """The value under a dotted name, None where there is none; a tuple in text is a list."""
    for part in name.split("."):
        content = content.get(part) if isinstance(content, dict) else None
    # yacs, by which maskrcnn-benchmark writes its settings, writes tuples as Python does: "(0.1, 0.2)".
    if isinstance(content, str) and content.startswith("("):
        try:
            return list(ast.literal_eval(content))
        except (ValueError, TypeError, SyntaxError):
            return content
    return content


@dataclass(frozen=True, kw_only=True)
class FasterRcnnConversion(_DetectorConversion):
    """Bottom-up attention's checkpoint, or one that was trained by the same code with another size."""

    encoder = "faster_rcnn"


@dataclass(frozen=True, kw_only=True)
class X152Conversion(_DetectorConversion):
    """12-in-1's checkpoint, or one that was trained by the same code with another size."""

    encoder = "x152"

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        tensors = super().translate(content, notes)
        levels = [f"rpn.anchor_generator.cell_anchors.{level}" for level in range(_LEVELS)]
        tensors["head.anchors"] = torch.stack([tensors.pop(name) for name in levels])  # (levels, a, 4)
        return tensors

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        config = super().config(shapes, content, notes)
        # A grouped convolution's kernels see the channels of their group alone: (out, in / groups, 3, 3).
        width, per_group, _, _ = shapes["body.layer1.0.conv2.weight"]
        config["architecture"]["groups"] = width // per_group
        return config
