"""What networks over a text and the boxes of an image share: words beside the weights, checks of boxes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from capeval_core.encoders.engine import chunks
from capeval_core.encoders.tokenizers import Tokens, WordPiece
from capeval_core.models.architecture import shown
from capeval_core.models.batching import BatchSize
from capeval_core.models.model import CheckedModel
from capeval_core.weights.folder import TOKENIZER, WeightsError, WeightsFolder
from capeval_core.weights.vocabulary import words_beside, write_beside

_TOGETHER = 64
"""Images whose texts are tokenized at once."""
BOXES = 100
"""Boxes of an image, about: what a pair of an image and a text costs beside its tokens."""


class RegionTextEncoder(CheckedModel):
    """A network over the tokens of a text, from a WordPiece tokenizer, and the boxes of an image."""

    keeps_end: ClassVar[bool] = True
    """Whether a text that is cut keeps its end mark."""
    splits: ClassVar[bool] = False
    """Whether texts are split as by `str.split` first."""

    @classmethod
    @abstractmethod
    def problems(cls, config: dict[str, Any]) -> list[str]:
        """What is wrong with a config that has all its keys, in words."""

    @property
    @abstractmethod
    def rows_of_words(self) -> int:
        """Words that the network has an embedding of."""

    @property
    def region_size(self) -> int:
        """Numbers of a box's features."""
        return self.region_size_of(self.config)

    @classmethod
    @abstractmethod
    def region_size_of(cls, config: dict[str, Any]) -> int:
        """Numbers of a box's features, by the config of weights."""

    def prepare(self) -> None:
        words = self.config["vocabulary"]
        if len(words) > self.rows_of_words:
            raise WeightsError(
                f"the vocabulary has {len(words)} words, but the model knows {self.rows_of_words}"
            )
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
        problems = cls.problems(config)
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
