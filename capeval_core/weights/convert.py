"""Original PAC-S checkpoints -> what a weights folder holds: a configuration and plain tensors.

The releases differ in wrapping (``{"state_dict": ...}`` or bare), precision, prefixes and, for PAC-S++,
in low-rank adapters; all of them are one CLIP underneath, whose sizes are read off its tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from capeval_core.errors import InputError, Problem, Setting, in_file, wrong_option
from capeval_core.options import option
from capeval_core.weights.adapters import Adapters, is_adapter, merge_adapters
from capeval_core.weights.architecture import expected_shapes, read_architecture
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.checksum import sha256_of
from capeval_core.weights.constants import CLIP_MEAN, CLIP_STD, LICENCE_NOT_STATED, PROMPT
from capeval_core.weights.release import Conversion, Release

Activation = Literal["quick_gelu", "gelu"]

_ANCHOR = "visual.conv1.weight"
# Sizes that OpenAI's archives keep among the tensors, and a mask that old versions saved.
_LEFTOVERS = ("input_resolution", "context_length", "vocab_size", "attn_mask")
# The order in which a class registers the parts of a block is the order in which it saves them.
_OPENAI_BLOCK = ("attn", "ln_1", "mlp", "ln_2")
_OPEN_CLIP_BLOCK = ("ln_1", "attn", "ln_2", "mlp")
_PART = re.compile(r"((?:visual\.)?transformer\.resblocks\.\d+)\.(attn|ln_1|ln_2|mlp)\.")


@dataclass(frozen=True, kw_only=True)
class ClipConversion(Conversion):
    """What a checkpoint's tensors may not show, and what is recorded with the weights."""

    activation: Activation | None = option(None, "of the transformer blocks; None: told by the checkpoint")
    head_width: int | None = option(None, "width of the vision tower's heads; None: 64", minimum=1)
    text_heads: int | None = option(None, "heads of the text tower; None: its width / 64", minimum=1)
    adapters: Adapters = option(
        "released", "low-rank adapters to merge: those that the released PAC-S++ script applies, all, or none"
    )
    source: str | None = option(None, "name of the original; None: the file's")
    url: str | None = option(None, "where it was downloaded")
    licence: str | None = option(None, "as its authors state it")

    def read(self, path: Path) -> Release:
        """The checkpoint at `path`, by these settings."""
        return read_release(
            path,
            activation=self.activation,
            head_width=self.head_width,
            text_heads=self.text_heads,
            adapters=self.adapters,
            source_name=self.source,
            url=self.url,
            licence=self.licence,
        )


def read_release(
    path: str | Path,
    *,
    activation: Activation | None = None,
    head_width: int | None = None,
    text_heads: int | None = None,
    adapters: Adapters = "released",
    source_name: str | None = None,
    url: str | None = None,
    licence: str | None = None,
) -> Release:
    """Read an original PAC-S or PAC-S++ checkpoint: OpenAI or open_clip naming, with or without adapters.

    Args:
        path: `.pth`, `.pt`, `.bin` (read with ``weights_only=True``) or `.safetensors`.
        activation: ``"quick_gelu"`` or ``"gelu"``, of the transformer blocks. Unless given, it is told by
            adapters (they exist in OpenAI's code only) or by the order of the tensors in the file.
        head_width: width of a vision attention head, 64 unless given.
        text_heads: attention heads of the text tower, width / 64 unless given.
        adapters: low-rank adapters to merge: ``"released"`` (those that the released PAC-S++ script
            applies), ``"all"`` or ``"none"``.
        source_name, url, licence: recorded as they are given.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read safely, is no CLIP, is incomplete, or leaves something open that
            an argument has to say. The message names the file and the mend.
    """
    if activation is not None and activation not in get_args(Activation):
        raise wrong_option("activation", activation, "", "choose 'quick_gelu' or 'gelu'", verb="")
    if adapters not in get_args(Adapters):
        raise wrong_option("adapters", adapters, "", "choose 'released', 'all' or 'none'", verb="")
    path = Path(path)
    content = read_checkpoint(path)
    try:
        names, notes = _plain_names(content)
        content = {name: content[original] for name, original in names.items()}
        floats, widened = as_float32(content)
        merged = merge_adapters(floats, adapters)
        architecture, sizes = read_architecture(
            {name: tuple(tensor.shape) for name, tensor in merged.tensors.items()},
            head_width=head_width,
            text_heads=text_heads,
        )
        tensors, filled = complete(merged.tensors, expected_shapes(architecture))
        found, evidence = _tell_activation(list(content), activation)
    except ValueError as error:
        raise in_file(path, error) from error
    if isinstance(architecture["vision"]["layers"], list):
        evidence += "; it concerns the text tower, the ResNet has ReLU"
    notes = [*notes, *widened, *merged.notes, *sizes, evidence, *filled]
    config = {
        "format": 1,
        "encoder": "clip",
        "architecture": architecture,
        "activation": found,
        "preprocessing": {
            "image_size": architecture["vision"]["image_size"],
            "mean": list(CLIP_MEAN),
            "std": list(CLIP_STD),
            "interpolation": "bicubic",
        },
        "constants": {"prompt": PROMPT},
        "source": {
            "name": source_name or path.stem,
            "url": url,
            "file": path.name,
            "size": path.stat().st_size,
            "sha256": sha256_of(path),
            "licence": licence or LICENCE_NOT_STATED,
            "notes": list(notes),
        },
    }
    return Release(config, tensors, notes)


def _plain_names(content: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Name in a plain CLIP -> name in the checkpoint, in its order, and notes."""
    notes: list[str] = []
    anchors = [name for name in content if name == _ANCHOR or name.endswith("." + _ANCHOR)]
    if not anchors:
        raise ValueError(
            f"no CLIP in OpenAI's or open_clip's naming: expected {_ANCHOR} among the tensors, found "
            f"{name_some(content)}"
        )
    if len(anchors) > 1:
        raise ValueError(f"several models in one checkpoint: {name_some(anchors)}; save one of them alone")
    prefix = anchors[0][: -len(_ANCHOR)]
    outside = [name for name in content if not name.startswith(prefix)]
    if outside:
        raise ValueError(
            f"the model lies under {prefix!r}, but there is more: {name_some(outside)}; save the model alone"
        )
    names = {name[len(prefix) :]: name for name in content}
    if prefix:
        notes.append(f"the prefix {prefix!r} of all names was taken off")

    dropped = [name for name in names if name in _LEFTOVERS]
    names = {name: original for name, original in names.items() if name not in dropped}
    if dropped:
        notes.append(f"dropped {', '.join(dropped)}: sizes or a mask that the model makes itself")
    return names, notes


def as_float32(content: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The same tensors in float32, each in memory of its own (counters stay integers), and notes."""
    changed: set[str] = set()
    tensors: dict[str, torch.Tensor] = {}
    for name, value in content.items():
        if isinstance(value, torch.Tensor) and name.endswith("num_batches_tracked"):
            tensors[name] = value.detach().to(torch.int64).clone()
            continue
        given = checked_floats(name, value)
        if given.dtype is not torch.float32:
            changed.add(str(given.dtype).removeprefix("torch."))
        tensor = given.to(torch.float32, memory_format=torch.contiguous_format)
        # Slices of one buffer cannot be saved under several names.
        if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
            tensor = tensor.clone()
        tensors[name] = tensor.contiguous()
    return tensors, [f"{' and '.join(sorted(changed))} tensors were stored as float32"] if changed else []


def checked_floats(name: str, value: Any) -> torch.Tensor:
    """A checkpoint's entry as it is, if it is a dense tensor of finite floating-point numbers."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(
            f"{name} is no tensor but a {type(value).__name__}: save the model's state dict alone"
        )
    if not value.is_floating_point() or value.layout is not torch.strided:
        raise ValueError(
            f"{name} is of type {str(value.dtype).removeprefix('torch.')}: expected floating point"
        )
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} holds NaN or infinite values: the checkpoint is broken, fetch it again")
    return value.detach()


def _tell_activation(names: list[str], given: Activation | None) -> tuple[Activation, str]:
    """The activation of the blocks, and the sentence that says how it is known."""
    if given is not None:
        return given, f"activation: {given}, as given"
    if any(is_adapter(name) for name in names):
        return (
            "quick_gelu",
            "activation: quick_gelu, because adapters are present and exist in OpenAI's code only",
        )
    orders = _block_orders(names)
    if orders == {_OPENAI_BLOCK}:
        return "quick_gelu", (
            "activation: quick_gelu, because the order of the tensors (attn, ln_1, mlp, ln_2) is that of "
            "OpenAI's code"
        )
    if orders == {_OPEN_CLIP_BLOCK}:
        return "gelu", (
            "activation: gelu, because the order of the tensors (ln_1, attn, ln_2, mlp) is that of "
            "open_clip, whose models have the exact GELU unless built with quick_gelu; if this one holds "
            "OpenAI's weights, convert it again with activation='quick_gelu'"
        )
    found = (
        "the activation cannot be told: shapes do not show it, and the order of the tensors is neither that "
        "of OpenAI's code nor that of open_clip (they are sorted by name or mixed). "
    )
    released = Setting("activation", "quick_gelu", "Pass ")
    more = " (OpenAI's models and what was tuned from them) or 'gelu' (open_clip's own)"
    raise InputError(Problem("", None, (found, released, more), verb=""))


def _block_orders(names: Iterable[str]) -> set[tuple[str, ...]]:
    """The orders of first appearance of a block's four parts that occur in the checkpoint."""
    parts: dict[str, list[str]] = {}
    for name in names:
        if found := _PART.match(name):
            seen = parts.setdefault(found[1], [])
            if found[2] not in seen:
                seen.append(found[2])
    return {tuple(order) for order in parts.values()}


def complete(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]], called: str = "CLIP"
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Exactly the expected tensors, in order, and notes; anything else is an error."""
    notes: list[str] = []
    have = dict(tensors)
    scale = have.get("logit_scale")
    if scale is not None and scale.shape == (1,):
        have["logit_scale"] = scale.reshape(())
    counters = [name for name in expected if name.endswith("num_batches_tracked") and name not in have]
    if counters:
        have |= {name: torch.zeros((), dtype=torch.int64) for name in counters}
        notes.append(
            f"{len(counters)} BatchNorm counters were missing and set to 0: they do not matter outside "
            "training"
        )
    problems = []
    if missing := [name for name in expected if name not in have]:
        problems.append(f"{len(missing)} tensors are missing: {name_some(missing)}")
    if extra := [name for name in have if name not in expected]:
        problems.append(f"{len(extra)} tensors are unknown: {name_some(extra)}")
    wrong = [name for name in expected if name in have and tuple(have[name].shape) != expected[name]]
    if wrong:
        shown = [f"{name} {tuple(have[name].shape)} instead of {expected[name]}" for name in wrong]
        problems.append(f"{len(wrong)} tensors have another shape: {name_some(shown)}")
    if problems:
        raise ValueError(f"not a complete {called}: " + "; ".join(problems))
    return {name: have[name] for name in expected}, notes
