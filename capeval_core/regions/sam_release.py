"""Original SAM, MobileSAM and MobileSAMv2 checkpoints -> what a weights folder holds.

SAM's own releases and MobileSAM's `mobile_sam.pt` hold a whole model: `image_encoder`, `prompt_encoder`,
`mask_decoder`. MobileSAMv2 comes in two files: an image encoder (`l2.pt`), and the decoder that is tuned
for boxes (`Prompt_guided_Mask_Decoder.pt`, with the parts `PromtEncoder` [sic] and `MaskDecoder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from capeval_core.options import option
from capeval_core.regions.sam_model import COPY, expected_shapes, read_architecture
from capeval_core.regions.sam_names import ENCODER, GAUSSIAN, TOLD_BY, decoder_names, renamed
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.checksum import sha256_of
from capeval_core.weights.convert import as_float32, complete
from capeval_core.weights.release import Conversion, Release

Tensors = dict[str, torch.Tensor]

MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)
"""Of SAM's pixels, in levels of 255."""
_HEADS = 8
_PARTS = {"PromtEncoder": "prompt_encoder", "MaskDecoder": "mask_decoder"}
_LEFTOVERS = ("pixel_mean", "pixel_std")
_CLASSIFIER = ("head.", "norm_head.")


@dataclass(frozen=True, kw_only=True)
class SamConversion(Conversion):
    """Where the decoder comes from, what tensors may not show, and what is recorded with the weights."""

    decoder: str | PathLike[str] | None = option(
        None,
        "checkpoint of the decoder, where CHECKPOINT has none or another one shall be used: MobileSAMv2's "
        "Prompt_guided_Mask_Decoder.pt",
    )
    decoder_heads: int | None = option(None, "attention heads of the mask decoder; None: 8", minimum=1)
    source: str | None = option(None, "name of the original; None: the file's")
    url: str | None = option(None, "where it was downloaded")
    licence: str | None = option(None, "as its authors state it")

    def read(self, path: Path) -> Release:
        """The checkpoint at `path`, by these settings.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: a file cannot be read safely or is not what it should be; the message names it.
        """
        files = [path] if self.decoder is None else [path, Path(self.decoder)]
        parts = [_parts(read_checkpoint(file), file) for file in files]
        encoder, decoder = parts[0][0], parts[-1][1]
        if not encoder:
            raise ValueError(f"{path} has no image encoder: give mobile_sam.pt, l2.pt or a SAM here")
        if not decoder:
            raise ValueError(
                f"{files[-1]} has no mask decoder: pass decoder='Prompt_guided_Mask_Decoder.pt', the other "
                "file of MobileSAMv2"
            )
        try:
            kind = next(kind for name, kind in TOLD_BY.items() if name in encoder)
            kept, dropped = _without_classifier(encoder)
            tensors, widened = as_float32(_renamed(kept, decoder, kind))
            shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
            architecture = read_architecture(shapes, kind, self.decoder_heads or _HEADS)
            tensors, filled = complete(tensors, expected_shapes(architecture), "SAM")
        except ValueError as error:
            raise ValueError(f"{' and '.join(map(str, files))}: {error}") from error
        heads = f"{architecture['decoder']['num_attention_heads']} attention heads"
        told = "as in every release, since no tensor shows them" if self.decoder_heads is None else "as given"
        notes = [f"decoder: of {files[-1].name}; {heads}, {told}", *dropped, *widened, *filled]
        config = {
            "format": 1,
            "encoder": "sam",
            "architecture": architecture,
            "preprocessing": {"mean": list(MEAN), "std": list(STD)},
            "source": {
                "name": self.source or path.stem,
                "url": self.url,
                "files": [
                    {"file": file.name, "size": file.stat().st_size, "sha256": sha256_of(file)}
                    for file in files
                ],
                "licence": self.licence or "not stated by the original",
                "notes": notes,
            },
        }
        return Release(config, tensors, list(notes))


def _parts(content: Mapping[str, Any], path: Path) -> tuple[Tensors, Tensors]:
    """Image encoder, without prefix, and decoder of a checkpoint; either may be empty."""
    encoder: Tensors = {}
    decoder: Tensors = {}
    outside: Tensors = {}
    for name, tensor in content.items():
        first, _, rest = name.removeprefix("model.").partition(".")
        if first == "image_encoder":
            encoder[rest] = tensor
        elif first in ("prompt_encoder", "mask_decoder", *_PARTS):
            decoder[f"{_PARTS.get(first, first)}.{rest}"] = tensor
        elif name not in _LEFTOVERS:
            outside[name.removeprefix("model.")] = tensor
    if outside and not encoder and any(name in outside for name in TOLD_BY):
        encoder, outside = outside, {}  # an image encoder alone, without prefix
    if outside or not encoder | decoder:
        raise ValueError(
            f"{path} is no SAM: expected names that begin with image_encoder, prompt_encoder or "
            f"mask_decoder, found {name_some(outside)}"
        )
    if encoder and not any(name in encoder for name in TOLD_BY):
        raise ValueError(
            f"{path}: the image encoder is neither a ViT, nor TinyViT, nor EfficientViT-L2 (it has "
            f"{name_some(encoder)})"
        )
    return encoder, decoder


def _without_classifier(encoder: Tensors) -> tuple[Tensors, list[str]]:
    dropped = [name for name in encoder if name.startswith(_CLASSIFIER)]
    kept = {name: tensor for name, tensor in encoder.items() if name not in dropped}
    return kept, [f"dropped {', '.join(dropped)}: a classifier that SAM does not use"] if dropped else []


def _renamed(encoder: Tensors, decoder: Tensors, kind: str) -> Tensors:
    tensors = {f"vision_encoder.{renamed(name, ENCODER[kind])}": encoder[name] for name in encoder}
    tensors |= {ours: decoder[name] for name, ours in decoder_names(decoder).items()}
    if GAUSSIAN in tensors:
        tensors[COPY] = tensors[GAUSSIAN]
    return tensors
