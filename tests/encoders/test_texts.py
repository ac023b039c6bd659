"""Texts to features: equal ones once, of any shape, common prefixes and lengths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache
from capeval_core.encoders.texts import Ids, by_length, encode_distinct
from capeval_core.encoders.tokenizers import Tokens

Floats = NDArray[np.float32]


def test_token_features_of_any_length_each_text_once() -> None:
    runs: list[list[Ids]] = []

    def forward(sequences: list[Ids]) -> Iterator[tuple[slice, list[Floats]]]:
        runs.append(sequences)
        for part, length in by_length(sequences):
            yield part, [np.full((length, 2), sum(ids), np.float32) for ids in sequences[part]]

    cache, ids = FeatureCache(), [(3, 1, 1), (2,), (3, 1, 1), (1, 4), (2, 2)]
    for _ in range(2):
        arrays = encode_distinct(Tokens(ids, [0] * 5), str, forward, cache)
        assert [array.shape for array in arrays] == [(len(row), 2) for row in ids]
        assert [array[0, 0] for array in arrays] == [sum(row) for row in ids]
    assert runs == [[(2,), (1, 4), (2, 2), (3, 1, 1)]]  # by length, each once, and none the second time


def test_no_text_runs_nothing() -> None:
    assert encode_distinct(Tokens([], []), str, lambda sequences: 1 / 0, FeatureCache()) == []  # type: ignore
