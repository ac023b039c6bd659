"""What every converter shares: from an original checkpoint to config and tensors of a weights folder."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from capeval_core.errors import InputError, Problem, expanded_path, option_name, wrong_option
from capeval_core.options import Settings, option
from capeval_core.weights.catalogue import (
    CLIP_MEAN,
    CLIP_STD,
    LICENCE_NOT_STATED,
    WEIGHTS,
    WeightsEntry,
)
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.folder import read_words, sha256_of

Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
Names = Sequence[tuple[str, str | Callable[[re.Match[str]], str]]]
"""Pattern in a name of the original -> its replacement; every rule is applied, in order."""
Empty = Callable[[dict[str, Any]], nn.Module]
"""The encoder's model of a config, on torch's meta device."""
_ENDINGS = re.compile(r"(\.(fp16|pt|pth|bin|safetensors|index|json))+$")


@dataclass(frozen=True)
class Release:
    """An original checkpoint in plain form.

    config: the weights folder's config.json, without checksum and canary. tensors: as the encoder names them,
    contiguous, complete and nothing else, in float32 or as released. notes: what was inferred, merged or left
    out, and why; also in ``config["source"]["notes"]``.
    """

    config: dict[str, Any]
    tensors: Tensors
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Conversion(Settings, ABC):
    """A conversion; its settings are flags of `capeval convert`.

    A network states its name table and reads its architecture; a step that differs is overridden. Every step
    appends to `notes` what it inferred, merged or left out.
    """

    encoder: ClassVar[str]
    """What `encoder` in config.json calls the network."""
    title: ClassVar[str]
    """The network in messages."""
    anchors: ClassVar[tuple[str, ...]] = ()
    """A tensor that every such checkpoint has, in each naming; what precedes its name is the prefix. Empty:
    there is none to take off."""
    unused: ClassVar[str] = "$^"
    """Pattern of the beginning of names that the model does not need."""
    names: ClassVar[Names] = ()
    """From the original's names to the encoder's."""
    default_licence: ClassVar[str] = LICENCE_NOT_STATED

    source: str | None = option(None, "name of the original; None: the file's")
    url: str | None = option(
        None, "where it was downloaded; None: as in the catalogue, if the file is listed"
    )
    licence: str | None = option(None, "as its authors state it; None: as in the catalogue")

    def read(self, path: Path, empty: Empty) -> Release:
        """The checkpoint at `path`, by these settings, with exactly the tensors of the model of `empty`."""
        content, files = self.load(path)
        notes: list[str] = []
        with naming_files(files, self.title):
            content = self.select(content, notes)
            tensors = self.translate(content, notes)
            config = self.config(shapes_of(tensors), content, notes)
        return self.release(files, config, tensors, empty, notes)

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        """What the checkpoint holds under its names, and the files that it was read from."""
        return read_checkpoint(path), [path]

    def select(self, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        """What the model needs, without the common prefix."""
        if self.anchors:
            content = _without_prefix(content, self.anchors, self.title, notes)
        if unused := [name for name in content if re.match(self.unused, name)]:
            found = f"left out {len(unused)} tensors that the model does not use or makes itself"
            notes.append(f"{found}: {name_some(unused)}")
        return {name: value for name, value in content.items() if name not in unused}

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        """Float32 tensors under the encoder's names."""
        return rename(as_float32(content, notes), self.names)

    @abstractmethod
    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        """The architecture, its sizes read off the shapes of tensors, and what else the encoder needs."""

    def release(
        self,
        files: Sequence[Path],
        config: Mapping[str, Any],
        tensors: Tensors,
        empty: Empty,
        notes: list[str],
    ) -> Release:
        """Config and tensors, once names and shapes are exactly those of the model."""
        config = {"format": 1, "encoder": self.encoder, **config}
        with naming_files(files, self.title):
            tensors = complete(tensors, empty(config).state_dict(), self.title, notes)
        first, *beside = [
            {"file": file.name, "size": file.stat().st_size, "sha256": sha256_of(file)} for file in files
        ]
        listed = _listed(files[0])
        source = {
            "name": self.source or _ENDINGS.sub("", files[0].name),
            "url": self.url or (listed and listed.original),
            **first,
            **({"beside": beside} if beside else {}),
            "licence": self.licence or (listed and listed.licence) or self.default_licence,
            "notes": notes,
        }
        return Release({**config, "source": source}, tensors, list(notes))


def _listed(file: Path) -> WeightsEntry | None:
    """The catalogue's entry of a released file; weights that are taken as they are have but an address."""
    address, path = f"/{file.name}", f"/{file.absolute().as_posix()}"
    for entry in WEIGHTS:
        if path.endswith(f"/{entry.checkpoint}") if entry.checkpoint else entry.original.endswith(address):
            return entry
    return None


@contextmanager
def naming_files(files: Sequence[Path], title: str) -> Iterator[None]:
    """Let errors name the files that are converted."""
    names = " and ".join(map(str, files[:2]))
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{names}: not a complete {title}: {error.args[0]!r} is missing") from error
    except ValueError as error:
        raise InputError(f"{names}: {error}") from error


def _without_prefix(
    content: Mapping[str, Any], anchors: Sequence[str], title: str, notes: list[str]
) -> dict[str, Any]:
    """The content without the prefix that all its names have, such as ``module.``."""
    matches = [(name, a) for name in content for a in anchors if name == a or name.endswith(f".{a}")]
    if not matches:
        found = f"expected {' or '.join(anchors)} among the tensors, found {name_some(content)}"
        raise ValueError(f"no {title}: {found}")
    if len(matches) > 1:
        names = name_some(name for name, _ in matches)
        raise ValueError(f"several models in one checkpoint: {names}; save one of them alone")
    prefix = matches[0][0].removesuffix(matches[0][1])
    if outside := [name for name in content if not name.startswith(prefix)]:
        raise ValueError(
            f"beside the model under {prefix!r} there is more: {name_some(outside)}; save it alone"
        )
    if prefix:
        notes.append(f"the prefix {prefix!r} of all names was taken off")
    return {name.removeprefix(prefix): value for name, value in content.items()}


def renamed(name: str, names: Names) -> str:
    """The name after every rule.

    >>> renamed("blocks.3.norm1.bias", [(r"^blocks\\.", "layers."), (r"\\.norm(\\d)\\.", r".layer_norm\\1.")])
    'layers.3.layer_norm1.bias'
    """
    for pattern, replacement in names:
        name = re.sub(pattern, replacement, name)
    return name


def rename(tensors: Tensors, names: Names) -> Tensors:
    """The tensors under the encoder's names."""
    result: Tensors = {}
    for name, tensor in tensors.items():
        new = renamed(name, names)
        if new in result:
            raise ValueError(f"{name} is a second {new}: save one model alone")
        result[new] = tensor
    return result


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Name -> shape."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def as_float32(content: Mapping[str, Any], notes: list[str]) -> Tensors:
    """The same tensors in float32, none a slice of another; counters stay integers."""
    narrow: set[str] = set()
    tensors: Tensors = {}
    for name, value in content.items():
        if isinstance(value, Tensor) and name.endswith("num_batches_tracked"):
            tensors[name] = value.detach().to(torch.int64).clone()
            continue
        tensor = _checked_floats(name, value)
        if tensor.dtype is not torch.float32:
            narrow.add(_type(tensor))
        tensors[name] = _own_memory(tensor.to(torch.float32))
    if narrow:
        notes.append(f"{' and '.join(sorted(narrow))} tensors were stored as float32")
    return tensors


def as_released(content: Mapping[str, Any], notes: list[str]) -> Tensors:
    """The same tensors in their own types, none a slice of another."""
    tensors = {name: _own_memory(_checked_floats(name, value)) for name, value in content.items()}
    types = sorted(set(map(_type, tensors.values())))
    notes.append(f"tensors are kept in {' and '.join(types)}, as released")
    return tensors


def _checked_floats(name: str, value: Any) -> Tensor:
    """An entry of a checkpoint as it is, if it is a dense tensor of finite floating-point numbers."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is no tensor but a {type(value).__name__}: save the state dict alone")
    if value.layout is not torch.strided:
        raise ValueError(f"{name} is a sparse tensor: save it as a dense one")
    if not value.is_floating_point():
        raise ValueError(f"{name} is of type {_type(value)}: expected floating point")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise ValueError(f"{name} repeats one part of its values: save it whole, by tensor.contiguous()")
    if not bool(torch.isfinite(value).all()):
        raise ValueError(f"{name} holds NaN or infinite values: the checkpoint is broken, fetch it again")
    return value.detach()


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _own_memory(tensor: Tensor) -> Tensor:
    """The tensor, contiguous, and no slice of a larger buffer, which could not be saved under two names."""
    tensor = tensor.contiguous()
    shared = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
    return tensor.clone() if shared else tensor


def complete(tensors: Tensors, expected: Mapping[str, Tensor], title: str, notes: list[str]) -> Tensors:
    """Exactly the expected tensors, in their order; anything missing, unknown or misshaped is an error."""
    scalars = {name for name, tensor in expected.items() if tensor.shape == ()}
    completed = {
        name: tensor.reshape(()) if name in scalars and tensor.shape == (1,) else tensor
        for name, tensor in tensors.items()
    }
    counters = [name for name in expected if name.endswith("num_batches_tracked") and name not in completed]
    if counters:
        completed |= {name: torch.zeros((), dtype=torch.int64) for name in counters}
        notes.append(f"{len(counters)} BatchNorm counters were missing and set to 0, which moves no score")
    if problems := tensor_problems(expected, completed):
        raise ValueError(f"not a complete {title}: " + "; ".join(problems))
    return {name: completed[name] for name in expected}


def tensor_problems(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    """What is wrong with the names, shapes and types of tensors, in words; no value is read."""
    both = {name: (own, tensors[name]) for name, own in expected.items() if name in tensors}
    problems = {
        "are missing": [name for name in expected if name not in tensors],
        "are not part of the architecture": [name for name in tensors if name not in expected],
        "have another shape": [
            f"{name} {tuple(tensor.shape)} instead of {tuple(own.shape)}"
            for name, (own, tensor) in both.items()
            if tensor.shape != own.shape
        ],
        "do not hold floating-point numbers": [
            name
            for name, (own, tensor) in both.items()
            if own.is_floating_point() and not tensor.is_floating_point()
        ],
    }
    return [f"{len(names)} tensors {what}: {name_some(names)}" for what, names in problems.items() if names]


def clip_preprocessing(image_size: int) -> dict[str, Any]:
    """How CLIP, and what was tuned from it, makes pixels of an image."""
    settings = {"mean": list(CLIP_MEAN), "std": list(CLIP_STD), "interpolation": "bicubic"}
    return {"image_size": image_size, **settings}


def count_blocks(shapes: Shapes, pattern: str) -> int:
    """How many numbers the group of a pattern has in the names that it begins."""
    return len({block[1] for name in shapes if (block := re.match(pattern, name))})


def shape_of(shapes: Shapes, name: str, dimensions: int) -> tuple[int, ...]:
    """The shape of a tensor that shows sizes."""
    shape = shapes.get(name)
    if shape is None:
        raise ValueError(f"{name} is not in the checkpoint: it shows the sizes of the model")
    if len(shape) != dimensions or 0 in shape:
        raise ValueError(f"{name} has shape {shape}: expected {dimensions} dimensions, none of them zero")
    return shape


def side_of(positions: int, name: str) -> int:
    """The side of a square image in patches."""
    side = math.isqrt(max(positions, 0))
    if side < 1 or side * side != positions:
        raise ValueError(f"{name} has {positions} image positions, not a square: expected square images")
    return side


def heads_of(width: int, given: int | None, usual: int, name: str) -> int:
    """Attention heads of a width: as given by the setting `name`, or of the usual width each."""
    heads = given or width // usual
    if not heads or width % heads:
        found = f"the tensors do not show how many heads share the width {width}"
        raise InputError(Problem("", found, f"pass {option_name(name)}"))
    return heads


def required_words(
    vocabulary: str | None, model: str, rows: int, notes: list[str], added: str | None = None
) -> list[str]:
    """As many words as a checkpoint has rows, of the vocab.txt of a BERT by the setting `vocabulary`.

    added: a word that the checkpoint has behind those of BERT.
    """
    if vocabulary is None:
        fix = f"pass {option_name('vocabulary')}, the file vocab.txt of https://huggingface.co/{model}"
        raise InputError(Problem("", "the checkpoint holds no words", fix))
    file = expanded_path(vocabulary)
    words = read_words(file)
    notes.append(f"words: {file.name}, sha256 {sha256_of(file)[:12]}...")
    if added and len(words) == rows - 1 and added not in words:
        words.append(added)
    if len(words) != rows:
        found = f"{len(words)} words, but the model has {rows}" + (f", {added} included" if added else "")
        other = f"pass that of {model.rpartition('/')[2]}"
        raise wrong_option("vocabulary", vocabulary, found, other, verb="has")
    return words
