"""ECO: of the captions proposed for an image the best, by an ensemble of CLIPs and their consensus.

Jeong, Lee, Nam, Ma, Kang: Technical Report of NICE Challenge at CVPR 2024: Caption Re-ranking Evaluation
Using Ensembled CLIP and Consensus Scores, CVPR 2024 Workshops, https://arxiv.org/abs/2405.01028

`ranking` is the paper's formulas, on plain numbers; `members` are the networks of the ensemble; `metric`
joins both.
"""

from capeval_core.scores.eco.members import MATCHER, MEMBER_ROW, PRESETS, Matcher, Member
from capeval_core.scores.eco.metric import Eco, EcoOptions
from capeval_core.scores.eco.ranking import (
    CONSENSUS_WEIGHT,
    ENSEMBLE_WEIGHT,
    PAPER,
    RELEASED,
    THRESHOLD,
    Ranking,
    Rules,
    bad_format,
    choose_caption,
    standardise,
    total_score,
)

__all__ = [
    "CONSENSUS_WEIGHT",
    "ENSEMBLE_WEIGHT",
    "MATCHER",
    "MEMBER_ROW",
    "PAPER",
    "PRESETS",
    "RELEASED",
    "THRESHOLD",
    "Eco",
    "EcoOptions",
    "Matcher",
    "Member",
    "Ranking",
    "Rules",
    "bad_format",
    "choose_caption",
    "standardise",
    "total_score",
]
