"""Where captions are made and looked at: adapters to other libraries, they hold no formula.

`CaptionMetrics` is the `compute_metrics` of a `transformers` Trainer, `reward` a reward function for TRL and
self-critical training, `CocoScores` COCO's caption evaluation by the keys of pycocoevalcap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capeval_core.integrations.coco import CocoScores
    from capeval_core.integrations.rewards import reward
    from capeval_core.integrations.trainer import CaptionMetrics

__all__ = ["CaptionMetrics", "CocoScores", "reward"]

_HOMES = {
    "CaptionMetrics": "capeval_core.integrations.trainer",
    "CocoScores": "capeval_core.integrations.coco",
    "reward": "capeval_core.integrations.rewards",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that one integration does not import what another one needs.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
