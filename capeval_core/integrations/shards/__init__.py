"""Collections in shards: each shard is scored into one Parquet file, which is written whole or not at all.

A row that cannot be scored costs itself alone. `plan` finds shards and their targets, `score` scores one,
`run` scores many; `merge`, `check` and `histogram` read the outputs.
"""

from __future__ import annotations

from capeval_core.integrations.shards.check import ShardCheck, check_shards
from capeval_core.integrations.shards.histogram import ScoreHistogram, score_histogram
from capeval_core.integrations.shards.merge import merge_shards
from capeval_core.integrations.shards.score import ShardResult, score_shard
from capeval_core.integrations.shards.scorer import BatchScorer

__all__ = [
    "BatchScorer",
    "ScoreHistogram",
    "ShardCheck",
    "ShardResult",
    "check_shards",
    "merge_shards",
    "score_histogram",
    "score_shard",
]
