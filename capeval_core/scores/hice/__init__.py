"""HICE-S and RefHICE-S: regions of the image matched with phrases of the caption, beside both as a whole.

Zeng, Sun, Zhang, Wen, Su, Xie, Wang, Chen: HICEScore: A Hierarchical Metric for Image Captioning Evaluation,
ACM Multimedia 2024, https://doi.org/10.1145/3664647.3681358

The authors released no code. The choices that their paper leaves open are options, with reasons.
"""

from capeval_core.scores.hice.metric import HiceOptions, HiceS, RefHiceOptions, RefHiceS

__all__ = ["HiceOptions", "HiceS", "RefHiceOptions", "RefHiceS"]
