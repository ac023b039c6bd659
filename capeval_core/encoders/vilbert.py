"""ViLBERT: a transformer with a stream for the tokens of a text and one for the boxes of an image.

Lu, Batra, Parikh, Lee: ViLBERT: Pretraining Task-Agnostic Visiolinguistic Representations for
Vision-and-Language Tasks, NeurIPS 2019, https://arxiv.org/abs/1908.02265
Lu, Goswami, Rohrbach, Parikh, Lee: 12-in-1: Multi-Task Vision and Language Representation Learning, CVPR
2020, https://arxiv.org/abs/1912.02315

The streams run through layers of their own, and exchange what they have in co-attention blocks. Before the
first block neither depends on the other, so a text runs once for all images, and boxes once for all texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from capeval_core.cache import SHARED, FeatureCache
from capeval_core.encoders.blocks import bert_layer, merge
from capeval_core.encoders.engine import Encoded
from capeval_core.encoders.packed import Packing, Sorted, attend, groups_of
from capeval_core.encoders.pairs import (
    EPS,
    AttentionSizes,
    BertSizes,
    LayerSizes,
    Pair,
    RegionTextEncoder,
    TextSettings,
    bert_embeddings,
    bert_layers,
)
from capeval_core.encoders.tokenizers import Distinct, Ids
from capeval_core.errors import wrong_option
from capeval_core.inputs.boxes import BoxFeatures
from capeval_core.models.config import Few, Places, Switch, Width, read
from capeval_core.models.device import DTYPES, Arriving, arrays_of, exact, indices_on_device, rows_on_device
from capeval_core.models.model import TEXTS, cosines
from capeval_core.options import option
from capeval_core.ragged import Floats, ranges, starts_of
from capeval_core.weights.conversion import BertConversion, Shapes, count_blocks

_CONTEXT = 37  # ids of a text in the released scorer, marks included
_DECODER = "cls.predictions.decoder.weight"
_WORDS = "bert.embeddings.word_embeddings.weight"
_RETRIEVAL = 7  # the task of retrieving COCO images by their captions, which the released scorer chooses

Rows = Mapping[str, Tensor]  # packed rows of either stream, `text` and `visual`
States = Sequence[Tensor]  # (rows, hidden) of each text, or of each image
Couples = Sequence[tuple[int, int]]  # positions of a text and an image

# Most tokens that attention may run over, relative to those there are: texts are short beside boxes, and
# fewer groups matter more than their padding.
_TEXT_PADDING = 2.0


@dataclass(frozen=True)
class _VisualSizes(LayerSizes):
    region_size: Width


@dataclass(frozen=True)
class _VilbertSizes:
    """Sizes, and how many layers of a stream run before each co-attention block."""

    text: BertSizes
    visual: _VisualSizes
    co_attention: AttentionSizes
    text_layers_before: Places
    visual_layers_before: Places
    tasks: Few

    def __post_init__(self) -> None:
        self._check_rising("text", self.text_layers_before, self.text)
        self._check_rising("visual", self.visual_layers_before, self.visual)

    def _check_rising(self, name: str, before: list[int], sizes: LayerSizes) -> None:
        blocks = len(self.text_layers_before)
        most = sizes.num_hidden_layers
        if before != sorted(before) or before[-1] > most or len(before) != blocks:
            expected = f"expected {blocks} rising whole numbers up to {most}"
            raise ValueError(f"{name}_layers_before is {before}, {expected}")


@dataclass(frozen=True)
class _VilbertSettings(TextSettings):
    architecture: _VilbertSizes
    lowercase: Switch
    task: Few | None

    def __post_init__(self) -> None:
        tasks = self.architecture.tasks
        # With task embeddings texts have a task token always, without them never.
        fits = self.task is None if not tasks else self.task is not None and self.task < tasks
        if not fits:
            raise ValueError(f"task is {self.task}, but there are {tasks} task embeddings")


class LocatedBoxes(NamedTuple):
    """ViLBERT's input for n boxes, the whole image first: (n + 1, region_size) and (n + 1, 5)."""

    features: Floats
    locations: Floats


@dataclass(frozen=True)
class TokenFeatures:
    """An image and its texts; None where the boxes could not be read, for an `error`. features: per text
    (rows, hidden) float32: the first token, the task token where the model has one, the words, the end token
    unless the text was cut. on_device: the same on CUDA, if just computed there."""

    features: list[Floats] | None
    key: str
    error: str | None
    on_device: Sequence[Tensor | None] = ()


def located(boxes: BoxFeatures) -> LocatedBoxes:
    """Boxes as ViLBERT was trained with them; ValueError where the size of the image is not known. A location
    is x0, y0, x1, y1 relative to the image, and the share of the image that the box covers. The first row is
    the whole image, and its feature the mean of those of all boxes."""
    relative = boxes.relative()  # (n, 6): x0, y0, x1, y1, width, height
    locations = np.ones((len(boxes) + 1, 5), dtype=np.float32)
    locations[0, :2] = 0  # the whole image is 0, 0, 1, 1 and covers 1 of itself
    locations[1:, :4] = relative[:, :4]
    locations[1:, 4] = relative[:, 4] * relative[:, 5]
    features = np.concatenate([boxes.features.mean(axis=0, keepdims=True), boxes.features])
    return LocatedBoxes(features, locations)


class CoAttention(nn.Module):
    """A co-attention block: each stream attends to the other, and has a feed-forward layer of its own."""

    def __init__(self, text: Any, visual: Any, sizes: AttentionSizes, dropout: float) -> None:
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertIntermediate, BertOutput

        super().__init__()
        width = sizes.hidden_size
        self.heads = sizes.num_attention_heads
        self.dropout = dropout
        for name, config in (("text", text), ("visual", visual)):
            # BertOutput projects from `intermediate_size`, which here is the width of the block.
            merging = BertConfig.from_dict({**config.to_dict(), "intermediate_size": width})
            stream = nn.Module()
            for part in ("query", "key", "value"):
                setattr(stream, part, nn.Linear(config.hidden_size, width))
            stream.merge = BertOutput(merging)  # type: ignore[no-untyped-call]
            stream.intermediate = BertIntermediate(config)  # type: ignore[no-untyped-call]
            stream.output = BertOutput(config)  # type: ignore[no-untyped-call]
            setattr(self, name, stream)

    def attended(
        self, name: str, rows: Rows, rows_of_pairs: Mapping[str, Any], packing: Mapping[str, Packing]
    ) -> Tensor:
        """Attention of the rows of a stream, of each pair, to those of the other stream."""
        source_name = "visual" if name == "text" else "text"
        stream = getattr(self, name)
        source = getattr(self, source_name)
        dropout = self.dropout * self.training
        # Projections are made once per distinct text and image, then copied to pairs.
        query = stream.query(rows[name])[rows_of_pairs[name]]
        keys = source.key(rows[source_name])[rows_of_pairs[source_name]]
        values = source.value(rows[source_name])[rows_of_pairs[source_name]]
        return attend(query, keys, values, self.heads, packing[name], packing[source_name], dropout=dropout)

    def forward(
        self,
        rows: Rows,
        rows_of_pairs: Mapping[str, Any],
        packing: Mapping[str, Packing],
        streams: Sequence[str],
    ) -> Rows:
        """The rows of some streams, of each pair, after the block."""
        # Both streams attend before either changes: each sees the other as it came into the block.
        attended = {name: self.attended(name, rows, rows_of_pairs, packing) for name in streams}
        after = dict(rows)
        for name in reversed(streams):  # in this order dropout is drawn
            stream: Any = getattr(self, name)
            merged = merge(stream.merge, attended[name], rows[name][rows_of_pairs[name]])
            after[name] = merge(stream.output, stream.intermediate(merged), merged)
        return after


class Vilbert(nn.Module):
    """ViLBERT without heads of its tasks, on transformers' BERT layers."""

    def __init__(self, architecture: Mapping[str, Any], dropout: float = 0.0) -> None:
        super().__init__()
        sizes = read(_VilbertSizes, architecture)
        text, text_layers = bert_layers(sizes.text, dropout)
        visual, visual_layers = bert_layers(sizes.visual, dropout)
        width = sizes.co_attention.hidden_size
        self.before = {"text": sizes.text_layers_before, "visual": sizes.visual_layers_before}
        self.embeddings = bert_embeddings(text)
        self.task_embeddings = nn.Embedding(sizes.tasks, text.hidden_size) if sizes.tasks else None
        self.region_embeddings = nn.ModuleDict(
            {
                "feature": nn.Linear(sizes.visual.region_size, visual.hidden_size),
                "location": nn.Linear(5, visual.hidden_size),
                "norm": nn.LayerNorm(visual.hidden_size, eps=EPS),
            }
        )
        self.text_layers = text_layers
        self.visual_layers = visual_layers
        self.co_layers = nn.ModuleList(
            CoAttention(text, visual, sizes.co_attention, dropout) for _ in sizes.text_layers_before
        )
        self.text_pooler = nn.Linear(text.hidden_size, width)
        self.visual_pooler = nn.Linear(visual.hidden_size, width)
        self.heads = {"text": text.num_attention_heads, "visual": visual.num_attention_heads}
        self.dropout = nn.Dropout(dropout)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.text_pooler.weight.device

    def embed_regions(self, features: Tensor, locations: Tensor) -> Tensor:
        """Boxes as tokens: LN(feature W + location W)."""
        table: Any = self.region_embeddings
        embedded: Tensor = table.norm(table.feature(features) + table.location(locations))
        dropped: Tensor = self.dropout(embedded)
        return dropped

    def lower_texts(self, texts: Sequence[Ids], task: int | None) -> list[Tensor]:
        """(rows, hidden) of each text before the first co-attention block. The token of task number `task`,
        if any, stands behind each text's first token and has no position."""
        table = self.embeddings
        lengths = np.array([len(ids) for ids in texts])
        starts = starts_of(lengths)
        total = lengths.sum()
        # The row behind all tokens is the task's, which stands behind the first token of each text.
        with_task = np.insert(np.arange(total), starts + 1, total)
        token_ids = list(chain.from_iterable(texts))
        places = ranges(np.zeros_like(lengths), lengths)
        ids, positions, order = indices_on_device(self.device, token_ids, places, with_task)
        embedded = table.word_embeddings(ids) + table.position_embeddings(positions)
        embedded = embedded + table.token_type_embeddings.weight[0]
        if self.task_embeddings is not None:
            embedded = torch.cat([embedded, self.task_embeddings.weight[task][None]])[order]
            lengths = lengths + 1
        return self._alone("text", self.dropout(table.LayerNorm(embedded)), lengths.tolist(), _TEXT_PADDING)

    def lower_regions(self, features: Tensor, locations: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """(rows, hidden) of each image before the first co-attention block, by how many rows it has."""
        return self._alone("visual", self.embed_regions(features, locations), lengths)

    def _alone(self, stream: str, rows: Tensor, lengths: Sequence[int], *padding: float) -> list[Tensor]:
        """Packed sequences after the layers of a stream that run before all co-attention blocks."""
        if self.before[stream][0]:  # else no layer runs before, as of the boxes in the released model
            packed = Sorted.of(lengths, rows.device, *padding)
            rows = self._run(stream, rows[packed.order], packed.packing, -1)[packed.back]
        return list(torch.split(rows, list(lengths)))

    def _run(self, stream: str, rows: Tensor, packing: Packing, number: int) -> Tensor:
        """Rows of a stream after its own layers behind co-attention block `number`."""
        # Layers before block 0, between two blocks, and behind the last one: before = [6, 7] of 9 layers is
        # 0 to 6, 6 to 7, and 7 to the end.
        start, stop = [0, *self.before[stream], None][number + 1 : number + 3]
        dropout = self.dropout.p if self.training else 0.0
        for layer in getattr(self, f"{stream}_layers")[start:stop]:
            rows = bert_layer(layer, rows, packing, self.heads[stream], dropout=dropout)
        return rows

    def text_states(self, texts: States, regions: States, pairs: Couples, layer: int) -> list[Tensor]:
        """(rows, hidden) of the text of each pair after co-attention block number `layer`, and no more runs.
        texts, regions: from `lower_texts` and `lower_regions`. pairs: positions in both, text first."""
        batch = _Pairs(texts, regions, pairs)
        *_, rows = self._blocks(batch, layer, both=False)
        return batch.split(rows, "text")

    def states(
        self, texts: States, regions: States, pairs: Couples
    ) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Texts and boxes of each pair after every co-attention block, then after all layers."""
        batch = _Pairs(texts, regions, pairs)
        last = len(self.co_layers) - 1
        for rows in self._blocks(batch, last, both=True):
            yield batch.split(rows, "text"), batch.split(rows, "visual")
        rows = self._behind(batch, rows, last)
        yield batch.split(rows, "text"), batch.split(rows, "visual")

    def _blocks(self, batch: _Pairs, last: int, *, both: bool) -> Iterator[Rows]:
        """Packed rows after each co-attention block up to number `last`. both: whether the boxes' rows after
        the last block are wanted, too; else they are those before it."""
        rows = batch.distinct
        # Until they meet, a text runs once for all images; behind the first block each pair has its own rows.
        rows_of_pairs = batch.rows
        for number in range(last + 1):
            if number:
                rows = self._behind(batch, rows, number - 1)
                rows_of_pairs = dict.fromkeys(rows, slice(None))
            streams = ("text", "visual") if both or number < last else ("text",)
            rows = self.co_layers[number](rows, rows_of_pairs, batch.packing, streams)
            yield rows

    def _behind(self, batch: _Pairs, rows: Rows, number: int) -> Rows:
        return {name: self._run(name, rows[name], batch.packing[name], number) for name in rows}

    def pooled(self, text: States, visual: States) -> tuple[Tensor, Tensor]:
        """(pairs, width) of each stream: ReLU(W h) of the first row of each pair, from `states`."""
        first_tokens = torch.stack([rows[0] for rows in text])
        whole_images = torch.stack([rows[0] for rows in visual])
        return torch.relu(self.text_pooler(first_tokens)), torch.relu(self.visual_pooler(whole_images))


class _Pairs:
    """Pairs of a text and an image, those of nearly equal lengths together: `rows` of the `distinct` packed
    texts and images, by `packing`.

    Texts s (2 rows) and t (1), images m and n (2 each), pairs (s, m), (s, n), (t, n):

        distinct   text s0 s1 t0               visual m0 m1 n0 n1
        pairs      text t0 | s0 s1 | s0 s1     visual n0 n1 | m0 m1 | n0 n1
    """

    def __init__(self, texts: States, regions: States, pairs: Couples) -> None:
        self.distinct: Rows = {"text": torch.cat(list(texts)), "visual": torch.cat(list(regions))}
        text_lengths = np.array([len(rows) for rows in texts])
        region_lengths = np.array([len(rows) for rows in regions])
        text_of_pair, image_of_pair = np.array(pairs).T
        words = text_lengths[text_of_pair]
        boxes = region_lengths[image_of_pair]
        by_boxes = np.argsort(boxes, kind="stable")
        order: list[int] = []
        parts: list[slice] = []
        # By boxes first: an image has more rows than a text, so their padding costs more.
        for boxes_alike in groups_of(boxes[by_boxes].tolist()):
            pairs_alike = by_boxes[boxes_alike]
            by_text = pairs_alike[np.argsort(words[pairs_alike], kind="stable")]
            for words_alike in groups_of(words[by_text].tolist(), _TEXT_PADDING):
                parts.append(slice(len(order), len(order) + words_alike.stop - words_alike.start))
                order += by_text[words_alike].tolist()
        device = self.distinct["text"].device
        self.packing = {
            "text": Packing.of(words[order].tolist(), device, parts),
            "visual": Packing.of(boxes[order].tolist(), device, parts),
        }
        text_rows, region_rows = indices_on_device(
            device,
            ranges(starts_of(text_lengths)[text_of_pair[order]], words[order]),
            ranges(starts_of(region_lengths)[image_of_pair[order]], boxes[order]),
        )
        self.rows: dict[str, Any] = {"text": text_rows, "visual": region_rows}
        self._rank = np.argsort(order).tolist()

    def split(self, rows: Rows, stream: str) -> list[Tensor]:
        """Packed rows of a stream, by pair."""
        parts = torch.split(rows[stream], list(self.packing[stream].lengths))
        return [parts[place] for place in self._rank]


@dataclass(frozen=True, kw_only=True)
class VilbertConversion(BertConversion):
    """ViLBERT of either release; heads of its tasks are left out."""

    encoder = "vilbert"

    text_heads: int | None = option(
        None, "attention heads of the text layers; None: their width / 64", minimum=1
    )
    visual_heads: int | None = option(
        None, "attention heads of the visual layers; None: their width / 128", minimum=1
    )
    co_heads: int | None = option(
        None, "attention heads of the co-attention blocks; None: their width / 128", minimum=1
    )
    text_layers_before: str | None = option(
        None,
        "text layers that run before each co-attention block, as 6,7,8,9,10,11; None: a block before each of "
        "the last ones",
    )
    visual_layers_before: str | None = option(None, "the same of visual layers, as 0,1,2,3,4,5")
    task: int | None = option(
        None, "task whose token is put into texts, by its number; None: COCO retrieval", minimum=0
    )

    def select(self, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        selected = super().select(content, notes)
        if _WORDS not in selected:
            return selected
        for name, tensor in content.items():
            if name.endswith(_DECODER) and not torch.equal(tensor, selected[_WORDS]):
                # One tensor under two names in the original, where the decoder is loaded last.
                selected[_WORDS] = tensor
                notes.append(f"{_DECODER} differs from {_WORDS}, and stands in for it as in the original")
                break
        return selected

    def config(self, shapes: Shapes, content: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
        config = super().config(shapes, content, notes)
        sizes = config["architecture"]
        text = sizes["text"]
        visual = sizes["visual"]
        blocks = count_blocks(shapes, r"co_layers\.(\d+)\.")
        for name, stream in (("text_layers_before", text), ("visual_layers_before", visual)):
            sizes[name] = self._before(name, stream["num_hidden_layers"], blocks)
        sizes["tasks"] = shapes.get("task_embeddings.weight", (0,))[0]  # (tasks, width); ViLBERT has none
        return {
            **config,
            "task": self._task(sizes["tasks"], notes),
            "context_length": min(_CONTEXT, text["max_position_embeddings"]),
            "vocabulary": self.words(text["vocab_size"], notes),
        }

    def _before(self, name: str, layers: int, blocks: int) -> list[int]:
        stated: str | None = getattr(self, name)
        if stated is None:
            return list(range(layers - blocks, layers))
        numbers = [int(number) for number in re.findall(r"\d+", stated)]
        is_list = re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", stated)
        rises = [*numbers, layers] == sorted([*numbers, layers])
        if not is_list or len(numbers) != blocks or not rises:
            problem = f"there are {blocks} co-attention blocks and {layers} such layers"
            fix = "give each block a number of layers, rising, with commas between"
            raise wrong_option(name, stated, problem, fix, sentence=True)
        return numbers

    def _task(self, tasks: int, notes: list[str]) -> int | None:
        if tasks:
            task = _RETRIEVAL if self.task is None else self.task
            if task >= tasks:
                raise wrong_option("task", task, f"the checkpoint has tasks 0 to {tasks - 1}", sentence=True)
            return task
        if self.task is not None:
            problem = "the checkpoint has no task embeddings, as the pre-trained one"
            raise wrong_option("task", self.task, problem, "leave it out", sentence=True)
        notes.append("there are no task embeddings: texts are read without a task token")
        return None


class VilbertEncoder(RegionTextEncoder, tags=["image-captioning", "vilbert"]):
    """ViLBERT: features of a text's tokens in the light of an image. Boxes are embedded once per image, and
    the text layers that do not see it run once per text. A text that is too long is cut as in the released
    code, which drops its end token with the rest."""

    kind = "vilbert"
    described = (
        "ViLBERT {text[num_hidden_layers]}x{text[hidden_size]} and {visual[num_hidden_layers]}x"
        "{visual[hidden_size]}, co-attentions behind text layers {text_layers_before}, box features of "
        "{visual[region_size]} numbers, {text[vocab_size]} words, {tasks} tasks"
    )
    revision = 2  # rows with released idf weights of unseen words
    Settings = _VilbertSettings
    Network = Vilbert
    text_sizes = attrgetter("architecture.text")
    depends_on = ("architecture", "context_length", "vocabulary", "lowercase", "task")
    Conversion = VilbertConversion
    keeps_end = False
    automatic = RegionTextEncoder.automatic | {"texts": (64, 2048)}

    model: Vilbert

    def words(self, ids: Ids) -> slice:
        """The rows of a text's features that are its words, behind the first token and the task's."""
        first = 1 if self.settings.task is None else 2
        return slice(first, first + len(self.word_ids(ids)))

    def word_ids(self, ids: Ids) -> Ids:
        """The ids of a text's words alone."""
        return ids[1:-1] if ids[-1] == self.tokenizer.end else ids[1:]

    def token_features(
        self,
        boxes: Iterable[Any],
        captions: Iterable[Sequence[str]],
        *,
        layer: int = -1,
        cache: FeatureCache = SHARED,
        batch_size: int | None = None,
    ) -> Iterator[TokenFeatures]:
        """Token features of texts with every image after a co-attention block; see `encode_pairs`."""
        block = block_of(self.config, layer)
        # Features by key, until they are given out: greedy matching reads them there, without a way back.
        on_device: dict[str, Tensor] = {}

        def run(states: list[Tensor], pairs: Sequence[Pair]) -> Arriving:
            encoded = self._pair_states(states, pairs, block, cache, batch_size)
            if self.device.type == "cuda":
                for (_, _, key), rows in zip(pairs, encoded, strict=True):
                    on_device[key] = rows
            return arrays_of(encoded)

        def features(item: Encoded) -> TokenFeatures:
            if item.arrays is None:
                return TokenFeatures(None, item.content, item.error)
            keys = [self.pair_key(kind, item.content, ids) for ids in item.extra.ids]
            tensors: dict[str, Tensor | None] = {}
            for key in keys:
                if key not in tensors:  # equal texts of an image share a key, which can be taken out once
                    tensors[key] = on_device.pop(key, None)
            features = [item.arrays[key] for key in keys]
            return TokenFeatures(features, item.content, None, [tensors[key] for key in keys])

        kind = f"tokens{block}"
        return map(features, self.encode_pairs(boxes, captions, run, kind, cache, batch_size))

    def prepare_visual(self, loaded: BoxFeatures) -> LocatedBoxes:
        loaded.check_width(self.region_size)
        return located(loaded)

    @exact
    def states(self, prepared: Sequence[LocatedBoxes]) -> list[Tensor]:
        """(boxes + 1, hidden) of each image before it meets a text, on the encoder's device."""
        dtype = DTYPES[self.dtype]
        features = rows_on_device(self.device, [boxes.features for boxes in prepared], dtype)
        locations = rows_on_device(self.device, [boxes.locations for boxes in prepared], dtype)
        return self.model.lower_regions(features, locations, [len(boxes.locations) for boxes in prepared])

    @exact
    def text_states(self, texts: Sequence[Ids], cache: FeatureCache, batch_size: int | None) -> list[Tensor]:
        """(rows, hidden) of each text before it meets an image, on the encoder's device. On CUDA they are
        kept nowhere: to wait for what the cache needs costs more than to run them again."""
        lower = partial(self.model.lower_texts, task=self.settings.task)
        if self.device.type == "cuda":
            return lower(texts)
        distinct = Distinct(texts, lambda ids: self.key("lower", ids), cache)
        for part, rows in self.batch("texts", batch_size).run(distinct.missing, lower):
            distinct.add(part, arrays_of(rows).values())
        arrays = distinct.arrays()
        packed = rows_on_device(self.device, arrays, DTYPES[self.dtype])
        return list(torch.split(packed, [len(array) for array in arrays]))

    @exact
    def _pair_states(
        self,
        states: list[Tensor],
        pairs: Sequence[Pair],
        block: int,
        cache: FeatureCache,
        batch_size: int | None,
    ) -> list[Tensor]:
        """(rows, hidden) of the text of each pair after a co-attention block."""
        images: dict[int, int] = {}  # numbers of the distinct images by position, in order
        texts: dict[Ids, int] = {}
        couples = []
        for position, ids, _ in pairs:
            image = images.setdefault(position, len(images))
            text = texts.setdefault(ids, len(texts))
            couples.append((text, image))
        regions = [states[position] for position in images]
        text_states = self.text_states(list(texts), cache, batch_size)
        return self.model.text_states(text_states, regions, couples, block)

    def canary(self) -> Floats:
        """(3, 3): cosines of three captions' mean word features with one made-up image and with another."""
        encoded = self.token_features(self.canary_boxes(), [TEXTS, TEXTS], cache=FeatureCache(0))
        words = [self.words(ids) for ids in self.tokenizer.encode(TEXTS).ids]
        means: list[list[Floats]] = []
        for image in encoded:
            texts = zip(image.features or [], words, strict=True)
            means.append([rows[word_rows].mean(axis=0) for rows, word_rows in texts])
        first, second = means
        return cosines(np.stack(first), np.stack(second))


def block_of(config: dict[str, Any], layer: int) -> int:
    """The number of a co-attention block of a config's model, by a number from either end."""
    count = len(config["architecture"]["text_layers_before"])
    if not -count <= layer < count:
        fix = f"give a number from 0 to {count - 1}, or from -{count} to -1"
        raise ValueError(f"layer={layer}: these weights have {count} co-attention blocks: {fix}")
    return layer % count
