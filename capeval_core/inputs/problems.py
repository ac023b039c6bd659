"""Everything that is wrong with an input, gathered first and raised once; and wrong values in few words."""

from __future__ import annotations

import math
import numbers
import os
from pathlib import Path
from typing import Any

SHOWN = 20


class FileError(ValueError):
    """A file or a folder cannot be read as what it should be. The message begins with its path."""


class Problems:
    """A list of complaints that becomes one exception.

    A user who hands in a thousand captions wants to mend all of them at once, not one per run. So each check
    adds its complaint here and goes on; `raise_if_any` then raises one exception that lists them.

    >>> problems = Problems()
    >>> problems.raise_if_any()
    >>> problems.add('captions[3] is empty: write a caption or pass empty="score"')
    >>> problems.add("captions[7] is the number 5: captions are strings", kind=TypeError)
    >>> problems.raise_if_any()
    Traceback (most recent call last):
    ValueError: 2 problems with the input:
      captions[3] is empty: write a caption or pass empty="score"
      captions[7] is the number 5: captions are strings
    """

    def __init__(self) -> None:
        self.count = 0
        self.shown: list[str] = []  # the first SHOWN only: a wrong folder can make a million of them
        self._kinds: set[type[ValueError] | type[TypeError]] = set()

    def add(self, message: str, kind: type[ValueError] | type[TypeError] = ValueError) -> None:
        """Note one problem. `kind` is the exception that it would be if it were the only one."""
        self.count += 1
        self._kinds.add(kind)
        if len(self.shown) < SHOWN:
            self.shown.append(message)

    def __len__(self) -> int:
        return self.count

    def raise_if_any(self) -> None:
        """Raise what was gathered; do nothing if all is well.

        One problem raises its own kind with its own message. Several raise one exception that lists the first
        20: of their common kind, a TypeError if all are, and a ValueError otherwise.
        """
        if not self.count:
            return
        if self.count == 1:
            raise self._common_kind()(self.shown[0])
        lines = [f"{self.count} problems with the input:", *self.shown]
        if self.count > len(self.shown):
            lines.append(f"and {self.count - len(self.shown):,} more")
        raise self._common_kind()("\n  ".join(lines))

    def _common_kind(self) -> type[ValueError] | type[TypeError]:
        if len(self._kinds) == 1:
            return next(iter(self._kinds))
        return TypeError if all(issubclass(kind, TypeError) for kind in self._kinds) else ValueError


def described(value: Any, *, none: str = "None") -> str:
    """A wrong value in few words: `the number 5`, `a list of length 3`; `none` is what None is called.

    >>> described(5), described(["a dog"]), described(None), described(None, none="null")
    ('the number 5', 'a list of length 1', 'None', 'null')
    """
    if value is None:
        return none
    if isinstance(value, bool):
        return f"the bool {value}"
    if isinstance(value, numbers.Number):
        return f"the number {shown_number(value)}"
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    try:
        return f"{article} {kind} of length {len(value)}"
    except Exception:  # a length of the user's own may fail in any way
        return f"{article} {kind}"


def has_nul(path: str | os.PathLike[str]) -> bool:
    """Whether a path has the one character that no path can have."""
    return "\0" in os.fspath(path)


def nul_in(argument: str | None, path: str | os.PathLike[str]) -> str:
    """The complaint about such a path, which it begins with where there is no argument."""
    begins = "" if argument is None else f"{argument}="
    return f"{begins}{os.fspath(path)!r} has a NUL character, which no path can have: leave it out"


def folder_path(argument: str, value: Any) -> Path:
    """The path of a folder that a user names; whether anything is there is not looked at.

    Raises:
        TypeError, ValueError: a value that is no path, an empty path, or one with a NUL character.

    >>> folder_path("rows", "")
    Traceback (most recent call last):
    ValueError: rows='' is empty: pass the path of a folder, or None for none ('.' is the current folder)
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise TypeError(f"{argument}={value!r} is {described(value)}: pass the path of a folder, or None")
    path = os.fspath(value)
    if not path:
        raise ValueError(
            f"{argument}='' is empty: pass the path of a folder, or None for none ('.' is the current folder)"
        )
    if has_nul(path):
        raise ValueError(nul_in(argument, path))
    return Path(path)


def shown_number(value: Any) -> str:
    """A number in at most 40 characters or so; Python does not print integers of thousands of digits.

    >>> shown_number(5), shown_number(-(10**5000)), shown_number(True)
    ('5', '-1e5000 or so', 'True')
    """
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return f"{'-' if value < 0 else ''}1e{int(math.log10(abs(value)))} or so"
    digits = str(value)
    return digits if len(digits) <= 40 else f"{digits[:40]}..."
