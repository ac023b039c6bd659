"""Problems with what a user hands in: data first, words last.

A check adds a `Problem` for everything that is wrong, `Problems.raise_if_any` raises one error that carries
them all, and each door puts them into its own words: `str(error)` is in Python's, which are `Words`.
"""

from __future__ import annotations

import difflib
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from capeval_core.values import described, has_nul, shown

Index = int | str | tuple[int | str, ...] | None
Kind = type[ValueError] | type[TypeError]

SHOWN = 20
"""Lines of a message at most: a wrong folder can make a million of them."""
NAMED = 3
"""Indices that are named in one line of equal problems."""


@dataclass(frozen=True)
class Setting:
    """An option with a value, as advice. `before` leads to it, and goes where a door has no such option."""

    name: str
    value: Any
    before: str = ""


@dataclass(frozen=True)
class Argument:
    """An argument, or a position in it, inside of a text."""

    name: str
    index: Index = None


class Detail(str):
    """Words for programmers, which a page leaves out."""


class InPython(Detail):
    """Words for programmers in Python, which the command line leaves out, too."""


Piece = str | Setting | Argument
Text = Piece | tuple[Piece, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    argument: its name in Python, or the path of a file; '' where `found` says it all.
    index: position in the argument: `3`, `(3, 1)`, `(17, "bytes")`, or a part of a file such as `line 3`.
    found: what is wrong, behind `verb`; without one, behind a colon. fix: what to do about it.
    value: of an option, shown beside its name; `...` where the problem is not about one.
    kind: the error that it is if it is the only one. source: the file that it is in, where `argument` is an
        option.
    """

    argument: str
    index: Index
    found: Text
    fix: Text = ""
    verb: str = "is"
    value: Any = ...
    kind: Kind = ValueError
    source: str = ""

    def changed(self, change: Callable[[Piece], Piece]) -> Problem:
        """The same with each piece of its texts changed."""
        found, fix = (tuple(map(change, pieces_of(text))) for text in (self.found, self.fix))
        return replace(self, found=found, fix=fix)


def pieces_of(text: Text) -> tuple[Piece, ...]:
    return text if isinstance(text, tuple) else (text,)


class Words:
    """How a door speaks of problems; a door overrides what it calls arguments and options. Here: Python.

    >>> fix = ("write a caption", Setting("empty", "score", " or pass "))
    >>> Words().line(Problem("captions", 3, "empty", fix))
    'captions[3] is empty: write a caption or pass empty="score"'
    """

    def argument(self, argument: str, index: Index) -> str:
        """`captions[3][1]`."""
        if index is None or isinstance(index, str):
            return argument if index is None else f"{argument}: {index}"
        path = index if isinstance(index, tuple) else (index,)
        return argument + "".join(f'["{step}"]' if isinstance(step, str) else f"[{step}]" for step in path)

    def option(self, name: str, value: Any) -> str:
        """`batch_size=0`."""
        return f"{name}={shown(value)}"

    def setting(self, setting: Setting) -> str:
        """`pass empty="score"`."""
        value = setting.value
        quoted = f'"{value}"' if isinstance(value, str) and not set(value) & set('"\\') else shown(value)
        return f"{setting.before}{setting.name}={quoted}"

    def piece(self, piece: Piece) -> str:
        """A part of a text in this door's words."""
        if isinstance(piece, str):
            return piece
        if isinstance(piece, Argument):
            return self.argument(piece.name, piece.index)
        return self.setting(piece)

    def text(self, text: Text) -> str:
        return "".join(map(self.piece, pieces_of(text)))

    def line(self, problem: Problem, indices: Sequence[Index] = ()) -> str:
        """A problem, at all of these indices where there are several."""
        found, fix = self.text(problem.found), self.text(problem.fix)
        indices = indices or [problem.index]
        if problem.value is not ...:
            subjects = [self.option(problem.argument, problem.value)]
        elif isinstance(problem.index, str):
            subjects = list(map(str, indices))
        else:
            subjects = list(dict.fromkeys(self.argument(problem.argument, index) for index in indices))
        verb = problem.verb if len(subjects) == 1 else _PLURAL.get(problem.verb, problem.verb)
        subject = _listed(subjects)
        if isinstance(problem.index, str):
            subject = self.argument(problem.argument, subject)
        statement = f"{subject} {verb} {found}" if verb else ": ".join(filter(None, [subject, found]))
        return ": ".join(filter(None, [problem.source, statement, fix]))

    def message(self, problems: Problems) -> str:
        """One problem in a line, several as a list."""
        lines = [self.line(problem, indices) for problem, indices in problems.groups.values()]
        if len(lines) + problems.more == 1:
            return lines[0]
        title = f"{len(lines) + problems.more} problems with the input:"
        return "\n  ".join([title, *lines, *([f"and {problems.more:,} more"] if problems.more else [])])

    def of(self, error: BaseException) -> str:
        """The message of any error or warning, in these words if it carries problems or a text."""
        if isinstance(error, ProblemsError):
            return self.message(error.problems)
        return self.text(error.text) if isinstance(error, InputWarning) else str(error)


_PLURAL = {"is": "are", "has": "have"}


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["a"]), _listed(["a", "b"]), _listed("abcde")
    ('a', 'a and b', 'a, b, c and 2 more')
    """
    more = len(names) - NAMED
    rest = [f"{more:,} more"] if more > 0 else []
    *most, last = [*names[:NAMED], *rest]
    return f"{', '.join(most)} and {last}" if most else last


class Problems:
    """Problems with one input, which become one exception.

    A user who hands in a thousand captions wants to fix all of them at once, not one per run. So each check
    adds its problem here and goes on; `raise_if_any` then raises one error that lists them. Problems that
    differ in their index only are one line.

    >>> problems = Problems()
    >>> problems.raise_if_any()
    >>> for index in (3, 5, 8):
    ...     problems.add(Problem("captions", index, "empty", "write a caption"))
    >>> problems.add(Problem("captions", 7, "the number 5", "captions are strings", kind=TypeError))
    >>> problems.raise_if_any()
    Traceback (most recent call last):
    capeval_core.errors.InputError: 2 problems with the input:
      captions[3], captions[5] and captions[8] are empty: write a caption
      captions[7] is the number 5: captions are strings
    """

    def __init__(self, problems: Iterable[Problem | str] = ()) -> None:
        self.more = 0
        """Number of problems beyond the first `SHOWN` that differ."""
        self.groups: dict[tuple[object, ...], tuple[Problem, list[Index]]] = {}
        """Problems that differ, with all of their indices."""
        self._kinds: set[Kind] = set()
        for problem in problems:
            self.add(problem)

    def add(self, problem: Problem | str, kind: Kind = ValueError) -> None:
        """Note a problem; a text names its argument by itself and is of that kind."""
        if isinstance(problem, str):
            problem = Problem("", None, problem, verb="", kind=kind)
        self._kinds.add(problem.kind)
        # Its line without the index; a value need not be hashable, but its repr is.
        alone = Words().line(replace(problem, index=None))
        key = (alone, type(problem.index), problem.argument, problem.kind)
        if key in self.groups:
            self.groups[key][1].append(problem.index)
        elif len(self.groups) < SHOWN:
            self.groups[key] = problem, [problem.index]
        else:
            self.more += 1

    def extend(self, problems: Problems) -> None:
        """Note the problems of another error."""
        for problem in problems:
            self.add(problem)
        self.more += problems.more
        self._kinds |= problems._kinds

    def __iter__(self) -> Iterator[Problem]:
        return (replace(problem, index=index) for problem, at in self.groups.values() for index in at)

    def __len__(self) -> int:
        return sum(len(indices) for _, indices in self.groups.values()) + self.more

    def raise_if_any(self) -> None:
        """Raise one error with all problems: of their common kind; TypeError if all are; else ValueError."""
        if self.groups:
            raise self.error()

    def error(self) -> ProblemsError:
        """The error that carries these problems."""
        kind, *others = self._kinds
        if not others and issubclass(kind, ProblemsError):
            return kind(self)
        types = all(issubclass(kind, TypeError) for kind in self._kinds)
        return InputTypeError(self) if types else InputError(self)


class ProblemsError(Exception):
    """An error that carries its problems."""

    def __init__(self, problems: Problems | Problem | str) -> None:
        self.problems = problems if isinstance(problems, Problems) else Problems([problems])
        super().__init__(self.problems)

    def __str__(self) -> str:
        return Words().message(self.problems)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def change(self, change: Callable[[Problem], Problem]) -> None:
        """Change all of its problems."""
        changed = Problems(map(change, self.problems))
        changed.more += self.problems.more
        changed._kinds |= self.problems._kinds
        self.problems, self.args = changed, (changed,)


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


class InputWarning(UserWarning):
    """A warning about what a user handed in, which doors put into their own words."""

    def __init__(self, text: Text) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return Words().text(self.text)


def warn(message: str | InputWarning) -> None:
    """Warn at the user's line: the nearest that is neither this package's nor evaluate's."""
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in ("capeval_core", "evaluate"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def file_problem(
    path: str | os.PathLike[str], found: Text, fix: Text = "", *, index: str | None = None, verb: str = ""
) -> Problem:
    """A problem with a file or a folder, or with a part of a file such as `line 3`."""
    return Problem(os.fspath(path), index, found, fix, verb, kind=FileError)


def wrong_option(
    name: str, value: Any, found: Text, fix: Text = "", *, verb: str = "is", kind: Kind = ValueError
) -> ProblemsError:
    """The error about the value of an option, to be raised.

    >>> raise wrong_option("rows", "a.txt", "a file", "pass a folder for the rows")
    Traceback (most recent call last):
    capeval_core.errors.InputError: rows='a.txt' is a file: pass a folder for the rows
    """
    return Problems([Problem(name, None, found, fix, verb, value, kind)]).error()


def in_file(path: str | os.PathLike[str], error: ValueError) -> ValueError:
    """An error whose message begins with the path of the file that it is about."""
    if not isinstance(error, ProblemsError):
        return ValueError(f"{os.fspath(path)}: {error}")
    error.change(lambda problem: replace(problem, source=os.fspath(path)))
    return error


@contextmanager
def renamed(**names: str) -> Iterator[None]:
    """Let errors of the block call arguments otherwise: `with renamed(captions="predictions")`."""

    def change(piece: Piece) -> Piece:
        return piece if isinstance(piece, str) else replace(piece, name=names.get(piece.name, piece.name))

    try:
        yield
    except ProblemsError as error:
        error.change(lambda p: replace(p.changed(change), argument=names.get(p.argument, p.argument)))
        raise


NUL = ("a NUL character, which no path can have", "leave it out")
"""What such a path has, and the fix."""


def refuse_nul(path: str | os.PathLike[str]) -> None:
    """Raise FileError for a path of a file or folder that has a NUL character."""
    if has_nul(path):
        raise FileError(file_problem(repr(os.fspath(path)), *NUL, verb="has"))


def folder_path(argument: str, value: Any) -> Path:
    """The path of a folder that a user names; whether anything is there is not looked at.

    Raises:
        InputTypeError, InputError: a value that is no path, an empty path, or one with a NUL character.

    >>> folder_path("rows", "")
    Traceback (most recent call last):
    capeval_core.errors.InputError: rows='' is empty: pass the path of a folder, or None for none ('.' is the
    current folder)
    """
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        fix = "pass the path of a folder, or None"
        raise wrong_option(argument, value, described(value), fix, kind=TypeError)
    path = os.fspath(value)
    if not path:
        fix = "pass the path of a folder, or None for none ('.' is the current folder)"
        raise wrong_option(argument, path, "empty", fix)
    if has_nul(path):
        raise wrong_option(argument, path, *NUL, verb="has")
    return Path(path)


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
