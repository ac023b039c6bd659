"""What a misspelt name was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, closeness: float = 0.6) -> str:
    """`: did you mean 'x'?` for the closest known name, else an empty string.

    >>> did_you_mean("pasc", ["pacs", "clips"])
    ": did you mean 'pacs'?"
    """
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=closeness)
    return f": did you mean {close[0]!r}?" if close else ""


def which_choice(value: str, choices: Iterable[str]) -> str:
    """The same for one of a few choices, which a message lists anyway: only those of its first letter count.

    >>> which_choice("fp16", ["float32", "bfloat16", "float16"]), which_choice("relu", ["quick_gelu", "gelu"])
    (": did you mean 'float16'?", '')
    """
    first = value[:1].lower()
    return did_you_mean(value, (choice for choice in choices if choice.startswith(first)), closeness=0.5)
