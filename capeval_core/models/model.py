"""The base of every network: weights in, features out, opened once, identified by a fingerprint."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch
from huggingface_hub import ModelHubMixin
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capeval_core.models.batching import BatchSize
from capeval_core.models.config import read
from capeval_core.models.device import DTYPES, resolve_device, warn_of_slow
from capeval_core.store import whole_folder
from capeval_core.weights.catalogue import entry_of
from capeval_core.weights.conversion import Conversion, Release, tensor_problems
from capeval_core.weights.folder import (
    CONFIG,
    TENSORS,
    WeightsError,
    WeightsFolder,
    check_finite,
    config_checksum,
    file_checksum,
    naming_weights,
    open_weights,
)
from capeval_core.weights.networks import NETWORKS

T = TypeVar("T")

TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
TEXTS = ("A photo depicts a dog", "two red circles", "A photo depicts a street at night in the rain")
_CARD_FILE = "README.md"
_CARD = """---
{{ card_data }}
---

# Weights of a caption metric

In the format of the Python package `capeval`: `model.safetensors` holds the tensors, `config.json` the
architecture, the preprocessing, where they come from and under which licence, and a few values (a canary)
that are computed again whenever the weights are loaded. The package's README tells which metrics take them.
"""


class CheckedModel(ABC, ModelHubMixin, library_name="capeval", model_card_template=_CARD):
    """A model with checked weights. In float32 no value depends on what else is in a batch, up to rounding.

    config: as `read_config` gives it. tensors: exactly those of the architecture. checksum: sha256 of the
    file of tensors, None to compute one of them. device: None means CUDA where available, else the CPU.
    WeightsError: the tensors do not fit the config or hold NaN or infinity, also once they are rounded to
    `dtype` (float32, bfloat16 or float16), or the canary comes out different.
    """

    kind: ClassVar[str]  # what `encoder` in config.json calls this class
    Settings: ClassVar[Any] = None  # what is read of a config, as a dataclass; see `models.config`
    revision: ClassVar[int] = 1  # raised whenever a change of the code changes features: none is then reused
    automatic: ClassVar[Mapping[str, tuple[int, int]]] = {"images": (16, 256)}
    """Units of an automatic batch, on the CPU and on a GPU, by what is counted."""
    wide: ClassVar[str] = "$^"
    """A pattern of the names of tensors that stay in float32, whatever the dtype: norms and embeddings, whose
    rounding every later layer would inherit. "$^" matches no name."""
    Network: ClassVar[Any]  # the modules of an architecture
    depends_on: ClassVar[tuple[str, ...]]  # keys of the config that features depend on
    described: ClassVar[str]  # the architecture in one line, with the names of its settings in braces
    Conversion: ClassVar[type[Conversion]]  # how an original checkpoint becomes its config and tensors

    fingerprint: str  # of tensors, architecture and preprocessing: features of equal ones are equal

    def __init__(
        self,
        config: dict[str, Any],
        tensors: dict[str, Tensor],
        *,
        checksum: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
    ) -> None:
        self.config = config
        self.settings: Any = self.Settings and read(self.Settings, config, "")
        self.device = resolve_device(device)
        self.dtype = dtype
        self.fingerprint = self._fingerprint(config, checksum or _tensors_checksum(tensors))
        on_gpu = self.device.type != "cpu"
        self._sizes = {
            unit: BatchSize(sizes[on_gpu], automatic=True) for unit, sizes in self.automatic.items()
        }
        if checksum is None:  # those of a folder were looked at as they were read
            check_finite(tensors)
        self._stored_as = {name: tensor.dtype for name, tensor in tensors.items()}
        self.model = self.build(config, tensors)
        if dtype == "float16":
            fix = 'pass dtype="bfloat16" or "float32"'
            check_finite(self.model.state_dict(), f"they exceed the range of float16: {fix}")
        self.prepare()
        if "canary" in config:
            check_canary(config["canary"], self.canary(), dtype)

    @classmethod
    def modules(cls, config: dict[str, Any]) -> Any:
        """The model of a config. Raises WeightsError where there is no such model."""
        return cls.Network(config["architecture"])

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
        """The model of a config, filled strictly with tensors. No second copy of a large model is made."""
        model = self.empty(config)
        check_tensors(model.state_dict(), tensors)
        typed = {}
        for name, tensor in tensors.items():
            typed[name] = tensor.to(self.device, self.dtype_of(name, tensor.dtype))
        model.load_state_dict(typed, assign=True)  # takes the place of meta tensors, which have no memory
        return model.eval().requires_grad_(False)

    def dtype_of(self, name: str, stored: torch.dtype) -> torch.dtype:
        """The type of a tensor in the model; counters stay whole numbers."""
        if not stored.is_floating_point:
            return stored
        return torch.float32 if re.fullmatch(self.wide, name) else DTYPES[self.dtype]

    @classmethod
    def empty(cls, config: dict[str, Any]) -> Any:
        """The model of a config on torch's meta device: names and shapes, no memory, no numbers."""
        with torch.device("meta"):
            return cls.modules(config)

    def prepare(self) -> None:
        """Set up the parts of an encoder other than its model: tokenizer, preprocessing."""

    @classmethod
    def describe(cls, config: dict[str, Any]) -> str:
        """The architecture in one line."""
        return cls.described.format(**config["architecture"])

    @abstractmethod
    def canary(self) -> NDArray[np.float32]:
        """Some outputs for fixed inputs: values that any change of the weights moves."""

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        """The folder's config, checked."""
        kind = folder.config.get("encoder", folder.config.get("model_type"))
        if kind != cls.kind:
            fix = "pass weights that were made for this metric"
            raise WeightsError(f"these are weights of encoder {kind!r}, expected {cls.kind!r}: {fix}")
        if cls.Settings is not None:
            read(cls.Settings, folder.config, "")
        return folder.config

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        weights: str | PathLike[str],
        *,
        revision: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
    ) -> Self:
        """The encoder of a Hub repository (`org/name[@revision]`), a folder, or `"tiny"`; see `open`."""
        # The mixin's own would ask the Hub for a repository called tiny, and knows no `@revision`.
        name = f"{fspath(weights)}@{revision}" if revision else weights
        facts = NETWORKS[cls.kind]
        folder = open_weights(name, metric=facts.converted_as, tiny=facts.tiny or cls.kind)
        return cls.open(folder, device=device, dtype=dtype)

    @classmethod
    def convert(cls, path: str | PathLike[str], **settings: Any) -> Release:
        """Config and tensors of the file that the authors released, by settings of `Conversion`."""
        return cls.Conversion.of("convert", settings).read(Path(path), cls.empty)

    @classmethod
    def open(cls, folder: WeightsFolder, *, device: str | None = None, dtype: str = "float32") -> Self:
        """The encoder of a weights folder; loaded once per process, device and dtype while it is in use."""
        with naming_weights(folder.name):
            config = cls._config_of(folder)
            checksum = folder.checksum
            folder.verify()  # before an encoder of this checksum is shared
            warn_of_slow(device, dtype)
            key = (cls._fingerprint(config, checksum), str(resolve_device(device)), dtype)
            arguments: dict[str, Any] = {"checksum": checksum, "device": device, "dtype": dtype}
            return opened_once(key, lambda: cls(config, folder.tensors(), **arguments))

    @classmethod
    def fingerprint_of(cls, folder: WeightsFolder) -> str:
        """The fingerprint of a folder's encoder, without reading its tensors."""
        with naming_weights(folder.name):
            return cls._fingerprint(cls._config_of(folder), folder.checksum)

    @classmethod
    def _config_of(cls, folder: WeightsFolder) -> dict[str, Any]:
        config = cls.read_config(folder)
        entry = entry_of(folder.name)
        for key, value in entry.settings.items() if entry else ():
            if config.get(key) != value:
                problem = f"their {key} is {value!r}, but their config says {config.get(key)!r}"
                raise WeightsError(f"{problem}: scores would be silently wrong; set it right there")
        return config

    def batch(self, what: str, batch_size: int | None) -> BatchSize:
        """The batch size that a user gave, or the automatic one of what is counted."""
        return self._sizes[what] if batch_size is None else BatchSize(batch_size, automatic=False)

    def key(self, kind: str, content: bytes) -> str:
        """The cache's key of a kind of feature of some content."""
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        return f"{self.fingerprint}:{self.dtype}:{kind}:{digest}"

    def save_beside(self, folder: Path) -> dict[str, Any]:
        """Write what lies beside config and tensors in files of its own; the config without it."""
        return self.config

    @classmethod
    def _fingerprint(cls, config: dict[str, Any], checksum: str) -> str:
        settings = {key: config.get(key) for key in cls.depends_on}
        text = json.dumps([cls.kind, cls.revision, checksum, settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def save_pretrained(
        self, save_directory: str | PathLike[str], *, repo_id: str | None = None, **arguments: Any
    ) -> str | None:
        """Write a weights folder whose files are replaced together: whatever fails, the old ones stay."""
        folder = Path(save_directory)
        with whole_folder(folder) as partial:
            if (folder / _CARD_FILE).is_file():  # a card of the user's is kept
                shutil.copy(folder / _CARD_FILE, partial)
            return super().save_pretrained(partial, repo_id=repo_id or folder.name, **arguments)

    def _save_pretrained(self, save_directory: Path) -> None:
        from safetensors.torch import save_file

        if self.dtype != "float32":
            problem = f"an encoder opened in {self.dtype} has rounded weights"
            raise ValueError(f"{problem}: open it in float32 to save it")
        tensors = self.model.state_dict().items()
        stored = {name: tensor.cpu().to(self._stored_as[name]).contiguous() for name, tensor in tensors}
        save_file(stored, save_directory / TENSORS)
        canary = {"cosines": self.canary().astype(float).round(7).tolist(), "tolerance": TOLERANCE}
        checksum = {TENSORS: file_checksum(save_directory / TENSORS)}
        config = {**self.save_beside(save_directory), "checksum": checksum, "canary": canary}
        checksum[CONFIG] = config_checksum(config)
        (save_directory / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        # safetensors' file is its owner's alone; other users shall read both files or neither.
        shutil.copymode(save_directory / CONFIG, save_directory / TENSORS)


_OPENED: WeakValueDictionary[tuple[object, ...], Any] = WeakValueDictionary()


def opened_once(key: tuple[object, ...], make: Callable[[], T]) -> T:
    """The object that `make` gives for a key: made once per process, while it is in use."""
    network: T | None = _OPENED.get(key)
    if network is None:
        network = _OPENED[key] = make()
    return network


class OpenedLater(Generic[T]):
    """A model that is opened where it is first needed, once, whichever threads need it.

    Where all rows of a run are on disk, no model is needed at all.
    """

    def __init__(self, open: Callable[[], T]) -> None:
        self._open = open
        self._model: T | None = None
        self._lock = threading.Lock()

    @property
    def model(self) -> T:
        with self._lock:
            if self._model is None:
                self._model = self._open()
            return self._model


def check_tensors(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors whose names or shapes are not the expected ones; no value is looked at."""
    if problems := "; ".join(tensor_problems(expected, tensors)):
        fix = "the config and the tensors do not belong together; convert the weights again"
        raise WeightsError(f"{problems}: {fix}")


def _tensors_checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        stored = tensors[name].cpu().contiguous().flatten().view(torch.uint8)  # numpy has no bfloat16
        digest.update(name.encode() + stored.numpy().tobytes())
    return digest.hexdigest()


def canary_images() -> list[Image.Image]:
    """Two images drawn from formulas: ramps and a chequerboard."""
    x, y = np.meshgrid(np.arange(120), np.arange(90))
    ramps = np.stack([2 * x, 255 - 2 * y, (x * y) % 256], axis=-1).astype(np.uint8)
    board = np.where((x // 20 + y // 15) % 2, 230, 40).astype(np.uint8)
    return [Image.fromarray(ramps), Image.fromarray(np.stack([board, board // 2, 255 - board], axis=-1))]


def cosines(image_features: NDArray[np.float32], text_features: NDArray[np.float32]) -> NDArray[np.float32]:
    """(images, texts) cosines of un-normalised features."""
    lengths = np.linalg.norm(image_features, axis=1)[:, None] * np.linalg.norm(text_features, axis=1)
    return np.asarray(image_features @ text_features.T / lengths, dtype=np.float32)


def check_canary(canary: Any, computed: NDArray[np.float32], dtype: str) -> None:
    """Refuse weights whose cosines are not those that were saved with them, to the tolerance of `dtype`."""
    expected = np.empty(0, dtype=np.float32)
    tolerance = np.nan
    with suppress(KeyError, TypeError, ValueError, OverflowError):
        expected = np.array(canary["cosines"], dtype=np.float32)
        tolerance = float(canary["tolerance"][dtype])
    if expected.shape != computed.shape or not np.isfinite(expected).all() or not 0 < tolerance <= 1:
        problem = f"canary does not hold {computed.shape} cosines, and a tolerance from 0 to 1 per dtype"
        raise WeightsError(f"in the config, {problem}: download or convert the weights again")
    difference = float(np.abs(computed - expected).max())
    if not difference <= tolerance:
        problem = f"the canary cosines are off by {difference:.2g} (at most {tolerance:g} is allowed)"
        why = "tensors, activation, heads or preprocessing are not those that they were saved with"
        raise WeightsError(f"{problem}: {why}; download or convert them again")
