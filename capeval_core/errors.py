"""Problems with the input: where, what is wrong, and what to do; all of them in one error."""

from __future__ import annotations

import difflib
import inspect
import numbers
import os
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import islice
from os import PathLike
from pathlib import Path, PurePath
from typing import Any, NamedTuple, cast

Index = int | tuple[int | str, ...] | None  # position in an argument: `3`, `(3, 1)`, `(17, "bytes")`
Kind = type[ValueError] | type[TypeError]
_MOST_LINES = 20  # of a message; a thousand problems mostly have one cause
_MOST_PLACES = 3  # that are named in one line
_IRREGULAR_PLURALS = {"is": "are", "has": "have", "does": "do", "cannot": "cannot", "could": "could"}


@dataclass(frozen=True)
class _Names:
    """The names that an interface (Python, the command line, a page) uses in messages, set by `naming`."""

    names: Mapping[str, str]  # `weights=`: written with its value
    flags: bool = False  # whether options are those of a command
    row: Callable[[str, Sequence[int | str]], str] | None = None  # names a place in an argument
    advice: Callable[[str, Any], str] | None = None  # says how an option is set
    notes: bool = True  # whether it wants notes


_DOOR: ContextVar[_Names] = ContextVar("names", default=_Names({}))  # noqa: B039  (frozen)


@contextmanager
def naming(names: Mapping[str, str] | None = None, **door: Any) -> Iterator[None]:
    """Name things so in the block: `naming({"captions": "predictions"}, flags=True)`."""
    outer = _DOOR.get().names
    renamed = dict(outer)
    for name, new_name in (names or {}).items():
        # A door within a door: what it calls `predictions` the outer one may call by yet another name.
        renamed[name] = outer.get(new_name, new_name)
    token = _DOOR.set(replace(_DOOR.get(), names=renamed, **door))
    try:
        yield
    finally:
        _DOOR.reset(token)


def at(argument: str, index: Index = None) -> str:
    """An argument or a place in it, as the door calls it: `captions[3][1]`, `line 4`."""
    if index is None:
        return place(argument, ())
    path = index if isinstance(index, tuple) else (index,)
    name_place = _DOOR.get().row or place
    return name_place(argument, path)


def place(argument: str, path: Sequence[int | str]) -> str:
    """A place in an argument as Python writes it."""
    steps = [f'["{step}"]' if isinstance(step, str) else f"[{step}]" for step in path]
    return _DOOR.get().names.get(argument, argument) + "".join(steps)


def setting(name: str, value: object, before: str = "") -> str:
    """Advice, `empty='score'` or `--empty score`; `before` goes where a door has no such option."""
    advice = _DOOR.get().advice
    return f"{before}{_assigned(name, value)}" if advice is None else advice(name, value)


def _assigned(name: str, value: object) -> str:
    """`empty='score'`, or `--empty score`; an option that is off is `--no-idf`."""
    door = _DOOR.get()
    # A value may have a switch of its own, as `exif='turn'` has --exif-turn.
    switch = door.names.get(f"{name}={value}") if isinstance(value, str) else None
    if switch is not None:
        return switch
    name = door.names.get(name, name)
    text = shlex.quote(value) if door.flags and isinstance(value, str) else shown(value)
    if name.endswith("=") or not door.flags:
        return f"{name.removesuffix('=')}={text}"
    flag = name.replace("_", "-")
    return f"--no-{flag}" if value is False else f"--{flag} {text}"


class Problem(NamedTuple):
    """One thing that is wrong.

    where: the place, such as `captions[3]`. text: what is wrong, a predicate whose subject is the place ("is
    empty"). fix: what to do. kind: the error that it is if it is the only one. sentence: whether the text has
    a subject of its own ("the id is missing"), and so is behind a colon.

    >>> str(Problem("captions[3]", "is empty", "remove it"))
    'captions[3] is empty: remove it'
    >>> str(Problem("a.json", "the id 'x' comes twice", sentence=True))
    "a.json: the id 'x' comes twice"
    """

    where: str
    text: str
    fix: str = ""
    kind: Kind = ValueError
    sentence: bool = False

    def __str__(self) -> str:
        text = self.text
        if self.where and text:
            text = f"{self.where}: {text}" if self.sentence else f"{self.where} {text}"
        elif self.where:
            text = self.where
        return f"{text}: {self.fix}" if text and self.fix else text or self.fix

    def in_plural(self) -> str:
        """The text of several places: the first word of a predicate is its verb."""
        if self.sentence:
            return self.text
        verb, blank, remainder = self.text.partition(" ")
        plural = _IRREGULAR_PLURALS.get(verb, verb.removesuffix("s"))
        return f"{plural}{blank}{remainder}"


class Problems(list[Problem]):
    """Problems with one input, which become one exception: a user wants to fix them all, not one per run."""

    def add(self, problem: Problem | ProblemsError | str, kind: Kind = ValueError) -> None:
        """Note a problem, or those of an error; a text says by itself where it is, and is of that kind."""
        if isinstance(problem, ProblemsError):
            self.extend(problem.problems)
        elif isinstance(problem, str):
            self.append(Problem("", problem, kind=kind, sentence=True))
        else:
            self.append(problem)

    def __str__(self) -> str:
        places: dict[Problem, list[str]] = {}  # of equal problems, which differ by their place alone
        for problem in self:
            places.setdefault(problem._replace(where=""), []).append(problem.where)
        lines = []
        for problem, places_of_problem in islice(places.items(), _MOST_LINES):
            lines.append(str(_together(problem, places_of_problem)))
        if len(places) == 1:
            return lines[0]
        if len(places) > _MOST_LINES:
            lines.append(f"and {len(places) - _MOST_LINES:,} more")
        return "\n  ".join([f"{len(places)} problems with the input:", *lines])

    def raise_if_any(self) -> None:
        if self:
            raise self.error()

    def error(self) -> ProblemsError:
        """One error of their common kind; a TypeError if all are, else a ValueError."""
        kinds = {problem.kind for problem in self}
        if len(kinds) == 1:
            (kind,) = kinds
            # A class of its own, such as FileError, which callers catch: only where it is true of all.
            if issubclass(kind, ProblemsError):
                return kind(self)
        if all(issubclass(kind, TypeError) for kind in kinds):
            return InputTypeError(self)
        return InputError(self)


def _together(problem: Problem, places: Sequence[str]) -> Problem:
    """Equal problems as one, at the first of all places; those in one file name it once."""
    places = list(dict.fromkeys(places))
    if len(places) == 1:
        return problem._replace(where=places[0])
    file = ""
    # `a.json: line 3` and `a.json: line 7` are `a.json: line 3 and line 7`.
    files = {where.rpartition(": ")[0] for where in places}
    if len(files) == 1 and "" not in files:
        file = f"{files.pop()}: "
    named = [where.removeprefix(file) for where in places[:_MOST_PLACES]]
    if len(places) > _MOST_PLACES:
        named.append(f"{len(places) - _MOST_PLACES:,} more")
    *first, last = named
    where = f"{file}{', '.join(first)} and {last}"
    return problem._replace(where=where, text=problem.in_plural())


class ProblemsError(Exception):
    """An error that carries its problems."""

    def __init__(self, problems: Problems | Problem | str) -> None:
        self.problems = Problems()  # which doors collect, together with those of other errors
        for problem in problems if isinstance(problems, Problems) else [problems]:
            self.problems.add(problem)
        super().__init__(self.problems)


@contextmanager
def noting(problems: Problems) -> Iterator[None]:
    """Collect the problems that the block raises about its input, instead of raising them."""
    try:
        yield
    except ProblemsError as error:
        problems.extend(error.problems)


class InputError(ProblemsError, ValueError):
    """The input cannot be used."""


class InputTypeError(ProblemsError, TypeError):
    """The input has a wrong type."""


class FileError(InputError):
    """A file or a folder cannot be read as what it should be. The message begins with its path."""


class Note(UserWarning):
    """A remark on odd input that is scored as it is; other warnings say what may be wrong."""


def wants_notes() -> bool:
    """Return whether the open interface wants notes."""
    return _DOOR.get().notes


def note(message: str) -> None:
    """A `Note` at the user's line, unless the door wants none."""
    if wants_notes():
        warn(message, Note)


def without_notes() -> None:
    """Let the door that is open want no notes from here on."""
    _DOOR.set(replace(_DOOR.get(), notes=False))


def warn(message: str, category: type[UserWarning] = UserWarning) -> None:
    """Warn at the user's line: the nearest that is neither this package's nor evaluate's."""
    frame = inspect.currentframe()
    level = 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in ("capeval_core", "evaluate"):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def file_error(
    path: str | PathLike[str],
    problem: str,
    fix: str = "",
    index: str | None = None,
    *,
    sentence: bool = False,
) -> FileError:
    """The error about a file or a folder, or a part of a file such as `line 3`."""
    where = os.fspath(path) if index is None else f"{os.fspath(path)}: {index}"
    return FileError(Problem(where, problem, fix, FileError, sentence))


def wrong_option(
    name: str, value: object, problem: str, fix: str = "", kind: Kind = ValueError, *, sentence: bool = False
) -> ProblemsError:
    """The error about the value of an option: `batch_size=0 is ...`, or `--batch-size 0 is ...`."""
    return Problems([Problem(_assigned(name, value), problem, fix, kind, sentence)]).error()


def valid_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8; file names that are not UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def expanded_path(path: str | PathLike[str]) -> Path:
    """The path with the user's folder in place of `~`; that of an unknown user stays as it is."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  (pathlib's raises where there is no such user)


def did_you_mean(name: str, names: Iterable[str], *, closeness: float = 0.6) -> str:
    """`: did you mean 'x'?` for the closest known name, else an empty string."""
    close = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=closeness)
    return f": did you mean {close[0]!r}?" if close else ""


def described(value: object, *, none: str = "None") -> str:
    """A wrong value in few words: `the number 5`, `a list of length 3`; `none` is what None is called."""
    if value is None:
        return none
    if isinstance(value, numbers.Number):
        return f"the {'bool' if isinstance(value, bool) else 'number'} {shown(value)}"
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeiou" else "a"
    # Never the value itself: it may be a whole image, or hold what its owner does not want in a log.
    try:
        return f"{article} {kind} of length {len(cast(Sized, value))}"
    except Exception:  # a length of the user's own may fail in any way
        return f"{article} {kind}"


def shown(value: object) -> str:
    """A value as Python writes it, paths as texts, numbers in at most 40 digits."""
    if isinstance(value, PurePath):
        value = str(value)
    try:
        if not isinstance(value, numbers.Number):
            return repr(value)
        text = str(value)
    except ValueError:
        return "of thousands of digits"  # which Python does not print
    return f"{text[:40]}..." if len(text) > 40 else text


def signed(value: float, decimals: int = 4) -> str:
    """A difference with its sign; more decimals where so few would show 0.

    >>> signed(0.25), signed(-0.00034, 3), signed(0.0, 3)
    ('+0.2500', '-0.0003', '+0.000')
    """
    for number in range(decimals, max(decimals, 8) + 1):
        text = f"{value:+.{number}f}"
        if float(text) != 0 or value == 0:
            return text
    return f"{value:+.1e}"


def counted(number: int, noun: str) -> str:
    """A number of things: `1 image`, `1,200 images`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def minus(text: str) -> str:
    """Numbers as readers of a page expect them: with minus signs in place of hyphens."""
    return text.replace("-", "\N{MINUS SIGN}")


def p_in_words(p_value: float, level: float) -> str:
    """`p < 0.001`, or `p = 0.012` with as many digits as show on which side of 1 - level it is."""
    if p_value < 0.001:
        return "p < 0.001"
    limit = round(1 - level, 12)
    for digits in range(3, 12):
        text = f"{p_value:.{digits}f}"
        if (float(text) < limit) == (p_value < limit):
            return f"p = {text}"
    return f"p = {p_value:.3f}"
