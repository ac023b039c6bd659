"""What the trained part of a CLIP takes: outputs of its frozen towers, or pixels and token ids."""

from __future__ import annotations

import hashlib
import json
import math
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn

from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.clip_modules import Clip, VisionTransformer
from capeval_core.encoders.engine import Encoding, encode_stream
from capeval_core.encoders.tokenizers import Ids
from capeval_core.errors import Problems, warn
from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.limits import LIMITS
from capeval_core.training.pairs import Numbers
from capeval_core.weights.folder import WeightsFolder
from capeval_core.writing import write_whole

Array = NDArray[np.generic]
_INDEX, _ROWS = ".json", ".bin"


class TowerStore:
    """Arrays of one shape by key, in shards: a file of rows, and an index of their keys and a digest.

    A run that was interrupted loses the rows of a minute. A shard that is damaged, or has lost one of its
    files, is left out with a warning, so its rows are computed again.

    Args:
        folder: of the shards, made if it does not exist; stores of other names may share it.
        name: of what is kept; everything that rows depend on beside their own key.
        shape, dtype: of a row.

    Raises:
        OSError: the folder cannot be written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> store = TowerStore(folder, "clip-1f3c-text", (2,), "float16")
    >>> store.put("a dog", np.float32([1, 2]))
    >>> store.flush()
    >>> store = TowerStore(folder, "clip-1f3c-text", (2,), "float16")
    >>> store.rows(store.places(["a dog"]))
    tensor([[1., 2.]])
    >>> store.missing(["a cat", "a dog"])
    ['a cat']
    """

    _BYTES = 256 << 20  # a shard is written at this size

    def __init__(self, folder: Path, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.folder, self.shape, self.dtype = folder, shape, np.dtype(dtype)
        self.row_size = math.prod(shape)
        description = json.dumps([name, shape, self.dtype.name])
        self.stem = hashlib.blake2b(description.encode(), digest_size=8).hexdigest()
        self._places: dict[str, tuple[int, int]] = {}
        self._shards: list[Array] = []
        self._keys: dict[str, None] = {}  # of the rows in memory
        self._waiting: list[Array] = []
        self._written_at = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        for index in sorted(folder.glob(f"{self.stem}-*{_INDEX}")):
            self._open(index)

    def _open(self, index: Path) -> None:
        try:
            content = json.loads(index.read_bytes())
            keys, digest = content["keys"], content["digest"]
            rows = np.memmap(index.with_suffix(_ROWS), self.dtype, "r", shape=(len(keys), self.row_size))
            if _digest(keys, rows) != digest:
                raise ValueError("its digest is another")
        except (OSError, ValueError, KeyError, TypeError) as error:
            warn(
                f"{index} or the file of rows beside it is damaged ({error}): what it held is computed again"
            )
            for path in (index, index.with_suffix(_ROWS)):
                path.unlink(missing_ok=True)
            return
        self._places |= {key: (len(self._shards), row) for row, key in enumerate(keys)}
        self._shards.append(rows)

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._keys

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those without a row, each once."""
        return [key for key in dict.fromkeys(keys) if key not in self]

    def put(self, key: str, row: NDArray[np.float32]) -> None:
        """Keep a row; it is on the disk after `flush`, or after a minute.

        Raises:
            ValueError: a value that exceeds the range of the store's dtype.
        """
        with np.errstate(over="ignore"):
            stored = row.astype(self.dtype).reshape(self.row_size)
        if not np.isfinite(stored).all():
            found = f"an output of a tower exceeds the range of {self.dtype.name}"
            raise ValueError(f"{found}, in which it is kept for training")
        self._keys[key] = None
        self._waiting.append(stored)
        waited = time.monotonic() - self._written_at
        if waited > LIMITS.training_seconds or len(self._waiting) * stored.nbytes > self._BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are still in memory as a shard."""
        if self._waiting:
            index = self.folder / f"{self.stem}-{uuid.uuid4().hex}{_INDEX}"
            rows = np.stack(self._waiting)
            write_whole(index.with_suffix(_ROWS), rows.data)
            keys = list(self._keys)
            write_whole(index, json.dumps({"keys": keys, "digest": _digest(keys, rows)}))
            self._keys, self._waiting = {}, []
            self._open(index)
        self._written_at = time.monotonic()

    def places(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """(n, 2) where rows are, for `rows`.

        Raises:
            KeyError: a key without a row on the disk.
        """
        return np.array([self._places[key] for key in keys], dtype=np.int64).reshape(-1, 2)

    def rows(self, places: NDArray[np.int64]) -> Tensor:
        """(n, ...) float32, in PyTorch's own memory: a killed training goes on with the same bits."""
        result = torch.empty(len(places), self.row_size)
        gathered = result.numpy()
        for shard in np.unique(places[:, 0]):
            here = places[:, 0] == shard
            gathered[here] = self._shards[shard][places[here, 1]]
        return result.view(len(places), *self.shape)


def _digest(keys: Sequence[str], rows: Array) -> str:
    digest = hashlib.blake2b(json.dumps(keys).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(rows).data)
    return digest.hexdigest()


Floats = NDArray[np.float32]
_TEXTS_AT_ONCE = 16_384


class Inputs(Protocol):
    """Images and texts by number, as the trained part of a CLIP takes them."""

    def images(self, numbers: Numbers) -> Tensor:
        """Of images, (n, ...), on the CPU."""

    def texts(self, numbers: Numbers) -> Any:
        """Of texts."""


class TowerEncoder(ClipEncoder):
    """A CLIP whose projections are left out: its features are what goes into them.

    (width,) of a ViT's class token and of a text's end token, both after their last norm; the feature map
    (channels, h, w) before a ResNet's attention pool.
    """

    @classmethod
    def of(cls, folder: WeightsFolder, device: str | None) -> TowerEncoder:
        """The towers of a weights folder."""
        config = {name: value for name, value in cls.read_config(folder).items() if name != "canary"}
        return cls(config, folder.tensors(), checksum=folder.checksum, device=device)

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Clip:
        model = super().build(config, tensors)
        width = len(model.text_projection)
        model.text_projection = nn.Parameter(torch.eye(width), requires_grad=False)
        self.text_shape = (width,)
        if isinstance(model.visual, VisionTransformer):
            self.image_shape: tuple[int, ...] = (len(model.visual.proj),)
            model.visual.proj = nn.Parameter(torch.eye(*self.image_shape * 2), requires_grad=False)
        else:
            pool = model.visual.attnpool
            side = round((len(pool.positional_embedding) - 1) ** 0.5)
            self.image_shape = (pool.positional_embedding.shape[1], side, side)
            model.visual.attnpool = nn.Identity()
        return model

    def prepare(self) -> None:
        super().prepare()
        self.dimension = self.text_shape[0]

    @property
    def frozen_dtype(self) -> type[np.floating[Any]]:
        """The numeric type in which outputs for images are kept: feature maps are large."""
        return np.float16 if len(self.image_shape) == 3 else np.float32


class TowerOutputs:
    """Outputs of frozen towers for images and texts, computed once and kept in a folder.

    Args:
        encoder: the towers.
        folder: of the outputs, by the encoder's fingerprint and the content: trainings may share it.

    Raises:
        ImageError: images that cannot be read; each is named with the reason.
    """

    def __init__(
        self, encoder: TowerEncoder, folder: Path, images: Iterable[InputImage], texts: Sequence[str]
    ) -> None:
        name = encoder.fingerprint
        self._images = TowerStore(folder, f"{name} image", encoder.image_shape, encoder.frozen_dtype)
        self._texts = TowerStore(folder, f"{name} text", encoder.text_shape, np.float32)
        keys = store_images(encoder, self._images, images, encoder._image_forward)
        self._image_places = self._images.places(keys)
        keys = [hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in texts]
        self._store_texts(encoder, dict(zip(keys, texts, strict=True)))
        self._text_places = self._texts.places(keys)

    def _store_texts(self, encoder: TowerEncoder, texts: Mapping[str, str]) -> None:
        missing = self._texts.missing(texts)
        for start in range(0, len(missing), _TEXTS_AT_ONCE):
            keys = missing[start : start + _TEXTS_AT_ONCE]
            encoded = encoder.encode_texts([texts[key] for key in keys], cache=FeatureCache(0))
            for key, row in zip(keys, encoded.features, strict=True):
                self._texts.put(key, row)
        self._texts.flush()

    def images(self, numbers: Numbers) -> Tensor:
        return self._images.rows(self._image_places[numbers])

    def texts(self, numbers: Numbers) -> Tensor:
        return self._texts.rows(self._text_places[numbers])


class PixelsAndIds:
    """Preprocessed images, kept in a folder, and token ids: what both towers take.

    Arguments and errors are those of `TowerOutputs`.
    """

    def __init__(
        self, encoder: ClipEncoder, folder: Path, images: Iterable[InputImage], texts: Sequence[str]
    ) -> None:
        self._encoder = encoder
        size, settings = encoder.preprocessing.image_size, repr(encoder.preprocessing)
        self._pixels = TowerStore(folder, f"{settings} pixels", (3, size, size), np.uint8)
        self._places = self._pixels.places(store_images(encoder, self._pixels, images, list))
        self._ids = encoder.tokenizer.encode(texts).ids

    def images(self, numbers: Numbers) -> Tensor:
        pixels = self._pixels.rows(self._places[numbers])
        scaled = (pixels / 255).to(self._encoder.device)
        return self._encoder.normalised(scaled)

    def texts(self, numbers: Numbers) -> list[Ids]:
        return [self._ids[number] for number in numbers]


def store_images(
    encoder: ClipEncoder, store: TowerStore, images: Iterable[InputImage], forward: Any
) -> list[str]:
    """Keep what `forward` makes of preprocessed images, unless the store has it; their keys, in order.

    Raises:
        ImageError: images that cannot be read.
    """
    encoding = Encoding(
        size=encoder.images_per_batch(None),
        keys=lambda content, _: (content,),
        prepare=encoder.preprocessing.pixels,
        forward=forward,
    )
    keys: list[str] = []
    problems = Problems()
    for part in encode_stream(((image, None) for image in images), encoding, _Stored(store)):
        for item in part:
            keys.append(item.content)
            if item.error is not None:
                problems.add(item.error, kind=ImageError)
    store.flush()
    problems.raise_if_any()
    return keys


class _Stored(FeatureCache):
    """A store as the cache of the streaming engine, which needs to know only what is there."""

    def __init__(self, store: TowerStore) -> None:
        super().__init__(max_bytes=0)
        self.store = store

    def get(self, keys: Iterable[str]) -> dict[str, Floats]:
        return {key: np.empty(0, dtype=np.float32) for key in keys if key in self.store}

    def put(self, rows: Mapping[str, Floats]) -> None:
        for key, row in rows.items():
            self.store.put(key, row)
