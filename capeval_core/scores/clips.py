"""CLIP-S and RefCLIP-S: the same scores on OpenAI's CLIP, with w = 2.5.

Hessel, Holtzman, Forbes, Le Bras, Choi: CLIPScore: A Reference-free Evaluation Metric for Image Captioning,
EMNLP 2021, https://arxiv.org/abs/2104.08718
"""

from __future__ import annotations

from dataclasses import dataclass

from capeval_core.options import option
from capeval_core.scores.pac import PacOptions, PacS, RefPacS
from capeval_core.weights.catalogue import CLIP_B32

_PAPER = (
    "Hessel et al., CLIPScore: A Reference-free Evaluation Metric for Image Captioning, EMNLP 2021, "
    "https://arxiv.org/abs/2104.08718"
)
_BIBTEX = """\
@inproceedings{hessel2021clipscore,
  title     = {{CLIPScore}: A Reference-free Evaluation Metric for Image Captioning},
  author    = {Hessel, Jack and Holtzman, Ari and Forbes, Maxwell and Le Bras, Ronan and Choi, Yejin},
  booktitle = {Proceedings of the 2021 Conference on Empirical Methods in Natural Language Processing},
  year      = {2021}
}"""


@dataclass(frozen=True, kw_only=True)
class ClipsOptions(PacOptions):
    """Options of CLIP-S and RefCLIP-S."""

    w: float = option(2.5, "scale of the score, w of section 3", sign="w", minimum=0)


class ClipS(PacS):
    """CLIP-S: w max(cos(caption, image), 0), without references."""

    name = "clips"
    title = "CLIP-S"
    key = "clip_s"
    summary = "Cosine of caption and image in OpenAI's CLIP space."
    paper = _PAPER
    bibtex = _BIBTEX
    range = (0.0, 2.5)
    PROMPT = "A photo depicts "
    default_weights = CLIP_B32
    published = ()  # the tables at hand do not say with which w and prompt CLIP-S was computed
    Options = ClipsOptions


class RefClipS(RefPacS):
    """RefCLIP-S: harmonic mean of CLIP-S and the nearest reference's cosine."""

    name = "refclips"
    title = "RefCLIP-S"
    key = "refclip_s"
    free_key = ClipS.key
    summary = "Harmonic mean of CLIP-S and the cosine of the caption with its nearest reference."
    paper = _PAPER
    bibtex = _BIBTEX
    PROMPT = ClipS.PROMPT
    range = (0.0, 10 / 7)  # w = 2.5 and cosines of 1: 2 * 2.5 * 1 / (2.5 + 1)
    default_weights = CLIP_B32
    published = ()  # the tables at hand do not say with which w and prompt CLIP-S was computed
    Options = ClipsOptions
