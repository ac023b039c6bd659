"""Members of ECO's ensemble: opened one at a time, each turning candidates into rows of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.inputs.samples import Samples
from capeval_core.matching.cosine import paired_cosine
from capeval_core.metric import Model
from capeval_core.rows import column, common_columns, row_schema
from capeval_core.weights.folder import WeightsError, WeightsFolder

if TYPE_CHECKING:
    from capeval_core.encoders.blip2 import Blip2Encoder
    from capeval_core.encoders.dual import DualEncoder

MATCHER = "blip2-itc"
"""The member that is the contrast of the model which also filters."""
MEMBER_ROW = row_schema(
    column("value", pa.float32(), "cosine of candidate and image"),
    column("itm", pa.float32(), "probability that they match, null for a dual encoder"),
)

Encode = Callable[[Samples], Iterator[pa.Table]]


@dataclass(frozen=True)
class Member(ABC):
    """A model that gives every candidate a value; its weights are found, but not in memory.

    name: in options, in the signature, and of its folder of rows. folder: its weights.
    """

    name: str
    folder: WeightsFolder

    @property
    @abstractmethod
    def model(self) -> Model:
        """How the signature and the stamp of its rows name it."""

    @abstractmethod
    def open(self, device: str | None, dtype: str) -> Any:
        """Its encoder, in memory."""

    @abstractmethod
    def rows(self, encoder: Any, batch: Samples, run: dict[str, Any]) -> Iterator[pa.Table]:
        """Tables of schema `MEMBER_ROW` that cover the batch in order; `run` is for the encoder."""

    def encoding(self, device: str | None, dtype: str, run: dict[str, Any]) -> Encode:
        """What encodes batches. It opens the encoder when it is first called; when it goes, so does that."""
        held: list[Any] = []

        def encode(batch: Samples) -> Iterator[pa.Table]:
            if not held:
                held.append(self._opened(device, dtype))
            yield from self.rows(held[0], batch, run)

        return encode

    def _opened(self, device: str | None, dtype: str) -> Any:
        import torch

        try:
            with torch.device("cpu"):  # whatever a program that builds a model of its own has set
                return self.open(device, dtype)
        except (WeightsError, MemoryError) as error:
            raise type(error)(cannot_open(self.name, error)) from error


class Dual(Member):
    """A dual encoder: cosine of image and candidate, behind the prompt that its weights name."""

    @property
    def model(self) -> Model:
        from capeval_core.encoders.dual import dual_class

        fingerprint = dual_class(self.folder).fingerprint_of(self.folder)
        return Model(self.folder.label(fingerprint), fingerprint)

    def open(self, device: str | None, dtype: str) -> DualEncoder:
        from capeval_core.encoders.dual import dual_class

        return dual_class(self.folder).open(self.folder, device=device, dtype=dtype)

    def rows(self, encoder: DualEncoder, batch: Samples, run: dict[str, Any]) -> Iterator[pa.Table]:
        from capeval_core.encoders.dual import whole_images

        prompt = self.folder.config.get("constants", {}).get("prompt", "")
        said = encoder.encode_texts([f"{prompt}{caption}" for caption in batch.captions], **run)
        starts = pool_starts(batch)
        ends = [*starts[1:], len(batch)]
        place = 0
        # One image per pool, whose features all its candidates share.
        for seen in whole_images(encoder, [batch.images[start] for start in starts], **run):
            lengths = np.array([ends[place + i] - starts[place + i] for i in range(len(seen.keys))])
            part = slice(starts[place], starts[place] + int(lengths.sum()))
            images = np.repeat(seen.features, lengths, axis=0)
            yield _table(
                batch,
                part,
                groups=_repeated(seen.keys, lengths),
                errors=_repeated(seen.errors, lengths),
                truncated=np.array(said.dropped[part]),
                value=paired_cosine(images, said.features[part]),
                itm=np.full(len(images), np.nan, dtype=np.float32),
            )
            place += len(seen.keys)


class Matcher(Member):
    """BLIP-2: its contrast (ITC, the best query token's cosine) and its matching (ITM), in one pass."""

    @property
    def model(self) -> Model:
        from capeval_core.encoders.blip2 import Blip2Encoder

        fingerprint = Blip2Encoder.fingerprint_of(self.folder)
        return Model(self.folder.label(fingerprint), fingerprint)

    def open(self, device: str | None, dtype: str) -> Blip2Encoder:
        from capeval_core.encoders.blip2 import Blip2Encoder

        return Blip2Encoder.open(self.folder, device=device, dtype=dtype)

    def rows(self, encoder: Blip2Encoder, batch: Samples, run: dict[str, Any]) -> Iterator[pa.Table]:
        starts = pool_starts(batch)
        pools = [batch.captions[a:b] for a, b in zip(starts, [*starts[1:], len(batch)], strict=True)]
        images = [batch.images[start] for start in starts]
        for start, found in zip(starts, encoder.match(images, pools, **run), strict=True):
            n = len(found.itc)
            yield _table(
                batch,
                slice(start, start + n),
                groups=[found.key] * n,
                errors=[found.error] * n,
                truncated=np.array(found.dropped),
                value=found.itc,
                itm=found.itm,
            )


def pool_starts(batch: Samples) -> list[int]:
    """Rows at which another pool begins: one per image, at least one per batch."""
    if batch.candidates is None:
        return list(range(len(batch)))
    first = [index - candidate for index, candidate in zip(batch.indices, batch.candidates, strict=True)]
    return [row for row in range(len(batch)) if row == 0 or first[row] != first[row - 1]]


def cannot_open(name: str, error: BaseException) -> str:
    """A complaint about weights, in words about members."""
    reason = str(error)
    if isinstance(error, WeightsError):
        reason = error.in_words_of("weights", passing=lambda other: f"name {other!r} in `members` instead")
    return f"members: {name!r} cannot be opened. {reason}\nTo do without it, name the others in `members`."


def _repeated(values: Sequence[Any], lengths: NDArray[np.int64]) -> list[Any]:
    return [value for value, n in zip(values, lengths, strict=True) for _ in range(n)]


def _table(batch: Samples, part: slice, **columns: Any) -> pa.Table:
    value, itm = columns.pop("value"), columns.pop("itm")
    common = common_columns(batch, part, **columns)
    own = {"value": pa.array(value, mask=np.isnan(value)), "itm": pa.array(itm, mask=np.isnan(itm))}
    return pa.table({**common, **own}, schema=MEMBER_ROW)
