"""What every CLIP has, whatever its images look like: the text tower's features, sizes of batches, keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from open_clip.model import CLIP
from torch import Tensor

from capeval_core.cache import SHARED, FeatureCache, feature_key
from capeval_core.encoders.preprocessing import Preprocessing
from capeval_core.encoders.tokenizer import ClipTokenizer
from capeval_core.encoders.transformer import KeyValues, run_pooled, run_prefix
from capeval_core.models.batching import BatchSize
from capeval_core.models.model import CheckedModel
from capeval_core.models.precision import DTYPES, exact_float32

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TextFeatures:
    """features: (n, d) float32, un-normalised. dropped: per text, token ids beyond the context length."""

    features: Floats
    dropped: list[int]


class ClipTowers(CheckedModel):
    """A text tower of CLIP, and what its image side is built on.

    Texts run at their real length, equal ones once (exact, since attention is causal).
    """

    model: CLIP

    def prepare(self) -> None:
        self.preprocessing = Preprocessing(**self.config["preprocessing"])
        self.dimension: int = self.config["architecture"]["embed_dim"]
        self.tokenizer = ClipTokenizer(self.model.context_length)
        self._text_size: BatchSize | None = None
        self._image_size: BatchSize | None = None

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        """The architecture in one line.

        >>> vision = {"layers": 12, "width": 768, "patch_size": 32, "image_size": 224}
        >>> text = {"layers": 12, "width": 512}
        >>> shape = {"embed_dim": 512, "vision": vision, "text": text}
        >>> ClipTowers.describe({"architecture": shape, "activation": "quick_gelu"})
        'ViT/32 12x768, 224 pixels; text 12x512; 512 dimensions; quick_gelu'
        """
        vision, text = config["architecture"]["vision"], config["architecture"]["text"]
        if isinstance(vision["layers"], list):
            tower = f"ResNet {'-'.join(map(str, vision['layers']))}, width {vision['width']}"
        else:
            tower = f"ViT/{vision['patch_size']} {vision['layers']}x{vision['width']}"
        return (
            f"{tower}, {vision['image_size']} pixels; text {text['layers']}x{text['width']}; "
            f"{config['architecture']['embed_dim']} dimensions; {config['activation']}"
        )

    def encode_texts(
        self, texts: Sequence[str], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> TextFeatures:
        """Features of texts, in order. A prompt is part of the text.

        Equal texts are encoded once. Memory grows with the number of distinct texts: pass
        some 65,536 at a time.

        >>> from capeval_core.encoders.clip import ClipEncoder
        >>> clip = ClipEncoder.from_pretrained("tiny")
        >>> clip.encode_texts(["A photo depicts a red circle", "A photo depicts a RED circle"]).features.shape
        (2, 128)
        """
        tokens = self.tokenizer.encode(texts)
        # Nothing after the first end token can reach it, so such ids are cut before keys are made.
        sequences = [tuple(ids[: ids.index(self.tokenizer.end) + 1]) for ids in tokens.ids]
        keys = {ids: self._key("text", np.array(ids, dtype="<u4").tobytes()) for ids in set(sequences)}
        known = cache.get(keys.values())
        missing = sorted(
            (ids for ids, key in keys.items() if key not in known), key=lambda ids: (len(ids), ids)
        )
        for part, features in self._run_texts(missing, batch_size):
            rows = {keys[ids]: row for ids, row in zip(missing[part], features, strict=True)}
            cache.put(rows)
            known.update(rows)
        features = np.empty((len(texts), self.dimension), dtype=np.float32)
        for row, ids in enumerate(sequences):
            features[row] = known[keys[ids]]
        return TextFeatures(features, tokens.dropped)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1], (n, 3, s, s), less the mean and divided by the deviation of the preprocessing."""
        mean = torch.tensor(self.preprocessing.mean, dtype=torch.float32, device=pixels.device).view(3, 1, 1)
        std = torch.tensor(self.preprocessing.std, dtype=torch.float32, device=pixels.device).view(3, 1, 1)
        scaled: Tensor = (pixels - mean) / std
        return scaled

    def _run_texts(
        self, sequences: list[tuple[int, ...]], batch_size: int | None
    ) -> Iterator[tuple[slice, Floats]]:
        """Features of sequences sorted by length, one exact length per batch."""
        if not sequences:
            return
        shared = _common_prefix(sequences)
        prefix = self._text_prefix(sequences[0][:shared]) if shared else []
        start = 0
        for length, group in groupby(sequences, key=len):
            ids = torch.tensor([sequence[shared:] for sequence in group], device=self.device)
            size, cost = self._texts_per_batch(batch_size, length - shared)
            for part, features in size.run(len(ids), self._text_forward(ids, shared, prefix), cost=cost):
                yield slice(start + part.start, start + part.stop), features
            start += len(ids)

    def _embed(self, ids: Tensor, start: int) -> Tensor:
        model, dtype = self.model, DTYPES[self.dtype]
        positions = model.positional_embedding[start : start + ids.shape[1]]
        embedded: Tensor = model.token_embedding(ids).to(dtype) + positions.to(dtype)
        return embedded

    @torch.inference_mode()
    def _text_prefix(self, ids: tuple[int, ...]) -> list[KeyValues]:
        with exact_float32(self.device):
            x = self._embed(torch.tensor([ids], device=self.device), 0)
            return run_prefix(self.model.transformer.resblocks, x)

    def _text_forward(self, ids: Tensor, start: int, prefix: list[KeyValues]) -> Callable[[slice], Floats]:
        @torch.inference_mode()
        def forward(part: slice) -> Floats:
            with exact_float32(self.device):
                model = self.model
                x = self._embed(ids[part], start)
                x = run_pooled(model.transformer.resblocks, x, position=-1, causal=True, prefix=prefix)
                return rows_of(model.ln_final(x) @ model.text_projection)

        return forward

    def _texts_per_batch(self, batch_size: int | None, length: int) -> tuple[BatchSize, int]:
        """The batch size and what a text of `length` costs in its unit."""
        if batch_size is not None:
            return BatchSize(batch_size, automatic=False), 1
        if self._text_size is None:
            self._text_size = BatchSize(1024 if self.device.type == "cpu" else 65_536, automatic=True)
        return self._text_size, length

    def _images_per_batch(self, batch_size: int | None) -> BatchSize:
        if batch_size is not None:
            return BatchSize(batch_size, automatic=False)
        if self._image_size is None:
            self._image_size = BatchSize(32 if self.device.type == "cpu" else 256, automatic=True)
        return self._image_size

    def _key(self, kind: str, content: bytes) -> str:
        return feature_key(self.fingerprint, self.dtype, kind, content)


def rows_of(features: Tensor) -> Floats:
    return np.asarray(features.float().cpu())


def _common_prefix(sequences: list[tuple[int, ...]]) -> int:
    """How many leading ids all sequences share, leaving each at least one of its own."""
    if len(sequences) < 2:
        return 0
    first, last = min(sequences), max(sequences)  # in lexicographic order all others lie between them
    longest = min(map(len, sequences)) - 1
    return next((i for i in range(longest) if first[i] != last[i]), longest)
