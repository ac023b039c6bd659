"""CLIP's two encoders: captions and pictures to features, each computed once, as fast as is exact."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from huggingface_hub import ModelHubMixin
from numpy.typing import NDArray
from open_clip.transformer import VisionTransformer
from PIL import Image
from torch import Tensor

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.batching import BatchSize
from capeval_core.encoders.canary import TEXTS, TOLERANCE, canary_pictures, check_canary, cosines
from capeval_core.encoders.clip_model import build_clip
from capeval_core.encoders.device import resolve_device
from capeval_core.encoders.pictures import PictureFeatures, encode_distinct
from capeval_core.encoders.precision import DTYPES, exact_float32
from capeval_core.encoders.preprocessing import Preprocessing
from capeval_core.encoders.tokenizer import ClipTokenizer
from capeval_core.encoders.transformer import KeyValues, run_pooled, run_prefix
from capeval_core.inputs.pictures import Picture
from capeval_core.weights.folder import (
    CONFIG,
    TENSORS,
    WeightsError,
    WeightsFolder,
    file_checksum,
    fingerprint,
    open_weights,
)

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TextFeatures:
    """features: (n, d) float32, un-normalised. dropped: per text, token ids beyond the context length."""

    features: Floats
    dropped: list[int]


_CARD = """---
{{ card_data }}
---

# Weights of a caption metric

The two encoders of a CLIP, in the format of the Python package `capeval`: `model.safetensors` holds the
tensors, `config.json` the architecture, the preprocessing, where they come from and under which licence,
and cosines that are computed again whenever they are loaded.

    import capeval_core
    metric = capeval_core.load("pacs", weights="this folder or repository")
"""


class ClipEncoder(
    ModelHubMixin, library_name="capeval", tags=["image-captioning", "clip"], model_card_template=_CARD
):
    """CLIP on open_clip's modules, with checked weights.

    Texts run at their real length, equal ones once (exact, since attention is causal); equal pictures
    run once; every feature goes through a `FeatureCache`. In float32 a feature does not depend on what
    else is in the batch, up to rounding; bfloat16 and float16 halve memory and time on GPUs.

    Args:
        config: as in config.json of a weights folder.
        tensors: open_clip's names; missing, extra or misshaped ones are an error.
        checksum: sha256 that identifies the tensors; computed from them if it is not given.
        device: torch device name; None means CUDA where available, else the CPU.
        dtype: "float32", "bfloat16" or "float16".

    Raises:
        WeightsError: the tensors do not fit the config, or the canary's cosines come out different.
    """

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
        self.device = resolve_device(device)
        self.dtype = dtype
        self.preprocessing = Preprocessing(**config["preprocessing"])
        self.model = build_clip(config, tensors, dtype).to(self.device)
        self._stored_as = {name: tensor.dtype for name, tensor in tensors.items()}
        self.dimension: int = config["architecture"]["embed_dim"]
        self.tokenizer = ClipTokenizer(self.model.context_length)
        self.fingerprint = fingerprint(config, checksum or _tensors_checksum(tensors))
        """Names the weights, their architecture and preprocessing; features of equal ones are equal."""
        self._text_size: BatchSize | None = None
        self._picture_size: BatchSize | None = None
        if "canary" in config:
            check_canary(config["canary"], self.canary(), dtype)

    @classmethod
    def open(cls, folder: WeightsFolder, *, device: str | None = None, dtype: str = "float32") -> ClipEncoder:
        """The encoder of a weights folder; loaded once per process, device and dtype while it is in use."""
        key = (fingerprint(folder.config, folder.checksum), str(resolve_device(device)), dtype)
        encoder = _OPENED.get(key)
        if encoder is None:
            try:
                encoder = cls(
                    folder.config, folder.tensors(), checksum=folder.checksum, device=device, dtype=dtype
                )
            except WeightsError as error:
                raise WeightsError(f"weights {folder.name!r}: {error}") from error
            _OPENED[key] = encoder
        return encoder

    def encode_texts(
        self, texts: Sequence[str], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> TextFeatures:
        """Features of texts, in order. A prompt is part of the text.

        Equal texts are encoded once. Memory grows with the number of distinct texts: pass
        some 65,536 at a time.

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

    def encode_pictures(
        self, pictures: Iterable[Picture], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> Iterator[PictureFeatures]:
        """Features of any number of pictures, in order, some at a time.

        Pictures are read and decoded by threads ahead of the encoder. One that cannot be read gives a row
        of NaN and the reason.
        """
        size = self._pictures_per_batch(batch_size)
        return encode_distinct(
            pictures,
            prepare=self.preprocessing.pixels,
            forward=lambda pixels: size.run(len(pixels), self._picture_forward(pixels)),
            dimension=self.dimension,
            ahead=size.size,
            cache=cache,
            cache_key=lambda key: self._key("picture", key.encode()),
        )

    def preprocess(self, picture: Image.Image) -> Floats:
        """(3, image_size, image_size) float32 pixels of a PIL picture, as the picture tower sees them."""
        return np.asarray(self._scale(self.preprocessing.pixels(picture)[None])[0].cpu())

    def _scale(self, pixels: NDArray[np.uint8]) -> Tensor:
        mean = torch.tensor(self.preprocessing.mean, dtype=torch.float32, device=self.device).view(3, 1, 1)
        std = torch.tensor(self.preprocessing.std, dtype=torch.float32, device=self.device).view(3, 1, 1)
        scaled: Tensor = (torch.from_numpy(pixels).to(self.device).float() / 255 - mean) / std
        return scaled

    def _picture_forward(self, pixels: NDArray[np.uint8]) -> Callable[[slice], Floats]:
        @torch.inference_mode()
        def forward(part: slice) -> Floats:
            with exact_float32(self.device):
                x = self._scale(pixels[part]).to(DTYPES[self.dtype])
                visual = self.model.visual
                if not isinstance(visual, VisionTransformer):
                    return _rows(visual(x))
                x = visual.conv1(x).flatten(2).transpose(1, 2)
                x = torch.cat([visual.class_embedding.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
                x = visual.ln_pre(x + visual.positional_embedding.to(x.dtype))
                x = run_pooled(visual.transformer.resblocks, x, position=0, causal=False)
                return _rows(visual.ln_post(x) @ visual.proj)

        return forward

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
                return _rows(model.ln_final(x) @ model.text_projection)

        return forward

    def _texts_per_batch(self, batch_size: int | None, length: int) -> tuple[BatchSize, int]:
        """The batch size and what a text of `length` costs in its unit."""
        if batch_size is not None:
            return BatchSize(batch_size, automatic=False), 1
        if self._text_size is None:
            self._text_size = BatchSize(1024 if self.device.type == "cpu" else 65_536, automatic=True)
        return self._text_size, length

    def _pictures_per_batch(self, batch_size: int | None) -> BatchSize:
        if batch_size is not None:
            return BatchSize(batch_size, automatic=False)
        if self._picture_size is None:
            self._picture_size = BatchSize(32 if self.device.type == "cpu" else 256, automatic=True)
        return self._picture_size

    def _key(self, kind: str, content: bytes) -> str:
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        return f"{self.fingerprint}:{self.dtype}:{kind}:{digest}"

    def canary(self) -> Floats:
        """(2, 3) cosines of two drawn pictures and three captions: what any change of the weights moves."""
        pictures = np.stack([self.preprocessing.pixels(picture) for picture in canary_pictures()])
        seen = self._picture_forward(pictures)(slice(None))
        said = self.encode_texts(TEXTS, cache=FeatureCache(0)).features
        return cosines(seen, said)

    def _save_pretrained(self, save_directory: Path) -> None:
        from safetensors.torch import save_file

        if self.dtype != "float32":
            raise ValueError(
                f"an encoder opened in {self.dtype} has rounded weights: open it in float32 to save it"
            )
        tensors = self.model.state_dict()
        save_file(
            {k: t.cpu().to(self._stored_as[k]).contiguous() for k, t in tensors.items()},
            save_directory / TENSORS,
        )
        canary = {"cosines": self.canary().astype(float).round(7).tolist(), "tolerance": TOLERANCE}
        checksum = {TENSORS: file_checksum(save_directory / TENSORS)}
        config = {**self.config, "checksum": checksum, "canary": canary}
        (save_directory / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        **_download: Any,
    ) -> ClipEncoder:
        weights = f"{model_id}@{revision}" if revision else model_id
        return cls.open(open_weights(weights, metric="pacs", tiny="pacs"), device=device, dtype=dtype)


_OPENED: WeakValueDictionary[tuple[str, str, str], ClipEncoder] = WeakValueDictionary()


def _tensors_checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        stored = tensors[name].cpu().contiguous().flatten().view(torch.uint8)  # numpy has no bfloat16
        digest.update(name.encode() + stored.numpy().tobytes())
    return digest.hexdigest()


def _rows(features: Tensor) -> Floats:
    return np.asarray(features.float().cpu())


def _common_prefix(sequences: list[tuple[int, ...]]) -> int:
    """How many leading ids all sequences share, leaving each at least one of its own."""
    if len(sequences) < 2:
        return 0
    first, last = min(sequences), max(sequences)  # in lexicographic order all others lie between them
    longest = min(map(len, sequences)) - 1
    return next((i for i in range(longest) if first[i] != last[i]), longest)
