"""What networks over a text and the boxes of an image share: words beside the weights, checks of boxes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from capeval_core.cache import feature_key
from capeval_core.encoders.engine import chunks
from capeval_core.encoders.tokenizers import Ids, Tokens, WordPiece
from capeval_core.models.architecture import is_whole, shown
from capeval_core.models.batching import BatchSize
from capeval_core.models.config import Layers, Width
from capeval_core.models.model import CheckedModel
from capeval_core.weights.folder import TOKENIZER, WeightsError, WeightsFolder
from capeval_core.weights.vocabulary import words_beside, write_beside

_TOGETHER = 64
"""Images whose texts are tokenized at once."""
BOXES = 100
"""Boxes of an image, about: what a pair of an image and a text costs beside its tokens."""


EPS = 1e-12
"""Of layer norms."""


@dataclass(frozen=True)
class BertSizes:
    """Sizes of a transformer over texts, under transformers' names."""

    vocab_size: Width
    hidden_size: Width
    num_hidden_layers: Layers
    num_attention_heads: Width
    intermediate_size: Width
    max_position_embeddings: Width

    def __post_init__(self) -> None:
        check_heads(self.hidden_size, self.num_attention_heads)


def check_heads(width: int, heads: int) -> None:
    """Raise ValueError where heads do not share a width."""
    if width % heads:
        raise ValueError(f"hidden_size {width} is no multiple of the {heads} heads")


def bert_config(sizes: Mapping[str, Any], dropout: float) -> Any:
    """transformers' configuration of BERT layers of these sizes."""
    from transformers import BertConfig

    common = {
        **{"type_vocab_size": 2, "layer_norm_eps": EPS, "hidden_act": "gelu"},
        **{"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout},
    }
    return BertConfig(**{**sizes, **common})


def bert_embeddings(config: Any) -> Any:
    """transformers' embeddings of tokens, without buffers that are in no file and only its forward reads."""
    from transformers.models.bert.modeling_bert import BertEmbeddings

    embeddings: Any = BertEmbeddings(config)  # type: ignore[no-untyped-call]
    del embeddings.position_ids, embeddings.token_type_ids
    return embeddings


def bert_layers(config: Any) -> nn.ModuleList:
    """transformers' layers."""
    from transformers.models.bert.modeling_bert import BertLayer

    return nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))  # type: ignore[no-untyped-call]


class RegionTextEncoder(CheckedModel):
    """A network over the tokens of a text, from a WordPiece tokenizer, and the boxes of an image."""

    keeps_end: ClassVar[bool] = True
    """Whether a text that is cut keeps its end mark."""
    splits: ClassVar[bool] = False
    """Whether texts are split as by `str.split` first."""

    @staticmethod
    @abstractmethod
    def sizes(config: dict[str, Any]) -> tuple[BertSizes, int]:
        """Sizes of the transformer over texts, and the numbers of a box's features; raises WeightsError."""

    @classmethod
    def region_size_of(cls, config: dict[str, Any]) -> int:
        """Numbers of a box's features, by the config of weights."""
        return cls.sizes(config)[1]

    @property
    def region_size(self) -> int:
        """Numbers of a box's features."""
        return self.region_size_of(self.config)

    def prepare(self) -> None:
        words, known = self.config["vocabulary"], self.sizes(self.config)[0].vocab_size
        if len(words) > known:
            raise WeightsError(f"the vocabulary has {len(words)} words, but the model knows {known}")
        try:
            self.tokenizer = WordPiece(
                words,
                self.config["context_length"],
                lowercase=self.config["lowercase"],
                keep_end=self.keeps_end,
                split=self.splits,
            )
        except ValueError as error:
            raise WeightsError(str(error)) from error
        on_cpu = self.device.type == "cpu"
        self.automatic_images = BatchSize(16 if on_cpu else 256, automatic=True)
        self.automatic_rows = BatchSize(2048 if on_cpu else 65_536, automatic=True)  # tokens and boxes

    @classmethod
    def read_config(cls, folder: WeightsFolder) -> dict[str, Any]:
        config = super().read_config(folder)
        if missing := [key for key in cls.depends_on if key not in config]:
            raise WeightsError(f"the config lacks {', '.join(missing)}: convert the weights again")
        longest, length, problems = (
            cls.sizes(config)[0].max_position_embeddings,
            config["context_length"],
            list[str](),
        )
        if not is_whole(length, range(3, longest + 1)):
            problems.append(f"context_length is {shown(length)}, expected a whole number from 3 to {longest}")
        if not isinstance(config["lowercase"], bool):
            problems.append(f"lowercase is {shown(config['lowercase'])}, expected true or false")
        if not isinstance(config["vocabulary"], (list, dict)):
            problems.append(
                f"vocabulary is {shown(config['vocabulary'])}, expected words, or file and sha256"
            )
        if problems:
            raise WeightsError(f"in the config, {'; '.join(problems)}: convert the weights again")
        if isinstance(config["vocabulary"], list):
            return config
        return {**config, "vocabulary": words_beside(folder.path, TOKENIZER, config["vocabulary"])}

    def save_beside(self, folder: Path) -> dict[str, Any]:
        return {**self.config, "vocabulary": write_beside(folder, TOKENIZER, self.tokenizer.to_json())}

    def tokens(self, captions: Iterable[Sequence[str]]) -> Iterator[Tokens]:
        """Token ids of the texts of each image; those of some images are made together, by several threads.

        Raises:
            ValueError: one text instead of a list.
        """
        for part in chunks(enumerate(captions), _TOGETHER):
            for index, texts in part:
                if isinstance(texts, str):
                    fix = f"expected a list of texts: write [{texts!r}]"
                    raise ValueError(f"captions[{index}] is one text, {fix}")
            found = self.tokenizer.encode([text for _, texts in part for text in texts])
            start = 0
            for _, texts in part:
                own = slice(start, start + len(texts))
                yield Tokens(found.ids[own], found.truncated[own])
                start = own.stop

    def key_of_pair(self, kind: str, content: str, ids: Ids) -> str:
        """The cache's key of what belongs to boxes, by their content key, and a text."""
        packed = f"{content}\n".encode() + np.array(ids, dtype="<u4").tobytes()
        return feature_key(self.fingerprint, self.dtype, kind, packed)

    def image_key(self, content: str) -> None:
        """Boxes mean nothing to these networks without a text."""

    def image_features(self, states: list[Tensor]) -> Any:
        """There are none."""
        raise NotImplementedError

    def images_per_batch(self, batch_size: int | None) -> BatchSize:
        """Images per forward pass; None: as many as fit into memory."""
        return self.automatic_images if batch_size is None else BatchSize(batch_size, automatic=False)

    def pairs_per_batch(self, batch_size: int | None, length: int) -> tuple[BatchSize, int]:
        """The batch size and what a pair with a text of `length` tokens costs in its unit."""
        if batch_size is not None:
            return BatchSize(batch_size, automatic=False), 1
        return self.automatic_rows, length + BOXES


def canary_boxes(count: int, width: int) -> dict[str, Any]:
    """Box features from formulas: a diagonal of boxes whose features are waves."""
    corners = np.arange(count, dtype=np.float32)[:, None] * [3, 2]
    phase = np.outer(np.arange(1, count + 1), np.arange(width))
    return {
        "boxes": np.concatenate([corners, np.add(corners, [20, 15])], axis=1).astype(np.float32),
        "features": np.maximum(np.sin(phase), 0).astype(np.float32),
        "size": (20 + 3 * count, 15 + 2 * count),
    }
