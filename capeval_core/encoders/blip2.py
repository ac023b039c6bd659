"""BLIP-2: features of images and texts, and whether a caption belongs to an image (matching).

Li, Li, Savarese, Hoi: BLIP-2: Bootstrapping Language-Image Pre-training with Frozen Image Encoders and
Large Language Models, ICML 2023, section 3.1, https://arxiv.org/abs/2301.12597
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from capeval_core.cache import SHARED, FeatureCache, feature_key
from capeval_core.encoders.cuda_blocks import Dense, Kernels, run_packed, usable_kernels
from capeval_core.encoders.engine import Encoded, Encoding, ImageFeatures, chunks, encode_stream, with_extras
from capeval_core.encoders.pairs import Pairs
from capeval_core.encoders.preprocessing import normalised
from capeval_core.encoders.texts import TextFeatures, encode_distinct, sentence_features
from capeval_core.encoders.tokenizers import PAD, Ids, Tokens, WordPiece
from capeval_core.inputs.images import InputImage
from capeval_core.models.architecture import (
    is_whole,
    scaling_problems,
    shown,
    size_problems,
)
from capeval_core.models.batching import BatchSize
from capeval_core.models.canary import TEXTS, canary_images, cosines
from capeval_core.models.copies import on_device, on_host, stacked_on_device
from capeval_core.models.device import DTYPES, exact
from capeval_core.models.model import CheckedModel
from capeval_core.weights.blip2 import Blip2Conversion, empty_model, translate_transformers
from capeval_core.weights.folder import VOCABULARY, WeightsError, WeightsFolder
from capeval_core.weights.vocabulary import words_beside, write_beside

_READ = {
    "vision": ("image_size",),
    "qformer": ("vocab_size", "max_position_embeddings"),
    "": ("num_query_tokens", "image_text_hidden_size"),
}
"""Sizes that are read here; the others are transformers' business, which has defaults."""


def image_states(model: Any, pixels: Tensor, kernels: Kernels | None = None) -> Tensor:
    """(images, patches + 1, width): the vision tower's states of normalised pixels (images, 3, n, n).

    `kernels` are what its blocks run with on CUDA, without gradients; None: transformers' own steps.
    """
    tower = model.vision_model
    if kernels is None or tower.config.hidden_act != "gelu":
        states: Tensor = tower(pixel_values=pixels).last_hidden_state
        return states
    x = tower.embeddings(pixels)
    blocks = [_Block(layer) for layer in tower.encoder.layers]
    attention = Dense(len(x), tower.config.num_attention_heads)
    rows = run_packed(blocks, x.flatten(0, 1), attention, kernels)
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


def embed_tokens(model: Any, ids: Tensor) -> Tensor:
    """(n, length, width) embeddings of token ids (n, length), before the first norm."""
    positions = model.embeddings.position_embeddings.weight[: ids.shape[1]]
    embedded: Tensor = model.embeddings.word_embeddings(ids) + positions
    return embedded


def query_states(model: Any, states: Tensor) -> Tensor:
    """(images, queries, width): the query tokens after looking at each image alone."""
    queries = model.query_tokens.expand(len(states), -1, -1)
    count = queries.shape[1]
    return run_qformer(model.qformer, queries, queries=count, read=count, states=states)


def text_states(model: Any, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """(n, width): the first token of each text, read without an image. mask: (n, length), true on tokens."""
    return run_qformer(model.qformer, embed_tokens(model, ids), queries=0, read=1, mask=mask)[:, 0]


def matched_states(
    model: Any, states: Tensor, ids: Tensor, mask: Tensor | None = None, *, with_text: bool = False
) -> Tensor:
    """(n, queries, width): the query tokens after looking at an image and its text together.

    states (images, patches + 1, width); ids (n, length) hold equally many texts per image, those of the
    first image first; mask (n, length) is true on tokens, None where there is no padding. `with_text`: the
    states of the text's tokens follow.
    """
    queries = model.query_tokens.expand(len(ids), -1, -1)
    count = queries.shape[1]
    if mask is not None:
        mask = functional.pad(mask, (count, 0), value=True)
    both = torch.cat([queries, embed_tokens(model, ids)], dim=1)
    read = both.shape[1] if with_text else count
    return run_qformer(model.qformer, both, queries=count, read=read, states=states, mask=mask)


def run_qformer(
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
            query_rows = torch.cat(
                [query_rows, layer.feed_forward_chunk(rows[:, queries:].contiguous())], dim=1
            )
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


def config_problems(config: dict[str, Any]) -> list[str]:
    """What is missing or of the wrong kind, in words; an empty list if all is well."""
    shape, preprocessing = config["architecture"], config["preprocessing"]
    if not isinstance(shape, dict):
        return [f"architecture is {shown(shape)}, expected an object"]
    problems = size_problems(shape, "architecture")
    for tower, keys in _READ.items():
        part = shape.get(tower) if tower else shape
        lacks = [key for key in keys if not isinstance(part, dict) or part.get(key) is None]
        problems += [f"architecture{tower and '.'}{tower} lacks {', '.join(lacks)}"] if lacks else []
    if not isinstance(preprocessing, dict):
        problems.append(f"preprocessing is {shown(preprocessing)}, expected an object")
    if problems:
        return problems
    sized = shape["vision"]["image_size"]
    if (preprocessing.get("image_size"), preprocessing.get("interpolation")) != (sized, "bicubic"):
        problems.append(
            f"preprocessing says {shown(preprocessing.get('interpolation'))}, "
            f"{shown(preprocessing.get('image_size'))} pixels, "
            f"but the tower takes bicubic, {sized} pixels"
        )
    problems += scaling_problems(preprocessing)
    longest = shape["qformer"]["max_position_embeddings"]
    if not is_whole(config["context_length"], range(3, longest + 1)):
        problems.append(
            f"context_length is {shown(config['context_length'])}, expected a whole number from 3 to "
            f"{longest}"
        )
    if not isinstance(config["vocabulary"], (dict, list)):
        problems.append(f"vocabulary is {shown(config['vocabulary'])}, expected an object")
    return problems


Floats = NDArray[np.float32]

_KEYS = ("architecture", "preprocessing", "context_length", "vocabulary")


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


class Blip2Encoder(CheckedModel, tags=["image-captioning", "blip-2"]):
    """BLIP-2's vision tower, Q-Former and two heads, on transformers' modules.

    An image goes through the vision tower once, however many captions it is matched with. Texts run at their
    own length or with masked padding. In float32 a value does not depend on what else is in the batch, up to
    rounding.

    Arguments and errors are those of `CheckedModel`; tensors have transformers' names.
    """

    kind = "blip2"
    depends_on = _KEYS
    Conversion = Blip2Conversion

    model: Any

    def build(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
        model: Any = super().build(config, tensors)
        # A buffer that is in no file, and which only transformers' own forward reads.
        positions = config["architecture"]["qformer"]["max_position_embeddings"]
        model.embeddings.position_ids = torch.arange(positions).expand(1, -1)
        return model

    @staticmethod
    def modules(config: dict[str, Any]) -> Any:
        return empty_model(config["architecture"])

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
        on_cpu = self.device.type == "cpu"
        self.kernels: Kernels | None = (
            usable_kernels(self.device, DTYPES[self.dtype]) if self.device.type == "cuda" else None
        )
        self._automatic_images = BatchSize(8 if on_cpu else 64, automatic=True)
        self._automatic_texts = BatchSize(2048 if on_cpu else 65_536, automatic=True)  # in tokens

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        if "model_type" in folder.config:
            config = translate_transformers(folder)
        else:
            config = super().read_config(folder)
        if missing := [key for key in _KEYS if key not in config]:
            raise WeightsError(f"the config lacks {', '.join(missing)}: convert the weights again")
        if problems := config_problems(config):
            raise WeightsError(f"in the config, {'; '.join(problems)}: convert the weights again")
        if isinstance(config["vocabulary"], list):
            return config
        words = words_beside(folder.path, VOCABULARY, config["vocabulary"])
        return {**config, "vocabulary": words}

    def save_beside(self, folder: Path) -> dict[str, Any]:
        text = "\n".join(self.config["vocabulary"]) + "\n"
        return {**self.config, "vocabulary": write_beside(folder, VOCABULARY, text)}

    @staticmethod
    def describe(config: dict[str, Any]) -> str:
        """The architecture in one line.

        >>> vision = {"num_hidden_layers": 39, "hidden_size": 1408, "patch_size": 14, "image_size": 364}
        >>> shape = {"vision": vision, "qformer": {"num_hidden_layers": 12, "hidden_size": 768}}
        >>> Blip2Encoder.describe({"architecture": {**shape, "num_query_tokens": 32}})
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
        tokens = self.tokenizer.encode(texts)
        return self._text_features(tokens, cache, batch_size)

    def _text_features(self, tokens: Tokens, cache: FeatureCache, batch_size: int | None) -> TextFeatures:
        def forward(sequences: list[Ids]) -> Iterator[tuple[slice, Floats]]:
            size, cost = self.texts_per_batch(batch_size, len(sequences[-1]))
            return size.run(sequences, self._text_forward, cost=cost)

        arrays = encode_distinct(tokens, lambda ids: self._key("text", _bytes_of(ids)), forward, cache)
        return TextFeatures(sentence_features(arrays, self.dimension), tokens.truncated)

    def match(
        self,
        images: Iterable[InputImage],
        captions: Iterable[Sequence[str]],
        *,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[Matches]:
        """Every image with each of its captions: features and match logits, image by image, in order.

        An image's states are too large to be kept: give each image once, with all its captions.

        Args:
            images: any number; they are read ahead by threads, a few at a time.
            captions: per image any number of texts. Equal ones run once.
            cache: where values and features are looked up and kept; where all of an image's are there,
                the image does not run at all.
            batch_size: images, and captions, per forward pass; None: as many as fit into memory.

        Raises:
            ValueError: more images than lists of captions, or fewer.
            MemoryError: the given `batch_size`, or a single item, does not fit into memory.

        >>> from capeval_core.demo import demo_set
        >>> item = demo_set()[0]
        >>> blip2 = Blip2Encoder.from_pretrained("tiny")
        >>> (matches,) = blip2.match([InputImage.of(item.image)], [[item.good, item.unrelated]])
        >>> bool(matches.itm[0] > matches.itm[1])
        True
        """
        tokens = (self._tokens(index, texts) for index, texts in enumerate(captions))
        items = with_extras(images, tokens, "lists of captions", "give every image its captions")
        size = self.images_per_batch(batch_size)
        encoded = chain.from_iterable(encode_stream(items, Pairs(self, size, batch_size).encoding(), cache))
        for part in chunks(encoded, size.size):
            ids = [row for item in part for row in item.extra.ids]
            features = self._text_features(Tokens(ids, []), cache, batch_size).features
            start = 0
            for item in part:
                stop = start + len(item.extra.ids)
                yield self._matches(item, features[start:stop])
                start = stop

    def _tokens(self, index: int, texts: Sequence[str]) -> Tokens:
        if isinstance(texts, str):
            raise ValueError(f"captions[{index}] is one text, expected a list of texts: write [{texts!r}]")
        return self.tokenizer.encode(texts)

    def _matches(self, item: Encoded, text_features: Floats) -> Matches:
        logits = np.full((len(text_features), 2), np.nan, dtype=np.float32)
        if item.arrays:
            for row, ids in zip(logits, item.extra.ids, strict=True):
                row[...] = item.arrays[self.pair_key(item.content, ids)]
        queries = item.array((self.queries, self.dimension))
        return Matches(queries, text_features, logits, item.content, item.error, item.extra.truncated)

    def preprocess(self, image: Image.Image) -> Floats:
        """(3, n, n) float32 pixels of a PIL image, as the vision tower sees them."""
        return np.asarray(self._scale([self.prepare_visual(image)])[0].cpu())

    def prepare_visual(self, image: Image.Image) -> NDArray[np.uint8]:
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

    def _scale(self, pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
        scaling = self.config["preprocessing"]
        return normalised(
            stacked_on_device(self.device, pixels).float() / 255, scaling["mean"], scaling["std"]
        )

    @exact
    def states(self, pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
        """(images, patches + 1, width) states of the vision tower, on the encoder's device."""
        scaled = self._scale(pixels).to(DTYPES[self.dtype])
        return image_states(self.model, scaled, self.kernels)

    @exact
    def image_features(self, states: Tensor) -> Tensor:
        """(images, queries * d), un-normalised, of states of the vision tower."""
        features: Tensor = self.model.vision_projection(query_states(self.model, states))
        return features.flatten(1)

    @exact
    def match_logits(self, states: Tensor, texts: Sequence[Ids]) -> Tensor:
        """(n, 2) float32, on the device: equally many texts per image of `states`, the first one's first."""
        ids, mask = self._padded(texts)
        hidden = matched_states(self.model, states, ids, mask)
        logits: Tensor = self.model.itm_head(hidden).float().mean(1)
        return logits

    @torch.inference_mode()
    def run_pairs(self, states: Tensor, pairs: Sequence[tuple[int, Ids, str]]) -> Tensor:
        """(n, 2) logits of pairs (position in `states`, token ids, key); those of an image stand together."""
        by_image = groupby(pairs, key=lambda pair: pair[0])
        texts = [(position, [ids for _, ids, _ in own]) for position, own in by_image]
        logits = []
        for _, alike in groupby(texts, key=lambda own: len(own[1])):  # equally many captions: one batch
            positions, ids = zip(*alike, strict=True)
            own = states[positions[0] : positions[-1] + 1]
            if len(own) > len(positions):  # some images between have no text here
                own = states[on_device(torch.tensor(positions, device="cpu"), self.device)]
            logits.append(self.match_logits(own, list(chain.from_iterable(ids))))
        return torch.cat(logits)

    @exact
    def _text_forward(self, texts: Sequence[Ids]) -> Floats:
        ids, mask = self._padded(texts)
        return on_host(self.model.text_projection(text_states(self.model, ids, mask)))

    def _padded(self, texts: Sequence[Ids]) -> tuple[Tensor, Tensor | None]:
        """(n, longest) ids, and which of them are tokens; None where all texts are equally long."""
        lengths = np.array([len(row) for row in texts])
        inside = np.arange(lengths.max()) < lengths[:, None]
        padded = np.full(inside.shape, self._padding)
        padded[inside] = np.fromiter(chain.from_iterable(texts), np.int64)
        ids = on_device(torch.from_numpy(padded), self.device)
        return ids, None if inside.all() else on_device(torch.from_numpy(inside), self.device)

    def images_per_batch(self, batch_size: int | None) -> BatchSize:
        """The batch size that a user gave, or the automatic one."""
        return self._automatic_images if batch_size is None else BatchSize(batch_size, automatic=False)

    def texts_per_batch(self, batch_size: int | None, length: int) -> tuple[BatchSize, int]:
        """The batch size and what a text of `length` tokens costs in its unit."""
        if batch_size is not None:
            return BatchSize(batch_size, automatic=False), 1
        return self._automatic_texts, length

    def pairs_per_batch(self, batch_size: int | None, length: int) -> tuple[BatchSize, int]:
        """The batch size and what a pair with a text of `length` tokens costs in its unit."""
        return self.texts_per_batch(batch_size, self.queries + length)

    def canary(self) -> Floats:
        """(2, 6): cosines of two drawn images with three captions, then probabilities of a match."""
        images = [InputImage.of(image) for image in canary_images()]
        matches = list(self.match(images, [TEXTS, TEXTS], cache=FeatureCache(0)))
        best = [cosines(each.queries, each.text_features).max(axis=0) for each in matches]
        return np.stack([np.concatenate([itc, each.itm]) for itc, each in zip(best, matches, strict=True)])

    def image_key(self, content: str) -> str:
        """The cache's key of the features of an image, by its content key."""
        return self._key("image", content.encode())

    def pair_key(self, content: str, ids: Ids) -> str:
        """The cache's key of the matching of an image, by its content key, and a text."""
        return self._key("match", f"{content}\n".encode() + _bytes_of(ids))

    def _key(self, kind: str, content: bytes) -> str:
        return feature_key(self.fingerprint, self.dtype, kind, content)


def _bytes_of(ids: Ids) -> bytes:
    return np.array(ids, dtype="<u4").tobytes()
