"""SPECS: the cosine of image and caption in a Long-CLIP space that was tuned for details.

Chen, Salazar, Kementchedjhieva: SPECS: Specificity-Enhanced CLIP-Score for Long Image Caption Evaluation,
EMNLP 2025, https://arxiv.org/abs/2509.03897
Zhang, Zhang, Dong, Zang, Wang: Long-CLIP: Unlocking the Long-Text Capability of CLIP, ECCV 2024,
https://arxiv.org/abs/2403.15378
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from capeval_core.metric import CommonOptions
from capeval_core.options import option
from capeval_core.registry import facts
from capeval_core.result import Values
from capeval_core.scores.pac import ClipCosine, PromptOptions

Doubles = NDArray[np.float64]


def specs_score(cosine: Doubles, scale: str = "cosine") -> Doubles:
    """The score of cosines of any shape: themselves, in [-1, 1], or on the scale "unit" (cosine + 1) / 2.

    The released evaluation, which prints the published table, compares raw cosines; the README of the code
    shows (cosine + 1) / 2. Both rank captions alike. The table's count of captions differs: it takes a cosine
    that is not above 0 for a missing caption, which no (cosine + 1) / 2 is.

    >>> specs_score(np.array([0.4, -0.1]), "unit")
    array([0.7 , 0.45])
    """
    return (cosine + 1) / 2 if scale == "unit" else cosine


@dataclass(frozen=True, kw_only=True)
class SpecsOptions(PromptOptions):
    """Options of SPECS."""

    scale: Literal["cosine", "unit"] = option(
        "cosine",
        "the score is the `cosine`, as in the published evaluation, or `unit`: (cosine + 1) / 2, as in its "
        "README",
        sign="scale",
    )
    prompt: str | None = option(
        None,
        "put before captions; None: the weights' own, else none",
        sign="prompt",
        encodes=True,
        none_means="",  # unlike CLIP-S, whose prompt its code leaves out
    )


@facts("specs")
class Specs(ClipCosine):
    """SPECS: cos(caption, image), without references; captions of up to 248 tokens are read."""

    Options: ClassVar[type[CommonOptions]] = SpecsOptions
    options: SpecsOptions

    def aggregate(self, rows: pa.Table) -> Values:
        scale = self.options.scale
        cosine = rows["cosine"].to_numpy().astype(np.float64)
        # Negative cosines stay, as in the released evaluation: a clamp would tie the worst captions.
        low = 0.0 if scale == "unit" else -1.0
        return Values(specs_score(cosine, scale), {"cosine": cosine}, range=(low, 1.0))
