"""Wrong values in few words, for messages."""

from __future__ import annotations

import math
import numbers
import os
from pathlib import Path, PurePath
from typing import Any


def described(value: Any, *, none: str = "None") -> str:
    """A wrong value in few words: `the number 5`, `a list of length 3`; `none` is what None is called."""
    if value is None:
        return none
    if isinstance(value, bool):
        return f"the bool {value}"
    if isinstance(value, numbers.Number):
        return f"the number {_shown_number(value)}"
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    try:
        return f"{article} {kind} of length {len(value)}"
    except Exception:  # a length of the user's own may fail in any way
        return f"{article} {kind}"


def shown(value: Any) -> str:
    """A value as Python writes it; numbers as `_shown_number`, paths as texts."""
    if isinstance(value, int):
        return _shown_number(value)
    try:
        return repr(str(value) if isinstance(value, PurePath) else value)
    except ValueError:  # an integer in it has thousands of digits
        return described(value)


def _shown_number(value: Any) -> str:
    """A number in at most 40 characters or so; Python does not print integers of thousands of digits.

    >>> _shown_number(5), _shown_number(-(10**5000)), _shown_number(True)
    ('5', '-1e5000 or so', 'True')
    """
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return f"{'-' if value < 0 else ''}1e{int(math.log10(abs(value)))} or so"
    digits = str(value)
    return digits if len(digits) <= 40 else f"{digits[:40]}..."


def expanded_path(path: str | os.PathLike[str]) -> Path:
    """The path with the user's folder in place of `~`; that of an unknown user stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no such user
        return Path(path)


def signed(value: float, *digits: int) -> str:
    """A difference with its sign: the first of so many digits (4, else 8) that show that it is not 0.

    >>> signed(0.5), signed(-0.00001), signed(0.0001, 3)
    ('+0.5000', '-0.00001000', '+1.0e-04')
    """
    texts = (f"{value:+.{number}f}" for number in digits or (4, 8))
    return next((text for text in texts if float(text) or not value), f"{value:+.1e}")


def minus(text: str) -> str:
    """Numbers as readers of a page expect them: with minus signs in place of hyphens."""
    return text.replace("-", "\N{MINUS SIGN}")


def p_in_words(p_value: float, level: float) -> str:
    """`p < 0.001`, or `p = 0.012` with as many digits as show on which side of 1 - level it lies."""
    if p_value < 0.001:
        return "p < 0.001"
    limit = round(1 - level, 12)
    for digits in range(3, 12):
        if (round(p_value, digits) < limit) == (p_value < 1 - level):
            return f"p = {p_value:.{digits}f}"
    return f"p = {p_value:.3f}"
