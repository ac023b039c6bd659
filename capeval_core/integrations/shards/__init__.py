"""Collections in shards: each shard is scored into one Parquet file, which is written whole or not at all.

A row that cannot be scored costs itself alone. `plan` finds shards and their targets, `score` scores one,
`run` scores many; `merge`, `check`, `histogram` and `filter` read the outputs.
"""

from __future__ import annotations

from capeval_core.integrations.shards.check import ShardCheck, check_shards
from capeval_core.integrations.shards.filter import Rule, filter_shards, rule_of, write_uids
from capeval_core.integrations.shards.histogram import ScoreHistogram, score_histogram
from capeval_core.integrations.shards.merge import merge_shards
from capeval_core.integrations.shards.score import ShardResult, score_shard
from capeval_core.integrations.shards.scorer import BatchScorer

__all__ = [
    "BatchScorer",
    "Rule",
    "ScoreHistogram",
    "ShardCheck",
    "ShardResult",
    "check_shards",
    "filter_shards",
    "merge_shards",
    "rule_of",
    "score_histogram",
    "score_shard",
    "write_uids",
]
