"""Reading arguments and complaining, the same way in all commands."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from capeval_core.commands.tables import terminal_width
from capeval_core.errors import did_you_mean

_IN_OUR_WORDS = [
    (re.compile(r"^argument (\S+): invalid int value: '(.*)'$"), r"\1 \2: expected a whole number"),
    (re.compile(r"^argument (\S+): invalid float value: '(.*)'$"), r"\1 \2: expected a number"),
    (re.compile(r"^argument (\S+): expected one argument$"), r"\1: a value is missing"),
]
"""What argparse says, and how the other messages of the command line say such things."""


def complain(message: str) -> None:
    """One message to the user, on stderr."""
    print(f"capeval: {message}", file=sys.stderr)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=terminal_width())


class Parser(argparse.ArgumentParser):
    """argparse with whole flags only, a suggestion for a misspelt one, and one-line errors."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Formatter, allow_abbrev=False, **settings)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The arguments; anything wrong ends the program with status 2 and a message."""
        unknown = [a.partition("=")[0] for a in arguments if a.startswith("--") and not self._knows(a)]
        if unknown:
            hint = did_you_mean(unknown[0], self._option_string_actions)
            self.error(f"unknown option {unknown[0]}{hint}")
        return self.parse_args(arguments)

    def error(self, message: str) -> NoReturn:
        for theirs, ours in _IN_OUR_WORDS:
            message = theirs.sub(ours, message)
        complain(f"{message}\n(see {self.prog} --help)")
        self.exit(2)

    def _knows(self, argument: str) -> bool:
        return argument == "--" or argument.partition("=")[0] in self._option_string_actions
