"""Where weights live: Hub repositories, and the original releases that they are converted from."""

from __future__ import annotations

import os
from dataclasses import dataclass

NAMESPACE = os.environ.get("CAPEVAL_NAMESPACE", "capeval")
"""The Hub namespace of everything that this project publishes."""


@dataclass(frozen=True)
class WeightsEntry:
    """A Hub repository of weights.

    repository: id on the Hub.
    original: where the authors' own release lives.
    checkpoint: file name of that release, None if the repository is the authors' or a known mirror.
    licence: as its authors state it, None if they state none.
    activation: what the weights were trained with; a repository that says otherwise is refused.
    """

    repository: str
    title: str
    original: str
    checkpoint: str | None
    licence: str | None
    activation: str

    def how_to_convert(self, metric: str) -> str:
        """The exact way to these weights when the Hub repository cannot be had; '' without one."""
        if self.checkpoint is None:
            return ""
        folder = self.repository.rsplit("/", 1)[-1]
        return (
            f"The original release is {self.checkpoint} at {self.original} ; download it, run\n"
            f"    capeval convert {metric} {self.checkpoint} --activation {self.activation} --out {folder}\n"
            f"and pass weights={folder!r}."
        )


_PACSCORE = "https://github.com/aimagelab/pacscore"
_PLUSPLUS = "https://ailb-web.ing.unimore.it/publicfiles/pac++"
_OPENAI = "https://github.com/openai/CLIP"

PACS_B32 = WeightsEntry(
    f"{NAMESPACE}/pacs-clip-vit-b-32", "PAC-S, CLIP ViT-B/32", _PACSCORE, "clip_ViT-B-32.pth", None, "quick_gelu"
)
PACS_OPENCLIP_L14 = WeightsEntry(
    f"{NAMESPACE}/pacs-openclip-vit-l-14",
    "PAC-S, OpenCLIP ViT-L/14",
    _PACSCORE,
    "openClip_ViT-L-14.pth",
    None,
    "gelu",
)
PACSPP_B32 = WeightsEntry(
    f"{NAMESPACE}/pacs-plusplus-clip-vit-b-32",
    "PAC-S++, CLIP ViT-B/32",
    f"{_PLUSPLUS}/PAC++_clip_ViT-B-32.pth",
    "PAC++_clip_ViT-B-32.pth",
    None,
    "quick_gelu",
)
PACSPP_L14 = WeightsEntry(
    f"{NAMESPACE}/pacs-plusplus-clip-vit-l-14",
    "PAC-S++, CLIP ViT-L/14",
    f"{_PLUSPLUS}/PAC++_clip_ViT-L-14.pth",
    "PAC++_clip_ViT-L-14.pth",
    None,
    "quick_gelu",
)
CLIP_B32 = WeightsEntry(
    "timm/vit_base_patch32_clip_224.openai", "OpenAI CLIP ViT-B/32", _OPENAI, None, "MIT", "quick_gelu"
)
CLIP_B16 = WeightsEntry(
    "timm/vit_base_patch16_clip_224.openai", "OpenAI CLIP ViT-B/16", _OPENAI, None, "MIT", "quick_gelu"
)
CLIP_L14 = WeightsEntry(
    "timm/vit_large_patch14_clip_224.openai", "OpenAI CLIP ViT-L/14", _OPENAI, None, "MIT", "quick_gelu"
)

WEIGHTS: tuple[WeightsEntry, ...] = (
    PACS_B32,
    PACS_OPENCLIP_L14,
    PACSPP_B32,
    PACSPP_L14,
    CLIP_B32,
    CLIP_B16,
    CLIP_L14,
)


def entry_of(repository: str) -> WeightsEntry | None:
    """The catalogue's entry of a Hub repository id (ids ignore case), None if it is not listed."""
    return next((entry for entry in WEIGHTS if entry.repository.lower() == repository.lower()), None)
