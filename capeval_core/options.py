"""Options as frozen dataclasses, from which keywords, flags, signatures and tables are generated."""

from __future__ import annotations

import math
import os
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, partial
from os import PathLike
from types import NoneType
from typing import Any, ClassVar, Literal, Self

import numpy as np

from capeval_core.cache import FeatureCache
from capeval_core.errors import Problems, did_you_mean, noting, wrong_option
from capeval_core.inputs.samples import Samples, check_samples
from capeval_core.inputs.texts import valid_unicode
from capeval_core.kept import check_folder
from capeval_core.rows import kept_rows


def option(
    default: Any,
    help: str,
    *,
    sign: str | None = None,
    encodes: bool = False,
    minimum: float | None = None,
    flag: bool = True,
) -> Any:
    """A field of an options class.

    help: one sentence for `--help`, cards and docstrings.
    sign: its name in the signature, for options that move the score.
    encodes: whether rows depend on it, so that rows on disk of another value are refused.
    minimum: the least number allowed.
    flag: whether the command line has a flag for it.
    """
    metadata = {"help": help, "sign": sign, "encodes": encodes, "minimum": minimum, "flag": flag}
    return field(default=default, metadata=metadata)


_TYPE_NAMES: dict[type, str] = {PathLike: "path", Mapping: "mapping", Sequence: "list", NoneType: "None"}


def _members(hint: Any) -> list[Any]:
    """The alternatives of a type hint: classes, and the values of Literals."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return list(arguments)
    if origin in _TYPE_NAMES:
        return [origin]
    return [member for argument in arguments for member in _members(argument)] or [hint]


@dataclass(frozen=True)
class OptionDescription:
    """One option in words, and what it accepts: `members` are classes, and values of a Literal."""

    name: str
    default: Any
    members: list[Any]
    help: str
    sign: str | None
    encodes: bool
    minimum: float | None
    flag: bool

    @property
    def type(self) -> str:
        names = [_TYPE_NAMES.get(m, m.__name__) if isinstance(m, type) else repr(m) for m in self.members]
        return " | ".join(names)

    @property
    def choices(self) -> list[Any]:
        return [member for member in self.members if not isinstance(member, type)]

    def check(self, value: Any) -> None:
        """Refuse a value of another type, or out of bounds."""
        wrong = partial(wrong_option, self.name, value, verb="")
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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A dataclass whose fields are made by `option` and checked when they are set."""

    without: ClassVar[tuple[str, ...]] = ()
    """Options of the class's bases that it does not take: no door offers, signs or stamps them."""

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
        hints = typing.get_type_hints(cls)
        return {
            spec.name: OptionDescription(spec.name, spec.default, _members(hints[spec.name]), **spec.metadata)
            for spec in fields(cls)
            if spec.name not in cls.without
        }

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


@dataclass(frozen=True, kw_only=True)
class Options(Settings):
    """The options of every metric; a metric adds its own."""

    weights: str | PathLike[str] | None = option(
        None,
        "Hub repository id (`@revision` pins it), folder, or `tiny`; None: the metric's published weights",
    )
    device: str | None = option(None, "torch device, e.g. `cpu`, `cuda:1`; None: CUDA where there is a GPU")
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", "numeric type of the encoders", sign="dtype", encodes=True
    )
    batch_size: int | None = option(
        None, "images or texts per forward pass; None: as many as fit into memory", minimum=1
    )
    cache: str | PathLike[str] | FeatureCache | None = option(
        None, "folder that keeps features on disk; None: only in memory, 512 MB shared by all metrics"
    )
    rows: str | PathLike[str] | None = option(
        None, "folder that keeps each caption's row, so that an interrupted run goes on where it stopped"
    )
    on_error: Literal["raise", "nan"] = option(
        "raise",
        "what to do with an unreadable image: `raise` before any model runs, or `nan` for its captions alone",
    )
    empty: Literal["error", "score"] = option(
        "error", "how to treat an empty caption: as an `error`, or `score` the bare prompt (and count it)"
    )
    compat: Literal["released"] | None = option(
        None, "`released`: as the released script where it differs from the paper", sign="compat"
    )
    evidence: bool = option(
        False, "keep the evidence behind each score, for `result.explain(i)` and the command line's --json"
    )

    without_statistics: ClassVar[str] = ""
    """How to do without statistics of a corpus, in messages."""

    @property
    def images_are_ids(self) -> bool:
        """Whether `images` only name images: there are features of them already."""
        return False

    @property
    def lacks_statistics(self) -> bool:
        """Whether encoding needs `statistics` of the whole corpus that are not given."""
        return False

    @property
    def weighs_together(self) -> bool:
        """Whether a score depends on the others that are scored with it, since no `statistics` are given."""
        return self.lacks_statistics

    def check(self, metric: Any) -> None:
        """Refuse options that cannot work for a class of metrics, before weights are opened."""
        if self.weights is not None and metric.default_weights is None:
            found = f"{metric.name} has no weights"
            raise wrong_option("weights", str(self.weights), found, "leave the option out", verb="")
        if self.device is not None:
            from capeval_core.models.device import resolve_device  # brings torch

            resolve_device(self.device)
        if self.rows is not None:
            check_folder("rows", self.rows)

    def check_input(
        self, metric: Any, captions: Any, images: Any, references: Any = None, *, progress: bool = False
    ) -> Samples:
        """The samples for a class of metrics, checked before any weights are opened."""
        return check_samples(
            captions,
            images,
            references,
            needs_references=metric.needs_references,
            on_error=self.on_error,
            empty=self.empty,
            media=metric.media,
            decoders=getattr(self, "decoders", None),
            kept=kept_rows(self.rows) if self.rows is not None and self.on_error == "raise" else None,
            progress=progress,
        )

    def check_separable(self, metric: Any, *, scores: bool = True) -> None:
        """Refuse options by which a caption's score, or already its row, depends on the other captions."""
        if scores and metric.relative is not None:
            found = f"{metric.name} cannot score a collection part by part: {metric.relative}"
            raise ValueError(f"{found}; score a whole set by its score(...)")
        if self.weighs_together if scores else self.lacks_statistics:
            raise ValueError(
                f"{metric.name} needs statistics of the whole corpus before it encodes a part: pass "
                f"statistics=metric.prepare({metric.corpus_texts}){self.without_statistics}"
            )

    def encoding(self) -> dict[str, Any]:
        """The options that rows depend on, and their values in JSON's types."""
        return {name: self._recorded(name) for name, one in self.describe().items() if one.encodes}

    def signed(self) -> list[str]:
        """`name:value` of each option that moves the score, in the order of the class."""
        signs = [(one.sign, self._recorded(name)) for name, one in self.describe().items()]
        return [f"{sign}:{_compact(value)}" for sign, value in signs if sign and value is not None]

    def _recorded(self, name: str) -> Any:
        value = getattr(self, name)
        return value.fingerprint if isinstance(value, CorpusStatistics) else value


class CorpusStatistics:
    """Statistics of a whole corpus that encoding needs, e.g. an idf table, made by `CaptionMetric.prepare`.

    They can be pickled: processes that encode parts of one corpus share them.
    """

    @property
    def fingerprint(self) -> str:
        """Digest of the content, for stamps of rows and signatures."""
        raise NotImplementedError

    @classmethod
    def check_option(cls, options: Any, fix: str) -> None:
        """Refuse `statistics` of another class, if options have any. fix: how they are made."""
        given = options.statistics
        if given is not None and not isinstance(given, cls):
            raise wrong_option("statistics", given, f"a {type(given).__name__}", fix, kind=TypeError)


@dataclass(frozen=True, kw_only=True)
class CorpusOptions(Options):
    """The options of a metric whose encoding needs statistics of the whole corpus."""

    statistics: CorpusStatistics | None = option(
        None,
        "statistics of a corpus, made by `prepare`; None: of the texts that are scored, all of them at once",
        sign="statistics",
        encodes=True,
        flag=False,
    )

    @property
    def lacks_statistics(self) -> bool:
        return self.statistics is None


def _compact(value: Any) -> str:
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return str(int(value))  # as the same number given as an int
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    text = str(value)
    # `|` separates the fields of a signature; quotes show where any other than a simple text ends.
    return text if re.fullmatch(r"[\w.-]+", text, re.ASCII) else ascii(text).replace("|", r"\x7c")
