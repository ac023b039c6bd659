"""What a misspelt name was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`: did you mean 'x'?` for the closest known name, else an empty string.

    >>> did_you_mean("pasc", ["pacs", "clips"])
    ": did you mean 'pacs'?"
    """
    close = difflib.get_close_matches(name.lower(), list(known), n=1)
    return f": did you mean {close[0]!r}?" if close else ""
