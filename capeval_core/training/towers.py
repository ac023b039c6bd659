"""What the trained part of a CLIP takes: outputs of its frozen towers, or pixels and token ids."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn

from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import Clip, ClipEncoder, VisionTransformer
from capeval_core.encoders.engine import Encoding, encode_stream
from capeval_core.encoders.tokenizers import Ids
from capeval_core.errors import Problems, warn
from capeval_core.inputs.images import ImageError, InputImage
from capeval_core.kept import write_whole
from capeval_core.limits import LIMITS
from capeval_core.training.pairs import Numbers
from capeval_core.weights.folder import WeightsFolder

Floats = NDArray[np.float32]
_SHARD_BYTES = 256 << 20
_TEXTS_AT_ONCE = 16_384


class TowerStore(FeatureCache):
    """Arrays of one shape by key, in Arrow files that are named by their digest and mapped into memory.

    A run that was interrupted loses the rows of a minute. A file that is damaged is left out with a warning,
    so its rows are computed again. To the streaming engine it is a cache that says only what is there.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> store = TowerStore(folder, "clip-1f3c-text", (2,), "float16")
    >>> store.put({"a dog": np.float32([1, 2])})
    >>> store.flush()
    >>> store = TowerStore(folder, "clip-1f3c-text", (2,), "float16")
    >>> store.rows(store.places(["a dog"])), list(store.get(["a cat", "a dog"]))
    (tensor([[1., 2.]]), ['a dog'])
    """

    def __init__(self, folder: Path, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        super().__init__(max_bytes=0)
        self.place, self.shape, self.dtype = folder, shape, np.dtype(dtype)
        description = json.dumps([name, shape, self.dtype.name])
        self.stem = hashlib.blake2b(description.encode(), digest_size=8).hexdigest()
        self._places: dict[str, tuple[int, int]] = {}
        self._shards: list[NDArray[Any]] = []
        self._waiting: dict[str, NDArray[Any]] = {}
        self._written_at = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"{self.stem}-*.arrow")):
            self._open(path)

    def _open(self, path: Path) -> None:
        try:
            content = pa.memory_map(str(path)).read_buffer()
            if path != self._named(content):
                raise ValueError("its digest is another")
            table = pa.ipc.open_file(content).read_all()
        except (OSError, ValueError) as error:
            warn(f"{path} is damaged ({error}): what it held is computed again")
            path.unlink()
            return
        rows = np.frombuffer(table["row"].chunk(0).buffers()[1], self.dtype)
        self._places |= {key: (len(self._shards), row) for row, key in enumerate(table["key"].to_pylist())}
        self._shards.append(rows.reshape(len(table), -1))

    def _named(self, content: pa.Buffer) -> Path:
        digest = hashlib.blake2b(memoryview(content), digest_size=16).hexdigest()
        return self.place / f"{self.stem}-{digest}.arrow"

    def get(self, keys: Iterable[str]) -> dict[str, Floats]:
        """The keys that have a row, without it."""
        empty = np.empty(0, dtype=np.float32)
        return {key: empty for key in keys if key in self._places or key in self._waiting}

    def put(self, rows: Mapping[str, Floats]) -> None:
        """Keep rows; they are on the disk after `flush`, or after a minute."""
        for key, row in rows.items():
            with np.errstate(over="ignore"):
                stored = row.astype(self.dtype).reshape(-1)
            if not np.isfinite(stored).all():
                found = f"an output of a tower exceeds the range of {self.dtype.name}"
                raise ValueError(f"{found}, in which it is kept for training")
            self._waiting[key] = stored
            waited = time.monotonic() - self._written_at
            if waited > LIMITS.training_seconds or len(self._waiting) * stored.nbytes > _SHARD_BYTES:
                self.flush()

    def flush(self) -> None:
        """Write the rows that are still in memory. Raises OSError."""
        if self._waiting:
            rows = np.stack(list(self._waiting.values()))
            form = pa.binary(rows[0].nbytes)
            own = pa.FixedSizeBinaryArray.from_buffers(form, len(rows), [None, pa.py_buffer(rows)])
            table = pa.table({"key": list(self._waiting), "row": own})
            sink = pa.BufferOutputStream()
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            content = sink.getvalue()
            path = self._named(content)
            write_whole(path, memoryview(content))
            self._waiting = {}
            self._open(path)
        self._written_at = time.monotonic()

    def places(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """(n, 2) where rows are on the disk, for `rows`."""
        return np.array([self._places[key] for key in keys], dtype=np.int64).reshape(-1, 2)

    def rows(self, places: NDArray[np.int64]) -> Tensor:
        """(n, ...) float32, in PyTorch's own memory: a killed training goes on with the same bits."""
        result = torch.empty(len(places), math.prod(self.shape))
        gathered = result.numpy()
        for shard in np.unique(places[:, 0]):
            here = places[:, 0] == shard
            gathered[here] = self._shards[shard][places[here, 1]]
        return result.view(len(places), *self.shape)


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


class TowerOutputs:
    """Outputs of frozen towers for images and texts, computed once and kept in a folder."""

    def __init__(
        self, encoder: TowerEncoder, folder: Path, images: Iterable[InputImage], texts: Sequence[str]
    ) -> None:
        name, maps = encoder.fingerprint, len(encoder.image_shape) == 3
        # Feature maps are large.
        kind = np.float16 if maps else np.float32
        self._images = TowerStore(folder, f"{name} image", encoder.image_shape, kind)
        self._texts = TowerStore(folder, f"{name} text", encoder.text_shape, np.float32)
        self._image_places = _stored_images(encoder, self._images, images, encoder.run_images)
        keys = [hashlib.blake2b(text.encode(), digest_size=16).hexdigest() for text in texts]
        by_key = dict(zip(keys, texts, strict=True))
        there = self._texts.get(keys)
        missing = [key for key in by_key if key not in there]
        for start in range(0, len(missing), _TEXTS_AT_ONCE):
            part = missing[start : start + _TEXTS_AT_ONCE]
            encoded = encoder.encode_texts([by_key[key] for key in part], cache=FeatureCache(0))
            self._texts.put(dict(zip(part, encoded.features, strict=True)))
        self._texts.flush()
        self._text_places = self._texts.places(keys)

    def images(self, numbers: Numbers) -> Tensor:
        """Of images, (n, ...), on the CPU."""
        return self._images.rows(self._image_places[numbers])

    def texts(self, numbers: Numbers) -> Tensor:
        """Of texts, (n, width), on the CPU."""
        return self._texts.rows(self._text_places[numbers])


class PixelsAndIds:
    """Preprocessed images, kept in a folder, and token ids: what both towers take; see `TowerOutputs`."""

    def __init__(
        self, encoder: ClipEncoder, folder: Path, images: Iterable[InputImage], texts: Sequence[str]
    ) -> None:
        self._encoder = encoder
        size, settings = encoder.preprocessing.image_size, repr(encoder.preprocessing)
        self._pixels = TowerStore(folder, f"{settings} pixels", (3, size, size), np.uint8)
        self._places = _stored_images(encoder, self._pixels, images, list)
        self._ids = encoder.tokenizer.encode(texts).ids

    def images(self, numbers: Numbers) -> Tensor:
        """Normalised pixels of images, (n, 3, size, size)."""
        pixels = self._pixels.rows(self._places[numbers])
        return self._encoder.normalised((pixels / 255).to(self._encoder.device))

    def texts(self, numbers: Numbers) -> list[Ids]:
        """Token ids of texts."""
        return [self._ids[number] for number in numbers]


def _stored_images(
    encoder: ClipEncoder, store: TowerStore, images: Iterable[InputImage], forward: Any
) -> NDArray[np.int64]:
    """Keep what `forward` makes of preprocessed images, unless the store has it; their places, in order.

    Raises ImageError, which names the images that cannot be read.
    """
    encoding = Encoding(
        size=encoder.images_per_batch(None),
        keys=lambda content, _: (content,),
        prepare=encoder.preprocessing.pixels,
        forward=forward,
    )
    keys: list[str] = []
    problems = Problems()
    for part in encode_stream(((image, None) for image in images), encoding, store):
        for item in part:
            keys.append(item.content)
            if item.error is not None:
                problems.add(item.error, kind=ImageError)
    store.flush()
    problems.raise_if_any()
    return store.places(keys)
