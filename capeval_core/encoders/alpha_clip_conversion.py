"""Alpha-CLIP: original checkpoints, an image tower, beside the text tower of the CLIP it was tuned from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capeval_core.encoders.clip_conversion import (
    Activation,
    ClipConversion,
    read_architecture,
    translate_open_clip,
)
from capeval_core.errors import InputError, Problem, expanded_path, naming, setting, wrong_option
from capeval_core.options import option
from capeval_core.weights.catalogue import MASK_MEAN, MASK_STD
from capeval_core.weights.checkpoint import read_checkpoint
from capeval_core.weights.conversion import (
    Conversion,
    Empty,
    Release,
    Shapes,
    Tensors,
    clip_preprocessing,
    shapes_of,
)
from capeval_core.weights.folder import OPEN_CLIP_TENSORS, open_weights
from capeval_core.weights.networks import NETWORKS

_KERNEL = "conv1_alpha.weight"
_CLIP_KERNEL = "visual.conv1.weight"


@dataclass(frozen=True, kw_only=True)
class AlphaClipConversion(Conversion):
    """Alpha-CLIP, with the text tower of its base; or a plain CLIP with a mask channel of zeros."""

    encoder = "alpha_clip"

    base: str | PathLike[str] | None = option(
        None,
        "the CLIP that the checkpoint was tuned from, whose text tower it uses: a checkpoint, a weights "
        "folder, or a Hub repository in open_clip's format",
    )
    zero_mask: bool = option(
        False, "CHECKPOINT is a plain CLIP: give it a mask channel of zeros, under which masks change nothing"
    )
    activation: Activation | None = option(None, "of the transformer blocks; None: as the base has")
    text_heads: int | None = option(
        None, "heads of the text tower; None: as the base has, or its width / 64", minimum=1
    )

    def read(self, path: Path, empty: Empty) -> Release:
        notes: list[str] = []
        files = [path]
        if self.zero_mask:
            if self.base is not None:
                problem = "with zero_mask the checkpoint is the plain CLIP"
                raise wrong_option("base", fspath(self.base), problem, "pass no base", sentence=True)
            name = path.name
            base = self._base_file(path, empty)
            kernel = base.tensors[_CLIP_KERNEL]  # (width, 3, patch, patch); a mask has one channel
            tensors = {**base.tensors, f"visual.{_KERNEL}": torch.zeros_like(kernel[:, :1])}
            notes.append("the mask channel is zero: masks change nothing, these are the features of CLIP")
        else:
            content = read_checkpoint(path)
            with self.naming(files):
                tower = self.translate(self.select(content, notes), notes)
            name, base = self._base(path, tower, empty)
            base_file = expanded_path(str(self.base))
            # A folder or a repository is named in the config; only a file has a digest to note.
            if base_file.is_file():
                files.append(base_file)
            texts = {key: value for key, value in base.tensors.items() if not key.startswith("visual.")}
            tensors = {**tower, **texts}
            notes.append(f"text tower: of {name}")
        with self.naming([path]):
            # Shapes do not show how many heads there are, the base's config does.
            heads = base.config["architecture"]["text"].get("heads")
            config = replace(self, text_heads=heads).config(shapes_of(tensors), tensors, [])
        config |= {"activation": base.config["activation"], "base": name}
        return self.release(files, config, tensors, empty, [*notes, *base.notes])

    def select(self, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        # By their ends: releases put different prefixes before a name (`module.`, `state_dict`'s own).
        has_image_kernel = any(name.endswith(_CLIP_KERNEL) for name in content)
        has_mask_kernel = any(name.endswith(_KERNEL) for name in content)
        if has_image_kernel and not has_mask_kernel:
            raise ValueError(
                "this is a plain CLIP: convert an Alpha-CLIP checkpoint and pass this one as base, or pass "
                "zero_mask (--zero-mask), a mask channel of zeros, under which masks change nothing"
            )
        return super().select(content, notes)

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        architecture = read_architecture(shapes, notes, text_heads=self.text_heads)
        return {
            "architecture": architecture,
            "preprocessing": clip_preprocessing(architecture["vision"]["image_size"]),
            "mask": {"mean": MASK_MEAN, "std": MASK_STD},
        }

    def _base(self, path: Path, tower: Tensors, empty: Empty) -> tuple[str, Release]:
        """The name and the content of the CLIP that the image tower was tuned from."""
        shapes = shapes_of(tower)
        kernel = shapes.get(_CLIP_KERNEL, ())
        positions = shapes.get("visual.positional_embedding", ())
        # Width, patch and positions: by these `networks.toml` knows the bases of the published towers.
        sizes = " ".join(map(str, (*kernel[:1], *kernel[-1:], *positions[:1])))
        guess = self.facts["bases"].get(sizes)
        hint = f"; its sizes are those of {guess}" if guess else ""
        if self.base is None:
            fix = (
                f"pass {setting('base', 'CLIP')}, the one that it was tuned from and whose text tower it uses"
            )
            raise InputError(Problem("", f"{path} holds the image tower alone", fix + hint))
        file = expanded_path(self.base)
        if file.is_file():
            name = file.name
            base = self._base_file(file, empty)
        else:
            name, base = self._base_folder(fspath(self.base))
        base_shapes = shapes_of(base.tensors)
        unequal = [key for key in shapes.keys() & base_shapes if shapes[key] != base_shapes[key]]
        if unequal:
            problem = f"{path} was not {setting('base', fspath(self.base), 'tuned from ')}"
            more = f"{len(unequal)} tensors of the image towers have different shapes, as {min(unequal)}"
            raise InputError(Problem("", problem, more + hint))
        return name, base

    def _base_file(self, path: Path, empty: Empty) -> Release:
        def without_mask(config: dict[str, Any]) -> nn.Module:
            model = empty(config)
            # `empty` builds an Alpha-CLIP, but the base is filled as the plain CLIP that it is.
            del model.get_submodule("visual").conv1_alpha
            return model

        return ClipConversion(activation=self.activation, text_heads=self.text_heads).read(path, without_mask)

    def _base_folder(self, name: str) -> tuple[str, Release]:
        with naming({"weights": "base"}):
            folder = open_weights(name, metric=self.facts["base_of"], tiny=str(NETWORKS["clip"].tiny))
        config = folder.config
        if folder.tensor_file.name == OPEN_CLIP_TENSORS:
            config = translate_open_clip(config)
        if config.get("encoder") != "clip":
            kind = f"holds weights of encoder {config.get('encoder')!r}, expected those of a CLIP"
            raise wrong_option("base", name, kind)
        heads = config["architecture"]["text"].get("heads")
        # A folder knows its own settings: one that contradicts them is a mistake, not a wish.
        for setting_name, value in (("activation", config.get("activation")), ("text_heads", heads)):
            if getattr(self, setting_name) not in (None, value):
                problem = f"is not what {setting('base', name)} says, {value!r}"
                raise wrong_option(setting_name, getattr(self, setting_name), problem, "leave it out")
        notes: list[str] = []
        return folder.name, Release(config, self.typed(folder.tensors(), notes), notes)
