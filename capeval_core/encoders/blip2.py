"""BLIP-2: features of images and texts, and whether a caption belongs to an image (matching).

Li, Li, Savarese, Hoi: BLIP-2: Bootstrapping Language-Image Pre-training with Frozen Image Encoders and
Large Language Models, ICML 2023, section 3.1, https://arxiv.org/abs/2301.12597
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, repeat
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.blocks import among_all, run_packed, usable_kernels
from capeval_core.encoders.engine import Encoded, Encoding, ImageFeatures, chunks, encode_stream
from capeval_core.encoders.pairs import Pair, PairEncoder, TextSettings, bytes_of
from capeval_core.encoders.preprocessing import normalised
from capeval_core.encoders.region_text import BertSizes, LayerSizes
from capeval_core.encoders.texts import TextFeatures, encode_distinct, sentence_features
from capeval_core.encoders.tokenizers import PAD, Ids, Tokens
from capeval_core.inputs.images import InputImage
from capeval_core.models.canary import TEXTS, canary_images, cosines
from capeval_core.models.config import Deviations, Layers, Means, Share, Side, Width
from capeval_core.models.copies import on_device, on_host, stacked_on_device
from capeval_core.models.device import DTYPES, exact
from capeval_core.weights.blip2 import Blip2Conversion, empty_model, translate_transformers
from capeval_core.weights.folder import VOCABULARY, WeightsFolder

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class _VisionSizes(LayerSizes):
    image_size: Side
    patch_size: Side
    layer_norm_eps: Share


@dataclass(frozen=True)
class _QFormerSizes(BertSizes):
    encoder_hidden_size: Width
    cross_attention_frequency: Layers
    layer_norm_eps: Share


@dataclass(frozen=True)
class _Blip2Sizes:
    """Sizes under transformers' names."""

    vision: _VisionSizes
    qformer: _QFormerSizes
    num_query_tokens: Side
    image_text_hidden_size: Width


@dataclass(frozen=True)
class _SquarePixels:
    image_size: Side
    interpolation: Literal["bicubic"]
    mean: Means
    std: Deviations


@dataclass(frozen=True)
class _Blip2Settings(TextSettings):
    architecture: _Blip2Sizes
    preprocessing: _SquarePixels

    @property
    def texts(self) -> _QFormerSizes:
        return self.architecture.qformer

    def __post_init__(self) -> None:
        super().__post_init__()
        sized, taken = self.preprocessing.image_size, self.architecture.vision.image_size
        if sized != taken:
            raise ValueError(f"preprocessing.image_size is {sized}, but the tower takes {taken}")


def _image_states(model: Any, pixels: Tensor, triton: bool | None = None) -> Tensor:
    """(images, patches + 1, width): the vision tower's states of normalised pixels (images, 3, n, n).

    `triton`: whether its blocks run by our kernels, without gradients; None: transformers' own steps.
    """
    tower = model.vision_model
    if triton is None or tower.config.hidden_act != "gelu":
        states: Tensor = tower(pixel_values=pixels).last_hidden_state
        return states
    x = tower.embeddings(pixels)
    blocks = [_Block(layer) for layer in tower.encoder.layers]
    attention = among_all(len(x), tower.config.num_attention_heads)
    rows = run_packed(blocks, x.flatten(0, 1), attention, triton)
    normed: Tensor = tower.post_layernorm(rows)
    return normed.view(x.shape)


class _Block:
    """A layer of the vision tower under the names of CLIP's blocks, whose steps are the same."""

    def __init__(self, layer: Any) -> None:
        own = layer.self_attn
        self.ln_1, self.ln_2, self.mlp = layer.layer_norm1, layer.layer_norm2, _Mlp(layer.mlp)
        self.attn = SimpleNamespace(
            in_proj_weight=own.qkv.weight, in_proj_bias=own.qkv.bias, out_proj=own.projection
        )


class _Mlp:
    """Two linear layers and the activation between them."""

    def __init__(self, mlp: Any) -> None:
        self.c_fc, self.gelu, self.c_proj = mlp.fc1, mlp.activation_fn, mlp.fc2

    def __call__(self, x: Tensor) -> Tensor:
        done: Tensor = self.c_proj(self.gelu(self.c_fc(x)))
        return done


def _text_states(model: Any, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """(n, width): the first token of each text, read without an image. mask: (n, length), true on tokens."""
    return _run_qformer(model.qformer, _embedded(model, ids), queries=0, read=1, mask=mask)[:, 0]


def matched_states(model: Any, states: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """(n, queries, width): the query tokens after looking at an image and its text together.

    states (images, patches + 1, width); ids (n, length) hold equally many texts per image, those of the
    first image first; mask (n, length) is true on tokens, None where there is no padding.
    """
    queries = model.query_tokens.expand(len(ids), -1, -1)
    count = queries.shape[1]
    if mask is not None:
        mask = functional.pad(mask, (count, 0), value=True)
    both = torch.cat([queries, _embedded(model, ids)], dim=1)
    return _run_qformer(model.qformer, both, queries=count, read=count, states=states, mask=mask)


def _embedded(model: Any, ids: Tensor) -> Tensor:
    """(n, length, width) embeddings of token ids (n, length), before the first norm."""
    positions = model.embeddings.position_embeddings.weight[: ids.shape[1]]
    embedded: Tensor = model.embeddings.word_embeddings(ids) + positions
    return embedded


def _run_qformer(
    qformer: Any,
    x: Tensor,
    *,
    queries: int,
    read: int,
    states: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """(n, read, width): the last states of the first tokens of `x` (n, length, width).

    The `queries` query tokens stand first. They and only they look at `states` (images, patches + 1,
    width), n being a multiple of the images. mask: (n, length), true where a token may be looked at.
    """
    x = qformer.layernorm(x)
    attention_mask = None if mask is None else mask[:, None, None, :]
    layers = qformer.encoder.layer
    for depth, layer in enumerate(layers):
        rows = x[:, :read] if depth == len(layers) - 1 else x  # all that depends on these alone
        rows = _attend(layer.attention, rows, x, attention_mask)
        if not queries:
            x = layer.feed_forward_chunk(rows)
            continue
        query_rows = rows[:, :queries].contiguous()  # linear layers are slow on what is not
        if layer.has_cross_attention and states is not None:
            together = query_rows.reshape(len(states), -1, query_rows.shape[-1])
            query_rows = _attend(layer.crossattention, together, states).view(query_rows.shape)
        query_rows = layer.feed_forward_chunk_query(query_rows)
        if rows.shape[1] > queries:
            text_rows = layer.feed_forward_chunk(rows[:, queries:].contiguous())
            query_rows = torch.cat([query_rows, text_rows], dim=1)
        x = query_rows
    return x


def _attend(module: Any, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of `x` to `context`, with its projection, residual sum and norm."""
    attention = module.attention
    heads = attention.num_attention_heads
    query, keys, values = (
        projected.view(*projected.shape[:2], heads, -1).transpose(1, 2)
        for projected in (attention.query(x), attention.key(context), attention.value(context))
    )
    attended = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    output: Tensor = module.output(attended.transpose(1, 2).flatten(2), x)
    return output


@dataclass(frozen=True)
class Matches:
    """An image and its n captions.

    queries: (q, d) float32, un-normalised features of the image's query tokens; NaN where it could not be
        read.
    text_features: (n, d) float32, un-normalised.
    logits: (n, 2) float32 of the matching head, averaged over the query tokens: no match, match.
    key: content key of the image, '' where it could not be read.
    error: why it could not be read, None where it could.
    truncated: per caption, token ids beyond the context length.
    """

    queries: Floats
    text_features: Floats
    logits: Floats
    key: str
    error: str | None
    truncated: list[int]

    @property
    def itm(self) -> Floats:
        """(n,) float32 probabilities that a caption belongs to the image.

        >>> logits, empty = np.float32([[0, 0], [200, 0], [0, np.log(3)]]), np.empty((3, 0), np.float32)
        >>> Matches(empty, empty, logits, "", None, [0, 0, 0]).itm
        array([0.5 , 0.  , 0.75], dtype=float32)
        """
        # Of the larger logit's side, so that the exponential never overflows.
        ahead = self.logits[:, 1].astype(np.float64) - self.logits[:, 0]
        small = np.exp(-np.abs(ahead))
        return np.asarray(np.where(ahead < 0, small, 1) / (1 + small), dtype=np.float32)


class Blip2Encoder(PairEncoder, tags=["image-captioning", "blip-2"]):
    """BLIP-2's vision tower, Q-Former and two heads, on transformers' modules.

    An image goes through the vision tower once, however many captions it is matched with. Texts run at their
    own length or with masked padding. In float32 a value does not depend on what else is in the batch, up to
    rounding.

    Arguments and errors are those of `CheckedModel`; tensors have transformers' names.
    """

    kind = "blip2"
    described = (
        "ViT/{vision[patch_size]} {vision[num_hidden_layers]}x{vision[hidden_size]}, {vision[image_size]} "
        "pixels; Q-Former {qformer[num_hidden_layers]}x{qformer[hidden_size]}, {num_query_tokens} queries"
    )
    Settings = _Blip2Settings
    depends_on = ("architecture", "preprocessing", "context_length", "vocabulary")
    Conversion = Blip2Conversion
    words_file = VOCABULARY
    images_at_once = (8, 64)

    model: Any

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
        model: Any = super().build(config, tensors)
        # A buffer that is in no file, and which only transformers' own forward reads.
        positions = self.settings.texts.max_position_embeddings
        model.embeddings.position_ids = torch.arange(positions).expand(1, -1)
        return model

    @staticmethod
    def modules(config: dict[str, Any]) -> Any:
        return empty_model(config["architecture"])

    def prepare(self) -> None:
        super().prepare()
        self._padding = self.config["vocabulary"].index(PAD)
        self.triton = usable_kernels(self.device, DTYPES[self.dtype]) if self.device.type == "cuda" else None

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        if "model_type" in folder.config:
            folder = replace(folder, config=translate_transformers(folder))
        return super().read_config(folder)

    def encode_images(
        self, images: Iterable[InputImage], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> Iterator[ImageFeatures]:
        """Features of any number of images, in order, some at a time: (n, queries, d), un-normalised.

        One that cannot be read gives NaN and the reason.
        """
        encoding = Encoding(
            size=self.images_per_batch(batch_size),
            keys=lambda content, _: (self.image_key(content),),
            prepare=self.prepare_visual,
            forward=lambda pixels: self.image_features(self.states(pixels)),
        )
        parts = encode_stream(zip(images, repeat(None)), encoding, cache)
        return map(partial(ImageFeatures.of, shape=(self.queries, self.dimension)), parts)

    def encode_texts(
        self, texts: Sequence[str], *, cache: FeatureCache = SHARED, batch_size: int | None = None
    ) -> TextFeatures:
        """Features of texts, in order, (n, d), un-normalised. Equal ones are encoded once."""
        return self._text_features(self.tokenizer.encode(texts), cache, batch_size)

    def _text_features(self, tokens: Tokens, cache: FeatureCache, batch_size: int | None) -> TextFeatures:
        def forward(sequences: list[Ids]) -> Iterator[tuple[slice, Floats]]:
            size, cost = self.rows_per_batch(batch_size, len(sequences[-1]))
            return size.run(sequences, self._text_forward, cost=cost)

        arrays = encode_distinct(tokens, lambda ids: self.key("text", bytes_of(ids)), forward, cache)
        return TextFeatures(sentence_features(arrays, self.dimension), tokens.truncated)

    def match(
        self,
        images: Iterable[InputImage],
        captions: Iterable[Sequence[str]],
        *,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[Matches]:
        """Every image with each of its captions: features and match logits, in order; see `encode_pairs`.

        An image's states are too large to be kept: give each image once, with all its captions.

        >>> from capeval_core.demo import demo_set
        >>> item = demo_set()[0]
        >>> blip2 = Blip2Encoder.from_pretrained("tiny")
        >>> (matches,) = blip2.match([InputImage.of(item.image)], [[item.good, item.unrelated]])
        >>> bool(matches.itm[0] > matches.itm[1])
        True
        """
        encoded = self.encode_pairs(
            images, captions, self.run_pairs, "match", cache, batch_size, self.image_features
        )
        for part in chunks(encoded, self.images_per_batch(batch_size).size):
            ids = [row for item in part for row in item.extra.ids]
            features = self._text_features(Tokens(ids, []), cache, batch_size).features
            start = 0
            for item in part:
                stop = start + len(item.extra.ids)
                yield self._matches(item, features[start:stop])
                start = stop

    def _matches(self, item: Encoded, text_features: Floats) -> Matches:
        logits = np.full((len(text_features), 2), np.nan, dtype=np.float32)
        if item.arrays:
            for row, ids in zip(logits, item.extra.ids, strict=True):
                row[...] = item.arrays[self.pair_key("match", item.content, ids)]
        queries = item.array((self.queries, self.dimension))
        return Matches(queries, text_features, logits, item.content, item.error, item.extra.truncated)

    def preprocess(self, image: Image.Image) -> Floats:
        """(3, n, n) float32 pixels of a PIL image, as the vision tower sees them."""
        return np.asarray(self._scaled([self.prepare_visual(image)])[0].cpu())

    def prepare_visual(self, loaded: Image.Image) -> NDArray[np.uint8]:
        """(3, n, n) uint8: RGB, then resized to a square whatever its shape, as in the original code."""
        n = self.settings.preprocessing.image_size
        width, height = loaded.size
        # Pillow rounds between its two passes, and 13 changed their order; done one by one, as 13 orders
        # them, pixels are the same with every version.
        tall = height > n and height - n > 2 * (width - n)
        decoded = loaded.convert("RGB")
        for size in ((width, n) if tall else (n, height), (n, n)):
            decoded = decoded.resize(size, Image.Resampling.BICUBIC)
        return np.ascontiguousarray(np.asarray(decoded).transpose(2, 0, 1))

    @property
    def queries(self) -> int:
        """Query tokens of an image."""
        return int(self.settings.architecture.num_query_tokens)

    @property
    def dimension(self) -> int:
        """Numbers of a feature."""
        return int(self.settings.architecture.image_text_hidden_size)

    @property
    def visual_rows(self) -> int:
        return self.queries

    def _scaled(self, pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
        scaling = self.settings.preprocessing
        return normalised(stacked_on_device(self.device, pixels).float() / 255, scaling.mean, scaling.std)

    @exact
    def states(self, prepared: Sequence[NDArray[np.uint8]]) -> Tensor:
        """(images, patches + 1, width) states of the vision tower, on the encoder's device."""
        return _image_states(self.model, self._scaled(prepared).to(DTYPES[self.dtype]), self.triton)

    @exact
    def image_features(self, states: Tensor) -> Tensor:
        """(images, queries * d), un-normalised: the query tokens after looking at each image alone."""
        queries = self.model.query_tokens.expand(len(states), -1, -1)
        hidden = _run_qformer(
            self.model.qformer, queries, queries=self.queries, read=self.queries, states=states
        )
        features: Tensor = self.model.vision_projection(hidden)
        return features.flatten(1)

    @exact
    def run_pairs(self, states: Tensor, pairs: Sequence[Pair]) -> Tensor:
        """(n, 2) logits of pairs; those of an image stand together."""
        by_image = groupby(pairs, key=lambda pair: pair[0])
        texts = [(position, [ids for _, ids, _ in own]) for position, own in by_image]
        logits = []
        for _, alike in groupby(texts, key=lambda own: len(own[1])):  # equally many captions: one batch
            positions, sequences = zip(*alike, strict=True)
            own = states[positions[0] : positions[-1] + 1]
            if len(own) > len(positions):  # some images between have no text here
                own = states[on_device(torch.tensor(positions, device="cpu"), self.device)]
            ids, mask = self._padded(list(chain.from_iterable(sequences)))
            logits.append(self.model.itm_head(matched_states(self.model, own, ids, mask)).float().mean(1))
        return torch.cat(logits)

    @exact
    def _text_forward(self, texts: Sequence[Ids]) -> Floats:
        ids, mask = self._padded(texts)
        return on_host(self.model.text_projection(_text_states(self.model, ids, mask)))

    def _padded(self, texts: Sequence[Ids]) -> tuple[Tensor, Tensor | None]:
        """(n, longest) ids, and which of them are tokens; None where all texts are equally long."""
        lengths = np.array([len(row) for row in texts])
        inside = np.arange(lengths.max()) < lengths[:, None]
        padded = np.full(inside.shape, self._padding)
        padded[inside] = np.fromiter(chain.from_iterable(texts), np.int64)
        ids = on_device(torch.from_numpy(padded), self.device)
        return ids, None if inside.all() else on_device(torch.from_numpy(inside), self.device)

    def canary(self) -> Floats:
        """(2, 6): cosines of two drawn images with three captions, then probabilities of a match."""
        images = [InputImage.of(image) for image in canary_images()]
        matches = list(self.match(images, [TEXTS, TEXTS], cache=FeatureCache(0)))
        best = [cosines(each.queries, each.text_features).max(axis=0) for each in matches]
        return np.stack([np.concatenate([itc, each.itm]) for itc, each in zip(best, matches, strict=True)])
