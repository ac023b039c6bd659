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

from capeval_core.errors import Problems, did_you_mean, noting, valid_unicode, wrong_option


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
        """The accepted types and values, as `--help` writes them."""
        names = []
        for member in self.members:
            if isinstance(member, type):
                names.append(_TYPE_NAMES.get(member, member.__name__))
            else:
                names.append(repr(member))
        return " | ".join(names)

    @property
    def default_sign(self) -> str | None:
        """The field of a signature that states the default; None if there is nothing to state."""
        default = self.none_means if self.default is None else self.default
        return None if self.sign is None or default is None else self.signed(default)

    def signed(self, value: object) -> str:
        """`name:value`, as in signatures."""
        return f"{self.sign}:{compact(value)}"

    @property
    def choices(self) -> list[Any]:
        """The accepted values of a Literal."""
        return [member for member in self.members if not isinstance(member, type)]

    def check(self, value: object) -> None:
        """Refuse a value of another type, or out of bounds."""
        refusal = partial(wrong_option, self.name, value)
        expected = f"expected {self.type.replace(' | ', ' or ')}"
        types = [member for member in self.members if isinstance(member, type)]
        if float in types:
            types.append(int)
        if isinstance(value, str) and self.choices:
            if value not in self.choices:
                raise refusal("", expected.removesuffix(" or None"))
            return
        # To Python True is an int; here it is one only where a bool is asked for.
        if not isinstance(value, tuple(types)) or (isinstance(value, bool) and bool not in types):
            raise refusal("", expected, kind=TypeError)
        if isinstance(value, (int, float)):
            self._check_number(value)
        elif isinstance(value, (str, PathLike)):
            self._check_text(os.fspath(value), is_path=PathLike in types)

    def _check_number(self, value: float) -> None:
        """Refuse a number that no file holds, or one below the minimum."""
        if isinstance(value, int) and abs(value) >= 1 << 63:
            raise wrong_option(self.name, value, "is too large a number", "pass a smaller one")
        if self.minimum is not None and not self.minimum <= value < math.inf:
            raise wrong_option(self.name, value, "", f"expected a number of at least {self.minimum:g}")

    def _check_text(self, text: str, *, is_path: bool) -> None:
        """Refuse a path that names no file, and a text that no signature or stamp can hold."""
        fix = "pass a path ('.' is the current folder), or leave the option out"
        if is_path and "\0" in text:
            raise wrong_option(self.name, text, "has a NUL character", fix)
        if is_path and not text and self.default is None:
            raise wrong_option(self.name, text, "is empty", fix)
        is_recorded = self.encodes or self.sign or self.name == "weights"
        if is_recorded and not valid_unicode(text):
            problem = "is not valid Unicode, so no file can record it"
            raise wrong_option(self.name, text, problem, "rename it")


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
    """A field of a class of options; `OptionDescription` explains the arguments."""
    description = OptionDescription(default, help, sign, encodes, minimum, flag, none_means)
    return field(default=default, metadata={"description": description})


_TYPE_NAMES: dict[type, str] = {PathLike: "path", Mapping: "mapping", Sequence: "list", NoneType: "None"}


def _members(hint: Any) -> list[Any]:
    """The alternatives of a type hint: classes, and the values of Literals."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Literal:
        return list(arguments)
    if origin in _TYPE_NAMES:  # a sequence of whatever, a path of whatever
        return [origin]
    if not arguments:
        return [hint]
    members = []
    for argument in arguments:
        members += _members(argument)
    return members


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A dataclass whose fields are made by `option` and checked when they are set."""

    without: ClassVar[tuple[str, ...]] = ()
    """Options of the class's bases that it does not take: no door offers, signs or stamps them. The field
    stays, at its default, so that code for all metrics reads it without asking whether there is one."""

    def __post_init__(self) -> None:
        problems = Problems()
        for name, description in self.describe().items():
            value = getattr(self, name)
            if isinstance(value, np.generic):
                value = value.item()  # a plain number: JSON stamps take no other
                object.__setattr__(self, name, value)
            with noting(problems):
                description.check(value)
        problems.raise_if_any()

    @classmethod
    @cache
    def describe(cls) -> dict[str, OptionDescription]:
        """The options that the class takes, by name."""
        # Cached per class: signatures, stamps and checks ask for it with every metric.
        descriptions = {}
        for spec in fields(cls):
            if spec.name not in cls.without:
                descriptions[spec.name] = cls.description(spec.name)
        return descriptions

    @classmethod
    def description(cls, name: str) -> OptionDescription:
        """The description of an option, also of one that the class is `without`."""
        hint = typing.get_type_hints(cls)[name]
        stated: OptionDescription = cls.__dataclass_fields__[name].metadata["description"]
        return replace(stated, name=name, members=_members(hint))

    @classmethod
    def of(cls, metric: str, keywords: dict[str, Any]) -> Self:
        """Options from keyword arguments; an unknown name is an error with the nearest known one."""
        problems = Problems()
        options = cls.describe().keys()
        for name in keywords:
            if name not in options:
                problem = f"{metric} has no option {name!r}{did_you_mean(name, options)}"
                problems.add(f"{problem} (options: {', '.join(options)})", kind=TypeError)
        problems.raise_if_any()
        # A torch.device becomes its name, so that options can be compared, pickled and printed.
        if type(keywords.get("device")).__module__ == "torch":
            keywords = keywords | {"device": str(keywords["device"])}
        return cls(**keywords)


def compact(value: object) -> str:
    """A value in a signature; a whole number reads alike as an int and as a float."""
    text = str(value)
    if isinstance(value, float):
        text = np.format_float_positional(value + 0.0, trim="-")  # -0.0 is 0
    # `|` separates the fields of a signature; quotes show where any other than a simple text ends.
    return text if re.fullmatch(r"[\w.-]+", text, re.ASCII) else ascii(text).replace("|", r"\x7c")
