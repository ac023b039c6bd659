"""Options as frozen dataclasses, from which keywords, flags, signatures and tables are generated."""

from __future__ import annotations

import math
import os
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from os import PathLike
from types import NoneType
from typing import Any, ClassVar, Literal, Self

import numpy as np

from capeval_core.errors import Problems, did_you_mean, noting, wrong_option
from capeval_core.inputs.files import valid_unicode


@dataclass(frozen=True)
class OptionDescription:
    """One option, and what it accepts: `members` are classes, and values of a Literal."""

    default: Any
    help: str  # one sentence for `--help`, cards and docstrings
    sign: str | None = None  # its name in the signature, for options that move the score
    encodes: bool = False  # whether rows depend on it, so that rows on disk of another value are refused
    minimum: float | None = None  # the least number allowed
    flag: bool | str = True  # whether the command line has a flag for it; or a switch for its only value
    none_means: Any = None  # the usual value behind None, of an option that is filled in as the metric opens
    name: str = ""
    members: Sequence[Any] = ()

    @property
    def type(self) -> str:
        names = [_TYPE_NAMES.get(m, m.__name__) if isinstance(m, type) else repr(m) for m in self.members]
        return " | ".join(names)

    @property
    def default_sign(self) -> str | None:
        """How a signature would state the default; None where it has nothing to state."""
        usual = self.none_means if self.default is None else self.default
        return None if self.sign is None or usual is None else self.signed(usual)

    def signed(self, value: Any) -> str:
        """`name:value`, as in signatures."""
        return f"{self.sign}:{compact(value)}"

    @property
    def choices(self) -> list[Any]:
        return [member for member in self.members if not isinstance(member, type)]

    def check(self, value: Any) -> None:
        """Refuse a value of another type, or out of bounds."""
        wrong = partial(wrong_option, self.name, value)
        expected = f"expected {self.type.replace(' | ', ' or ')}"
        types = tuple(member for member in self.members if isinstance(member, type))
        accepted: Any = (*types, int) if float in types else types
        if isinstance(value, str) and self.choices:
            if value not in self.choices:
                raise wrong("", expected.removesuffix(" or None"))
        elif not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            raise wrong("", expected, kind=TypeError)
        elif isinstance(value, int) and abs(value) >= 1 << 63:
            raise wrong("is too large a number", "pass a smaller one")
        elif self.minimum is not None and value is not None and not self.minimum <= value < math.inf:
            raise wrong("", f"expected a number of at least {self.minimum:g}")
        elif isinstance(value, (str, PathLike)):
            text = os.fspath(value)
            if PathLike in types and ("\0" in text or (not text and self.default is None)):
                found = "has a NUL character" if text else "is empty"
                raise wrong(found, "pass a path ('.' is the current folder), or leave the option out")
            if (self.encodes or self.sign or self.name == "weights") and not valid_unicode(text):
                raise wrong("is not valid Unicode, so no file can record it", "rename it")


def option(
    default: Any,
    help: str,
    *,
    sign: str | None = None,
    encodes: bool = False,
    minimum: float | None = None,
    flag: bool | str = True,
    none_means: Any = None,
) -> Any:
    """A field of a class of options; what the arguments mean stands in `OptionDescription`."""
    about = OptionDescription(default, help, sign, encodes, minimum, flag, none_means)
    return field(default=default, metadata={"about": about})


_TYPE_NAMES: dict[type, str] = {PathLike: "path", Mapping: "mapping", Sequence: "list", NoneType: "None"}


def _members(hint: Any) -> list[Any]:
    """The alternatives of a type hint: classes, and the values of Literals."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return list(arguments)
    if origin in _TYPE_NAMES:
        return [origin]
    return [member for argument in arguments for member in _members(argument)] or [hint]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A dataclass whose fields are made by `option` and checked when they are set."""

    without: ClassVar[tuple[str, ...]] = ()
    """Options of the class's bases that it does not take: no door offers, signs or stamps them. The field
    stays, at its default, so that code for all metrics reads it without asking whether there is one."""

    def __post_init__(self) -> None:
        problems = Problems()
        for one in self.describe().values():
            value = getattr(self, one.name)
            if isinstance(value, np.generic):
                value = value.item()  # the plain value that it holds
                object.__setattr__(self, one.name, value)
            with noting(problems):
                one.check(value)
        problems.raise_if_any()

    @classmethod
    @cache
    def describe(cls) -> dict[str, OptionDescription]:
        """The options that the class takes, by name."""
        return {name: cls.description(name) for name in _names(cls) if name not in cls.without}

    @classmethod
    def description(cls, name: str) -> OptionDescription:
        """The description of an option, also of one that the class is `without`."""
        hint = typing.get_type_hints(cls)[name]
        stated: OptionDescription = cls.__dataclass_fields__[name].metadata["about"]
        return replace(stated, name=name, members=_members(hint))

    @classmethod
    def of(cls, whose: str, keywords: dict[str, Any]) -> Self:
        """Options from keyword arguments; an unknown name is an error with the nearest known one."""
        known, problems = cls.describe().keys(), Problems()
        for name in [name for name in keywords if name not in known]:
            found = f"{whose} has no option {name!r}{did_you_mean(name, known)}"
            problems.add(f"{found} (options: {', '.join(known)})", kind=TypeError)
        problems.raise_if_any()
        if type(keywords.get("device")).__module__ == "torch":
            keywords = keywords | {"device": str(keywords["device"])}
        return cls(**keywords)


def _names(options: type[Settings]) -> list[str]:
    return [field.name for field in fields(options)]


def compact(value: Any) -> str:
    """A value in a signature; a whole number reads alike as an int and as a float."""
    text = str(value)
    if isinstance(value, float):
        text = np.format_float_positional(value + 0.0, trim="-")  # -0.0 is 0
    # `|` separates the fields of a signature; quotes show where any other than a simple text ends.
    return text if re.fullmatch(r"[\w.-]+", text, re.ASCII) else ascii(text).replace("|", r"\x7c")
