"""Options as frozen dataclasses, from which keywords, flags, signatures and tables are generated."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from types import NoneType
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from capeval_core.cache import FeatureCache
from capeval_core.errors import Kind, Problems, did_you_mean, wrong_option
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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A dataclass whose fields are made by `option` and checked when they are set.

    A scalar of numpy becomes the plain value that it holds.
    """

    without: ClassVar[tuple[str, ...]] = ()
    """Options of the class's bases that it does not take: no door offers, signs or stamps them."""

    def __post_init__(self) -> None:
        problems = Problems()
        for one in describe_options(type(self)):
            value = getattr(self, one.name)
            if isinstance(value, np.generic):
                value = value.item()
                object.__setattr__(self, one.name, value)  # a frozen class sets its own this way
            if wrong := _wrong(one, value):
                found, fix, kind = wrong
                problems.add(wrong_option(one.name, value, found, fix, verb="", kind=kind))
        problems.raise_if_any()

    @classmethod
    def taken(cls) -> list[dataclasses.Field[Any]]:
        """The fields that are options of the class."""
        return [spec for spec in fields(cls) if spec.name not in cls.without]

    @classmethod
    def of(cls, whose: str, keywords: dict[str, Any]) -> Self:
        """Options from keyword arguments; an unknown name is an error with the nearest known one."""
        known, problems = [spec.name for spec in cls.taken()], Problems()
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
        """Refuse what cannot work for a class of metrics, as far as that shows before weights are opened."""
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
        """What a class of metrics is to score, checked before any weights are opened."""
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
        media = "" if metric.variant is None else f"media={metric.variant!r}, "
        opened = f"capeval_core.load({metric.name!r}, {media}...)"
        if scores and metric.relative is not None:
            found = f"{metric.name} cannot score a collection part by part: {metric.relative}"
            raise ValueError(f"{found}; score a whole set by {opened}.score(...)")
        if self.weighs_together if scores else self.lacks_statistics:
            raise ValueError(
                f"{metric.name} needs statistics of the whole corpus before it encodes a part: make them by "
                f"{opened}.prepare({metric.corpus_texts}) and pass statistics=...{self.without_statistics}"
            )

    def encoding(self) -> dict[str, Any]:
        """The options that rows depend on, and their values in JSON's types."""
        return {spec.name: self._recorded(spec.name) for spec in self.taken() if spec.metadata["encodes"]}

    def signed(self) -> list[str]:
        """`name:value` of each option that moves the score, in the order of the class."""
        signs = [(spec.metadata["sign"], self._recorded(spec.name)) for spec in self.taken()]
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


class OptionDescription(NamedTuple):
    """One option in words, for the command line and the cards; `choices` and `types` are what it accepts."""

    name: str
    type: str
    default: Any
    help: str
    choices: tuple[Any, ...]
    types: tuple[Any, ...]
    flag: bool
    minimum: float | None
    recorded: bool


def describe_options(options: type[Settings]) -> list[OptionDescription]:
    """Every option that a class takes, with its type, default and sentence."""
    hints = typing.get_type_hints(options)
    described = []
    for spec in options.taken():
        members, about = _members(hints[spec.name]), spec.metadata
        types = tuple(member for member in members if isinstance(member, type))
        choices = tuple(member for member in members if not isinstance(member, type))
        names = [_TYPE_NAMES.get(m, m.__name__) if isinstance(m, type) else repr(m) for m in members]
        recorded = bool(about["encodes"] or about["sign"] or spec.name == "weights")
        words = (spec.name, " | ".join(names), spec.default, about["help"])
        described.append(OptionDescription(*words, choices, types, about["flag"], about["minimum"], recorded))
    return described


_TYPE_NAMES: dict[type, str] = {PathLike: "path", Mapping: "mapping", Sequence: "list", NoneType: "None"}


def _members(hint: Any) -> list[Any]:
    """The alternatives of a type hint: classes, and the values of Literals."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return list(arguments)
    if origin in _TYPE_NAMES:
        return [origin]
    return [member for argument in arguments for member in _members(argument)] or [hint]


def _wrong(option: OptionDescription, value: Any) -> tuple[str, str, Kind] | None:
    """What is wrong with a value, what to do, and the kind of error; None where it fits."""
    accepted = (*option.types, int) if float in option.types else option.types
    expected = f"expected {option.type.replace(' | ', ' or ')}"
    if isinstance(value, str) and option.choices:
        return None if value in option.choices else ("", expected.removesuffix(" or None"), ValueError)
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        return "", expected, TypeError
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return "is too large a number", "pass a smaller one", ValueError
    if option.minimum is not None and value is not None and not option.minimum <= value < math.inf:
        return "", f"expected a number of at least {option.minimum:g}", ValueError
    if isinstance(value, (str, PathLike)):
        text, path = os.fspath(value), PathLike in option.types
        if path and not text and option.default is None:
            return "is empty", "pass a path, or leave the option out ('.' is the current folder)", ValueError
        if path and "\0" in text:
            return "has a NUL character, which no path can have", "leave it out", ValueError
        if option.recorded and not valid_unicode(text):
            return "is not valid Unicode, so no file can record it", "rename it", ValueError
    return None


def _compact(value: Any) -> str:
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return str(int(value))  # as the same number given as an int
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    text = str(value)
    # `|` separates the fields of a signature; quotes show where any other than a simple text ends.
    return text if re.fullmatch(r"[\w.-]+", text, re.ASCII) else ascii(text).replace("|", r"\x7c")
