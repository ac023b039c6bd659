"""Folders of positives, written as `capeval augment` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from capeval_core.training.positive_shards import PositiveShards, Shard
from capeval_core.training.positives import CAPTION, IMAGE, Positive


def write_positives(
    folder: Path, positives: Sequence[Positive], settings: Mapping[str, Any], number: int = 0
) -> None:
    """A shard of each kind that is among the positives, with these settings."""
    for kind in (CAPTION, IMAGE):
        own = [positive for positive in positives if positive.kind == kind]
        if own:
            PositiveShards(folder, kind, settings).write(number, Shard(dict(enumerate(own))))
