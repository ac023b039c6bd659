"""One shard of a collection as a unit of work that cannot go wrong: one file in, one Parquet file out."""

from capeval_core.integrations.shards.folder import (
    ScoreHistogram,
    ShardCheck,
    check_shards,
    merge_shards,
    score_histogram,
)
from capeval_core.integrations.shards.scoring import BatchScorer
from capeval_core.integrations.shards.shard import ShardResult, score_shard

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
