from capeval_core.integrations.coco import CocoScores as CocoScores
from capeval_core.integrations.rewards import reward as reward
from capeval_core.integrations.trainer import CaptionMetrics as CaptionMetrics

__all__: list[str]
