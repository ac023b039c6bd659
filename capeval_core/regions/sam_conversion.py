"""SAM, MobileSAM and MobileSAMv2: original checkpoints, in the names of transformers' SAM and of timm.

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

from capeval_core.errors import InputError, Problem, setting
from capeval_core.options import option
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.conversion import Conversion, Shapes, Tensors, filled, renamed

MEAN = (123.675, 116.28, 103.53)
STD = (58.395, 57.12, 57.375)  # of SAM's pixels, in levels of 255
GAUSSIAN = "shared_image_embedding.positional_embedding"
# Where transformers keeps the Gaussian matrix a second time.
COPY = "prompt_encoder.shared_embedding.positional_embedding"

_ENCODER = "image_encoder."
_PARTS = {"PromtEncoder": "prompt_encoder", "MaskDecoder": "mask_decoder"}


@dataclass(frozen=True, kw_only=True)
class SamConversion(Conversion):
    """A SAM in one file, or an image encoder and a decoder in two."""

    encoder = "sam"

    decoder: str | PathLike[str] | None = option(
        None,
        "checkpoint of the decoder, where CHECKPOINT has none or another one shall be used: MobileSAMv2's "
        "Prompt_guided_Mask_Decoder.pt",
    )
    decoder_heads: int | None = option(None, "attention heads of the mask decoder; None: 8", minimum=1)

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        files = [path]
        encoder, decoder = self._parts(read_checkpoint(path), path)
        if self.decoder is not None:  # it replaces one that a whole model has
            files.append(Path(self.decoder))
            _, decoder = self._parts(read_checkpoint(files[1]), files[1])
        if not encoder:
            raise ValueError(f"{path} has no image encoder: give mobile_sam.pt, l2.pt or a SAM here")
        if not decoder:
            fix = setting("decoder", "Prompt_guided_Mask_Decoder.pt", "pass ") + ", MobileSAMv2's other file"
            raise InputError(Problem("", f"{files[-1]} has no mask decoder", fix))
        return encoder | decoder, files

    def _parts(self, content: Mapping[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Image encoder and decoder of a checkpoint; either may be empty."""
        encoder: dict[str, Any] = {}
        decoder: dict[str, Any] = {}
        outside: dict[str, Any] = {}
        for name, tensor in content.items():
            name = name.removeprefix("model.")
            first, _, parameter = name.partition(".")
            if first == "image_encoder":
                encoder[name] = tensor
            elif first in ("prompt_encoder", "mask_decoder", *_PARTS):
                decoder[f"{_PARTS.get(first, first)}.{parameter}"] = tensor
            elif name not in ("pixel_mean", "pixel_std"):  # in every file the same, and in the config here
                outside[name] = tensor
        if not encoder and self.facts["kinds"].keys() & outside:  # an image encoder alone
            encoder = {_ENCODER + name: tensor for name, tensor in outside.items()}
            outside = {}
        if outside or not encoder | decoder or (encoder and not self._kind(encoder)):
            parts = "image_encoder (a ViT, TinyViT or EfficientViT-L2), prompt_encoder or mask_decoder"
            outside_names = name_some(outside or encoder)
            raise ValueError(f"{path} is no SAM: expected names under {parts}, found {outside_names}")
        return encoder, decoder

    def _kind(self, content: Mapping[str, Any]) -> str | None:
        """The kind of an image encoder, by a tensor that only this kind has."""
        kinds: dict[str, str] = self.facts["kinds"]
        for name, kind in kinds.items():
            if _ENCODER + name in content:
                return kind
        return None

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        names = self.facts["encoders"][self._kind(content)]
        tensors: Tensors = {}
        for name, tensor in super().translate(content, notes).items():
            if name.startswith(_ENCODER):
                name = f"vision_encoder.{renamed(name.removeprefix(_ENCODER), names)}"
            tensors[name] = tensor
        if GAUSSIAN in tensors:
            tensors[COPY] = tensors[GAUSSIAN]
        return tensors

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        if self.decoder is not None:
            notes.append(f"decoder: of {Path(self.decoder).name}")
        heads = self.decoder_heads or 8
        evidence = "as given" if self.decoder_heads else "as in every release, since no tensor shows them"
        notes.append(f"decoder: {heads} attention heads, {evidence}")
        sizes: dict[str, Any] = super().config(shapes, content, notes)["architecture"]
        sizes["kind"] = self._kind(content)
        if sizes["kind"] == "vit":  # the other encoders have one size each
            sizes |= self._vit(shapes)
        # Cross-attention runs at half the width, by which the tensors show the rate.
        inner = shapes["mask_decoder.transformer.layers.0.cross_attn_token_to_image.q_proj.weight"][0]
        sizes["decoder"] |= {
            "num_attention_heads": heads,
            "attention_downsample_rate": sizes["decoder"]["hidden_size"] // inner,
        }
        return {"architecture": sizes, "preprocessing": {"mean": list(MEAN), "std": list(STD)}}

    def _vit(self, shapes: Shapes) -> dict[str, Any]:
        vision = filled(self.facts["vit"], shapes)
        patch = shapes["vision_encoder.patch_embed.projection.weight"][3]
        grid = shapes["vision_encoder.pos_embed"][1]
        head_width = 0
        window = grid
        global_layers = []
        for layer in range(vision["num_hidden_layers"]):
            # Relative positions of a window of n cells are -(n - 1) to n - 1: 2 n - 1 rows.
            rows, head_width = shapes[f"vision_encoder.layers.{layer}.attn.rel_pos_h"]
            side = (rows + 1) // 2
            if side == grid:
                global_layers.append(layer)
            else:
                window = side
        vision |= {
            "num_attention_heads": vision["hidden_size"] // head_width,
            "window_size": window,
            "global_attn_indexes": global_layers,
        }
        return {"image_size": grid * patch, "patch_size": patch, "vision": vision}
