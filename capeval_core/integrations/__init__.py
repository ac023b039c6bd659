"""Adapters to other libraries; none of them computes a score itself.

`CaptionMetrics` is the `compute_metrics` of a `transformers` Trainer, `reward` a reward function for TRL and
self-critical training, `CocoScores` COCO's caption evaluation by the keys of pycocoevalcap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capeval_core.project import lazy_names

if TYPE_CHECKING:
    from capeval_core.integrations.coco import CocoScores
    from capeval_core.integrations.rewards import reward
    from capeval_core.integrations.trainer import CaptionMetrics

__all__ = ["CaptionMetrics", "CocoScores", "reward"]

# Lazy, so that one integration does not import what another one needs.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CaptionMetrics": "capeval_core.integrations.trainer",
        "CocoScores": "capeval_core.integrations.coco",
        "reward": "capeval_core.integrations.rewards",
    },
)
