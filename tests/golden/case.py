"""A golden folder, and its quantities beside ours."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.golden import recipe
from tests.support import seams
from tests.support.device import device

Array = NDArray[Any]
Json = dict[str, Any]

MARKS = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]"}


@dataclass(frozen=True)
class Comparison:
    """The largest absolute difference of one quantity; `defined` counts values where the original has NaN."""

    quantity: str
    error: float
    tolerance: float
    defined: int = 0

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance

    @property
    def verdict(self) -> str:
        if not self.ok:
            return "FAIL"
        return "ok (defined)" if self.defined else "ok"


def compare(quantity: str, ours: Any, theirs: Any, tolerance: float) -> Comparison:
    """Compare arrays of equal shape. Where the original gives NaN, ours may be NaN or any finite number.

    >>> compare("score", [1.0, 0.0], [1.5, float("nan")], 1.0)
    Comparison(quantity='score', error=0.5, tolerance=1.0, defined=1)
    """
    mine, original = (np.asarray(on_host(each), dtype=np.float64) for each in (ours, theirs))
    if mine.shape != original.shape:
        return Comparison(f"{quantity} has shape {mine.shape}, not {original.shape}", float("inf"), tolerance)
    undefined = np.isnan(original)
    # NaN or infinity of ours where the original has a number is no small error.
    difference = np.where(undefined, 0.0, np.abs(mine - np.where(undefined, 0.0, original)))
    difference = np.where(np.isnan(difference), np.inf, difference)
    difference = np.where(undefined & np.isinf(mine), np.inf, difference)
    defined = int(np.sum(undefined & np.isfinite(mine)))
    return Comparison(quantity, float(difference.max(initial=0.0)), tolerance, defined)


def on_host(values: Any) -> Any:
    return values.cpu() if isinstance(values, Tensor) else values


def named(prefix: str, found: Iterator[Comparison]) -> Iterator[Comparison]:
    """The same comparisons under longer names."""
    for one in found:
        yield replace(one, quantity=prefix + one.quantity)


class Case:
    """What a golden folder holds: files by their stems, also those of its `inputs`.

    outputs: outputs.npz, or every image{i}.npz and batch.npz with its stem before the names.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = folder.resolve().name
        self._read: dict[str, Any] = {}

    def path(self, name: str) -> Path:
        own = self.folder / name
        return own if own.exists() else self.folder / "inputs" / name

    def json(self, stem: str) -> Any:
        if stem not in self._read:
            self._read[stem] = json.loads(self.path(f"{stem}.json").read_text(encoding="utf-8"))
        return self._read[stem]

    def npz(self, stem: str) -> dict[str, Array]:
        with np.load(self.path(f"{stem}.npz")) as stored:
            return dict(stored)

    @cached_property
    def config(self) -> Json:
        return dict(self.json("config"))

    @cached_property
    def inputs(self) -> dict[str, Array]:
        return self.npz("inputs")

    @cached_property
    def outputs(self) -> dict[str, Array]:
        if self.path("outputs.npz").exists():
            return self.npz("outputs")
        stems = [f"image{i}" for i in range(self.images)] + ["batch"] * self.path("batch.npz").exists()
        return {f"{stem}_{name}": values for stem in stems for name, values in self.npz(stem).items()}

    @cached_property
    def images(self) -> int:
        """How many image{i}.npz there are."""
        return len(list(self.folder.glob("image*.npz")))

    def of(self, prefix: str) -> dict[str, Array]:
        """The outputs whose names begin so, without that beginning."""
        found = self.outputs.items()
        return {name.removeprefix(prefix): values for name, values in found if name.startswith(prefix)}

    def tolerance(self, name: str) -> float:
        return float(self.config["tolerance"][f"{name}_atol"])

    def tensors(
        self, manifest: str = "manifest", seed: int | None = None, scales: str = ""
    ) -> dict[str, Tensor]:
        """The seeded tensors of a manifest, in its order, those that `scales` names multiplied."""
        arrays = recipe.state_dict(self.json(manifest), int(self.config["seed"]) if seed is None else seed)
        for name, scale in (self.json(scales) if scales else {}).items():
            arrays[name] = (arrays[name] * scale).astype(np.float32)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def compare(
        self, quantity: str, ours: Any, tolerance: float, among: Array | slice = np.s_[:], **named: str
    ) -> Comparison:
        """A quantity beside the output of its name, or of the name `output`; only `among` its rows."""
        theirs = self.outputs[named.get("output", quantity)]
        return compare(quantity, ours, theirs[among] if theirs.ndim else theirs, tolerance)

    def compare_all(
        self, ours: Mapping[str, Any], tolerance: Callable[[str], float], prefix: str = ""
    ) -> Iterator[Comparison]:
        """Those of our values that the folder has, too."""
        for name, values in ours.items():
            if prefix + name in self.outputs:
                yield self.compare(prefix + name, values, tolerance(name))


class Place(tempfile.TemporaryDirectory[str]):
    """A folder for a while, in which original checkpoints and our weights are written."""

    def __enter__(self) -> Path:  # type: ignore[override]
        return Path(super().__enter__())


def save(content: Any, path: Path) -> Path:
    """Write a checkpoint as its authors do."""
    torch.save(content, path)
    return path


def converted(kind: str, checkpoint: Path, folder: Path, change: Json | None = None, **settings: Any) -> Path:
    """A weights folder made of an original checkpoint; `change` is merged into the config."""
    release = seams.convert(kind, checkpoint, **settings)
    config = dict(release.config)
    for name, values in (change or {}).items():
        config[name] = {**config[name], **values}
    seams.network(kind, config, release.tensors, device=device()).save_pretrained(folder)
    return folder


def opened(kind: str, weights: Path) -> Any:
    """The network of a weights folder."""
    return seams.network(kind, str(weights), device=device())


def words(size: int) -> list[str]:
    """A vocabulary in which every id is a word of its own."""
    return [MARKS.get(index, f"w{index}") for index in range(size)]


def write_vocabulary(place: Path, size: int) -> str:
    """That vocabulary as a file."""
    (place / "vocab.txt").write_text("\n".join(words(size)) + "\n")
    return str(place / "vocab.txt")


def text_of(ids: Array) -> str:
    """A text that the tokenizer turns into these ids; of the marks, and of one that was cut, nothing else."""
    return " ".join(f"w{index}" for index in ids.tolist() if index not in MARKS)


def padded(rows: Sequence[Sequence[Any] | Array], length: int | None = None) -> Array:
    """Rows of different lengths in one array, zeros behind."""
    arrays = [np.asarray(row) for row in rows]
    width = max(map(len, arrays)) if length is None else length
    full = np.zeros((len(arrays), width, *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for row, own in zip(full, arrays, strict=True):
        row[: len(own)] = own
    return full


def cosine(first: Array, second: Array) -> Array:
    """Cosines along the last axis."""
    return np.asarray(np.sum(unit(first) * unit(second), axis=-1))


def unit(rows: Array) -> Array:
    """Rows of length 1; zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1))
