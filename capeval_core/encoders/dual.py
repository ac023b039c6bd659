"""Dual encoders: networks that put images and texts into one space, such as CLIP.

A network of this kind says how its text tower reads (`attention`, `pooled`, a tokenizer) and gives the steps
of both towers; batches, equal items, cache, threads and videos are the same for all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capeval_core.cache import SHARED, Feature, FeatureCache
from capeval_core.encoders.blocks import Causal, Full, run_packed, usable_kernels
from capeval_core.encoders.engine import (
    Encoding,
    ImageFeatures,
    Item,
    Units,
    chunks,
    encode_stream,
    preparing,
)
from capeval_core.encoders.preprocessing import Preprocessing, normalised
from capeval_core.encoders.tokenizers import Distinct, Ids, TextFeatures, TokenFeatures, Tokens
from capeval_core.inputs.decoders import shared_decoders
from capeval_core.inputs.images import InputImage
from capeval_core.inputs.videos import EVERY, InputFrames, Reading, Sampling
from capeval_core.models.device import DTYPES, exact, indices_on_device, on_host, to_host
from capeval_core.models.model import TEXTS, CheckedModel, canary_images, cosines
from capeval_core.ragged import Floats, ranges

Pixels = NDArray[np.uint8]
_VIDEOS_AHEAD = 8  # videos that are opened before their turn, each with a decoder and a batch of frames
_NO_REASON = np.empty(0, dtype=np.uint8)  # why frames of a video are missing: nothing, where none are


class TextTokenizer(Protocol):
    """Texts as token ids; `pieces` shows ids to readers. end: the id that ends a text. padding: the id that
    fills a text up to the context length, for a network that reads it."""

    context_length: int
    end: int
    padding: int

    def encode(self, texts: Sequence[str]) -> Tokens: ...
    def pieces(self, ids: Sequence[int]) -> list[str]: ...


@dataclass(frozen=True)
class VideoFeatures:
    """Features of the frames of some consecutive videos."""

    features: list[Floats]  # per video (T, d) un-normalised, a row per frame that is used; (0, d) without any
    keys: list[str]  # content key of each video, '' where it could not be read
    errors: list[str | None]  # why a video could not be read
    incomplete: list[str | None]  # why frames are missing, of a damaged video whose others are used


class DualEncoder(CheckedModel):
    """Images and texts in one space, each encoded without the other.

    Equal texts and equal images run once; every feature goes through a `FeatureCache`. In float32 a feature
    does not depend on what else is in the batch, up to rounding; bfloat16 and float16 take half the memory.

    A subclass has `Settings` with `architecture.embed_dim` and `preprocessing`, builds a tokenizer, and
    implements `embed_tokens`, `text_blocks`, `project_texts` and `run_images`.
    """

    automatic: ClassVar[Mapping[str, tuple[int, int]]] = {"images": (32, 256), "texts": (1024, 65_536)}
    """Texts are counted in tokens."""
    depends_on: ClassVar[tuple[str, ...]] = ("architecture", "activation", "preprocessing")
    attention: ClassVar[Literal["causal", "full"]] = "causal"
    """The tokens that a token sees: itself and those before it, or all of its text."""
    pooled: ClassVar[Literal["end", "last"]] = "end"
    """The token whose state is the text's: its first end token, or the last of as many as the network reads,
    padding included, as networks are trained whose attention does not mask it."""

    tokenizer: TextTokenizer

    def prepare(self) -> None:
        self.preprocessing = Preprocessing(**self.config["preprocessing"])
        self.dimension: int = self.config["architecture"]["embed_dim"]
        self.tokenizer = self.tokenizer_of(self.config)
        self.triton = self.device.type != "cpu" and usable_kernels(self.device, DTYPES[self.dtype])

    # ---- what a network supplies

    @classmethod
    @abstractmethod
    def tokenizer_of(cls, config: dict[str, Any]) -> TextTokenizer:
        """The tokenizer that the text tower was trained with; it needs no tensors."""

    @property
    @abstractmethod
    def text_blocks(self) -> Sequence[Any]:
        """The text tower's blocks, with the steps of `blocks.Block` under the same names."""

    @abstractmethod
    def embed_tokens(self, ids: Tensor, positions: Tensor) -> Tensor:
        """(rows, width) states before the first block, of token ids at their positions in their texts."""

    @abstractmethod
    def project_texts(self, states: Tensor) -> Tensor:
        """(rows, d) features of states behind the last block."""

    @abstractmethod
    def run_images(self, pixels: Sequence[Any]) -> Tensor:
        """(n, d) features, on the device, of what `pixels_of` makes of n images; nothing waits for it."""

    def pixels_of(self, image: Image.Image) -> Any:
        """A PIL image as `run_images` takes it: uint8 (3, s, s)."""
        return self.preprocessing.pixels(image)

    # ---- texts

    def encode_texts(
        self, texts: Sequence[str], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> TextFeatures:
        """Features of texts, in order, equal ones encoded once. A prompt is part of the text. Memory grows
        with the number of distinct texts: pass some 65,536 at a time."""
        arrays, tokens = self._encode("text", texts, cache, batch_size)
        features = np.array(arrays, dtype=np.float32).reshape(-1, self.dimension)
        return TextFeatures(features, tokens.truncated)

    def encode_tokens(
        self, texts: Sequence[str], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> TokenFeatures:
        """Features of every token of texts, from the start to the end token, in the space of images: the
        final norm and the projection are applied to each. Otherwise as `encode_texts`, whose feature of a
        text is the last row here."""
        arrays, tokens = self._encode("tokens", texts, cache, batch_size)
        return TokenFeatures(arrays, tokens.ids, tokens.truncated)

    def _encode(
        self, kind: str, texts: Sequence[str], cache: FeatureCache, batch_size: int | None
    ) -> tuple[list[Floats], Tokens]:
        """The arrays of a kind ("text" or "tokens"), one per text, and the ids that they are of."""
        encoded = self.tokenizer.encode(texts)
        # Nothing behind the first end token is read: attention is causal, or the token ends the text.
        ids = [row[: row.index(self.tokenizer.end) + 1] for row in encoded.ids]
        distinct = Distinct(ids, partial(self.key, kind), cache)
        sequences = distinct.missing
        # Where a token sees all of its text, the states of a prefix depend on what follows.
        prefix = _shared_prefix(sequences) if self.attention == "causal" else 0
        size = self.batch("texts", batch_size)
        # A user's batch size counts texts, the automatic one rows of the tower.
        costs: int | list[int] = 1
        if batch_size is None:
            costs = [self._rows(row) - prefix for row in sequences]
        forward = partial(self._forward_texts, prefix=prefix, each_token=kind == "tokens")
        # Nothing waits for a batch before the last one is launched.
        for part, features in list(size.run(sequences, forward, cost=costs, after=to_host)):
            rows: Floats = features.values()
            if kind == "tokens":
                distinct.add(part, self._rows_of_texts(rows, sequences[part], prefix))
            else:
                distinct.add(part, rows)
        return distinct.arrays(), Tokens(ids, encoded.truncated)

    def _rows(self, ids: Ids) -> int:
        """The number of rows of the text tower that a text takes."""
        return len(ids) if self.pooled == "end" else self.tokenizer.context_length

    @exact
    def _forward_texts(self, sequences: list[Ids], prefix: int, each_token: bool) -> Tensor:
        """(texts, d) of the pooled token of each; with `each_token` (rows, d), the prefix's at the front."""
        if self.pooled == "last":
            length = self.tokenizer.context_length
            padding = (self.tokenizer.padding,)
            sequences = [ids + padding * (length - len(ids)) for ids in sequences]
        # The prefix p of all texts once, then the rest of each; positions count from a text's beginning:
        #
        #   rows        p0 p1 a2 b2 b3 c2
        #   positions    0  1  2  2  3  2
        rows = list(sequences[0][:prefix])
        starts = [0]
        lengths = []
        for ids in sequences:
            rows.extend(ids[prefix:])
            starts.append(prefix)
            lengths.append(len(ids) - prefix)
        positions = ranges(np.array(starts), np.array([prefix, *lengths]))
        token_ids, token_positions = indices_on_device(self.device, rows, positions)
        x = self.embed_tokens(token_ids, token_positions)
        blocks = self.text_blocks
        heads = blocks[0].attn.num_heads
        if self.attention == "causal":
            attention: Causal | Full = Causal(lengths, prefix, heads, self.triton, x)
        else:
            attention = Full(lengths, heads, self.device)
        pooled_rows = None if each_token else attention.ends
        return self.project_texts(run_packed(blocks, x, attention, self.triton, pooled_rows))

    def _rows_of_texts(self, rows: Floats, sequences: Sequence[Ids], prefix: int) -> list[Floats]:
        """The rows of each text, one per id, of the rows of a batch that begin with the shared prefix."""
        features = []
        start = prefix
        for ids in sequences:
            stop = start + self._rows(ids) - prefix
            text = np.concatenate([rows[:prefix], rows[start:stop]])
            start = stop
            if self.pooled == "last":  # the last row is the text's own feature, the padding's rows are none
                text = np.concatenate([text[: len(ids) - 1], text[-1:]])
            features.append(text)
        return features

    # ---- images and videos

    def encode_images(
        self,
        images: Iterable[InputImage],
        *,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
        decoders: int | None = None,
    ) -> Iterator[ImageFeatures]:
        """Features of any number of images, in order, some at a time.

        Images are read and decoded by threads ahead of the encoder, or by so many processes as `decoders`.
        One that cannot be read gives a row of NaN and the reason.
        """
        settings = self.preprocessing

        # Only these settings go to other processes, which know nothing of networks.
        def decoded(images: Sequence[InputImage]) -> list[Pixels | None]:
            sources = [image.source for image in images]
            return shared_decoders(decoders or 1).pixels(sources, settings.square)

        encoding = Encoding(
            size=self.batch("images", batch_size),
            keys=lambda content, _: (self.key("image", content.encode()),),
            prepare=self.pixels_of,
            forward=self.run_images,
            elsewhere=None if decoders is None else decoded,
        )
        parts = encode_stream(zip(images, repeat(None)), encoding, cache)
        return map(partial(ImageFeatures.of, shape=(self.dimension,)), parts)

    def encode_videos(
        self,
        videos: Iterable[InputFrames],
        *,
        sampling: Sampling = EVERY,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[VideoFeatures]:
        """Features of the frames of any number of videos, in order, some videos at a time.

        A frame is encoded as `encode_images` encodes an image. Frames are decoded by threads ahead of the
        encoder; frames of several videos share a batch, and of a long one a few batches are in memory. Equal
        videos are encoded once. One that cannot be read gives no rows and the reason; of one whose end is
        damaged the frames before it are used, and `incomplete` says so. `batch_size`: frames per pass.
        """
        size = self.batch("images", batch_size)

        def units(item: Item, video: Any, prepared: object, missing: Sequence[str]) -> Units:
            reading: Reading = video.read(item[0].where, sampling)
            decoded_indices: list[int] = []

            def frames() -> Iterator[Pixels]:
                for index, image in reading:
                    decoded_indices.append(index)
                    with preparing(item[0], image):
                        pixels = self.pixels_of(image)
                    yield pixels

            def join(values: list[Any]) -> dict[str, Feature]:
                # A frame that is sampled twice is decoded once.
                row_of = {index: row for row, index in enumerate(decoded_indices)}
                features = np.stack([values[row_of[index]] for index in reading.indices])
                # As bytes, since the cache keeps arrays alone: a damaged video is so from the cache too.
                reason = np.frombuffer((reading.incomplete or "").encode(), dtype=np.uint8)
                return {missing[0]: (features, reason)}

            return Units(chunks(frames(), size.size), join)

        encoding = Encoding(
            size=size,
            keys=lambda content, _: (self.key("video", f"{content} {sampling}".encode()),),
            prepare=lambda video: video,
            forward=self.run_images,
            units=units,
            ahead=_VIDEOS_AHEAD,
        )
        no_frames = np.empty((0, self.dimension), dtype=np.float32)
        for part in encode_stream(zip(videos, repeat(None)), encoding, cache):
            encoded = VideoFeatures([], [], [], [])
            for item in part:
                features, reason = item.arrays[item.keys[0]] if item.arrays else (no_frames, _NO_REASON)
                encoded.features.append(features)
                encoded.keys.append(item.content)
                encoded.errors.append(item.error)
                encoded.incomplete.append(reason.tobytes().decode() or None)
            yield encoded

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels in [0, 1], (n, 3, s, s), less the mean and divided by the deviation of the preprocessing."""
        return normalised(pixels, self.preprocessing.mean, self.preprocessing.std)

    def preprocess(self, image: Image.Image) -> Floats:
        """(3, image_size, image_size) float32 pixels of a PIL image, as the image tower sees them."""
        return on_host(self.normalised(torch.from_numpy(self.preprocessing.pixels(image)).float() / 255))

    def canary(self) -> Floats:
        """(2, 3) cosines of two drawn images and three captions: what any change of the weights moves."""
        images = on_host(self.run_images([self.pixels_of(image) for image in canary_images()]))
        return cosines(images, self.encode_texts(TEXTS, cache=FeatureCache(0)).features)


def _shared_prefix(sequences: Sequence[Ids]) -> int:
    """The number of ids that all sequences begin with, less than the shortest has; 0 of a single one."""
    if len(sequences) < 2:
        return 0
    # In lexicographic order all sequences lie between these two.
    first = min(sequences)
    last = max(sequences)
    # Each keeps a row of its own, from which its feature is read.
    longest = min(map(len, sequences)) - 1
    for length in range(longest):
        if first[length] != last[length]:
            return length
    return longest
