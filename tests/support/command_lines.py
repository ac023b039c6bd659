"""Command lines whose flags a test replaces: a flag may stand in a line once."""

from __future__ import annotations

from collections.abc import Sequence


def replaced(line: Sequence[str], flags: Sequence[str]) -> list[str]:
    """A command line with its flags of the same name left out, each with its values, then the flags given."""
    names = {word for word in flags if word.startswith("--")}
    words: list[str] = []
    inside = False
    for word in line:
        if word.startswith("--"):
            inside = word in names
        if not inside:
            words.append(word)
    return [*words, *flags]
