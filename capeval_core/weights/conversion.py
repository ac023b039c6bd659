"""From an original checkpoint to config and tensors of a weights folder; names are in `networks.toml`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from capeval_core.errors import InputError, Problem, expanded_path, setting, wrong_option
from capeval_core.options import Settings, option
from capeval_core.weights.catalogue import CLIP_MEAN, CLIP_STD, LICENCE_NOT_STATED, WEIGHTS
from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.folder import read_words, sha256_of
from capeval_core.weights.networks import NETWORKS

Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
Empty = Callable[[dict[str, Any]], nn.Module]  # the encoder's model of a config, on torch's meta device
_ATTENTION = re.compile(r"(.*\.self_attn\.)([qkv])_proj\.(weight|bias)")
_ENDINGS = re.compile(r"(\.(fp16|pt|pth|bin|safetensors|index|json))+$")  # of `model.fp16.safetensors`


@dataclass(frozen=True)
class Release:
    """An original checkpoint in plain form. config: the weights folder's config.json, without checksum and
    canary. tensors: as the encoder names them, complete and nothing else, in float32 or as released. notes:
    what was inferred, merged or left out."""

    config: dict[str, Any]
    tensors: Tensors
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Conversion(Settings):
    """A conversion; its settings are flags of `capeval convert`, and every step appends to `notes`."""

    encoder: ClassVar[str]  # what `encoder` in config.json calls the network
    facts: ClassVar[Mapping[str, Any]]  # what `networks.toml` says of its release
    keeps_type: ClassVar[bool] = False
    """Whether tensors stay in the type in which they are released, not in float32."""

    source: str | None = option(None, "name of the original; None: the file's")
    url: str | None = option(
        None, "where it was downloaded; None: as in the catalogue, if the file is listed"
    )
    licence: str | None = option(None, "as its authors state it; None: as in the catalogue")

    def __init_subclass__(cls) -> None:
        encoder = getattr(cls, "encoder", None)
        cls.facts = NETWORKS[encoder].release if encoder else {}

    def read(self, path: Path, empty: Empty) -> Release:
        """The checkpoint at `path`, by these settings, with exactly the tensors of the model of `empty`."""
        content, files = self.load(path)
        # In the order of the steps, into the config: whoever opens the weights later can see what was done.
        notes: list[str] = []
        with self.naming(files):
            content = self.select(content, notes)
            tensors = self.translate(content, notes)
            config = self.config(shapes_of(tensors), content, notes)
        return self.release(files, config, tensors, empty, notes)

    def load(self, path: Path) -> tuple[Mapping[str, Any], list[Path]]:
        """What the checkpoint holds under its names, and the files that it was read from."""
        return read_checkpoint(path), [path]

    def select(self, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        """What the model needs, without the common prefix of all names, such as ``module.``."""
        anchors = self.facts.get("anchors")
        prefix = "" if anchors is None else self._prefix(anchors, content)
        if prefix:  # names without it are no part of the model, and reported so
            notes.append(f"the prefix {prefix!r} of all names was taken off")
        needed: dict[str, Any] = {}
        unused: list[str] = []
        pattern = self.facts.get("unused", "$^")  # which matches no name
        for full_name, value in content.items():
            name = full_name.removeprefix(prefix)
            if re.match(pattern, name):
                unused.append(name)
            else:
                needed[name] = value
        if unused:
            note = f"left out {len(unused)} tensors that the model does not use or makes itself"
            notes.append(f"{note}: {name_some(unused)}")
        return needed

    def _prefix(self, anchors: Sequence[str], content: Mapping[str, Any]) -> str:
        """What stands before the names of the model, by a tensor that each such model has once."""
        # DistributedDataParallel puts `module.` before all names, other trainers `model.` or `net.clip.`.
        anchor = re.compile(rf"(?P<prefix>(?:.*\.)?)(?:{'|'.join(map(re.escape, anchors))})")
        prefix_of_name: dict[str, str] = {}
        for name in content:
            match = anchor.fullmatch(name)
            if match is not None:
                prefix_of_name[name] = match["prefix"]
        if len(prefix_of_name) == 1:
            return next(iter(prefix_of_name.values()))
        names = name_some(content)
        if prefix_of_name:  # such as a model and the moving average of its weights
            names = f"several models, {name_some(prefix_of_name)}: save one alone"
        expected = f"expected {' or '.join(anchors)} among the tensors"
        raise ValueError(f"no {self.facts['title']}: {expected}, found {names}")

    def translate(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        """Tensors under the encoder's names."""
        tensors: Tensors = {}
        for name, tensor in self.typed(content, notes).items():
            new = renamed(name, self.facts.get("names", {}))
            if new in tensors:
                raise ValueError(f"{name} is a second {new}: save one model alone")
            tensors[new] = tensor
        return tensors

    def typed(self, content: Mapping[str, Any], notes: list[str]) -> Tensors:
        """The same tensors in float32 or as released, none a slice of another; counters stay integers."""
        types: set[str] = set()
        tensors: Tensors = {}
        for name, value in content.items():
            if not isinstance(value, Tensor) or value.layout is not torch.strided:
                kind = value.layout if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"{name} is not a dense tensor ({kind}): save the state dict alone")
            counts = name.endswith("num_batches_tracked")
            if not counts and not value.is_floating_point():
                raise ValueError(f"{name} is of type {value.dtype}: expected floating point")
            # At once: they would show as captions without a score, in each later run.
            if not bool(torch.isfinite(value).all()):
                raise ValueError(f"{name} holds NaN or infinite values: the checkpoint is broken")
            # float16 fits float32 exactly, in which scores are computed unless the user asks otherwise.
            dtype = value.dtype if self.keeps_type else torch.float32
            tensor = value.detach().to(torch.int64 if counts else dtype).contiguous()
            # A slice of a larger buffer could not be saved under two names.
            shared = tensor.untyped_storage().nbytes() != tensor.nbytes
            tensors[name] = tensor.clone() if shared else tensor
            if not counts:
                types.add(str(value.dtype).removeprefix("torch."))
        if self.keeps_type:
            notes.append(f"tensors are kept in {' and '.join(sorted(types))}, as released")
        elif narrow := sorted(types - {"float32"}):
            notes.append(f"{' and '.join(narrow)} tensors were stored as float32")
        return tensors

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        """The config by `networks.toml`, its sizes read off the shapes of tensors."""
        config: dict[str, Any] = filled(self.facts.get("config", {}), shapes, self.settings(notes))
        for name, (part, head_width) in self.facts.get("heads", {}).items():
            sizes = config["architecture"][part] if part else config["architecture"]
            # The heads share one matrix, whose shape is the same for any number of them.
            heads = heads_of(sizes["hidden_size"], getattr(self, name), head_width, name)
            sizes["num_attention_heads"] = heads
        return config

    def settings(self, notes: list[str]) -> dict[str, Any]:
        """What a file beside the checkpoint says."""
        return {}

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
        expected = empty(config).state_dict()
        counters: Tensors = {}
        for name in expected.keys() - tensors:
            if name.endswith("num_batches_tracked"):  # which PyTorch has had since 0.4.1
                counters[name] = torch.zeros((), dtype=torch.int64)
        if counters:
            tensors = tensors | counters
            notes.append(
                f"{len(counters)} BatchNorm counters were missing and set to 0, which moves no score"
            )
        # A scale of one number is saved as () by some versions of a release, and as (1,) by others.
        for name, parameter in expected.items():
            if parameter.ndim == 0 and name in tensors and tensors[name].shape == (1,):
                tensors[name] = tensors[name].reshape(())
        with self.naming(files):
            problems = tensor_problems(expected, tensors)
            if problems:
                raise ValueError(f"not a complete {self.facts['title']}: {'; '.join(problems)}")
        config["source"] = self._source(files, notes)
        ordered = {name: tensors[name] for name in expected}
        return Release(config, ordered, list(notes))

    def _source(self, files: Sequence[Path], notes: list[str]) -> dict[str, Any]:
        """The `source` of a config: where the weights are from, and under which licence."""
        path = f"/{files[0].absolute().as_posix()}"
        listed = [entry for entry in WEIGHTS if entry.is_released_as(path)]
        url = self.url
        licence = self.licence
        if listed:
            url = url or listed[0].original
            licence = licence or listed[0].licence
        files_with_digests = []
        for file in files:
            digest = sha256_of(file)
            files_with_digests.append({"file": file.name, "size": file.stat().st_size, "sha256": digest})
        first, *beside = files_with_digests
        source: dict[str, Any] = {"name": self.source or _ENDINGS.sub("", files[0].name), "url": url, **first}
        if beside:
            source["beside"] = beside
        source["licence"] = licence or self.facts.get("licence") or LICENCE_NOT_STATED
        source["notes"] = notes
        return source

    @contextmanager
    def naming(self, files: Sequence[Path]) -> Iterator[None]:
        """Let errors name the files that are converted."""
        names = " and ".join(map(str, files[:2]))
        try:
            yield
        except KeyError as error:
            lacking = f"not a complete {self.facts['title']}: {error.args[0]!r} is missing"
            raise ValueError(f"{names}: {lacking}") from error
        except (ValueError, IndexError) as error:
            raise InputError(f"{names}: {error}") from error


def renamed(name: str, names: Mapping[str, str]) -> str:
    """The name after every rule.

    >>> renamed("blocks.3.norm1.bias", {r"^blocks\\.": "layers.", r"\\.norm(\\d)\\.": r".layer_norm\\1."})
    'layers.3.layer_norm1.bias'
    """
    for pattern, replacement in names.items():  # in the order of the table: later rules see earlier changes
        name = re.sub(pattern, replacement, name)
    return name


def joined(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same tensors, with transformers' query, keys and values of an attention as one, `self_attn.qkv`."""
    # layers.0.self_attn.q_proj.weight (d, d)
    # layers.0.self_attn.k_proj.weight (d, d)  ->  layers.0.self_attn.qkv.weight (3 d, d): one product
    # layers.0.self_attn.v_proj.weight (d, d)
    parts: dict[str, dict[str, Any]] = {}
    tensors = dict(content)
    for name in content:
        match = _ATTENTION.fullmatch(name)
        if match is not None:
            joined_name = f"{match[1]}qkv.{match[3]}"
            parts.setdefault(joined_name, {})[match[2]] = tensors.pop(name)
    for name, three in parts.items():
        if len(three) == 3:  # otherwise the whole is missing, and reported so
            tensors[name] = torch.cat([three["q"], three["k"], three["v"]])
    return tensors


def filled(value: Any, shapes: Shapes, settings: Mapping[str, Any] = {}) -> Any:
    """A part of a config of `networks.toml`, with sizes and settings in their places."""
    if isinstance(value, dict):
        return {key: filled(part, shapes, settings) for key, part in value.items()}
    if isinstance(value, list):
        return [filled(part, shapes, settings) for part in value]
    if not isinstance(value, str):
        return value
    size = re.fullmatch(r"(.*)\[(\d)\]( - 1)?", value)
    if size is not None:  # `name[1] - 1`: an axis of a tensor, less one where it holds the class token
        return shapes[size[1]][int(size[2])] - bool(size[3])
    return count_blocks(shapes, value) if r"(\d+" in value else settings.get(value, value)


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Name -> shape."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def tensor_problems(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    """Problems with the names, shapes and types of tensors, in words; no value is read."""
    missing = [name for name in expected if name not in tensors]
    unknown = [name for name in tensors if name not in expected]
    misshapen = []
    integers = []
    for name, parameter in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            continue
        if tensor.shape != parameter.shape:
            misshapen.append(f"{name} {tuple(tensor.shape)} instead of {tuple(parameter.shape)}")
        if parameter.is_floating_point() and not tensor.is_floating_point():
            integers.append(name)
    names_of_problem = {
        "are missing": missing,
        "are not part of the architecture": unknown,
        "have another shape": misshapen,
        "do not hold floating-point numbers": integers,
    }
    problems = []
    for problem, names in names_of_problem.items():
        if names:
            problems.append(f"{len(names)} tensors {problem}: {name_some(names)}")
    return problems


def clip_preprocessing(image_size: int) -> dict[str, Any]:
    """The settings with which CLIP, and what was tuned from it, makes pixels of an image."""
    settings = {"mean": list(CLIP_MEAN), "std": list(CLIP_STD), "interpolation": "bicubic"}
    return {"image_size": image_size, **settings}


def count_blocks(shapes: Shapes, pattern: str) -> int:
    """The number of values that the group of a pattern has in the names that it begins."""
    blocks = set()
    for name in shapes:
        match = re.match(pattern, name)
        if match is not None:
            blocks.add(match[1])
    return len(blocks)


def side_of(positions: int, name: str) -> int:
    """The side of a square image in patches."""
    side = math.isqrt(max(positions, 0))
    if side < 1 or side * side != positions:
        raise ValueError(f"{name} has {positions} image positions, not a square: expected square images")
    return side


def heads_of(width: int, stated: int | None, head_width: int, name: str) -> int:
    """Attention heads of a width: as the setting `name` states, or of the usual width each."""
    heads = stated or width // head_width
    if not heads or width % heads:
        problem = f"the tensors do not show how many heads share the width {width}"
        raise InputError(Problem("", problem, f"pass {setting(name, 'N')}"))
    return heads


@dataclass(frozen=True, kw_only=True)
class BertConversion(Conversion):
    """Of a network that reads texts by the words of a BERT, which no checkpoint holds."""

    vocabulary: str | None = option(
        None, "vocab.txt of the BERT whose tokenizer the model was trained with, cased for UNITER"
    )

    def words(self, rows: int, notes: list[str]) -> list[str]:
        """As many words as a checkpoint has rows."""
        bert = self.facts["bert"]
        added = self.facts.get("added")
        if self.vocabulary is None:
            address = f"https://huggingface.co/google-bert/{bert}"
            fix = f"pass {setting('vocabulary', 'vocab.txt')} of {address}"
            raise InputError(Problem("", "the checkpoint holds no words", fix))
        file = expanded_path(self.vocabulary)
        words = read_words(file)
        notes.append(f"words: {file.name}, sha256 {sha256_of(file)[:12]}...")
        # BLIP-2 was trained with one word more than its BERT has, behind all others.
        if added and len(words) == rows - 1 and added not in words:
            words.append(added)
        if len(words) != rows:
            problem = f"has {len(words)} words, but the model has {rows}"
            if added:
                problem += f", {added} included"
            raise wrong_option("vocabulary", self.vocabulary, problem, f"pass that of {bert}")
        return words
