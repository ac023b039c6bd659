"""ViLBERT's modules and its forward pass over sequences without padding.

Lu, Batra, Parikh, Lee: ViLBERT: Pretraining Task-Agnostic Visiolinguistic Representations for
Vision-and-Language Tasks, NeurIPS 2019, https://arxiv.org/abs/1908.02265
Lu, Goswami, Rohrbach, Parikh, Lee: 12-in-1: Multi-Task Vision and Language Representation Learning, CVPR
2020, https://arxiv.org/abs/1912.02315

A stream of tokens and a stream of boxes run through layers of their own, and exchange what they have in
co-attention blocks. Before the first block neither stream depends on the other, so a text runs once for all
images, and boxes once for all texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capeval_core.encoders.bert import bert_layer, merge
from capeval_core.encoders.packed import Packing, attend, groups_of, rows_of_sequences, starts_of
from capeval_core.encoders.tokenizers import Ids
from capeval_core.models.architecture import filled, is_whole, shown, size_problems
from capeval_core.models.copies import indices_on_device
from capeval_core.models.device import DTYPES

LOCATION = 5
"""Numbers of a box's location: x0, y0, x1, y1 and area, relative to the image."""
EPS = 1e-12
"""Of layer norms."""
_SECTIONS = {
    "text": (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    ),
    "visual": ("region_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    "co_attention": ("hidden_size", "num_attention_heads"),
}
"""Parts of an architecture and the sizes in each."""
_BEFORE = {"text": "text_layers_before", "visual": "visual_layers_before"}
"""Per stream, how many of its layers run before each co-attention block."""
_TEXT_PADDING = 2.0
"""Most tokens that attention may run over, relative to those there are: texts are short beside boxes."""
_MOST_TASKS = 1000


class CoAttention(nn.Module):
    """A co-attention block: each stream attends to the other, and has a feed-forward layer of its own."""

    def __init__(self, text: Any, visual: Any, architecture: dict[str, Any], dropout: float) -> None:
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertIntermediate, BertOutput

        super().__init__()
        width = architecture["hidden_size"]
        self.heads = architecture["num_attention_heads"]
        self.dropout = dropout
        for name, config in (("text", text), ("visual", visual)):
            merging = BertConfig.from_dict({**config.to_dict(), "intermediate_size": width})
            stream = nn.Module()
            for part in ("query", "key", "value"):
                setattr(stream, part, nn.Linear(config.hidden_size, width))
            stream.merge = BertOutput(merging)  # type: ignore[no-untyped-call]
            stream.intermediate = BertIntermediate(config)  # type: ignore[no-untyped-call]
            stream.output = BertOutput(config)  # type: ignore[no-untyped-call]
            setattr(self, name, stream)

    def attended(self, own: str, query: Tensor, keys: Tensor, values: Tensor, batch: PairBatch) -> Tensor:
        """What the rows of stream `own` take of the other stream, before `merged`."""
        stands = {"text": batch.text_packing, "visual": batch.visual_packing}
        other = "visual" if own == "text" else "text"
        dropout = self.dropout if self.training else 0.0
        return attend(query, keys, values, self.heads, stands[own], stands[other], dropout=dropout)

    def merged(self, own: str, attended: Tensor, rows: Tensor) -> Tensor:
        """The rows of stream `own` after the block."""
        stream: Any = getattr(self, own)
        merged = merge(stream.merge, attended, rows)
        return merge(stream.output, stream.intermediate(merged), merged)


class Vilbert(nn.Module):
    """ViLBERT without heads of its tasks, on transformers' BERT layers.

    `architecture` has parts `text`, `visual` and `co_attention` with sizes under transformers' names,
    `text_layers_before` and `visual_layers_before`, which say how many layers of a stream run before each
    co-attention block, and `tasks`, the number of task embeddings, 0 for a model without.
    """

    def __init__(self, architecture: dict[str, Any], dropout: float = 0.0) -> None:
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertEmbeddings, BertLayer

        super().__init__()
        common = {
            "type_vocab_size": 2,
            "layer_norm_eps": EPS,
            "hidden_act": "gelu",
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        }
        text, visual = (BertConfig(**{**architecture[name], **common}) for name in ("text", "visual"))
        width = architecture["co_attention"]["hidden_size"]
        self.text_before: list[int] = architecture["text_layers_before"]
        self.visual_before: list[int] = architecture["visual_layers_before"]
        self.embeddings: Any = BertEmbeddings(text)  # type: ignore[no-untyped-call]
        # Buffers that are in no file, and which only transformers' own forward reads.
        del self.embeddings.position_ids, self.embeddings.token_type_ids
        tasks = architecture["tasks"]
        self.task_embeddings = nn.Embedding(tasks, text.hidden_size) if tasks else None
        self.region_embeddings = RegionEmbeddings(visual.region_size, visual.hidden_size)
        self.text_layers, self.visual_layers = (
            nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))  # type: ignore[no-untyped-call]
            for config in (text, visual)
        )
        self.co_layers = nn.ModuleList(
            CoAttention(text, visual, architecture["co_attention"], dropout) for _ in self.text_before
        )
        self.text_pooler = nn.Linear(text.hidden_size, width)
        self.visual_pooler = nn.Linear(visual.hidden_size, width)
        self.heads = {"text": text.num_attention_heads, "visual": visual.num_attention_heads}
        self.dropout = nn.Dropout(dropout)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.text_pooler.weight.device

    def embed_texts(self, texts: Sequence[Ids], task: int | None) -> tuple[Tensor, list[int]]:
        """Embedded tokens of texts one after another, (sum of lengths, hidden), and the lengths.

        The token of task number `task` stands behind each text's first token and has no position; None for
        a model without tasks.
        """
        table, device = self.embeddings, self.device
        lengths = [len(ids) for ids in texts]
        starts = starts_of(lengths)
        # The row behind all tokens is the task's, which stands behind the first token of each text.
        with_task = np.insert(np.arange(starts[-1]), starts[:-1] + 1, starts[-1])
        ids, positions, order = indices_on_device(
            device,
            [index for text in texts for index in text],
            np.concatenate([np.arange(length) for length in lengths]),
            with_task,
        )
        embedded = table.word_embeddings(ids) + table.position_embeddings(positions)
        embedded = embedded + table.token_type_embeddings.weight[0]
        if self.task_embeddings is not None:
            embedded = torch.cat([embedded, self.task_embeddings.weight[task][None]])[order]
            lengths = [length + 1 for length in lengths]
        dropped: Tensor = self.dropout(table.LayerNorm(embedded))
        return dropped, lengths

    def lower_texts(self, texts: Sequence[Ids], task: int | None) -> list[Tensor]:
        """(rows, hidden) of each text before the first co-attention block; `task` as for `embed_texts`."""
        rows, lengths = self.embed_texts(texts, task)
        return self._alone(self.text_layers[: self.text_before[0]], rows, lengths, "text", _TEXT_PADDING)

    def lower_regions(self, features: Tensor, locations: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """(rows, hidden) of each image before the first co-attention block.

        features: (sum of lengths, region_size), that of the whole image first for each. locations: (sum of
        lengths, 5).
        """
        rows = self.dropout(self.region_embeddings(features, locations))
        return self._alone(self.visual_layers[: self.visual_before[0]], rows, lengths, "visual")

    def _alone(
        self, layers: nn.ModuleList, rows: Tensor, lengths: Sequence[int], stream: str, *padding: float
    ) -> list[Tensor]:
        """Packed sequences after layers of one stream."""
        if len(layers):
            by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
            own = [lengths[i] for i in by_length]
            offsets, order, back = indices_on_device(
                rows.device,
                starts_of(own),
                rows_of_sequences(lengths, by_length),
                rows_of_sequences(own, np.argsort(by_length)),
            )
            packing = Packing(own, groups_of(own, *padding), offsets.int())
            rows = self._run(layers, rows[order], packing, stream)[back]
        return list(torch.split(rows, list(lengths)))

    def _run(self, layers: nn.ModuleList, rows: Tensor, packing: Packing, stream: str) -> Tensor:
        dropout = self.dropout.p if self.training else 0.0
        for layer in layers:
            rows = bert_layer(layer, rows, packing, self.heads[stream], dropout=dropout)
        return rows

    def text_states(
        self,
        texts: Sequence[Tensor],
        regions: Sequence[Tensor],
        pairs: Sequence[tuple[int, int]],
        layer: int,
    ) -> list[Tensor]:
        """(rows, hidden) of the text of each pair after co-attention block number `layer`, from 0.

        texts, regions: from `lower_texts` and `lower_regions`. pairs: positions in both, text first.
        Nothing runs that these states do not depend on.
        """
        batch = PairBatch.of(texts, regions, pairs)
        *_, (text, _) = self._blocks(batch, layer, both=False)
        return batch.split_texts(text)

    def states(
        self, texts: Sequence[Tensor], regions: Sequence[Tensor], pairs: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Texts and boxes of each pair after every co-attention block, then after the layers that follow the
        last one; arguments are those of `text_states`."""
        batch = PairBatch.of(texts, regions, pairs)
        last = len(self.co_layers) - 1
        for text, visual in self._blocks(batch, last, both=True):
            yield batch.split_texts(text), batch.split_regions(visual)
        text = self._run(self.text_layers[self.text_before[last] :], text, batch.text_packing, "text")
        after = self.visual_layers[self.visual_before[last] :]
        visual = self._run(after, visual, batch.visual_packing, "visual")
        yield batch.split_texts(text), batch.split_regions(visual)

    def _blocks(self, batch: PairBatch, last: int, *, both: bool) -> Iterator[tuple[Tensor, Tensor]]:
        """Packed rows of both streams after each co-attention block up to number `last`.

        both: whether the boxes' rows after the last block are wanted, too; else they are those before it.
        """
        text, visual = batch.texts, batch.regions  # distinct ones, until they meet
        blocks: list[Any] = list(self.co_layers[: last + 1])
        for number, block in enumerate(blocks):
            if number:
                here = slice(self.text_before[number - 1], self.text_before[number])
                text = self._run(self.text_layers[here], text, batch.text_packing, "text")
                here = slice(self.visual_before[number - 1], self.visual_before[number])
                visual = self._run(self.visual_layers[here], visual, batch.visual_packing, "visual")
            onward = both or number < last
            of_text, of_visual = block.text, block.visual
            # The first block's projections are made once per distinct text and image, then copied to pairs.
            to_text = [text, of_text.query(text)]
            to_visual = [visual, of_visual.key(visual), of_visual.value(visual)]
            if onward:
                to_text += [of_text.key(text), of_text.value(text)]
                to_visual += [of_visual.query(visual)]
            if not number:
                to_text = [rows[batch.text_rows] for rows in to_text]
                to_visual = [rows[batch.visual_rows] for rows in to_visual]
            text, text_query, *text_side = to_text
            visual, visual_keys, visual_values, *visual_query = to_visual
            for_text = block.attended("text", text_query, visual_keys, visual_values, batch)
            if onward:
                for_visual = block.attended("visual", *visual_query, *text_side, batch)
                visual = block.merged("visual", for_visual, visual)
            text = block.merged("text", for_text, text)
            yield text, visual

    def pooled(self, text: Sequence[Tensor], visual: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(pairs, width) of each stream: ReLU(W h) of the first row of each pair, from `states`."""
        return (
            torch.relu(self.text_pooler(torch.stack([rows[0] for rows in text]))),
            torch.relu(self.visual_pooler(torch.stack([rows[0] for rows in visual]))),
        )


class RegionEmbeddings(nn.Module):
    """Boxes as tokens: LN(feature W + location W)."""

    def __init__(self, region_size: int, hidden_size: int) -> None:
        super().__init__()
        self.feature = nn.Linear(region_size, hidden_size)
        self.location = nn.Linear(LOCATION, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=EPS)

    def forward(self, features: Tensor, locations: Tensor) -> Tensor:
        """(n, hidden) of features (n, region_size) and locations (n, 5)."""
        embedded: Tensor = self.norm(self.feature(features) + self.location(locations))
        return embedded


@dataclass(frozen=True)
class PairBatch:
    """Pairs of a text and an image, sorted so that those of nearly equal lengths stand together.

    texts, regions: packed rows of the distinct texts and images. text_rows, visual_rows: which of them the
    pairs have, one pair after another. text_packing, visual_packing: where the sorted pairs stand.
    rank: the position of each pair among them.
    """

    texts: Tensor
    regions: Tensor
    text_rows: Tensor
    visual_rows: Tensor
    text_packing: Packing
    visual_packing: Packing
    rank: list[int]

    @classmethod
    def of(
        cls, texts: Sequence[Tensor], regions: Sequence[Tensor], pairs: Sequence[tuple[int, int]]
    ) -> PairBatch:
        """Pairs of positions in `texts` and `regions`, at least one."""
        of_text, of_regions = [len(rows) for rows in texts], [len(rows) for rows in regions]
        by_boxes = sorted(range(len(pairs)), key=lambda i: of_regions[pairs[i][1]])
        order: list[int] = []
        parts: list[slice] = []
        for alike in groups_of([of_regions[pairs[i][1]] for i in by_boxes]):
            by_text = sorted(by_boxes[alike], key=lambda i: of_text[pairs[i][0]])
            for inner in groups_of([of_text[pairs[i][0]] for i in by_text], _TEXT_PADDING):
                parts.append(slice(len(order), len(order) + inner.stop - inner.start))
                order += by_text[inner]
        ordered = [pairs[i] for i in order]
        text_lengths = [of_text[text] for text, _ in ordered]
        visual_lengths = [of_regions[image] for _, image in ordered]
        text_rows, visual_rows, text_offsets, visual_offsets = indices_on_device(
            texts[0].device,
            rows_of_sequences(of_text, [text for text, _ in ordered]),
            rows_of_sequences(of_regions, [image for _, image in ordered]),
            starts_of(text_lengths),
            starts_of(visual_lengths),
        )
        return cls(
            torch.cat(list(texts)),
            torch.cat(list(regions)),
            text_rows,
            visual_rows,
            Packing(text_lengths, parts, text_offsets.int()),
            Packing(visual_lengths, parts, visual_offsets.int()),
            np.argsort(order).tolist(),
        )

    def split_texts(self, rows: Tensor) -> list[Tensor]:
        """Packed rows of texts, by pair."""
        return self._split(rows, self.text_packing.lengths)

    def split_regions(self, rows: Tensor) -> list[Tensor]:
        """Packed rows of boxes, by pair."""
        return self._split(rows, self.visual_packing.lengths)

    def _split(self, rows: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        parts = torch.split(rows, list(lengths))
        return [parts[place] for place in self.rank]


def build_vilbert(architecture: dict[str, Any], tensors: dict[str, Tensor], dtype: str) -> Vilbert:
    """ViLBERT with exactly these tensors, in eval mode.

    Raises:
        WeightsError: an architecture that cannot be built; tensors that are missing, extra or misshaped.
    """
    return filled(empty_vilbert(architecture), tensors, DTYPES[dtype])


def empty_vilbert(architecture: dict[str, Any]) -> Vilbert:
    """ViLBERT on torch's meta device: no memory, and no random numbers for what is overwritten."""
    with torch.device("meta"):
        return Vilbert(architecture)


def config_problems(config: dict[str, Any]) -> list[str]:
    """What is missing or of the wrong kind, in words; an empty list if all is well."""
    shape = config["architecture"]
    if not isinstance(shape, dict):
        return [f"architecture is {shown(shape)}, expected an object"]
    problems = size_problems(shape, "architecture")
    for section, sizes in _SECTIONS.items():
        own = shape.get(section)
        lacking = [name for name in sizes if not isinstance(own, dict) or own.get(name) is None]
        if lacking:
            problems.append(f"architecture.{section} lacks {', '.join(lacking)}")
    if problems:
        return problems
    for section in _SECTIONS:
        width, heads = shape[section]["hidden_size"], shape[section]["num_attention_heads"]
        if width % heads:
            problems.append(f"{section}: hidden_size {width} is no multiple of the {heads} heads")
    for stream, name in _BEFORE.items():
        before, blocks, layers = (
            shape.get(name),
            shape.get("text_layers_before"),
            shape[stream]["num_hidden_layers"],
        )
        whole = isinstance(before, list) and all(is_whole(n, range(layers + 1)) for n in before)
        if not before or not whole or before != sorted(before):
            problems.append(f"{name} is {shown(before)}, expected rising whole numbers up to {layers}")
        elif isinstance(blocks, list) and len(before) != len(blocks):
            problems.append(f"{name} has {len(before)} numbers: give one per co-attention block")
    tasks: Any = shape.get("tasks")
    task = config["task"]
    if not is_whole(tasks, range(_MOST_TASKS)):
        problems.append(f"tasks is {shown(tasks)}, expected a whole number from 0 to {_MOST_TASKS - 1}")
    elif (task is None) is bool(tasks) or not (task is None or is_whole(task, range(tasks))):
        problems.append(f"task is {shown(task)}, but there are {tasks} task embeddings")
    longest = shape["text"]["max_position_embeddings"]
    if not is_whole(config["context_length"], range(3, longest + 1)):
        problems.append(
            f"context_length is {shown(config['context_length'])}, expected a whole number from 3 to "
            f"{longest}"
        )
    return problems
