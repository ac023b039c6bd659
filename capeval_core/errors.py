"""Problems with what a user hands in: where, what is wrong, and what to do; all of them in one error.

A door (Python, the command line, a page) says once what it calls arguments and options, by `naming`; `at`,
`wrong_option` and `setting` then spell them so when a problem is found.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from capeval_core.values import described, shown

Index = int | str | tuple[int | str, ...] | None
"""Position in an argument: `3`, `(3, 1)`, `(17, "bytes")`, or a part of a file such as `line 3`."""
Kind = type[ValueError] | type[TypeError]

SHOWN = 20
"""Lines of a message at most: a wrong folder can make a million of them."""
NAMED = 3
"""Places that are named in one line of equal problems."""
_VERB = re.compile(
    r"^(is|are|has|have|holds|names|needs|gives|fills|lacks|begins|cannot (be|run)|could not be|does not)\b"
)
_PLURAL = {"is": "are", "has": "have"}


# what a door calls arguments and options


@dataclass(frozen=True)
class Names:
    """What a door calls things.

    names: arguments and options by their names in Python; one that ends with `=` is written with its value.
    flags: whether options are those of a command. row: what a place in an argument is called; None: as in
    Python. advice: how an option is set; None: by its name and value.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    flags: bool = False
    row: Callable[[str, Sequence[int | str]], str] | None = None
    advice: Callable[[str, Any], str] | None = None


_DOOR: ContextVar[Names] = ContextVar("names", default=Names())  # noqa: B039  (frozen)


@contextmanager
def naming(names: Mapping[str, str] | None = None, **door: Any) -> Iterator[None]:
    """Name things so in the block, `naming({"captions": "predictions"})`; `door`: fields of `Names`."""
    outer = _DOOR.get()
    inner = {name: outer.names.get(new, new) for name, new in (names or {}).items()}
    token = _DOOR.set(replace(outer, names={**outer.names, **inner}, **door))
    try:
        yield
    finally:
        _DOOR.reset(token)


def at(argument: str, index: Index = None) -> str:
    """An argument or a place in it, as the door calls it.

    >>> at("captions", (3, 1)), at("images", (17, "bytes")), at("good.json", "line 3")
    ('captions[3][1]', 'images[17]["bytes"]', 'good.json: line 3')
    """
    door = _DOOR.get()
    if index is None or isinstance(index, str):
        name = door.names.get(argument, argument)
        return name if index is None else f"{name}: {index}"
    path = index if isinstance(index, tuple) else (index,)
    return (door.row or place)(argument, path)


def place(argument: str, path: Sequence[int | str]) -> str:
    """A place in an argument as Python writes it."""
    steps = [f'["{step}"]' if isinstance(step, str) else f"[{step}]" for step in path]
    return _DOOR.get().names.get(argument, argument) + "".join(steps)


def _option(name: str, value: Any) -> str:
    """An option with a value that is wrong: `batch_size=0`, or `--batch-size 0`."""
    text = shlex.quote(value) if _DOOR.get().flags and isinstance(value, str) else shown(value)
    return _label(name) + text


def option_name(name: str) -> str:
    """`batch_size`, or `--batch-size`."""
    return _label(name).rstrip("= ")


def setting(name: str, value: Any, before: str = "") -> str:
    """An option with a value as advice; `before` leads to it, and goes where a door has no such option.

    >>> setting("empty", "score", "or pass ")
    'or pass empty="score"'
    >>> with naming(flags=True):
    ...     setting("empty", "score", "or pass ")
    'or pass --empty score'
    """
    door = _DOOR.get()
    if door.advice is not None:
        return door.advice(name, value)
    if door.flags:
        return f"{before}{_label(name)}{shlex.quote(str(value))}"
    quoted = f'"{value}"' if isinstance(value, str) and not set(value) & set('"\\') else shown(value)
    return f"{before}{_label(name)}{quoted}"


def in_python(text: str) -> str:
    """Words for programmers in Python, which other doors leave out."""
    door = _DOOR.get()
    return "" if door.flags or door.advice else text


def _label(name: str) -> str:
    door = _DOOR.get()
    name = door.names.get(name, name)
    if name.endswith("="):
        return name
    return f"--{name.replace('_', '-')} " if door.flags else f"{name}="


# problems


class Problem(NamedTuple):
    """One thing that is wrong; `kind` is the error that it is if it is the only one.

    >>> str(Problem(at("captions", 3), "is empty", "write a caption"))
    'captions[3] is empty: write a caption'
    """

    where: str
    found: str
    fix: str = ""
    kind: Kind = ValueError

    def __str__(self) -> str:
        joint = " " if self.where and _VERB.match(self.found) else ": " if self.where and self.found else ""
        return ": ".join(filter(None, [f"{self.where}{joint}{self.found}", self.fix]))


class Problems:
    """Problems with one input, which become one exception.

    A user who hands in a thousand captions wants to fix all of them at once, not one per run. So each check
    adds its problem here and goes on; `raise_if_any` then raises one error that lists them. Problems that
    differ in their place only are one line.

    >>> problems = Problems()
    >>> problems.raise_if_any()
    >>> for index in (3, 5, 8):
    ...     problems.add(Problem(at("captions", index), "is empty", "write a caption"))
    >>> problems.add(Problem("captions[7]", "is the number 5", "captions are strings", TypeError))
    >>> problems.raise_if_any()
    Traceback (most recent call last):
    capeval_core.errors.InputError: 2 problems with the input:
      captions[3], captions[5] and captions[8] are empty: write a caption
      captions[7] is the number 5: captions are strings
    """

    def __init__(self, problems: Iterable[Problem | str] = ()) -> None:
        self.more = 0
        """Number of problems beyond the first `SHOWN` that differ."""
        self._groups: dict[Problem, list[str]] = {}
        """Problems that differ, without their place, and all of their places."""
        self._kinds: set[Kind] = set()
        for problem in problems:
            self.add(problem)

    def add(self, problem: Problem | str, kind: Kind = ValueError) -> None:
        """Note a problem; a text says by itself where it is, and is of that kind."""
        if isinstance(problem, str):
            problem = Problem("", problem, kind=kind)
        self._kinds.add(problem.kind)
        alone = problem._replace(where="")
        if alone in self._groups:
            self._groups[alone].append(problem.where)
        elif len(self._groups) < SHOWN:
            self._groups[alone] = [problem.where]
        else:
            self.more += 1

    def extend(self, problems: Problems) -> None:
        """Note the problems of another error."""
        for problem in problems:
            self.add(problem)
        self.more += problems.more
        self._kinds |= problems._kinds

    def __iter__(self) -> Iterator[Problem]:
        return (alone._replace(where=where) for alone, places in self._groups.items() for where in places)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values())) + self.more

    def __str__(self) -> str:
        lines = [str(_together(alone, places)) for alone, places in self._groups.items()]
        if len(lines) + self.more == 1:
            return lines[0]
        title = f"{len(lines) + self.more} problems with the input:"
        return "\n  ".join([title, *lines, *([f"and {self.more:,} more"] if self.more else [])])

    def raise_if_any(self) -> None:
        """Raise one error with all problems: of their common kind; TypeError if all are; else ValueError."""
        if self._groups:
            raise self.error()

    def error(self) -> ProblemsError:
        """The error that carries these problems."""
        kind, *others = self._kinds
        if not others and issubclass(kind, ProblemsError):
            return kind(self)
        types = all(issubclass(kind, TypeError) for kind in self._kinds)
        return InputTypeError(self) if types else InputError(self)


def _together(problem: Problem, places: Sequence[str]) -> Problem:
    """Equal problems as one, at the first of all places; those in one file name it once."""
    places = list(dict.fromkeys(places))
    if len(places) == 1:
        return problem._replace(where=places[0])
    files = {where.rpartition(": ")[0] for where in places}
    file = f"{files.pop()}: " if len(files) == 1 and "" not in files else ""
    named, more = [where.removeprefix(file) for where in places[:NAMED]], len(places) - NAMED
    *most, last = [*named, *([f"{more:,} more"] if more > 0 else [])]
    found = _VERB.sub(lambda verb: _PLURAL.get(verb[0], verb[0]), problem.found, count=1)
    return problem._replace(where=f"{file}{', '.join(most)} and {last}", found=found)


class ProblemsError(Exception):
    """An error that carries its problems."""

    def __init__(self, problems: Problems | Problem | str) -> None:
        self.problems = problems if isinstance(problems, Problems) else Problems([problems])
        super().__init__(self.problems)

    def __str__(self) -> str:
        return str(self.problems)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


@contextmanager
def beside(problems: Problems) -> Iterator[None]:
    """Raise these problems together with those of the block, which is run whatever they are."""
    try:
        yield
    except ProblemsError as error:
        problems.extend(error.problems)
    problems.raise_if_any()


class InputError(ProblemsError, ValueError):
    """What a user handed in cannot be used."""


class InputTypeError(ProblemsError, TypeError):
    """What a user handed in is of another type than is needed."""


class FileError(InputError):
    """A file or a folder cannot be read as what it should be. The message begins with its path."""


def warn(message: str) -> None:
    """Warn at the user's line: the nearest that is neither this package's nor evaluate's."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in ("capeval_core", "evaluate"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def file_problem(
    path: str | os.PathLike[str], found: str, fix: str = "", *, index: str | None = None, verb: str = ""
) -> Problem:
    """A problem with a file or a folder, or with a part of a file such as `line 3`."""
    where = os.fspath(path) if index is None else f"{os.fspath(path)}: {index}"
    return Problem(where, f"{verb} {found}".strip(), fix, FileError)


def option_problem(
    name: str, value: Any, found: str, fix: str = "", *, verb: str = "is", kind: Kind = ValueError
) -> Problem:
    """A problem with the value of an option."""
    return Problem(_option(name, value), f"{verb} {found}".strip(), fix, kind)


def wrong_option(
    name: str, value: Any, found: str, fix: str = "", *, verb: str = "is", kind: Kind = ValueError
) -> ProblemsError:
    """The error about the value of an option, to be raised."""
    return Problems([option_problem(name, value, found, fix, verb=verb, kind=kind)]).error()


_NUL = ("has a NUL character, which no path can have", "leave it out")
"""What such a path has, and the fix."""


def path_problem(path: str, *, folder: bool = False) -> tuple[str, str] | None:
    """What is wrong with a path, and the fix, as far as that shows without a look at the disk."""
    if folder and not path:
        return "is empty", "pass the path of a folder, or None for none ('.' is the current folder)"
    return _NUL if "\0" in path else None


def refuse_nul(path: str | os.PathLike[str]) -> None:
    """Raise FileError for a path of a file or folder that has a NUL character."""
    if wrong := path_problem(os.fspath(path)):
        raise FileError(file_problem(repr(os.fspath(path)), *wrong))


def folder_path(argument: str, value: Any) -> Path:
    """The path of a folder that a user names; whether anything is there is not looked at."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        fix = "pass the path of a folder, or None"
        raise wrong_option(argument, value, described(value), fix, kind=TypeError)
    if wrong := path_problem(os.fspath(value), folder=True):
        raise wrong_option(argument, os.fspath(value), *wrong, verb="")
    return Path(value)


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
