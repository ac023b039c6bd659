"""What the trained part of a CLIP takes: outputs of its frozen towers, or pixels and token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capeval_core.cache import FeatureCache
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.clip_modules import Clip, VisionTransformer
from capeval_core.encoders.engine import Encoding, encode_stream
from capeval_core.encoders.tokenizers import Ids
from capeval_core.errors import Problem, Problems
from capeval_core.inputs.visual import ImageError, InputImage
from capeval_core.training.pairs import Numbers
from capeval_core.training.tower_store import TowerStore
from capeval_core.weights.folder import WeightsFolder

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
                problems.add(Problem("", None, item.error, verb="", kind=ImageError))
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
