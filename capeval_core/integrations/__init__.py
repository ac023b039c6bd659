"""Adapters to other libraries; none of them computes a score itself.

`CaptionMetrics` is the `compute_metrics` of a `transformers` Trainer, `Answers` its processor for chat
captioners, `reward` a reward function for TRL and self-critical training, `CocoScores` COCO's caption
evaluation by the keys of pycocoevalcap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capeval_core.project import lazy_names

if TYPE_CHECKING:
    from capeval_core.integrations.answers import Answers
    from capeval_core.integrations.coco import CocoScores
    from capeval_core.integrations.rewards import reward
    from capeval_core.integrations.trainer import CaptionMetrics
else:  # imported where they are used, so that one integration does not import what another one needs
    _HOMES = {
        "Answers": "integrations.answers",
        "CaptionMetrics": "integrations.trainer",
        "CocoScores": "integrations.coco",
        "reward": "integrations.rewards",
    }
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = ["Answers", "CaptionMetrics", "CocoScores", "reward"]
