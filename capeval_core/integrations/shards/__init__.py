"""Score one shard of a collection: one file in, one Parquet file out, whole or not at all."""

from capeval_core.integrations.shards.folder import (
    ScoreHistogram,
    ShardCheck,
    check_shards,
    merge_shards,
    score_histogram,
)
from capeval_core.integrations.shards.shard import BatchScorer, ShardResult, score_shard

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
