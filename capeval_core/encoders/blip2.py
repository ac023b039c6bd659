"""BLIP-2: features of images and texts, and whether a caption belongs to an image (matching).

Li, Li, Savarese, Hoi: BLIP-2: Bootstrapping Language-Image Pre-training with Frozen Image Encoders and
Large Language Models, ICML 2023, section 3.1, https://arxiv.org/abs/2301.12597
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.blip2_conversion import Blip2Conversion, empty_model, translate_transformers
from capeval_core.encoders.blocks import merge
from capeval_core.encoders.engine import chunks
from capeval_core.encoders.packed import Packing, attend
from capeval_core.encoders.pairs import BertSizes, LayerSizes, Pair, PairEncoder, TextSettings
from capeval_core.encoders.preprocessing import Preprocessing, normalised
from capeval_core.encoders.tokenizers import Distinct, Ids, Tokens
from capeval_core.inputs.images import InputImage
from capeval_core.models.config import Layers, Share, Side, Width
from capeval_core.models.device import DTYPES, exact, indices_on_device, on_device, on_host, stacked_on_device
from capeval_core.models.model import TEXTS, canary_images, cosines
from capeval_core.ragged import Floats, ranges, starts_of
from capeval_core.weights.folder import VOCABULARY, WeightsFolder


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
class _Blip2Settings(TextSettings):
    architecture: _Blip2Sizes
    preprocessing: Preprocessing

    def __post_init__(self) -> None:
        image_size = self.preprocessing.image_size
        tower_size = self.architecture.vision.image_size
        if image_size != tower_size:
            raise ValueError(f"preprocessing.image_size is {image_size}, but the tower takes {tower_size}")


def qformer_states(
    model: Any, texts: Sequence[Ids], states: Tensor | None = None, counts: Sequence[int] = ()
) -> Tensor:
    """(texts, queries, width): the query tokens after looking at an image and a text together. states:
    (images, patches + 1, width). counts: texts of each image, those of the first image first; a text may be
    empty. Without states there are no query tokens: (texts, 1, width), the first token of each text. A
    sequence is the query tokens, which look at states, then the text. In x the query tokens of all sequences
    stand before all texts; attention takes rows by sequences, the shortest first."""
    # Two texts a (3 tokens) and b (1), with 2 query tokens each, whose rows are q and r:
    #
    #   x           q0 q1 r0 r1 a0 a1 a2 b0      cross-attention is of the front alone
    #   x[order]    r0 r1 b0 q0 q1 a0 a1 a2      self-attention is within a sequence
    sizes = np.array([len(ids) for ids in texts])
    device = model.query_tokens.device
    n = len(texts)
    queries = 0 if states is None else model.query_tokens.shape[1]
    by_length = np.argsort(sizes, kind="stable")
    begins = np.stack([np.arange(n) * queries, n * queries + starts_of(sizes)], axis=1)[by_length]
    counts_of_rows = np.stack([np.full(n, queries), sizes], axis=1)[by_length]
    order = ranges(begins.flatten(), counts_of_rows.flatten())
    # Of the last layer only the query tokens are read, or the first token.
    last = ranges(begins[:, 0], counts_of_rows[:, 0]) if queries else begins[:, 1]
    # All indices by one copy: on a GPU each copy costs a launch, and there are six.
    ids, positions, in_order, from_order, last_rows, from_last = indices_on_device(
        device,
        list(chain.from_iterable(texts)),
        ranges(np.zeros_like(sizes), sizes),
        order,
        np.argsort(order),
        last,
        np.argsort(last),
    )
    all_rows = Packing.of((sizes[by_length] + queries).tolist(), device)
    last_packing = Packing.of([len(last) // n] * n, device, all_rows.parts)
    table = model.embeddings
    layers = model.qformer.encoder.layer
    x = table.word_embeddings(ids) + table.position_embeddings(positions)
    if states is not None:
        # Query tokens have no positions: they are a set, learned one by one.
        x = torch.cat([model.query_tokens.expand(n, -1, -1).flatten(0, 1), x])
        # All texts of an image are one sequence of queries, since they look at the same patches.
        of_images = Packing.of([count * queries for count in counts], device)
        patches = Packing.of([states.shape[1]] * len(states), device, of_images.parts)
    x = model.qformer.layernorm(x)
    for layer in layers:
        if layer is layers[-1]:
            attended = _attended(layer.attention, x[last_rows], x[in_order], last_packing, all_rows)
            x = attended[from_last]
        else:
            x = _attended(layer.attention, x[in_order], x[in_order], all_rows, all_rows)[from_order]
        query_states = x[: n * queries]
        words = x[n * queries :]
        if states is not None:
            if layer.has_cross_attention:
                query_states = _attended(
                    layer.crossattention, query_states, states.flatten(0, 1), of_images, patches
                )
            # Queries and words have feed-forward layers of their own, and share attention's weights.
            query_states = layer.feed_forward_chunk_query(query_states)
        x = torch.cat([query_states, layer.feed_forward_chunk(words)]) if len(words) else query_states
    hidden: Tensor = x.unflatten(0, (n, -1))
    return hidden


def _attended(module: Any, rows: Tensor, context: Tensor, of_query: Packing, of_keys: Packing) -> Tensor:
    """Attention of packed rows to a context, with its projection, residual sum and norm."""
    part = module.attention
    query = part.query(rows)
    keys = part.key(context)
    values = part.value(context)
    attended = attend(query, keys, values, part.num_attention_heads, of_query, of_keys)
    return merge(module.output, attended, rows)


@dataclass(frozen=True)
class Matches:
    """An image and its n captions; arrays are NaN where the image could not be read, for an `error`. queries:
    (q, d) un-normalised features of the image's query tokens. text_features: (n, d) un-normalised. logits:
    (n, 2) of the matching head, averaged over the query tokens: no match, match. truncated: per caption,
    token ids beyond the context length."""

    queries: Floats
    text_features: Floats
    logits: Floats
    key: str
    error: str | None
    truncated: list[int]

    @property
    def itm(self) -> Floats:
        """(n,) float32 probabilities that a caption belongs to the image."""
        difference = self.logits[:, 1].astype(np.float64) - self.logits[:, 0]
        with np.errstate(invalid="ignore"):  # NaN where the image could not be read
            # A softmax of two is a sigmoid of their difference; `logaddexp` keeps it from overflowing.
            return np.asarray(np.exp(-np.logaddexp(0, -difference)), dtype=np.float32)


class Blip2Encoder(PairEncoder, tags=["image-captioning", "blip-2"]):
    """BLIP-2's vision tower, Q-Former and two heads, on transformers' modules. An image goes through the
    vision tower once, however many captions it is matched with; texts run at their own length."""

    kind = "blip2"
    described = (
        "ViT/{vision[patch_size]} {vision[num_hidden_layers]}x{vision[hidden_size]}, {vision[image_size]} "
        "pixels; Q-Former {qformer[num_hidden_layers]}x{qformer[hidden_size]}, {num_query_tokens} queries"
    )
    Settings = _Blip2Settings
    Network = staticmethod(empty_model)
    text_sizes = attrgetter("architecture.qformer")
    depends_on = ("architecture", "preprocessing", "context_length", "vocabulary")
    Conversion = Blip2Conversion
    words_file = VOCABULARY
    automatic = PairEncoder.automatic | {"images": (8, 64)}  # the vision tower has a billion parameters

    model: Any

    def prepare(self) -> None:
        super().prepare()
        sizes = self.settings.architecture
        self.queries: int = sizes.num_query_tokens
        self.dimension: int = sizes.image_text_hidden_size
        self.visual_rows = self.queries

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        if "model_type" in folder.config:
            folder = replace(folder, config=translate_transformers(folder))
        return super().read_config(folder)

    def match(
        self,
        images: Iterable[InputImage],
        captions: Iterable[Sequence[str]],
        *,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[Matches]:
        """Match every image with each of its captions: features and logits, in order; see `encode_pairs`. An
        image's states are too large to be kept: give each image once, with all its captions."""
        encoded = self.encode_pairs(
            images, captions, self._run_pairs, "match", cache, batch_size, self.image_features
        )
        # Texts alone, for the contrastive cosine: some images at a time, so that equal texts run once.
        for part in chunks(encoded, self.batch("images", batch_size).size):
            ids_of_part: list[Ids] = []
            for item in part:
                ids_of_part.extend(item.extra.ids)
            features = self._text_features(ids_of_part, cache, batch_size)
            start = 0
            for item in part:
                tokens: Tokens = item.extra
                text_features = features[start : start + len(tokens.ids)]
                start += len(tokens.ids)
                logits = np.full((len(tokens.ids), 2), np.nan, dtype=np.float32)
                if item.arrays:
                    for row, ids in zip(logits, tokens.ids, strict=True):
                        row[:] = item.arrays[self.pair_key("match", item.content, ids)]
                queries = item.array((self.queries, self.dimension))
                yield Matches(queries, text_features, logits, item.content, item.error, tokens.truncated)

    def _text_features(self, texts: Sequence[Ids], cache: FeatureCache, batch_size: int | None) -> Floats:
        """(texts, d), un-normalised, equal texts encoded once."""
        distinct = Distinct(texts, partial(self.key, "text"), cache)
        longest = max(map(len, distinct.missing), default=0)
        size, cost = self.rows_per_batch(batch_size, longest)
        for part, rows in size.run(distinct.missing, self._text_forward, cost=cost):
            distinct.add(part, rows)
        return np.array(distinct.arrays(), dtype=np.float32).reshape(-1, self.dimension)

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
        between = (width, n) if tall else (n, height)
        method = self.settings.preprocessing.method
        square = decoded.resize(between, method).resize((n, n), method)
        return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))

    def _scaled(self, pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
        scaling = self.settings.preprocessing
        return normalised(stacked_on_device(self.device, pixels).float() / 255, scaling.mean, scaling.std)

    @exact
    def states(self, prepared: Sequence[NDArray[np.uint8]]) -> Tensor:
        """(images, patches + 1, width) states of the vision tower, on the encoder's device."""
        pixels = self._scaled(prepared).to(DTYPES[self.dtype])
        features: Tensor = self.model.vision_model(pixel_values=pixels).last_hidden_state
        return features

    @exact
    def image_features(self, states: Tensor) -> Tensor:
        """(images, queries * d), un-normalised: the query tokens after looking at each image alone."""
        # One empty text per image: the very steps of `_run_pairs`, without words.
        hidden = qformer_states(self.model, [()] * len(states), states, [1] * len(states))
        features: Tensor = self.model.vision_projection(hidden)
        return features.flatten(1)

    @exact
    def _run_pairs(self, states: Tensor, pairs: Sequence[Pair]) -> Tensor:
        """(n, 2) logits of pairs; those of an image stand together."""
        counts = Counter(position for position, _, _ in pairs)
        # Images with equally many texts stand together: attention to them pads least.
        positions = sorted(counts, key=lambda position: (counts[position], position))
        place = {position: number for number, position in enumerate(positions)}
        order = sorted(range(len(pairs)), key=lambda i: place[pairs[i][0]])
        # States of an image take megabytes: they are copied only where their order differs.
        if positions != list(range(len(states))):
            states = states[on_device(positions, self.device)]
        texts = [pairs[i][1] for i in order]
        hidden = qformer_states(self.model, texts, states, [counts[position] for position in positions])
        # The mean over query tokens is of logits, as in the original, not of probabilities.
        logits: Tensor = self.model.itm_head(hidden).float().mean(1)
        return logits[on_device(np.argsort(order), self.device)]

    @exact
    def _text_forward(self, texts: Sequence[Ids]) -> Floats:
        return on_host(self.model.text_projection(qformer_states(self.model, texts)[:, 0]))

    def canary(self) -> Floats:
        """(2, 6): cosines of two drawn images with three captions, then probabilities of a match."""
        images = [InputImage.of(image) for image in canary_images()]
        rows = []
        for match in self.match(images, [TEXTS, TEXTS], cache=FeatureCache(0)):
            # As in the paper's contrast (ITC): a text is compared with each query token, the best one counts.
            contrastive = cosines(match.queries, match.text_features).max(axis=0)
            rows.append(np.concatenate([contrastive, match.itm]))
        return np.stack(rows)
