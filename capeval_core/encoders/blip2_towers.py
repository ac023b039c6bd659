"""BLIP-2's networks: images and texts in, features and logits out.

Li, Li, Savarese, Hoi: BLIP-2: Bootstrapping Language-Image Pre-training with Frozen Image Encoders and
Large Language Models, ICML 2023, section 3.1, https://arxiv.org/abs/2301.12597
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capeval_core.cache import SHARED, FeatureCache, feature_key
from capeval_core.encoders.blip2_model import (
    build_blip2,
    empty_blip2,
    image_states,
    matched_states,
    query_states,
    text_states,
)
from capeval_core.encoders.clip_towers import TextFeatures, rows_of
from capeval_core.encoders.images import ImageFeatures, encode_distinct
from capeval_core.encoders.wordpiece import PAD, WordPiece
from capeval_core.inputs.visual import InputImage
from capeval_core.models.architecture import is_whole, scaling_problems, shown, size_problems
from capeval_core.models.batching import BatchSize
from capeval_core.models.model import CheckedModel
from capeval_core.models.precision import DTYPES, exact_float32
from capeval_core.weights.blip2 import read_words, translate_transformers
from capeval_core.weights.folder import VOCABULARY, WeightsError, WeightsFolder, sha256_of
from capeval_core.writing import write_whole

Floats = NDArray[np.float32]
Ids = tuple[int, ...]

_KEYS = ("architecture", "preprocessing", "context_length", "vocabulary")
_READ = {
    "vision": ("image_size",),
    "qformer": ("vocab_size", "max_position_embeddings"),
    "": ("num_query_tokens", "image_text_hidden_size"),
}
"""Sizes that are read here; the others are transformers' business, which has defaults."""


class Blip2Towers(CheckedModel):
    """A vision tower, a Q-Former and two heads, on transformers' modules.

    Texts run at their own length or with masked padding. In float32 a value does not depend on what else is
    in the batch, up to rounding.

    Arguments and errors are those of `CheckedModel`; tensors have transformers' names.
    """

    depends_on = _KEYS

    model: Any

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
        return build_blip2(config["architecture"], tensors, self.dtype)

    @classmethod
    def empty(cls, config: dict[str, Any]) -> Any:
        return empty_blip2(config["architecture"])

    def prepare(self) -> None:
        words = self.config["vocabulary"]
        rows = self.config["architecture"]["qformer"]["vocab_size"]
        if len(words) > rows:
            raise WeightsError(f"the vocabulary has {len(words)} words, but the model knows {rows}")
        try:
            self.tokenizer = WordPiece(words, self.config["context_length"])
        except ValueError as error:
            raise WeightsError(str(error)) from error
        self._padding = words.index(PAD)
        self._image_size: BatchSize | None = None
        self._text_size: BatchSize | None = None

    @classmethod
    def reads(cls, folder: WeightsFolder) -> bool:
        """Whether a weights folder says that it is a BLIP-2: this library's, or one of transformers'."""
        return folder.config.get("encoder") == cls.kind or folder.config.get("model_type") == "blip-2"

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        if "model_type" in folder.config:
            config = translate_transformers(folder)
        else:
            config = super().read_config(folder)
        if missing := [key for key in _KEYS if key not in config]:
            raise WeightsError(f"the config lacks {', '.join(missing)}: convert the weights again")
        if problems := _config_problems(config):
            raise WeightsError(f"in the config, {'; '.join(problems)}: convert the weights again")
        if isinstance(config["vocabulary"], list):
            return config
        words = read_words(folder.path / VOCABULARY)
        if sha256_of(folder.path / VOCABULARY) != config["vocabulary"].get("sha256"):
            raise WeightsError(f"{VOCABULARY} is not the one that these weights were saved with")
        return {**config, "vocabulary": words}

    def save_beside(self, folder: Path) -> dict[str, Any]:
        file = folder / VOCABULARY
        write_whole(file, "\n".join(self.config["vocabulary"]) + "\n")
        return {**self.config, "vocabulary": {"file": VOCABULARY, "sha256": sha256_of(file)}}

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        """The architecture in one line.

        >>> vision = {"num_hidden_layers": 39, "hidden_size": 1408, "patch_size": 14, "image_size": 364}
        >>> shape = {"vision": vision, "qformer": {"num_hidden_layers": 12, "hidden_size": 768}}
        >>> Blip2Towers.describe({"architecture": {**shape, "num_query_tokens": 32}})
        'ViT/14 39x1408, 364 pixels; Q-Former 12x768, 32 queries'
        """
        vision, qformer = config["architecture"]["vision"], config["architecture"]["qformer"]
        return (
            f"ViT/{vision['patch_size']} {vision['num_hidden_layers']}x{vision['hidden_size']}, "
            f"{vision['image_size']} pixels; Q-Former {qformer['num_hidden_layers']}x"
            f"{qformer['hidden_size']}, {config['architecture']['num_query_tokens']} queries"
        )

    def encode_images(
        self, images: Iterable[InputImage], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> Iterator[ImageFeatures]:
        """Features of any number of images, in order, some at a time: (n, queries, d), un-normalised.

        One that cannot be read gives NaN and the reason.
        """
        size = self.images_per_batch(batch_size)
        for part in encode_distinct(
            images,
            prepare=self.pixels,
            forward=lambda pixels: size.run(len(pixels), self._image_forward(pixels)),
            dimension=self.queries * self.dimension,
            ahead=size.size,
            cache=cache,
            cache_key=self.image_key,
        ):
            yield replace(part, features=part.features.reshape(-1, self.queries, self.dimension))

    def encode_texts(
        self, texts: Sequence[str], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> TextFeatures:
        """Features of texts, in order, (n, d), un-normalised. Equal ones are encoded once."""
        tokens = self.tokenizer.encode(texts)
        sequences = [tuple(ids) for ids in tokens.ids]
        keys = {ids: self._key("text", _bytes_of(ids)) for ids in set(sequences)}
        known = cache.get(keys.values())
        missing = sorted((ids for ids in keys if keys[ids] not in known), key=lambda ids: (len(ids), ids))
        size, cost = self.texts_per_batch(batch_size, max(map(len, missing), default=1))
        for part, features in size.run(len(missing), self._text_forward(missing), cost=cost):
            rows = {keys[ids]: row for ids, row in zip(missing[part], features, strict=True)}
            cache.put(rows)
            known.update(rows)
        features = np.empty((len(texts), self.dimension), dtype=np.float32)
        for row, ids in enumerate(sequences):
            features[row] = known[keys[ids]]
        return TextFeatures(features, tokens.dropped)

    def preprocess(self, image: Image.Image) -> Floats:
        """(3, n, n) float32 pixels of a PIL image, as the vision tower sees them."""
        return np.asarray(self._scale(self.pixels(image)[None])[0].cpu())

    def pixels(self, image: Image.Image) -> NDArray[np.uint8]:
        """(3, n, n) uint8: RGB, then resized to a square whatever its shape, as in the original code."""
        n = self.config["preprocessing"]["image_size"]
        width, height = image.size
        # Pillow rounds between its two passes, and 13 changed their order; done one by one, as 13 orders
        # them, pixels are the same with every version.
        tall = height > n and height - n > 2 * (width - n)
        decoded = image.convert("RGB")
        for size in ((width, n) if tall else (n, height), (n, n)):
            decoded = decoded.resize(size, Image.Resampling.BICUBIC)
        return np.ascontiguousarray(np.asarray(decoded).transpose(2, 0, 1))

    @property
    def queries(self) -> int:
        return int(self.config["architecture"]["num_query_tokens"])

    @property
    def dimension(self) -> int:
        return int(self.config["architecture"]["image_text_hidden_size"])

    def _scale(self, pixels: NDArray[np.uint8]) -> Tensor:
        given = self.config["preprocessing"]
        mean, std = (
            torch.tensor(given[key], dtype=torch.float32, device=self.device).view(3, 1, 1)
            for key in ("mean", "std")
        )
        return (torch.from_numpy(pixels).to(self.device).float() / 255 - mean) / std

    @torch.inference_mode()
    def states(self, pixels: NDArray[np.uint8]) -> Tensor:
        """(images, patches + 1, width) states of the vision tower, on the encoder's device."""
        with exact_float32(self.device):
            return image_states(self.model, self._scale(pixels).to(DTYPES[self.dtype]))

    @torch.inference_mode()
    def query_features(self, states: Tensor) -> Floats:
        """(images, queries * d), un-normalised, of states of the vision tower."""
        with exact_float32(self.device):
            return rows_of(self.model.vision_projection(query_states(self.model, states)).flatten(1))

    @torch.inference_mode()
    def match_logits(self, states: Tensor, texts: Sequence[Ids]) -> Floats:
        """(n, 2) logits of texts, equally many per image of `states`, those of the first image first."""
        with exact_float32(self.device):
            ids, mask = self._padded(texts)
            hidden = matched_states(self.model, states, ids, mask)
            return rows_of(self.model.itm_head(hidden).float().mean(1))

    def _image_forward(self, pixels: NDArray[np.uint8]) -> Callable[[slice], Floats]:
        return lambda part: self.query_features(self.states(pixels[part]))

    def _text_forward(self, texts: Sequence[Ids]) -> Callable[[slice], Floats]:
        @torch.inference_mode()
        def forward(part: slice) -> Floats:
            with exact_float32(self.device):
                ids, mask = self._padded(texts[part])
                return rows_of(self.model.text_projection(text_states(self.model, ids, mask)))

        return forward

    def _padded(self, texts: Sequence[Ids]) -> tuple[Tensor, Tensor | None]:
        """(n, longest) ids, and which of them are tokens; None where all texts are equally long."""
        longest = max(map(len, texts))
        ids = torch.tensor(
            [[*row, *[self._padding] * (longest - len(row))] for row in texts], device=self.device
        )
        lengths = torch.tensor([len(row) for row in texts], device=self.device)
        if min(map(len, texts)) == longest:
            return ids, None
        return ids, torch.arange(longest, device=self.device) < lengths[:, None]

    def images_per_batch(self, batch_size: int | None) -> BatchSize:
        if batch_size is not None:
            return BatchSize(batch_size, automatic=False)
        if self._image_size is None:
            self._image_size = BatchSize(8 if self.device.type == "cpu" else 64, automatic=True)
        return self._image_size

    def texts_per_batch(self, batch_size: int | None, length: int) -> tuple[BatchSize, int]:
        """The batch size and what a text of `length` tokens costs in its unit."""
        if batch_size is not None:
            return BatchSize(batch_size, automatic=False), 1
        if self._text_size is None:
            self._text_size = BatchSize(2048 if self.device.type == "cpu" else 65_536, automatic=True)
        return self._text_size, length

    def image_key(self, content: str) -> str:
        """The cache's key of the features of an image, by its content key."""
        return self._key("image", content.encode())

    def match_key(self, content: str, ids: Ids) -> str:
        """The cache's key of the matching of an image, by its content key, and a text."""
        return self._key("match", f"{content}\n".encode() + _bytes_of(ids))

    def _key(self, kind: str, content: bytes) -> str:
        return feature_key(self.fingerprint, self.dtype, kind, content)


def _bytes_of(ids: Ids) -> bytes:
    return np.array(ids, dtype="<u4").tobytes()


def _config_problems(config: dict[str, Any]) -> list[str]:
    """What is missing or of the wrong kind, in words; an empty list if all is well."""
    shape, seen = config["architecture"], config["preprocessing"]
    if not isinstance(shape, dict):
        return [f"architecture is {shown(shape)}, expected an object"]
    problems = size_problems(shape, "architecture")
    for tower, keys in _READ.items():
        part = shape.get(tower) if tower else shape
        lacks = [key for key in keys if not isinstance(part, dict) or part.get(key) is None]
        problems += [f"architecture{tower and '.'}{tower} lacks {', '.join(lacks)}"] if lacks else []
    if not isinstance(seen, dict):
        problems.append(f"preprocessing is {shown(seen)}, expected an object")
    if problems:
        return problems
    sized = shape["vision"]["image_size"]
    if (seen.get("image_size"), seen.get("interpolation")) != (sized, "bicubic"):
        problems.append(
            f"preprocessing says {shown(seen.get('interpolation'))}, {shown(seen.get('image_size'))} pixels, "
            f"but the tower takes bicubic, {sized} pixels"
        )
    problems += scaling_problems(seen)
    longest = shape["qformer"]["max_position_embeddings"]
    if not is_whole(config["context_length"], range(3, longest + 1)):
        problems.append(
            f"context_length is {shown(config['context_length'])}, expected a whole number from 3 to "
            f"{longest}"
        )
    if not isinstance(config["vocabulary"], (dict, list)):
        problems.append(f"vocabulary is {shown(config['vocabulary'])}, expected an object")
    return problems
