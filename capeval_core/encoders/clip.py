"""CLIP's two encoders: captions and pictures to features, each computed once, as fast as is exact."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from huggingface_hub import ModelHubMixin
from numpy.typing import NDArray
from open_clip.model import CLIP, convert_weights_to_lp
from open_clip.transformer import VisionTransformer
from PIL import Image
from torch import Tensor

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.batching import BatchSize
from capeval_core.encoders.device import resolve_device
from capeval_core.encoders.precision import DTYPES, exact_float32
from capeval_core.encoders.preprocessing import Preprocessing
from capeval_core.encoders.tokenizer import ClipTokenizer
from capeval_core.encoders.transformer import KeyValues, run_pooled, run_prefix
from capeval_core.inputs.pictures import Picture, PictureError
from capeval_core.matching.cosine import unit
from capeval_core.weights.folder import CONFIG, TENSORS, WeightsError, WeightsFolder, file_checksum, open_weights

Floats = NDArray[np.float32]

_VISION_KEYS = {"layers", "width", "head_width", "mlp_ratio", "patch_size", "image_size"}
_TEXT_KEYS = {"layers", "width", "heads", "mlp_ratio", "context_length", "vocab_size"}
_CANARY_TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_CANARY_TEXTS = ("A photo depicts a dog", "two red circles", "A photo depicts a street at night in the rain")
_CHUNK = 1024
"""Pictures whose keys are known at a time; equal ones among them are decoded and encoded once."""


@dataclass(frozen=True)
class TextFeatures:
    """features: (n, d) float32, un-normalised. dropped: per text, token ids beyond the context length."""

    features: Floats
    dropped: list[int]


@dataclass(frozen=True)
class PictureFeatures:
    """Some consecutive pictures' features.

    features: (n, d) float32, un-normalised; NaN where a picture could not be read.
    keys: content key of each picture, '' where it could not be read.
    errors: why a picture could not be read, None where it could.
    """

    features: Floats
    keys: list[str]
    errors: list[str | None]


class ClipEncoder(ModelHubMixin, library_name="capeval", tags=["image-captioning", "clip"]):  # type: ignore[call-arg]
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
        self.model = _build(config, tensors, dtype).to(self.device)
        self._stored_as = {name: tensor.dtype for name, tensor in tensors.items()}
        self.dimension: int = config["architecture"]["embed_dim"]
        self.tokenizer = ClipTokenizer(self.model.context_length)
        self.fingerprint = _fingerprint(config, checksum or _tensors_checksum(tensors))
        """Names the weights, their architecture and preprocessing; features of equal ones are equal."""
        self._text_size: BatchSize | None = None
        self._picture_size: BatchSize | None = None
        if "canary" in config:
            self._check_canary(config["canary"])

    @classmethod
    def open(
        cls, folder: WeightsFolder, *, device: str | None = None, dtype: str = "float32"
    ) -> ClipEncoder:
        """The encoder of a weights folder; loaded once per process, device and dtype while it is in use."""
        key = (_fingerprint(folder.config, folder.checksum), str(resolve_device(device)), dtype)
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
        missing = sorted((ids for ids, key in keys.items() if key not in known), key=lambda ids: (len(ids), ids))
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
        threads = min(16, os.cpu_count() or 1)
        with ThreadPoolExecutor(threads, thread_name_prefix="capeval-pictures") as pool:
            waiting: deque[list[tuple[Picture, Future[str | PictureError]]]] = deque()
            for chunk in _chunks(pictures, _CHUNK):
                waiting.append([(picture, pool.submit(_key_or_error, picture)) for picture in chunk])
                if len(waiting) > 1:  # the next chunk's files are read while this one is encoded
                    yield self._encode_chunk(waiting.popleft(), pool, cache, batch_size)
            while waiting:
                yield self._encode_chunk(waiting.popleft(), pool, cache, batch_size)

    def _encode_chunk(
        self,
        chunk: list[tuple[Picture, Future[str | PictureError]]],
        pool: ThreadPoolExecutor,
        cache: FeatureCache,
        batch_size: int | None,
    ) -> PictureFeatures:
        found = [future.result() for _, future in chunk]
        first: dict[str, Picture] = {}
        for (picture, _), key in zip(chunk, found, strict=True):
            if isinstance(key, str):
                first.setdefault(self._key("picture", key.encode()), picture)
        known = cache.get(first)
        failed: dict[str, str] = {}
        size = self._pictures_per_batch(batch_size)
        missing = [(key, picture) for key, picture in first.items() if key not in known]
        for keys, pixels in self._decode(missing, pool, size.size):
            good = [key for key, array in zip(keys, pixels, strict=True) if not isinstance(array, PictureError)]
            failed |= {k: str(e) for k, e in zip(keys, pixels, strict=True) if isinstance(e, PictureError)}
            stacked = np.stack([a for a in pixels if not isinstance(a, PictureError)]) if good else np.empty(0)
            for part, features in size.run(len(good), self._picture_forward(stacked)):
                rows = dict(zip(good[part], features.cpu().numpy(), strict=True))
                cache.put(rows)
                known.update(rows)
        result = PictureFeatures(np.full((len(chunk), self.dimension), np.nan, dtype=np.float32), [], [])
        for row, key in enumerate(found):
            if isinstance(key, PictureError):
                result.keys.append("")
                result.errors.append(str(key))
                continue
            full_key = self._key("picture", key.encode())
            result.keys.append(key)
            result.errors.append(failed.get(full_key))
            if full_key in known:
                result.features[row] = known[full_key]
        return result

    def _decode(
        self, missing: list[tuple[str, Picture]], pool: ThreadPoolExecutor, size: int
    ) -> Iterator[tuple[list[str], list[NDArray[np.uint8] | PictureError]]]:
        """Batches of pixels, decoded at most two batches ahead of their use."""
        ahead: deque[tuple[list[str], list[Future[NDArray[np.uint8] | PictureError]]]] = deque()
        for batch in _chunks(missing, size):
            futures = [pool.submit(self._pixels_or_error, picture) for _, picture in batch]
            ahead.append(([key for key, _ in batch], futures))
            if len(ahead) > 2:
                keys, ready = ahead.popleft()
                yield keys, [future.result() for future in ready]
        for keys, ready in ahead:
            yield keys, [future.result() for future in ready]

    def _pixels_or_error(self, picture: Picture) -> NDArray[np.uint8] | PictureError:
        try:
            return self.preprocessing.pixels(picture.load())
        except PictureError as error:
            return error

    def preprocess(self, picture: Image.Image) -> Floats:
        """(3, image_size, image_size) float32 pixels of a PIL picture, as the picture tower sees them."""
        return np.asarray(self._scale(self.preprocessing.pixels(picture)[None])[0].cpu())

    def _scale(self, pixels: NDArray[np.uint8]) -> Tensor:
        mean = torch.tensor(self.preprocessing.mean, device=self.device).view(3, 1, 1)
        std = torch.tensor(self.preprocessing.std, device=self.device).view(3, 1, 1)
        return (torch.from_numpy(pixels).to(self.device).float() / 255 - mean) / std

    def _picture_forward(self, pixels: NDArray[np.uint8]) -> Callable[[slice], Tensor]:
        @torch.inference_mode()
        def forward(part: slice) -> Tensor:
            with exact_float32():
                x = self._scale(pixels[part]).to(DTYPES[self.dtype])
                visual = self.model.visual
                if not isinstance(visual, VisionTransformer):
                    return visual(x).float()
                x = visual.conv1(x).flatten(2).transpose(1, 2)
                x = torch.cat([visual.class_embedding.to(x.dtype).expand(len(x), 1, -1), x], dim=1)
                x = visual.ln_pre(x + visual.positional_embedding.to(x.dtype))
                x = run_pooled(visual.transformer.resblocks, x, position=0, causal=False)
                return (visual.ln_post(x) @ visual.proj).float()

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
            ids = torch.tensor([sequence[shared:] for sequence in group])
            size, cost = self._texts_per_batch(batch_size, length - shared)
            for part, features in size.run(len(ids), self._text_forward(ids, shared, prefix), cost=cost):
                yield slice(start + part.start, start + part.stop), features.cpu().numpy()
            start += len(ids)

    def _embed(self, ids: Tensor, start: int) -> Tensor:
        model, dtype = self.model, DTYPES[self.dtype]
        positions = model.positional_embedding[start : start + ids.shape[1]]
        return model.token_embedding(ids.to(self.device)).to(dtype) + positions.to(dtype)

    @torch.inference_mode()
    def _text_prefix(self, ids: tuple[int, ...]) -> list[KeyValues]:
        with exact_float32():
            return run_prefix(self.model.transformer.resblocks, self._embed(torch.tensor([ids]), 0))

    def _text_forward(self, ids: Tensor, start: int, prefix: list[KeyValues]) -> Callable[[slice], Tensor]:
        @torch.inference_mode()
        def forward(part: slice) -> Tensor:
            with exact_float32():
                model = self.model
                x = self._embed(ids[part], start)
                x = run_pooled(model.transformer.resblocks, x, position=-1, causal=True, prefix=prefix)
                return (model.ln_final(x) @ model.text_projection).float()

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
        pictures = np.stack([self.preprocessing.pixels(picture) for picture in _canary_pictures()])
        seen = self._picture_forward(pictures)(slice(None)).cpu().numpy()
        said = self.encode_texts(_CANARY_TEXTS, cache=FeatureCache(0)).features
        return np.asarray(unit(seen) @ unit(said).T, dtype=np.float32)

    def _check_canary(self, canary: dict[str, Any]) -> None:
        difference = float(np.abs(self.canary() - np.float32(canary["cosines"])).max())
        tolerance = canary["tolerance"][self.dtype]
        if not difference <= tolerance:
            raise WeightsError(
                f"the canary cosines are off by {difference:.2g} (at most {tolerance:g} is allowed): tensors, "
                f"activation ({self.config['activation']}), heads or preprocessing are not those that the "
                "weights were saved with; download or convert them again"
            )

    def _save_pretrained(self, save_directory: Path) -> None:
        from safetensors.torch import save_file

        if self.dtype != "float32":
            raise ValueError(f"an encoder opened in {self.dtype} has rounded weights: open it in float32 to save it")
        tensors = self.model.state_dict()
        save_file({k: t.cpu().to(self._stored_as[k]).contiguous() for k, t in tensors.items()}, save_directory / TENSORS)
        canary = {"cosines": self.canary().astype(float).round(7).tolist(), "tolerance": _CANARY_TOLERANCE}
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


def _build(config: dict[str, Any], tensors: dict[str, Tensor], dtype: str) -> CLIP:
    architecture = config["architecture"]
    _check_architecture(architecture)
    with torch.device("meta"):  # no memory and no random numbers for what is overwritten
        model = CLIP(
            architecture["embed_dim"],
            architecture["vision"],
            architecture["text"],
            quick_gelu=config["activation"] == "quick_gelu",
            cast_dtype=None if dtype == "float32" else DTYPES[dtype],
        )
    _check_tensors(model.state_dict(), tensors)
    wide = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    model.load_state_dict(wide, strict=True, assign=True)
    model.attn_mask = None  # causality is ours, at each text's real length
    if dtype != "float32":
        convert_weights_to_lp(model, DTYPES[dtype])
    return model.eval().requires_grad_(False)


def _check_architecture(architecture: dict[str, Any]) -> None:
    for tower, known in (("vision", _VISION_KEYS), ("text", _TEXT_KEYS)):
        unknown = sorted(key for key in architecture[tower].keys() - known if architecture[tower][key] is not None)
        if unknown:
            raise WeightsError(
                f"architecture.{tower} has {', '.join(unknown)}, which is not a part of OpenAI's or OpenCLIP's "
                f"plain CLIP (known: {', '.join(sorted(known))})"
            )
    vocabulary = architecture["text"].get("vocab_size", 49408)
    if vocabulary != 49408:
        raise WeightsError(f"architecture.text.vocab_size is {vocabulary}, but CLIP's vocabulary has 49408 entries")


def _check_tensors(expected: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    problems = []
    if missing := sorted(expected.keys() - found.keys()):
        problems.append(f"{len(missing)} tensors are missing ({_some(missing)})")
    if extra := sorted(found.keys() - expected.keys()):
        problems.append(f"{len(extra)} tensors are not part of the architecture ({_some(extra)})")
    shapes = [
        f"{name} is {tuple(found[name].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if shapes:
        problems.append(f"{len(shapes)} tensors have another shape ({_some(shapes)})")
    if problems:
        raise WeightsError(
            "; ".join(problems) + ": the config and the tensors do not belong together; convert the weights again"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _fingerprint(config: dict[str, Any], checksum: str) -> str:
    parts = {key: config[key] for key in ("architecture", "activation", "preprocessing")}
    text = json.dumps(["clip", checksum, parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _tensors_checksum(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _canary_pictures() -> list[Image.Image]:
    x, y = np.meshgrid(np.arange(120), np.arange(90))
    ramps = np.stack([2 * x, 255 - 2 * y, (x * y) % 256], axis=-1).astype(np.uint8)
    board = np.where((x // 20 + y // 15) % 2, 230, 40).astype(np.uint8)
    return [Image.fromarray(ramps), Image.fromarray(np.stack([board, board // 2, 255 - board], axis=-1))]


def _common_prefix(sequences: list[tuple[int, ...]]) -> int:
    """How many leading ids all sequences share, leaving each at least one of its own."""
    if len(sequences) < 2:
        return 0
    first, last = min(sequences), max(sequences)  # in lexicographic order all others lie between them
    longest = min(map(len, sequences)) - 1
    return next((i for i in range(longest) if first[i] != last[i]), longest)


def _key_or_error(picture: Picture) -> str | PictureError:
    try:
        return picture.key
    except PictureError as error:
        return error


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
