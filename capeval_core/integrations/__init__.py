"""Adapters to other libraries; none of them computes a score itself.

`CaptionMetrics` is the `compute_metrics` of a `transformers` Trainer, `reward` a reward function for TRL and
self-critical training, `CocoScores` COCO's caption evaluation by the keys of pycocoevalcap.
"""

from __future__ import annotations

from capeval_core.project import lazy_names

# Their types are in __init__.pyi. Lazy, so that one integration does not import what another one needs.
__all__ = ["CaptionMetrics", "CocoScores", "reward"]

_MODULES = {"CaptionMetrics": "trainer", "CocoScores": "coco", "reward": "rewards"}
__getattr__, __dir__ = lazy_names(__name__, {name: f"integrations.{own}" for name, own in _MODULES.items()})
