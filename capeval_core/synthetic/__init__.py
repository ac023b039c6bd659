"""Synthetic scenes of coloured shapes: the world on which `tiny` is trained and the demo runs."""

from capeval_core.synthetic.captions import KINDS, describe, foil, foils, holds
from capeval_core.synthetic.drawing import draw, masks
from capeval_core.synthetic.scenes import Scene, SceneObject, sample_scene

__all__ = [
    "KINDS",
    "Scene",
    "SceneObject",
    "describe",
    "draw",
    "foil",
    "foils",
    "holds",
    "masks",
    "sample_scene",
]
