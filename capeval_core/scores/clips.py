"""CLIP-S and RefCLIP-S, which are those of `capeval_core.scores.pac` on OpenAI's CLIP, with w = 2.5."""

from capeval_core.scores.pac import ClipS, ClipsOptions, RefClipS

__all__ = ["ClipS", "ClipsOptions", "RefClipS"]
