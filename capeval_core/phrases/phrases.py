"""What a source of phrases finds in one caption."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phrases:
    """What one caption says, part by part.

    phrases: in the caption's order, at least one, none twice.
    truncated: how many of its sentences were longer than the parser reads.
    fallback: how many of its sentences stand for themselves, since nothing was found in them.
    """

    phrases: tuple[str, ...]
    truncated: int = 0
    fallback: int = 0
