"""Rows of ViLBERTScore: words of captions and references, encoded beside their image and matched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from capeval_core.matching.greedy import GreedyMatch, greedy_match
from capeval_core.models.copies import rows_on_device
from capeval_core.models.device import DTYPES
from capeval_core.rows import lists
from capeval_core.scores.idf import TokenIdf

if TYPE_CHECKING:
    from capeval_core.encoders.tokenizers import Ids
    from capeval_core.encoders.vilbert import VilbertEncoder

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class EncodedText:
    """A text in the light of an image: its token ids, and the features of all its tokens, (rows, hidden).

    on_device: the same on CUDA, where they are there already.
    """

    ids: Ids
    features: Floats
    on_device: torch.Tensor | None = None


@dataclass(frozen=True)
class EncodedCaption:
    """A caption with its references, beside one image."""

    caption: EncodedText
    references: list[EncodedText]


@dataclass(frozen=True)
class EncodedRow:
    """A row's caption, None where its image failed.

    group: content key of the image, '' where it could not be read. error: why it failed.
    truncated: token ids that were cut off, those of references included.
    """

    caption: EncodedCaption | None
    group: str
    error: str | None
    truncated: int


class Matcher:
    """Matches words of captions with those of references.

    idf: weights of words; None: all count alike.
    """

    def __init__(self, encoder: VilbertEncoder, idf: TokenIdf | None) -> None:
        self.encoder, self.idf = encoder, idf
        self.on_device = encoder.device.type == "cuda"

    def columns(self, captions: Sequence[EncodedCaption | None]) -> dict[str, pa.Array]:
        """The columns of `VilbertScore.ROW`; null where there is None."""
        encoded = [caption for caption in captions if caption is not None]
        counts = np.array([len(caption.references) for caption in encoded], dtype=np.int64)
        words = self.matched_words(encoded)
        of_words = [len(self.words(text)) for caption in encoded for text in caption.references]
        of_captions = np.array([len(self.words(caption.caption)) for caption in encoded], dtype=np.int64)
        references = [text for caption in encoded for text in caption.references]
        released = self.matched_as_released(encoded)
        columns = {
            "caption_maxima": lists(lists(words.x_maxima, np.repeat(of_captions, counts)), counts),
            "reference_maxima": lists(lists(words.y_maxima, np.array(of_words, dtype=np.int64)), counts),
            "caption_weights": self._weight_lists([caption.caption for caption in encoded]),
            "reference_weights": lists(self._weight_lists(references), counts),
            "released_precision": lists(released.precision, counts),
            "released_recall": lists(released.recall, counts),
        }
        rank = np.cumsum([caption is not None for caption in captions]) - 1
        chosen = pa.array(
            [None if c is None else int(r) for c, r in zip(captions, rank, strict=True)], pa.int64()
        )
        return {name: column.take(chosen) for name, column in columns.items()}

    def words(self, text: EncodedText) -> Floats:
        """(words, hidden): the features of a text's words alone."""
        return text.features[self.encoder.words(text.ids)]

    def matched_words(self, captions: Iterable[EncodedCaption], *, indices: bool = False) -> GreedyMatch:
        """Words of captions matched with words of each reference, pair by pair."""
        settings = {"return_maxima": True, "return_indices": indices}
        return self._match(captions, lambda text: self.encoder.words(text.ids), **settings)

    def matched_as_released(self, captions: Iterable[EncodedCaption]) -> GreedyMatch:
        """What the released script matches.

        With m token ids of a text, marks included, it takes rows 1 to m - 1 of its m + 1 rows: the task token
        and all words, and of a text that was cut all but the last word. Texts shorter than the longest one
        possible are padded, and padding has similarity 0. Where there are idf weights, row i has that of
        token i, which is the next word's, and ids that the table lacks have its largest one.
        """
        chosen = list(captions)
        # Without a task token the script fails; whatever is matched here, no score is made of it.
        settings: dict[str, Any] = {}
        texts = [[caption.caption for caption in chosen], [t for c in chosen for t in c.references]]
        if self.idf is not None:
            idf = replace(self.idf, unseen=max(self.idf.weights.values()))
            settings = {
                f"{side}_weights": [weight for text in own for weight in idf.of(text.ids[1:])]
                for side, own in zip("xy", texts, strict=True)
            } | {"weighted_similarity": True}
        owner = [row for row, caption in enumerate(chosen) for _ in caption.references]
        length = self.encoder.tokenizer.context_length
        return self._match(
            chosen,
            lambda text: slice(1, len(text.ids)),
            x_padded=[len(texts[0][row].ids) < length for row in owner],
            y_padded=[len(text.ids) < length for text in texts[1]],
            **settings,
        )

    def _match(
        self, captions: Iterable[EncodedCaption], rows: Callable[[EncodedText], slice], **settings: Any
    ) -> GreedyMatch:
        """The greedy matching of chosen rows, on the encoder's device if that is CUDA; values on the CPU."""
        chosen = list(captions)
        sides = [[caption.caption for caption in chosen], [t for c in chosen for t in c.references]]
        x, y = (self._packed(side, rows) for side in sides)
        x_lengths, y_lengths = ([len(text.features[rows(text)]) for text in side] for side in sides)
        owner = [row for row, caption in enumerate(chosen) for _ in caption.references]
        return greedy_match(x, y, x_lengths, y_lengths, x_of_pair=owner, **settings).to("cpu")

    def _packed(self, texts: Sequence[EncodedText], rows: Callable[[EncodedText], slice]) -> torch.Tensor:
        """Chosen rows of texts, one text after another; those that are not on CUDA yet get there at once."""
        device, width = self.encoder.device, self.encoder.hidden_size
        if not self.on_device:
            empty = np.empty((0, width), dtype=np.float32)
            return torch.from_numpy(np.concatenate([empty, *(text.features[rows(text)] for text in texts)]))
        dtype = DTYPES[self.encoder.dtype]
        on_host = [text.features for text in texts if text.on_device is None]
        copied = rows_on_device(device, [np.empty((0, width), dtype=np.float32), *on_host], dtype)
        copies = iter(torch.split(copied, [len(features) for features in on_host]))
        parts = [next(copies) if text.on_device is None else text.on_device for text in texts]
        return torch.cat([copied[:0], *(part[rows(text)] for part, text in zip(parts, texts, strict=True))])

    def weights(self, text: EncodedText) -> list[float]:
        """The weight of each word; words of which none has a weight count alike."""
        ids = self.encoder.word_ids(text.ids)
        weights = [1.0] * len(ids) if self.idf is None else self.idf.of(ids)
        return weights if any(weights) else [1.0] * len(ids)

    def _weight_lists(self, texts: Sequence[EncodedText]) -> pa.ListArray:
        weights = [self.weights(text) for text in texts]
        flat = np.array([weight for own in weights for weight in own], dtype=np.float32)
        return lists(flat, np.array([len(own) for own in weights], dtype=np.int64))
