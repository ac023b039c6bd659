"""A checkpoint in several files, as transformers saves large models: an index and its shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capeval_core.weights.checkpoint import name_some, read_checkpoint
from capeval_core.weights.folder import read_json

INDEX = ".index.json"
"""How the name of an index ends: `model.safetensors.index.json`, `pytorch_model.bin.index.json`."""


def read_shards(index: Path) -> tuple[dict[str, Any], int]:
    """All tensors of the shards beside an index, left in their files, and the bytes that these take.

    Raises:
        FileNotFoundError: there is no such index, or shards are missing; all of them are named.
        ValueError: the index or a shard cannot be read, or a shard lacks what the index says it holds.
    """
    if not index.exists():
        raise FileNotFoundError(f"{index} does not exist: download the original checkpoint first")
    try:
        places: dict[str, str] = dict(read_json(index)["weight_map"])
        shards = sorted({str(place) for place in places.values()})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{index} is no index of shards ({error}): download it again") from error
    if strange := [shard for shard in shards if Path(shard).name != shard]:
        raise ValueError(f"{index} names files elsewhere ({name_some(strange, 2)}): they must lie beside it")
    if missing := [shard for shard in shards if not (index.parent / shard).is_file()]:
        raise FileNotFoundError(
            f"{index} names {len(shards)} shards, of which {len(missing)} do not lie beside it "
            f"({name_some(missing, 3)}): download them too"
        )
    content: dict[str, Any] = {}
    for shard in shards:
        held = read_checkpoint(index.parent / shard, in_place=True)
        expected = [name for name, place in places.items() if place == shard]
        if lacking := [name for name in expected if name not in held]:
            raise ValueError(f"{index.parent / shard} lacks {name_some(lacking, 3)}: download it again")
        content.update({name: held[name] for name in expected})
    return content, sum((index.parent / shard).stat().st_size for shard in shards)
