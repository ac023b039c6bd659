"""Dual encoders of any make: the right class for a folder of weights."""

from __future__ import annotations

from capeval_core.encoders.alpha_clip import AlphaClipEncoder
from capeval_core.encoders.clip import ClipEncoder
from capeval_core.encoders.eva_clip import EvaClipEncoder
from capeval_core.encoders.open_clip import OpenClipEncoder, is_plain
from capeval_core.weights.clip import translate_open_clip
from capeval_core.weights.folder import OPEN_CLIP_TENSORS, WeightsError, WeightsFolder

DualEncoder = ClipEncoder | AlphaClipEncoder
"""A text tower and an image tower into one space (other encoders are kinds of `ClipEncoder`)."""
_CLASSES: tuple[type[DualEncoder], ...] = (ClipEncoder, OpenClipEncoder, EvaClipEncoder, AlphaClipEncoder)


def dual_class(folder: WeightsFolder) -> type[DualEncoder]:
    """The encoder class of a weights folder, by its config.

    Raises:
        WeightsError: it is no dual encoder that is known here.
    """
    if folder.tensor_file.name == OPEN_CLIP_TENSORS:
        return (
            ClipEncoder if is_plain(translate_open_clip(folder.config)["architecture"]) else OpenClipEncoder
        )
    kind = folder.config.get("encoder")
    by_kind = {encoder.kind: encoder for encoder in _CLASSES}
    if not isinstance(kind, str) or kind not in by_kind:
        expected = ", ".join(map(repr, by_kind))
        raise WeightsError(f"weights {folder.name!r} are of encoder {kind!r}, expected one of {expected}")
    return by_kind[kind]
