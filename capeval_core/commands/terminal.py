"""Terminal output and argument parsing: messages on stderr, text in columns, parsers, and Ctrl-C."""

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from string import Template
from typing import Any, NoReturn, TypeVar

from capeval_core import errors
from capeval_core.errors import did_you_mean
from capeval_core.options import OptionDescription
from capeval_core.project import __version__

_Number = TypeVar("_Number", int, float)
_WIDEST = 100  # lines longer than this are hard to read
_WRAPPING: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def complain(message: str) -> None:
    """One message to the user, on stderr."""
    # stdout is for results, which go into files and other programs.
    print(f"capeval: {message}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """A note on stderr about odd input that changes no number; nothing after --quiet."""
    if errors.wants_notes():
        complain(f"note: {message}")


def terminal_width() -> int:
    """Characters per line: the terminal's, 80 where there is none."""
    return min(shutil.get_terminal_size().columns, _WIDEST)


def table(rows: Sequence[Sequence[str]], *, indent: str = "", wrap: bool = True) -> str:
    """Rows of cells in aligned columns; the last column is wrapped to the terminal."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns[:-1]]
    # Two blanks part the columns; the lines of a wrapped cell begin where its first one does:
    #
    #     METRIC  RANGE  TITLE
    #     pacs    0..2   a title that is longer
    #                    than the terminal
    margin = len(indent) + sum(widths) + 2 * len(widths)
    # On a narrow terminal the last column keeps 20 characters and runs over the edge: one of 3 is unreadable.
    space = max(terminal_width() - margin, 20) if wrap else sys.maxsize
    lines = []
    for row in rows:
        start = indent
        for cell, width in zip(row, widths, strict=False):
            start += f"{cell:<{width}}  "
        first_line, *more_lines = textwrap.wrap(row[-1], space, **_WRAPPING) or [""]
        lines.append((start + first_line).rstrip())
        for line in more_lines:
            lines.append(" " * margin + line)
    return "\n".join(lines)


def summary(*rows: Sequence[str]) -> None:
    """Print the outcome of a command, in lines that are not wrapped."""
    # A signature or a path is copied whole; a line break in it would be copied, too.
    print(table(rows, wrap=False), flush=True)


def paragraph(text: str, indent: str = "") -> str:
    """Text wrapped to the terminal; long addresses stay whole."""
    indents: Any = {"initial_indent": indent, "subsequent_indent": indent}
    return textwrap.fill(text, terminal_width(), **indents, **_WRAPPING)


# arguments


def _number(
    kind: Callable[[str], _Number], is_valid: Callable[[_Number], bool], expected: str
) -> Callable[[str], _Number]:
    """A reader of numbers of a kind that are valid."""

    def number(text: str) -> _Number:
        value = kind(text)  # argparse turns its ValueError into a message
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {text}")
        return value

    return number


def _setting(text: str) -> tuple[str, str, Any]:
    """The metric, the option and the value of METRIC.OPTION=VALUE."""
    match = re.fullmatch(r"([^.=]+)\.([^=]+)=(.*)", text, re.DOTALL)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected METRIC.OPTION=VALUE, e.g. pacs.device=cuda, found {text}")
    # JSON for numbers, truth values and lists; what is none is a text, which so needs no quotes in a shell.
    value: Any = match[3]
    with suppress(json.JSONDecodeError):
        value = json.loads(value)
    return match[1], match[2].replace("-", "_"), value


def names_in(text: str) -> list[str]:
    """The names that commas separate."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _input(text: str) -> str:
    """A file to read, by its path or address; `-` is standard input."""
    return text


def _output(text: str) -> Path:
    """A file to write, which no other flag may name."""
    return Path(text)


TYPES: dict[str, Callable[[str], Any]] = {
    "path": Path,
    "input": _input,
    "output": _output,
    "integer": int,
    "number": float,
    "count": _number(int, lambda number: number >= 0, "0 or more"),
    "positive": _number(int, lambda number: number >= 1, "at least 1"),
    "amount": _number(float, lambda number: 0 <= number < math.inf, "a number of at least 0"),
    "probability": _number(float, lambda number: 0 < number < 1, "a number between 0 and 1"),
    "port": _number(int, range(1, 65_536).__contains__, "a number from 1 to 65535"),
    "setting": _setting,
    "names": names_in,
}
"""The reading of a flag's value, by its `type` in `help.toml`."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """argparse's help, without its breaks at the hyphens of addresses and of names of weights."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, **_WRAPPING)


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
            # `--ref` would be --references today, and ambiguous, or another flag, in the next version.
            allow_abbrev=False,
            **settings,
        )
        if self.add_help:
            self.add_argument("--quiet", action="store_true", help="leave out notes; warnings stay")

    def group(self, title: str) -> argparse._ArgumentGroup:
        """The group of flags with this title, which is made where there is none."""
        for group in self._action_groups:
            if group.title == title:
                return group
        return self.add_argument_group(title)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The arguments, or status 2 with a message; files that cannot be written are refused, too."""
        # Before argparse, which complains of a missing argument first, and suggests nothing.
        for argument in arguments:
            name = argument.partition("=")[0]
            if name.startswith("--") and argument != "--" and name not in self._option_string_actions:
                hint = did_you_mean(name, self._option_string_actions, closeness=0.75)
                self.error(f"unknown option {name}{hint}")
        self._refuse_repeated(arguments)
        flags = self.parse_args(arguments)
        files: list[tuple[str, Any]] = []  # the flags that name files so far, and the files
        for action in self._actions:
            value = getattr(flags, action.dest, None)
            # Switches, numbers and names of the Hub are not files.
            if value is None or action.type not in (Path, _input, _output):
                continue
            name = (action.option_strings or [str(action.metavar)])[0]
            # All flags before this one: an output must overwrite neither an input nor another output.
            if action.type is _output:
                check_output(name, value, files)
            for path in value if isinstance(value, list) else [value]:
                files.append((name, path))
        if flags.quiet:
            errors.without_notes()
        return flags

    def _refuse_repeated(self, arguments: Sequence[str]) -> None:
        """Refuse a flag that is given twice where the last one alone would count."""
        counts = Counter(argument.partition("=")[0] for argument in arguments if argument.startswith("--"))
        for action in self._actions:
            times = sum(counts[name] for name in action.option_strings)
            # `_StoreAction` takes the last value; those that extend or append take all.
            if times > 1 and type(action) is argparse._StoreAction:
                self.error(f"{action.option_strings[0]} is given {times} times: give it once")

    def error(self, message: str) -> NoReturn:
        """End with status 2 and the message; argparse would print the whole usage before it."""
        message = message.removeprefix("argument ").replace("expected one argument", "a value is missing")
        complain(f"{message}\n(see {self.prog} --help)")
        self.exit(2)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse what is not among the choices, with the nearest one; of names every single one."""
        choices = list(map(str, action.choices or ()))
        for entry in value if isinstance(value, list) else [value]:
            if choices and str(entry) not in choices:
                hint = did_you_mean(entry, choices) if isinstance(entry, str) else ""
                text = f"invalid choice: {entry!r}{hint} (choose from {', '.join(choices)})"
                raise argparse.ArgumentError(action, text)


def check_output(name: str, out: Path, files: Sequence[tuple[str, Any]] = ()) -> None:
    """Refuse a file that could not be written, or that another flag names."""
    reason = ""
    if str(out) == "-":
        reason = "standard output shows the summary"
    elif out.is_dir():
        reason = "it is a folder"
    elif not out.parent.is_dir():
        reason = f"there is no folder {out.parent}"
    else:
        for flag_name, path in files:
            # Resolved: a link, or another spelling, is the same file.
            if Path(path).resolve() == out.resolve():
                reason = f"it is the file of {flag_name}, which it would overwrite"
                break
    if not reason and not os.access(out if out.exists() else out.parent, os.W_OK):
        reason = "it cannot be written (permission denied)"
    if reason:
        raise ValueError(f"{name} {out}: {reason}: name another file")


@cache
def help_texts() -> dict[str, Any]:
    """The texts of `--help`, of `help.toml`."""
    return tomllib.loads(Path(__file__).with_name("help.toml").read_text(encoding="utf-8"))


def _filled(value: Any, words: Mapping[str, object]) -> Any:
    """A part of `help.toml` with `words` in place of `$name`."""
    if isinstance(value, dict):
        filled = {}
        for key, part in value.items():
            filled[_filled(key, words)] = _filled(part, words)  # names of flags hold words, too
        return filled
    if not isinstance(value, str):
        return value
    shared = {"files": help_texts()["files"]["epilog"], "shards": help_texts()["collection"]["epilog"]}
    return Template(value).substitute({**shared, **words})


def parser_of(command: str, *tables: str, options: Sequence[Any] = (), **words: object) -> Parser:
    """The parser of a command, of tables of `help.toml`, where `words` take the place of `$name`; and of
    classes of options, each a group under what its docstring says first."""
    texts: dict[str, Any] = {}
    groups: list[tuple[str, dict[str, Any]]] = []
    for name in tables or (command,):
        for key, part in _filled(help_texts()[name], words).items():
            if isinstance(part, dict):
                groups.append((key, part))
            elif isinstance(part, str) and key != "what":
                texts[key] = part
    parser = Parser(command, **texts)
    for title, flags in groups:
        for name, entry in flags.items():
            group = parser if title == "arguments" else parser.group(title)
            # Most flags are a text alone: `"--json FILE" = "..."`.
            flag(group, name, **(entry if isinstance(entry, dict) else {"help": entry}))
    for class_ in options:
        add_options(parser, (class_.__doc__ or "").partition(".")[0], {"": class_})
    return parser


def kinds_of(command: str, *names: str) -> dict[str, str]:
    """The kinds of a command by name, and the sentence of `help.toml` about each."""
    return {name: help_texts()[f"{command} {name}"]["about"] for name in names}


def first_named(
    arguments: list[str], command: str, choices: Mapping[str, str], *, open_ended: bool = False
) -> tuple[str, list[str]]:
    """The first argument and the arguments after it; without one the help, or an error.

    choices: names with a text each. open_ended: other names pass, too.
    """
    texts = _filled(help_texts()[command or "capeval"], {})
    what, usage, more = (texts.pop(name, "") for name in ("what", "usage", "epilog"))
    hint = f"`{f'capeval {command}'.strip()} {what} --help` says more. {more}"
    parser = Parser(command, f"{what} {usage}", epilog=hint, **texts)
    if not command:
        parser.add_argument("--version", action="version", version=f"capeval {__version__}")
    names_with_texts = table([*choices.items()], indent="  ")
    parser.epilog = f"{what}:\n{names_with_texts}\n\n{parser.epilog}"
    names = None if open_ended else [*choices]
    parser.add_argument("name", metavar=what, nargs="?", choices=names, help=argparse.SUPPRESS)
    first = arguments[:1]
    # The rest is for the parser of what is named, which knows its own flags.
    name = (parser.parse_known_args(first)[0] if command else parser.read(first)).name
    if name is None:
        parser.error(f"{what} is missing: name one of {', '.join(choices)}")
    return name, arguments[1:]


def flag(group: argparse._ActionsContainer, name: str, help: str, **settings: Any) -> None:
    """A flag or an argument, with the word for its value: `--out FOLDER`; hidden without a text.

    settings: `type`, one of `TYPES`, a text without it; the others are argparse's.
    """
    name, _, word = name.partition(" ")
    kind = TYPES[settings.pop("type")] if "type" in settings else str
    # `--out FOLDER` takes a value, `--force` alone is a switch.
    if word:
        settings = {"metavar": word, "type": kind, **settings}
    elif name.startswith("-"):
        settings = {"action": "store_true", **settings}
    choices = word[1:-1] if word.startswith("{") else settings.get("choices")
    if isinstance(choices, str):
        settings["choices"] = choices.split(",")
    if settings.get("nargs") == "+" and name.startswith("-"):
        settings["action"] = "extend"  # a flag that is repeated adds its values
    if "required" in settings:
        settings["required"] = bool(settings["required"])
    group.add_argument(*name.split(","), help=help or argparse.SUPPRESS, **settings)


def add_options(
    parser: Parser, title: str, classes: Mapping[str, Any], leave_out: Collection[str] = ()
) -> None:
    """A flag for every option of classes of `Settings`, of metrics by name; each is for all that have it.

    The options class, not the flag, checks values and knows the defaults.
    """
    flags: dict[str, list[tuple[str, Any]]] = {}
    for metric, class_ in classes.items():
        for option in class_.describe().values():
            if option.flag and option.name not in leave_out:
                flags.setdefault(option.name, []).append((metric, option))
    for name, entries in flags.items():
        # An option of several metrics is one flag, with their texts where these differ.
        option = entries[0][1]
        metrics_of_text: dict[str, list[str]] = {}  # in the order of the metrics
        for metric, option_of_metric in entries:
            metrics_of_text.setdefault(_help_of(option_of_metric), []).append(metric)
        texts = []
        for text, metrics in metrics_of_text.items():
            texts.append(text if len(metrics) == len(classes) else f"{', '.join(metrics)}: {text}")
        # Suppressed: a flag that is not given is no argument at all, so that the class's default holds.
        settings: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": "; ".join(texts)}
        flag_name = name.replace("_", "-")
        # A text is the name of a switch to the option's only value: --exif-turn for exif="turn".
        if isinstance(option.flag, str):
            flag_name = option.flag
            settings |= {"action": "store_const", "const": option.choices[0]}
        elif option.type == "bool":
            settings["action"] = argparse.BooleanOptionalAction if option.default else "store_true"
        elif option.choices:
            settings["metavar"] = "NAME"
        kinds = option.type.split(" | ")
        if "int" in kinds:
            settings |= {"type": int, "metavar": "N"}
        if "float" in kinds:
            settings |= {"type": float, "metavar": "X"}
        parser.group(title).add_argument(f"--{flag_name}", **settings)


def _help_of(option: OptionDescription) -> str:
    """The help of an option's flag, with its default and its choices."""
    # A help text names what None means; here None is a flag that is not given. argparse formats by `%`.
    text: str = option.help.replace("None: ", "default: ").replace("%", "%%")
    if option.type != "bool" and option.default not in (None, ""):
        text += f" (default: {option.default})"
    if option.choices and not isinstance(option.flag, str):
        text += f"; one of {', '.join(map(str, option.choices))}"
    return text


# Ctrl-C ends the process at once until work begins that is kept, and then raises as Python does it

INTERRUPTED = 130
"""Exit status of an interrupted command, as shells report it."""


def leave(*_: object) -> None:
    """Handle SIGINT where nothing is lost: imports of C++ would not survive an exception."""
    os.write(2, b"capeval: interrupted\n")  # not print: the interrupted code may hold stderr's lock
    os._exit(INTERRUPTED)


@contextmanager
def interruptible(how: str) -> Iterator[None]:
    """Let an interrupt of the block say how the command is resumed."""
    leaves = signal.getsignal(signal.SIGINT) is leave
    try:
        if leaves:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {how}") from None
    finally:
        if leaves:
            # A second Ctrl-C may come just before the handler is changed: the first one says enough.
            with suppress(KeyboardInterrupt):
                signal.signal(signal.SIGINT, leave)


def resuming(rows: object, flag: str = "--rows FOLDER") -> str:
    """Advice on resuming a run that keeps its rows in a folder, or in none."""
    if rows is None:
        return f"with {flag} a run can be resumed"
    return f"rows are kept in {rows}: run the same command again to resume"
