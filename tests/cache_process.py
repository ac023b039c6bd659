"""What each of several processes does with a shared disk; it imports next to nothing, to start fast."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capeval_core.cache import FeatureCache


def row(key: str, length: int = 4) -> NDArray[np.float32]:
    """The feature of a key, always the same."""
    seed = int.from_bytes(key.encode(), "little")
    return np.random.default_rng(seed).random(length, dtype=np.float32)


def put_some(folder: Path, start: int) -> int:
    """Put and get 60 features, some of which other processes put too."""
    cache = FeatureCache(folder=folder)
    for i in range(start, start + 60, 3):
        keys = [f"{j:03}" for j in range(i, i + 10)]
        cache.put({key: row(key) for key in keys})
        assert cache.get(keys).keys() == set(keys)
    return start
