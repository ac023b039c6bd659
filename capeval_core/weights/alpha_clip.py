"""Original Alpha-CLIP checkpoints -> what a weights folder holds.

A released checkpoint holds the image tower alone, without the prefix of its names; the text tower is that
of the CLIP which it was tuned from, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch

from capeval_core.errors import Setting, in_file, wrong_option
from capeval_core.options import option
from capeval_core.weights.adapters import is_adapter
from capeval_core.weights.architecture import expected_shapes, read_architecture
from capeval_core.weights.catalogue import ALPHA_CLIP
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.checksum import sha256_of
from capeval_core.weights.constants import CLIP_MEAN, CLIP_STD, LICENCE_NOT_STATED, MASK_MEAN, MASK_STD
from capeval_core.weights.convert import Activation, as_float32, complete, read_release
from capeval_core.weights.folder import OPEN_CLIP_TENSORS, WeightsError, open_weights
from capeval_core.weights.open_clip_format import translate_open_clip
from capeval_core.weights.release import Conversion, Release

Tensors = dict[str, torch.Tensor]

_KERNEL = "conv1_alpha.weight"


@dataclass(frozen=True, kw_only=True)
class AlphaClipConversion(Conversion):
    """Where the text tower comes from, what tensors may not show, and what is recorded with the weights."""

    base: str | PathLike[str] | None = option(
        None,
        "the CLIP that the checkpoint was tuned from, whose text tower it uses: a checkpoint, a weights "
        "folder, or a Hub repository in open_clip's format",
    )
    zero_mask: bool = option(
        False, "CHECKPOINT is a plain CLIP: give it a mask channel of zeros, under which masks change nothing"
    )
    activation: Activation | None = option(None, "of the transformer blocks; None: told by the base")
    text_heads: int | None = option(
        None, "heads of the text tower; None: told by the base, or its width / 64", minimum=1
    )
    source: str | None = option(None, "name of the original; None: the file's")
    url: str | None = option(
        None, "where it was downloaded; None: as in the catalogue, if the file is listed"
    )
    licence: str | None = option(None, "as its authors state it; None: as in the catalogue")

    def read(self, path: Path) -> Release:
        """The checkpoint at `path` and its base, by these settings.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: a file cannot be read safely, is not what it should be, or does not belong to the
                other. The message names the file and the mend.
        """
        if self.zero_mask:
            tensors, base, notes = self._plain(path)
        else:
            tensors, base, notes = self._tuned(path)
        try:
            architecture, sizes = read_architecture(
                {name: tuple(tensor.shape) for name, tensor in tensors.items()},
                text_heads=base.text_heads,
            )
            expected = _expected(architecture)
            tensors, filled = complete(tensors, expected, called="Alpha-CLIP")
        except ValueError as error:
            raise in_file(path, error) from error
        # Of the text tower the base has told already, of the image tower perhaps.
        sizes = [note for note in sizes if not note.startswith("text heads")]
        notes = list(dict.fromkeys([*notes, *sizes, *filled]))
        return Release(self._config(path, architecture, base, notes), tensors, notes)

    def _config(
        self, path: Path, architecture: dict[str, Any], base: _Base, notes: list[str]
    ) -> dict[str, Any]:
        listed = next((entry for entry in ALPHA_CLIP if entry.checkpoint == path.name), None)
        return {
            "format": 1,
            "encoder": "alpha_clip",
            "architecture": architecture,
            "activation": base.activation,
            "preprocessing": {
                "image_size": architecture["vision"]["image_size"],
                "mean": list(CLIP_MEAN),
                "std": list(CLIP_STD),
                "interpolation": "bicubic",
            },
            "mask": {"mean": MASK_MEAN, "std": MASK_STD},
            "base": base.name,
            "source": {
                "name": self.source or path.stem,
                "url": self.url or (listed.original if listed else None),
                "file": path.name,
                "size": path.stat().st_size,
                "sha256": sha256_of(path),
                "licence": self.licence or (listed and listed.licence) or LICENCE_NOT_STATED,
                "notes": notes,
            },
        }

    def _plain(self, path: Path) -> tuple[Tensors, _Base, list[str]]:
        """A plain CLIP with a mask channel of zeros; what is known of it; notes."""
        if self.base is not None:
            found = "with zero_mask the checkpoint is the plain CLIP"
            raise wrong_option("base", fspath(self.base), found, "pass no base", verb="")
        base = self._read_file(path)
        kernel = base.tensors["visual.conv1.weight"]
        note = "the mask channel is zero, as asked for: masks change nothing, these are the features of CLIP"
        tensors = {**base.tensors, f"visual.{_KERNEL}": torch.zeros_like(kernel[:, :1])}
        return tensors, base, [*base.notes, note]

    def _tuned(self, path: Path) -> tuple[Tensors, _Base, list[str]]:
        """The image tower of a checkpoint with the text tower of its base; the base; notes."""
        content = read_checkpoint(path)
        try:
            tower, notes = _image_tower(content)
        except ValueError as error:
            raise in_file(path, error) from error
        if self.base is None:
            raise ValueError(
                f"{path} holds the image tower alone: pass base, the CLIP that it was tuned from and whose "
                f"text tower it uses (on the command line --base){_guess(tower)}"
            )
        file = Path(self.base).expanduser()
        base = self._read_file(file) if file.is_file() else self._read_folder(fspath(self.base))
        if differing := [
            f"{name} {tuple(tower[name].shape)} and {tuple(tensor.shape)}"
            for name, tensor in base.tensors.items()
            if name in tower and tower[name].shape != tensor.shape
        ]:
            raise ValueError(
                f"{path} was not tuned from base={fspath(self.base)!r}: {len(differing)} tensors of the "
                f"image towers have different shapes, {name_some(differing, 2)}{_guess(tower)}"
            )
        texts = {name: tensor for name, tensor in base.tensors.items() if not name.startswith("visual.")}
        return {**tower, **texts}, base, [*notes, f"text tower: of {base.name}", *base.notes]

    def _read_file(self, path: Path) -> _Base:
        release = read_release(path, activation=self.activation, text_heads=self.text_heads)
        heads = release.config["architecture"]["text"]["heads"]
        return _Base(path.name, release.tensors, release.config["activation"], heads, release.notes)

    def _read_folder(self, name: str) -> _Base:
        try:
            folder = open_weights(name, metric="clips", tiny="pacs")
        except WeightsError as error:
            error.change(lambda problem: problem.renamed({"weights": "base"}))
            raise
        config = folder.config
        if folder.tensor_file.name == OPEN_CLIP_TENSORS:
            config = translate_open_clip(config)
        if config.get("encoder") != "clip":
            kind = f"weights of encoder {config.get('encoder')!r}, expected those of a CLIP"
            raise wrong_option("base", name, kind, verb="holds")
        activation, heads = config.get("activation"), config["architecture"]["text"].get("heads")
        for option_name, given, found in (
            ("activation", self.activation, activation),
            ("text_heads", self.text_heads, heads),
        ):
            if given not in (None, found):
                other = ("not what ", Setting("base", name), f" says, {found!r}")
                raise wrong_option(option_name, given, other, "leave it out")
        tensors, notes = as_float32(folder.tensors())
        return _Base(folder.name, tensors, str(activation), heads, notes)


@dataclass(frozen=True)
class _Base:
    """A plain CLIP, and what its tensors do not show."""

    name: str
    tensors: Tensors
    activation: str
    text_heads: int | None
    notes: list[str]


def _image_tower(content: Mapping[str, Any]) -> tuple[Tensors, list[str]]:
    """The tensors of a released checkpoint under the names of a whole CLIP, and notes."""
    anchors = [name for name in content if name == _KERNEL or name.endswith("." + _KERNEL)]
    if not anchors:
        plain = any(name.endswith("visual.conv1.weight") for name in content)
        mend = (
            "; this is a plain CLIP: convert an Alpha-CLIP checkpoint and pass this one as base, or ask "
            "for zero_mask (--zero-mask), a mask channel of zeros, under which masks change nothing"
        )
        raise ValueError(
            f"no Alpha-CLIP: expected {_KERNEL} among the tensors, found {name_some(content)}"
            + (mend if plain else "")
        )
    prefix = anchors[0][: -len(_KERNEL)]
    outside = [name for name in content if not name.startswith(prefix)]
    if outside or len(anchors) > 1:
        raise ValueError(
            f"the image tower lies under {prefix!r}, but there is more: {name_some(outside or anchors[1:])}"
            "; save its state dict alone (model.visual.state_dict())"
        )
    if adapters := [name for name in content if is_adapter(name)]:
        raise ValueError(
            f"{len(adapters)} low-rank adapters ({name_some(adapters, 2)}): the published checkpoints have "
            "none, they were tuned in full; merge these where they were trained, and save again"
        )
    floats, notes = as_float32({name[len(prefix) :]: value for name, value in content.items()})
    tower = {f"visual.{_plain_name(name)}": tensor for name, tensor in floats.items()}
    if prefix:
        notes.append(f"the prefix {prefix!r} of all names was taken off")
    return tower, notes


def _plain_name(name: str) -> str:
    """
    >>> _plain_name("transformer.resblocks.0.attn.in_proj.weight")
    'transformer.resblocks.0.attn.in_proj_weight'
    """
    return name.replace(".attn.in_proj.", ".attn.in_proj_")


def _expected(architecture: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    vision = architecture["vision"]
    if isinstance(vision["layers"], list):
        raise ValueError("the image tower is a ResNet, but only a ViT can have a mask channel")
    kernel = (vision["width"], 1, vision["patch_size"], vision["patch_size"])
    return {**expected_shapes(architecture), f"visual.{_KERNEL}": kernel}


_BASES = {
    (768, 16, 197): "timm/vit_base_patch16_clip_224.openai",
    (1024, 14, 257): "timm/vit_large_patch14_clip_224.openai",
    (1024, 14, 577): "timm/vit_large_patch14_clip_336.openai",
}
"""Width, patch and positions of the published towers -> the CLIP that each was tuned from, on the Hub."""


def _guess(tower: Tensors) -> str:
    kernel, positions = tower.get("visual.conv1.weight"), tower.get("visual.positional_embedding")
    if kernel is None or positions is None or kernel.ndim != 4:
        return ""
    base = _BASES.get((kernel.shape[0], kernel.shape[-1], positions.shape[0]))
    return f"; its sizes are those of {base}" if base else ""
