"""UNITER: one transformer over the tokens of a caption and the boxes of an image.

Chen, Li, Yu, El Kholy, Ahmed, Gan, Cheng, Liu: UNITER: UNiversal Image-TExt Representation Learning, ECCV
2020, https://arxiv.org/abs/1909.11740
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.cache import SHARED, FeatureCache, feature_key
from capeval_core.encoders.engine import Encoded, encode_stream, with_extras
from capeval_core.encoders.pairs import Pairs
from capeval_core.encoders.region_text import RegionTextEncoder, canary_boxes
from capeval_core.encoders.tokenizers import Ids
from capeval_core.encoders.uniter_model import Uniter, build_uniter, config_problems, empty_uniter
from capeval_core.inputs.boxes import BoxFeatures, InputBoxes
from capeval_core.inputs.visual import Visual
from capeval_core.models.canary import TEXTS
from capeval_core.models.copies import rows_on_device
from capeval_core.models.device import DTYPES, exact_float32
from capeval_core.weights.uniter import UniterConversion

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class RegionInput:
    """What UNITER takes of n boxes: features (n, region_size) float16 and positions (n, 7) float32."""

    features: NDArray[np.float16]
    positions: Floats


@dataclass(frozen=True)
class Rankings:
    """An image and its n captions.

    logits: (n,) float32 of the ranking head; NaN where the boxes could not be read.
    key: content key of the boxes, '' where they could not be read.
    error: why they could not be read, None where they could.
    """

    logits: Floats
    key: str
    error: str | None


def region_input(boxes: BoxFeatures) -> RegionInput:
    """Features and positions of boxes as UNITER was trained with them.

    A position is x0, y0, x1, y1, width and height relative to the image, and their area. UNITER's training
    data holds features and positions in float16, so both are rounded to it; the area is the product of the
    rounded width and height.

    Raises:
        ValueError: the size of the image is not known, or a feature exceeds the range of float16.

    >>> boxes = BoxFeatures(np.float32([[0, 0, 30, 10]]), np.float32([[0.1]]), size=(40, 40))
    >>> region_input(boxes).positions
    array([[0.    , 0.    , 0.75  , 0.25  , 0.75  , 0.25  , 0.1875]], dtype=float32)
    """
    with np.errstate(over="ignore"):
        features = boxes.features.astype(np.float16)
    if not np.isfinite(features).all():
        raise ValueError("a feature exceeds the range of float16, in which this network was trained")
    relative = boxes.relative().astype(np.float16).astype(np.float32)
    area = relative[:, 4:5] * relative[:, 5:6]
    return RegionInput(features, np.concatenate([relative, area], axis=1))


class UniterEncoder(RegionTextEncoder, tags=["image-captioning", "uniter"]):
    """UNITER with a ranking head, on transformers' BERT layers.

    Boxes are embedded once per image, however many captions it is ranked with; no caption or box is padded.
    In float32 a value does not depend on what else is in the batch, up to rounding.

    Arguments and errors are those of `CheckedModel`.
    """

    kind = "uniter"
    revision = 2  # texts are split as by `str.split`
    depends_on = ("architecture", "context_length", "vocabulary", "lowercase")
    Conversion = UniterConversion
    splits = True

    model: Uniter

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Uniter:
        return build_uniter(config["architecture"], tensors, self.dtype)

    @classmethod
    def empty(cls, config: dict[str, Any]) -> Uniter:
        return empty_uniter(config["architecture"])

    @classmethod
    def problems(cls, config: dict[str, Any]) -> list[str]:
        return config_problems(config)

    @property
    def rows_of_words(self) -> int:
        return int(self.config["architecture"]["vocab_size"])

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        """The architecture in one line.

        >>> shape = {"num_hidden_layers": 12, "hidden_size": 768, "region_size": 2048, "vocab_size": 28996}
        >>> UniterEncoder.describe({"architecture": shape})
        'UNITER 12x768, box features of 2048 numbers, 28996 words'
        """
        shape = config["architecture"]
        return (
            f"UNITER {shape['num_hidden_layers']}x{shape['hidden_size']}, box features of "
            f"{shape['region_size']} numbers, {shape['vocab_size']} words"
        )

    @classmethod
    def region_size_of(cls, config: dict[str, Any]) -> int:
        return int(config["architecture"]["region_size"])

    def rank(
        self,
        boxes: Iterable[Visual[BoxFeatures]],
        captions: Iterable[Sequence[str]],
        *,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[Rankings]:
        """Ranking logits of every image with each of its captions, image by image, in order.

        Args:
            boxes: box features of any number of images; they are read ahead by threads, a few at a time.
            captions: per image any number of texts. Equal ones run once.
            cache: where logits are looked up and kept.
            batch_size: images, and captions, per forward pass; None: as many as fit into memory.

        Raises:
            ValueError: more images than lists of captions, or fewer.
            MemoryError: the given `batch_size`, or a single item, does not fit into memory.
        """
        tokens = self.tokens(captions)
        items = with_extras(boxes, tokens, "lists of captions", "give every image its captions")
        encoding = Pairs(self, self.images_per_batch(batch_size), batch_size).encoding()
        return map(self._rankings, chain.from_iterable(encode_stream(items, encoding, cache)))

    def _rankings(self, item: Encoded) -> Rankings:
        logits = np.full(len(item.extra.ids), np.nan, dtype=np.float32)
        if item.arrays:
            for row, ids in enumerate(item.extra.ids):
                logits[row] = item.arrays[self.pair_key(item.content, ids)][0]
        return Rankings(logits, item.content, item.error)

    def prepare_visual(self, boxes: BoxFeatures) -> RegionInput:
        """What the network takes of boxes.

        Raises:
            ValueError: their features have another width than these weights take, or see `region_input`.
        """
        boxes.check_width(self.region_size)
        return region_input(boxes)

    @torch.inference_mode()
    def states(self, prepared: Sequence[RegionInput]) -> list[Tensor]:
        """(boxes, hidden) embedded boxes of each image, on the encoder's device."""
        with exact_float32(self.device):
            features, positions = (
                rows_on_device(self.device, arrays, DTYPES[self.dtype])
                for arrays in ([p.features for p in prepared], [p.positions for p in prepared])
            )
            embedded = self.model.embed_regions(features, positions)
            return list(torch.split(embedded, [len(p.positions) for p in prepared]))

    def image_features(self, states: list[Tensor]) -> Floats:
        """There are none: boxes mean nothing to this network without a text."""
        return np.empty((len(states), 0), dtype=np.float32)

    @torch.inference_mode()
    def run_pairs(self, states: list[Tensor], pairs: Sequence[tuple[int, Ids, str]]) -> Tensor:
        """(n, 1) ranking logits of pairs (position in `states`, token ids, key)."""
        with exact_float32(self.device):
            regions = [states[position] for position, _, _ in pairs]
            return self.model.ranking_logits(regions, [ids for _, ids, _ in pairs])[:, None]

    def canary(self) -> Floats:
        """(2, 3): probabilities by the ranking head of two made-up images with three captions."""
        visuals = [InputBoxes.of(canary_boxes(count, self.region_size)) for count in (5, 12)]
        ranked = self.rank(visuals, [TEXTS, TEXTS], cache=FeatureCache(0))
        return np.stack([1 / (1 + np.exp(-each.logits)) for each in ranked])

    def image_key(self, content: str) -> None:
        """Boxes have no features without a text."""

    def pair_key(self, content: str, ids: Ids) -> str:
        """The cache's key of the logit of an image's boxes, by their content key, and a text."""
        packed = f"{content}\n".encode() + np.array(ids, dtype="<u4").tobytes()
        return feature_key(self.fingerprint, self.dtype, "rank", packed)
