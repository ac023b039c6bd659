"""Items with their texts in one network: an item runs once, then with each of its texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capeval_core.encoders.engine import Encoding, Item, Units
from capeval_core.encoders.tokenizers import Ids, Tokens
from capeval_core.models.batching import BatchSize
from capeval_core.models.copies import Arriving, arriving, made_of

Floats = NDArray[np.float32]


class PairEncoder(Protocol):
    """A network that runs a visual once (an image, box features), and then with each of its texts."""

    def image_key(self, content: str) -> str | None:
        """The cache's key of a visual's features, by its content key; None: it has none without a text."""

    def pair_key(self, content: str, ids: Ids) -> str:
        """The cache's key of a visual with a text."""

    def prepare_visual(self, loaded: Any) -> Any:
        """The network's input of a loaded visual; runs in threads."""

    def states(self, prepared: Sequence[Any]) -> Any:
        """States of n visuals that all of their texts share, on the encoder's device."""

    def image_features(self, states: Any) -> Floats | Tensor | Arriving:
        """(n, ...) features of n visuals alone; called only where `image_key` is a key."""

    def run_pairs(
        self, states: Any, pairs: Sequence[tuple[int, Ids, str]]
    ) -> Sequence[Floats] | Floats | Tensor | Arriving:
        """An array per pair (position in `states`, token ids, key), which may differ in length; the pairs of
        a visual stand together."""

    def pairs_per_batch(self, batch_size: int | None, length: int) -> tuple[BatchSize, int]:
        """The batch size, and what a pair with a text of `length` tokens costs in its unit."""


class Pairs:
    """How the engine runs images with their texts, packed by length.

    What belongs to an item are the `Tokens` of its texts; equal texts run once. The arrays are the image's
    features, if it has any alone, and a row per text.
    """

    def __init__(self, encoder: PairEncoder, size: BatchSize, batch_size: int | None) -> None:
        self.encoder, self.size, self.batch_size = encoder, size, batch_size

    def encoding(self) -> Encoding:
        """How the engine runs them."""
        return Encoding(
            size=self.size,
            keys=self.keys,
            prepare=self.encoder.prepare_visual,
            forward=self.forward,
            units=self.units,
            arrays=self.arrays,
        )

    def keys(self, content: str, tokens: Tokens) -> tuple[str, ...]:
        """The image's key, if it has one, then one per distinct text; none where there is no text."""
        if not tokens.ids:
            return ()
        texts = dict.fromkeys(self.encoder.pair_key(content, ids) for ids in tokens.ids)
        own = self.encoder.image_key(content)
        return tuple(texts) if own is None else (own, *texts)

    def units(self, item: Item, loaded: Any, prepared: Any, missing: Sequence[str]) -> Units:
        """One unit: the image with the texts that are missing."""
        visual, tokens = item
        texts = {self.encoder.pair_key(visual.key, ids): ids for ids in tokens.ids}
        own = self.encoder.image_key(visual.key)
        return Units([[(0, (prepared, own, {key: texts[key] for key in missing if key in texts}))]])

    def forward(self, units: list[tuple[Any, str | None, dict[str, Ids]]]) -> Arriving:
        """Per image the rows of its texts and its own features, by key."""
        states = self.encoder.states([prepared for prepared, _, _ in units])
        places: list[tuple[int, str | None]] = []  # position and key of each row, in order; None: not wanted
        running: list[Arriving] = []
        if any(own is not None for _, own, _ in units):
            places += [(position, own) for position, (_, own, _) in enumerate(units)]
            running.append(arriving(self.encoder.image_features(states)))
        pairs = [
            (position, ids, key)
            for position, (_, _, texts) in enumerate(units)
            for key, ids in sorted(texts.items(), key=lambda text: len(text[1]))
        ]
        places += [(position, key) for position, _, key in pairs]
        longest = max((len(ids) for _, ids, _ in pairs), default=0)
        size, cost = self.encoder.pairs_per_batch(self.batch_size, longest)
        parts = size.run(pairs, partial(self.encoder.run_pairs, states), cost=cost, after=arriving)
        running += [rows for _, rows in parts]
        images = len(units)  # whose pixels are not kept until the rows arrive

        def by_key(parts: list[Any]) -> list[dict[str, Floats]]:
            values: list[dict[str, Floats]] = [{} for _ in range(images)]
            for (position, key), row in zip(places, chain.from_iterable(parts), strict=True):
                if key is not None:
                    values[position][key] = row
            return values

        return made_of(running, by_key)

    def arrays(self, keys: Sequence[str], units: Units, values: Mapping[int, Any]) -> dict[str, Floats]:
        """The image's features and the rows of its texts, by key."""
        rows: dict[str, Floats] = values[0]
        return rows
