"""What stands in a terminal: parsers of arguments, messages on stderr, text in columns, and Ctrl-C."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from string import Template
from typing import Any, NoReturn

from capeval_core import errors
from capeval_core.errors import did_you_mean
from capeval_core.project import __version__

_WIDEST = 100  # lines longer than this are hard to read
_WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def complain(message: str) -> None:
    """One message to the user, on stderr."""
    print(f"capeval: {message}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """What is odd about the input and changes no number, on stderr; nothing after --quiet."""
    if errors.wants_notes():
        complain(f"note: {message}")


def terminal_width() -> int:
    """Characters per line: the terminal's, 80 where there is none."""
    return min(shutil.get_terminal_size().columns, _WIDEST)


def table(rows: Sequence[Sequence[str]], *, indent: str = "", wrap: bool = True) -> str:
    """Rows of cells in aligned columns; the last column is wrapped to the terminal."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    left = len(indent) + sum(widths) + 2 * len(widths)
    space = max(terminal_width() - left, 20) if wrap else sys.maxsize
    lines = []
    for row in rows:
        head = indent + "".join(f"{cell:<{wide}}  " for cell, wide in zip(row, widths, strict=False))
        first, *more = textwrap.wrap(row[-1], space, **_WHOLE_WORDS) or [""]
        lines += [(head + first).rstrip(), *(" " * left + line for line in more)]
    return "\n".join(lines)


def summary(*rows: Sequence[str]) -> None:
    """Print what came out, in lines that are not wrapped."""
    print(table(rows, wrap=False), flush=True)


def paragraph(text: str, indent: str = "") -> str:
    """Text wrapped to the terminal; long addresses stay whole."""
    indents: Any = {"initial_indent": indent, "subsequent_indent": indent}
    return textwrap.fill(text, terminal_width(), **indents, **_WHOLE_WORDS)


# arguments


def _number(kind: Callable[[str], Any], fits: Callable[[Any], bool], expected: str) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        if not fits(value := kind(text)):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text}")
        return value

    return number


def _setting(text: str) -> tuple[str, str, Any]:
    found = re.fullmatch(r"([^.=]+)\.([^=]+)=(.*)", text, re.DOTALL)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected METRIC.OPTION=VALUE, e.g. pacs.device=cuda, found {text}")
    value: Any = found[3]
    with suppress(json.JSONDecodeError):
        value = json.loads(value)
    return found[1], found[2].replace("-", "_"), value


TYPES: dict[str, Callable[[str], Any]] = {
    "FILE": Path,
    "FOLDER": Path,
    "OUT": Path,
    "Path": Path,
    "N": int,
    "X": float,
    "COUNT": _number(int, lambda number: number >= 0, "0 or more"),
    "WORKERS": _number(int, lambda number: number >= 1, "at least 1"),
    "GPUS": _number(float, lambda number: 0 <= number < math.inf, "a number of at least 0"),
    "LEVEL": _number(float, lambda number: 0 < number < 1, "a number between 0 and 1"),
    "PORT": _number(int, range(1, 65_536).__contains__, "a number from 1 to 65535"),
    "METRIC.OPTION=VALUE": _setting,
    "NAMES": lambda text: [name.strip() for name in text.split(",") if name.strip()],
}  # of a flag's value, by the word that stands for it


class _Help(argparse.RawDescriptionHelpFormatter):
    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, **_WHOLE_WORDS)


class Parser(argparse.ArgumentParser):
    """argparse with whole flags only, a suggestion for a misspelt one, and one-line errors."""

    def __init__(
        self, command: str, usage: str | None = None, about: str = "", epilog: str = "", **settings: Any
    ) -> None:
        prog = f"capeval {command}".strip()
        super().__init__(
            prog=prog,
            usage=None if usage is None else f"{prog} {usage}",
            description="\n".join(map(paragraph, about.split("\n"))),
            epilog="\n\n".join(map(paragraph, filter(None, epilog.split("\n")))),
            formatter_class=partial(_Help, max_help_position=26, width=terminal_width()),
            allow_abbrev=False,
            **settings,
        )
        if self.add_help:
            self.add_argument("--quiet", action="store_true", help="leave out notes; warnings stay")

    def group(self, title: str) -> argparse._ArgumentGroup:
        """The group of flags with this title, which is made where there is none."""
        there = [group for group in self._action_groups if group.title == title]
        return there[0] if there else self.add_argument_group(title)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The arguments, or status 2 with a message; files that cannot be written are refused, too."""
        for name in (one.partition("=")[0] for one in arguments if one.startswith("--") and one != "--"):
            if name not in self._option_string_actions:
                hint = did_you_mean(name, self._option_string_actions, closeness=0.75)
                self.error(f"unknown option {name}{hint}")
        self._refuse_repeated(arguments)
        flags, files = self.parse_args(arguments), list[tuple[str, Any]]()
        for action in self._actions:
            value = getattr(flags, action.dest, None)
            if value is not None and (action.type is Path or action.metavar == "FILE"):
                name = (action.option_strings or [str(action.metavar)])[0]
                if action.metavar in ("OUT", "BEST.csv"):  # which are written
                    check_output(name, value, files)
                files += [(name, path) for path in (value if action.nargs else [value])]
        if flags.quiet:
            errors.without_notes()
        return flags

    def _refuse_repeated(self, arguments: Sequence[str]) -> None:
        """Refuse a flag that is given twice where the last one alone would count."""
        given_flags = Counter(
            argument.partition("=")[0] for argument in arguments if argument.startswith("--")
        )
        for action in self._actions:
            times = sum(given_flags[name] for name in action.option_strings)
            # `_StoreAction` takes the last value; those that extend or append take all.
            if times > 1 and type(action) is argparse._StoreAction:
                self.error(f"{action.option_strings[0]} is given {times} times: give it once")

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ").replace("expected one argument", "a value is missing")
        complain(f"{message}\n(see {self.prog} --help)")
        self.exit(2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        known = list(map(str, action.choices or ()))
        for one in value if isinstance(value, list) else [value]:
            if known and str(one) not in known:
                hint = did_you_mean(one, known) if isinstance(one, str) else ""
                text = f"invalid choice: {one!r}{hint} (choose from {', '.join(known)})"
                raise argparse.ArgumentError(action, text)


def check_output(name: str, out: Path, files: Sequence[tuple[str, Any]] = ()) -> None:
    """Refuse a file that could not be written, or that another flag names."""
    same = next((flag for flag, path in files if Path(path).resolve() == out.resolve()), "")
    writable = os.access(out if out.exists() else out.parent, os.W_OK)
    reasons = {
        "standard output shows the summary": str(out) == "-",
        "it is a folder": out.is_dir(),
        f"there is no folder {out.parent}": not out.parent.is_dir(),
        f"it is the file of {same}, which it would overwrite": bool(same),
        "it cannot be written (permission denied)": not writable,
    }
    if reason := next((reason for reason, fails in reasons.items() if fails), ""):
        raise ValueError(f"{name} {out}: {reason}: name another file")


@cache
def help_texts() -> dict[str, Any]:
    """`words.toml`: what `--help` says."""
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


def _filled(value: Any, words: Mapping[str, object]) -> Any:
    """A part of `words.toml` with `words` in place of `$name`."""
    if isinstance(value, dict):
        return {_filled(key, words): _filled(own, words) for key, own in value.items()}
    shared = {"files": help_texts()["files"]["epilog"], "shards": help_texts()["collection"]["epilog"]}
    return Template(value).substitute({**shared, **words}) if isinstance(value, str) else value


def parser_of(command: str, *tables: str, options: Sequence[Any] = (), **words: object) -> Parser:
    """The parser of a command, of tables of `words.toml`, where `words` take the place of `$name`; and of
    classes of options, each a group under what its docstring says first."""
    merged: dict[str, Any] = {}
    groups: list[tuple[str, dict[str, Any]]] = []
    for name in tables or (command,):
        found = _filled(help_texts()[name], words)
        groups += [(title, own) for title, own in found.items() if isinstance(own, dict)]
        merged |= {key: text for key, text in found.items() if isinstance(text, str) and key != "what"}
    parser = Parser(command, **merged)
    for title, flags in groups:
        for name, entry in flags.items():
            group = parser if title == "arguments" else parser.group(title)
            flag(group, name, **(entry if isinstance(entry, dict) else {"help": entry}))
    for class_ in options:
        add_options(parser, (class_.__doc__ or "").partition(".")[0], {"": class_})
    return parser


def kinds_of(command: str, *names: str) -> dict[str, str]:
    """What a command may do, and what `words.toml` says of each."""
    return {name: help_texts()[f"{command} {name}"]["about"] for name in names}


def first_named(
    arguments: list[str], command: str, known: Mapping[str, str], *, others: bool = False
) -> tuple[str, list[str]]:
    """The first argument, one of `known` or of `others`, and the rest; without one the help, or an error."""
    texts = _filled(help_texts()[command or "capeval"], {})
    what, usage, more = (texts.pop(name, "") for name in ("what", "usage", "epilog"))
    hint = f"`{f'capeval {command}'.strip()} {what} --help` says more. {more}"
    parser = Parser(command, f"{what} {usage}", epilog=hint, **texts)
    if not command:
        parser.add_argument("--version", action="version", version=f"capeval {__version__}")
    listed = table([*known.items()], indent="  ")
    parser.epilog = f"{what}:\n{listed}\n\n{parser.epilog}"
    choices = None if others else [*known]
    parser.add_argument("name", metavar=what, nargs="?", choices=choices, help=argparse.SUPPRESS)
    first = arguments[:1]
    name = (parser.parse_known_args(first)[0] if command else parser.read(first)).name
    if name is None:
        parser.error(f"{what} is missing: name one of {', '.join(known)}")
    return name, arguments[1:]


def flag(group: argparse._ActionsContainer, name: str, help: str, **settings: Any) -> None:
    """A flag or an argument, with the word for its value: `--out FOLDER`; hidden without a text."""
    name, _, value = name.partition(" ")
    kind = TYPES.get(settings.pop("type", value), str)
    if value:
        settings = {"metavar": value, "type": kind, **settings}
    elif name.startswith("-"):
        settings = {"action": "store_true", **settings}
    choices = value[1:-1] if value.startswith("{") else settings.get("choices")
    if isinstance(choices, str):
        settings["choices"] = choices.split(",")
    if settings.get("nargs") == "+" and name.startswith("-"):
        settings["action"] = "extend"  # a flag that is given twice counts twice
    if "required" in settings:
        settings["required"] = bool(settings["required"])
    group.add_argument(*name.split(","), help=help or argparse.SUPPRESS, **settings)


def add_options(parser: Parser, title: str, classes: Mapping[str, Any], leave_out: Any = ()) -> None:
    """A flag for every option of classes of `Settings`, of metrics by name; each is for all that have it.

    The options class, not the flag, checks values and knows the defaults.
    """
    flags: dict[str, list[tuple[str, Any]]] = {}
    for metric, class_ in classes.items():
        for option in class_.describe().values():
            if option.flag and option.name not in leave_out:
                flags.setdefault(option.name, []).append((metric, option))
    for name, own in flags.items():
        option = own[0][1]
        texts: dict[str, list[str]] = {}
        for metric, other in own:
            texts.setdefault(_help_of(other), []).append(metric)
        parts = [
            text if len(metrics) == len(classes) else f"{', '.join(metrics)}: {text}"
            for text, metrics in texts.items()
        ]
        shape: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": "; ".join(parts)}
        flag_name = name.replace("_", "-")
        if isinstance(option.flag, str):
            flag_name = option.flag
            shape |= {"action": "store_const", "const": option.choices[0]}
        elif option.type == "bool":
            shape["action"] = argparse.BooleanOptionalAction if option.default else "store_true"
        elif option.choices:
            shape["metavar"] = "NAME"
        for number, letter in (("int", "N"), ("float", "X")):
            if number in option.type.split(" | "):
                shape |= {"type": TYPES[letter], "metavar": letter}
        parser.group(title).add_argument(f"--{flag_name}", **shape)


def _help_of(option: Any) -> str:
    # A help text names what None means; here None is a flag that is not given.
    text: str = option.help.replace("None: ", "default: ").replace("%", "%%")
    if option.type != "bool" and option.default not in (None, ""):
        text += f" (default: {option.default})"
    listed = option.choices and not isinstance(option.flag, str)
    return text + (f"; one of {', '.join(map(str, option.choices))}" if listed else "")


# Ctrl-C ends the process at once until work begins that is kept, and then raises as Python does it

INTERRUPTED = 130
"""Exit status of an interrupted command, as shells report it."""


def leave(*_: object) -> None:
    """Handle SIGINT where nothing is lost: imports of C++ would not survive an exception."""
    os.write(2, b"capeval: interrupted\n")
    os._exit(INTERRUPTED)


@contextmanager
def interruptible(how: str) -> Iterator[None]:
    """Let an interrupt of the block say how the command goes on."""
    leaves = signal.getsignal(signal.SIGINT) is leave
    try:
        if leaves:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {how}") from None
    finally:
        if leaves:
            with suppress(KeyboardInterrupt):
                signal.signal(signal.SIGINT, leave)


def resuming(rows: object, flag: str = "--rows FOLDER") -> str:
    """How a run goes on that keeps its rows in a folder, or in none."""
    if rows is None:
        return f"with {flag} a run can be resumed"
    return f"rows are kept in {rows}: run the same command again to resume"
